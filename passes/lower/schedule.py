"""Scheduling: for each fused group a strategy and its parameters, and the tile program that they give.

Equal problems (repeated layers) are scheduled once and share their kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any

from ...ir import dims
from ...ir.dims import Dim
from ...ir.errors import InternalError, is_own, reason
from ...ir.graph import Op, Value
from ...ir.layout import Layout
from ...ir.region import Region
from ...ir.tile.program import TileProgram
from ...ir.workload import Point, Workload, default_sizes, default_workload, merged, nearest_size
from ..faults import Faults
from ..regions.compose import Group
from ..regions.own_symbols import canonical
from ..tile.schedule import Candidate, Match, Order, Problem, Refusal, Schedule, Strategy, seconds
from .choice import least
from .classes import Offer, SizeClass, fits, join, offers

Choose = Callable[[Problem, Iterator[Sequence[Candidate]]], Candidate]
"""Picks one candidate of a problem; they come strategy by strategy, made as they are asked for."""


@dataclass(frozen=True)
class Tell:
    """What a program tells beside its results, by the operand `told`: the value `worst`, which `ops` would have computed."""

    told: str
    worst: Value
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Scheduled:
    """A group with its problem, the chosen schedule, why other strategies do not take it, and the tile program.

    `variants` are other choices for classes of sizes, in the order in which a call asks for them; each says in `when` of
    which sizes it is. `cost` are its predicted seconds at `points`, those of the workload that it serves; `operations` the share of the
    region's multiplications and additions that it needs.
    """

    group: Group
    problem: Problem
    schedule: Schedule
    refusals: tuple[tuple[str, str], ...]
    program: TileProgram
    cost: float
    binding: Mapping[str, Dim]
    points: tuple[Point, ...] = ()
    when: SizeClass | None = None
    variants: tuple[Scheduled, ...] = ()
    operations: Fraction = Fraction(1)
    tells: tuple[Tell, ...] = ()

    def bound(self, dim: Dim) -> Dim:
        """A size of the problem in the symbols of the graph."""
        return dims.substitute(dim, dict(self.binding))


def problem_of(
    group: Group,
    symbols: dims.Facts,
    layouts: Callable[[Region, frozenset[str]], dict[str, Layout]],
    workload: Workload | None = None,
    given: Mapping[Value, Layout] = MappingProxyType({}),
) -> tuple[Problem, Mapping[str, Dim]]:
    """The problem of a group: its region in canonical form, with the layouts of its constants (those of some may be given), at the
    sizes that a workload gives its own symbols; and what these are here. Without a workload the graph's symbols have usual sizes;
    where the problem's own would have the same, problems are equal whatever graph they are of.
    """
    constants = frozenset(o.name for o, value in zip(group.region.inputs, group.inputs, strict=True) if value.constant is not None)
    own = canonical(replace(group.region, name="region"), symbols)
    points = points_of(own.binding, own.symbols, workload or default_workload(symbols))
    if workload is None and [dict(point.sizes) for point in points] == [default_sizes(own.symbols)]:
        points = ()
    named = {o.name: given[value] for o, value in zip(group.region.inputs, group.inputs, strict=True) if value in given}
    return Problem(own.region, own.symbols, layouts(own.region, constants) | named, constants, points), own.binding


def points_of(binding: Mapping[str, Dim], symbols: dims.Facts, workload: Workload) -> tuple[Point, ...]:
    """The points of a workload as sizes of a problem's own symbols."""
    points = workload.bound(binding)
    return merged(Point(tuple((name, nearest_size(size, name, symbols)) for name, size in p.sizes), p.weight) for p in points)


def cheapest(target: Any) -> Choose:
    """A choice by price, without measuring."""

    def choose(problem: Problem, families: Iterator[Sequence[Candidate]]) -> Candidate:
        return least(families, target)

    return choose


@dataclass(frozen=True)
class _Choice:
    """What was chosen for a problem, or for a class of its sizes."""

    match: Match[Any]
    schedule: Schedule
    refusals: tuple[tuple[str, str], ...]
    program: TileProgram
    when: SizeClass | None = None
    variants: tuple[_Choice, ...] = ()

    @property
    def problem(self) -> Problem:
        return self.match.problem


