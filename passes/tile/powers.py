"""The exponentials of an online softmax as powers of two: exp(score - highest) with as few instructions for a score as can be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...ir.region import Let, Scalar
from .limits import factored, resolved

V = TypeVar("V")

LOG2_E = math.log2(math.e)
FARTHEST = 2.0**24
"""Scores, as exponents of two, below which f32 still tells neighbours apart; beyond, the highest weighs all or nothing."""


@dataclass(frozen=True)
class Words(Generic[V]):
    """How a formula is said: a primitive of values, a number, a value with a name."""

    apply: Callable[..., V]
    number: Callable[[float], V]
    name: Callable[[str, V], V]


@dataclass(frozen=True)
class Base(Generic[V]):
    """What is taken from the scores of a row before they become weights, and what they are multiplied with before that."""

    value: V
    rate: V | None


@dataclass(frozen=True)
class Powers:
    """The scores of which a maximum is kept, and the `rate` that turns them into exponents of two, None where it is log2(e).

    With a rate a weight is one fused multiply-add and one power. It rounds the rate of temperature, and a row's base, once:
    what all weights of a row have in common cancels. Without, differences are multiplied: they cannot overflow where scores,
    as those with a mask of the lowest number added, come near the end of the type.
    """

    score: Scalar
    rate: float | None

    def base(self, words: Words[V], highest: V) -> Base[V]:
        """The base of rows with this highest score; a row that has seen nothing but -inf stays at zero weights."""
        nothing = words.apply("eq", highest, words.number(float("-inf")))
        if self.rate is None:
            return Base(words.name("base", words.apply("where", nothing, words.number(0.0), highest)), None)
        # Far out the base would be rounded by more than a weight can hold: a power of two as rate rounds nothing.
        near = words.apply("lt", words.apply("abs", highest), words.number(FARTHEST / self.rate))
        exact = 2.0 ** math.floor(math.log2(self.rate))
        rate = words.name("rate", words.apply("where", near, words.number(self.rate), words.number(exact)))
        scaled = words.apply("mul", highest, rate)
        return Base(words.name("base", words.apply("where", nothing, words.number(0.0), scaled)), rate)

    def weight(self, words: Words[V], score: V, base: Base[V]) -> V:
        """exp(score - highest) of many scores."""
        if base.rate is None:
            return self.factor(words, score, base)
        return words.apply("exp2", words.apply("fma", score, base.rate, words.apply("neg", base.value)))

    def factor(self, words: Words[V], earlier: V, base: Base[V]) -> V:
        """exp(earlier - highest) of an earlier highest score, rounded as that one's own base was."""
        if base.rate is None:
            return words.apply("exp2", words.apply("mul", words.apply("sub", earlier, base.value), words.number(LOG2_E)))
        return words.apply("exp2", words.apply("sub", words.apply("mul", earlier, base.rate), base.value))


def powers_of(score: Scalar, lets: Sequence[Let]) -> Powers:
    """The scores without a factor that goes into the rate, where that can make nothing overflow."""
    inner, factor = factored(score, lets)
    rate = factor * LOG2_E
    if factor == 1.0 or not 2.0**-60 <= rate <= 1.0:
        return Powers(resolved(score, lets), None)
    return Powers(inner, rate)
