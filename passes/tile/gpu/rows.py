"""The strategy `rows`: folds along axes that lie whole in registers, padded, or that are walked with accumulators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ....ir.region import Let, Reduce, Scan, Store
from ....ir.region.stores import Fold, needed, parallel_axes, together
from ....ir.target import GpuTarget
from ....ir.tile.program import TileProgram
from ..accesses import stride_class
from ..schedule import Match, Order, Problem, Refusal, Schedule, by_tile
from .elementwise import in_store_order
from .shape import LAUNCH_SECONDS, contiguous_axes, memory_seconds, padded, traffic, warps_for
from .sweep import Sweep, Tiling, can_shift

Kernels = tuple[tuple[Sequence[Fold], tuple[Store, ...]], ...]
"""What each launch computes, and its stores."""
WHOLE = 16_384
"""Elements of a tile that is kept in registers at once."""
KEPT = 4_096
"""Elements along axes that must be kept while others are walked."""
HELD = 32
"""Elements of a row in a thread's registers: what its threads each compute of it anew, such as its scale, is shared by as many."""


@dataclass(frozen=True)
class Rows:
    """Tiles of about `elements`, with as many rows as that allows; `loop` walks the folded axes in steps even where they fit."""

    name: str = "rows"

    def match(self, problem: Problem, target: GpuTarget) -> Match[Kernels] | Refusal:
        kernels = tuple((needed(problem.region, *stores), stores) for stores in together(problem.region))
        for statements, stores in kernels:
            found = tile_rows(problem, statements, stores, 4096, False)
            if isinstance(found, str):
                return Refusal(found)
        return Match(self, problem, kernels)

    def space(self, match: Match[Kernels], target: GpuTarget) -> Iterator[Schedule]:
        """Small and large tiles; whole rows first."""
        for loop in (0, 1):
            for elements in (4096, 1024, 2048, 8192):
                if not any(isinstance(tile_rows(match.problem, *kernel, elements, bool(loop)), str) for kernel in match.found):
                    yield Schedule(self.name, (("elements", elements), ("loop", loop)))

    def cost(self, match: Match[Kernels], schedule: Schedule, target: GpuTarget) -> float:
        """Time to move all operands, once more for each walk over them, with what padding and idle processors waste."""
        problem, kernels, seconds = match.problem, match.found, 0.0
        for statements, stores in kernels:
            tiling = tile_rows(problem.whole, statements, stores, schedule["elements"], bool(schedule["loop"]))
            if isinstance(tiling, str):
                return float("inf")
            folds = sum(isinstance(s, (Reduce, Scan)) for s in statements)
            walks = folds + any(axis in tiling.loops for store in stores for axis in store.axes) if tiling.loops else 1
            seconds += _seconds(problem, tiling, walks, target) / len(kernels) + LAUNCH_SECONDS
        return seconds

    def order(self, match: Match[Kernels], schedule: Schedule, target: GpuTarget) -> Order:
        """A tile in registers is added up by the threads that hold it: its whole shape decides."""
        return by_tile(match.problem, schedule)

    def tile(self, match: Match[Kernels], schedule: Schedule, target: GpuTarget) -> TileProgram:
        """One launch for stores that go together."""
        problem, region, kernels = match.problem, match.problem.region, match.found
        launches = []
        for n, (statements, stores) in enumerate(kernels):
            tiling = tile_rows(problem, statements, stores, schedule["elements"], bool(schedule["loop"]))
            if isinstance(tiling, str):
                raise ValueError(tiling)
            launches.append(Sweep(problem, statements, stores, tiling).launch(f"{region.name}.rows{n if len(kernels) > 1 else ''}"))
        return TileProgram(region.name, tuple(launches), symbols=tuple(problem.symbols.ranges))


