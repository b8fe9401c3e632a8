"""Pointwise ops: arithmetic, comparison, logic, bits, selection and casts.

Operands broadcast as in numpy and have one dtype; the result's dtype follows from the body. A factor or divisor (trait
`scaling`) of a narrow float may be float32: a number that the narrow type does not hold, as frameworks multiply by.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import scalar
from ..errors import VerifyError
from ..scalar import Array
from ..types import DType, TensorType, boolean, f16, f32, f64, from_numpy, i8, i32, i64, u8
from .operands import expect_bits, expect_bools, expect_floats, expect_integers, expect_numbers, expect_ordered, expect_real
from .sampling import array, bf16, draw, refused, specials, unary
from .table import Sample, broadcast, pointwise, same_dtype

# --- arithmetic -------------------------------------------------------------------------------------------------------


@pointwise(onnx="Add", traits=("commutative",))
def add(x: Array, y: Array, /) -> Array:
    """x + y; on bool: or."""
    return scalar.add(x, y)


@pointwise(onnx="Sub")
def sub(x: Array, y: Array, /) -> Array:
    """x - y; on bool: exclusive or."""
    return scalar.sub(x, y)


@pointwise(onnx="Mul", traits=("commutative", "scaling"))
def mul(x: Array, y: Array, /) -> Array:
    """x * y; on bool: and."""
    return scalar.mul(x, y)


@pointwise(onnx="Div", traits=("scaling",))
def div(x: Array, y: Array, /) -> Array:
    """x / y; on integers truncated toward zero, 0 where y is 0."""
    expect_numbers(x, y)
    return scalar.div(x, y)


@pointwise(traits=("scaling",))
def floor_div(x: Array, y: Array, /) -> Array:
    """x / y rounded down; on integers 0 where y is 0."""
    expect_numbers(x, y)
    expect_ordered(x, y)
    return scalar.floor_div(x, y)


@pointwise()
def mod(x: Array, y: Array, /) -> Array:
    """The remainder with the sign of y; on integers 0 where y is 0."""
    expect_numbers(x, y)
    expect_ordered(x, y)
    return scalar.floor_mod(x, y)


@pointwise()
def fmod(x: Array, y: Array, /) -> Array:
    """The remainder with the sign of x; on integers 0 where y is 0."""
    expect_numbers(x, y)
    expect_ordered(x, y)
    return scalar.trunc_mod(x, y)


@pointwise()
def pow_(x: Array, y: Array, /) -> Array:
    """x to the power y; on integers 0 for negative y unless x is 1 or -1."""
    expect_numbers(x, y)
    return scalar.pow(x, y)


@pointwise()
def fma(x: Array, y: Array, z: Array, /) -> Array:
    """x * y + z, rounded once or twice."""
    expect_numbers(x, y, z)
    return scalar.fma(x, y, z)


@pointwise(onnx="Neg", torch="aten.neg")
def neg(x: Array, /) -> Array:
    """-x."""
    expect_numbers(x)
    return scalar.neg(x)


@pointwise(onnx="Abs", traits=("idempotent",))
def abs_(x: Array, /) -> Array:
    """The magnitude."""
    expect_ordered(x)
    return scalar.abs(x)


@pointwise(onnx="Sign", traits=("idempotent", "monotone"))
def sign(x: Array, /) -> Array:
    """-1, 0 or 1; NaN for NaN."""
    expect_numbers(x)
    return scalar.sign(x)


@pointwise(traits=("commutative", "associative", "monotone"))
def minimum(x: Array, y: Array, /) -> Array:
    """The smaller; NaN if either is NaN."""
    expect_ordered(x, y)
    return scalar.min(x, y)


@pointwise(traits=("commutative", "associative", "monotone"))
def maximum(x: Array, y: Array, /) -> Array:
    """The larger; NaN if either is NaN."""
    expect_ordered(x, y)
    return scalar.max(x, y)


@pointwise(onnx="Clip")
def clip(x: Array, low: Array = None, high: Array = None, /) -> Array:
    """min(max(x, low), high); an absent bound does not bind, and `high` wins where low > high."""
    expect_ordered(x)
    result = x if low is None else scalar.max(x, low)
    return result if high is None else scalar.min(result, high)


# --- comparison, logic, bits ------------------------------------------------------------------------------------------


@pointwise(onnx="Equal", traits=("commutative",))
def eq(x: Array, y: Array, /) -> Array:
    """x == y; NaN equals nothing."""
    return scalar.eq(x, y)


@pointwise(traits=("commutative",))
def ne(x: Array, y: Array, /) -> Array:
    """x != y; true where either is NaN."""
    return scalar.ne(x, y)


@pointwise(onnx="Less")
def lt(x: Array, y: Array, /) -> Array:
    """x < y; false where either is NaN."""
    expect_ordered(x, y)
    return scalar.lt(x, y)


@pointwise(onnx="LessOrEqual")
def le(x: Array, y: Array, /) -> Array:
    """x <= y; false where either is NaN."""
    expect_ordered(x, y)
    return scalar.le(x, y)


@pointwise(onnx="Greater")
def gt(x: Array, y: Array, /) -> Array:
    """x > y; false where either is NaN."""
    expect_ordered(x, y)
    return scalar.gt(x, y)


@pointwise(onnx="GreaterOrEqual")
def ge(x: Array, y: Array, /) -> Array:
    """x >= y; false where either is NaN."""
    expect_ordered(x, y)
    return scalar.ge(x, y)


@pointwise(onnx="And", traits=("commutative", "associative"))
def logical_and(x: Array, y: Array, /) -> Array:
    """Both, of bools."""
    expect_bools(x, y)
    return scalar.bit_and(x, y)


@pointwise(onnx="Or", traits=("commutative", "associative"))
def logical_or(x: Array, y: Array, /) -> Array:
    """Either, of bools."""
    expect_bools(x, y)
    return scalar.bit_or(x, y)


@pointwise(onnx="Xor", traits=("commutative", "associative"))
def logical_xor(x: Array, y: Array, /) -> Array:
    """Exactly one, of bools."""
    expect_bools(x, y)
    return scalar.bit_xor(x, y)


@pointwise(onnx="Not")
def logical_not(x: Array, /) -> Array:
    """Not, of a bool."""
    expect_bools(x)
    return scalar.bit_not(x)


@pointwise(onnx="BitwiseAnd", torch="aten.bitwise_and", traits=("commutative", "associative"))
def bit_and(x: Array, y: Array, /) -> Array:
    """Bitwise and."""
    expect_bits(x, y)
    return scalar.bit_and(x, y)


@pointwise(onnx="BitwiseOr", torch="aten.bitwise_or", traits=("commutative", "associative"))
def bit_or(x: Array, y: Array, /) -> Array:
    """Bitwise or."""
    expect_bits(x, y)
    return scalar.bit_or(x, y)


@pointwise(onnx="BitwiseXor", torch="aten.bitwise_xor", traits=("commutative", "associative"))
def bit_xor(x: Array, y: Array, /) -> Array:
    """Bitwise exclusive or."""
    expect_bits(x, y)
    return scalar.bit_xor(x, y)


@pointwise(onnx="BitwiseNot", torch="aten.bitwise_not")
def bit_not(x: Array, /) -> Array:
    """Bitwise complement; on bool: not."""
    expect_bits(x)
    return scalar.bit_not(x)


@pointwise()
def shift_left(x: Array, y: Array, /) -> Array:
    """x << y; 0 where y is not in 0..bits-1."""
    expect_integers(x, y)
    return scalar.shift_left(x, y)


@pointwise()
def shift_right(x: Array, y: Array, /) -> Array:
    """x >> y, arithmetic on signed, logical on unsigned; all sign bits where y is not in 0..bits-1."""
    expect_integers(x, y)
    return scalar.shift_right(x, y)


@pointwise(onnx="IsNaN")
def is_nan(x: Array, /) -> Array:
    """Whether x is NaN."""
    expect_floats(x)
    return scalar.is_nan(x)


@pointwise()
def is_inf(x: Array, /, *, positive: bool = True, negative: bool = True) -> Array:
    """Whether x is infinite, of the signs asked for."""
    expect_real(x)
    if positive and negative:
        return scalar.is_inf(x)
    if positive or negative:
        return scalar.eq(x, float("inf") if positive else -float("inf"))
    return scalar.lt(x, x)


# --- selection and conversion -----------------------------------------------------------------------------------------


@pointwise(onnx="Where")
def where(condition: Array, x: Array, y: Array, /) -> Array:
    """x where the bool condition holds, else y."""
    expect_bools(condition)
    return scalar.where(condition, x, y)


@pointwise(traits=("converts",))
def cast(x: Array, /, *, dtype: DType) -> Array:
    """Convert to `dtype`: floats truncate toward zero, narrower integers wrap, bool is != 0, narrower floats round."""
    return scalar.cast(x, dtype)


@cast.infers
def _(x: TensorType, *, dtype: DType) -> TensorType:
    if "string" in (x.dtype.kind, dtype.kind):
        raise VerifyError(f"cast: got {x.dtype} to {dtype}, expected numbers; strings are converted by host steps")
    return x.with_dtype(dtype)


@pointwise(traits=("converts",))
def e2m1x2(x: Array, y: Array, /) -> Array:
    """Bytes of two numbers in e2m1, x in the low half: the nearest ones, halves to the even code; 6 beyond 6 and for NaN.

    Source: OCP Microscaling Formats (MX) v1.0, section 5.3.3; PTX ISA, `cvt.rn.satfinite.e2m1x2.f32`.
    """
    expect_real(x, y)
    return scalar.e2m1x2(x, y)


@e2m1x2.infers
def _(x: TensorType, y: TensorType) -> TensorType:
    if same_dtype("e2m1x2", x, y).compute != f32:
        raise VerifyError(f"e2m1x2: got {x.dtype}, expected a float of at most 32 bits")
    return TensorType(u8, broadcast("e2m1x2", x.shape, y.shape))


# --- samples ----------------------------------------------------------------------------------------------------------


def _unary_floats() -> Iterator[Sample]:
    yield from unary()
    yield refused((array(1, 2, dtype=i32),), "got i32, expected a")


def _pairs(low: float = -3.0) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    yield draw(3, 5, low=low), draw(3, 5, low=low, seed=1)
    yield draw(2, 3, 4, low=low), draw(3, 1, low=low)
    yield draw(low=low), draw(2, 2, low=low)
    yield draw(0, 3, low=low), draw(1, 3, low=low)
    yield draw(4, 3, dtype=f16, low=low), draw(3, dtype=f16, low=low)
    yield draw(4, 3, dtype=bf16, low=low), draw(4, 1, dtype=bf16, low=low)
    yield specials(), specials()[::-1].copy()


def _integer_pairs() -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    yield draw(7, 9, dtype=i32), draw(9, dtype=i32, seed=1)
    yield draw(5, dtype=i64), draw(dtype=i64)
    yield array(-128, 127, -1, 100, dtype=i8), array(-1, 127, 3, 100, dtype=i8)
    yield array(0, 255, 7, 9, dtype=u8), array(0, 1, 200, 9, dtype=u8)


def _binary_numbers() -> Iterator[Sample]:
    for x, y in (*_pairs(), *_integer_pairs()):
        yield Sample((x, y))
    yield refused((draw(3, 5), draw(4, 5)), "sizes 3 and 4 do not broadcast in [3, 5] and [4, 5]")
    yield refused((draw(3), draw(3, dtype=i32)), "operand dtypes differ: got f32 and i32, expected one dtype")


def _bool_pairs() -> Iterator[Sample]:
    yield Sample((draw(4, 3, dtype=boolean), draw(3, dtype=boolean, seed=1)))
    yield Sample((draw(dtype=boolean), draw(0, dtype=boolean)))


def _remainders() -> Iterator[Sample]:
    yield from _binary_numbers()
    yield refused((array(True, dtype=boolean), array(True, dtype=boolean)), "got bool, expected a number")


def _binary_bools() -> Iterator[Sample]:
    yield from _bool_pairs()
    yield refused((draw(3), draw(3)), "got f32, expected bool")


def _binary_bits() -> Iterator[Sample]:
    yield from _bool_pairs()
    for x, y in _integer_pairs():
        yield Sample((x, y))
    yield refused((draw(3), draw(3)), "got f32, expected an integer or bool")


def _shifts() -> Iterator[Sample]:
    for x, _y in _integer_pairs():
        yield Sample((x, scalar.convert(np.arange(x.shape[-1]) - 1, from_numpy(x.dtype))))
    yield refused((draw(3), draw(3)), "got f32, expected an integer")


def _add_bools() -> Iterator[Sample]:
    yield from _binary_numbers()
    yield from _bool_pairs()


def _unary_numbers() -> Iterator[Sample]:
    yield from unary()
    for x, _y in _integer_pairs():
        yield Sample((x,))
    yield refused((draw(3), draw(3)), "got 2 operands, expected 1")


is_nan.samples(_unary_floats)
for _op in (neg, abs_, sign):
    _op.samples(_unary_numbers)
for _op in (div, pow_, minimum, maximum, eq, ne, lt, le, gt, ge):
    _op.samples(_binary_numbers)
for _op in (floor_div, mod, fmod):
    _op.samples(_remainders)
for _op in (add, sub, mul):
    _op.samples(_add_bools)
for _op in (logical_and, logical_or, logical_xor):
    _op.samples(_binary_bools)
for _op in (bit_and, bit_or, bit_xor):
    _op.samples(_binary_bits)
for _op in (shift_left, shift_right):
    _op.samples(_shifts)


@fma.samples
def _() -> Iterator[Sample]:
    for x, y in _pairs():
        yield Sample((x, y, x))


@clip.samples
def _() -> Iterator[Sample]:
    low, high = array(-1.0).reshape(()), array(1.0).reshape(())
    for bounds in ((low, high), (low, None), (None, high), (None, None), (high, low)):
        yield Sample((draw(3, 5), *bounds))
    yield Sample((specials(), low, high))
    yield Sample((draw(5, dtype=i32), array(-1, dtype=i32).reshape(()), array(2, dtype=i32)))
    yield Sample((draw(4, dtype=f16), draw(dtype=f16), None))
    yield refused((draw(4), array(0, dtype=i32), None), "operand dtypes differ: got f32 and i32, expected one dtype")


@e2m1x2.samples
def _() -> Iterator[Sample]:
    for x, y in _pairs():
        yield Sample((x * 2, y))
    halves = np.arange(-32, 33, dtype=np.float32) / 4
    yield Sample((halves, -halves))
    yield Sample((np.nextafter(halves, np.float32(9)), np.nextafter(halves, np.float32(-9))))
    yield refused((draw(3, dtype=f64), draw(3, dtype=f64)), "got f64, expected a float of at most 32 bits")
    yield refused((draw(3, dtype=i32), draw(3, dtype=i32)), "got i32, expected a float of at most 32 bits")


@logical_not.samples
def _() -> Iterator[Sample]:
    yield Sample((draw(4, 3, dtype=boolean),))
    yield refused((draw(3),), "got f32, expected bool")


@bit_not.samples
def _() -> Iterator[Sample]:
    yield Sample((draw(4, 3, dtype=boolean),))
    for x, _y in _integer_pairs():
        yield Sample((x,))


@is_inf.samples
def _() -> Iterator[Sample]:
    for signs in ((True, True), (True, False), (False, True), (False, False)):
        yield from unary(positive=signs[0], negative=signs[1])


@where.samples
def _() -> Iterator[Sample]:
    for x, y in (*_pairs(), *_integer_pairs()):
        yield Sample((draw(*np.broadcast_shapes(x.shape, y.shape), dtype=boolean), x, y))
    yield Sample((draw(3, 1, dtype=boolean), draw(1, 4), draw()))
    yield refused((draw(3), draw(3), draw(3)), "got f32, expected bool")
    yield refused((draw(3, dtype=boolean), draw(3), draw(3, dtype=i32)), "operand dtypes differ: got f32 and i32, expected one dtype")


@cast.samples
def _() -> Iterator[Sample]:
    numbers = (draw(3, 5, low=-100, high=100), draw(5, dtype=i64, low=-300, high=300), draw(4, dtype=boolean), draw(4, dtype=u8, high=250))
    for x in (*numbers, draw(4, dtype=f16), draw(4, dtype=bf16), draw(0, 2), draw()):
        for dtype in (f32, f16, bf16, i32, i8, u8, boolean, i64):
            if not (from_numpy(x.dtype).is_float and dtype == u8):
                yield Sample((x,), {"dtype": dtype})
    yield Sample((specials(),), {"dtype": f16})
    yield Sample((specials(),), {"dtype": boolean})
    yield refused((draw(3),), "attribute 'dtype' is missing")
    yield refused((np.asarray(["a"], dtype=object),), "got string to f32, expected numbers", dtype=f32)
