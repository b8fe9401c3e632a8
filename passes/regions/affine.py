"""Sums of a block's products, with what is the same in the block outside: scales, zero points and offsets.

Along a block a factor is `code * scale + offset`, so that

    sum b: x[b] * (code[b] * scale + offset) = scale * (sum b: x[b] * code[b]) + offset * (sum b: x[b])

which adds up in another order (REASSOCIATES). Scales leave all sums; zero points and offsets those of integers of 8 bits, which are
exact. Integers on the right are made unsigned, as instructions want them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ...ir import dims
from ...ir.codes import BYTE, MOST_TERMS, bounds, number_of
from ...ir.expression import Apply, Constant
from ...ir.region import Load, Reduce, Ref, Region, Scalar, Statement
from ...ir.types import DType, f32, i8, i32, u8
from .contraction import axes_of, is_selection
from .hoist_scales import factors_of, fresh


@dataclass(frozen=True)
class _Factors:
    """What is summed along the axes `inner` in `dtype`; the product is left * (right + moved) * scale + left * offset, times `outside`."""

    left: Scalar
    right: Scalar
    dtype: DType = f32
    moved: int = 0
    scale: Scalar | None = None
    offset: Scalar | None = None
    outside: tuple[Scalar, ...] = ()
    outer: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()


def with_scales_outside(region: Region, reduce: Reduce, order: Sequence[str], columns: Collection[str]) -> Region | None:
    """The region with sums over the innermost of the contracted axes, and of these, scaled, one over the others.

    `order` are the contracted axes, `columns` those of the right factor alone. Of the blocks that there are those of integers
    are taken, else those that most leaves, the longest first. None where nothing is the same in a block.
    """
    found = [taken for first in range(1, len(order)) if (taken := _taken(region, reduce, order, first, set(columns))) is not None]
    best = max(found, key=lambda taken: (taken.dtype == i32, taken.offset is not None, len(taken.outside)), default=None)
    return None if best is None else _rewritten(region, reduce, best, set(columns))


def _taken(region: Region, reduce: Reduce, order: Sequence[str], first: int, columns: set[str]) -> _Factors | None:
    """What is summed in blocks along all contracted axes but the first ones, if anything leaves these sums."""
    factors, inner = factors_of(reduce.value, reduce.dtype.name), frozenset(order[first:])
    outside = tuple(factor for factor in factors if not axes_of(factor) & inner)
    rest = [factor for factor in factors if axes_of(factor) & inner]
    if len(rest) != 2:
        return None
    left, right = sorted(rest, key=lambda factor: bool(axes_of(factor) & columns))
    found = None
    if reduce.dtype == f32 and columns and not axes_of(left) & columns:
        found = _integers(region, left, right, inner)
    # The sum of floats alone may be infinite where their products with codes and offsets together are not: they stay together.
    found = found or _Factors(left, right, reduce.dtype)
    if not outside and found.offset is None:
        return None
    return replace(found, outer=tuple(order[:first]), inner=tuple(order[first:]), outside=outside)


def _integers(region: Region, left: Scalar, right: Scalar, inner: Collection[str]) -> _Factors | None:
    """Both factors as integers, if they are of 8 bits and their sums fit 32."""
    core, scale, offset = _affine(right, inner)
    codes, whole = _integer(left), _integer(core)
    if codes is None or not isinstance(_bare(codes), Load) or _bare(codes).dtype != i8 or whole is None:
        return None
    found = _unsigned(whole)
    if found is None or dims.at_most(dims.product(region.axis(name).extent for name in inner), MOST_TERMS) is not True:
        return None
    right, moved = found
    number = None if offset is None or scale is not None else number_of(offset)
    if isinstance(number, float) and number.is_integer() and abs(number) <= BYTE:
        moved, offset = moved + int(number), None
    return _Factors(_cast(_bare(codes), i32), _cast(right, i32), i32, moved, scale, offset)


def _affine(value: Scalar, inner: Collection[str]) -> tuple[Scalar, Scalar | None, Scalar | None]:
    """(core, scale, offset) of core * scale + offset in f32: scale and offset are the same in a block; None for 1 and 0."""
    if not isinstance(value, Apply) or value.dtype != f32:
        return value, None, None
    if value.primitive in ("add", "mul"):
        varying, fixed = sorted(value.args, key=lambda arg: not axes_of(arg) & set(inner))
        if axes_of(fixed) & set(inner):
            return value, None, None
        core, scale, offset = _affine(varying, inner)
        if value.primitive == "add":
            return core, scale, fixed if offset is None else Apply("add", (offset, fixed), f32)
        times = [None if part is None else Apply("mul", (part, fixed), f32) for part in (scale, offset)]
        return core, times[0] or fixed, times[1]
    moved = _integer(value)
    if isinstance(moved, Apply) and moved.primitive == "sub" and not axes_of(moved.args[1]) & set(inner):
        code, zero = moved.args
        number = number_of(zero)
        offset = _cast(zero, f32) if number is None else Constant(-float(number.real), f32)
        return _cast(code, f32), None, offset if number is not None else Apply("neg", (offset,), f32)
    return value, None, None


def _integer(value: Scalar) -> Scalar | None:
    """The integer that a float is converted from."""
    if not (isinstance(value, Apply) and value.primitive == "cast" and value.dtype == f32):
        return None
    return value.args[0] if value.args[0].dtype.is_integer else None


def _bare(value: Scalar) -> Scalar:
    """An integer without the casts that widen it."""
    while (
        isinstance(value, Apply)
        and value.primitive == "cast"
        and value.args[0].dtype.is_integer
        and value.args[0].dtype.bits <= value.dtype.bits
    ):
        value = value.args[0]
    return value


def _unsigned(value: Scalar) -> tuple[Scalar, int] | None:
    """(bytes, moved): an integer as a u8 and what is to be added to it; None if it is not known to be of 8 bits."""
    value = _bare(value)
    if value.dtype == i8 and (found := _chosen(value)) is not None:
        return found
    known = bounds(value)
    if known is None or known[1] - known[0] > BYTE:
        return None
    if value.dtype == i8:
        return Apply("bit_xor", (Apply("bitcast", (value,), u8), Constant(128, u8)), u8), -128
    low = min(known[0], 0) if known[1] <= BYTE else known[0]
    moved = value if low == 0 else Apply("sub", (_cast(value, i32), Constant(low, i32)), i32)
    return _cast(moved, u8), low


def _chosen(value: Scalar) -> tuple[Scalar, int] | None:
    """(bytes, moved): codes less a number, of which one is chosen by its place or none, as u8: v - m is ((v ^ m) ^ m) - m, 0 as 0."""
    leaves: dict[Scalar, Scalar] = {}
    found: set[int] = set()
    rest = value
    while is_selection(rest) and isinstance(rest, Apply):
        number, rest = rest.args[1:]
        wide = number.args[0] if isinstance(number, Apply) and number.primitive == "cast" else number
        if not (isinstance(wide, Apply) and wide.primitive == "sub" and _bare(wide.args[0]).dtype == u8):
            return None
        middle = number_of(wide.args[1])
        if not isinstance(middle, int) or not 0 <= middle <= BYTE:
            return None
        found.add(middle)
        leaves[number] = Apply("bit_xor", (_bare(wide.args[0]), Constant(middle, u8)), u8)
    if len(found) != 1 or number_of(rest) != 0:
        return None
    (middle,) = found
    return Apply("bit_xor", (_with_leaves(value, leaves), Constant(middle, u8)), u8), -middle


def _with_leaves(value: Scalar, leaves: Mapping[Scalar, Scalar]) -> Scalar:
    """What is chosen among other numbers, in bytes."""
    if not (is_selection(value) and isinstance(value, Apply)):
        return Constant(0, u8)
    test, number, rest = value.args
    return Apply("where", (test, leaves[number], _with_leaves(rest, leaves)), u8)


def _cast(value: Scalar, dtype: DType) -> Scalar:
    return value if value.dtype == dtype else Apply("cast", (value,), dtype)


def _rewritten(region: Region, reduce: Reduce, found: _Factors, columns: set[str]) -> Region:
    """The region with the sums of blocks, that of the left factor alone where it is needed, and the sum of them."""
    taken = {getattr(statement, "name", "") for statement in region.body}
    name = fresh(reduce.name, taken)
    alone = fresh(reduce.name, {*taken, name})
    rows = tuple(axis for axis in reduce.axes if axis not in columns)
    product = Apply("mul", (found.left, found.right), found.dtype)
    parts: list[Statement] = [Reduce(name, (*reduce.axes, *found.outer), "sum", found.inner, product, found.dtype)]
    if found.moved or found.offset is not None:
        parts.insert(0, Reduce(alone, (*rows, *found.outer), "sum", found.inner, found.left, found.dtype))
    total: Scalar = Ref(name, found.dtype)
    beside: Scalar = Ref(alone, found.dtype)
    if found.moved:
        total = Apply("add", (total, Apply("mul", (beside, Constant(found.moved, i32)), i32)), i32)
    total = total if found.dtype == reduce.dtype else _cast(total, f32)
    if found.scale is not None:
        total = Apply("mul", (total, found.scale), f32)
    if found.offset is not None:
        total = Apply("add", (total, Apply("mul", (_cast(beside, f32), found.offset), f32)), f32)
    # Weights bring sums down before the scales of activations, which may be of any size, bring them up: of equals the right factor's.
    rightmost = found.outside[::-1]
    for factor in sorted(rightmost, key=lambda factor: bool(axes_of(factor) & set(rows))):
        total = Apply("mul", (total, factor), factor.dtype)
    whole = replace(reduce, over=found.outer, value=total)
    return replace(region, body=tuple(part for s in region.body for part in ((*parts, whole) if s is reduce else (s,))))
