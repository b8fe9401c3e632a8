"""Small floats: codes of 4 to 6 bits that are floats of a sign, an exponent and a mantissa become numbers by moving their bits."""

from __future__ import annotations

import math

import numpy as np

from ...ir.codes import Tabulated, mask_of, tabulate
from ...ir.expression import Apply, Constant
from ...ir.region import Region, Scalar
from ...ir.types import f32, i32
from .contraction import with_float_sums

BITS = range(4, 7)
"""Of so many bits a code's parts do not meet where they are moved to."""
SIGN, MANTISSA, BIAS = 31, 23, 127
"""Where the bits of f32 are, and what its exponents are counted from."""


def small_floats(region: Region) -> Region:
    """The region whose sums of products make numbers of codes without comparisons; 0 and its negative are the same there.

    Before: sum k: mul(x[i, k], mul(cast(where(eq(bit_and(code, 8), 0), .., neg(..)), f32), scale[..]))      code is e2m1
    After:  sum k: mul(x[i, k], mul(mul(bitcast(bit_and(bit_or(shift_left(code, 22), shift_left(code, 28)), mask)), 2^127), scale[..]))
    """
    return with_float_sums(region, _of_bits)


def _of_bits(value: Scalar) -> Scalar | None:
    """A number of a code by its bits, if it is made otherwise and the code is one of a small float."""
    if not (isinstance(value, Apply) and value.dtype == f32 and value.primitive == "cast" and value.args[0].dtype.is_integer):
        return None
    found = tabulate(value, BITS[-1])
    if found is None or found.bits not in BITS:
        return None
    for mantissa in range(1, found.bits - 1):
        power = _power(found, mantissa)
        if power is not None:
            return _times(_moved(found, mantissa), power)
    return None


def _times(value: Scalar, power: int) -> Scalar:
    """A number by a power of two, which f32 may not hold."""
    while power > 0:
        part = min(power, BIAS)
        value, power = Apply("mul", (value, Constant(2.0**part, f32)), f32), power - part
    return value


def _power(found: Tabulated, mantissa: int) -> int | None:
    """By which power of two the numbers of all codes are f32's of the same bits, if they are."""
    least = float(found.numbers[1])
    if least <= 0 or math.frexp(least)[0] != 0.5:
        return None
    power = math.frexp(least)[1] - 1 + BIAS - 1 + mantissa
    codes = np.arange(1 << found.bits, dtype=np.int64)
    sizes = codes & (1 << found.bits - 1) - 1
    signs = codes >> found.bits - 1
    exponents, parts = sizes >> mantissa, sizes & (1 << mantissa) - 1
    normal = np.ldexp(1.0 + parts / 2.0**mantissa, exponents - BIAS)
    numbers = np.where(exponents == 0, np.ldexp(parts / 2.0**mantissa, 1 - BIAS), normal) * (1 - 2 * signs)
    is_same = np.array_equal(np.ldexp(numbers, power), found.numbers.astype(np.float64))
    # The parts lie apart once the sign is moved over the mantissa's place.
    lies_apart = SIGN - (found.bits - 1) > MANTISSA - mantissa + found.bits - 2
    return power if is_same and lies_apart else None


def _moved(found: Tabulated, mantissa: int) -> Scalar:
    code: Scalar = found.code
    # The mask that follows takes away more than the code's own.
    while isinstance(code, Apply) and mask_of(code) == (1 << found.bits) - 1:
        code = next(arg for arg in code.args if not isinstance(arg, Constant))
    wide: Scalar = Apply("cast", (code,), i32)
    size, sign = MANTISSA - mantissa, SIGN - (found.bits - 1)
    mask = ((1 << found.bits - 1) - 1 << size) - (1 << SIGN)
    moved: tuple[Scalar, ...] = tuple(Apply("shift_left", (wide, Constant(by, i32)), i32) for by in (size, sign))
    both: Scalar = Apply("bit_or", moved, i32)
    return Apply("bitcast", (Apply("bit_and", (both, Constant(mask, i32)), i32),), f32)
