"""The workload: the sizes, with weights, that schedules are chosen for, reports print, tuning measures and `bench` runs.

`B=1,S=128` is a point of weight 1, `B=8,S=512:0.2` one of weight 0.2. Where nothing is said there is one point: 1 for the
first of several symbols (the batch), 128 for the others, each within its range and a multiple of its divisor, and a size that only
the data decide within what can be found at all. Whether a symbol that is alone is a batch, its model says (`graph.batch`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from . import dims
from .dims import Dim, Facts
from .dims_text import SYMBOL
from .errors import UsageError

TYPICAL = 128
"""What is reckoned with for a symbol of which nothing is said."""
TRIES = 2000
"""Sizes that are tried at most where some have to broadcast."""
NO_MOST: Mapping[str, Dim] = MappingProxyType({})
_SIZE = re.compile(r"[0-9]{1,15}")
_WEIGHT = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?|\.[0-9]{1,9}")


@dataclass(frozen=True)
class Point:
    """Sizes of symbols that calls have, and how often they do beside the other points."""

    sizes: tuple[tuple[str, int], ...]
    weight: float = 1.0

    def __str__(self) -> str:
        sizes = ",".join(f"{name}={size}" for name, size in self.sizes)
        return sizes if self.weight == 1 else f"{sizes}:{_number(self.weight)}"


@dataclass(frozen=True)
class Workload:
    """Points, at least one."""

    points: tuple[Point, ...]

    def __str__(self) -> str:
        return " ".join(map(str, self.points))

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the heaviest point, the first of equals: what stands for all where there can be one only."""
        return dict(heaviest(self.points).sizes)

    def of(self, facts: Facts, most: Mapping[str, Dim] = NO_MOST) -> Workload:
        """The points with sizes for all symbols; UsageError for one that calls of these symbols cannot have.

        `most` says what some symbols are at most, in others (`most_found`): it bounds the sizes of which a point says nothing.
        """
        return Workload(tuple(_completed(point, facts, most) for point in self.points))

    def within(self, facts: Facts) -> Workload:
        """As `of`, for one of several graphs that calls are spread over: what it does not know or take is left out."""
        known = [tuple((name, size) for name, size in point.sizes if name in facts.ranges) for point in self.points]
        kept = [Point(sizes, point.weight) for sizes, point in zip(known, self.points, strict=True) if _why_not(sizes, facts) is None]
        return Workload(tuple(kept)).of(facts) if kept else default_workload(facts)

    def bound(self, binding: Mapping[str, Dim]) -> tuple[Point, ...]:
        """The points as sizes of other symbols, which are expressions over these; equal ones are one, of their summed weight."""
        return merged(
            Point(tuple((name, size_at(dim, dict(point.sizes))) for name, dim in binding.items()), point.weight) for point in self.points
        )


def size_at(dim: Dim, sizes: Mapping[str, int]) -> int:
    """A size where its symbols have these, and typical ones where nothing is said of them."""
    return dims.evaluate(dim, {name: sizes.get(name, TYPICAL) for name in dims.symbols(dim)})


def default_workload(facts: Facts) -> Workload:
    """The one where nothing is said."""
    return Workload((Point(tuple(default_sizes(facts).items())),))


def default_sizes(facts: Facts) -> dict[str, int]:
    """1 for the first of several symbols (the batch), 128 for the others, as far as they may be that."""
    several = len(facts.ranges) > 1
    wanted = {name: nearest_size(1 if several and n == 0 else TYPICAL, name, facts) for n, name in enumerate(facts.ranges)}
    return _agreeing(wanted, frozenset(), facts)


def _agreeing(sizes: Mapping[str, int], said: Collection[str], facts: Facts) -> dict[str, int]:
    """Sizes that broadcast where the program needs that, if some do: of those that nobody has said some are another's, or 1."""
    if facts.clash(sizes) is None:
        return dict(sizes)
    sides = [side for pair in facts.broadcasts for side in pair]
    free = [name for name in sizes if name not in said and any(name in dims.symbols(side) for side in sides)]
    others = dict.fromkeys(size for side in sides if (size := dims.evaluate(side, sizes)) > 0)
    found, _ = _broadcasting({name: size for name, size in sizes.items() if name not in free}, free, (sizes, [*others, 1]), facts, TRIES)
    return {name: found[name] for name in sizes} if found else dict(sizes)


def _broadcasting(
    known: dict[str, int], free: Sequence[str], wanted: tuple[Mapping[str, int], Sequence[int]], facts: Facts, tries: int
) -> tuple[dict[str, int], int]:
    """The sizes that are known with some for those that are free, none where none broadcast, and how many tries are left."""
    if tries == 0 or facts.clash(known) is not None:
        return {}, max(tries - 1, 0)
    if not free:
        return known, tries
    usual, others = wanted
    for size in dict.fromkeys((usual[free[0]], *others)):
        if _why_not_one(free[0], size, facts) is None:
            found, tries = _broadcasting({**known, free[0]: size}, free[1:], wanted, facts, tries)
            if found or not tries:
                return found, tries
    return {}, tries


