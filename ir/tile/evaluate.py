"""The meaning of tile values on numpy arrays: elementwise, dot, reduce, scan and reshapes, each with its poison.

A tile holds one array over its axes and, where some lanes have no value, a poison mask of the same shape. Poison
spreads through everything that reads it; `where` drops the side that is not chosen, and a `dot` forgives it outside
the domain of a contracted axis if the other operand is 0 there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .. import scalar
from ..types import DType, f32
from .program import Dot, Expand2to4, Join, Reduce, Rename, Scan, Slice, TileApply, TileType, Unpack

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Tile:
    """An array over named axes; `poison` is None where every lane has a value."""

    axes: tuple[str, ...]
    data: Array
    poison: Array | None = None

    def over(self, axes: tuple[str, ...]) -> Tile:
        """The same tile seen over more axes, in this order; axes that it lacks have extent 1."""
        return Tile(axes, aligned(self.data, self.axes, axes), None if self.poison is None else aligned(self.poison, self.axes, axes))

    def cast(self, dtype: DType) -> Tile:
        return Tile(self.axes, scalar.convert(self.data, dtype), self.poison)


def aligned(data: Array, before: tuple[str, ...], after: tuple[str, ...]) -> Array:
    """`data` transposed to the order of `after`, with extent 1 for axes that it lacks."""
    if before == after:
        return data
    order = [before.index(axis) for axis in after if axis in before]
    moved = data.transpose(order)
    sizes = iter(moved.shape)
    return moved.reshape([next(sizes) if axis in before else 1 for axis in after])


def either(*masks: Array | None) -> Array | None:
    """The union of poison masks."""
    result: Array | None = None
    for mask in masks:
        if mask is not None:
            result = mask if result is None else result | mask
    return result


def apply(value: TileApply, args: list[Tile]) -> Tile:
    """A scalar primitive, operands broadcast by axis name."""
    axes = value.type.axes
    parts = [arg.over(axes) for arg in args]
    if value.primitive in ("cast", "round"):
        return Tile(axes, scalar.convert(parts[0].data, value.dtype), parts[0].poison)
    if value.primitive == "bitcast":
        return Tile(axes, scalar.bitcast(np.asarray(parts[0].data, order="C"), value.dtype), parts[0].poison)
    data = np.asarray(scalar.evaluate(value.primitive, *(part.data for part in parts)))
    if value.primitive == "where":
        sides = zip(parts[1:], (parts[0].data, ~parts[0].data), strict=True)
        poison = either(parts[0].poison, *(None if part.poison is None else part.poison & side for part, side in sides))
    else:
        poison = either(*(part.poison for part in parts))
    return Tile(axes, data, None if poison is None else np.broadcast_to(poison, data.shape))


# --- dot --------------------------------------------------------------------------------------------------------------


def dot(value: Dot, args: list[Tile], inside: Mapping[str, Array]) -> Tile:
    """acc + left @ right; `inside` says for every axis which of its lanes lie in its domain."""
    left, right, acc = args[:3]
    scales = iter(args[3:])
    inner = tuple(a for a in left.axes if a not in acc.axes)
    left = _scaled(left, next(scales), inner) if value.left_scale is not None else left
    right = _scaled(right, next(scales), inner) if value.right_scale is not None else right
    batch = tuple(a for a in acc.axes if a in left.axes and a in right.axes)
    rows = tuple(a for a in acc.axes if a in left.axes and a not in batch)
    columns = tuple(a for a in acc.axes if a not in batch and a not in rows)
    sizes = dict(zip(left.axes + right.axes + acc.axes, left.data.shape + right.data.shape + acc.data.shape, strict=True))
    first = _Matrix(left.over(batch + rows + inner), (batch, rows, inner), sizes)
    second = _Matrix(right.over(batch + inner + columns), (batch, inner, columns), sizes)
    total = _matmul(first.data, second.data, acc.data.dtype, value.precision)
    shape = tuple(sizes[a] for a in batch + rows + columns)
    within = np.ones(1, bool)
    for axis in inner:
        within = (within[:, None] & inside[axis][None, :]).reshape(-1)
    poison = _dot_poison(first, second, within)
    found = Tile(batch + rows + columns, total.reshape(shape), None if poison is None else poison.reshape(shape)).over(acc.axes)
    data = scalar.evaluate("add", acc.data, found.data.astype(acc.data.dtype))
    return Tile(acc.axes, np.asarray(data), either(acc.poison, found.poison))


class _Matrix:
    """A tile as (batch, rows, columns), each a group of axes."""

    def __init__(self, tile: Tile, groups: tuple[tuple[str, ...], ...], sizes: dict[str, int]) -> None:
        shape = [int(np.prod([sizes[axis] for axis in group], dtype=np.int64)) for group in groups]
        self.data = tile.data.reshape(shape)
        self.poison = None if tile.poison is None else np.broadcast_to(tile.poison, tile.data.shape).reshape(shape)


def _scaled(operand: Tile, scale: Tile, inner: tuple[str, ...]) -> Tile:
    blocks = next((axis for axis in scale.axes if axis not in operand.axes), None)
    factor = scale.cast(f32)
    if blocks is not None:
        place, size = factor.axes.index(blocks), operand.data.shape[operand.axes.index(inner[0])]
        data = np.repeat(factor.data, size // factor.data.shape[place], place)
        poison = None if factor.poison is None else np.repeat(factor.poison, size // factor.poison.shape[place], place)
        factor = Tile(tuple(inner[0] if axis == blocks else axis for axis in factor.axes), data, poison)
    wide, factor = operand.cast(f32), factor.over(operand.axes)
    return Tile(operand.axes, wide.data * factor.data, either(operand.poison, factor.poison))


def _matmul(left: Array, right: Array, dtype: np.dtype[Any], precision: str) -> Array:
    """Products and sums in the accumulator's type (f32 for narrower floats); masked lanes are 0, so none is NaN."""
    wide = dtype if dtype.kind in "iuf" and (dtype.kind != "f" or dtype.itemsize >= 4) else np.dtype(np.float32)
    with np.errstate(all="ignore"):
        left, right = left.astype(wide), right.astype(wide)
        if precision == "exact":
            return np.asarray(np.matmul(left, right))
        if precision == "pairs":
            return _in_pairs(left, right)
        high_left, high_right = _tf32(left), _tf32(right)
        total = np.matmul(high_left, high_right)
        if precision == "tf32x3":
            small = np.matmul(high_left, _tf32(right - high_right)) + np.matmul(_tf32(left - high_left), high_right)
            # Of an infinity nothing is left below, infinity less infinity: Triton takes such a part for 0 as well.
            total = total + np.where(np.isnan(small), np.float32(0), small)
        return np.asarray(total)


