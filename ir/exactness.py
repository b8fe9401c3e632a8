"""Which products of floats are exact: sums of them may be computed in one step that rounds once, with the same bits."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from .codes import Node, bounds, dtype_of, number_of
from .expression import Apply
from .tile.program import Load
from .types import DType, bf16, f8e4m3, f8e5m2, f16, f32

SIGNIFICAND = 24
"""Significant bits of f32."""
LEAST, BEYOND = -149, 128
"""Finite numbers of f32 are whole multiples of 2**LEAST below 2**BEYOND."""


@dataclass(frozen=True)
class Digits:
    """What is known of the finite numbers that a value can be: at most so many significant bits, whole multiples of 2**low, and
    magnitudes below 2**high.
    """

    bits: int
    low: int
    high: int

    @property
    def fit(self) -> bool:
        """Whether f32 holds all of them."""
        return self.bits <= SIGNIFICAND and self.low >= LEAST and self.high <= BEYOND


_STORED: dict[DType, Digits] = {
    f16: Digits(11, -24, 16),
    bf16: Digits(8, -133, 128),
    f8e4m3: Digits(4, -9, 9),
    f8e5m2: Digits(3, -16, 16),
}
_ROUNDED = ("cast", "round", "bitcast")


@dataclass(frozen=True)
class MultiplyAdd:
    """left * right + rest of an exact product; the product, or what is added, is negated where it is taken away."""

    left: Node
    right: Node
    rest: Node
    is_product_negative: bool = False
    is_rest_negative: bool = False


def multiply_add(value: Node) -> MultiplyAdd | None:
    """A sum or difference of floats as one step, if one of its sides is a product that rounds nothing off."""
    if not isinstance(value, Apply) or value.primitive not in ("add", "sub") or dtype_of(value) != f32:
        return None
    first, second = value.args
    is_difference = value.primitive == "sub"
    for product, rest in ((first, second), (second, first)):
        if _is_exact_product(product):
            left, right = product.args
            is_taken = is_difference and product is second
            return MultiplyAdd(left, right, rest, is_taken, is_difference and not is_taken)
    return None


def _is_exact_product(value: Node) -> bool:
    return isinstance(value, Apply) and value.primitive == "mul" and dtype_of(value) == f32 and digits(value) is not None


def digits(value: Node) -> Digits | None:
    """The digits of a value of a tile program that no step rounds; None where one may, or where nothing is known."""
    number = number_of(value)
    if isinstance(number, (int, float)) and not isinstance(number, bool):
        return _of_number(number)
    dtype = dtype_of(value)
    if dtype.is_integer:
        known = bounds(value)
        return None if known is None else _of_integers(*known)
    if isinstance(value, Apply) and dtype == f32:
        found = _computed(value)
        return found if found is not None and found.fit else None
    # A narrow value may be held with more digits, until it is stored or rounded.
    return _STORED.get(dtype) if isinstance(value, Load) or (isinstance(value, Apply) and value.primitive in _ROUNDED) else None


def _computed(value: Node) -> Digits | None:
    if value.primitive not in ("cast", "neg", "mul"):
        return None
    sides = [digits(arg) for arg in value.args]
    if any(side is None for side in sides):
        return None
    first, *others = (side for side in sides if side is not None)
    for other in others:
        first = Digits(first.bits + other.bits, first.low + other.low, first.high + other.high)
    return first


def _of_integers(least: int, greatest: int) -> Digits:
    length = max(abs(least), abs(greatest)).bit_length()
    return Digits(length, 0, length)


def _of_number(number: int | float) -> Digits | None:
    if number != number or number in (float("inf"), float("-inf")):
        return None
    exact = Fraction(number)
    top = abs(exact.numerator)
    zeros = (top & -top).bit_length() - 1 if top else 0
    low = zeros - (exact.denominator.bit_length() - 1)
    bits = (top >> zeros).bit_length()
    return Digits(bits, low, low + bits)
