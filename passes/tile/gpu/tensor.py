"""The strategy `tensor`: contractions on the matrix instructions, a tile of the result in each program."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ....ir import dims
from ....ir.region import Load, walk
from ....ir.target import GpuTarget
from ....ir.tile.program import GridAxis, Launch, Ref, TileProgram
from ...regions.contraction import Contraction, read_contraction
from ..lower import Block, upper_bound, used_parameters
from ..schedule import Match, Order, Problem, Refusal, Schedule
from .decoded import Decoding, decode_launch, decoding, decoding_seconds, is_coded, launch_seconds, waits
from .matrix import FEWEST, MatrixProduct, instruction_order, k_step, merged, multiply, operands_of, products_on, sizes_of
from .parts import space_param
from .shape import LAUNCH_SECONDS, filled, power_of_two, traffic, waves
from .sweep import fresh_block

TILES = ((128, 128, 8), (64, 128, 4), (128, 64, 4), (64, 64, 4), (128, 256, 8), (64, 256, 8), (64, 32, 4), (128, 32, 4), (64, 16, 4))
"""(side of the instruction's rows, the other side, warps)."""


AWAITED = 3e-7
"""Seconds of a step in which a load is waited for: what is of a few bytes, scales above all, is not copied ahead."""

MANY = 64
"""Rows from which on a factor may be decoded beforehand whatever their number: fewer take less time than to write and read it whole."""


@dataclass(frozen=True)
class Tensor:
    """Tiles of m x n, the contracted axes in steps of k through `stages` buffers; `swap`: m counts columns, n counts rows.

    A coded factor is decoded for each tile, or once by a launch of its own (`decoded`), where not even the fewest rows would wait for it.
    """

    name: str = "tensor"

    def match(self, problem: Problem, target: GpuTarget) -> Match[MatrixProduct] | Refusal:
        found = matrix_product(problem)
        return Refusal(found) if isinstance(found, str) else Match(self, problem, found)

    def space(self, match: Match[MatrixProduct], target: GpuTarget) -> Iterator[Schedule]:
        """Tiles that fit the shared memory; few rows change places with the columns, so that the instruction is filled."""
        found = decoding(match.problem, match.found) if _has_many_rows(match) else None
        kinds = [(0, match)] if found is None else [(0, match), (1, _match(found))]
        for decoded, each in kinds:
            for m, n, k, warps, stages, swap in tiles(each.problem, each.found, target):
                names = (("m", m), ("n", n), ("k", k), ("warps", warps), ("stages", stages), ("swap", swap), ("decoded", decoded))
                yield Schedule(self.name, names)

    def cost(self, match: Match[MatrixProduct], schedule: Schedule, target: GpuTarget) -> float:
        found = decoding(match.problem, match.found) if schedule["decoded"] else None
        if found is None:
            return seconds(match, schedule, target, 1)
        return seconds(_match(found), schedule, target, 1) + launch_seconds(found, target)

    def order(self, match: Match[MatrixProduct], schedule: Schedule, target: GpuTarget) -> Order:
        """By steps of k through an accumulator for each result, by the same instruction; classes of sizes share launches, too."""
        return self.name, *instruction_order(match.problem, match.found, schedule, target), schedule["decoded"]

    def tile(self, match: Match[MatrixProduct], schedule: Schedule, target: GpuTarget) -> TileProgram:
        """One launch, or two and the workspace between them."""
        problem = match.problem
        found = decoding(problem, match.found) if schedule["decoded"] else None
        if found is None:
            return TileProgram(problem.region.name, (_launch(problem, schedule, match.found),), symbols=tuple(problem.symbols.ranges))
        launches = (decode_launch(found, target), _launch(found.product, schedule, _match(found).found))
        return TileProgram(problem.region.name, launches, (space_param(found.space, "out"),), tuple(problem.symbols.ranges))


def _has_many_rows(match: Match[MatrixProduct]) -> bool:
    """Whether a launch that decodes a whole factor may pay: the number of rows is known, or never small."""
    rows = dims.product(match.problem.region.axis(axis).extent for axis in match.found.product.rows)
    return isinstance(rows, int) or (dims.range_of(rows, match.problem.symbols).low or 0) >= MANY


def _match(found: Decoding) -> Match[MatrixProduct]:
    """The product of a decoded factor."""
    matched = matrix_product(found.product)
    if isinstance(matched, str):
        raise ValueError(matched)
    return Match(Tensor(), found.product, matched)


def matrix_product(problem: Problem) -> MatrixProduct | str:
    """A region as a product for the matrix instructions, or why it is none."""
    found = read_contraction(problem.region)
    if isinstance(found, str):
        return found
    operands = operands_of(found)
    if isinstance(operands, str):
        return operands
    extents = problem.region.extents
    if any(extent == 0 for extent in extents.values()):
        return "an axis has no elements"
    sides = (("rows", found.rows), ("columns", found.columns), ("contracted elements", found.over))
    for what, axes in sides:
        if not axes:
            return f"there are no {what} of their own (a matrix-vector product)"
        bound = upper_bound(dims.product(extents[a] for a in axes), problem.symbols)
        if bound is not None and bound < FEWEST:
            return f"there are {bound} {what}, a tile of the matrix instruction has at least {FEWEST}"
    return MatrixProduct(found, operands)


def tiles(problem: Problem, matched: MatrixProduct, target: GpuTarget) -> Iterator[tuple[int, int, int, int, int, int]]:
    """(m, n, k, warps, stages, swap) that fit the problem and the shared memory."""
    operands, sizes = matched.operands, sizes_of(problem, matched.product)
    few = sizes.most_rows is not None and sizes.most_rows < target.matrix_rows
    k = k_step(operands, sizes)
    seen = set()
    for swap, (m, n, warps) in product((1, 0) if few else (0,), TILES):
        short = sizes.most_rows if swap else sizes.most_columns
        n = n if short is None else max(16, min(n, power_of_two(short)))
        if operands.products > 1 and m * n > 128 * 128:
            continue
        for stages in (3, 4, 2):
            item = (m, n, k, warps, stages, swap)
            if item not in seen and _shared_bytes(matched, item) <= target.shared_memory - 8192:
                seen.add(item)
                yield item


def _shared_bytes(matched: MatrixProduct, item: tuple[int, int, int, int, int, int]) -> int:
    """Shared memory of a schedule: what is loaded for each stage, and what is computed from it for each step."""
    m, n, k, _, stages, swap = item
    bits = 0
    for value, side in zip((matched.product.left, matched.product.right), (n, m) if swap else (m, n), strict=True):
        own = matched.operands.dtype.bits
        loaded = sum(part.dtype.bits for part in walk(value) if isinstance(part, Load)) if is_coded(value, matched) else own
        # Three products keep both halves of each operand.
        bits += side * (stages * loaded + (own if loaded != own or matched.operands.products > 1 else 0))
    return bits * k // 8


def seconds(match: Match[MatrixProduct], schedule: Schedule, target: GpuTarget, splits: int) -> float:
    """The slowest of: products at the instruction's rate in whole waves, operands from the cache, all bytes from memory."""
    operands, sizes = match.found.operands, sizes_of(match.problem, match.found.product)
    m, n, k = schedule["m"], schedule["n"], schedule["k"]
    long, short = (sizes.columns, sizes.rows) if schedule["swap"] else (sizes.rows, sizes.columns)
    programs = sizes.batch * -(-long // m) * -(-short // n) * splits
    depth = -(-sizes.depth // (splits * k)) * k
    resident = max(1, min(2, 128 * 128 // (m * n)))
    # A small tile reads more from shared memory for each product and does not keep the instruction busy.
    efficiency = 0.75 * math.sqrt(min(1.0, (m * n) / (m + n) / 64))
    products = 2.0 * m * n * depth * programs * products_on(operands, target)
    left, right = (n, m) if schedule["swap"] else (m, n)
    sides = ((match.found.product.left, left), (match.found.product.right, right))
    coded = sum(decoding_seconds(value, match.found, side * depth * programs, target) for value, side in sides)
    compute = (products / (target.rates[operands.rate] * efficiency) + coded) * waves(programs, target, resident)
    step_bytes = (m + n) * k * operands.dtype.bits / 8
    cached = programs * (depth // k) * step_bytes / target.cache_rate
    in_flight = min(resident, -(-programs // target.processors)) * (schedule["stages"] - 1) * step_bytes
    memory = traffic(match.problem) / target.memory_rate / filled(programs, in_flight, target)
    latency = 1.5e-6 + depth / k * 2e-7 * -(-programs // (target.processors * resident * 2)) / schedule["stages"] * 3
    waiting = depth / k * AWAITED * waits(match.found) * max(1.0, programs / (target.processors * 2))
    return max(compute, cached, memory) + latency + waiting + LAUNCH_SECONDS


def _launch(problem: Problem, schedule: Schedule, matched: MatrixProduct) -> Launch:
    region, found, operands = problem.region, matched.product, matched.operands
    product = open_product(problem, found, schedule)
    block = product.block
    multiply(block, product.acc, found, operands, schedule["k"], 0, dims.product(region.extents[axis] for axis in found.over))
    block.readers[found.reduce.name] = lambda _: product.acc
    for let in found.epilogue:
        value = block.let(let.name, block.lower(let.value))
        block.readers[let.name] = lambda _, value=value: value  # type: ignore[misc]
    subscripts = block.subscripts(found.store.subscripts, ())
    block.store_all(found.store.output, subscripts, block.lower(found.store.value))
    params = used_parameters(problem, (*found.prologue, found.reduce, *found.epilogue, found.store))
    hints = (("order", "grouped(8)"), ("warps", schedule["warps"]), ("stages", schedule["stages"]))
    return Launch(f"{region.name}.tensor", params, product.grid, tuple(block.body), hints=hints)


@dataclass(frozen=True)
class Product:
    """An open kernel: its block, the accumulator and the grid; `row` and `column` are the names of the tile axes."""

    block: Block
    acc: Ref
    grid: tuple[GridAxis, ...]
    row: str
    column: str


def open_product(problem: Problem, found: Contraction, schedule: Schedule) -> Product:
    """The grid over batch axes, merged rows and merged columns, and an accumulator of zeros."""
    extents = problem.region.extents
    block = fresh_block(problem, found.batch)
    grid = [GridAxis(name, 0, extents[name], None) for name in found.batch]
    block.index |= {name: dims.symbol(name) for name in found.batch}
    rows, columns = merged(block, found.rows, extents), merged(block, found.columns, extents)
    m, n = (schedule["n"], schedule["m"]) if schedule["swap"] else (schedule["m"], schedule["n"])
    grid += [GridAxis(rows.name, 0, rows.extent, m), GridAxis(columns.name, 0, columns.extent, n)]
    block.index |= rows.index | columns.index
    order = (columns.name, rows.name) if schedule["swap"] else (rows.name, columns.name)
    block.axes += order
    acc = block.let("acc", block.full(0.0 if found.reduce.dtype.is_float else 0, found.reduce.dtype, order))
    return Product(block, acc, tuple(grid), rows.name, columns.name)
