"""Exact floats: which sums of integers are made of floats, and that they are the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.region import Reduce
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.text import parse_region, print_region
from ourcc.ir.types import f32, i32
from ourcc.passes.regions.exact_floats import exact_floats


def windows(taps: int, after: str = "%t", weight: str = "i8", left: str = "%x[j + k, i]") -> str:
    return (
        f"region @r(%x: u8[{5 + taps}, i 4], %w: {weight}[i 4, k {taps}], %z: i32[i 4], %s: f32[])"
        f" -> %y: {'i32' if after == '%t' else 'f32'}[j 5, i 4] {{\n"
        f"  axes i: 4, j: 5, k: {taps}\n"
        f"  %t = sum k: mul(cast({left}, i32), cast(%w[i, k], i32)) : i32[j, i]\n"
        f"  %y[j, i] = {after}\n}}"
    )


PRODUCT = (
    "region @r(%x: u8[i 4, k 8], %w: i8[j 5, k 8]) -> %y: i32[i 4, j 5] {\n  axes i: 4, j: 5, k: 8\n"
    "  %t = sum k: mul(cast(%x[i, k], i32), cast(%w[j, k], i32)) : i32[i, j]\n  %y[i, j] = %t\n}"
)
ROW = (
    "region @r(%x: u8[k 8], %w: i8[j 5, k 8]) -> %y: i32[j 5] {\n  axes j: 5, k: 8\n"
    "  %t = sum k: mul(cast(%x[k], i32), cast(%w[j, k], i32)) : i32[j]\n  %y[j] = %t\n}"
)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (windows(9), True),
        (windows(9, "mul(cast(%t, f32), %s[])"), True),
        (windows(9, "mul(cast(sub(%t, %z[i]), f32), %s[])"), True),
        (windows(9, left="%x[j + k - 1, i] else 140"), True),
        (windows(514), True),
        (windows(515), False),  # 515 * 255 * 128 has more digits than f32
        (windows(257, weight="u8"), True),
        (windows(259, weight="u8"), False),
        (windows(9, weight="i32"), False),  # anything may be in 32 bits
        (PRODUCT, False),  # instructions multiply bytes of matrices
        (ROW, False),
    ],
)
def test_sums_that_floats_hold_are_made_of_floats(text: str, changes: bool) -> None:
    region = parse_region(text)
    after = exact_floats(region, dims.NO_FACTS)
    sums = [statement.dtype for statement in after.body if isinstance(statement, Reduce)]
    assert sums == [f32 if changes else i32] and (after == region) != changes
    if not changes:
        return
    assert ("cast(%t_0, i32)" in print_region(after)) != ("cast(%t, f32)" in text)  # a sum that becomes a float is one as it is
    numbers = np.random.default_rng(0)
    extreme = numbers.choice([0, 255], region.inputs[0].type.shape).astype(np.uint8)
    for x in (extreme, np.full_like(extreme, 255)):
        w_type = region.inputs[1].type
        low, high = (0, 255) if w_type.dtype.name == "u8" else (-128, 127)
        w = numbers.choice([low, high], w_type.shape).astype(w_type.dtype.numpy)
        for filters in (w, np.full_like(w, low or high)):
            given = {"x": x, "w": filters, "z": np.arange(4, dtype=np.int32) * 1001, "s": np.float32(0.5).reshape(())}
            np.testing.assert_array_equal(run_region(after, given)["y"], run_region(region, given)["y"])
