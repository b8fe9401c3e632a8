"""The strategy `vector`: products with too few rows for a matrix instruction: multiplied and summed along the lanes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ....ir import dims
from ....ir.dims import Dim
from ....ir.expression import Apply
from ....ir.region import Load, walk
from ....ir.region.stores import needed
from ....ir.target import GpuTarget
from ....ir.tile.program import TileProgram
from ...regions.blocks import steps_along
from ...regions.contraction import Contraction, axes_of, plain_load, read_contraction
from ...regions.narrow_factors import wide_factors
from ...regions.simplify_region import split_axis
from ...regions.small_floats import small_floats
from ...regions.small_integers import small_integers
from ..accesses import stride_class
from ..lower import upper_bound
from ..schedule import Match, Order, Problem, Refusal, Schedule, by_tile
from .parts import fastest
from .shape import LAUNCH_SECONDS, REACHED, padded, power_of_two, traffic, warps_for
from .split_k import seconds_beforehand
from .split_rows import SplitRows
from .sweep import Sweep, Tiling

MOST = 7
"""Rows (or columns) at most: each is added up by itself."""
SHORTEST = 64
"""Shorter sums lie whole in registers: `rows` takes them."""
LONGEST = 1024
"""Elements along the sum within which codes share bytes and groups share scales, at most: a tile holds them all."""
STEP_SECONDS, STARTED = 4e-7, 1e-7
"""What a step of the sum waits for its loads, and what a program takes beside, as it starts where another one ends."""
AROUND = 5e-7
"""Seconds in which the first programs start and the last ones add up their lanes and store."""
WIDEST_LOAD = 16
"""Bytes of the larger factor that a thread loads at once in a step: with fewer there are too many threads."""
WARPS, REGISTERS, HELD = 64, 65536, (32, 48)
"""Warps and registers that a processor holds, and registers of a thread: for one row, and for several (estimated)."""
MULTIPLIED, BESIDE, MADE = 9, 4, 0.5
"""Instructions of a thread for each product, with its share of what programs do beside, more of them for rows beside the first, and for
each primitive of the larger factor, as lanes share some (estimated)."""


@dataclass(frozen=True)
class VectorProduct:
    """A product of few rows as it is computed: `parts` are axes of the sum that a tile holds whole, inside of the one that it walks.

    Codes share bytes and groups share scales along them, so that each is loaded once for all the lanes that it belongs to.
    """

    problem: Problem
    product: Contraction
    parts: tuple[str, ...]

    @property
    def walked(self) -> str:
        """The axis of the sum that is walked in steps; those before it go one by one."""
        return next(axis for axis in reversed(self.product.over) if axis not in self.parts)


@dataclass(frozen=True)
class Vector:
    """Tiles of `elements` products: all rows, some columns, a step of the contracted axis."""

    name: str = "vector"

    def match(self, problem: Problem, target: GpuTarget) -> Match[VectorProduct] | Refusal:
        match = self.read(problem)
        if isinstance(match, Refusal):
            return match
        own, tiles = fastest(match, target), seconds_beforehand(problem, target)
        if tiles < own:
            return Refusal(f"lane by lane it takes {own * 1e6:.1f} us, by matrix instructions {tiles * 1e6:.1f} us")
        if not (match.found.product.rows or match.found.product.columns):
            # Of one result, or one for each of a batch, all numbers lie along the sum: its parts may be programs of their own.
            parts = SplitRows().match(problem, target)
            if isinstance(parts, Match) and (several := fastest(parts, target)) < own:
                return Refusal(f"by one program for each sum it takes {own * 1e6:.1f} us, by several {several * 1e6:.1f} us")
        return match

    def read(self, problem: Problem) -> Match[VectorProduct] | Refusal:
        """A product of few rows, whatever else may take less."""
        of_bits = replace(problem, region=small_integers(small_floats(wide_factors(problem.region))))
        found = read_contraction(of_bits.region)
        if isinstance(found, str):
            return Refusal(found)
        if _short(problem, found.rows) is None and _short(problem, found.columns) is None:
            return Refusal(f"there may be more than {MOST} rows and columns: matrix instructions are faster")
        depth = upper_bound(dims.product(problem.region.axis(a).extent for a in found.over), problem.symbols)
        if depth is not None and depth < SHORTEST:
            return Refusal(f"the sum has {depth} terms, expected at least {SHORTEST}")
        if any(extent == 0 for extent in problem.region.extents.values()):
            return Refusal("an axis has no elements")
        return Match(self, problem, _in_parts(of_bits, found))

    def space(self, match: Match[VectorProduct], target: GpuTarget) -> Iterator[Schedule]:
        """By tile size and by the share of it that is the contracted axis: all of it where places within groups are axes as well."""
        for elements in (2048, 4096, 8192):
            for step in (2048, 4096, 512, 128):
                if step == elements or (step < elements and not match.found.parts):
                    yield Schedule(self.name, (("elements", elements), ("step", step)))

    def cost(self, match: Match[VectorProduct], schedule: Schedule, target: GpuTarget) -> float:
        """All bytes once, slower where runs of them are short; beside arithmetic, and the steps of programs that take turns."""
        problem, found = replace(match.problem, region=match.found.problem.region), match.found
        tiling = _tiling(found, schedule["elements"], schedule["step"])
        programs, steps = 1.0, 1.0
        for axis, size in tiling.grid.items():
            programs *= -(-problem.typical(problem.region.axis(axis).extent) // (size or 1))
        for axis, size in tiling.loops.items():
            steps *= -(-problem.typical(problem.region.axis(axis).extent) // size)
        along, across = _lane_axes(found)
        lanes = {**tiling.whole, **tiling.loops}
        run = math.prod(lanes[axis] for axis in (found.walked, *found.parts)) if along else tiling.grid[across or ""] or 1
        memory = traffic(match.problem) * max(1.0, math.sqrt(64 / run)) / (target.memory_rate * REACHED)
        warps = int(dict(tiling.hints)["warps"])
        beside = max(1, min(WARPS // warps, REGISTERS // (HELD[_rows(found) > 1] * 32 * warps)))
        turns = max(1.0, programs / (target.processors * beside))
        waiting, computing = AROUND + turns * (STARTED + steps * STEP_SECONDS), _computing(found, target)
        # Several rows take so many registers that too few programs are beside each other to compute while others wait.
        busy = waiting + computing if _rows(found) > 1 else max(waiting, computing)
        return float(max(memory, busy)) + LAUNCH_SECONDS

    def order(self, match: Match[VectorProduct], schedule: Schedule, target: GpuTarget) -> Order:
        """A tile in registers is added up by the threads that hold it: its whole shape decides."""
        return by_tile(match.problem, schedule)

    def tile(self, match: Match[VectorProduct], schedule: Schedule, target: GpuTarget) -> TileProgram:
        """One launch."""
        problem, found = match.found.problem, match.found.product
        tiling = _tiling(match.found, schedule["elements"], schedule["step"])
        launch = Sweep(problem, needed(problem.region, found.store), (found.store,), tiling).launch(f"{problem.region.name}.vector")
        return TileProgram(problem.region.name, (launch,), symbols=tuple(problem.symbols.ranges))


def _in_parts(problem: Problem, found: Contraction) -> VectorProduct:
    """The product with the innermost axis of its sum as several, where places in it are divided: a byte's codes, a group's elements."""
    last, region = found.over[-1], problem.region
    sizes = steps_along(region, last)
    if not sizes or sizes[0] > LONGEST:
        return VectorProduct(problem, found, ())
    made = split_axis(region, last, sizes, problem.symbols)
    after = read_contraction(made)
    if isinstance(after, str):
        return VectorProduct(problem, found, ())
    fresh = [axis.name for axis in made.axes if axis.name not in region.extents]
    return VectorProduct(replace(problem, region=made), after, tuple(fresh[1:]))


def _short(problem: Problem, axes: Sequence[str]) -> int | None:
    """How many rows (or columns) there are at most, if they are few."""
    bound = upper_bound(dims.product(problem.region.axis(a).extent for a in axes), problem.symbols)
    return bound if bound is not None and bound <= MOST else None


def _rows(found: VectorProduct) -> int:
    """The few rows (or columns), padded as a tile holds them."""
    problem, product = found.problem, found.product
    few = product.rows if _short(problem, product.rows) is not None else product.columns
    return math.prod(padded(problem.region.axis(axis).extent, problem.symbols) or 1 for axis in few)


def _computing(found: VectorProduct, target: GpuTarget) -> float:
    """Seconds in which all processors make numbers of the larger factor and multiply each by all of the few rows, padded as they are."""
    problem, product = found.problem, found.product
    value = product.right if _short(problem, product.rows) is not None else product.left
    made, rows = sum(isinstance(part, Apply) for part in walk(value)), _rows(found)
    elements = math.prod(float(problem.typical(problem.region.axis(axis).extent)) for axis in axes_of(value))
    return elements * (rows * MULTIPLIED + (rows - 1) * BESIDE + made * MADE) / (target.rates["f32"] / 2)


def _lane_axes(found: VectorProduct) -> tuple[bool, str | None]:
    """Whether the larger factor is contiguous along the contracted axis, and the long side's last axis."""
    problem, product = found.problem, found.product
    few_rows = _short(problem, product.rows) is not None
    side, factor = (product.columns, product.right) if few_rows else (product.rows, product.left)
    load = plain_load(factor)
    along = load is None or stride_class(problem.region, load.operand, load.subscripts, found.walked) == 1
    return along, side[-1] if side else None


