"""Tables instead of arithmetic: what is computed from a code of at most 4 bits is looked up among its sixteen numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...ir import scalar
from ...ir.tile.program import Full, Load, TileApply, TileType, Value
from ...ir.types import DType, f32, i32, u8
from .library import Function

SIZE = 16
FEATURE = "avx512f"
LEAST = 2
"""Operations that a lookup stands for at least."""


def functions() -> dict[str, Function]:
    """`lookup_f32`: the elements of sixteen numbers that the low four bits of each lane say, in one instruction."""
    fast = {(SIZE, FEATURE): "return (f32x16)_mm512_permutexvar_ps((__m512i)x, (__m512)table);"}
    return {"lookup_f32": Function("f32x@N", (f"f32x{SIZE} table", "i32x@N x"), lane=f"table[x & {SIZE - 1}]", fast=fast)}


@dataclass(frozen=True)
class Table:
    """A value as one of sixteen numbers; the low bits of `index` say which."""

    index: Value
    numbers: tuple[float, ...]


def read_table(value: TileApply) -> Table | None:
    """The table of a value that is computed from one code alone, and by more than one operation."""
    if value.dtype != f32:
        return None
    code, count = _code(value)
    if code is None or count < LEAST:
        return None
    # The permutation looks at four bits: a code of fewer stands in the table as often as it has neighbours above it.
    numbers = _evaluate(value, {id(code): np.arange(SIZE, dtype=np.uint8) & np.uint8(_mask(code))}, code)
    return Table(_wide(code), tuple(float(number) for number in numbers))


def _code(value: Value) -> tuple[Value | None, int]:
    """The code that a value is computed from, and the number of operations; None where there are several, or none."""
    found: Value | None = None
    seen: set[int] = set()
    pending, count = [value], 0
    while pending:
        part = pending.pop()
        if isinstance(part, Full) or id(part) in seen:
            continue
        seen.add(id(part))
        if _mask(part):
            if found is not None and found != part:
                return None, 0
            found = part
        elif isinstance(part, TileApply):
            count += 1
            pending += part.args
        else:
            return None, 0
    return found, count


def _mask(value: Value) -> int:
    """The low bits of a byte that a value is masked to, at most four; 0 for any other value."""
    if not (isinstance(value, TileApply) and value.primitive == "bit_and" and value.type.dtype == u8):
        return 0
    masks = [arg.value.value for arg in value.args if isinstance(arg, Full)]
    return next((mask for mask in (1, 3, 7, 15) if masks == [mask]), 0)


def _wide(code: Value) -> Value:
    """What a code is masked from, in lanes as wide as the numbers': the bits above the code do not matter."""
    assert isinstance(code, TileApply)
    inner = next(arg for arg in code.args if not isinstance(arg, Full))
    if isinstance(inner, TileApply) and inner.primitive == "shift_right":
        byte, amount = inner.args
        if isinstance(byte, Load):
            return TileApply("shift_right", (_cast(byte), _cast(amount)), i32, type=TileType(i32, inner.type.axes))
    return _cast(inner)


def _cast(value: Value, dtype: DType = i32) -> Value:
    return TileApply("cast", (value,), dtype, type=TileType(dtype, value.type.axes))


def _evaluate(value: Value, known: Mapping[int, np.ndarray], code: Value) -> np.ndarray:
    """A value for each code."""
    if value == code:
        return known[id(code)]
    if isinstance(value, Full):
        return np.full(SIZE, value.value.value, value.type.dtype.numpy)
    assert isinstance(value, TileApply)
    args = [_evaluate(arg, known, code) for arg in value.args]
    if value.primitive in ("cast", "round"):
        return scalar.convert(args[0], value.dtype)
    if value.primitive == "bitcast":
        return np.asarray(scalar.bitcast(args[0], value.dtype))
    return np.asarray(scalar.evaluate(value.primitive, *args))
