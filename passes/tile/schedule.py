"""Schedules and strategies: the choice of how to compute a region, and what a strategy must answer."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from ...ir.dims import Dim, Facts
from ...ir.layout import Layout
from ...ir.region import Reduce, Region, Scan, Store
from ...ir.tile.program import TileProgram
from ...ir.workload import Point, default_sizes, heaviest, size_at


@dataclass(frozen=True)
class Schedule:
    """A strategy's name and its parameters, in the order that the strategy declares: `packed{m=96, n=256}`."""

    strategy: str
    parameters: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        inside = ", ".join(f"{name}={value}" for name, value in self.parameters)
        return f"{self.strategy}{{{inside}}}" if inside else self.strategy

    def __getitem__(self, name: str) -> int:
        return dict(self.parameters)[name]


@dataclass(frozen=True)
class Problem:
    """What a strategy is asked to compute: the region, what is known of its symbols, layouts fixed for constants.

    `constants` are the operands whose values are known when building, `points` the sizes of the symbols to reckon with, by
    weight; where nothing is said, typical ones.
    """

    region: Region
    symbols: Facts
    layouts: Mapping[str, Layout]
    constants: frozenset[str] = frozenset()
    points: tuple[Point, ...] = ()
    at: Point | None = None

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The sizes at the point that is looked at, else at the heaviest."""
        point = self.at or (heaviest(self.points) if self.points else None)
        return default_sizes(self.symbols) | (dict(point.sizes) if point is not None else {})

    def typical(self, dim: Dim) -> int:
        """A size to reckon with."""
        return dim if isinstance(dim, int) and dim > 0 else max(1, size_at(dim, self.sizes))

    @property
    def whole(self) -> Problem:
        """The problem as schedules are made for, looked at from no single point."""
        return replace(self, at=None)


Order = tuple[Hashable, ...]
"""What decides in which order the sums of a region are added up, beginning with who decides it."""


def folds_floats(region: Region) -> bool:
    """Whether bits can depend on the order in which a region is computed: rounded sums do, and the sign of the largest zero."""
    statements = (s for s in region.body if isinstance(s, (Reduce, Scan)))
    scatters = (s for s in region.body if isinstance(s, Store) and s.combine)
    return any(s.dtype.is_float and not s.kind.startswith("arg") for s in statements) or any(scatters)


def by_tile(problem: Problem, schedule: Schedule) -> Order:
    """The order where the shape of a tile decides it, which follows from the schedule and from all that is known of the sizes."""
    if not folds_floats(problem.region):
        return ()
    return str(schedule), tuple(problem.symbols.ranges.items()), tuple(sorted(problem.sizes.items()))


F = TypeVar("F")


@dataclass(frozen=True)
class Refusal:
    """Why a strategy cannot compute a problem: a clause."""

    why: str


class Strategy(Protocol[F]):
    """One way to tile regions for a kind of machine; one file each. What it finds in a problem is an F."""

    @property
    def name(self) -> str:
        """The strategy's name in schedules and records."""

    def match(self, problem: Problem, target: Any) -> Match[F] | Refusal:
        """What it finds in a problem, or why it cannot compute it."""

    def space(self, match: Match[F], target: Any) -> Iterator[Schedule]:
        """The schedules worth considering, the most promising first."""

    def cost(self, match: Match[F], schedule: Schedule, target: Any) -> float:
        """Predicted seconds on one core (CPU) or on the whole device (GPU) at the problem's sizes."""

    def order(self, match: Match[F], schedule: Schedule, target: Any) -> Order:
        """What decides in which order sums are added up: programs of equal order give equal bits."""

    def tile(self, match: Match[F], schedule: Schedule, target: Any) -> TileProgram:
        """The tile program."""


@dataclass(frozen=True)
class Match(Generic[F]):
    """A problem that a strategy takes, and what it found there, which does not depend on the points of the problem.

    A tile program is made once for a schedule and asked for its price at many points: `whole` is the match whose programs are
    asked, where that is another one.
    """

    strategy: Strategy[F]
    problem: Problem
    found: F
    whole: Match[F] | None = None
    operations: Fraction = Fraction(1)
    """The share of the region's multiplications and additions that its schedules need."""
    programs: dict[Schedule, TileProgram] = field(default_factory=dict, compare=False, repr=False)
    readings: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """What was read from programs to tell their prices."""

    def at(self, point: Point) -> Match[F]:
        """The same, looked at from one point."""
        return replace(self, problem=replace(self.problem, at=point), whole=self.whole or self)

    def with_points(self, points: tuple[Point, ...]) -> Match[F]:
        """The same at other points."""
        return replace(self, problem=replace(self.problem, points=points), whole=self.whole or self)

    def priced_as(self, other: Match[F]) -> Match[F]:
        """The same; its schedules cost what the programs of another match cost at its points."""
        return replace(self, whole=other.whole or other, programs=other.programs, readings=other.readings)

    def program(self, schedule: Schedule, target: Any) -> TileProgram:
        """The tile program of a schedule, made once."""
        if schedule not in self.programs:
            whole = self.whole or self
            self.programs[schedule] = whole.strategy.tile(whole, schedule, target)
        return self.programs[schedule]


Candidate = tuple[Match[Any], Schedule]


def matches(strategies: Iterable[Strategy[Any]], problem: Problem, target: Any) -> Iterator[Match[Any]]:
    """What those strategies find that take a problem, in their order."""
    found = (strategy.match(problem, target) for strategy in strategies)
    return (match for match in found if isinstance(match, Match))


def seconds(match: Match[Any], schedule: Schedule, target: Any) -> float:
    """Predicted seconds of a call: the mean over the problem's points by their weights."""
    strategy, points = match.strategy, match.problem.points
    if len(points) < 2:
        return strategy.cost(match, schedule, target)
    total = sum(point.weight for point in points)
    return sum(strategy.cost(match.at(point), schedule, target) * point.weight for point in points) / total
