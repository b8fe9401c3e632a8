"""The strategy `split_k`: a long contraction with a small result, in parts that a second launch adds up in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ....ir import dims
from ....ir.dims import Dim
from ....ir.region import Axis, Let, Load, Operand, Reduce, Region, Scan
from ....ir.target import GpuTarget
from ....ir.tile.program import GridAxis, Launch, TileProgram
from ....ir.types import TensorType
from ...regions.contraction import Contraction
from ..lower import upper_bound, used_parameters
from ..schedule import Match, Order, Problem, Refusal, Schedule
from .matrix import MatrixProduct, instruction_order, multiply, sizes_of
from .parts import LARGEST, fastest, free_name, space_param, why_whole
from .rows import tile_rows
from .shape import LAUNCH_SECONDS, power_of_two
from .sweep import Sweep, Tiling
from .tensor import Tensor, open_product, seconds, tiles

SPLITS = (2, 4, 8, 16)


@dataclass(frozen=True)
class SplitK:
    """Tiles as in `tensor`, `splits` programs for each; it takes what would leave most of the device idle."""

    name: str = "split_k"

    def match(self, problem: Problem, target: GpuTarget) -> Match[MatrixProduct] | Refusal:
        tensor = Tensor().match(problem, target)
        if isinstance(tensor, Refusal):
            return tensor
        match = Match(self, problem, tensor.found)
        why = why_whole(tensor, match, target, f"no sum is long enough for {SPLITS[0]} parts", "the sum")
        return match if why is None else Refusal(why)

    def space(self, match: Match[MatrixProduct], target: GpuTarget) -> Iterator[Schedule]:
        """The tiles of `tensor` by parts of at least four steps each."""
        problem, found = match.problem, match.found.product
        sizes = sizes_of(problem, found)
        results = upper_bound(dims.product(problem.region.axis(a).extent for a in found.reduce.axes), problem.symbols)
        for m, n, k, warps, stages, swap in tiles(problem, match.found, target):
            for splits in SPLITS:
                if sizes.depth >= 4 * k * splits and results is not None and results * splits <= LARGEST:
                    names = (("m", m), ("n", n), ("k", k), ("splits", splits), ("warps", warps), ("stages", stages), ("swap", swap))
                    yield Schedule(self.name, names)

    def cost(self, match: Match[MatrixProduct], schedule: Schedule, target: GpuTarget) -> float:
        """That of `tensor` with more programs, and parts that are written and read again."""
        problem, found = match.problem, match.found.product
        sizes = sizes_of(problem, found)
        moved = 2.0 * schedule["splits"] * sizes.batch * sizes.rows * sizes.columns * found.reduce.dtype.bits / 8
        return seconds(match, schedule, target, schedule["splits"]) + LAUNCH_SECONDS + 1e-6 + moved / target.memory_rate

    def order(self, match: Match[MatrixProduct], schedule: Schedule, target: GpuTarget) -> Order:
        """As in `tensor` for each part; then the parts, by the tile that holds them."""
        problem, found = match.problem, match.found.product
        _, _, tiling = _adding(problem, found, _space(problem, found, schedule["splits"]), schedule["splits"])
        return self.name, str(tiling), *instruction_order(problem, match.found, schedule, target)

    def tile(self, match: Match[MatrixProduct], schedule: Schedule, target: GpuTarget) -> TileProgram:
        """Two launches and the workspace between them."""
        problem, found = match.problem, match.found.product
        space = _space(problem, found, schedule["splits"])
        launches = (_parts(problem, match.found, schedule, space), _sum(problem, found, space, schedule["splits"]))
        return TileProgram(problem.region.name, launches, (space_param(space, "out"),), tuple(problem.symbols.ranges))


def seconds_beforehand(problem: Problem, target: GpuTarget) -> float:
    """Seconds of a product whose factors are scaled before they are multiplied, whole or in parts; infinity where it is none."""
    matches = (strategy.match(problem, target) for strategy in (SplitK(), Tensor()))
    return min((fastest(match, target) for match in matches if isinstance(match, Match)), default=float("inf"))


def _space(problem: Problem, found: Contraction, splits: int) -> Operand:
    shape = (splits, *(problem.region.axis(a).extent for a in found.reduce.axes))
    return Operand(free_name(problem, "parts"), TensorType(found.reduce.dtype, shape))


def _parts(problem: Problem, matched: MatrixProduct, schedule: Schedule, space: Operand) -> Launch:
    found, operands = matched.product, matched.operands
    extents, splits, step = problem.region.extents, schedule["splits"], schedule["k"]
    product = open_product(problem, found, schedule)
    block = product.block
    part = block.unique("part")
    total = dims.product(extents[axis] for axis in found.over)
    even = dims.divides(splits * step, total, problem.symbols) is True
    chunk: Dim = total // splits if even else dims.ceil_div(total, splits * step) * step
    low = dims.symbol(part) * chunk
    high = low + chunk if even else dims.minimum(low + chunk, total)
    multiply(block, product.acc, found, operands, step, low, high)
    block.store(space.name, (dims.symbol(part), *(block.index[a] for a in found.reduce.axes)), product.acc)
    params = (*used_parameters(problem, (*found.prologue, found.reduce)), space_param(space, "out"))
    hints = (("warps", schedule["warps"]), ("stages", schedule["stages"]))
    grid = (GridAxis(part, 0, splits), *product.grid)
    return Launch(f"{problem.region.name}.split_k", params, grid, tuple(block.body), hints=hints)


def _sum(problem: Problem, found: Contraction, space: Operand, splits: int) -> Launch:
    """The parts added along their own axis, then what follows the contraction."""
    after, statements, tiling = _adding(problem, found, space, splits)
    return Sweep(after, statements, (found.store,), tiling).launch(f"{problem.region.name}.split_k_sum")


def _adding(problem: Problem, found: Contraction, space: Operand, splits: int) -> tuple[Problem, tuple[Let | Reduce | Scan, ...], Tiling]:
    """What the second launch computes, and its tiling."""
    region, part = problem.region, free_name(problem, "part")
    load = Load(space.name, tuple(dims.symbol(a) for a in (part, *found.reduce.axes)), found.reduce.dtype)
    total = Reduce(found.reduce.name, found.reduce.axes, "sum", (part,), load, found.reduce.dtype)
    statements: tuple[Let | Reduce | Scan, ...] = (total, *found.epilogue)
    axes = (*(axis for axis in region.axes if axis.name in found.reduce.axes), Axis(part, splits))
    after = replace(problem, region=Region(region.name, (*region.inputs, space), region.outputs, axes, (*statements, found.store)))
    tiling = tile_rows(after, statements, (found.store,), 1024 * power_of_two(splits) // 4, False)
    if isinstance(tiling, str):
        raise ValueError(tiling)
    return after, statements, tiling
