"""Scales behind sums: what moves, what stays, and that the region still computes the same."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.expression import Apply
from ourcc.ir.graph.reference import judge
from ourcc.ir.region import Ref, Scalar
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.text import parse_region, print_region
from ourcc.ir.types import f32
from ourcc.passes.regions.hoist_scales import factors_of, hoist_scales

HEAD = (
    "region @r(%x: f32[i 3, k 8], %w: i8[j 5, k 8], %s: f32[j 5], %g: f32[j 5, 2], %e: f8e4m3[i 3, 2], %f: f32[i 3, 2])"
    " -> %y: f32[i 3, j 5] {\n  axes i: 3, j: 5, k: 8\n"
)


def region(body: str) -> str:
    return f"{HEAD}{body}\n}}"


def check(body: str, expected: str) -> None:
    before = parse_region(region(body))
    after = hoist_scales(before)
    assert print_region(after).strip() == print_region(parse_region(region(expected))).strip()
    assert hoist_scales(after) == after
    generator = np.random.default_rng(0)
    kinds = {operand.name: operand.type.dtype.numpy for operand in before.inputs}
    arrays = {
        o.name: generator.integers(-9, 9, o.type.shape).astype(o.type.dtype.numpy) * (1 if o.type.dtype.is_integer else 0.25)
        for o in before.inputs
    }
    arrays = {name: array.astype(kinds[name]) for name, array in arrays.items()}
    got, wanted = run_region(after, arrays)["y"], run_region(before, arrays)["y"]
    assert judge(got, wanted, wanted.astype(np.float64)).passed


def test_a_scale_of_the_right_factor_moves_behind_the_sum() -> None:
    check(
        "  %t = sum k: mul(%x[i, k], mul(cast(%w[j, k], f32), %s[j])) : f32[i, j]\n  %y[i, j] = %t",
        "  %t_0 = sum k: mul(%x[i, k], cast(%w[j, k], f32)) : f32[i, j]\n  %t = mul(%t_0, %s[j]) : f32[i, j]\n  %y[i, j] = %t",
    )


def test_two_scales_move() -> None:
    check(
        "  %t = sum k: mul(mul(%x[i, k], %s[j]), mul(%s[j], cast(%w[j, k], f32))) : f32[i, j]\n  %y[i, j] = %t",
        "  %t_0 = sum k: mul(%x[i, k], cast(%w[j, k], f32)) : f32[i, j]\n  %t = mul(mul(%t_0, %s[j]), %s[j]) : f32[i, j]\n  %y[i, j] = %t",
    )


@pytest.mark.parametrize(
    "value",
    [
        "mul(%x[i, k], mul(cast(%w[j, k], f32), %g[j, k // 4]))",  # one scale for each block along the sum
        "mul(%x[i, k], cast(%w[j, k], f32))",  # none
        "mul(%x[i, k], %s[j])",  # what would be left is no product
        "add(%x[i, k], mul(%x[i, k], %s[j]))",  # a scale of one term only
        "mul(%x[i, k], mul(cast(%w[j, k], f32), exp(%s[j])))",  # computed, not loaded
    ],
)
def test_what_stays(value: str) -> None:
    body = f"  %t = sum k: {value} : f32[i, j]\n  %y[i, j] = %t"
    check(body, body)


@pytest.mark.parametrize(("blocks", "moves"), [("cast(%e[i, k // 4], f32)", True), ("%f[i, k // 4]", False)])
def test_scales_of_weights_leave_sums_with_blocks_of_small_scales(blocks: str, moves: bool) -> None:
    """A sum with scales of any size may be infinite before the weight's scale brings it down; one of 8 bits is not."""
    left, code = f"mul(%x[i, k], {blocks})", "cast(%w[j, k], f32)"
    body = f"  %t = sum k: mul({left}, mul({code}, %s[j])) : f32[i, j]\n  %y[i, j] = %t"
    moved = f"  %t_0 = sum k: mul({left}, {code}) : f32[i, j]\n  %t = mul(%t_0, %s[j]) : f32[i, j]\n  %y[i, j] = %t"
    check(body, moved if moves else body)


def test_a_maximum_keeps_its_factors() -> None:
    body = "  %t = max k: mul(%x[i, k], mul(cast(%w[j, k], f32), %s[j])) : f32[i, j]\n  %y[i, j] = %t"
    check(body, body)


def test_squares_of_squares_are_not_taken_apart() -> None:
    """x to the power of 2 ** 40 shares its parts: as nested products it would have as many factors."""
    value: Scalar = Ref("x", f32)
    for _ in range(40):
        value = Apply("mul", (value, value), f32)
    assert factors_of(value, "f32") == [value]
