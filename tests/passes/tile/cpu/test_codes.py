"""Scores read as products of codes: what signs and zero points become, and what is no factor of codes alone."""

from __future__ import annotations

from typing import cast

import pytest

from ourcc.ir import dims
from ourcc.ir.expression import Apply, Constant
from ourcc.ir.region import Load, Scalar
from ourcc.ir.types import DTYPES, f32, i8, i32
from ourcc.passes.tile.cpu.codes import CodedScores, read_codes
from ourcc.passes.tile.softmax import Attention


class Factors:
    """What is asked of an attention."""

    def __init__(self, query: Scalar, key: Scalar) -> None:
        self.query, self.key = query, key


def read(query: Scalar, key: Scalar) -> CodedScores | None:
    return read_codes(cast(Attention, Factors(query, key)))


def factor(dtype: str, axis: str, zero: Scalar | None = None) -> Scalar:
    code: Scalar = Apply("cast", (Load("x", (dims.symbol(axis), dims.symbol("d")), DTYPES[dtype]),), i32)
    return Apply("cast", (code if zero is None else Apply("sub", (code, zero), i32),), f32)


@pytest.mark.parametrize(("dtype", "moved"), [("u8", 0), ("i8", 128)])
@pytest.mark.parametrize("zero", [None, 3, -128])
def test_queries_become_unsigned(dtype: str, moved: int, zero: int | None) -> None:
    found = read(factor(dtype, "i", None if zero is None else Constant(zero, i32)), factor("i8", "j"))
    assert found is not None and found.query.dtype.name == "u8" and found.key_zero is None
    total = (zero or 0) + moved
    assert found.query_zero == (Constant(total, i32) if total else (None if dtype == "i8" or zero is None else Constant(0, i32)))


@pytest.mark.parametrize(("dtype", "moved"), [("i8", 0), ("u8", -128)])
def test_keys_become_signed(dtype: str, moved: int) -> None:
    found = read(factor("u8", "i"), factor(dtype, "j"))
    assert found is not None and found.key.dtype.name == "i8" and found.query_zero is None
    assert found.key_zero == (Constant(moved, i32) if moved else None)


def test_a_zero_point_that_is_given_is_moved() -> None:
    given = Apply("cast", (Load("z", (), i8),), i32)
    found = read(factor("i8", "i", given), factor("i8", "j", given))
    assert found is not None
    assert found.query_zero == Apply("add", (given, Constant(128, i32)), i32) and found.key_zero == given


@pytest.mark.parametrize(
    "key",
    [
        Load("x", (dims.symbol("j"), dims.symbol("d")), f32),
        factor("i16", "j"),
        factor("i8", "j", Apply("cast", (Load("z", (dims.symbol("d"),), i8),), i32)),
        Apply("mul", (factor("i8", "j"), Constant(0.5, f32)), f32),
    ],
    ids=["floats", "wider", "a zero point for each place", "scaled"],
)
def test_what_is_no_factor_of_codes(key: Scalar) -> None:
    assert read(factor("i8", "i"), key) is None
