"""Lowering: from the choices of fusion to a plan; every group becomes kernels, or a smaller one does.

What fails on the way from a group to the text of its kernels is never the user's fault: the next schedule is tried, then
the next strategy, then a group that keeps more values in memory. Only a single op that no strategy can compute is an
error. What was kept in memory, and why, goes with the plan into the reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias, TypeVar

from ..ir.errors import InternalError, VerifyError, is_own, reason
from ..ir.graph import Graph, Module, Value
from ..ir.plan import Plan
from ..ir.plan.check import check
from .build_plan import Kept, Kernels, Lowered, build_plan
from .fuse import Fusion
from .schedule import Scheduler

P = TypeVar("P")
Fusions: TypeAlias = tuple[Fusion, ...]


def fuse(module: Module, orders: Callable[[Graph], Mapping[Value, tuple[int, ...]]] = lambda graph: {}) -> Fusions:
    """The choices for each of a module's functions, of one level or GPU; `orders` as in `compose`."""
    return tuple(Fusion(module, graph, orders(graph)) for graph in module.functions.values())


def lower(fusions: Fusions, scheduler: Scheduler, target: str) -> Lowered:
    """The groups of all functions as tile programs, and the functions' plans."""
    kernels, plans = Kernels(), dict[str, Plan]()
    for fusion in fusions:
        units = fusion.units(partial(scheduler.schedule, symbols=fusion.module.facts))
        plans[fusion.graph.name] = plan = build_plan(fusion.module, fusion.graph, units, target, kernels, scheduler.workload)
        try:
            # In every build: it takes a hundredth of what the plan took to make, and a wrong plan computes wrong numbers.
            check(plan)
        except VerifyError as error:
            raise InternalError(f"plan of {fusion.graph.name} for {target} is wrong: {error.message}") from error
    lowered = Lowered(plans, kernels.launches, kernels.scheduled, kept(fusions))
    launched = {variant.kernel for step in lowered.launches for variant in step.variants}
    lowered.kernels = {name: launch for name, launch in kernels.launches.items() if name in launched}
    lowered.scheduled = {name: kernels.scheduled[name] for name in lowered.kernels}
    return lowered


class BadKernel(Exception):
    """A kernel that its printer refuses, and why."""

    def __init__(self, kernel: str, why: str) -> None:
        super().__init__(f"kernel {kernel} cannot be printed: {why}")
        self.kernel = kernel
        self.why = why


@contextmanager
def printing(kernel: str) -> Iterator[None]:
    """Turn what fails inside, where another schedule may not, into a `BadKernel`."""
    try:
        yield
    except Exception as failure:
        if not is_own(failure):
            raise
        raise BadKernel(kernel, reason(failure)) from failure


def lower_printed(fusions: Fusions, scheduler: Scheduler, target: str, print_all: Callable[[Lowered], P]) -> tuple[Lowered, P]:
    """As `lower`, and the text of the kernels; a schedule of which `print_all` gives a `BadKernel` is never taken again."""
    while True:
        lowered = lower(fusions, scheduler, target)
        try:
            return lowered, print_all(lowered)
        except BadKernel as bad:
            scheduler.refuse(lowered.scheduled[bad.kernel], bad.why)


def kept(fusions: Fusions) -> tuple[Kept, ...]:
    """The values that are in memory although they could have been computed where they are read, in the graphs' order."""
    found = ((value, fusion.kept.get(value)) for fusion in fusions for op in fusion.graph for value in op.results)
    return tuple(Kept(value.name, str(value.source) if value.source else "", why) for value, why in found if why is not None)
