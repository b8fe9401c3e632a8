"""The strategy `scaled`: products of small floats with a scale for each block, by the instruction that multiplies them by it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from ....ir import dims
from ....ir.region import Load
from ....ir.target import GpuTarget
from ....ir.tile.program import Dot, Launch, TileProgram, TileType, Unpack, Value
from ....ir.types import f4e2m1
from ...regions.block_scales import BLOCK, PLACE, Scaled, ScaledProduct, scaled_product, with_row
from ...regions.contraction import read_contraction
from ..lower import Block, used_parameters
from ..schedule import Match, Order, Problem, Refusal, Schedule
from .decoded import decoding_seconds
from .matrix import WIDE, MatrixProduct, Operands, is_in_chunks, sizes_of, why_not_apart
from .parts import fastest
from .shape import LAUNCH_SECONDS, power_of_two
from .split_k import seconds_beforehand
from .tensor import Tensor, open_product, seconds, store_tile
from .vector import Vector

ROWS, COLUMNS = 128, (256, 128, 64, 32, 16)
"""Rows of a tile, as many as the tensor memory has, and its columns."""
STEPS = (256, 512, 128)
"""Contracted elements of a step."""
STAGES = (3, 4, 2)
COPIED = 4
"""Bytes of a thread that are copied ahead at least; fewer are loaded when they are wanted."""
AHEAD, AWAITED = 4e-7, 9e-7
"""Seconds of a step at least: its scales go from where they were copied to, or from memory, to the tensor memory before it begins. As the
machine code is estimated (no GPU of this kind has run it)."""


@dataclass(frozen=True)
class BlockScaled:
    """Tiles of 128 x n (`swap`: 128 columns, n rows), steps of k whose codes and scales are read as they are stored."""

    name: str = "scaled"

    def match(self, problem: Problem, target: GpuTarget) -> Match[ScaledProduct] | Refusal:
        found = block_scaled(problem, target)
        if isinstance(found, str):
            return Refusal(found)
        match = Match(self, problem, found)
        own, wide = fastest(match, target), min(seconds_beforehand(problem, target), _one_by_one(problem, found, target))
        if wide < own:
            return Refusal(f"blocks by their scales take {own * 1e6:.1f} us, factors that are scaled beforehand {wide * 1e6:.1f} us")
        return match

    def space(self, match: Match[ScaledProduct], target: GpuTarget) -> Iterator[Schedule]:
        """Tiles that the shared memory holds."""
        sizes = sizes_of(_problem(match), match.found.product)
        few = sizes.most_rows is not None and sizes.most_rows < ROWS
        bits = match.found.left.dtype.bits
        for swap, n, k, stages in product((1, 0) if few else (0,), COLUMNS, STEPS, STAGES):
            short = sizes.most_rows if swap else sizes.most_columns
            fits = short is None or n <= max(16, power_of_two(short))
            if fits and sizes.depth % k == 0 and stages * (ROWS + n) * k * (bits + 1) // 8 <= target.shared_memory - 8192:
                names = (("m", ROWS), ("n", n), ("k", k), ("warps", 4), ("stages", stages), ("swap", swap))
                yield Schedule(self.name, names)

    def cost(self, match: Match[ScaledProduct], schedule: Schedule, target: GpuTarget) -> float:
        """That of `tensor`, with what brings scales to where they are multiplied."""
        found, threads = match.found, 32 * schedule["warps"]
        scales = schedule["n"] * schedule["k"] // found.left.block
        return seconds(_priced(match), schedule, target, 1, chain=AHEAD if scales >= COPIED * threads else AWAITED)

    def order(self, match: Match[ScaledProduct], schedule: Schedule, target: GpuTarget) -> Order:
        """By the instruction through one accumulator; rows that change places with columns are as they were."""
        return self.name, schedule["swap"]

    def tile(self, match: Match[ScaledProduct], schedule: Schedule, target: GpuTarget) -> TileProgram:
        """One launch."""
        problem = _problem(match)
        return TileProgram(problem.region.name, (_launch(problem, schedule, match.found),), symbols=tuple(problem.symbols.ranges))


def _one_by_one(problem: Problem, found: ScaledProduct, target: GpuTarget) -> float:
    """Seconds of a product of few rows by plain arithmetic: each program makes numbers of the codes of both factors."""
    match = Vector().match(problem, target)
    if not isinstance(match, Match):
        return float("inf")
    wide, sizes = MatrixProduct(found.product, WIDE), sizes_of(replace(problem, region=found.region), found.product)
    factors = (found.product.left, found.product.right)
    made = sum(decoding_seconds(value, wide, float(max(sizes.columns, sizes.rows) * sizes.depth), target) for value in factors)
    return max(fastest(match, target), LAUNCH_SECONDS + made)


def block_scaled(problem: Problem, target: GpuTarget) -> ScaledProduct | str:
    """A region as a product for instructions that scale blocks, or why it is none there."""
    if not target.scales_blocks:
        return f"{target.name} has no instruction that multiplies blocks by their scales"
    region, product = problem.region, read_contraction(problem.region)
    if not isinstance(product, str) and not product.rows:
        region = with_row(region, product, problem.symbols.ranges)
        product = read_contraction(region)
    if isinstance(product, str):
        return product
    found = scaled_product(region, product)
    if isinstance(found, str):
        return found
    if not product.columns or any(extent == 0 for extent in region.extents.values()):
        return "there are no columns of their own, or an axis has no elements"
    depth = problem.region.axis(product.over[0]).extent
    if dims.divides(STEPS[-1], depth, problem.symbols) is not True:
        return f"a sum of {depth} products is no multiple of {STEPS[-1]}"
    if is_in_chunks(problem, product, depth):
        return f"a sum of {depth} products is too long for one accumulator"
    return why_not_apart(product) or found


def operands_of_blocks(found: ScaledProduct) -> Operands:
    """The form of its factors: floats of 4 or 8 bits as they are stored."""
    dtype = found.left.dtype
    return Operands(dtype, "exact", "f4" if dtype == f4e2m1 else dtype.name, 1)


def _priced(match: Match[ScaledProduct]) -> Match[MatrixProduct]:
    """The product as one of codes that are only loaded."""
    found = match.found
    left, right = (Load(side.codes.operand, side.codes.subscripts, side.dtype) for side in (found.left, found.right))
    plain = replace(found.product, left=left, right=right)
    return Match(Tensor(), _problem(match), MatrixProduct(plain, operands_of_blocks(found), True))


def _problem(match: Match[ScaledProduct]) -> Problem:
    """The product in its own region."""
    return replace(match.problem, region=match.found.region)


def _launch(problem: Problem, schedule: Schedule, found: ScaledProduct) -> Launch:
    contraction, step = found.product, schedule["k"]
    product = open_product(problem, contraction, schedule)
    block, acc, (axis,) = product.block, product.acc, contraction.over
    depth = problem.region.extents[axis]
    with block.loop(axis, "tile", 0, depth, step, carries=(acc,)) as k:
        first = dims.symbol(f"{k}.first")
        pairs = 2 if found.left.dtype == f4e2m1 else 1
        codes = k if pairs == 1 else block.axis("pair", first // pairs, depth // pairs, step // pairs)
        blocks = block.axis("block", first // found.left.block, depth // found.left.block, step // found.left.block)
        block.index |= {PLACE: dims.symbol(codes), BLOCK: dims.symbol(blocks)}
        left, right = (_factor(block, side, codes, k) for side in (found.left, found.right))
        scales = (block.lower(side.scale) for side in (found.left, found.right))
        block.rebind(acc, Dot(left, right, acc, acc.type, "exact", *scales))
    store_tile(product, contraction, schedule)
    params = used_parameters(problem, (contraction.reduce, *contraction.epilogue, contraction.store))
    hints = (("order", "grouped(8)"), ("warps", schedule["warps"]), ("stages", schedule["stages"]))
    return Launch(f"{problem.region.name}.scaled", params, product.grid, tuple(block.body), hints=hints)


def _factor(block: Block, side: Scaled, codes: str, k: str) -> Value:
    """The codes of a factor along a step; lanes beyond its rows are 0."""
    block.outside, block.hints = True, ("descriptor",)
    loaded = block.lower(side.codes)
    block.outside, block.hints = False, ()
    if codes == k:
        return loaded
    axes = block.ordered({k if axis == codes else axis for axis in loaded.type.axes})
    return Unpack(loaded, codes, k, side.dtype.bits, TileType(side.dtype, axes))
