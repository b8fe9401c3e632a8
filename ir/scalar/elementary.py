"""Elementary functions: within 4 ulp of the exact value on every target."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .arithmetic import add, div, neg
from .primitive import Array, primitive


@primitive()
def exp(x: Array) -> Array:
    """e to the power x; a target may give 0 for what is below the smallest normal number."""
    return np.exp(x)


@primitive()
def exp2(x: Array) -> Array:
    """2 to the power x; a target may give 0 for what is below the smallest normal number, as weights of at most 1 can afford."""
    return np.exp2(x)


@primitive()
def exp2_narrow(x: Array) -> Array:
    """2 to the power x where what is read of it is rounded to 16 bits: within 2**-13 of it, 0 below the smallest normal number."""
    return np.exp2(x)


@primitive()
def expm1(x: Array) -> Array:
    """exp(x) - 1, accurate near 0."""
    return np.expm1(x)


@primitive()
def log(x: Array) -> Array:
    """The natural logarithm; -inf at 0, NaN below."""
    return np.log(x)


@primitive()
def log2(x: Array) -> Array:
    """The logarithm to base 2."""
    return np.log2(x)


@primitive()
def log1p(x: Array) -> Array:
    """log(1 + x), accurate near 0."""
    return np.log1p(x)


@primitive()
def sqrt(x: Array) -> Array:
    """The square root, correctly rounded; NaN below 0."""
    return np.sqrt(x)


@primitive()
def rsqrt(x: Array) -> Array:
    """1 / sqrt(x)."""
    return np.reciprocal(np.sqrt(x))


@primitive()
def sin(x: Array) -> Array:
    """Sine of radians."""
    return np.sin(x)


@primitive()
def cos(x: Array) -> Array:
    """Cosine of radians."""
    return np.cos(x)


@primitive()
def tan(x: Array) -> Array:
    """Tangent of radians."""
    return np.tan(x)


@primitive()
def asin(x: Array) -> Array:
    """Inverse sine."""
    return np.arcsin(x)


@primitive()
def acos(x: Array) -> Array:
    """Inverse cosine."""
    return np.arccos(x)


@primitive()
def atan(x: Array) -> Array:
    """Inverse tangent."""
    return np.arctan(x)


@primitive()
def atan2(y: Array, x: Array) -> Array:
    """The angle of (x, y), in (-pi, pi]."""
    return np.arctan2(y, x)


@primitive()
def sinh(x: Array) -> Array:
    """Hyperbolic sine."""
    return np.sinh(x)


@primitive()
def cosh(x: Array) -> Array:
    """Hyperbolic cosine."""
    return np.cosh(x)


@primitive()
def tanh(x: Array) -> Array:
    """Hyperbolic tangent."""
    return np.tanh(x)


@primitive()
def asinh(x: Array) -> Array:
    """Inverse hyperbolic sine."""
    return np.arcsinh(x)


@primitive()
def acosh(x: Array) -> Array:
    """Inverse hyperbolic cosine."""
    return np.arccosh(x)


@primitive()
def atanh(x: Array) -> Array:
    """Inverse hyperbolic tangent."""
    return np.arctanh(x)


@primitive()
def erf(x: Array) -> Array:
    """The error function."""
    return _special(math.erf, x)


@primitive()
def erfc(x: Array) -> Array:
    """1 - erf(x), accurate for large x."""
    return _special(math.erfc, x)


@primitive()
def div_narrow(x: Array, y: Array) -> Array:
    """x / y where what is read of it is rounded to 16 bits: within 2**-13 of it."""
    return np.divide(x, y)


@primitive()
def sigmoid_narrow(x: Array) -> Array:
    """1 / (1 + exp(-x)) where what is read of it is rounded to 16 bits: within 2**-12 of it."""
    return np.reciprocal(1 + np.exp(-x))


@primitive()
def gelu_narrow(x: Array) -> Array:
    """x / 2 * (1 + erf(x / sqrt(2))) where what is read of it is rounded to 16 bits: within 2**-10 of it, and within 1e-7 below -4."""
    return x * 0.5 * erfc(x * -math.sqrt(0.5))


@primitive()
def lgamma(x: Array) -> Array:
    """log |gamma(x)|; infinite at 0 and the negative integers."""
    return _special(_lgamma, x)


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    try:
        return math.lgamma(x)
    except OverflowError:
        return math.inf


def _special(function: Callable[[float], float], x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = np.asarray(x, dtype=np.float64)
    return np.fromiter((function(v) for v in wide.flat), dtype=np.float64, count=wide.size).reshape(wide.shape)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return div(1, add(1, exp(neg(x))))
