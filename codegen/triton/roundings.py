"""Roundings of numbers that are known to lie in a range: what instructions do by themselves is not spelled out again."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes

from ...ir.expression import Constant
from ...ir.tile.program import Full, TileApply, TileType, Value
from ...ir.tile.ranges import Range, range_of
from ...ir.types import DType, f8e4m3, f8e5m2, f32, i32

MAGIC = 1.5 * 2.0**23
"""Floats of this size are whole numbers: what is added to it is rounded to the nearest, ties to even, in its lowest bits."""
NEAR = 2.0**22
"""As far as numbers may lie from 0 that are rounded so."""
MOST_BITS = 16
"""Of integers that stand in the lowest bits of a float, in which `MAGIC` itself has none."""


def saturated(value: TileApply, known: Mapping[str, Range]) -> Value | None:
    """What a conversion to 8 bits that saturates gives this cast of; None where numbers too large become infinite or NaN.

    Before: cast(min(max(x, -448), 448), f8e4m3)    After: x, to be converted by the instruction
    """
    (held,) = value.args
    if value.type.dtype not in (f8e4m3, f8e5m2) or held.type.dtype != f32:
        return None
    most = float(ml_dtypes.finfo(value.type.dtype.numpy).max)
    low, high = range_of(held, known)
    if low < -most or high > most:
        return None
    return _within(held, -most, most)


def _within(value: Value, low: float, high: float) -> Value:
    """A value without the range that it is held in, if that is this one."""
    ends = {"max": low, "min": high}
    inner = value
    while isinstance(inner, TileApply) and inner.primitive in ends:
        held, end = inner.args
        if not isinstance(end, Full) or end.value.value != ends.pop(inner.primitive):
            return value
        inner = held
    return value if ends else inner


def whole(value: TileApply, known: Mapping[str, Range]) -> TileApply:
    """A cast to integers of what was rounded to the nearest whole number, without the sign of zero and the large numbers in between.

    Before: cast(min(max(round_even(x), -128), 127), i8)    After: cast(bitcast(add(min(max(x, -128), 127), MAGIC), i32), i8)

    What is no number has no integer that is defined (docs/ops.md).
    """
    (rounded,) = value.args
    dtype = value.type.dtype
    if dtype.kind not in ("int", "uint") or rounded.type.dtype != f32:
        return value
    inner = _unsigned(_inside(rounded), known)
    if inner is rounded:
        return value
    added = _added(inner)
    if added is not None and _fits(range_of(rounded, known), dtype):
        bits = TileApply("bitcast", (added,), i32, type=TileType(i32, added.type.axes))
        return TileApply("cast", (bits,), dtype, type=value.type)
    return TileApply("cast", (inner,), dtype, type=value.type)


def _fits(ends: Range, dtype: DType) -> bool:
    low, high = ends
    least = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
    return dtype.bits <= MOST_BITS and least <= low and high < least + (1 << dtype.bits)


def _inside(value: Value) -> Value:
    """A whole number that is rounded first and held in a range of whole numbers then, the other way round: the same number."""
    ends: list[tuple[str, Value, TileType]] = []
    inner = value
    while isinstance(inner, TileApply) and inner.primitive in ("min", "max"):
        x, end = inner.args
        if not (isinstance(end, Full) and isinstance(end.value.value, int | float) and float(end.value.value).is_integer()):
            return value
        ends.append((inner.primitive, end, inner.type))
        inner = x
    if not ends or not (isinstance(inner, TileApply) and inner.primitive == "round_even"):
        return value
    held: Value = inner.args[0]
    for primitive, end, kind in reversed(ends):
        held = TileApply(primitive, (held, end), f32, type=kind)
    return TileApply("round_even", (held,), f32, type=value.type)


def _unsigned(value: Value, known: Mapping[str, Range]) -> Value:
    """A value whose zeros may have either sign: small numbers are rounded by an addition."""
    if not isinstance(value, TileApply) or value.type.dtype != f32:
        return value
    if value.primitive == "round_even":
        low, high = range_of(value.args[0], known)
        if -NEAR <= low and high <= NEAR:
            number = Full(Constant(MAGIC, f32), TileType(f32, ()))
            return TileApply("sub", (TileApply("add", (value.args[0], number), f32, type=value.type), number), f32, type=value.type)
        return value
    if value.primitive not in ("mul", "min", "max", "neg", "where"):
        return value
    first = 1 if value.primitive == "where" else 0
    args = (*value.args[:first], *(_unsigned(arg, known) for arg in value.args[first:]))
    same = all(a is b for a, b in zip(args, value.args, strict=True))
    return value if same else TileApply(value.primitive, args, f32, type=value.type)


def _added(value: Value) -> Value | None:
    """The sum with `MAGIC` of a number that was rounded by it."""
    if not (isinstance(value, TileApply) and value.primitive == "sub"):
        return None
    added, number = value.args
    return added if isinstance(number, Full) and number.value.value == MAGIC else None


__all__ = ["saturated", "whole"]