def _in_pairs(left: Array, right: Array) -> Array:
    """Products of neighbours along the sum added in 16 bits, which saturate, and these in the type of the factors."""
    products = (left[..., :, :, None] * right[..., None, :, :]).reshape(*left.shape[:-1], -1, 2, right.shape[-1])
    limits = np.iinfo(np.int16)
    return np.asarray(np.clip(products.sum(-2, dtype=left.dtype), limits.min, limits.max).sum(-2, dtype=left.dtype))


def _tf32(x: Array) -> Array:
    """f32 rounded to the 10 fraction bits of tf32, halves to even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded.view(np.float32), x)


def _dot_poison(left: _Matrix, right: _Matrix, within: Array) -> Array | None:
    poison: Array | None = None
    if left.poison is not None:
        poison = either(poison, np.any(left.poison & within, axis=2, keepdims=True))
    if right.poison is not None:
        poison = either(poison, np.any(right.poison & within[:, None], axis=1, keepdims=True))
    if not within.all():
        # Outside the domain one side must be 0: the sum has no mask of its own.
        outside = ~within
        loose_left = _not_zero(left)[:, :, outside].astype(np.float32)
        loose_right = _not_zero(right)[:, outside, :].astype(np.float32)
        poison = either(poison, np.matmul(loose_left, loose_right) > 0)
    if poison is None:
        return None
    return np.broadcast_to(poison, (left.data.shape[0], left.data.shape[1], right.data.shape[2]))


def _not_zero(matrix: _Matrix) -> Array:
    nonzero = matrix.data != 0
    return np.asarray(nonzero if matrix.poison is None else nonzero | matrix.poison)


# --- folds ------------------------------------------------------------------------------------------------------------

_REDUCE: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
    "any": np.any,
    "all": np.all,
    "argmax": np.argmax,
    "argmin": np.argmin,
}
_SCAN: dict[str, Callable[..., Any]] = {
    "sum": np.cumsum,
    "prod": np.cumprod,
    "max": np.maximum.accumulate,
    "min": np.minimum.accumulate,
}


def reduce(value: Reduce, arg: Tile) -> Tile:
    """Fold one axis; narrow floats in f32, rounded once."""
    place = arg.axes.index(value.axis)
    kept = tuple(axis for axis in arg.axes if axis != value.axis)
    data = _wide(arg.data)
    with np.errstate(all="ignore"):
        folded = _REDUCE[value.kind](data, axis=place)
    poison = None if arg.poison is None else np.asarray(np.any(np.broadcast_to(arg.poison, arg.data.shape), axis=place))
    return _as_type(Tile(kept, np.asarray(folded), poison), value.type)


def scan(value: Scan, arg: Tile) -> Tile:
    """A running fold along one axis."""
    place = arg.axes.index(value.axis)
    data = _wide(arg.data)
    poison = None if arg.poison is None else np.broadcast_to(arg.poison, arg.data.shape)
    if value.reverse:
        data, poison = np.flip(data, place), None if poison is None else np.flip(poison, place)
    with np.errstate(all="ignore"):
        data = _SCAN[value.kind](data, axis=place)
    poison = None if poison is None else np.logical_or.accumulate(poison, axis=place)
    if value.reverse:
        data, poison = np.flip(data, place), None if poison is None else np.flip(poison, place)
    return _as_type(Tile(arg.axes, data, poison), value.type)


def _wide(data: Array) -> Array:
    return data.astype(np.float32) if data.dtype.kind in "Vf" and data.dtype.itemsize < 4 else data


def _as_type(tile: Tile, type_: TileType) -> Tile:
    data = tile.data if tile.data.dtype == type_.dtype.numpy else tile.data.astype(type_.dtype.numpy)
    return Tile(tile.axes, data, tile.poison).over(type_.axes)


# --- reshapes ---------------------------------------------------------------------------------------------------------


def rename(value: Rename, arg: Tile, extents: Mapping[str, int]) -> Tile:
    """The elements of the axes `before`, in that order, under the axes `after`."""
    kept = tuple(axis for axis in arg.axes if axis not in value.before)
    moved = arg.over(kept + value.before)
    sizes = moved.data.shape[: len(kept)] + tuple(extents[axis] for axis in value.after)
    poison = None if moved.poison is None else np.broadcast_to(moved.poison, moved.data.shape).reshape(sizes)
    return Tile(kept + value.after, moved.data.reshape(sizes), poison).over(value.type.axes)


def slice_of(value: Slice, arg: Tile, extents: Mapping[str, int]) -> Tile:
    """The elements of one of the equal parts of an axis."""
    kept = tuple(axis for axis in arg.axes if axis != value.before)
    moved, size = arg.over((*kept, value.before)), extents[value.after]
    part = np.s_[..., value.part * size : (value.part + 1) * size]
    poison = None if moved.poison is None else np.broadcast_to(moved.poison, moved.data.shape)[part]
    return Tile((*kept, value.after), moved.data[part], poison).over(value.type.axes)


def join(value: Join, left: Tile, right: Tile) -> Tile:
    """Two tiles side by side along a new last axis."""
    right = right.over(left.axes)
    poison = None
    if left.poison is not None or right.poison is not None:
        sides = [np.zeros(t.data.shape, bool) if t.poison is None else np.broadcast_to(t.poison, t.data.shape) for t in (left, right)]
        poison = np.stack(sides, axis=-1)
    return Tile((*left.axes, value.axis), np.stack([left.data, right.data], axis=-1), poison)


def unpack(value: Unpack, arg: Tile) -> Tile:
    """Field f of byte b is element (8 / bits) * b + f, sign-extended if the result is signed, the bits of a float if it is one."""
    kept = tuple(axis for axis in arg.axes if axis != value.before)
    moved = arg.over((*kept, value.before))
    fields = 8 // value.bits
    shifts = np.arange(fields, dtype=np.uint8) * np.uint8(value.bits)
    numbers = ((moved.data.view(np.uint8)[..., None] >> shifts) & np.uint8((1 << value.bits) - 1)).astype(np.int64)
    if value.type.dtype.kind == "int":
        numbers = np.where(numbers >= 1 << (value.bits - 1), numbers - (1 << value.bits), numbers)
    shape = (*moved.data.shape[:-1], moved.data.shape[-1] * fields)
    poison = None
    if moved.poison is not None:
        poison = np.repeat(np.broadcast_to(moved.poison, moved.data.shape), fields, axis=-1)
    numbers = numbers.reshape(shape)
    kind = value.type.dtype
    data = numbers.astype(np.uint8).view(kind.numpy) if kind.is_float else numbers.astype(kind.numpy)
    return Tile((*kept, value.after), data, poison).over(value.type.axes)


def expand_2to4(value: Expand2to4, values: Tile, positions: Tile) -> Tile:
    """Each pair of values goes to its two positions in a group of four, the other two are 0; of two for one position the first stays."""
    kept = tuple(axis for axis in values.axes if axis != value.before)
    moved, places = values.over((*kept, value.before)), positions.over((*kept, value.before))
    half = moved.data.shape[-1]
    target = (np.arange(half) // 2) * 4 + (places.data.astype(np.int64) & 3)
    dense = np.zeros((*moved.data.shape[:-1], half * 2), moved.data.dtype)
    for member in (1, 0):
        np.put_along_axis(dense, target[..., member::2], moved.data[..., member::2], axis=-1)
    poison = either(moved.poison, places.poison)
    spread = None
    if poison is not None:
        # An unknown position may hit any element of its group.
        groups = np.broadcast_to(poison, moved.data.shape).reshape(*moved.data.shape[:-1], half // 2, 2).any(axis=-1)
        spread = np.repeat(groups, 4, axis=-1)
    return Tile((*kept, value.after), dense, spread).over(value.type.axes)
