"""The scalar primitives: all that printers and interpreters need to know about arithmetic.

Each primitive runs on numpy arrays (the reference) and, when an argument is `Traced`, records itself as an
expression. Operands of one application have one dtype (casts are explicit); a Python number takes the dtype of the
others. Integers wrap around in two's complement. Floats follow IEEE 754 with round to nearest even unless said.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .expression import Apply, Constant
from .types import DType, boolean, from_numpy

Array: TypeAlias = Any  # a numpy array or a Traced; numpy's own typing cannot express "either"


@dataclass(frozen=True)
class Primitive:
    """A scalar primitive: `result` is "same" (as its operands), "bool", or "given" (cast, round and bitcast)."""

    name: str
    arity: int
    result: str
    doc: str
    run: Callable[..., Any]


PRIMITIVES: dict[str, Primitive] = {}


@dataclass(frozen=True)
class Traced:
    """A scalar expression under construction."""

    value: Any
    dtype: DType


def primitive(result: str = "same") -> Callable[[Callable[..., Any]], Callable[..., Array]]:
    """Declare a primitive: the function's name, its docstring, and its body as meaning on numpy arrays."""

    def declare(run: Callable[..., Any]) -> Callable[..., Array]:
        arity = run.__code__.co_argcount
        entry = Primitive(run.__name__, arity, result, (run.__doc__ or "").strip(), run)
        PRIMITIVES[entry.name] = entry

        def call(*args: Array) -> Array:
            if any(isinstance(arg, Traced) for arg in args):
                return _record(entry, args)
            return evaluate(entry.name, *args)

        call.__name__, call.__doc__ = run.__name__, run.__doc__
        return call

    return declare


def evaluate(name: str, *args: Any) -> Any:
    """Run a primitive on numpy arrays and Python numbers (at least one array); shapes broadcast."""
    arrays = [arg for arg in args if isinstance(arg, (np.ndarray, np.generic))]
    values = [arg for arg in arrays if not (name == "where" and arg is args[0])]
    dtype = (values or arrays)[0].dtype
    full = [arg if isinstance(arg, (np.ndarray, np.generic)) else np.asarray(arg).astype(dtype) for arg in args]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = np.asarray(PRIMITIVES[name].run(*full))
    return result.astype(dtype, copy=False) if PRIMITIVES[name].result == "same" else result


def cast(x: Array, dtype: DType) -> Array:
    """Convert: float to int truncates toward zero (out of range is undefined but never traps), to bool is != 0,
    int to narrower int wraps, to a narrower float rounds to nearest even and overflows to infinity, or to
    NaN where the type has none; a source whose casts saturate says so with a clip before the cast.
    """
    if isinstance(x, Traced):
        return x if x.dtype == dtype else Traced(_converted(x.value, dtype), dtype)
    return convert(np.asarray(x), dtype)


def _converted(value: Any, dtype: DType, primitive: str = "cast") -> Any:
    """A value as a cast of it, or as what it was before it was widened to be computed with: nothing was, then."""
    widened = isinstance(value, Apply) and value.primitive == "cast" and value.dtype == dtype.compute
    if isinstance(value, Apply) and widened and value.args[0].dtype == dtype:
        return value.args[0]
    return Apply(primitive, (value,), dtype)


def rounds(source: DType, target: DType) -> bool:
    """Whether going from `source` to `target` can be an op's own rounding: out of a narrow float's compute type."""
    return source != target and source == target.compute


def rounded(x: Traced, dtype: DType) -> Traced:
    """A result in the type its op declares: `round` from that type's compute type, a `cast` from any other."""
    if not rounds(x.dtype, dtype):
        return cast(x, dtype)  # type: ignore[no-any-return]
    return Traced(_converted(x.value, dtype, "round"), dtype)


