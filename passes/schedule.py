"""Scheduling: for each fused group a strategy and its parameters, and the tile program that they give.

Equal problems (repeated layers) are scheduled once and share their kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from ..ir import dims
from ..ir.errors import InternalError
from ..ir.layout import Layout
from ..ir.region import Region
from ..ir.tile.program import TileProgram
from .compose import Group
from .tile.schedule import Problem, Schedule, Strategy

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


def problem_of(group: Group, symbols: dims.Facts, layouts: Callable[[Region, frozenset[str]], dict[str, Layout]]) -> Problem:
    """The problem of a group: its region under a neutral name, with the layouts of its constants."""
    constants = frozenset(o.name for o, value in zip(group.region.inputs, group.inputs, strict=True) if value.constant is not None)
    region = replace(group.region, name="region")
    return Problem(region, symbols, layouts(region, constants), constants)


def cheapest(target: Any) -> Choose:
    """A choice by predicted cost among the schedules of the first strategy that applies; ties go to the earlier one."""

    def choose(problem: Problem, families: Iterator[Sequence[Candidate]]) -> Candidate:
        return min(next(families), key=lambda pair: pair[0].cost(problem, pair[1], target))

    return choose


@dataclass
class Scheduler:
    """Schedules groups for one target level; remembers problems it has met."""

    strategies: Sequence[Strategy]
    target: Any
    choose: Choose
    layouts: Callable[[Region, frozenset[str]], dict[str, Layout]]
    known: dict[Any, tuple[Schedule, tuple[tuple[str, str], ...], TileProgram, float]] = field(default_factory=dict)
    refused: dict[Any, dict[Schedule, str]] = field(default_factory=dict)

    def refuse(self, scheduled: Scheduled, why: str) -> None:
        """Never choose this schedule for this problem again: its kernel turned out bad (it spills, it does not fit)."""
        key = _key(scheduled.problem)
        self.refused.setdefault(key, {})[scheduled.schedule] = why
        self.known.pop(key, None)

    def schedule(self, group: Group, symbols: dims.Facts) -> Scheduled:
        """The group's schedule and tile program."""
        problem = problem_of(group, symbols, self.layouts)
        key = _key(problem)
        if key not in self.known:
            self.known[key] = self._decide(problem)
        schedule, refusals, program, cost = self.known[key]
        return Scheduled(group, problem, schedule, refusals, program, cost)

    def _decide(self, problem: Problem) -> tuple[Schedule, tuple[tuple[str, str], ...], TileProgram, float]:
        refusals: list[tuple[str, str]] = []
        families = self._families(problem, refusals)
        first = next(families, None)
        if first is None:
            raise InternalError(f"no strategy takes region {problem.region.name}: {'; '.join(f'{n}: {w}' for n, w in refusals)}")
        strategy, schedule = self.choose(problem, chain([first], families))
        program = strategy.tile(problem, schedule, self.target)
        return schedule, tuple(refusals), program, strategy.cost(problem, schedule, self.target)

    def _families(self, problem: Problem, refusals: list[tuple[str, str]]) -> Iterator[Sequence[Candidate]]:
        """The candidates of each strategy that applies; why those asked before do not is put into `refusals`."""
        for strategy in self.strategies:
            why_not = strategy.applies(problem, self.target)
            if why_not is not None:
                refusals.append((strategy.name, why_not))
                continue
            refused = self.refused.get(_key(problem), {})
            candidates = [(strategy, schedule) for schedule in strategy.space(problem, self.target) if schedule not in refused]
            if candidates:
                yield candidates
            else:
                refusals.append((strategy.name, f"every schedule is bad: {'; '.join(sorted(set(refused.values())))}"))


def _key(problem: Problem) -> Any:
    """What tells problems apart."""
    return problem.region, tuple(sorted((name, str(layout)) for name, layout in problem.layouts.items())), problem.constants
