"""Elementary functions and rounding: unary pointwise ops, each one scalar primitive, within 4 ulp of the exact value."""

from __future__ import annotations

from collections.abc import Iterator

from .. import scalar
from ..scalar import Array
from ..types import f16, i32
from .operands import expect_floats, expect_real
from .sampling import array, draw, refused, specials, unary
from .table import Sample, pointwise

# --- elementary functions ---------------------------------------------------------------------------------------------


@pointwise(onnx="Exp", torch="aten.exp", traits=("monotone",))
def exp(x: Array, /) -> Array:
    """e to the power x."""
    expect_floats(x)
    return scalar.exp(x)


@pointwise(torch="aten.exp2", traits=("monotone",))
def exp2(x: Array, /) -> Array:
    """2 to the power x."""
    expect_floats(x)
    return scalar.exp2(x)


@pointwise(torch="aten.expm1", traits=("monotone",))
def expm1(x: Array, /) -> Array:
    """exp(x) - 1, accurate near 0."""
    expect_floats(x)
    return scalar.expm1(x)


@pointwise(onnx="Log", torch="aten.log")
def log(x: Array, /) -> Array:
    """The natural logarithm."""
    expect_floats(x)
    return scalar.log(x)


@pointwise(torch="aten.log2")
def log2(x: Array, /) -> Array:
    """The logarithm to base 2."""
    expect_floats(x)
    return scalar.log2(x)


@pointwise(torch="aten.log1p")
def log1p(x: Array, /) -> Array:
    """log(1 + x), accurate near 0."""
    expect_floats(x)
    return scalar.log1p(x)


@pointwise(onnx="Sqrt", torch="aten.sqrt")
def sqrt(x: Array, /) -> Array:
    """The square root; NaN below 0."""
    expect_floats(x)
    return scalar.sqrt(x)


@pointwise(torch="aten.rsqrt")
def rsqrt(x: Array, /) -> Array:
    """1 / sqrt(x)."""
    expect_floats(x)
    return scalar.rsqrt(x)


@pointwise(onnx="Reciprocal", torch="aten.reciprocal")
def reciprocal(x: Array, /) -> Array:
    """1 / x."""
    expect_floats(x)
    return scalar.reciprocal(x)


@pointwise(onnx="Sin", torch="aten.sin")
def sin(x: Array, /) -> Array:
    """Sine of radians."""
    expect_floats(x)
    return scalar.sin(x)


@pointwise(onnx="Cos", torch="aten.cos")
def cos(x: Array, /) -> Array:
    """Cosine of radians."""
    expect_floats(x)
    return scalar.cos(x)


@pointwise(onnx="Tan", torch="aten.tan")
def tan(x: Array, /) -> Array:
    """Tangent of radians."""
    expect_floats(x)
    return scalar.tan(x)


@pointwise(onnx="Asin", torch="aten.asin")
def asin(x: Array, /) -> Array:
    """Inverse sine."""
    expect_floats(x)
    return scalar.asin(x)


@pointwise(onnx="Acos", torch="aten.acos")
def acos(x: Array, /) -> Array:
    """Inverse cosine."""
    expect_floats(x)
    return scalar.acos(x)


@pointwise(onnx="Atan", torch="aten.atan", traits=("monotone",))
def atan(x: Array, /) -> Array:
    """Inverse tangent."""
    expect_floats(x)
    return scalar.atan(x)


@pointwise(torch="aten.atan2")
def atan2(y: Array, x: Array, /) -> Array:
    """The angle of (x, y), in (-pi, pi]."""
    expect_real(y, x)
    return scalar.atan2(y, x)


@pointwise(onnx="Sinh", torch="aten.sinh", traits=("monotone",))
def sinh(x: Array, /) -> Array:
    """Hyperbolic sine."""
    expect_floats(x)
    return scalar.sinh(x)


@pointwise(onnx="Cosh", torch="aten.cosh")
def cosh(x: Array, /) -> Array:
    """Hyperbolic cosine."""
    expect_floats(x)
    return scalar.cosh(x)


@pointwise(onnx="Tanh", torch="aten.tanh", traits=("monotone",))
def tanh(x: Array, /) -> Array:
    """Hyperbolic tangent."""
    expect_floats(x)
    return scalar.tanh(x)


@pointwise(onnx="Asinh", torch="aten.asinh", traits=("monotone",))
def asinh(x: Array, /) -> Array:
    """Inverse hyperbolic sine."""
    expect_floats(x)
    return scalar.asinh(x)


@pointwise(onnx="Acosh", torch="aten.acosh")
def acosh(x: Array, /) -> Array:
    """Inverse hyperbolic cosine."""
    expect_floats(x)
    return scalar.acosh(x)


@pointwise(onnx="Atanh", torch="aten.atanh")
def atanh(x: Array, /) -> Array:
    """Inverse hyperbolic tangent."""
    expect_floats(x)
    return scalar.atanh(x)


@pointwise(onnx="Erf", torch="aten.erf", traits=("monotone",))
def erf(x: Array, /) -> Array:
    """The error function."""
    expect_real(x)
    return scalar.erf(x)


@pointwise(torch="aten.erfc")
def erfc(x: Array, /) -> Array:
    """1 - erf(x), accurate for large x."""
    expect_real(x)
    return scalar.erfc(x)


@pointwise(torch="aten.lgamma")
def lgamma(x: Array, /) -> Array:
    """log |gamma(x)|."""
    expect_real(x)
    return scalar.lgamma(x)


# --- rounding ---------------------------------------------------------------------------------------------------------


@pointwise(onnx="Floor", traits=("idempotent", "monotone"))
def floor(x: Array, /) -> Array:
    """The nearest integer below."""
    expect_real(x)
    return scalar.floor(x)


@pointwise(onnx="Ceil", traits=("idempotent", "monotone"))
def ceil(x: Array, /) -> Array:
    """The nearest integer above."""
    expect_real(x)
    return scalar.ceil(x)


@pointwise(traits=("idempotent", "monotone"))
def trunc(x: Array, /) -> Array:
    """The nearest integer toward zero."""
    expect_real(x)
    return scalar.trunc(x)


@pointwise(onnx="Round", traits=("idempotent", "monotone"))
def round_(x: Array, /) -> Array:
    """The nearest integer, halves to even."""
    expect_real(x)
    return scalar.round_even(x)


# --- samples ----------------------------------------------------------------------------------------------------------


def _samples() -> Iterator[Sample]:
    yield from unary()
    yield refused((array(1, 2, dtype=i32),), "got i32, expected a")


for _op in (exp, exp2, expm1, log, log2, log1p, sqrt, rsqrt, reciprocal, sin, cos, tan, asin, acos, atan, sinh, cosh, tanh):
    _op.samples(_samples)
for _op in (asinh, acosh, atanh, erf, erfc, lgamma, floor, ceil, trunc, round_):
    _op.samples(_samples)


@atan2.samples
def _() -> Iterator[Sample]:
    yield Sample((draw(3, 5), draw(5, seed=1)))
    yield Sample((draw(), draw(0, 3)))
    yield Sample((draw(4, dtype=f16), draw(4, dtype=f16, seed=1)))
    yield Sample((specials(), specials()[::-1].copy()))
    yield refused((draw(3, 5), draw(4, 5)), "sizes 3 and 4 do not broadcast")
    yield refused((draw(3), draw(3, dtype=f16)), "operand dtypes differ: got f32 and f16, expected one dtype")
    yield refused((draw(3, dtype=i32), draw(3, dtype=i32)), "got i32, expected a real float")
