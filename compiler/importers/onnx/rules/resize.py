"""Rules of resampling: Resize and Upsample as gathers and weighted sums along one axis after another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from .....ir import dims
from .....ir.dims import Dim
from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.types import f32
from ..context import Node, cast, rule
from .pointwise import constant
from .resize_symbolic import ResizeSampling, cubic_kernel, resampled_along

Array: TypeAlias = np.ndarray[Any, Any]

LONGEST = 1 << 28
"""Elements of an axis: places and weights along it are constants of the engine."""
DENOMINATOR = 1 << 36
"""A symbolic size times a scale is a division by its denominator, exact as far as sizes go."""


def _sampling(n: Node) -> ResizeSampling:
    sampling = ResizeSampling(
        mode=n.attr_string("mode", "nearest"),
        coordinates=n.attr_string("coordinate_transformation_mode", "half_pixel" if n.opset >= 11 else "asymmetric"),
        nearest=n.attr_string("nearest_mode", "round_prefer_floor" if n.opset >= 11 else "floor"),
        cubic=n.attr_float("cubic_coeff_a", -0.75),
        outside=n.attr_flag("exclude_outside"),
        antialias=n.attr_flag("antialias"),
        extrapolation=n.attr_float("extrapolation_value"),
    )
    if sampling.mode not in ("nearest", "linear", "cubic", "bilinear"):
        raise n.fail(f"mode {sampling.mode!r} is not known")
    return sampling


@rule("Upsample")
def _upsample(n: Node) -> Value:
    x = n.x(0)
    if n.opset >= 9:
        scales = [float(s) for s in n.array(1, "the scales")]
    else:
        scales = list(n.attr_floats("scales") or ())
    if len(scales) != x.type.rank:
        raise n.fail(f"got {len(scales)} scales for rank {x.type.rank}")
    sampling = ResizeSampling(n.attr_string("mode", "nearest"), "asymmetric", "floor", -0.75, False, False, 0.0)
    targets = [_scaled(size, scale) for size, scale in zip(x.shape, scales, strict=True)]
    return _resampled(n, x, targets, scales, sampling, None)


def _scaled(size: Dim, scale: float) -> Dim:
    """size * scale, rounded down."""
    if isinstance(size, int):
        return math.floor(size * scale)
    exact = Fraction(scale)
    if exact.denominator > DENOMINATOR:
        raise UnsupportedError(f"scale {scale} of the symbolic size {size}", hint="fix that size at import (shapes)")
    return size * exact.numerator // exact.denominator


@rule("Resize")
def _resize(n: Node) -> Value:
    x = n.x(0)
    shape = x.shape
    sampling = _sampling(n)
    axes = n.axes(n.attr_ints("axes") or tuple(range(len(shape))), len(shape))
    # Opset 10 had no region operand: scales came second.
    scales_at, sizes_at = (1, 9) if n.opset < 11 else (2, 3)
    targets: list[Dim] = list(shape)
    scales: list[float | None] = [1.0] * len(shape)
    if n.given(scales_at) and n.x(scales_at).shape != (0,):
        given = n.array(scales_at, "the scales").reshape(-1)
        if len(given) != len(axes) or not (given > 0).all():
            raise n.fail(f"scales are {given[:8].tolist()}, expected a positive one for each of {len(axes)} axes")
        for axis, scale in zip(axes, given, strict=True):
            scales[axis] = float(scale)
            targets[axis] = _scaled(shape[axis], float(scale))
    elif n.given(sizes_at):
        wanted = n.sizes(sizes_at, "the sizes")
        if len(wanted) != len(axes):
            raise n.fail(f"got {len(wanted)} sizes for {len(axes)} axes")
        _fit(n, shape, axes, wanted, targets, scales)
    else:
        raise n.fail("neither scales nor sizes are given")
    region = None
    if sampling.coordinates == "tf_crop_and_resize":
        region = _region(n, axes, len(shape))
        for axis in axes:
            size, scale = shape[axis], scales[axis]
            if scale is None or not isinstance(size, int):
                raise UnsupportedError(f"crops the symbolic size {size}", hint="fix that size at import (shapes)")
            if not (n.given(sizes_at)):
                low, high = region[axis]
                targets[axis] = math.floor(size * (high - low) * scale)
    return _resampled(n, x, targets, scales, sampling, region)


def _fit(
    n: Node,
    shape: tuple[Dim, ...],
    axes: tuple[int, ...],
    wanted: tuple[Dim, ...],
    targets: list[Dim],
    scales: list[float | None],
) -> None:
    """Sizes as they are, or the aspect ratio kept within or around them; None is a scale that only the run knows."""
    policy = n.attr_string("keep_aspect_ratio_policy", "stretch")
    if policy not in ("stretch", "not_larger", "not_smaller"):
        raise n.fail(f"keep_aspect_ratio_policy {policy!r} is not known")
    pairs = [(shape[axis], want) for axis, want in zip(axes, wanted, strict=True)]
    ratios = [want / size if isinstance(size, int) and isinstance(want, int) and size else None for size, want in pairs]
    if policy == "stretch":
        for axis, want, ratio in zip(axes, wanted, ratios, strict=True):
            targets[axis], scales[axis] = want, 1.0 if want == shape[axis] else ratio
        return
    known = [ratio for ratio in ratios if ratio is not None]
    if len(known) < len(ratios):
        raise UnsupportedError("keeps the aspect ratio of symbolic sizes", hint="fix those sizes at import (shapes)")
    ratio = min(known) if policy == "not_larger" else max(known)
    for axis in axes:
        targets[axis], scales[axis] = math.floor(dims.number(shape[axis]) * ratio + 0.5), ratio


def _region(n: Node, axes: tuple[int, ...], rank: int) -> list[tuple[float, float]]:
    given = n.array(1, "the region").reshape(-1)
    if len(given) != 2 * len(axes):
        raise n.fail(f"the region has {len(given)} bounds, expected two for each of {len(axes)} axes")
    region = [(0.0, 1.0)] * rank
    for position, axis in enumerate(axes):
        region[axis] = (float(given[position]), float(given[position + len(axes)]))
    return region


def _resampled(
    n: Node,
    x: Value,
    targets: list[Dim],
    scales: Sequence[float | None],
    sampling: ResizeSampling,
    region: list[tuple[float, float]] | None,
) -> Value:
    excess = x.type.with_shape(tuple(targets)).excess()
    if excess is not None or any(isinstance(target, int) and target > LONGEST for target in targets):
        sizes = [str(target) for target in targets]
        raise UnsupportedError(f"resizes to {sizes}, {excess or 'an axis of more than 2^28 elements'}", hint="resize to a smaller image")
    result, beyond = x, np.zeros((1,) * x.type.rank, dtype=bool)
    for axis, (size, target, scale) in enumerate(zip(x.shape, targets, scales, strict=True)):
        if size == target and scale == 1.0 and region is None:
            continue
        if size == 0 and target != 0:
            raise UnsupportedError("resizes an empty axis", hint="give the input a size")
        if not isinstance(size, int) or not isinstance(target, int) or scale is None:
            result = resampled_along(n, result, axis, target, scale, sampling)
            continue
        places = _places(n, size, target, scale, sampling, None if region is None else region[axis])
        if region is not None:
            # The reference's places beyond the input take the extrapolation value, nearest as well.
            view = [1] * x.type.rank
            view[axis] = target
            beyond = beyond | ((places < 0) | (places > size - 1)).reshape(view)
        result = _along(n, result, axis, size, places, scale, sampling)
    result = cast(n, result, x.dtype)
    if beyond.any():
        result = n.b.where(n.b.broadcast_to(constant(n, beyond), shape=result.shape), n.b.scalar(sampling.extrapolation, x.dtype), result)
    return result


def _places(n: Node, size: int, target: int, scale: float, sampling: ResizeSampling, region: tuple[float, float] | None) -> Array:
    """Where each result index lies in the input."""
    index = np.arange(target, dtype=np.float64)
    exact = size * scale
    kind = sampling.coordinates
    if kind == "asymmetric":
        return index / scale
    if kind == "half_pixel":
        return (index + 0.5) / scale - 0.5
    if kind == "pytorch_half_pixel":
        return (index + 0.5) / scale - 0.5 if target > 1 else np.zeros(target)
    if kind == "align_corners":
        return index * ((size - 1) / (exact - 1)) if target > 1 else np.zeros(target)
    if kind == "half_pixel_symmetric":
        adjustment = target / exact
        center = size / 2
        return center * (1 - adjustment) + (index + 0.5) / scale - 0.5
    if kind == "tf_half_pixel_for_nn":
        return (index + 0.5) / scale
    if kind == "tf_crop_and_resize" and region is not None:
        low, high = region
        if target > 1:
            return low * (size - 1) + index * (high - low) * (size - 1) / (target - 1)
        return np.full(target, 0.5 * (low + high) * (size - 1))
    raise n.fail(f"coordinate_transformation_mode {kind!r} is not known")


def _along(n: Node, x: Value, axis: int, size: int, places: Array, scale: float, sampling: ResizeSampling) -> Value:
    if sampling.mode == "nearest":
        index = np.clip(_nearest(n, places, sampling.nearest), 0, size - 1).astype(np.int64)
        nearest: Value = n.b.take(x, constant(n, index), axis=axis)
        return nearest
    taps, weights = _weights(places, size, scale, sampling)
    if len(taps) > 256:
        raise UnsupportedError(f"antialiasing over {len(taps)} elements", hint="resize in two steps")
    wide = cast(n, x, f32) if not x.dtype.is_float else x
    total: Value | None = None
    for index, weight in zip(taps, weights, strict=True):
        view = [1] * x.type.rank
        view[axis] = len(places)
        factor = constant(n, weight.reshape(view).astype(wide.dtype.numpy))
        term = n.b.mul(n.b.take(wide, constant(n, index), axis=axis), factor)
        total = term if total is None else n.b.add(total, term)
    if total is None:
        raise n.fail("no element to interpolate from")
    return total


def _nearest(n: Node, places: Array, kind: str) -> Array:
    if kind == "round_prefer_floor":
        return np.asarray(np.ceil(places - 0.5))
    if kind == "round_prefer_ceil":
        return np.asarray(np.floor(places + 0.5))
    if kind == "floor":
        return np.asarray(np.floor(places))
    if kind == "ceil":
        return np.asarray(np.ceil(places))
    raise n.fail(f"nearest_mode {kind!r} is not known")


def _weights(places: Array, size: int, scale: float, sampling: ResizeSampling) -> tuple[list[Array], list[Array]]:
    """For each tap: the input index and the weight at every place; the weights of a place add up to one."""
    shrink = min(scale, 1.0) if sampling.antialias else 1.0
    reach = 2 if sampling.mode == "cubic" else 1
    support = reach / shrink
    first = np.floor(places - support).astype(np.int64) + 1
    count = math.ceil(2 * support) + (1 if shrink < 1.0 else 0)
    taps, weights = [], []
    for k in range(count):
        index = first + k
        distance = np.abs((places - index) * shrink)
        weight = _cubic(distance, sampling.cubic) if sampling.mode == "cubic" else np.maximum(1 - distance, 0)
        if sampling.outside:
            weight = np.where((index < 0) | (index >= size), 0.0, weight)
        taps.append(np.clip(index, 0, size - 1))
        weights.append(weight)
    total = sum(weights)
    if shrink < 1.0 or sampling.outside:
        weights = [weight / total for weight in weights]
    return taps, weights


def _cubic(distance: Array, a: float) -> Array:
    near, far = cubic_kernel(a)
    return np.where(distance <= 1, np.polyval(near, distance), np.where(distance < 2, np.polyval(far, distance), 0.0))