def _seconds(problem: Problem, tiling: Tiling, walks: int, target: GpuTarget) -> float:
    sizes = {axis.name: problem.typical(axis.extent) for axis in problem.region.axes}
    programs, points, lanes, steps = 1.0, 1.0, 1.0, 1.0
    for axis, step in tiling.grid.items():
        programs *= -(-sizes[axis] // (step or 1))
        lanes *= -(-sizes[axis] // (step or 1)) * (step or 1)
        points *= sizes[axis]
    for axis, extent in tiling.whole.items():
        lanes, points = lanes * extent, points * sizes[axis]
    for axis, step in tiling.loops.items():
        steps *= -(-sizes[axis] // step)
        lanes, points = lanes * -(-sizes[axis] // step) * step, points * sizes[axis]
    arithmetic = lanes * walks * 4 / target.rates["f32"]
    latency = steps * walks * 8e-7 * max(1.0, programs / (target.processors * 4))
    return memory_seconds(traffic(problem) * walks, programs, target) * (0.7 + 0.3 * min(4.0, lanes / points)) + arithmetic + latency


def tile_rows(problem: Problem, statements: Sequence[Fold], stores: Sequence[Store], elements: int, loop: bool) -> Tiling | str:
    """Steps of all axes, or why stores and what they need do not fit this form."""
    if any(store.gathers or store.combine for store in stores):
        return "the result is scattered"
    if not any(isinstance(s, (Reduce, Scan)) for s in statements):
        return "nothing is folded"
    for statement in statements:
        if isinstance(statement, Scan) and statement.exclusive and not can_shift(statements, statement.value, statement.along):
            return f"the exclusive scan %{statement.name} reads a fold along its own axis"
        if (
            isinstance(statement, Reduce)
            and statement.kind.endswith("_last")
            and not can_shift(statements, statement.value, statement.over[0])
        ):
            return f"%{statement.name} reads a fold along the axis that it searches from its end"
    return _tile(problem, statements, stores, elements, loop)


def _tile(problem: Problem, statements: Sequence[Fold], stores: Sequence[Store], elements: int, loop: bool) -> Tiling | str:
    region, symbols = problem.region, problem.symbols
    parallel = parallel_axes(statements, *stores)
    used = {axis for store in stores for axis in store.axes}
    kept: set[str] = set()
    for statement in statements:
        used |= set(statement.axes) | (set(statement.over) if isinstance(statement, Reduce) else set())
        if not isinstance(statement, Let):
            kept |= set(statement.axes) - parallel
            if isinstance(statement, Reduce) and statement.kind.startswith("arg"):
                kept |= set(statement.over) if padded(region.axis(statement.over[0]).extent, symbols) == 1 else set()
    inner = [axis.name for axis in region.axes if axis.name in used - parallel]
    sizes = {name: padded(region.axis(name).extent, symbols) for name in inner}
    whole = _all(sizes)
    if whole is None or _together(statements, stores, whole) > WHOLE or (loop and set(inner) - kept):
        must = _all({name: sizes[name] for name in inner if name in kept})
        if must is None or _together(statements, stores, must) > KEPT:
            names = ", ".join(name for name in inner if name in kept)
            return f"what is kept along {names} does not fit the registers: more than {KEPT} elements"
        whole = must
    held = _together(statements, stores, whole)
    room = max(1, elements // held)
    loops = _walked(problem, statements, stores, [name for name in inner if name not in whole], sizes, room)
    room = max(1, room // math.prod(loops.values()))
    grid = _rows_of_tile(problem, statements, stores, parallel, room, bool(loops))
    total = math.prod((held, *loops.values(), *(step or 1 for step in grid.values())))
    return Tiling(grid, whole, loops, (("warps", warps_for(total, 8 if loops else HELD)),))


def _together(statements: Sequence[Fold], stores: Sequence[Store], whole: dict[str, int]) -> int:
    """Elements along whole axes of the largest tile: not every statement has all of them."""
    largest = 1
    for statement in (*statements, *stores):
        names = {*statement.axes, *(statement.over if isinstance(statement, Reduce) else ())}
        largest = max(largest, math.prod(whole[name] for name in names & whole.keys()))
    return largest


def _walked(
    problem: Problem, statements: Sequence[Fold], stores: Sequence[Store], names: list[str], sizes: dict[str, int | None], room: int
) -> dict[str, int]:
    """Steps of walked axes: the contiguous one in long steps, short ones at once, the others by single indices."""
    scores = contiguous_axes(problem.region, (*statements, *stores))
    steps = dict.fromkeys(names, 1)
    contiguous = _parallel_is_contiguous(problem, statements, stores)
    left = max(1, min(room, 32 if contiguous else 1024))
    for name in sorted(names, key=lambda n: (-scores[n], names.index(n))):
        steps[name] = max(1, min(left, sizes[name] or left))
        left = max(1, left // steps[name])
    return steps


def _parallel_is_contiguous(problem: Problem, statements: Sequence[Fold], stores: Sequence[Store]) -> bool:
    """Whether the lanes of reads are a parallel axis, not a folded one."""
    scores = contiguous_axes(problem.region, statements or stores)
    parallel = parallel_axes(statements, *stores)
    best = max(scores, key=lambda name: scores[name], default=None)
    return best is not None and scores[best] > 0 and best in parallel


def _rows_of_tile(
    problem: Problem, statements: Sequence[Fold], stores: Sequence[Store], parallel: set[str], room: int, looped: bool
) -> dict[str, int | None]:
    """Steps of the parallel axes: one of them in tiles, long where it is contiguous in memory."""
    region, store = problem.region, stores[-1]
    grid: dict[str, int | None] = {axis.name: None for axis in region.axes if axis.name in parallel}
    order = [name for name in in_store_order(region, store) if name in parallel]
    if not order:
        return grid
    scores = contiguous_axes(region, (*statements, *stores))
    lane = max(order, key=lambda name: (scores[name], order.index(name)))
    if scores[lane] <= 0:
        lane = order[-1]
    contiguous = stride_class(region, store.output, store.subscripts, lane) == 1 and scores[lane] > 0
    if looped:
        # A walk along the rows themselves reads them one by one, however their results lie.
        contiguous = contiguous and _parallel_is_contiguous(problem, statements, stores)
    most = min(room, 128 if contiguous else 256)
    if contiguous and looped:
        most = max(most, 32)
    step = min(most, padded(region.axis(lane).extent, problem.symbols) or most)
    others = 1
    for name in order:
        others *= problem.typical(region.axis(name).extent) if name != lane else 1
    # Rows that are not contiguous share a program only where there are enough programs without.
    length = problem.typical(region.axis(lane).extent)
    while not contiguous and step > 1 and others * length // step < 512:
        step //= 2
    grid[lane] = None if step == 1 else step
    return grid


def _all(sizes: dict[str, int | None]) -> dict[str, int] | None:
    found = {name: size for name, size in sizes.items() if size is not None}
    return found if len(found) == len(sizes) else None
