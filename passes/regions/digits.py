"""Digits: of how many binary digits, and of which sizes, the numbers are that an expression can give without a rounding."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

from ...ir.codes import bounds, tabulate
from ...ir.expression import Apply, Constant
from ...ir.ops.rounding import FLOATS, holds
from ...ir.region import Scalar
from ...ir.types import DType, f8e4m3, f8e8m0, f32

LEAST = -126
"""The exponent of float32's least normal number."""


@dataclass(frozen=True)
class Digits:
    """Multiples of 2^`low` up to `most` in magnitude, with at most `count` digits from the first one that is set to the last."""

    count: int
    low: int
    most: float

    def is_within(self, other: Digits | None) -> bool:
        """Whether the other ones are all of these, and more."""
        return other is not None and self.count <= other.count and self.low >= other.low and self.most <= other.most

    def normal(self) -> Digits:
        """Those of them that are normal numbers of float32."""
        return replace(self, low=max(self.low, LEAST - (self.count - 1)))

    def cut(self, held: Digits) -> Digits:
        """What is left of these in a float: larger ones are infinite there; all that it holds where smaller or longer ones are rounded."""
        if self.count > held.count or self.low < held.low:
            return held
        most = math.ldexp(2.0 - 2.0 ** (1 - self.count), math.frexp(held.most)[1] - 1)
        return replace(self, most=min(self.most, most, held.most))

    def times(self, other: Digits) -> Digits:
        """Those of products; a power of two adds none."""
        is_power = min(self.count, other.count) == 1
        return Digits(self.count + other.count - is_power, self.low + other.low, self.most * other.most)


def held_by(dtype: DType) -> Digits | None:
    """The finite numbers of a float; None where they are not known."""
    if dtype == f8e8m0:
        return Digits(1, -127, 2.0**127)
    if dtype.name not in FLOATS:
        return None
    count, exponents = FLOATS[dtype.name]
    bias = (1 << exponents - 1) - 1
    # The largest numbers of e4m3 are beside NaN, where others have infinity.
    most = 448.0 if dtype == f8e4m3 else (2.0 - 2.0 ** (1 - count)) * 2.0**bias
    return Digits(count, 2 - bias - count, most)


def digits_of(value: Scalar) -> Digits | None:
    """What an expression gives where it is finite; of what may be rounded all that its dtype holds; None where that is not known."""
    if value.dtype.is_integer:
        found = bounds(value)
        most = None if found is None else max(map(abs, found))
        return None if most is None else Digits(max(1, (most - 1).bit_length()), 0, float(most))
    if isinstance(value, Constant) and isinstance(value.value, float):
        return _of_number(value.value)
    tabulated = tabulate(value, 8) if isinstance(value, Apply) and value.primitive != "cast" else None
    if tabulated is not None:
        return _joined(_of_number(float(number)) for number in tabulated.numbers)
    exact, held = _computed(value) if isinstance(value, Apply) else None, held_by(value.dtype)
    return exact.cut(held) if exact is not None and held is not None else held


def _joined(parts: Iterable[Digits | None]) -> Digits | None:
    """What is one of several."""
    found = [each for each in parts if each is not None]
    return Digits(max(each.count for each in found), min(each.low for each in found), max(each.most for each in found)) if found else None


def _computed(value: Apply[Scalar]) -> Digits | None:
    """What a conversion, a product or a choice would give without a rounding."""
    if value.primitive == "where":
        chosen = [digits_of(arg) for arg in value.args[1:]]
        return _joined(chosen) if None not in chosen else None
    if value.primitive not in ("cast", "mul") or (value.primitive == "cast" and not _widens(value)):
        return None
    found = [digits_of(arg) for arg in value.args]
    return reduce(Digits.times, [each for each in found if each is not None]) if None not in found else None


def _widens(value: Apply[Scalar]) -> bool:
    inner = value.args[0].dtype
    return inner.is_integer or holds(value.dtype, inner) or (inner == f8e8m0 and holds(value.dtype, f32))


def _of_number(number: float) -> Digits | None:
    if not math.isfinite(number):
        return None
    whole, parts = number.as_integer_ratio()
    zeros = max(0, (whole & -whole).bit_length() - 1)
    return Digits(max(1, (abs(whole) >> zeros).bit_length()), 1 - parts.bit_length() + zeros, abs(number))