def _round(x: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """An op's own rounding to the narrow float type it declares, out of its compute type; the numbers are those of cast.

    Only arithmetic may go on with what was there before it (ir/ops/rounding.py says which).
    """
    return convert(x, dtype)


def convert(x: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """`cast` on numpy arrays."""
    target = dtype.numpy
    if x.dtype == target:
        return x
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dtype.name == "bool":
            return np.asarray(x != 0)
        if x.dtype.kind == "c" and not dtype.kind == "complex":
            x = x.real
        source = from_numpy(x.dtype)
        if source.is_float and dtype.is_integer and source.bits <= 64:
            x = np.trunc(x.astype(np.float64) if source.bits < 32 else x)
            return _float_to_integer(x, dtype)
        if source.bits < 8 or dtype.bits < 8 or (source.is_float and source.bits < 32 and dtype.is_float):
            x = x.astype(np.float32) if source.is_float and source.bits < 32 else x
            x = x.astype(np.int64) if source.is_integer and source.bits < 8 else x
        if dtype.is_integer and dtype.bits < 8:
            x = x.astype(np.int64) & ((1 << dtype.bits) - 1)
            if dtype.kind == "int":
                x = np.where(x >= 1 << (dtype.bits - 1), x - (1 << dtype.bits), x)
        return x.astype(target)


def _float_to_integer(x: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """Truncated floats to an integer type, through i64 so that narrower types wrap as C does on this hardware."""
    if dtype.name == "u64":
        high = x >= 2.0**63
        return np.where(high, (x - 2.0**63).astype(np.int64).astype(np.uint64) + np.uint64(2**63), x.astype(np.int64).astype(np.uint64))
    wide = x.astype(np.int64)
    return convert(wide, dtype) if dtype.bits < 64 else wide


def bitcast(x: Array, dtype: DType) -> Array:
    """The same bits as another dtype of the same width."""
    if isinstance(x, Traced):
        return Traced(Apply("bitcast", (x.value,), dtype), dtype)
    return np.asarray(x).view(dtype.numpy)


def _record(entry: Primitive, args: tuple[Array, ...]) -> Traced:
    traced = [arg for arg in args if isinstance(arg, Traced)]
    values = [arg for arg in traced if not (entry.name == "where" and arg is args[0])]
    dtype = (values or traced)[0].dtype
    parts = []
    for position, arg in enumerate(args):
        wanted = boolean if entry.name == "where" and position == 0 else dtype
        if not isinstance(arg, Traced):
            arg = Traced(Constant(literal_of(arg, wanted), wanted), wanted)
        if arg.dtype != wanted:
            raise TypeError(f"{entry.name}: operand {position} is {arg.dtype}, expected {wanted}")
        parts.append(arg.value)
    result = boolean if entry.result == "bool" else dtype
    return Traced(Apply(entry.name, tuple(parts), result), result)


def literal_of(value: Any, dtype: DType) -> bool | int | float | complex:
    """A Python number as a literal of a dtype; integers beyond it wrap around, as arithmetic does."""
    if dtype.kind == "bool":
        return bool(value)
    if dtype.kind == "complex":
        return complex(value)
    return float(value) if dtype.is_float else wrapped(int(value), dtype)


def wrapped(value: int, dtype: DType) -> int:
    """An integer in two's complement of an integer dtype."""
    low = 0 if dtype.kind == "uint" else -(1 << (dtype.bits - 1))
    return (value - low) % (1 << dtype.bits) + low


# --- arithmetic -------------------------------------------------------------------------------------------------------


@primitive()
def add(x: Array, y: Array) -> Array:
    """x + y; on bool: or."""
    return x | y if x.dtype == bool else x + y


@primitive()
def sub(x: Array, y: Array) -> Array:
    """x - y; on bool: exclusive or."""
    return x ^ y if x.dtype == bool else x - y


@primitive()
def mul(x: Array, y: Array) -> Array:
    """x * y; on bool: and."""
    return x & y if x.dtype == bool else x * y


@primitive()
def div(x: Array, y: Array) -> Array:
    """x / y on floats; on integers the quotient truncated toward zero, 0 where y is 0 (never a trap)."""
    if x.dtype.kind not in "iu":
        return x / y
    safe = np.where(y == 0, 1, y)
    quotient = x // safe
    if x.dtype.kind == "i":
        quotient = quotient + ((quotient * safe != x) & ((x < 0) != (safe < 0)))
    return np.where(y == 0, 0, quotient)


@primitive()
def floor_div(x: Array, y: Array) -> Array:
    """x / y rounded down (floats too); on integers 0 where y is 0."""
    if x.dtype.kind not in "iu":
        return np.floor_divide(x, y)
    return np.where(y == 0, 0, x // np.where(y == 0, 1, y))


@primitive()
def floor_mod(x: Array, y: Array) -> Array:
    """The remainder with the sign of y (Python's %); on integers 0 where y is 0."""
    if x.dtype.kind not in "iu":
        return np.mod(x, y)
    return np.where(y == 0, 0, x % np.where(y == 0, 1, y))


@primitive()
def trunc_mod(x: Array, y: Array) -> Array:
    """The remainder with the sign of x (C's % and fmod); on integers 0 where y is 0."""
    if x.dtype.kind not in "iu":
        return np.fmod(x, y)
    return np.where(y == 0, 0, np.fmod(x, np.where(y == 0, 1, y)))


@primitive()
def neg(x: Array) -> Array:
    """-x; zero changes sign."""
    return -x


@primitive()
def abs(x: Array) -> Array:  # noqa: A001 - the field's name for it
    """The magnitude; the most negative integer stays."""
    return np.abs(x)


@primitive()
def sign(x: Array) -> Array:
    """-1, 0 or 1; NaN for NaN, 0 for both zeros."""
    return np.sign(x)


@primitive()
def min(x: Array, y: Array) -> Array:  # noqa: A001
    """The smaller; NaN if either is NaN; of two zeros of different sign either one."""
    return np.minimum(x, y)


@primitive()
def max(x: Array, y: Array) -> Array:  # noqa: A001
    """The larger; NaN if either is NaN; of two zeros of different sign either one."""
    return np.maximum(x, y)


@primitive()
def fma(x: Array, y: Array, z: Array) -> Array:
    """x * y + z; a target may round once or twice (the only primitive with that freedom)."""
    return x * y + z


@primitive()
def pow(x: Array, y: Array) -> Array:  # noqa: A001
    """x to the power y; on integers 0 for negative y unless x is 1 or -1."""
    if x.dtype.kind not in "iu":
        return np.power(x, y)
    negative = y < 0
    result = np.power(x, np.where(negative, 0, y))
    odd = np.where((y % 2) == 0, np.ones_like(x), x)
    return np.where(negative, np.where((x == 1) | (x == -1), odd, 0), result)


# --- elementary functions: within 4 ulp of the exact value on every target ------------------------------------------


@primitive()
def exp(x: Array) -> Array:
    """e to the power x."""
    return np.exp(x)


@primitive()
def exp2(x: Array) -> Array:
    """2 to the power x."""
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


# --- rounding ---------------------------------------------------------------------------------------------------------


@primitive()
def floor(x: Array) -> Array:
    """The nearest integer below."""
    return np.floor(x)


@primitive()
def ceil(x: Array) -> Array:
    """The nearest integer above."""
    return np.ceil(x)


@primitive()
def trunc(x: Array) -> Array:
    """The nearest integer toward zero."""
    return np.trunc(x)


@primitive()
def round_even(x: Array) -> Array:
    """The nearest integer, halves to even."""
    return np.round(x)


# --- comparison, logic, bits ------------------------------------------------------------------------------------------


@primitive("bool")
def eq(x: Array, y: Array) -> Array:
    """x == y; NaN equals nothing."""
    return x == y


@primitive("bool")
def ne(x: Array, y: Array) -> Array:
    """x != y; true where either is NaN."""
    return x != y


@primitive("bool")
def lt(x: Array, y: Array) -> Array:
    """x < y; false where either is NaN."""
    return x < y


@primitive("bool")
def le(x: Array, y: Array) -> Array:
    """x <= y; false where either is NaN."""
    return x <= y


@primitive("bool")
def is_nan(x: Array) -> Array:
    """Whether x is NaN."""
    return np.isnan(x)


@primitive("bool")
def is_inf(x: Array) -> Array:
    """Whether x is infinite, of either sign."""
    return np.isinf(x)


@primitive()
def bit_and(x: Array, y: Array) -> Array:
    """Bitwise and; on bool: both."""
    return x & y


@primitive()
def bit_or(x: Array, y: Array) -> Array:
    """Bitwise or; on bool: either."""
    return x | y


@primitive()
def bit_xor(x: Array, y: Array) -> Array:
    """Bitwise exclusive or."""
    return x ^ y


@primitive()
def bit_not(x: Array) -> Array:
    """Bitwise complement; on bool: not."""
    return ~x


@primitive()
def shift_left(x: Array, y: Array) -> Array:
    """x << y; 0 where y is not in 0..bits-1."""
    bits = x.dtype.itemsize * 8
    inside = (y >= 0) & (y < bits)
    return np.where(inside, x << np.where(inside, y, 0), 0)


@primitive()
def shift_right(x: Array, y: Array) -> Array:
    """x >> y, arithmetic on signed, logical on unsigned; all sign bits where y is not in 0..bits-1."""
    bits = x.dtype.itemsize * 8
    inside = (y >= 0) & (y < bits)
    return np.where(inside, x >> np.where(inside, y, 0), np.where(x < 0, -1, 0).astype(x.dtype))


@primitive()
def where(condition: Array, x: Array, y: Array) -> Array:
    """x where the bool condition holds, else y; the other side's NaN does not show."""
    return np.where(condition, x, y)


PRIMITIVES["cast"] = Primitive("cast", 1, "given", cast.__doc__ or "", convert)
PRIMITIVES["round"] = Primitive("round", 1, "given", _round.__doc__ or "", _round)
PRIMITIVES["bitcast"] = Primitive("bitcast", 1, "given", bitcast.__doc__ or "", bitcast)

# Spellings that bodies may use; each is made of the primitives above, so printers never meet them.


def gt(x: Array, y: Array) -> Array:
    """x > y."""
    return lt(y, x)


def ge(x: Array, y: Array) -> Array:
    """x >= y."""
    return le(y, x)


def logical_and(x: Array, y: Array) -> Array:
    """Both, of bools."""
    return bit_and(x, y)


def logical_or(x: Array, y: Array) -> Array:
    """Either, of bools."""
    return bit_or(x, y)


def logical_not(x: Array) -> Array:
    """Not, of a bool."""
    return bit_not(x)


def reciprocal(x: Array) -> Array:
    """1 / x."""
    return div(1, x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return div(1, add(1, exp(neg(x))))
