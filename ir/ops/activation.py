"""Activation functions: pointwise ops with parameters, each one expression in scalar primitives."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .. import scalar
from ..scalar import Array
from ..types import i32
from .operands import expect_real
from .sampling import array, draw, float_arrays, refused, unary
from .table import Sample, pointwise

SELU_ALPHA = 1.6732632423543772
SELU_GAMMA = 1.0507009873554805


@pointwise(onnx="Relu", torch="aten.relu", traits=("idempotent", "monotone"))
def relu(x: Array, /) -> Array:
    """max(x, 0); NaN for NaN."""
    return scalar.max(x, 0)


@pointwise(onnx="LeakyRelu")
def leaky_relu(x: Array, /, *, alpha: float = 0.01) -> Array:
    """x where x >= 0, else alpha * x."""
    expect_real(x)
    return scalar.where(scalar.lt(x, 0), scalar.mul(x, alpha), x)


@pointwise(onnx="ThresholdedRelu")
def thresholded_relu(x: Array, /, *, alpha: float = 1.0) -> Array:
    """x where x > alpha, else 0."""
    expect_real(x)
    return scalar.where(scalar.le(x, alpha), 0, x)


@pointwise(onnx="PRelu")
def prelu(x: Array, slope: Array, /) -> Array:
    """x where x >= 0, else slope * x."""
    return scalar.where(scalar.lt(x, 0), scalar.mul(slope, x), x)


@pointwise(onnx="Elu")
def elu(x: Array, /, *, alpha: float = 1.0) -> Array:
    """x where x > 0, else alpha * (exp(x) - 1)."""
    expect_real(x)
    return scalar.where(scalar.lt(0.0, x), x, scalar.mul(scalar.expm1(x), alpha))


@pointwise(onnx="Selu")
def selu(x: Array, /, *, alpha: float = SELU_ALPHA, gamma: float = SELU_GAMMA) -> Array:
    """gamma * x where x > 0, else gamma * alpha * (exp(x) - 1)."""
    expect_real(x)
    return scalar.mul(scalar.where(scalar.lt(0.0, x), x, scalar.mul(scalar.expm1(x), alpha)), gamma)


@pointwise(onnx="Celu")
def celu(x: Array, /, *, alpha: float = 1.0) -> Array:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    expect_real(x)
    return scalar.where(scalar.lt(0.0, x), x, scalar.mul(scalar.expm1(scalar.div(x, alpha)), alpha))


@pointwise(onnx="Sigmoid", torch="aten.sigmoid", traits=("monotone",))
def sigmoid(x: Array, /) -> Array:
    """1 / (1 + exp(-x))."""
    expect_real(x)
    return scalar.sigmoid(x)


@pointwise(onnx="HardSigmoid", traits=("monotone",))
def hard_sigmoid(x: Array, /, *, alpha: float = 0.2, beta: float = 0.5) -> Array:
    """alpha * x + beta, held in 0..1."""
    expect_real(x)
    return scalar.min(scalar.max(scalar.add(scalar.mul(x, alpha), beta), 0.0), 1.0)


@pointwise(torch="aten.hardswish")
def hard_swish(x: Array, /) -> Array:
    """x * min(max(x + 3, 0), 6) / 6."""
    expect_real(x)
    return scalar.div(scalar.mul(x, scalar.min(scalar.max(scalar.add(x, 3.0), 0.0), 6.0)), 6.0)


@pointwise(onnx="Swish", torch="aten.silu")
def silu(x: Array, /, *, alpha: float = 1.0) -> Array:
    """x * sigmoid(alpha * x)."""
    expect_real(x)
    return scalar.mul(x, scalar.sigmoid(x if alpha == 1.0 else scalar.mul(x, alpha)))


@pointwise(onnx="Gelu", torch="aten.gelu")
def gelu(x: Array, /, *, approximate: str = "none") -> Array:
    """x / 2 * (1 + erf(x / sqrt(2))); with approximate="tanh" x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
    expect_real(x)
    if approximate == "none":
        inner = scalar.erf(scalar.mul(x, math.sqrt(0.5)))
    elif approximate == "tanh":
        cubic = scalar.mul(scalar.mul(scalar.mul(x, x), x), 0.044715)
        inner = scalar.tanh(scalar.mul(scalar.add(x, cubic), math.sqrt(2.0 / math.pi)))
    else:
        raise TypeError(f"got approximate={approximate!r}, expected 'none' or 'tanh'")
    return scalar.mul(scalar.mul(x, 0.5), scalar.add(inner, 1.0))


def _softplus(x: Array) -> Array:
    """log(1 + exp(x)) without overflow."""
    return scalar.add(scalar.max(x, 0.0), scalar.log1p(scalar.exp(scalar.neg(scalar.abs(x)))))


@pointwise(onnx="Softplus", torch="aten.softplus")
def softplus(x: Array, /, *, beta: float = 1.0, threshold: float = 20.0) -> Array:
    """log(1 + exp(beta * x)) / beta; x where beta * x > threshold."""
    expect_real(x)
    scaled = x if beta == 1.0 else scalar.mul(x, beta)
    return scalar.where(scalar.lt(threshold, scaled), x, scalar.div(_softplus(scaled), beta))


@pointwise(onnx="Softsign")
def softsign(x: Array, /) -> Array:
    """x / (1 + |x|)."""
    expect_real(x)
    return scalar.div(x, scalar.add(scalar.abs(x), 1.0))


@pointwise(onnx="Mish", torch="aten.mish")
def mish(x: Array, /) -> Array:
    """x * tanh(log(1 + exp(x)))."""
    expect_real(x)
    return scalar.mul(x, scalar.tanh(_softplus(x)))


def _samples() -> Iterator[Sample]:
    yield from unary()
    yield refused((array(1, 2, dtype=i32),), "got i32, expected a real float")


for _op in (leaky_relu, thresholded_relu, elu, selu, celu, sigmoid, hard_sigmoid, hard_swish, silu, softplus, softsign, mish):
    _op.samples(_samples)


@relu.samples
def _() -> Iterator[Sample]:
    yield from unary()
    yield Sample((draw(5, dtype=i32),))


@gelu.samples
def _() -> Iterator[Sample]:
    yield from unary()
    yield from unary(approximate="tanh")
    yield refused((draw(3),), "got approximate='sinc', expected 'none' or 'tanh'", approximate="sinc")


@prelu.samples
def _() -> Iterator[Sample]:
    for x in float_arrays():
        yield Sample((x, x[..., :1] if x.ndim else x))