def _bytes_of_weight(found: VectorProduct) -> float:
    """Bytes of an element of the larger factor, with its share of what a group has."""
    problem, product = found.problem, found.product
    value = product.right if _short(problem, product.rows) is not None else product.left
    read = {part.operand for part in walk(value) if isinstance(part, Load)}
    extents = problem.region.extents

    def count(sizes: Iterable[Dim]) -> int:
        return problem.typical(dims.product(sizes))

    stored = sum(count(o.type.shape) * o.type.dtype.bits / 8 for o in problem.region.inputs if o.name in read)
    return stored / count(extents[axis] for axis in extents if axis in axes_of(value))


def _tiling(found: VectorProduct, elements: int, step: int) -> Tiling:
    problem, product = found.problem, found.product
    region, symbols = problem.region, problem.symbols
    few_rows = _short(problem, product.rows) is not None
    few = product.rows if few_rows else product.columns
    grid: dict[str, int | None] = {axis.name: None for axis in region.axes if axis.name in product.reduce.axes}
    left = elements
    for axis in few:
        grid[axis] = padded(region.axis(axis).extent, symbols)
        left //= grid[axis] or 1
    along, across = _lane_axes(found)
    whole = {axis: padded(region.axis(axis).extent, symbols) or 1 for axis in found.parts}
    inside = math.prod(whole.values())
    # Without rows to reuse, lanes follow memory: steps of k in one case, columns in the other.
    wanted = max(1, (step if along else max(1, left // 128)) // inside)
    longest = padded(region.axis(found.walked).extent, symbols)
    size = min(wanted, longest or wanted, max(1, left // inside))
    if across is not None:
        width = max(1, min(left // (size * inside), padded(region.axis(across).extent, symbols) or left))
        grid[across] = min(width, 16 if along else 128)
    walked = {axis: 1 if axis != found.walked else size for axis in product.over if axis not in whole}
    if size == longest and size > 1:
        whole[found.walked] = walked.pop(found.walked)
    total = elements // left * size * inside * ((grid[across] if across else 1) or 1)
    warps = max(4, min(warps_for(total), power_of_two(int(total * _bytes_of_weight(found)) // (WIDEST_LOAD * 32))))
    ordered = {axis: whole[axis] for axis in product.over if axis in whole}
    return Tiling({axis: None if n == 1 else n for axis, n in grid.items()}, ordered, walked, (("warps", warps),))
