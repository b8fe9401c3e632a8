"""Conversions that leave tests to the instruction give the same codes as with them: edges, ties, infinities, NaN and drawn numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from ourcc.codegen.triton import print_launch
from ourcc.codegen.triton.compile import compile_kernel
from ourcc.codegen.triton.interpret import interpret
from ourcc.codegen.triton.roundings import MAGIC, NEAR
from ourcc.ir import dims
from ourcc.ir.expression import Constant
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.program import Full, GridAxis, Launch, Let, Load, Param, Ref, Store, TileApply, TileType, Value
from ourcc.ir.types import DType, boolean, f8e4m3, f8e5m2, f32, i8, i16, i32, u8

I = dims.symbol("i")  # noqa: E741 - the name of the axis
KIND = TileType(f32, ("i",))
X = Load("x", (I,), KIND)
MOST = {f8e4m3: 448.0, f8e5m2: 57344.0}


def full(value: float) -> Value:
    return Full(Constant(value, f32), TileType(f32, ()))


def apply(name: str, *args: Value) -> TileApply:
    return TileApply(name, args, f32, type=KIND)


def held(value: Value, low: float, high: float) -> Value:
    return apply("min", apply("max", value, full(low)), full(high))


def launch_of(value: Value, dtype: DType, count: int, *before: Let) -> Launch:
    cast = TileApply("cast", (value,), dtype, type=TileType(dtype, ("i",)))
    params = (Param("x", f32, (("i", count),)), Param("y", dtype, (("i", count),), "out"))
    return Launch("rounded", params, (GridAxis("i", 0, count, 128),), (*before, Store("y", (I,), cast)))


def codes(value: Value, dtype: DType, x: np.ndarray, *before: Let) -> tuple[str, np.ndarray]:
    """The text of the cast's kernel, and the bytes of what it gives."""
    printed = print_launch(launch_of(value, dtype, len(x), *before))
    return printed.source, interpret(printed, {"x": x, "y": np.zeros(len(x), dtype.numpy)}, {})["y"].view(f"u{dtype.bits // 8}")


def numbers(seed: int) -> np.ndarray:
    """Drawn numbers of all sizes, what is near the largest codes, halves, and each code's number and middles."""
    random = np.random.default_rng(seed)
    edges = np.array(
        [0.0, 448, 456, 464, 464.1, 480, 57344, 59392, 61440, 65536, 127.5, 128.5, 126.5, 1e30, np.inf, 255.5, 2.0**23], np.float32
    )
    near = [np.nextafter(edges, np.float32(0)), edges, np.nextafter(edges, np.float32(np.inf))]
    every = [np.arange(128, dtype=np.uint8).view(kind.numpy).astype(np.float32) for kind in MOST]
    steps = [np.sort(each[np.isfinite(each)]) for each in every]
    middles = [(each[1:] + each[:-1]) / 2 for each in steps]
    halves = random.integers(-300, 300, 300).astype(np.float32) / 2
    wide = random.standard_normal(900) * 10.0 ** random.integers(-44, 38, 900)
    found = np.concatenate([*near, *steps, *middles, halves, wide]).astype(np.float32)
    return np.concatenate([found, -found, np.array([np.nan], np.float32)])