def nearest_size(wanted: int, name: str, facts: Facts) -> int:
    """A size near the wanted one that is at least 1, in the range of a symbol and a multiple of its divisor, where there is one."""
    known, divisor = facts.ranges.get(name, dims.UNBOUNDED), facts.divisors.get(name, 1)
    low = max(known.low or 1, 1)
    size = max(low, wanted if known.high is None else min(wanted, known.high))
    up = -(-size // divisor) * divisor
    return up if known.high is None or up <= known.high else size // divisor * divisor


def merged(points: Iterable[Point]) -> tuple[Point, ...]:
    """Each point once, with the weights of its equals."""
    found: dict[tuple[tuple[str, int], ...], float] = {}
    for point in points:
        found[point.sizes] = found.get(point.sizes, 0.0) + point.weight
    return tuple(Point(sizes, weight) for sizes, weight in found.items())


def heaviest(points: Sequence[Point]) -> Point:
    """The first of the points that weigh most."""
    return max(points, key=lambda point: point.weight)


def parse_workload(texts: Sequence[str]) -> Workload:
    """Read points like `B=8,S=512:0.2`; UsageError for anything else."""
    if not texts:
        raise UsageError("workload: got no sizes, expected at least one point", hint=_HINT)
    return Workload(merged(_parse_point(text) for text in texts))


_HINT = "like B=8,S=512 or, with a weight, B=8,S=512:0.2"


def _parse_point(text: str) -> Point:
    words, colon, weight = text.partition(":")
    if colon and (not _WEIGHT.fullmatch(weight.strip()) or float(weight) <= 0):
        raise UsageError(f"workload {text!r}: got the weight {weight.strip()!r}, expected a number above 0", hint=_HINT)
    sizes: dict[str, int] = {}
    for word in words.split(","):
        name, size = (part.strip() for part in word.partition("=")[::2])
        if not SYMBOL.fullmatch(name) or not _SIZE.fullmatch(size):
            raise UsageError(f"workload {text!r}: got {word.strip()!r}, expected SYMBOL=SIZE", hint=_HINT)
        if name in sizes:
            raise UsageError(f"workload {text!r}: got {name} twice, expected one size", hint="another point is another workload option")
        sizes[name] = int(size)
    return Point(tuple(sizes.items()), float(weight) if colon else 1.0)


def _completed(point: Point, facts: Facts, most: Mapping[str, Dim]) -> Point:
    if (why := _why_not(point.sizes, facts)) is not None:
        known = ", ".join(f"{name} in {bounds}{_multiple(name, facts)}" for name, bounds in facts.ranges.items())
        raise UsageError(
            f"workload {str(point)!r}: {why}", hint=f"the symbols are {known}" if known else "all sizes of the model are fixed"
        )
    sizes = default_sizes(facts) | dict(point.sizes)
    for name in (name for name in most if name in sizes and name not in dict(point.sizes)):
        sizes[name] = nearest_size(min(sizes[name], size_at(most[name], sizes)), name, facts)
    return replace(point, sizes=tuple(_agreeing(sizes, dict(point.sizes), facts).items()))


def _why_not(sizes: Sequence[tuple[str, int]], facts: Facts) -> str | None:
    """Why calls do not have these sizes."""
    for name, size in sizes:
        if (why := _why_not_one(name, size, facts)) is not None:
            return why
    clash = facts.clash(dict(sizes))
    return None if clash is None else f"got {clash[0]} and {clash[1]} that do not broadcast, expected equal ones or a 1"


def _why_not_one(name: str, size: int, facts: Facts) -> str | None:
    if name not in facts.ranges:
        return f"got {name}, which is no symbol of the model"
    known = facts.ranges[name]
    is_below, is_above = known.low is not None and size < known.low, known.high is not None and size > known.high
    if is_below or is_above or size % facts.divisors.get(name, 1):
        return f"got {name} = {size}, expected {name} in {known}{_multiple(name, facts)}"
    return None


def _multiple(name: str, facts: Facts) -> str:
    divisor = facts.divisors.get(name, 1)
    return f" and a multiple of {divisor}" if divisor > 1 else ""


def _number(value: float) -> str:
    return f"{value:.9f}".rstrip("0").rstrip(".")


__all__ = [
    *("TYPICAL", "Point", "Workload", "default_sizes", "default_workload"),
    *("heaviest", "merged", "nearest_size", "parse_workload", "size_at"),
]
