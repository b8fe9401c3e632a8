"""Narrow factors: which roundings of factors stay, and which numbers a narrow float holds."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ourcc.ir.expression import Apply
from ourcc.ir.region import Reduce, Scalar
from ourcc.ir.region.text import parse_region
from ourcc.ir.types import DTYPES, DType, bf16, f16, f32
from ourcc.passes.regions.narrow_factors import holds_normal, is_exact, narrow_factors, wide_factors

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
    ("before", "after"),
    [
        (rounded(GROUPS), GROUPS),
        (f"mul({rounded(EACH)}, {X})", f"mul({EACH}, {X})"),
        (f"cast(round({GROUPS}, bf16), f64)", f"cast(round({GROUPS}, bf16), f64)"),  # a rounding to f32 would go as well
        (X, X),
    ],
)
def test_no_factor_is_rounded_that_is_widened_again(before: str, after: str) -> None:
    def text(value: str, kind: str) -> str:
        dtype = "f64" if "f64" in value else "f32"
        value = value if dtype == "f32" else f"cast({value}, f32)"
        return f"{HEAD}  %t = {kind} k: mul({X}, {value}) : f32[i, j]\n  %y[i, j] = %t\n}}"

    assert wide_factors(parse_region(text(before, "sum"))) == parse_region(text(after, "sum"))
    kept = parse_region(text(before, "max"))
    assert wide_factors(kept) == kept


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


@pytest.mark.parametrize(
    ("code", "scale", "dtype", "expected"),
    [
        ("f8e4m3", "f8e8m0", bf16, True),  # 2^-9 by 2^-127 is less than bf16 has, and no normal number of float32
        ("f8e5m2", "f8e8m0", bf16, True),
        ("f8e4m3", "f8e8m0", f16, False),  # 2^-15 by 1 is normal in float32
        ("f8e4m3", "f32", bf16, False),  # too many digits
        ("bf16", "f8e8m0", bf16, False),  # some of the products have more digits than float32 has places below its least normal number
        ("f16", "f8e8m0", bf16, False),
    ],
)
def test_what_is_normal_in_float32_is_held(code: str, scale: str, dtype: DType, expected: bool) -> None:
    """By all codes and scales: every product that is normal in float32 comes back from the narrow float as it was, if it is held."""
    text = f"region @r(%x: {code}[i 3, k 8], %s: {scale}[i 3], %z: f32[j 5, k 8]) -> %y: f32[i 3, j 5] {{\n  axes i: 3, j: 5, k: 8\n"
    scaled = "mul(cast(%x[i, k], f32), " + ("%s[i])" if scale == "f32" else "cast(%s[i], f32))")
    region = parse_region(f"{text}  %t = sum k: mul({scaled}, %z[j, k]) : f32[i, j]\n  %y[i, j] = %t\n}}")
    assert isinstance(region.body[0], Reduce) and isinstance(region.body[0].value, Apply)
    assert holds_normal(region.body[0].value.args[0], dtype) is expected
    if expected:
        codes, scales = (every(DTYPES[name]) for name in (code, scale))
        numbers = codes[:, None] * scales[None, :]
        numbers = numbers[(np.abs(numbers) >= 2.0**-126) & (np.abs(numbers) <= float(ml_dtypes.finfo(ml_dtypes.bfloat16).max))]
        np.testing.assert_array_equal(numbers.astype(ml_dtypes.bfloat16).astype(np.float64), numbers)


def every(dtype: DType) -> np.ndarray[Any, Any]:
    """All finite numbers of a dtype of 8 or 16 bits."""
    numbers = np.arange(1 << dtype.bits, dtype=np.uint8 if dtype.bits == 8 else np.uint16).view(dtype.numpy).astype(np.float64)
    return numbers[np.isfinite(numbers)]