def expected(x: np.ndarray, dtype: DType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return x.astype(dtype.numpy).view(np.uint8)


def same(found: np.ndarray, wanted: np.ndarray, dtype: DType) -> None:
    left, right = (np.isnan(each.view(dtype.numpy).astype(np.float32)) for each in (found, wanted))
    assert (left == right).all() and (found[~left] == wanted[~left]).all()


@pytest.mark.parametrize("dtype", MOST, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_held_in_the_range_is_left_to_the_instruction(dtype: DType, seed: int) -> None:
    x, most = numbers(seed), MOST[dtype]
    for value in (held(X, -most, most), apply("max", apply("min", X, full(most)), full(-most))):
        text, found = codes(value, dtype, x)
        assert "tl.maximum" not in text and f"to_{dtype}" not in text
        same(found, expected(np.clip(x, -most, most), dtype), dtype)


@pytest.mark.parametrize("dtype", MOST, ids=str)
def test_other_ranges_are_kept(dtype: DType) -> None:
    x, most = numbers(7), MOST[dtype]
    text, found = codes(held(X, -most / 4, most), dtype, x)
    assert "tl.maximum" in text and f"to_{dtype}" not in text
    same(found, expected(np.clip(x, -most / 4, most), dtype), dtype)
    for low, high in ((-most, most * 2), (-most * 1.125, most), (-np.inf, most)):
        text, found = codes(held(X, low, high), dtype, x)
        assert f"to_{dtype}" in text
        same(found, expected(np.clip(x, np.float32(low), np.float32(high)), dtype), dtype)
    text, found = codes(X, dtype, x)
    assert f"to_{dtype}" in text
    same(found, expected(x, dtype), dtype)


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [(i8, -128, 127), (i8, -127, 127), (u8, 0, 255), (i16, -32768, 32767), (i32, -9, 9)], ids=str
)
def test_whole_numbers_in_a_range_are_rounded_by_an_addition(dtype: DType, low: int, high: int) -> None:
    x = numbers(3)
    x = x[~np.isnan(x)]
    text, found = codes(held(apply("round_even", X), low, high), dtype, x)
    assert str(MAGIC) in text and "round_even" not in text
    np.testing.assert_array_equal(found.view(dtype.numpy), np.clip(np.round(x), low, high).astype(dtype.numpy))


def test_what_is_rounded_may_be_scaled_and_chosen_before_it_is_an_integer() -> None:
    x = numbers(5)
    x = x[~np.isnan(x)]
    number = Ref("number", KIND)
    small = TileApply("lt", (apply("abs", number), full(2.0)), boolean, type=TileType(boolean, ("i",)))
    steps = apply("round_even", apply("mul", number, apply("where", small, full(2.0), full(0.5))))
    value = apply("mul", steps, apply("where", small, full(1.0), full(4.0)))
    text, found = codes(value, i8, x, Let("number", held(X, -6.0, 6.0)))
    assert str(MAGIC) in text and "round_even" not in text
    clipped = np.clip(x, -6, 6)
    fine = np.abs(clipped) < 2
    np.testing.assert_array_equal(found.view(np.int8), (np.round(clipped * np.where(fine, 2, 0.5)) * np.where(fine, 1, 4)).astype(np.int8))


def test_other_roundings_are_spelled_out() -> None:
    x = np.clip(numbers(9), -2e9, 2e9)
    x = x[~np.isnan(x)]
    for low, high in ((None, None), (-NEAR * 2, NEAR), (-0.5, 7.0)):
        rounded: Value = apply("round_even", X)
        text, found = codes(rounded if low is None or high is None else held(rounded, low, high), i32, x)
        assert "round_even" in text
        wanted = np.round(x) if low is None else np.clip(np.round(x), np.float32(low), np.float32(high))
        np.testing.assert_array_equal(found.view(np.int32), wanted.astype(np.int32))


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("dtype", [f8e4m3, f8e5m2, i8], ids=str)
def test_kernels_convert_without_comparisons(target: str, dtype: DType) -> None:
    most = MOST.get(dtype, 127.0)
    value = held(X, -most, most) if dtype in MOST else held(apply("round_even", X), -128, 127)
    compiled = compile_kernel(print_launch(launch_of(value, dtype, 4096)), gpu_target(target))
    assert "setp.gt.f32" not in compiled.ptx and "setp.lt.f32" not in compiled.ptx
    if dtype in MOST:
        assert f"cvt.rn.satfinite.e{'4m3' if dtype == f8e4m3 else '5m2'}x2.f32" in compiled.ptx


def test_the_largest_numbers_are_the_formats() -> None:
    assert MOST == {dtype: float(ml_dtypes.finfo(dtype.numpy).max) for dtype in MOST}
