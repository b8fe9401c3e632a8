"""Arithmetic, rounding, comparison, logic and bits: exact on every target."""

from __future__ import annotations

from typing import Any

import numpy as np

from .primitive import Array, primitive


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


@primitive("u8")
def e2m1x2(x: Array, y: Array) -> Array:
    """A byte of two numbers in e2m1, x in its low half: the nearest ones, halves to the even code; beyond 6, and for NaN, it is 6."""
    return _code(x) | _code(y) << 4


def _code(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """How many of the middles between two numbers lie below; at one, the even code."""
    size, code = np.where(np.isnan(x), 6.0, np.abs(x)), np.zeros(x.shape, np.uint8)
    for n, middle in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)):
        code += size >= middle if n % 2 else size > middle
    return np.where(np.signbit(x) & ~np.isnan(x), code | 8, code)


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
