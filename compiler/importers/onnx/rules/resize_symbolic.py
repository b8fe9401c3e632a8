"""Resampling along an axis whose size only the run knows: places and weights are computed beside the data."""

from __future__ import annotations

from dataclasses import dataclass

from .....ir.dims import Dim
from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.types import f32, f64, i64
from ..context import Node, cast
from .window import number


@dataclass(frozen=True)
class ResizeSampling:
    """How result indices become places in the input, and places become weights."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    outside: bool
    antialias: bool
    extrapolation: float


def cubic_kernel(a: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The cubic kernel's coefficients, highest power first: up to a distance of 1, and from there to 2."""
    return (a + 2, -(a + 3), 0.0, 1.0), (a, -5 * a, 8 * a, -4 * a)


def resampled_along(n: Node, x: Value, axis: int, target: Dim, scale: float | None, sampling: ResizeSampling) -> Value:
    """x with `target` elements along one axis; `scale` is None where it is target / size."""
    if sampling.antialias and sampling.mode != "nearest":
        raise UnsupportedError(f"antialiasing of the symbolic size {x.shape[axis]}", hint="fix that size at import (shapes)")
    places = _places(n, x.shape[axis], target, scale, sampling)
    if sampling.mode == "nearest":
        nearest: Value = n.b.take(x, _clamped(n, cast(n, _nearest(n, places, sampling.nearest), i64), x.shape[axis]), axis=axis)
        return nearest
    reach = 2 if sampling.mode == "cubic" else 1
    first = n.b.floor(places)
    wide = x if x.dtype.is_float else cast(n, x, f32)
    total: Value | None = None
    weights: Value | None = None
    for k in range(1 - reach, 1 + reach):
        index = n.b.add(first, float(k))
        weight = _weight(n, n.b.abs(n.b.sub(places, index)), sampling)
        index = cast(n, index, i64)
        if sampling.outside:
            inside = n.b.logical_and(n.b.ge(index, 0), n.b.lt(index, number(n, x.shape[axis])))
            weight = n.b.where(inside, weight, n.b.scalar(0.0, f64))
            weights = weight if weights is None else n.b.add(weights, weight)
        total = _added(n, total, n.b.take(wide, _clamped(n, index, x.shape[axis]), axis=axis), weight, axis)
    if total is None:
        raise n.fail("no element to interpolate from")
    if weights is None:
        return total
    result: Value = n.b.div(total, _view(n, cast(n, weights, wide.dtype), axis, x.type.rank))
    return result


def _added(n: Node, total: Value | None, taken: Value, weight: Value, axis: int) -> Value:
    term: Value = n.b.mul(taken, _view(n, cast(n, weight, taken.dtype), axis, taken.type.rank))
    return term if total is None else n.b.add(total, term)


def _view(n: Node, vector: Value, axis: int, rank: int) -> Value:
    result: Value = n.b.reshape(vector, shape=tuple(vector.shape[0] if a == axis else 1 for a in range(rank)))
    return result


def _clamped(n: Node, index: Value, size: Dim) -> Value:
    result: Value = n.b.clip(index, n.b.scalar(0, i64), number(n, size - 1))
    return result


def _places(n: Node, size: Dim, target: Dim, scale: float | None, sampling: ResizeSampling) -> Value:
    """Where each result index lies in the input; all in f64, as places decide between neighbours."""
    b, kind = n.b, sampling.coordinates
    index = cast(n, b.iota(shape=(target,), axis=0, dtype=i64), f64)
    length, count = cast(n, number(n, size), f64), cast(n, number(n, target), f64)
    by = b.div(count, length) if scale is None else b.scalar(scale, f64)
    exact = count if scale is None else b.mul(length, by)
    half = b.sub(b.div(b.add(index, 0.5), by), 0.5)
    zero = b.scalar(0.0, f64)
    result: Value
    if kind == "asymmetric":
        result = b.div(index, by)
    elif kind == "half_pixel":
        result = half
    elif kind == "pytorch_half_pixel":
        result = b.where(b.gt(count, 1.0), half, zero)
    elif kind == "align_corners":
        result = b.where(b.gt(count, 1.0), b.mul(index, b.div(b.sub(length, 1.0), b.sub(exact, 1.0))), zero)
    elif kind == "half_pixel_symmetric":
        center, adjustment = b.mul(length, 0.5), b.div(count, exact)
        result = b.add(b.mul(center, b.sub(b.scalar(1.0, f64), adjustment)), half)
    elif kind == "tf_half_pixel_for_nn":
        result = b.div(b.add(index, 0.5), by)
    else:
        raise n.fail(f"coordinate_transformation_mode {kind!r} is not known")
    return result


def _nearest(n: Node, places: Value, kind: str) -> Value:
    b = n.b
    rounded = {
        "round_prefer_floor": lambda: b.ceil(b.sub(places, 0.5)),
        "round_prefer_ceil": lambda: b.floor(b.add(places, 0.5)),
        "floor": lambda: b.floor(places),
        "ceil": lambda: b.ceil(places),
    }
    if kind not in rounded:
        raise n.fail(f"nearest_mode {kind!r} is not known")
    return rounded[kind]()  # type: ignore[no-any-return]


def _weight(n: Node, distance: Value, sampling: ResizeSampling) -> Value:
    """The weight of an element at a distance."""
    b, zero = n.b, n.b.scalar(0.0, f64)
    result: Value
    if sampling.mode != "cubic":
        result = b.maximum(b.sub(b.scalar(1.0, f64), distance), zero)
        return result
    near, far = (_polynomial(n, distance, part) for part in cubic_kernel(sampling.cubic))
    result = b.where(b.le(distance, 1.0), near, b.where(b.lt(distance, 2.0), far, zero))
    return result


def _polynomial(n: Node, x: Value, coefficients: tuple[float, ...]) -> Value:
    total: Value = n.b.scalar(coefficients[0], f64)
    for coefficient in coefficients[1:]:
        total = n.b.add(n.b.mul(total, x), coefficient)
    return total
