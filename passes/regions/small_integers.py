"""Small integers: codes that stand for integers become numbers of f32 by their bits."""

from __future__ import annotations

import numpy as np

from ...ir.codes import tabulate
from ...ir.expression import Apply, Constant
from ...ir.region import Load, Region, Scalar
from ...ir.types import f32, i32
from .contraction import with_float_sums

WHOLE, BITS = 2**23, 0x4B000000
"""From here on f32 holds the whole numbers, in its lowest bits what they are more; and the bits of this one."""
CODE = 8
"""Bits of a code at most."""


def small_integers(region: Region) -> Region:
    """The region whose sums of products make numbers of codes that are integers without an instruction that converts: it is slower than
    arithmetic. What is only loaded is converted.

    Before: sum k: mul(x[i, k], mul(cast(sub(cast(bit_and(code, 15)), 8)), scale[..]))
    After:  sum k: mul(x[i, k], mul(sub(bitcast(bit_or(cast(bit_and(code, 15)), bits of 2^23)), 2^23 + 8), scale[..]))
    """
    return with_float_sums(region, _of_bits)


def _of_bits(value: Scalar) -> Scalar | None:
    """A number of a code by its bits, if it is made otherwise, and the code and a constant are added up to it."""
    if not (isinstance(value, Apply) and value.primitive == "cast" and value.dtype == f32 and value.args[0].dtype.is_integer):
        return None
    found = tabulate(value, CODE)
    if found is None or isinstance(found.code, Load):
        return None
    first = float(found.numbers[0])
    if not np.array_equal(found.numbers, np.arange(len(found.numbers)) + first):
        return None
    code: Scalar = Apply("cast", (found.code,), i32)
    bits: Scalar = Apply("bit_or", (code, Constant(BITS, i32)), i32)
    number: Scalar = Apply("bitcast", (bits,), f32)
    return Apply("sub", (number, Constant(WHOLE - first, f32)), f32)
