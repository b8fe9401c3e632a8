"""Lowering: from the choices of fusion to a plan; every group becomes kernels, or a smaller one does.

What fails on the way from a group to the text of its kernels is never the user's fault: the next schedule is tried, then
the next strategy, then a group that keeps more values in memory. Only a single op that no strategy can compute is an
error. What was kept in memory, and why, goes with the plan into the reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from ...ir.errors import InternalError, VerifyError, is_own, reason
from ...ir.graph import Graph, Module, Op, Value
from ...ir.layout import Layout
from ...ir.plan import Plan
from ...ir.plan.check import check
from ...ir.region import Region
from ...ir.tile.program import Launch
from ...ir.workload import Workload
from ..fusion.decision import Decision, decisions
from ..fusion.partition import Fusion, HostOp
from .build_plan import Kept, Kernels, Lowered, build_plan
from .refusals import refusals_first
from .schedule import Scheduled, Scheduler, place_of
from .shared_layouts import share_layouts
from .telling import Telling

P = TypeVar("P")
Fusions: TypeAlias = tuple[Fusion, ...]


def fuse(
    module: Module,
    orders: Callable[[Graph], Mapping[Value, tuple[int, ...]]] = lambda graph: {},
    workload: Workload | None = None,
    narrow: bool = False,
    short: frozenset[str] = frozenset(),
    shared: Callable[[Region], bool] = lambda region: False,
) -> Fusions:
    """The choices for each of a module's functions, of one level or GPU, for the workload; the others as in `Fusion`."""
    return tuple(Fusion(module, graph, orders(graph), workload, narrow, short, shared) for graph in module.functions.values())


def lower(fusions: Fusions, scheduler: Scheduler, target: str) -> Lowered:
    """The groups of all functions as tile programs, and the functions' plans."""
    kernels, plans, decided = Kernels(), dict[str, Plan](), list[Decision]()
    every = [fusion.units(partial(scheduler.schedule, symbols=fusion.module.facts)) for fusion in fusions]

    def again(unit: Scheduled, given: Mapping[Value, Layout]) -> Scheduled:
        return scheduler.schedule(unit.group, fusions[0].module.facts, given)

    told = Telling(target)
    for fusion, planned in zip(fusions, share_layouts(every, again), strict=True):
        units = told.units(fusion.graph, refusals_first(fusion.graph, planned, fusion.module.facts) if fusion.graph.ties else planned)
        plans[fusion.graph.name] = plan = build_plan(fusion.module, fusion.graph, units, target, kernels, scheduler.workload)
        try:
            # In every build: it takes a hundredth of what the plan took to make, and a wrong plan computes wrong numbers.
            check(plan)
        except VerifyError as error:
            raise InternalError(f"plan of {fusion.graph.name} for {target} is wrong: {error.message}") from error
        decided += decisions(fusion.choices, _computing(units, kernels))
    faults = tuple(dict.fromkeys(note for each in (scheduler.faults, *(f.faults for f in fusions)) for note in each.notes))
    lowered = Lowered(plans, kernels.launches, kernels.scheduled, kept(fusions), tuple(decided), faults)
    launched = {variant.kernel for step in lowered.launches for variant in step.variants}
    lowered.kernels = {name: launch for name, launch in kernels.launches.items() if name in launched}
    lowered.scheduled = {name: kernels.scheduled[name] for name in lowered.kernels}
    return lowered


def _computing(units: Sequence[Scheduled | HostOp], kernels: Kernels) -> dict[Op, list[str]]:
    """The names of the kernels that compute each op, in order."""
    found: dict[Op, list[str]] = {}
    for unit in units:
        names = () if isinstance(unit, HostOp) else kernels.of(unit)
        for op in () if isinstance(unit, HostOp) else (*unit.group.ops, *(op for tell in unit.tells for op in tell.ops)):
            found.setdefault(op, []).extend(name for name in names if name not in found[op])
    return found


class BadKernels(Exception):
    """Kernels that their printer refuses, by name, and why; `failures` are what it raised, where that is known."""

    def __init__(self, why: Mapping[str, str], failures: Mapping[str, Exception] = MappingProxyType({})) -> None:
        super().__init__("; ".join(f"kernel {name} cannot be printed: {reason}" for name, reason in why.items()))
        self.why = why
        self.failures = failures


def print_each(lowered: Lowered, print_kernel: Callable[[str, Launch], P]) -> dict[str, P]:
    """The text of every kernel, by name. `BadKernels` names all that fail where another schedule may not."""
    printed, bad = dict[str, P](), dict[str, Exception]()
    for name, launch in lowered.kernels.items():
        try:
            printed[name] = print_kernel(name, launch)
        except Exception as failure:
            if not is_own(failure):
                raise
            bad[name] = failure
    if bad:
        raise BadKernels({name: reason(failure) for name, failure in bad.items()}, bad)
    return printed


def lower_printed(fusions: Fusions, scheduler: Scheduler, target: str, print_all: Callable[[Lowered], P]) -> tuple[Lowered, P]:
    """As `lower`, and the text of the kernels; schedules of which `print_all` gives `BadKernels` are never taken again."""
    while True:
        lowered = lower(fusions, scheduler, target)
        try:
            return lowered, print_all(lowered)
        except BadKernels as bad:
            for name, why in bad.why.items():
                unit = lowered.scheduled[name]
                if name in bad.failures:
                    what = f"strategy {unit.schedule.strategy}, printing {unit.schedule}, for {place_of(unit.group)}"
                    scheduler.faults.add(what, bad.failures[name])
                scheduler.refuse(unit, why)


def kept(fusions: Fusions) -> tuple[Kept, ...]:
    """The values that are in memory although they could have been computed where they are read, in the graphs' order."""
    found = ((value, fusion.kept.get(value)) for fusion in fusions for op in fusion.graph for value in op.results)
    return tuple(Kept(value.name, str(value.source) if value.source else "", why) for value, why in found if why is not None)
