"""The strategy `taps`: folds over a window of a few known places: a lane for each result, one place after the other, written out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from ....ir.region import Let, Load, Reduce, Scan, Store, walk
from ....ir.region.stores import Fold, needed, together
from ....ir.target import GpuTarget
from ....ir.tile.program import TileProgram
from ...regions.contraction import stride_of
from ..accesses import stride_class
from ..schedule import Match, Order, Problem, Refusal, Schedule
from .elementwise import in_store_order, tile_axes
from .shape import LAUNCH_SECONDS, REACHED, beside, traffic
from .sweep import Sweep, Tiling

MOST = 64
"""Places of a window at most: each is written out."""
NEAR = 4
"""Elements between what neighbours in the result read, at most: a window's stride."""
INSTRUCTIONS = 8
"""Instructions of a place for each result: where it lies, whether it lies inside, its load, what it adds."""

Kernels = tuple[tuple[Sequence[Fold], tuple[Store, ...]], ...]
"""What each launch computes, and its stores."""


@dataclass(frozen=True)
class Taps:
    """Tiles of `elements` results in `warps` warps; neighbours along the result's innermost axis are read as neighbours."""

    name: str = "taps"

    def match(self, problem: Problem, target: GpuTarget) -> Match[Kernels] | Refusal:
        kernels = tuple((needed(problem.region, *stores), stores) for stores in together(problem.region))
        for statements, stores in kernels:
            why = _why_no_window(problem, statements, stores)
            if why is not None:
                return Refusal(why)
        return Match(self, problem, kernels)

    def space(self, match: Match[Kernels], target: GpuTarget) -> Iterator[Schedule]:
        """A few results a thread, more, one."""
        for elements, warps in ((512, 4), (1024, 4), (256, 4), (128, 4), (2048, 8)):
            yield Schedule(self.name, (("elements", elements), ("warps", warps)))

    def cost(self, match: Match[Kernels], schedule: Schedule, target: GpuTarget) -> float:
        """All bytes once, beside the instructions of every place, those of lanes outside too."""
        problem, region, seconds = match.problem, match.problem.region, 0.0
        for statements, stores in match.found:
            lanes = 1.0
            for axis, step in _tiling(problem, statements, stores, schedule).grid.items():
                lanes *= -(-problem.typical(region.axis(axis).extent) // (step or 1)) * (step or 1)
            folds = [s for s in statements if isinstance(s, Reduce)]
            places = sum(prod(problem.typical(region.axis(axis).extent) for axis in fold.over) for fold in folds)
            computing = lanes * places * INSTRUCTIONS / (target.rates["f32"] / 2)
            seconds += beside(traffic(problem) / len(match.found) / (target.memory_rate * REACHED), computing) + LAUNCH_SECONDS
        return seconds

    def order(self, match: Match[Kernels], schedule: Schedule, target: GpuTarget) -> Order:
        """Each result is added up by a lane of its own, place after place."""
        return (self.name,)

    def tile(self, match: Match[Kernels], schedule: Schedule, target: GpuTarget) -> TileProgram:
        """One launch for stores that go together."""
        problem, launches = match.problem, []
        for n, (statements, stores) in enumerate(match.found):
            suffix = str(n) if len(match.found) > 1 else ""
            sweep = Sweep(problem, statements, stores, _tiling(problem, statements, stores, schedule))
            launches.append(sweep.launch(f"{problem.region.name}.taps{suffix}"))
        return TileProgram(problem.region.name, tuple(launches), symbols=tuple(problem.symbols.ranges))


def _why_no_window(problem: Problem, statements: Sequence[Fold], stores: Sequence[Store]) -> str | None:
    """Why a kernel does not fold a few known places for each result; None where it does."""
    region = problem.region
    folds = [s for s in statements if not isinstance(s, Let)]
    over = {axis for fold in folds if isinstance(fold, Reduce) for axis in fold.over}
    extents = [region.axis(axis).extent for axis in over]
    if not folds or any(isinstance(fold, Scan) or fold.kind.startswith("arg") for fold in folds):
        return "it does not fold a window to one number"
    if any(store.gathers or store.combine or over & set(store.axes) for store in stores):
        return "a result varies over what is folded, or is scattered"
    if any(over & set(fold.axes) for fold in folds):
        return "a fold varies over what another one folds"
    if not all(isinstance(extent, int) and extent > 0 for extent in extents) or prod(e for e in extents if isinstance(e, int)) > MOST:
        return f"more than {MOST} places are folded, or an unknown number"
    store = stores[-1]
    order = in_store_order(region, store)
    if not order or any(set(fold.axes) != set(store.axes) for fold in folds):
        return "the folds and the result vary over other axes"
    strides = [stride_of(part, region, order[-1]) for fold in folds for part in walk(fold.value) if isinstance(part, Load)]
    are_near = any(isinstance(stride, int) and 0 < stride <= NEAR for stride in strides)
    if stride_class(region, store.output, store.subscripts, order[-1]) != 1 or not are_near:
        return "neighbours in the result are no neighbours in what is read"
    return None


def _tiling(problem: Problem, statements: Sequence[Fold], stores: Sequence[Store], schedule: Schedule) -> Tiling:
    tiling = tile_axes(problem, stores[-1], schedule["elements"], False, schedule["warps"])
    loops = {axis: 1 for statement in statements if isinstance(statement, Reduce) for axis in statement.over}
    return replace(tiling, loops=loops, written_out=True)
