"""The strategy `elementwise`: every element of the result on its own; lanes along the contiguous axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ....ir import dims
from ....ir.region import Let, Reduce, Region, Scan, Store, accesses
from ....ir.region.stores import needed, stores_of, together
from ....ir.target import GpuTarget
from ....ir.tile.program import TileProgram
from ..accesses import stride_class
from ..schedule import Match, Order, Problem, Refusal, Schedule
from .shape import LAUNCH_SECONDS, memory_seconds, padded, power_of_two, traffic
from .sweep import Sweep, Tiling

Kernels = tuple[tuple[Store, ...], ...]
"""The stores of each launch."""
PROGRAM_SECONDS = 2e-7
"""What it takes one processor to start a program and to form its addresses."""
SQUARE = 32
"""Side of the tile of a transposition: both its directions are contiguous in 32 elements."""


@dataclass(frozen=True)
class Elementwise:
    """A tile of `elements` of the result in each program; `turned` makes it a square where reads and writes cross."""

    name: str = "elementwise"

    def match(self, problem: Problem, target: GpuTarget) -> Match[Kernels] | Refusal:
        for statement in problem.region.body:
            if isinstance(statement, (Reduce, Scan)):
                return Refusal(f"%{statement.name} folds an axis")
            if isinstance(statement, Store) and (statement.gathers or statement.combine):
                return Refusal("the result is scattered")
        return Match(self, problem, together(problem.region))

    def space(self, match: Match[Kernels], target: GpuTarget) -> Iterator[Schedule]:
        """1024 elements a program, fewer and more; squares where an operand is read across."""
        crossed = any(_crossing(match.problem.region, s) is not None for s in stores_of(match.problem.region))
        for turned in (1, 0) if crossed else (0,):
            for elements, warps in ((1024, 4), (512, 4), (2048, 4), (4096, 8)):
                yield Schedule(self.name, (("elements", elements), ("turned", turned), ("warps", warps)))

    def cost(self, match: Match[Kernels], schedule: Schedule, target: GpuTarget) -> float:
        """Time to move all operands once, more where reads or writes are not contiguous or lanes are empty."""
        problem, region, kernels = match.problem, match.problem.region, match.found
        seconds = 0.0
        for *_, store in kernels:
            sizes = {name: problem.typical(region.axis(name).extent) for name in store.axes}
            tiling = tile_axes(problem, store, schedule["elements"], bool(schedule["turned"]), schedule["warps"])
            programs, lanes, points = 1.0, 1.0, 1.0
            for axis, step in tiling.grid.items():
                programs *= -(-sizes[axis] // (step or 1))
                lanes *= -(-sizes[axis] // (step or 1)) * (step or 1)
                points *= sizes[axis]
            scattered = 1.0 if schedule["turned"] or _crossing(region, store) is None else 4.0
            seconds += memory_seconds(traffic(problem) / len(kernels) * scattered, programs, target) * (0.7 + 0.3 * lanes / points)
            seconds += LAUNCH_SECONDS + programs * PROGRAM_SECONDS / target.processors
        return seconds

    def order(self, match: Match[Kernels], schedule: Schedule, target: GpuTarget) -> Order:
        """Nothing is added up."""
        return ()

    def tile(self, match: Match[Kernels], schedule: Schedule, target: GpuTarget) -> TileProgram:
        """One launch for stores that go together."""
        problem, region, kernels = match.problem, match.problem.region, match.found
        launches = []
        for n, stores in enumerate(kernels):
            tiling = tile_axes(problem, stores[-1], schedule["elements"], bool(schedule["turned"]), schedule["warps"])
            suffix = str(n) if len(kernels) > 1 else ""
            launches.append(Sweep(problem, needed(region, *stores), stores, tiling).launch(f"{region.name}.elementwise{suffix}"))
        return TileProgram(region.name, tuple(launches), symbols=tuple(problem.symbols.ranges))


def tile_axes(problem: Problem, store: Store, elements: int, turned: bool, warps: int) -> Tiling:
    """Steps of the store's axes: all of `elements` along the result's innermost axes, or a square of two."""
    region = problem.region
    steps: dict[str, int | None] = {axis.name: None for axis in region.axes if axis.name in store.axes}
    crossing = _crossing(region, store) if turned else None
    left = elements
    if crossing is not None:
        sides = {axis: _bounded(problem, axis, SQUARE) for axis in crossing}
        # What a short side leaves goes to the other one.
        for axis, other in (crossing, crossing[::-1]):
            steps[axis] = _bounded(problem, axis, max(SQUARE, elements // sides[other]))
    else:
        for axis in reversed(in_store_order(region, store)):
            if left == 1:
                break
            step = _bounded(problem, axis, left)
            steps[axis], left = step, left // step
            if step < (padded(region.axis(axis).extent, problem.symbols) or elements):
                break
    return Tiling({axis: None if step == 1 else step for axis, step in steps.items()}, hints=(("warps", warps),))


def _bounded(problem: Problem, axis: str, most: int) -> int:
    bound = padded(problem.region.axis(axis).extent, problem.symbols)
    return most if bound is None else min(most, bound)


def in_store_order(region: Region, store: Store) -> list[str]:
    """The axes of a store as its subscripts name them, the innermost last."""
    found: list[str] = []
    for subscript in store.subscripts:
        found += [axis.name for axis in region.axes if axis.name in dims.symbols(subscript) and axis.name not in found]
    return [name for name in found if name in store.axes]


def _crossing(region: Region, store: Store) -> tuple[str, str] | None:
    """(the axis that is contiguous in the result, the one that is in an operand of equal size), where they differ."""
    order = in_store_order(region, store)
    if len(order) < 2 or stride_class(region, store.output, store.subscripts, order[-1]) != 1:
        return None
    statements: Sequence[Let | Reduce | Scan | Store] = (*needed(region, store), store)
    written = dims.product(region.operand(store.output).type.shape)
    for operand, subscripts in accesses(statements):
        if operand == store.output or dims.product(region.operand(operand).type.shape) != written:
            continue
        for axis in order[:-1]:
            if stride_class(region, operand, subscripts, axis) == 1 and power_of_two(_least(region, axis)) >= 8:
                return order[-1], axis
    return None


def _least(region: Region, axis: str) -> int:
    extent = region.axis(axis).extent
    return extent if isinstance(extent, int) else SQUARE
