"""Products that are said to be exact round nothing off, whatever their factors hold; of others nothing is said."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ourcc.ir.exactness import digits, multiply_add
from ourcc.ir.expression import Constant
from ourcc.ir.tile.program import Full, Load, TileApply, TileType, Value
from ourcc.ir.types import DType, bf16, f8e4m3, f8e5m2, f16, f32, i8, i32, u8

AXES = ("n",)


def load(dtype: DType, name: str = "x") -> Value:
    return Load(name, (), TileType(dtype, AXES))


def of(primitive: str, *args: Value, dtype: DType = f32) -> TileApply:
    return TileApply(primitive, args, dtype, type=TileType(dtype, AXES))


def number(value: float, dtype: DType) -> Value:
    return Full(Constant(value, dtype), TileType(dtype, ()))


def wide(value: Value) -> TileApply:
    return of("cast", value)


NIBBLE = wide(of("bit_and", load(u8), number(15, u8), dtype=u8))


def every(dtype: DType) -> np.ndarray:
    """All finite numbers of a narrow dtype, in f64."""
    codes = np.arange(1 << dtype.bits).astype(np.uint8 if dtype.bits == 8 else np.uint16)
    with np.errstate(invalid="ignore"):
        numbers = codes.view(dtype.numpy).astype(np.float64)
    return numbers[np.isfinite(numbers)]


@pytest.mark.parametrize("dtype", [f16, bf16, f8e4m3, f8e5m2, i8, u8])
def test_digits_hold_for_every_number(dtype: DType) -> None:
    found = digits(wide(load(dtype)))
    assert found is not None
    for value in every(dtype):
        whole = value / 2.0**found.low
        assert whole == int(whole) and abs(value) < 2.0**found.high
        assert value == 0 or len(bin(abs(int(whole))).removeprefix("0b").rstrip("0")) <= found.bits


@pytest.mark.parametrize(("left", "right"), list(itertools.combinations_with_replacement([f16, bf16, f8e4m3, f8e5m2, i8, u8], 2)))
def test_products_that_are_said_to_be_exact_are(left: DType, right: DType) -> None:
    found = digits(of("mul", wide(load(left)), wide(load(right, "y"))))
    random = np.random.default_rng(3)
    ends = (every(left), every(right))
    drawn = [np.concatenate([random.choice(side, 500), [side.min(), side.max(), np.abs(side[side != 0]).min()]]) for side in ends]
    with np.errstate(over="ignore"):
        products = np.multiply.outer(*drawn)
        is_exact = np.array_equal(products.astype(np.float32).astype(np.float64), products)
    assert found is None or is_exact
    # Nothing is given away either, but where exponents reach the ends of f32.
    assert (found is not None) == (bf16 not in (left, right))


def test_a_sum_of_an_exact_product_is_one_step() -> None:
    scale, offset = wide(load(f16, "d")), wide(load(f16, "m"))
    product = of("mul", NIBBLE, scale)
    found = multiply_add(of("add", product, offset))
    assert found is not None and (found.left, found.right, found.rest) == (NIBBLE, scale, offset)
    assert not found.is_product_negative and not found.is_rest_negative
    found = multiply_add(of("sub", product, load(f32, "m")))
    assert found is not None and found.is_rest_negative and not found.is_product_negative
    found = multiply_add(of("sub", load(f32, "m"), product))
    assert found is not None and found.is_product_negative and not found.is_rest_negative
    deeper = multiply_add(of("add", of("mul", NIBBLE, of("mul", scale, NIBBLE)), load(f32, "m")))
    assert deeper is not None


@pytest.mark.parametrize(
    "product",
    [
        of("mul", load(f32), wide(load(f16))),
        of("mul", wide(load(f16)), of("mul", wide(load(f16)), wide(load(f16)))),
        of("mul", NIBBLE, number(0.1, f32)),
        of("mul", NIBBLE, number(float("inf"), f32)),
        of("mul", NIBBLE, of("mul", NIBBLE, load(f32))),
        of("mul", wide(load(i32)), wide(load(f16))),
        of("mul", wide(load(bf16)), NIBBLE),
        of("add", NIBBLE, wide(load(f16))),
        # What is computed in a narrow type may be held with more digits.
        of("mul", wide(of("mul", load(f16), load(f16), dtype=f16)), NIBBLE),
    ],
)
def test_sums_of_other_products_stay_two_steps(product: Value) -> None:
    assert multiply_add(of("add", product, load(f32, "m"))) is None


def test_only_sums_in_f32_are_one_step() -> None:
    product = of("mul", NIBBLE, wide(load(f16)))
    assert multiply_add(of("mul", product, load(f32))) is None
    assert multiply_add(load(f32)) is None
    assert multiply_add(of("add", of("mul", load(i32), load(i32), dtype=i32), load(i32), dtype=i32)) is None
