"""What integers codes can give: bounds that hold for every code, tables, and what nothing is known of."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.codes import bounds, mask_of, number_of, tabulate
from ourcc.ir.expression import Apply, Constant, Index
from ourcc.ir.region import Load, Scalar
from ourcc.ir.types import DType, boolean, f32, i8, i32, u8


def load(dtype: DType, name: str = "x0") -> Load:
    return Load(name, (), dtype)


def of(primitive: str, *args: Scalar, dtype: DType = u8) -> Scalar:
    return Apply(primitive, args, dtype)


def number(value: float, dtype: DType = u8) -> Constant:
    return Constant(value, dtype)


NIBBLE = of("bit_and", of("shift_right", load(u8), Index(4, u8)), number(15))
PLANES = of("bit_or", of("bit_and", load(u8), number(3)), of("shift_left", of("bit_and", load(u8, "x1"), number(1)), number(2)))
WIDE = of("cast", NIBBLE, dtype=i32)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (NIBBLE, (0, 15)),
        (PLANES, (0, 7)),
        (load(i8), (-128, 127)),
        (load(u8), (0, 255)),
        (WIDE, (0, 15)),
        (of("sub", WIDE, number(8, i32), dtype=i32), (-8, 7)),
        (of("sub", of("cast", PLANES, dtype=i32), number(4, i32), dtype=i32), (-4, 3)),
        (of("mul", WIDE, number(3, i32), dtype=i32), (0, 45)),
        # What wraps around is only known to be of its dtype.
        (of("add", NIBBLE, number(250)), (0, 255)),
        (load(i32), None),
        (of("cast", load(f32), dtype=i32), None),
        (of("add", WIDE, load(i32), dtype=i32), None),
    ],
    ids=str,
)
def test_bounds(value: Scalar, expected: tuple[int, int] | None) -> None:
    assert bounds(value) == expected


def test_every_code_is_tried() -> None:
    negative = of("where", of("lt", WIDE, number(8, i32), dtype=boolean), WIDE, of("neg", WIDE, dtype=i32), dtype=i32)
    found = tabulate(negative, 4)
    assert found is not None and found.code is NIBBLE and found.bits == 4
    np.testing.assert_array_equal(found.numbers, [n if n < 8 else -n for n in range(16)])
    assert bounds(negative) == (-15, 7)


def test_no_table_of_several_codes_or_of_long_ones() -> None:
    assert tabulate(of("add", WIDE, of("cast", PLANES, dtype=i32), dtype=i32), 8) is None
    assert tabulate(of("cast", load(u8), dtype=i32), 6) is None
    assert tabulate(of("cast", load(u8), dtype=i32), 8) is not None
    assert tabulate(load(f32), 8) is None


def test_numbers_and_masks() -> None:
    assert number_of(of("cast", number(3), dtype=i32)) == 3 and number_of(Index(4, u8)) == 4 and number_of(load(u8)) is None
    assert mask_of(NIBBLE) == 15 and mask_of(WIDE) == 0 and mask_of(of("bit_and", number(3), number(1))) == 0
