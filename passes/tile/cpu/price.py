"""The price of a tile program on one core: cycles of its work and of the lines that it moves, computed from it alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....ir.target import CpuLevel
from ..schedule import Match, Schedule
from .traffic import lines_moved
from .work import Counted, count


@dataclass(frozen=True)
class Price:
    """Seconds of computing and of moving lines between the levels of memory, and of both together."""

    computing: float
    moving: float
    seconds: float

    @property
    def bound(self) -> str:
        """What takes longer."""
        return "arithmetic" if self.computing >= self.moving else "memory"


class Priced:
    """What strategies for CPUs have in common: a schedule costs what its tile program does."""

    def cost(self, match: Match[Any], schedule: Schedule, target: CpuLevel) -> float:
        """Predicted seconds on one core."""
        return price(match, schedule, target).seconds


def price(match: Match[Any], schedule: Schedule, target: CpuLevel) -> Price:
    """What a schedule takes at the sizes of a match's problem; reckoned once."""
    sizes = match.problem.sizes
    key = schedule, tuple(sizes.items())
    if key not in match.readings:
        match.readings[key] = _price(match, schedule, target, sizes)
    found: Price = match.readings[key]
    return found


def _price(match: Match[Any], schedule: Schedule, target: CpuLevel, sizes: dict[str, int]) -> Price:
    rates = target.rates
    computing = sum(counted.cycles(sizes) for counted in _counted(match, schedule, target))
    moving = 0.0
    for launch in match.program(schedule, target).launches:
        moved = lines_moved(launch, sizes, target)
        moving += sum(lines * cache.line for lines, cache in zip(moved, rates.caches, strict=True))
    total = max(computing, moving) + rates.overlap * min(computing, moving)
    return Price(computing / rates.clock, moving / rates.clock, total / rates.clock)


def _counted(match: Match[Any], schedule: Schedule, target: CpuLevel) -> tuple[Counted, ...]:
    """The work of each launch, counted once at the sizes that come first."""
    if schedule not in match.readings:
        problem, launches = (match.whole or match).problem, match.program(schedule, target).launches
        match.readings[schedule] = tuple(count(launch, problem.sizes, problem.symbols, target) for launch in launches)
    found: tuple[Counted, ...] = match.readings[schedule]
    return found
