"""Tables instead of arithmetic: what is computed from a code of at most 4 bits is looked up among its sixteen numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...ir.codes import mask_of, tabulate
from ...ir.tile.program import Full, Load, TileApply, TileType, Value
from ...ir.types import f32, i32
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
    found = tabulate(value, 4) if value.dtype == f32 else None
    if found is None or found.operations < LEAST:
        return None
    # The permutation looks at four bits: a code of fewer stands in the table as often as it has neighbours above it.
    numbers = np.tile(found.numbers, SIZE // len(found.numbers))
    return Table(_wide(found.code), tuple(float(number) for number in numbers))


def _wide(code: Value) -> Value:
    """A code in lanes as wide as the numbers': the bits above those that it is masked to do not matter."""
    if not isinstance(code, TileApply) or not mask_of(code):
        return _cast(code)
    inner = next(arg for arg in code.args if not isinstance(arg, Full))
    if isinstance(inner, TileApply) and inner.primitive == "shift_right":
        byte, amount = inner.args
        if isinstance(byte, Load):
            return TileApply("shift_right", (_cast(byte), _cast(amount)), i32, type=TileType(i32, inner.type.axes))
    return _cast(inner)


def _cast(value: Value) -> Value:
    return TileApply("cast", (value,), i32, type=TileType(i32, value.type.axes))
