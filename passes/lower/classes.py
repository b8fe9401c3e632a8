"""Size classes: the sizes of a symbol up to 16, 64, 256, 1,024 and beyond, each of which may have a schedule of its own.

A problem is scheduled once for all sizes; that schedule serves every call that no class serves. A class has another one
where it is predicted to save a tenth, and adds up in the same order, so that results do not depend on the class. Classes
are those of one symbol, the one along which they save most: a launch has at most five kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...ir import dims
from ...ir.dims import Dim
from ...ir.plan import Guard
from ...ir.tile.program import TileProgram
from ...ir.workload import Point, merged, nearest_size
from ..tile.schedule import Candidate, Match, Problem, Refusal, Schedule, seconds
from .choice import NEAR, floor

ENDS = (16, 64, 256, 1024)
"""The largest size of each class but the last."""
MIDDLES = (8, 32, 128, 512, 2048)
"""What is reckoned with in each class where the workload has no size of it."""
WORTH, SAVED = 0.9, 1e-7
"""What a kernel of its own may take at most, over what the one for all sizes takes, and the seconds that it must save."""


@dataclass(frozen=True)
class SizeClass:
    """The sizes `low` to `high` (None: all that follow) of one symbol of a problem."""

    symbol: str
    low: int
    high: int | None
    middle: int

    def __str__(self) -> str:
        return f"{self.low} <= {self.symbol}" if self.high is None else f"{self.low} <= {self.symbol} <= {self.high}"

    @property
    def word(self) -> str:
        """The sizes as part of a name."""
        return f"from_{self.low}" if self.high is None else f"from_{self.low}_to_{self.high}"

    def guard(self, size: Dim, facts: dims.Facts) -> Guard:
        """What is still to be asked, to know that the symbol, which is this size in a plan, is of the class."""
        above = () if dims.at_most(self.low, size, facts) is True else (size - self.low,)
        below = () if self.high is None or dims.at_most(size, self.high, facts) is True else (self.high - size,)
        return Guard(positive=(*above, *below))

    def holds(self, sizes: dict[str, int]) -> bool:
        """Whether these sizes are of the class."""
        return self.low <= sizes[self.symbol] and (self.high is None or sizes[self.symbol] <= self.high)

    def of(self, problem: Problem) -> Problem:
        """The problem where only sizes of the class come: at its own points, else in the middle of the class."""
        known, symbols = problem.symbols.ranges[self.symbol], problem.symbols
        high = self.high if known.high is None else known.high if self.high is None else min(self.high, known.high)
        facts = symbols.with_range(self.symbol, max(self.low, known.low or 0), high, symbols.divisors.get(self.symbol, 1))
        points = tuple(point for point in problem.points if self.holds(dict(point.sizes)))
        if not points:
            size = problem.sizes[self.symbol]
            near = size if self.holds(problem.sizes) else nearest_size(self.middle, self.symbol, facts)
            points = (Point(tuple((problem.sizes | {self.symbol: near}).items())),)
        return replace(problem, symbols=facts, points=points)

    def joined(self, later: SizeClass) -> SizeClass:
        """This class and the one that follows it."""
        return replace(self, high=later.high)


def classes_of(problem: Problem, symbol: str) -> list[SizeClass]:
    """The classes of a symbol that hold a size of its range; none where they would be a single one."""
    known, divisor = problem.symbols.ranges[symbol], problem.symbols.divisors.get(symbol, 1)
    least = known.low or 0
    found = []
    for low, high, middle in zip((0, *(end + 1 for end in ENDS)), (*ENDS, None), MIDDLES, strict=True):
        first = -(-max(low, least) // divisor) * divisor
        if (high is None or first <= high) and (known.high is None or first <= known.high):
            found.append(SizeClass(symbol, max(low, least), high, middle))
    return found if len(found) > 1 else []


@dataclass(frozen=True)
class Offer:
    """A class, what the strategy finds in its problem, and the schedules that are worth a kernel there."""

    size_class: SizeClass
    match: Match[Any]
    schedules: tuple[Schedule, ...]
    saved: float

    @property
    def problem(self) -> Problem:
        """What is to be computed in the class."""
        return self.match.problem

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """What may be chosen there."""
        return tuple((self.match, schedule) for schedule in self.schedules)


def offers(chosen: Candidate, target: Any, refused: Any) -> list[Offer]:
    """What other schedules save beside the chosen one, in the classes of the symbol that saves most, the smallest first."""
    best: list[Offer] = []
    for symbol in chosen[0].problem.symbols.ranges:
        found = list(_offers(symbol, chosen, target, refused))
        if sum(offer.saved for offer in found) > sum(offer.saved for offer in best):
            best = found
    return best


def _offers(symbol: str, chosen: Candidate, target: Any, refused: Any) -> Iterator[Offer]:
    whole, usual = chosen
    strategy = whole.strategy
    order = strategy.order(whole, usual, target)
    for size_class in classes_of(whole.problem, symbol):
        narrow = strategy.match(size_class.of(whole.problem), target)
        if isinstance(narrow, Refusal):
            continue
        narrow = narrow.priced_as(whole)
        usually, lowest = seconds(whole.with_points(narrow.problem.points), usual, target), floor(narrow.problem, target)
        limit = min(WORTH * usually, usually - SAVED)
        if limit <= lowest:
            continue
        bad = refused(narrow.problem)
        space = [s for s in strategy.space(narrow, target) if s not in bad and strategy.order(narrow, s, target) == order]
        costs = dict[Schedule, float]()
        for schedule in space:
            costs[schedule] = seconds(narrow, schedule, target)
            if costs[schedule] <= NEAR * lowest:
                break
        space = list(costs)
        worth = [s for s in space if s != usual and costs[s] < limit]
        if worth:
            # Whoever measures may find that the usual one is best after all.
            schedules = (*worth, *(s for s in space if s == usual))
            yield Offer(size_class, narrow, schedules, 1 - min(costs[s] for s in worth) / usually)


def join(first: Offer, second: Offer, whole: Match[Any], target: Any) -> Offer | None:
    """Two classes, one after the other, as one, with the points of both; None where sizes lie between them, or none takes both."""
    if first.size_class.high is None or second.size_class.low != first.size_class.high + 1:
        return None
    size_class = first.size_class.joined(second.size_class)
    points = merged((*first.problem.points, *second.problem.points))
    match = whole.strategy.match(replace(size_class.of(whole.problem), points=points), target)
    return None if isinstance(match, Refusal) else replace(first, size_class=size_class, match=match.priced_as(whole))


def fits(program: TileProgram, usual: TileProgram) -> bool:
    """Whether a program can take the place of another one: as many launches, which touch the same memory."""
    return program.workspaces == usual.workspaces and [_touched(launch) for launch in program.launches] == [
        _touched(launch) for launch in usual.launches
    ]


def _touched(launch: Any) -> tuple[frozenset[tuple[str, str]], tuple[str, ...]]:
    counters = tuple(f"{counter.name}: {dims.product((counter.extent,))}" for counter in launch.counters)
    return frozenset((param.name, param.role) for param in launch.params), counters
