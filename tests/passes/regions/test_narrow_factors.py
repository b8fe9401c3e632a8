"""Narrow factors: which roundings of factors stay, and which numbers a narrow float holds."""

from __future__ import annotations

import pytest

from ourcc.ir.expression import Apply
from ourcc.ir.region import Reduce, Scalar
from ourcc.ir.region.text import parse_region
from ourcc.ir.types import DType, bf16, f16, f32
from ourcc.passes.regions.narrow_factors import is_exact, narrow_factors

HEAD = (
    "region @r(%x: bf16[i 3, k 8], %z: f32[i 3, k 8], %w: i8[j 5, k 8], %u: u8[j 5, k 8], %n: i32[j 5, k 8], %s: f32[j 5], %g: f32[j 5, 2])"
    " -> %y: f32[i 3, j 5] {\n  axes i: 3, j: 5, k: 8\n"
)
X, Z = "cast(%x[i, k], f32)", "%z[i, k]"
EACH, GROUPS = "mul(cast(%w[j, k], f32), %s[j])", "mul(cast(%w[j, k], f32), %g[j, k // 4])"

CODE = "cast(%u[j, k], i32)"


def product(left: str, right: str) -> Scalar:
    """The sum's value after the pass, in the order (left, right)."""
    after = narrow_factors(parse_region(f"{HEAD}  %t = sum k: mul({left}, {right}) : f32[i, j]\n  %y[i, j] = %t\n}}"))
    assert isinstance(after.body[0], Reduce)
    return after.body[0].value


def rounded(value: str) -> str:
    return f"cast(round({value}, bf16), f32)"


@pytest.mark.parametrize(
    ("left", "factor", "stays"),
    [
        (X, GROUPS, True),  # scales of groups stay in the sum: only a rounded factor is as narrow as the other
        (X, EACH, False),  # the scale leaves the sum, and codes are left, which bf16 holds
        (Z, GROUPS, False),  # the other factor is wide: nothing is gained
        (X, "mul(cast(%n[j, k], f32), %s[j])", True),  # codes of 32 bits fit nothing
    ],
)
def test_a_rounding_stays_where_it_makes_the_product_narrow(left: str, factor: str, stays: bool) -> None:
    assert product(left, rounded(factor)) == product(left, rounded(factor) if stays else factor)
    assert product(rounded(factor), left) == product(rounded(factor) if stays else factor, left)
    value = product(left, rounded(factor))
    assert isinstance(value, Apply) and (value.args[1].primitive == "cast" if stays else value.args[1].primitive == "mul")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (X, bf16, True),
        (X, f16, False),
        (Z, f32, True),
        ("cast(%w[j, k], f32)", bf16, True),
        ("cast(cast(%u[j, k], i32), f32)", bf16, True),
        (f"cast(sub({CODE}, {CODE}), f32)", bf16, True),
        (f"cast(add({CODE}, {CODE}), f32)", bf16, False),  # up to 510: nine digits
        (f"cast(add({CODE}, {CODE}), f32)", f16, True),
        ("cast(%n[j, k], f32)", f16, False),
        (GROUPS, bf16, False),
    ],
)
def test_what_a_narrow_float_holds(value: str, dtype: DType, expected: bool) -> None:
    found = product(value, Z)
    assert isinstance(found, Apply) and is_exact(found.args[0], dtype) is expected
