"""Small integers: the same number for every code, by bits; what is no sum of codes and constants, or not summed, stays."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.expression import Apply
from ourcc.ir.region import Reduce, walk
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.text import parse_region
from ourcc.passes.regions.small_integers import small_integers

CODE = "bit_and(%c[j, k], u8({mask}))"


def region(value: str, kind: str = "sum") -> str:
    head = "region @r(%x: f32[i 3, k 256], %c: u8[j 1, k 256]) -> %y: f32[i 3, j 1] {\n  axes i: 3, j: 1, k: 256\n"
    return f"{head}  %t = {kind} k: mul(%x[i, k], {value}) : f32[i, j]\n  %y[i, j] = %t\n}}"


@pytest.mark.parametrize("mask", [1, 3, 7, 15, 31, 63, 127])
@pytest.mark.parametrize("offset", [None, 0, 1, -8, 300, -70000])
@pytest.mark.parametrize("dtype", ["i32", "i64"])
def test_numbers_are_made_by_bits(mask: int, offset: int | None, dtype: str) -> None:
    code = f"cast({CODE.format(mask=mask)}, {dtype})"
    whole = code if offset is None else f"add({code}, {dtype}({offset}))"
    before = parse_region(region(f"mul(cast({whole}, f32), f32(0.75))"))
    after = small_integers(before)
    (total,) = (statement for statement in after.body if isinstance(statement, Reduce))
    parts = [part for part in walk(total.value) if isinstance(part, Apply)]
    assert {part.primitive for part in parts} == {"mul", "sub", "bitcast", "bit_or", "cast", "bit_and"}
    assert not any(part.primitive == "cast" and part.dtype.is_float for part in parts)
    assert small_integers(after) == after
    codes = np.arange(256, dtype=np.uint8).reshape(1, 256)
    x = np.zeros((3, 256), np.float32)
    for place in range(256):
        x[:] = 0
        x[:, place] = (1.0, -3.0, 0.125)
        arrays = {"x": x, "c": codes}
        np.testing.assert_array_equal(run_region(after, arrays)["y"], run_region(before, arrays)["y"])


@pytest.mark.parametrize(
    "text",
    [
        region("cast(%c[j, k], f32)"),  # loaded as it is
        region(f"cast(neg(cast({CODE.format(mask=15)}, i32)), f32)"),  # falls as the code rises
        region(f"cast(mul(cast({CODE.format(mask=15)}, i32), i32(3)), f32)"),
        region(f"cast(cast({CODE.format(mask=15)}, i32), f32)", "max"),  # no sum
    ],
)
def test_what_stays(text: str) -> None:
    before = parse_region(text)
    assert small_integers(before) == before
