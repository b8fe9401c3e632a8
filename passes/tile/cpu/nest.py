"""The strategy `nest`: a region as loops over its axes, one of them in vector lanes.

One launch for the stores of the region that go together. The axes that all of their statements share become the grid; the other
statements run inside a grid point, in order: reductions sweep their axes with vector accumulators, named values that
vary inside are kept in a cache tile where their size is bounded and small, and computed again where it is not. A fold
that varies inside is always kept, and so must be bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ....ir.region import Reduce, Scan, Store
from ....ir.region.stores import needed, together
from ....ir.target import CpuLevel
from ....ir.tile.program import TileProgram
from ...regions.split_groups import split_rows
from ..lower import upper_bound
from ..schedule import Match, Order, Problem, Refusal, Schedule, folds_floats
from .nest_axes import choose_axes, grid_axes
from .nest_launch import NestLaunch
from .price import Priced


@dataclass(frozen=True)
class Kernels:
    """The problem as it is walked, with an axis for rows that fill vectors, and the stores of each launch."""

    problem: Problem
    stores: tuple[tuple[Store, ...], ...]


@dataclass(frozen=True)
class Nest(Priced):
    """Loops over the region's axes: `lanes` is the number of elements in a vector step, `block` those of a grid tile."""

    name: str = "nest"

    def match(self, problem: Problem, target: CpuLevel) -> Match[Kernels] | Refusal:
        """It takes every region whose folds vary over what is bounded, or over the grid alone."""
        walked = replace(problem, region=split_rows(problem.region, problem.symbols, target.lanes))
        kernels = Kernels(walked, together(walked.region))
        reasons = (_why_not(walked, stores) for stores in kernels.stores)
        why = next((reason for reason in reasons if reason is not None), None)
        return Match(self, problem, kernels) if why is None else Refusal(why)

    def space(self, match: Match[Kernels], target: CpuLevel) -> Iterator[Schedule]:
        """One to four vectors at a time."""
        for vectors in (4, 2, 1):
            yield Schedule(self.name, (("vectors", vectors), ("block", 1024)))

    def order(self, match: Match[Kernels], schedule: Schedule, target: CpuLevel) -> Order:
        """A fold goes along its axes one by one, or over the lanes in steps and then across them."""
        if not folds_floats(match.problem.region):
            return ()
        walked = match.found.problem
        return self.name, *(_launch(walked, schedule, target, stores).order() for stores in match.found.stores)

    def tile(self, match: Match[Kernels], schedule: Schedule, target: CpuLevel) -> TileProgram:
        """One launch for stores that go together."""
        problem, kernels = match.found.problem, match.found.stores
        launches = tuple(
            _launch(problem, schedule, target, stores).launch(f"{problem.region.name}.nest{n if len(kernels) > 1 else ''}")
            for n, stores in enumerate(kernels)
        )
        return TileProgram(problem.region.name, launches, symbols=tuple(problem.symbols.ranges))


def _launch(problem: Problem, schedule: Schedule, target: CpuLevel, stores: Sequence[Store]) -> NestLaunch:
    return NestLaunch(problem, stores, choose_axes(problem, stores, target.lanes, schedule["vectors"], schedule["block"]))


def _why_not(problem: Problem, stores: Sequence[Store]) -> str | None:
    """Why the launch of stores cannot be made; None if it can."""
    region, statements = problem.region, needed(problem.region, *stores)
    folds = [statement for statement in statements if isinstance(statement, Reduce)]
    scans = [statement for statement in statements if isinstance(statement, Scan)]
    if len(scans) > 1 or (scans and folds):
        return f"%{scans[0].name} is a running fold, which goes with no other fold"
    grid = grid_axes(region, stores, statements)
    for fold in folds:
        free = [name for name in fold.axes if name not in grid and upper_bound(region.axis(name).extent, problem.symbols) is None]
        if free:
            return f"%{fold.name} varies over {', '.join(free)}, which has no bound"
    return None
