"""Scheduling: for each fused group a strategy and its parameters, and the tile program that they give.

Equal problems (repeated layers) are scheduled once and share their kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from ..ir import dims
from ..ir.dims import Dim
from ..ir.errors import InternalError, is_own, reason
from ..ir.layout import Layout
from ..ir.region import Region
from ..ir.tile.program import TileProgram
from ..ir.workload import Point, Workload, default_workload, merged, nearest_size
from .compose import Group
from .own_symbols import canonical
from .tile.schedule import Problem, Schedule, Strategy, seconds

Candidate = tuple[Strategy, Schedule]
Choose = Callable[[Problem, Iterator[Sequence[Candidate]]], Candidate]
"""Picks one candidate of a problem; they come strategy by strategy, made as they are asked for."""


@dataclass(frozen=True)
class Scheduled:
    """A group with its problem, the chosen schedule, why other strategies do not apply, and the tile program."""

    group: Group
    problem: Problem
    schedule: Schedule
    refusals: tuple[tuple[str, str], ...]
    program: TileProgram
    cost: float
    binding: Mapping[str, Dim]

    def bound(self, dim: Dim) -> Dim:
        """A size of the problem in the symbols of the graph."""
        return dims.substitute(dim, dict(self.binding))


def problem_of(
    group: Group, symbols: dims.Facts, layouts: Callable[[Region, frozenset[str]], dict[str, Layout]], workload: Workload
) -> tuple[Problem, Mapping[str, Dim]]:
    """The problem of a group: its region in canonical form, with the layouts of its constants, at the workload's sizes of
    its own symbols; and what these are here.
    """
    constants = frozenset(o.name for o, value in zip(group.region.inputs, group.inputs, strict=True) if value.constant is not None)
    own = canonical(replace(group.region, name="region"), symbols)
    points = merged(
        Point(tuple((name, nearest_size(size, name, own.symbols)) for name, size in point.sizes), point.weight)
        for point in workload.bound(own.binding)
    )
    return Problem(own.region, own.symbols, layouts(own.region, constants), constants, points), own.binding


def cheapest(target: Any) -> Choose:
    """A choice by predicted cost among the schedules of the first strategy that applies; ties go to the earlier one."""

    def choose(problem: Problem, families: Iterator[Sequence[Candidate]]) -> Candidate:
        return min(next(families), key=lambda pair: seconds(pair[0], problem, pair[1], target))

    return choose


_Known = tuple[Schedule, tuple[tuple[str, str], ...], TileProgram, float]


@dataclass
class Scheduler:
    """Schedules groups for one target level; remembers problems it has met.

    A strategy or a schedule that fails is passed over, with the reason among the refusals, and the next one is tried.
    """

    strategies: Sequence[Strategy]
    target: Any
    choose: Choose
    layouts: Callable[[Region, frozenset[str]], dict[str, Layout]]
    workload: Workload | None = None
    known: dict[Any, _Known] = field(default_factory=dict)
    refused: dict[Any, dict[Schedule, str]] = field(default_factory=dict)
    failed: dict[Any, str] = field(default_factory=dict)

    def refuse(self, scheduled: Scheduled, why: str) -> None:
        """Never choose this schedule for this problem again: its kernel turned out bad (it spills, it does not fit)."""
        key = _key(scheduled.problem)
        self.refused.setdefault(key, {})[scheduled.schedule] = why
        self.known.pop(key, None)

    def schedule(self, group: Group, symbols: dims.Facts) -> Scheduled:
        """The group's schedule and tile program."""
        problem, binding = problem_of(group, symbols, self.layouts, self.workload or default_workload(symbols))
        key = _key(problem)
        if key in self.failed:
            raise InternalError(self.failed[key])
        while key not in self.known:
            made = self._decide(problem, key)
            if made is not None:
                self.known[key] = made
        schedule, refusals, program, cost = self.known[key]
        return Scheduled(group, problem, schedule, refusals, program, cost, binding)

    def _decide(self, problem: Problem, key: Any) -> _Known | None:
        """What is chosen; None where that failed, and is refused from now on."""
        refusals: list[tuple[str, str]] = []
        offered: list[Candidate] = []
        families = self._families(problem, self.refused.get(key, {}), refusals, offered)
        first = next(families, None)
        if first is None:
            why = "; ".join(f"{name}: {refusal}" for name, refusal in refusals)
            self.failed[key] = f"no strategy takes region {problem.region.name}: {why}"
            raise InternalError(self.failed[key])
        try:
            strategy, schedule = self.choose(problem, chain([first], families))
        except Exception as failure:
            if not is_own(failure) or not self._refuse_costs(problem, key, offered):
                raise
            return None
        try:
            program, cost = strategy.tile(problem, schedule, self.target), seconds(strategy, problem, schedule, self.target)
        except Exception as failure:
            if not is_own(failure):
                raise
            self.refused.setdefault(key, {})[schedule] = reason(failure)
            return None
        passed = ((str(schedule), why) for schedule, why in self.refused.get(key, {}).items())
        return schedule, (*refusals, *passed), program, cost

    def _refuse_costs(self, problem: Problem, key: Any, candidates: Sequence[Candidate]) -> bool:
        """Refuse the candidates whose cost cannot be told; whether there are any."""
        found: dict[Schedule, str] = {}
        for strategy, schedule in candidates:
            try:
                seconds(strategy, problem, schedule, self.target)
            except Exception as failure:
                if not is_own(failure):
                    raise
                found[schedule] = reason(failure)
        self.refused.setdefault(key, {}).update(found)
        return bool(found)

    def _families(
        self, problem: Problem, refused: Mapping[Schedule, str], refusals: list[tuple[str, str]], offered: list[Candidate]
    ) -> Iterator[Sequence[Candidate]]:
        """The candidates of each strategy that applies, noted in `offered`; why other strategies do not in `refusals`."""
        for strategy in self.strategies:
            try:
                why_not = strategy.applies(problem, self.target)
                space = list(strategy.space(problem, self.target)) if why_not is None else []
            except Exception as failure:
                if not is_own(failure):
                    raise
                why_not, space = reason(failure), []
            candidates = [(strategy, schedule) for schedule in space if schedule not in refused]
            if candidates:
                offered += candidates
                yield candidates
                continue
            bad = sorted({refused[schedule] for schedule in space})
            refusals.append((strategy.name, why_not or f"every schedule is bad: {'; '.join(bad)}"))


def _key(problem: Problem) -> Any:
    """What tells problems apart."""
    symbols = tuple(problem.symbols.ranges.items()), tuple(problem.symbols.divisors.items()), problem.points
    return problem.region, symbols, tuple(sorted((name, str(layout)) for name, layout in problem.layouts.items())), problem.constants
