"""Pools over [batch, channels, spatial ...] of any spatial rank; a global pool is a reduction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import dims, scalar
from ..dims import Dim
from ..summation import total
from ..types import TensorType, boolean, f16, i8, i64, u8
from .reduction import expect_numbers, lowest, number_of
from .sampling import array, bf16, draw, refused
from .structure import RegionBuilder
from .table import Sample, structured
from .window import Places, output_sizes, padded, window_attrs, windows

Tensor = np.ndarray[Any, Any]
Ints = tuple[int, ...]


@structured()
def max_pool(x: Tensor, /, *, window: Ints, strides: Ints, dilations: Ints, before: tuple[Dim, ...], after: tuple[Dim, ...]) -> Tensor:
    """The largest element of each window; NaN if any is NaN; padding counts as the dtype's lowest value."""
    view = windows(padded(x, before, after, lowest(x.dtype)), window, strides, dilations)
    return np.asarray(view.max(axis=tuple(range(view.ndim - len(window), view.ndim)), initial=lowest(x.dtype)))


@max_pool.infers
def _(x: TensorType, *, window: Ints, strides: Ints, dilations: Ints, before: tuple[Dim, ...], after: tuple[Dim, ...]) -> TensorType:
    expect_numbers("max_pool", x, ("float", "int", "uint"), "real numbers")
    return x.with_shape((*x.shape[:2], *output_sizes("max_pool", x, window, strides, dilations, before, after)))


@max_pool.region
def _(
    r: RegionBuilder, x: TensorType, *, window: Ints, strides: Ints, dilations: Ints, before: tuple[Dim, ...], after: tuple[Dim, ...]
) -> None:
    lead = r.grid(x.shape[:2], "i")
    at = Places(r, r.outputs[0].type.shape[2:], window, strides, dilations, before)
    value = r.load(0, (*lead, *at.inputs), lowest(x.dtype.numpy) if x.dtype.is_integer else -np.inf)
    axes = (*lead, *at.places)
    r.store(0, axes, r.reduce("max", at.over, value, axes) if at.over else value)


