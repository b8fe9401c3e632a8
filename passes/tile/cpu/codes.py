"""Reading the scores of attention as sums of products of 8-bit codes, with the signs that instructions want.

    sum d: (q[d] - m) (k[d] - n) = sum d: q[d] k[d] - m * sum d: k[d] - n * (sum d: q[d] - D m)

Codes of queries are unsigned and those of keys signed; zero points move with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....ir.codes import number_of
from ....ir.expression import Apply, Constant
from ....ir.region import Scalar
from ....ir.types import DType, i8, i32, u8
from ...regions.contraction import axes_of, unwidened
from ..softmax import Attention

HALF = 128


@dataclass(frozen=True)
class CodedScores:
    """Codes of the queries, u8, and of the keys, i8, with their zero points as i32; None for 0."""

    query: Scalar
    key: Scalar
    query_zero: Scalar | None
    key_zero: Scalar | None


def read_codes(found: Attention) -> CodedScores | None:
    """The codes that scores are made of, if both factors are nothing but codes of 8 bits and zero points."""
    query, key = _read(found.query), _read(found.key)
    if query is None or key is None:
        return None
    (left, left_zero), (right, right_zero) = _signed(*query, u8), _signed(*key, i8)
    return CodedScores(left, right, left_zero, right_zero)


def _read(value: Scalar) -> tuple[Scalar, Scalar | None] | None:
    """The codes of a factor and their zero point, the same for all of them."""
    if not (isinstance(value, Apply) and value.primitive == "cast" and value.args[0].dtype.is_integer):
        return None
    inner, zero = value.args[0], None
    if isinstance(inner, Apply) and inner.primitive == "sub" and inner.dtype == i32:
        inner, zero = inner.args
    code = unwidened(inner)
    if code.dtype not in (i8, u8) or (zero is not None and axes_of(zero)):
        return None
    return code, zero


def _signed(code: Scalar, zero: Scalar | None, dtype: DType) -> tuple[Scalar, Scalar | None]:
    """The same numbers as codes of a sign, with a zero point that is half of all codes higher or lower."""
    if code.dtype == dtype:
        return code, zero
    if dtype == u8:
        return Apply("bit_xor", (Apply("bitcast", (code,), u8), Constant(HALF, u8)), u8), _moved(zero, HALF)
    return Apply("bitcast", (Apply("bit_xor", (code, Constant(HALF, u8)), u8),), i8), _moved(zero, -HALF)


def _moved(zero: Scalar | None, by: int) -> Scalar | None:
    number = 0 if zero is None else number_of(zero)
    if isinstance(number, int):
        return Constant(number + by, i32) if number + by else None
    assert zero is not None
    return Apply("add", (zero, Constant(by, i32)), i32)
