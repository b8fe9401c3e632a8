"""Small floats: the same number for every code, by bits; what is no small float, or not summed, stays."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.expression import Apply
from ourcc.ir.region import Reduce, walk
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.text import parse_region
from ourcc.passes.regions.digits import Digits, digits_of
from ourcc.passes.regions.small_floats import small_floats

CODE = "cast(bit_and(%c[j, k], u8({mask})), i32)"


def small(exponent: int, mantissa: int, doubled: bool = True) -> str:
    """The number of a code of these fields as integers, in units of its least one."""
    bits = 1 + exponent + mantissa
    code = CODE.format(mask=(1 << bits) - 1)
    part, power = (
        f"bit_and({code}, i32({(1 << mantissa) - 1}))",
        f"bit_and(shift_right({code}, i32({mantissa})), i32({(1 << exponent) - 1}))",
    )
    whole = f"shift_left(add({part}, i32({1 << mantissa})), sub({power}, i32(1)))"
    size = f"where(eq({power}, i32(0)), {part}, {whole})"
    return f"cast(where(eq(bit_and({code}, i32({1 << bits - 1})), i32(0)), {size}, neg({size})), f32)"


def region(value: str, kind: str = "sum") -> str:
    head = "region @r(%x: f32[i 3, k 256], %c: u8[j 1, k 256]) -> %y: f32[i 3, j 1] {\n  axes i: 3, j: 1, k: 256\n"
    return f"{head}  %t = {kind} k: mul(%x[i, k], {value}) : f32[i, j]\n  %y[i, j] = %t\n}}"


@pytest.mark.parametrize(("exponent", "mantissa"), [(2, 1), (3, 2), (2, 3), (1, 2), (3, 1), (2, 2)])
def test_numbers_are_made_by_bits(exponent: int, mantissa: int) -> None:
    before = parse_region(region(small(exponent, mantissa)))
    after = small_floats(before)
    (total,) = (statement for statement in after.body if isinstance(statement, Reduce))
    used = {part.primitive for part in walk(total.value) if isinstance(part, Apply)}
    assert used == {"mul", "bitcast", "bit_and", "bit_or", "shift_left", "cast"}
    assert small_floats(after) == after
    # One term of each sum is not 0: the number of each byte's code by itself, also of what is beside the code in it.
    x = np.zeros((3, 256), np.float32)
    codes = np.arange(256, dtype=np.uint8).reshape(1, 256)
    for place in range(256):
        x[:] = 0
        x[:, place] = (1.0, -3.0, 0.125)
        arrays = {"x": x, "c": codes}
        np.testing.assert_array_equal(run_region(after, arrays)["y"], run_region(before, arrays)["y"])


def test_its_digits_are_those_of_its_numbers() -> None:
    (total,) = (s for s in small_floats(parse_region(region(small(2, 1)))).body if isinstance(s, Reduce))
    assert isinstance(total.value, Apply)
    assert digits_of(total.value.args[1]) == Digits(2, 0, 12.0)


@pytest.mark.parametrize(
    "text",
    [
        region(f"cast(sub({CODE.format(mask=15)}, i32(8)), f32)"),  # integers
        region(f"cast({CODE.format(mask=3)}, f32)"),  # two bits
        region(small(4, 3)),  # eight bits
        region(small(2, 1), "max"),  # no sum
        region("cast(%c[j, k], f32)"),
    ],
)
def test_what_stays(text: str) -> None:
    before = parse_region(text)
    assert small_floats(before) == before
