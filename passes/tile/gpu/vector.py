"""The strategy `vector`: products with too few rows for a matrix instruction: multiplied and summed along the lanes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ....ir import dims
from ....ir.region.stores import needed
from ....ir.target import GpuTarget
from ....ir.tile.program import TileProgram
from ...regions.contraction import Contraction, plain_load, read_contraction
from ..accesses import stride_class
from ..lower import upper_bound
from ..schedule import Match, Order, Problem, Refusal, Schedule, by_tile
from .matrix import FEWEST
from .shape import LAUNCH_SECONDS, memory_seconds, padded, traffic, warps_for
from .sweep import Sweep, Tiling

SHORTEST = 64
"""Shorter sums lie whole in registers: `rows` takes them."""


@dataclass(frozen=True)
class Vector:
    """Tiles of `elements` products: all rows, some columns, a step of the contracted axis."""

    name: str = "vector"

    def match(self, problem: Problem, target: GpuTarget) -> Match[Contraction] | Refusal:
        found = read_contraction(problem.region)
        if isinstance(found, str):
            return Refusal(found)
        if _short(problem, found.rows) is None and _short(problem, found.columns) is None:
            return Refusal(f"there may be {FEWEST} or more rows and columns, enough for a matrix instruction")
        depth = upper_bound(dims.product(problem.region.axis(a).extent for a in found.over), problem.symbols)
        if depth is not None and depth < SHORTEST:
            return Refusal(f"the sum has {depth} terms, expected at least {SHORTEST}")
        if any(extent == 0 for extent in problem.region.extents.values()):
            return Refusal("an axis has no elements")
        return Match(self, problem, found)

    def space(self, match: Match[Contraction], target: GpuTarget) -> Iterator[Schedule]:
        """By tile size and by the share of it that is the contracted axis."""
        for elements in (4096, 2048, 8192):
            for step in (512, 128, 32):
                yield Schedule(self.name, (("elements", elements), ("step", step)))

    def cost(self, match: Match[Contraction], schedule: Schedule, target: GpuTarget) -> float:
        """All bytes once; short runs of contiguous elements and few programs do not reach the memory's rate."""
        problem, found = match.problem, match.found
        tiling = _tiling(problem, found, schedule["elements"], schedule["step"])
        programs, lanes = 1.0, 1
        for axis, step in tiling.grid.items():
            programs *= -(-problem.typical(problem.region.axis(axis).extent) // (step or 1))
            lanes *= step or 1
        along, across = _lane_axes(problem, found)
        run = tiling.loops[found.over[-1]] if along else (tiling.grid.get(across or "") or 1)
        steps = 1.0
        for axis, step in tiling.loops.items():
            steps *= -(-problem.typical(problem.region.axis(axis).extent) // step)
        waiting = steps * 4e-7 * max(1.0, programs / (target.processors * 4))
        return memory_seconds(traffic(problem), programs, target) * max(1.0, math.sqrt(64 / run)) + waiting + LAUNCH_SECONDS

    def order(self, match: Match[Contraction], schedule: Schedule, target: GpuTarget) -> Order:
        """A tile in registers is added up by the threads that hold it: its whole shape decides."""
        return by_tile(match.problem, schedule)

    def tile(self, match: Match[Contraction], schedule: Schedule, target: GpuTarget) -> TileProgram:
        """One launch."""
        problem, region, found = match.problem, match.problem.region, match.found
        tiling = _tiling(problem, found, schedule["elements"], schedule["step"])
        launch = Sweep(problem, needed(region, found.store), (found.store,), tiling).launch(f"{region.name}.vector")
        return TileProgram(region.name, (launch,), symbols=tuple(problem.symbols.ranges))


def _short(problem: Problem, axes: Sequence[str]) -> int | None:
    """How many rows (or columns) there are at most, if that is fewer than a matrix instruction takes."""
    bound = upper_bound(dims.product(problem.region.axis(a).extent for a in axes), problem.symbols)
    return bound if bound is not None and bound < FEWEST else None


def _lane_axes(problem: Problem, found: Contraction) -> tuple[bool, str | None]:
    """Whether the larger factor is contiguous along the contracted axis, and the long side's last axis."""
    few_rows = _short(problem, found.rows) is not None
    side, factor = (found.columns, found.right) if few_rows else (found.rows, found.left)
    load = plain_load(factor)
    along = load is None or stride_class(problem.region, load.operand, load.subscripts, found.over[-1]) == 1
    return along, side[-1] if side else None


def _tiling(problem: Problem, found: Contraction, elements: int, step: int) -> Tiling:
    region, symbols = problem.region, problem.symbols
    few_rows = _short(problem, found.rows) is not None
    few = found.rows if few_rows else found.columns
    grid: dict[str, int | None] = {axis.name: None for axis in region.axes if axis.name in found.reduce.axes}
    left = elements
    for axis in few:
        grid[axis] = padded(region.axis(axis).extent, symbols)
        left //= grid[axis] or 1
    along, across = _lane_axes(problem, found)
    last = found.over[-1]
    # Without rows to reuse, lanes follow memory: steps of k in one case, columns in the other.
    size = min(step if along else max(1, left // 128), padded(region.axis(last).extent, symbols) or step, left)
    if across is not None:
        width = max(1, min(left // size, padded(region.axis(across).extent, symbols) or left))
        grid[across] = min(width, 16 if along else 128)
    loops = {axis: 1 if axis != last else size for axis in found.over}
    total = elements // left * size * ((grid[across] if across else 1) or 1)
    return Tiling({axis: None if n == 1 else n for axis, n in grid.items()}, {}, loops, (("warps", warps_for(total)),))