@dataclass
class Scheduler:
    """Schedules groups for one target level; remembers problems it has met.

    A strategy or a schedule that fails is passed over, with the reason among the refusals, and the next one is tried; what is a
    mistake of its own, and no limit that it knows, is one of the `faults`.
    `made` is told of each choice when it is made, so that its kernel can be printed while others are still chosen. `finish` changes
    the programs that strategies make.
    """

    strategies: Sequence[Strategy[Any]]
    target: Any
    choose: Choose
    layouts: Callable[[Region, frozenset[str]], dict[str, Layout]]
    workload: Workload | None = None
    made: Callable[[Scheduled], None] | None = None
    finish: Callable[[TileProgram], TileProgram] | None = None
    known: dict[Any, _Choice] = field(default_factory=dict)
    refused: dict[Any, dict[Schedule, str]] = field(default_factory=dict)
    harms: dict[Any, dict[Schedule, int]] = field(default_factory=dict)
    """Of refused schedules whose kernels work all the same, how bad they are."""
    resigned: set[tuple[Any, Schedule]] = field(default_factory=set)
    """Schedules that are taken although they were refused: a single op has no other."""
    failed: dict[Any, str] = field(default_factory=dict)
    tiled: dict[Any, _Choice] = field(default_factory=dict)
    wholes: dict[Any, set[Any]] = field(default_factory=dict)
    """The problems of which one is a class of sizes, by their keys."""
    faults: Faults = field(default_factory=Faults)
    _at: str = ""
    """What is scheduled, as a fault names it."""

    def refuse(self, scheduled: Scheduled, why: str, harm: int | None = None) -> None:
        """Never choose this schedule for this problem again: its kernel turned out bad (it spills, it does not fit).

        A single op may pose the problem of a group of several. It is asked anew: a group can be made smaller, an op cannot.
        So where all schedules of an op are refused, and some work but are slow (`harm`: bytes spilled), it gets the best of these.
        """
        key = _key(scheduled.problem, scheduled.group)
        self.refused.setdefault(key, {})[scheduled.schedule] = why
        if harm is not None:
            self.harms.setdefault(key, {})[scheduled.schedule] = harm
        for whole in (key, *self.wholes.get(key, ())):
            self.known.pop(whole, None)

    def is_resigned(self, scheduled: Scheduled) -> bool:
        """Whether this schedule was refused, and is taken because nothing else is left."""
        return (_key(scheduled.problem, scheduled.group), scheduled.schedule) in self.resigned

    def _resign(self, key: Any) -> bool:
        """Take the least harmful of an op's refused schedules; False where there is none that works."""
        alone, harms = key[1], self.harms.pop(key, {})
        if not alone or not harms:
            return False
        best = min(harms, key=lambda schedule: harms[schedule])
        self.resigned.add((key, best))
        del self.refused[key][best]
        return True

    def schedule(self, group: Group, symbols: dims.Facts, given: Mapping[Value, Layout] = MappingProxyType({})) -> Scheduled:
        """The group's schedules and tile programs; `given` are layouts of constants that it would read otherwise."""
        problem, binding = problem_of(group, symbols, self.layouts, self.workload, given)
        key, self._at = _key(problem, group), place_of(group)
        if key in self.failed:
            raise InternalError(self.failed[key])
        is_new = key not in self.known
        while key not in self.known:
            made = self._decide(problem, key)
            if made is not None:
                self.known[key] = replace(made, variants=tuple(self._variants(made, key)))
        choice = self.known[key]
        calls = points_of(binding, problem.symbols, self.workload or default_workload(symbols))
        variants = []
        for variant in choice.variants:
            served = tuple(point for point in calls if variant.when is not None and variant.when.holds(dict(point.sizes)))
            calls = tuple(point for point in calls if point not in served)
            variants.append(self._scheduled(variant, group, binding, served))
        scheduled = replace(self._scheduled(choice, group, binding, calls), variants=tuple(variants))
        if is_new and self.made is not None:
            for each in (scheduled, *variants):
                self.made(each)
        return scheduled

    def price(self, problem: Problem) -> float:
        """The predicted seconds of a problem that is asked about alone, by the schedule that takes least."""
        match, schedule = least(self._families(problem, {}, [], []), self.target)
        return seconds(match, schedule, self.target)

    def _scheduled(self, choice: _Choice, group: Group, binding: Mapping[str, Dim], served: tuple[Point, ...]) -> Scheduled:
        at = choice.match.with_points(served or choice.problem.points)
        cost = seconds(at, choice.schedule, self.target)
        points = at.problem.points or (Point(tuple(at.problem.sizes.items())),)
        made = choice.schedule, choice.refusals, choice.program, cost
        return Scheduled(group, choice.problem, *made, binding, points, choice.when, operations=choice.match.operations)

    def _variants(self, usual: _Choice, key: Any) -> Iterator[_Choice]:
        """The choices for classes of sizes that have one of their own."""
        for offer, candidate in self._joined(usual, key):
            part = _part(offer.problem, key)
            if candidate[1] in self.refused.get(part, {}):
                continue
            made = self._tiled(candidate, part)
            if made is not None and self._order(made) == self._order(usual) and fits(made.program, usual.program):
                self.wholes.setdefault(part, set()).add(key)
                yield replace(made, when=offer.size_class)

    def _fault(self, strategy: str, what: str, failure: Exception) -> None:
        self.faults.add(f"strategy {strategy}, {what}, for {self._at}", failure)

    def _order(self, choice: _Choice) -> Order:
        return choice.match.strategy.order(choice.match, choice.schedule, self.target)

    def _joined(self, usual: _Choice, key: Any) -> Iterator[tuple[Offer, Candidate]]:
        """What is chosen for the classes that are offered another schedule; neighbours that choose alike are one class."""

        def refused(problem: Problem) -> Mapping[Schedule, str]:
            return {**self.refused.get(key, {}), **self.refused.get(_part(problem, key), {})}

        try:
            found = offers((usual.match, usual.schedule), self.target, refused)
        except Exception as failure:
            if not is_own(failure):
                raise
            self._fault(usual.match.strategy.name, "classes of sizes", failure)
            return
        every = [(offer, self.choose(offer.problem, iter([offer.candidates]))) for offer in found]
        chosen = [(offer, candidate) for offer, candidate in every if candidate[1] != usual.schedule]
        while chosen:
            (offer, candidate), *chosen = chosen
            while chosen and chosen[0][1][1] == candidate[1]:
                joined = join(offer, chosen[0][0], usual.match, self.target)
                if joined is None:
                    break
                offer, candidate, chosen = joined, (joined.match, candidate[1]), chosen[1:]
                # A choice is known by the problem that it is of.
                self.choose(offer.problem, iter([[candidate]]))
            yield offer, candidate

    def _tiled(self, candidate: Candidate, key: Any) -> _Choice | None:
        """The choice with its program, which is made once; None where none can be made, which is never chosen again."""
        match, schedule = candidate
        made_of = _of(match.problem), schedule
        if made_of not in self.tiled:
            try:
                seconds(match, schedule, self.target)
                # One that was made to tell its price is not made again.
                made = match.program if match.whole is None else partial(match.strategy.tile, match)
                program = made(schedule, self.target)
                program = program if self.finish is None else self.finish(program)
            except Exception as failure:
                if not is_own(failure):
                    raise
                self._fault(match.strategy.name, str(schedule), failure)
                self.refused.setdefault(key, {})[schedule] = reason(failure)
                return None
            self.tiled[made_of] = _Choice(match, schedule, (), program)
        return self.tiled[made_of]

    def _decide(self, problem: Problem, key: Any) -> _Choice | None:
        """What is chosen; None where that failed, and is refused from now on."""
        refusals: list[tuple[str, str]] = []
        offered: list[Candidate] = []
        families = self._families(problem, self.refused.get(key, {}), refusals, offered)
        first = next(families, None)
        if first is None:
            if self._resign(key):
                return None
            why = "; ".join(f"{name}: {refusal}" for name, refusal in refusals)
            self.failed[key] = f"no strategy takes region {problem.region.name}: {why}"
            raise InternalError(self.failed[key])
        try:
            candidate = self.choose(problem, chain([first], families))
        except Exception as failure:
            if not is_own(failure) or not self._refuse_costs(key, offered):
                raise
            return None
        made = self._tiled(candidate, key)
        if made is None:
            return None
        passed = ((str(schedule), why) for schedule, why in self.refused.get(key, {}).items())
        return replace(made, refusals=(*refusals, *passed))

    def _refuse_costs(self, key: Any, candidates: Sequence[Candidate]) -> bool:
        """Refuse the candidates whose cost cannot be told; whether there are any."""
        found: dict[Schedule, str] = {}
        for match, schedule in candidates:
            try:
                seconds(match, schedule, self.target)
            except Exception as failure:
                if not is_own(failure):
                    raise
                self._fault(match.strategy.name, f"the price of {schedule}", failure)
                found[schedule] = reason(failure)
        self.refused.setdefault(key, {}).update(found)
        return bool(found)

    def _families(
        self, problem: Problem, refused: Mapping[Schedule, str], refusals: list[tuple[str, str]], offered: list[Candidate]
    ) -> Iterator[Sequence[Candidate]]:
        """The candidates of each strategy that takes the problem, noted in `offered`; why others do not in `refusals`."""
        for strategy in self.strategies:
            try:
                match = strategy.match(problem, self.target)
                space = [] if isinstance(match, Refusal) else list(match.strategy.space(match, self.target))
            except Exception as failure:
                if not is_own(failure):
                    raise
                self._fault(strategy.name, "what it offers", failure)
                match, space = Refusal(reason(failure)), []
            if isinstance(match, Refusal):
                refusals.append((strategy.name, match.why))
                continue
            candidates = [(match, schedule) for schedule in space if schedule not in refused]
            if candidates:
                offered += candidates
                yield candidates
                continue
            bad = sorted({refused[schedule] for schedule in space})
            refusals.append((strategy.name, f"every schedule is bad: {'; '.join(bad)}"))


def place_of(group: Group) -> str:
    """The region of a group, and where in the model it ends."""
    source = group.outputs[0].source if group.outputs else None
    return f"region {group.region.name}" + (f" at {source}" if source else "")


def _key(problem: Problem, group: Group) -> Any:
    """What tells choices apart: the problem, and whether it is a single op's."""
    return _of(problem), len(group.ops) == 1


def _part(problem: Problem, key: Any) -> Any:
    """The key of a class of the sizes of a problem with this key."""
    return _of(problem), key[1]


def _of(problem: Problem) -> Any:
    """What tells problems apart."""
    symbols = tuple(problem.symbols.ranges.items()), tuple(problem.symbols.divisors.items()), problem.points
    return problem.region, symbols, tuple(sorted((name, str(layout)) for name, layout in problem.layouts.items())), problem.constants
