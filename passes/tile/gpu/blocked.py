"""The strategy `blocked`: products of 8-bit factors whose scales change along the sum: a product for each block, scaled and added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ....ir import dims
from ....ir.codes import bounds
from ....ir.region import Region, Scalar
from ....ir.target import GpuTarget
from ....ir.tile.program import Dot, Launch, Reduce, Ref, TileApply, TileProgram, TileType
from ....ir.types import i8, i32
from ...regions.blocks import in_blocks
from ...regions.contraction import Contraction, read_contraction
from ..lower import Block, is_long, used_parameters
from ..schedule import Match, Order, Problem, Refusal, Schedule
from .matrix import MatrixProduct, Operands, factor_dtype, narrowed, operands_of, parted, why_not_instruction
from .parts import fastest
from .split_k import seconds_beforehand
from .tensor import Tensor, open_product, seconds, store_tile, tiles, why_no_tile

SIZES = (32, 64, 128)
"""Elements of a block: the least that an instruction of 8-bit factors takes, and the most that a step holds."""
SCALED = 6
"""Instructions that take a result of a block into the sum: it is brought, widened, scaled by both factors, and added."""
CHAIN, RESULT = 4.5e-7, 3e-11
"""Seconds of a step at least, and more of each of its results: its scales are asked for when its product is there. As the machine code
is estimated (benchmarks/kernels/tuned.py): no GPU has run it."""
FARTHER = 2.0
"""How many times as long that is where results lie in tensor memory."""


@dataclass(frozen=True)
class BlockProduct:
    """A product as it is computed: the region whose sum goes over blocks, the product of one, and how many elements that has."""

    region: Region
    matched: MatrixProduct
    size: int


@dataclass(frozen=True)
class Blocked:
    """Tiles as in `tensor`; a step is a block, which an accumulator of its own adds up: floats of 8 bits lose nothing to a long sum."""

    name: str = "blocked"

    def match(self, problem: Problem, target: GpuTarget) -> Match[BlockProduct] | Refusal:
        found = block_product(problem)
        if isinstance(found, str):
            return Refusal(found)
        if target.tensor_memory and found.size < SIZES[-1]:
            return Refusal(f"a block has {found.size} elements: results lie in tensor memory, from where each block of them is brought")
        match = Match(self, problem, found)
        own, wide = fastest(match, target), seconds_beforehand(problem, target)
        if wide < own:
            return Refusal(f"block after block takes {own * 1e6:.1f} us, factors that are scaled beforehand {wide * 1e6:.1f} us")
        return match

    def space(self, match: Match[BlockProduct], target: GpuTarget) -> Iterator[Schedule]:
        """The tiles of `tensor` with a block a step."""
        posed = _posed(match)
        for item in tiles(posed.problem, posed.found, target):
            yield Schedule(self.name, tuple(zip(("m", "n", "k", "warps", "stages", "swap"), item, strict=True)))

    def cost(self, match: Match[BlockProduct], schedule: Schedule, target: GpuTarget) -> float:
        """That of `tensor`, with what takes each block into the sum."""
        results, lanes = schedule["m"] * schedule["n"], target.rates["f32"] / 2 / target.processors
        chain = (CHAIN + results * RESULT) * (FARTHER if target.tensor_memory else 1.0)
        return seconds(_posed(match), schedule, target, 1, results * SCALED / lanes, chain)

    def order(self, match: Match[BlockProduct], schedule: Schedule, target: GpuTarget) -> Order:
        """Block after block; inside of one as the instruction does."""
        return self.name, schedule["swap"], why_not_instruction(match.found.matched.operands, schedule, target)

    def tile(self, match: Match[BlockProduct], schedule: Schedule, target: GpuTarget) -> TileProgram:
        """One launch."""
        problem = _posed(match).problem
        return TileProgram(problem.region.name, (_launch(problem, schedule, match.found),), symbols=tuple(problem.symbols.ranges))


def block_product(problem: Problem) -> BlockProduct | str:
    """A region as a sum of scaled products of blocks, or why it is none."""
    region = in_blocks(problem.region, problem.symbols)
    found = read_contraction(region)
    if isinstance(found, str):
        return found
    if found.block is None:
        return "no scales change along the sum"
    size = dims.product(region.axis(axis).extent for axis in found.streamed)
    if not isinstance(size, int) or size not in SIZES:
        return f"a block has {size} elements, expected {', '.join(map(str, SIZES))}"
    operands = _operands(found)
    if isinstance(operands, str):
        return operands
    why = why_no_tile(replace(problem, region=region), found)
    return BlockProduct(region, MatrixProduct(found, operands), size) if why is None else why


def _posed(match: Match[BlockProduct]) -> Match[MatrixProduct]:
    """The product of blocks as a problem of its own."""
    return Match(Tensor(), replace(match.problem, region=match.found.region), match.found.matched)


def _operands(found: Contraction) -> Operands | str:
    """The form in which the factors of a block are multiplied: as they are, or codes that fit signed bytes as such."""
    block = found.block or found.reduce
    operands = operands_of(replace(found, reduce=block, block=None))
    if isinstance(operands, str) and block.dtype == i32 and all(map(_fits_bytes, (found.left, found.right))):
        operands = Operands(i8, "exact", "i8", 1)
    if isinstance(operands, Operands) and operands.dtype.bits != 8:
        return f"{factor_dtype(found.left)} and {factor_dtype(found.right)} are not multiplied in 8 bits"
    return operands


def _fits_bytes(value: Scalar) -> bool:
    found = bounds(value)
    return found is not None and -128 <= found[0] and found[1] <= 127


def _launch(problem: Problem, schedule: Schedule, posed: BlockProduct) -> Launch:
    region, found = problem.region, posed.matched.product
    product = open_product(problem, found, schedule)
    block, acc, extents = product.block, product.acc, region.extents
    outer = found.over[: len(found.over) - len(found.streamed)]
    depth = dims.product(extents[axis] for axis in found.over)
    lost = block.lost(acc) if is_long([extents[axis] for axis in outer], problem.symbols) else None
    with block.loop("_".join(found.over), "tile", 0, depth, posed.size, carries=(acc,) if lost is None else (acc, lost)) as k:
        block.index |= parted(dims.symbol(f"{k}.first") // posed.size, outer, extents)
        block.index |= parted(dims.symbol(f"{k}.lane"), found.streamed, extents)
        for let in found.prologue:
            block.later(let)
        _multiply(block, acc, posed.matched, k)
        value = block.lower(found.reduce.value)
        if lost is None and isinstance(value, TileApply) and value.primitive == "mul":
            block.rebind(acc, block.apply("fma", *value.args, acc))
        else:
            block.add_to(acc, lost, block.spread(value, acc.type.axes))
    store_tile(product, found, schedule)
    sums = [each for each in (found.alone, found.block, found.reduce) if each is not None]
    params = used_parameters(problem, (*found.prologue, *sums, *found.epilogue, found.store))
    hints = (("order", "grouped(8)"), ("warps", schedule["warps"]), ("stages", schedule["stages"]))
    return Launch(f"{region.name}.blocked", params, product.grid, tuple(block.body), hints=hints)


def _multiply(block: Block, acc: Ref, matched: MatrixProduct, k: str) -> None:
    """The sums of a block, which what adds them up reads by their names."""
    found, dtype = matched.product, matched.operands.dtype
    assert found.block is not None
    block.outside = True
    left, right = (block.lower(narrowed(value, dtype)) for value in (found.left, found.right))
    block.outside = False
    kind = TileType(found.block.dtype, acc.type.axes)
    zeros = block.full(0.0 if kind.dtype.is_float else 0, kind.dtype, kind.axes)
    part = block.let("part", Dot(left, right, zeros, kind, matched.operands.precision))
    block.readers[found.block.name] = lambda _: part
    if found.alone is not None:
        value = block.lower(found.alone.value)
        left_alone = TileType(found.alone.dtype, tuple(axis for axis in value.type.axes if axis != k))
        alone = block.let("alone", Reduce("sum", k, value, left_alone))
        block.readers[found.alone.name] = lambda _: alone
