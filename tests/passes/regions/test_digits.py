"""Digits: what numbers an expression can be, against all numbers of the narrow dtypes that it is made of."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ourcc.ir.expression import Apply, Constant
from ourcc.ir.ops.rounding import FLOATS
from ourcc.ir.region import Load, Scalar
from ourcc.ir.types import DTYPES, DType, bf16, boolean, f8e4m3, f8e5m2, f8e8m0, f16, f32, f64, i8, i32
from ourcc.passes.regions.digits import Digits, digits_of, held_by

NARROW = (i8, f8e4m3, f8e5m2)


def wide(dtype: DType) -> Scalar:
    """An element of `dtype`, widened."""
    load: Scalar = Load(f"x_{dtype.name}", (), dtype)
    return Apply("cast", (load,), f32)


def numbers(dtype: DType) -> np.ndarray:
    """All finite numbers of 8 bits."""
    found = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float64)
    return found[np.isfinite(found)]


def own(number: float) -> Digits:
    """The digits of one number, from its text in binary."""
    whole, exponent = float(abs(number)).hex()[2:].split("p")
    digits = "".join(f"{int(digit, 16):04b}" for digit in whole.replace(".", "")).strip()
    first, last = digits.find("1"), digits.rfind("1")
    return Digits(max(1, last - first + 1), int(exponent) - (last - 3) if first >= 0 else 10_000, abs(number))


@pytest.mark.parametrize("dtype", [DTYPES[name] for name in FLOATS if name != "f64"])
def test_a_float_holds_its_own_numbers(dtype: DType) -> None:
    found = held_by(dtype)
    if dtype.bits > 16:
        bits = np.random.default_rng(0).integers(0, 1 << 32, 20_000, np.uint32).view(np.float32)
    else:
        kind = np.uint8 if dtype.bits == 8 else np.uint16
        bits = np.arange(1 << dtype.bits, dtype=kind).view(dtype.numpy)
    finite = bits[np.isfinite(bits.astype(np.float32))].astype(np.float64)
    assert all(own(number).is_within(found) for number in finite)
    assert (found is not None and found.most == float(finite.max())) or dtype == f32


@pytest.mark.parametrize(("left", "right"), list(itertools.combinations_with_replacement(NARROW, 2)))
def test_products_of_narrow_numbers(left: DType, right: DType) -> None:
    found = digits_of(Apply("mul", (wide(left), wide(right)), f32))
    products = np.unique(np.multiply.outer(numbers(left), numbers(right)))
    assert found is not None
    assert all(own(number).is_within(found) for number in products)
    # What it says of f16 and bf16 is true of every product.
    for dtype in (f16, bf16):
        if found.is_within(held_by(dtype)):
            assert np.array_equal(products.astype(dtype.numpy).astype(np.float64), products)


def test_bytes_by_scales_of_8_bits_fit_f16_and_not_bf16() -> None:
    found = digits_of(Apply("mul", (wide(i8), wide(f8e4m3)), f32))
    assert found == Digits(11, -9, 128 * 448.0)
    assert found.is_within(held_by(f16)) and not found.is_within(held_by(bf16))


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0.5, Digits(1, -1, 0.5)),
        (-12.0, Digits(2, 2, 12.0)),
        (0.0, Digits(1, 0, 0.0)),
        (2.0**127, Digits(1, 127, 2.0**127)),
        (0.1, None),
        (float("inf"), None),
        (float("nan"), None),
    ],
)
def test_constants(number: float, expected: Digits | None) -> None:
    found = digits_of(Constant(number, f32))
    assert found == expected or (expected is None and found is not None and not found.is_within(held_by(bf16))) or found is None is expected


def test_what_is_rounded_has_all_digits_of_its_dtype() -> None:
    square = Apply("mul", (wide(i8), wide(i8)), f32)
    assert digits_of(square) == Digits(14, 0, 16384.0)
    assert digits_of(Apply("mul", (square, square), f32)) == held_by(f32)
    assert digits_of(Apply("add", (wide(i8), wide(i8)), f32)) == held_by(f32)
    assert digits_of(Apply("cast", (square,), bf16)) == held_by(bf16)
    assert digits_of(Load("n", (), i32)) is None


def test_codes_are_tried_out() -> None:
    code = Apply("bit_and", (Load("c", (), DTYPES["u8"]), Constant(15, DTYPES["u8"])), DTYPES["u8"])
    table = Apply("mul", (Apply("add", (Apply("cast", (code,), f32), Constant(0.25, f32)), f32), Constant(4.0, f32)), f32)
    assert digits_of(table) == Digits(6, 0, 61.0)


@pytest.mark.parametrize("dtype", [f8e4m3, f8e5m2, i8])
def test_powers_of_two_add_no_digits(dtype: DType) -> None:
    """Products with scales of e8m0: where they are finite they are what is said, and what is not is infinite in bf16 as well."""
    powers = np.ldexp(1.0, np.arange(-127, 128))
    with np.errstate(over="ignore"):
        products = np.multiply.outer(numbers(dtype), powers)
        wide_products = products.astype(np.float32)
    found = digits_of(Apply("mul", (wide(dtype), wide(f8e8m0)), f32))
    assert found is not None and found.most < 2.0**128
    finite = np.isfinite(wide_products)
    assert all(own(number).is_within(found) for number in np.unique(products[finite]))
    is_held = found.is_within(held_by(bf16))
    assert is_held == (dtype != f8e4m3 and dtype != f8e5m2)
    if is_held:
        with np.errstate(over="ignore"):
            narrow = wide_products.astype(bf16.numpy).astype(np.float64)
        np.testing.assert_array_equal(narrow, wide_products.astype(np.float64))


def test_what_is_cut_is_all_that_a_float_holds_of_it() -> None:
    held = held_by(f32)
    assert held is not None
    assert Digits(2, -10, 2.0**130).cut(held) == Digits(2, -10, 1.5 * 2.0**127)
    assert Digits(2, -10, 12.0).cut(held) == Digits(2, -10, 12.0)
    assert Digits(25, 0, 2.0**25).cut(held) == held == Digits(1, -150, 1.0).cut(held)
    small = held_by(f8e4m3)
    assert small is not None and Digits(1, -3, 1024.0).cut(small) == Digits(1, -3, 256.0) and Digits(4, 0, 1000.0).cut(small).most == 448.0


def test_a_choice_gives_what_one_of_both_gives() -> None:
    is_here: Scalar = Apply("eq", (Load("p", (), i32), Constant(1, i32)), boolean)
    nothing = Constant(0.0, f32)
    chosen = digits_of(Apply("where", (is_here, wide(f8e4m3), Apply("where", (is_here, wide(i8), nothing), f32)), f32))
    assert chosen is not None
    assert all(own(number).is_within(chosen) for dtype in (f8e4m3, i8) for number in numbers(dtype))
    assert digits_of(Apply("where", (is_here, wide(f8e4m3), nothing), f32)) == digits_of(wide(f8e4m3))
    unknown: Scalar = Load("x", (), f64)
    assert digits_of(Apply("where", (is_here, Apply("cast", (unknown,), f32), nothing), f32)) == held_by(f32)
