"""Tables of sixteen numbers: which expressions have one, what stands in it, and that nothing else is taken for a code."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.codegen.c.tables import read_table
from ourcc.ir.expression import Constant
from ourcc.ir.formats.floating import small_float
from ourcc.ir.formats.format import looked_up
from ourcc.ir.formats.ggml import IQ4
from ourcc.ir.tile.program import Full, Load, TileApply, TileType, Value
from ourcc.ir.types import DType, f32, i32, u8

BYTE = Load("w", (0,), TileType(u8, ("n",)), None)


def full(value: float, dtype: DType) -> Value:
    return Full(Constant(value, dtype), TileType(dtype))


def apply(primitive: str, *args: Value, dtype: DType) -> TileApply:
    return TileApply(primitive, args, dtype, type=TileType(dtype, ("n",)))


def code(shift: int = 4, mask: int = 15) -> TileApply:
    return apply("bit_and", apply("shift_right", BYTE, full(shift, u8), dtype=u8), full(mask, u8), dtype=u8)


def traced(value: object, wide: TileApply) -> TileApply:
    """A scalar expression over one reference as a tile expression over a code."""
    from ourcc.ir.expression import Apply

    def change(part: object) -> Value:
        if isinstance(part, Apply):
            return apply(part.primitive, *map(change, part.args), dtype=part.dtype)
        if isinstance(part, Constant):
            return Full(part, TileType(part.dtype))
        return wide

    made = change(value)
    assert isinstance(made, TileApply)
    return made


def of(decode: object, wide: TileApply | None = None) -> TileApply:
    from ourcc.ir.region import Ref
    from ourcc.ir.scalar import Traced, cast

    return traced(cast(decode(Traced(Ref("code", u8), u8)), f32).value, wide or code())  # type: ignore[operator]


@pytest.mark.parametrize(
    ("decode", "numbers"),
    [
        (lambda c: small_float(c, 2, 1), [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]),
        (lambda c: looked_up(c, IQ4), list(IQ4)),
    ],
    ids=["e2m1", "iq4_nl"],
)
def test_what_is_computed_from_four_bits_is_a_table(decode: object, numbers: list[int]) -> None:
    table = read_table(of(decode))
    assert table is not None
    np.testing.assert_array_equal(table.numbers, numbers)
    # The mask is gone: the permutation looks at four bits only; the shift is one of wide lanes.
    assert isinstance(table.index, TileApply) and table.index.primitive == "shift_right" and table.index.dtype == i32


def test_a_zero_point_is_in_the_table() -> None:
    value = apply("cast", apply("sub", apply("cast", code(), dtype=i32), full(8, i32), dtype=i32), dtype=f32)
    table = read_table(value)
    assert table is not None and table.numbers == tuple(float(n - 8) for n in range(16))


def test_a_code_of_two_bits_stands_four_times_in_the_table() -> None:
    value = apply("cast", apply("sub", apply("cast", code(mask=3), dtype=i32), full(2, i32), dtype=i32), dtype=f32)
    table = read_table(value)
    assert table is not None and table.numbers == (-2.0, -1.0, 0.0, 1.0) * 4


@pytest.mark.parametrize(("bits", "exponent", "mantissa"), [(5, 2, 2), (6, 2, 3), (6, 3, 2)])
def test_what_is_computed_from_six_bits_is_a_table(bits: int, exponent: int, mantissa: int) -> None:
    wide = apply("bit_and", BYTE, full((1 << bits) - 1, u8), dtype=u8)
    table = read_table(of(lambda c: small_float(c, exponent, mantissa), wide))
    assert table is not None and len(table.numbers) == 1 << bits
    assert table.numbers == tuple(number(each, exponent, mantissa) for each in range(1 << bits))


def number(code: int, exponent: int, mantissa: int) -> float:
    """What a code of a float without infinities is worth, in units of the least number."""
    power, rest = divmod(code & ((1 << (exponent + mantissa)) - 1), 1 << mantissa)
    size = rest if power == 0 else (rest + (1 << mantissa)) << (power - 1)
    return float(-size if code >> (exponent + mantissa) else size)


def test_four_bits_need_no_mask() -> None:
    table = read_table(apply("cast", code(), dtype=f32))
    assert table is not None and table.numbers == tuple(map(float, range(16)))


@pytest.mark.parametrize(
    "value",
    [
        apply("cast", code(mask=7), dtype=f32),  # one operation is no more than the lookup
        apply("cast", apply("sub", apply("cast", code(mask=31), dtype=i32), full(8, i32), dtype=i32), dtype=f32),
        apply("cast", apply("sub", apply("cast", BYTE, dtype=i32), full(8, i32), dtype=i32), dtype=f32),
        apply("mul", apply("cast", code(), dtype=f32), apply("cast", code(shift=0), dtype=f32), dtype=f32),
        apply("sub", apply("cast", code(), dtype=i32), full(8, i32), dtype=i32),
        apply("add", apply("cast", code(), dtype=f32), Load("b", (0,), TileType(f32, ("n",)), None), dtype=f32),
    ],
    ids=["one operation", "five bits and few operations", "a whole byte", "two codes", "no float", "something else"],
)
def test_what_has_no_table(value: TileApply) -> None:
    assert read_table(value) is None
