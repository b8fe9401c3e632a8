"""The strategy `nest`: a region as loops over its axes, one of them in vector lanes.

One launch for the stores of the region that go together. The axes that all of their statements share become the grid; the other
statements run inside a grid point, in order: reductions sweep their axes with vector accumulators, named values that
vary inside are kept in a cache tile where their size is bounded and small, and computed again where it is not. A fold
that varies inside is always kept, and so must be bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ....ir import dims
from ....ir.region import Reduce, Scan, Store
from ....ir.region.stores import needed, together
from ....ir.target import CpuLevel
from ....ir.tile.program import TileProgram
from ..lower import upper_bound
from ..schedule import Order, Problem, Schedule, folds_floats
from .nest_axes import choose_axes, grid_axes
from .nest_launch import NestLaunch


@dataclass(frozen=True)
class Nest:
    """Loops over the region's axes: `lanes` is the number of elements in a vector step, `block` those of a grid tile."""

    name: str = "nest"

    def applies(self, problem: Problem, target: CpuLevel) -> str | None:
        """It applies to every region whose folds vary over what is bounded, or over the grid alone."""
        reasons = (_why_not(problem, stores) for stores in together(problem.region))
        return next((reason for reason in reasons if reason is not None), None)

    def space(self, problem: Problem, target: CpuLevel) -> Iterator[Schedule]:
        """One to four vectors at a time."""
        for vectors in (4, 2, 1):
            yield Schedule(self.name, (("vectors", vectors), ("block", 1024)))

    def cost(self, problem: Problem, schedule: Schedule, target: CpuLevel) -> float:
        """Elements touched at one vector per cycle, plus a little for narrow steps."""
        region, total = problem.region, 0.0
        for statement in region.body:
            names = (*statement.axes, *(statement.over if isinstance(statement, Reduce) else ()))
            total += float(problem.typical(dims.product(region.axis(n).extent for n in names)))
        return total * (1.0 + 0.2 / schedule["vectors"]) / target.lanes / 3e9

    def order(self, problem: Problem, schedule: Schedule, target: CpuLevel) -> Order:
        """A fold goes along its axes one by one, or over the lanes in steps and then across them."""
        if not folds_floats(problem.region):
            return ()
        return self.name, *(_launch(problem, schedule, target, stores).order() for stores in together(problem.region))

    def tile(self, problem: Problem, schedule: Schedule, target: CpuLevel) -> TileProgram:
        """One launch for stores that go together."""
        kernels = together(problem.region)
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