@structured()
def max_pool_index(
    x: Tensor, /, *, window: Ints, strides: Ints, dilations: Ints, before: tuple[Dim, ...], after: tuple[Dim, ...]
) -> Tensor:
    """Where `max_pool` found its element first: the i64 row-major index in the spatial dimensions of x.

    Padding has no place there: where nothing is above it, the window's first element that lies in x is found.
    """
    rank = len(window)
    view = windows(padded(x, before, after, lowest(x.dtype)), window, strides, dilations)
    found = view.reshape(*view.shape[: 2 + rank], int(np.prod(window, dtype=np.int64))).argmax(axis=-1)
    index, first, outside = np.zeros(found.shape, np.int64), np.zeros(found.shape, np.int64), np.zeros(found.shape, np.bool_)
    for n, offset in enumerate(np.unravel_index(found, window)):
        places = np.arange(view.shape[2 + n]).reshape([-1 if d == 2 + n else 1 for d in range(2 + rank)])
        start = places * strides[n] - before[n]
        place = start + offset * dilations[n]
        outside |= (place < 0) | (place >= x.shape[2 + n])
        index = index * x.shape[2 + n] + place
        first = first * x.shape[2 + n] + start + np.maximum(-(start // dilations[n]), 0) * dilations[n]
    return np.where(outside, first, index)


@max_pool_index.infers
def _(x: TensorType, *, window: Ints, strides: Ints, dilations: Ints, before: tuple[Dim, ...], after: tuple[Dim, ...]) -> TensorType:
    expect_numbers("max_pool_index", x, ("float", "int", "uint"), "real numbers")
    return TensorType(i64, (*x.shape[:2], *output_sizes("max_pool_index", x, window, strides, dilations, before, after)))


@max_pool_index.region
def _(
    r: RegionBuilder, x: TensorType, *, window: Ints, strides: Ints, dilations: Ints, before: tuple[Dim, ...], after: tuple[Dim, ...]
) -> None:
    lead, places = r.grid(x.shape[:2], "i"), r.grid(r.outputs[0].type.shape[2:], "p")
    axes = (*lead, *places)
    # argmax folds one axis: the window in row-major order.
    flat = r.axis(dims.product(window), "k")
    offsets: list[Dim] = []
    rest: Dim = flat
    for n in reversed(range(len(window))):
        offsets.insert(0, rest % window[n] if n else rest)
        rest = rest // window[n]
    inputs = [p * s + k * d - b for p, s, k, d, b in zip(places, strides, offsets, dilations, before, strict=True)]
    value = r.load(0, (*lead, *inputs), lowest(x.dtype.numpy) if x.dtype.is_integer else -np.inf)
    found = r.reduce("argmax", [flat], value, axes)
    index, first, inside = r.index(0), r.index(0), None
    for n, size in enumerate(x.shape[2:]):
        step = int(np.prod(window[n + 1 :], dtype=np.int64))
        offset = scalar.floor_mod(scalar.floor_div(found, step), window[n])
        start = places[n] * strides[n] - before[n]
        place = scalar.add(r.index(start), scalar.mul(offset, dilations[n]))
        index = scalar.add(scalar.mul(index, r.index(size)), place)
        if before[n] != 0 or after[n] != 0:
            entered = r.index(start + dims.maximum(dims.ceil_div(-start, dilations[n]), 0) * dilations[n])
            here = scalar.logical_and(scalar.le(r.index(0), place), scalar.lt(place, r.index(size)))
            inside = here if inside is None else scalar.logical_and(inside, here)
        else:
            entered = r.index(start)
        first = scalar.add(scalar.mul(first, r.index(size)), entered)
    r.store(0, axes, index if inside is None else scalar.where(inside, index, first))


@structured()
def avg_pool(
    x: Tensor,
    /,
    *,
    window: Ints,
    strides: Ints,
    dilations: Ints,
    before: tuple[Dim, ...],
    after: tuple[Dim, ...],
    count_padding: bool = False,
) -> Tensor:
    """The mean of each window: its sum divided by how many of its elements lie in x, or by all with `count_padding`."""
    folded = tuple(range(x.ndim, x.ndim + len(window)))
    view = windows(padded(x, before, after, 0), window, strides, dilations)
    inside = windows(padded(np.ones((1, 1, *x.shape[2:]), x.dtype), before, after, 0), window, strides, dilations)
    count = x.dtype.type(np.prod(window)) if count_padding else total(inside, folded)
    return np.asarray(total(view, folded) / count)


@avg_pool.infers
def _(
    x: TensorType, *, window: Ints, strides: Ints, dilations: Ints, before: tuple[Dim, ...], after: tuple[Dim, ...], count_padding: bool
) -> TensorType:
    expect_numbers("avg_pool", x, ("float",), "floats")
    return x.with_shape((*x.shape[:2], *output_sizes("avg_pool", x, window, strides, dilations, before, after)))


@avg_pool.region
def _(
    r: RegionBuilder,
    x: TensorType,
    *,
    window: Ints,
    strides: Ints,
    dilations: Ints,
    before: tuple[Dim, ...],
    after: tuple[Dim, ...],
    count_padding: bool,
) -> None:
    lead = r.grid(x.shape[:2], "i")
    at = Places(r, r.outputs[0].type.shape[2:], window, strides, dilations, before)
    is_padded = any(amount != 0 for amount in (*before, *after))
    value, axes = r.load(0, (*lead, *at.inputs), 0 if is_padded else None), (*lead, *at.places)
    total = r.reduce("sum", at.over, value, axes) if at.over else value
    count: Dim = 1
    for n, size in enumerate(window):
        if count_padding or not is_padded:
            count = count * size
            continue
        # Window elements k with 0 <= p * stride + k * dilation - before < size of x.
        start = at.places[n] * strides[n] - before[n]
        first = dims.maximum(dims.ceil_div(-start, dilations[n]), 0)
        end = dims.minimum(dims.ceil_div(x.shape[n + 2] - start, dilations[n]), size)
        count = count * dims.maximum(end - first, 0)
    r.store(0, axes, scalar.div(total, number_of(r, count, total)))


def _pools() -> Iterator[Sample]:
    x = draw(2, 3, 7, 6)
    yield Sample((x,), window_attrs(2, window=(3, 2)))
    yield Sample((x,), window_attrs(2, window=(3, 3), strides=(2, 2), before=(1, 1), after=(1, 2)))
    yield Sample((x,), window_attrs(2, window=(2, 3), dilations=(3, 2), after=(1, 0)))
    yield Sample((x,), window_attrs(2, window=(1, 1), strides=(2, 2)))
    yield Sample((x,), window_attrs(2, window=(3, 2), dilations=(2, 3), before=(3, 1), after=(1, 2)))
    yield Sample((draw(1, 2, 5, dtype=f16),), window_attrs(1, window=(2,), before=(1,)))
    yield Sample((draw(1, 2, 5, dtype=bf16),), window_attrs(1, window=(2,)))
    yield Sample((draw(0, 2, 5),), window_attrs(1, window=(2,)))
    yield Sample((draw(1, 1, 3, 3, 3),), window_attrs(3, window=(2, 2, 2), before=(1, 0, 1)))
    yield Sample((array(1, float("nan"), 2, 3).reshape(1, 1, 4),), window_attrs(1, window=(2,)))
    yield refused((x,), "a window that reaches over 8 is larger than the padded dimension 2", **window_attrs(2, window=(8, 1)))
    yield refused((x,), "got 1 window sizes, expected 2", **window_attrs(2, window=(3,)))
    yield refused((draw(3),), "got f32[3], expected [batch, channels, spatial ...]", **window_attrs(0, window=()))
    yield refused((draw(1, 1, 4, dtype=boolean),), "got bool[1, 1, 4], expected", **window_attrs(1, window=(2,)))


def _ordered_pools() -> Iterator[Sample]:
    yield from _pools()
    low = np.full((1, 1, 4, 5), -np.inf, dtype=np.float32)
    yield Sample((low,), window_attrs(2, window=(3, 3), strides=(2, 1), before=(1, 1), after=(1, 1)))
    yield Sample((low,), window_attrs(2, window=(2, 3), dilations=(2, 3), before=(1, 2), after=(1, 4)))
    yield Sample((draw(1, 2, 5, dtype=u8, high=255),), window_attrs(1, window=(2,), before=(1,)))
    yield Sample((draw(1, 2, 5, dtype=i8, low=-128, high=-100),), window_attrs(1, window=(2,), after=(1,)))


max_pool.samples(_ordered_pools)
max_pool_index.samples(_ordered_pools)


@avg_pool.samples
def _() -> Iterator[Sample]:
    for sample in _pools():
        yield sample
        yield Sample(sample.operands, {**sample.attrs, "count_padding": True}, sample.error)
