"""Ranges: what the floats of a tile program lie between where they are numbers, and what lanes beyond an axis hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from .. import dims, scalar
from ..types import DType
from .program import Full, Load, Reduce, Ref, Rename, Slice, TileApply, Value

Range: TypeAlias = tuple[float, float]
ANYTHING: Range = (-math.inf, math.inf)
_MONOTONE = frozenset({"round_even", "floor", "ceil", "trunc"})


def range_of(value: Value, known: Mapping[str, Range]) -> Range:
    """The least and the greatest number that a real value can be, NaN aside; `known` are those of named values."""
    if isinstance(value, Full):
        number = value.value.value
        return ANYTHING if isinstance(number, complex) or math.isnan(number) else (float(number), float(number))
    if isinstance(value, Ref):
        return known.get(value.name, ANYTHING)
    if isinstance(value, Rename | Slice) or (isinstance(value, Reduce) and value.kind in ("max", "min")):
        return range_of(value.value, known)
    return _applied(value, known) if isinstance(value, TileApply) else ANYTHING


def _applied(value: TileApply, known: Mapping[str, Range]) -> Range:
    name = value.primitive
    if name == "abs":
        low, high = range_of(value.args[0], known)
        return max(low, -high, 0.0), max(-low, high)
    if name in _MONOTONE:
        low, high = range_of(value.args[0], known)
        return low if math.isinf(low) else math.floor(low), high if math.isinf(high) else math.ceil(high)
    if name == "cast":
        # Of a narrower dtype the ends may lie between two numbers, or be infinite.
        source = value.args[0].type.dtype
        return range_of(value.args[0], known) if source.is_float and value.type.dtype.bits >= max(source.bits, 32) else ANYTHING
    if name not in ("min", "max", "where", "mul") or not value.type.dtype.is_float:
        return ANYTHING
    (a, b), (c, d) = (range_of(each, known) for each in value.args[-2:])
    if name == "where":
        return min(a, c), max(b, d)
    if name == "mul":
        return _product((a, b), (c, d), value.type.dtype)
    return (min(a, c), min(b, d)) if name == "min" else (max(a, c), max(b, d))


def _product(left: Range, right: Range, dtype: DType) -> Range:
    """Products are rounded, which keeps their order."""
    if math.inf in (*map(abs, left), *map(abs, right)):
        return ANYTHING
    with np.errstate(over="ignore"):
        ends = [float(np.float64(a * b).astype(dtype.numpy)) for a in left for b in right]
    return min(ends), max(ends)


def is_size(value: Value) -> bool:
    """Whether a value is a magnitude, or one of several: it has no negative zeros."""
    if not isinstance(value, TileApply) or value.primitive not in ("abs", "cast", "min", "max") or not value.args[0].type.dtype.is_float:
        return False
    return value.primitive == "abs" or all(is_size(arg) for arg in value.args)


def beyond(value: Value, axis: str) -> bool | int | float | None:
    """What a value is in lanes beyond the domain of a tile axis, where loads at the axis are the number that they name; None: not known."""
    found = _beyond(value, axis)
    if found is None or value.type.dtype.kind in ("complex", "string"):
        return None
    number = found.reshape(-1)[0]
    return float(number) if value.type.dtype.is_float else bool(number) if value.type.dtype.kind == "bool" else int(number)


def _beyond(value: Value, axis: str) -> np.ndarray | None:
    dtype = value.type.dtype
    if dtype.kind in ("complex", "string"):
        return None
    if isinstance(value, Full):
        return np.asarray([value.value.value]).astype(dtype.numpy)
    if isinstance(value, Load):
        is_masked = value.other is not None and any(axis in dims.symbols(subscript) for subscript in value.subscripts)
        return np.asarray([value.other.value]).astype(dtype.numpy) if is_masked and value.other is not None else None
    if not isinstance(value, TileApply):
        return None
    args = [_beyond(arg, axis) for arg in value.args]
    if any(arg is None for arg in args):
        return None
    known = [arg for arg in args if arg is not None]
    if value.primitive in ("cast", "round"):
        return np.asarray(scalar.convert(known[0], dtype))
    if value.primitive == "bitcast":
        return np.asarray(scalar.bitcast(known[0], dtype))
    with np.errstate(all="ignore"):
        return np.asarray(scalar.evaluate(value.primitive, *known))


__all__ = ["ANYTHING", "Range", "beyond", "is_size", "range_of"]
