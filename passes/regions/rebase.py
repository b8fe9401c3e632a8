"""Folds against a base that another fold gives: what a part of a row gives against a base of its own, moved to that of the whole row.

    softmax    sum j: exp(x[j] - max x)      of parts: sum over parts: exp(b - max b) * (sum in a part: exp(x[j] - b))
    variance   sum j: (x[j] - mean x)^2      of parts: sum over parts: (sum in a part: (x[j] - b)^2) + n * (b - mean b)^2

where b is a part's highest number, or its mean. The second is Chan, Golub and LeVeque's (1979): differences of means are small where
sums of squares would cancel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...ir.expression import Apply, Constant
from ...ir.region import Let, Load, Reduce, Ref, Region, Scalar, transform, walk
from ...ir.types import boolean
from .narrow_functions import times

POWERS = ("exp", "exp2", "exp2_narrow")
NODES = 256
"""Primitives of a fold's terms, once named values stand in them, at most."""
CLOSE = 1e-6
"""How far what a sum is divided by may be off the number of its terms, relatively."""


@dataclass(frozen=True)
class Rebase:
    """A sum whose terms are `term` with the base where `base` is read; it is scaled by what the bases differ by, or that is added."""

    base: Reduce
    term: Scalar
    difference: Apply[Scalar]
    count: int

    @property
    def is_scaled(self) -> bool:
        """Whether terms are powers: another base makes all of them as many times as large."""
        return self.base.kind == "max"

    @property
    def is_plain(self) -> bool:
        """Whether terms are taken against the base itself, whatever it is."""
        return self.difference.args[1] == Ref(self.base.name, self.base.dtype)

    def of_part(self, length: int | Scalar) -> Scalar:
        """The term in a part of so many elements of the row, where `base` is what the part gives."""
        own: Scalar = Ref(self.base.name, self.base.dtype)
        if self.is_scaled:
            # A part of nothing but -inf has no highest number; its powers are 0 against any other.
            lowest: Scalar = Apply("eq", (own, Constant(-math.inf, own.dtype)), boolean)
            return self._against(Apply("where", (lowest, Constant(0.0, own.dtype), own), own.dtype))
        return self._against(self._as_row(own, length))

    def joined(self, given: Scalar, base: Scalar, length: int | Scalar) -> Scalar:
        """What a part's sum is against the row's base; `given` is the sum and `base` the base as the part has them."""
        if self.is_scaled:
            moved = transform(self.term, lambda part: self._moved(base) if part == self.difference else None)
            scaled = Apply("mul", (given, moved), given.dtype)
            if self.is_plain:
                return scaled
            # A part of nothing but -inf was taken against another number, from which the row's base may be far.
            nothing = Constant(0.0, given.dtype)
            return Apply("where", (Apply("eq", (given, nothing), boolean), nothing, scaled), given.dtype)
        apart = self._moved(self._as_row(base, length))
        square = Apply("mul", (apart, apart), self.base.dtype)
        weighted = times(square, float(length)) if isinstance(length, int) else Apply("mul", (square, length), self.base.dtype)
        return Apply("add", (given, weighted), self.base.dtype)

    def _as_row(self, total: Scalar, length: int | Scalar) -> Scalar:
        """The sum that a row would have whose elements have the mean of a part."""
        if isinstance(length, int):
            return times(total, self.count / length)
        return Apply("mul", (total, Apply("div", (Constant(float(self.count), total.dtype), length), total.dtype)), total.dtype)

    def _against(self, base: Scalar) -> Scalar:
        return transform(self.term, lambda part: base if part == Ref(self.base.name, self.base.dtype) else None)

    def _moved(self, base: Scalar) -> Scalar:
        """A part's base less the row's, as terms take the base."""
        subtrahend = self.difference.args[1]
        own = transform(subtrahend, lambda part: base if part == Ref(self.base.name, self.base.dtype) else None)
        return Apply("sub", (own, subtrahend), self.base.dtype)


def rebase(region: Region, fold: Reduce, count: int) -> Rebase | None:
    """How a fold over so many elements is moved to another base, if it is one of those above."""
    term = _whole(region, fold.value)
    if fold.kind != "sum" or not fold.dtype.is_float or term is None:
        return None
    names = {part.name for part in walk(term) if isinstance(part, Ref)}
    base = next((s for s in region.body if isinstance(s, Reduce) and {s.name} == names), None)
    if base is None or (base.axes, base.over, base.dtype) != (fold.axes, fold.over, fold.dtype):
        return None
    numbers = _whole(region, base.value)
    if numbers is None or any(isinstance(part, Ref) for part in walk(numbers)):
        return None
    difference = _difference(term, base)
    if not (isinstance(difference, Apply) and difference.primitive == "sub" and difference.args[0] == numbers):
        return None
    own = Ref(base.name, base.dtype)
    taken = _is_highest(difference.args[1], own) if base.kind == "max" else base.kind == "sum" and _is_mean(difference.args[1], own, count)
    return Rebase(base, term, difference, count) if taken else None


def _difference(term: Scalar, base: Reduce) -> Scalar | None:
    """What is less the base in a term: of a power, perhaps scaled by a positive number, or of a square."""
    if not isinstance(term, Apply):
        return None
    if base.kind != "max":
        return term.args[0] if term.primitive == "mul" and term.args[0] == term.args[1] else None
    if term.primitive not in POWERS:
        return None
    (power,) = term.args
    if isinstance(power, Apply) and power.primitive == "mul":
        scales = [each for each in power.args if isinstance(each, Constant)]
        rest = [each for each in power.args if not isinstance(each, Constant)]
        is_positive = len(scales) == 1 and isinstance(scales[0].value, float) and scales[0].value > 0
        return rest[0] if is_positive else None
    return power


def _is_highest(value: Scalar, own: Scalar) -> bool:
    """Whether powers are taken against the highest number, or, as that says, against 0."""
    if isinstance(value, Apply) and value.primitive == "where":
        asked, *sides = value.args
        return own in sides and Constant(0.0, own.dtype) in sides and not any(isinstance(part, Load) for part in walk(asked))
    return value == own


def _is_mean(value: Scalar, total: Scalar, count: int) -> bool:
    if not (isinstance(value, Apply) and value.primitive in ("mul", "div") and len(value.args) == 2):
        return False
    left, right = value.args
    if value.primitive == "mul" and left != total:
        left, right = right, left
    if left != total or not isinstance(right, Constant) or not isinstance(right.value, float):
        return False
    return math.isclose(right.value if value.primitive == "div" else 1 / right.value if right.value else 0.0, count, rel_tol=CLOSE)


def _whole(region: Region, value: Scalar) -> Scalar | None:
    """An expression with named values in their places; None where it has too many parts."""
    lets = {statement.name: statement.value for statement in region.body if isinstance(statement, Let)}
    while any(isinstance(part, Ref) and part.name in lets for part in walk(value)):
        value = transform(value, lambda part: lets.get(part.name) if isinstance(part, Ref) else None)
        if len(list(walk(value))) > NODES:
            return None
    return value
