"""The strategy `stream_k`: whole waves of tiles as in `tensor`; the steps of the tiles that are left are dealt evenly to all programs.

Osama, Merrill, Cecka, Garland and Owens, Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the
GPU, arXiv:2301.03598. There programs wait for each other's pieces. Here pieces go to a workspace, and a second launch adds those of a
tile in the order of its sum: results are the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ....ir import dims
from ....ir.dims import Dim
from ....ir.region import Operand, Statement
from ....ir.target import GpuTarget
from ....ir.tile.program import GridAxis, Launch, Ref, TileProgram
from ....ir.types import TensorType, i32
from ..lower import Block, used_parameters
from ..schedule import Match, Order, Problem, Refusal, Schedule
from .matrix import MatrixProduct, instruction_order, is_in_chunks, multiply, multiply_steps, parted, sizes_of
from .parts import LARGEST, WORTH, fastest, free_name, space_param
from .shape import LAUNCH_SECONDS, memory_seconds, warps_for
from .split_k import SplitK
from .sweep import fresh_block
from .tensor import PERSISTENT, Share, Tensor, count_tiles, may_persist, residents, seconds_of, shared_bytes, store_result, tiles

FEWEST_STEPS = 4
"""Steps that each program has of the tiles that are left, at least."""
GROUP = 8
"""Rows of tiles that are walked column by column: neighbours share operands in cache."""
REGISTERS = 255
"""Registers of a thread."""
ADDRESSED, FETCHED = 120, 136
"""Of these what three loops by pointers take beside the results, and where these come from tensor memory: as kernels were compiled."""
ADDED = 2048
"""Results that a program of the second launch adds up."""


@dataclass(frozen=True)
class Deal:
    """What programs are dealt: `waves` whole tiles each, and even shares of the steps of the tiles that are `left`.

    A piece is what a share has of a tile. Along all steps one ends where a share ends or where a tile does, so that program p's piece
    of tile t is piece p + t.
    """

    programs: int
    tiles: int
    steps: int

    @property
    def waves(self) -> int:
        """Tiles that each program computes whole."""
        return self.tiles // self.programs

    @property
    def left(self) -> int:
        """Tiles that are no whole wave."""
        return self.tiles % self.programs

    @property
    def whole(self) -> int:
        """Tiles of whole waves."""
        return self.waves * self.programs

    @property
    def share(self) -> int:
        """Steps of the largest share."""
        return -(-self.left * self.steps // self.programs)

    @property
    def pieces(self) -> int:
        """Places for pieces."""
        return self.programs + self.left - 1

    def begin(self, program: Dim) -> Dim:
        """The first step of a program's share; that of the next one is its end."""
        return program * (self.left * self.steps) // self.programs

    def program_at(self, step: Dim) -> Dim:
        """The program in whose share a step is: the last one that begins there or before."""
        return ((step + 1) * self.programs - 1) // (self.left * self.steps)


@dataclass(frozen=True)
class StreamK:
    """Tiles as in `tensor`, as many programs as there are at a time; it takes what would leave much of its last wave idle."""

    name: str = "stream_k"

    def match(self, problem: Problem, target: GpuTarget) -> Match[MatrixProduct] | Refusal:
        tensor = Tensor().match(problem, target)
        if isinstance(tensor, Refusal):
            return tensor
        match = Match(self, problem, tensor.found)
        why = _why_not(match) or _why_others(match, tensor, target)
        return match if why is None else Refusal(why)

    def space(self, match: Match[MatrixProduct], target: GpuTarget) -> Iterator[Schedule]:
        """The tiles of `tensor` that do not come in whole waves, with so many programs as a wave has."""
        for m, n, k, warps, stages, swap in tiles(match.problem, match.found, target):
            usual = (("m", m), ("n", n), ("k", k), ("warps", warps), ("stages", stages), ("swap", swap))
            together = residents(match, Schedule(self.name, usual), target)
            shared = shared_bytes(match.found, (m, n, k, warps, stages, swap))
            # Where results lie in registers, one loop over tiles and steps beside those over steps leaves too few.
            stays = target.tensor_memory and may_persist(match, m * n, shared, target)
            persistent = ((1, (PERSISTENT,)),) if stays else ()
            by_pointers = ((together, ()),) if _fits_registers(match, m * n // (32 * warps), target) else ()
            for each, more in (*by_pointers, *persistent):
                names = (*usual[:3], ("programs", each * target.processors), *usual[3:], *more)
                schedule = Schedule(self.name, names)
                deal = deal_of(match, schedule)
                if deal.left * deal.steps >= FEWEST_STEPS * deal.programs and deal.pieces * m * n <= LARGEST:
                    yield schedule

    def cost(self, match: Match[MatrixProduct], schedule: Schedule, target: GpuTarget) -> float:
        """That of `tensor` for even shares, and of adding up pieces."""
        deal, found = deal_of(match, schedule), match.found.product
        resident = max(1, schedule["programs"] // target.processors)
        steps = deal.waves * deal.steps + deal.share
        share = Share(resident * steps, resident, steps, deal.waves + 2, target.processors)
        results = deal.left * schedule["m"] * schedule["n"]
        read = float(deal.pieces * schedule["m"] * schedule["n"] + results) * found.reduce.dtype.bits / 8
        adding = LAUNCH_SECONDS + 1e-6 + memory_seconds(read, results / ADDED, target)
        return seconds_of(match, schedule, target, share) + adding

    def order(self, match: Match[MatrixProduct], schedule: Schedule, target: GpuTarget) -> Order:
        """Which tiles are in pieces, and where these end; inside of one as in `tensor`."""
        names = ("m", "n", "k", "programs")
        return self.name, *(schedule[name] for name in names), *instruction_order(match.problem, match.found, schedule, target)

    def tile(self, match: Match[MatrixProduct], schedule: Schedule, target: GpuTarget) -> TileProgram:
        """Two launches and the workspace between them."""
        problem, found = match.problem, match.found.product
        deal = deal_of(match, schedule)
        shape = TensorType(found.reduce.dtype, (deal.pieces, schedule["m"], schedule["n"]))
        space = Operand(free_name(problem, "pieces"), shape)
        launches = (_products(match, schedule, deal, space), _sums(match, schedule, deal, space))
        return TileProgram(problem.region.name, launches, (space_param(space, "out"),), tuple(problem.symbols.ranges))


def _why_not(match: Match[MatrixProduct]) -> str | None:
    """Why the steps of a product cannot be dealt; None where they can."""
    region, found = match.problem.region, match.found.product
    if not all(isinstance(extent, int) for extent in region.extents.values()):
        return "sizes are not known when building, so that there is no number of tiles"
    if is_in_chunks(match.problem, found, dims.product(region.extents[axis] for axis in found.over)):
        return "the sum is so long that it is added up in chunks"
    return None


def _why_others(match: Match[MatrixProduct], tensor: Match[MatrixProduct], target: GpuTarget) -> str | None:
    """Why whole tiles or equal parts are better; None where shares are faster than both."""
    own = fastest(match, target)
    if own == float("inf"):
        return "tiles come in whole waves, or too few steps are left for a share of each program"
    whole = fastest(tensor, target)
    if own > WORTH * whole:
        return f"whole tiles take {whole * 1e6:.1f} us, shares of the last of them would take {own * 1e6:.1f} us"
    parts = fastest(Match(SplitK(), match.problem, match.found), target)
    if parts <= WORTH * whole and own > WORTH * parts:
        return f"equal parts of the sum take {parts * 1e6:.1f} us, shares of it would take {own * 1e6:.1f} us"
    return None


def _fits_registers(match: Match[MatrixProduct], results: int, target: GpuTarget) -> bool:
    """Whether a thread has registers for so many results beside the addresses of three loops; Hopper adds up products of fp8 twice."""
    dtype = match.found.operands.dtype
    twice = not target.tensor_memory and dtype.is_float and dtype.bits == 8
    return results * (2 if twice else 1) + (FETCHED if target.tensor_memory else ADDRESSED) <= REGISTERS


def deal_of(match: Match[MatrixProduct], schedule: Schedule) -> Deal:
    """How the tiles of a schedule are dealt."""
    sizes = sizes_of(match.problem, match.found.product)
    return Deal(schedule["programs"], count_tiles(sizes, schedule), -(-sizes.depth // schedule["k"]))


# --- launches ---------------------------------------------------------------------------------------------------------


def _products(match: Match[MatrixProduct], schedule: Schedule, deal: Deal, space: Operand) -> Launch:
    """Whole tiles, which are stored, and pieces: what a share has of the tile in which it begins, and of the next one."""
    problem, found, operands, step = match.problem, match.found.product, match.found.operands, schedule["k"]
    depth = dims.product(problem.region.extents[axis] for axis in found.over)
    block = fresh_block(problem, ())
    name = block.unique("program")
    program = dims.symbol(name)
    read, flat = (("descriptor",), (("flatten", 1),)) if PERSISTENT in schedule.parameters else ((), ())
    if deal.waves:
        with block.loop("tile", "scalar", program, deal.whole, deal.programs, hints=flat) as tile:
            acc = _open_tile(block, match, schedule, dims.symbol(tile))
            block.hints = read
            multiply(block, acc, found, operands, step, 0, depth)
            block.hints = ()
            store_result(block, found, acc)
    begin, end = _named(block, "begin", deal.begin(program)), _named(block, "end", deal.begin(program + 1))
    first, last = _named(block, "first", begin // deal.steps), _named(block, "last", (end - 1) // deal.steps)

    def piece(tile: Dim, low: Dim, high: Dim) -> None:
        acc = _open_tile(block, match, schedule, tile + deal.whole)
        block.hints = read
        multiply_steps(block, acc, found, operands, step, low * step, high * step, depth)
        block.hints = ()
        block.store(space.name, (program + tile, *(_within(axis) for axis in acc.type.axes)), acc)

    piece(first, begin % deal.steps, dims.minimum(end - first * deal.steps, deal.steps))
    with block.condition(block.apply("lt", block.index_value(first, i32), block.index_value(last, i32))):
        piece(last, 0, (end - 1) % deal.steps + 1)
    stored: tuple[Statement, ...] = (*found.epilogue, found.store) if deal.waves else ()
    params = (*used_parameters(problem, (*found.prologue, found.reduce, *stored)), space_param(space, "out"))
    hints = (("warps", schedule["warps"]), ("stages", schedule["stages"]))
    return Launch(f"{problem.region.name}.stream_k", params, (GridAxis(name, 0, deal.programs),), tuple(block.body), hints=hints)


def _sums(match: Match[MatrixProduct], schedule: Schedule, deal: Deal, space: Operand) -> Launch:
    """The pieces of each tile that was left, added in the order of the sum; then what follows the contraction."""
    problem, found = match.problem, match.found.product
    block = fresh_block(problem, ())
    tile, strip = block.unique("tile"), block.unique("strip")
    height = max(1, min(schedule["m"], ADDED // schedule["n"]))
    left, offset = dims.symbol(tile), dims.symbol(strip) * height
    axes = _open_axes(block, match, schedule, left + deal.whole, offset, height)
    places = offset + _within(axes[0]), _within(axes[1])
    begin = left * deal.steps
    first, last = _named(block, "first", deal.program_at(begin)), _named(block, "last", deal.program_at(begin + deal.steps - 1))
    total = block.let("total", block.load(space.name, (first + left, *places), space.type.dtype))
    with block.loop("program", "scalar", first + 1, last + 1, 1, carries=(total,)) as program:
        piece = block.load(space.name, (dims.symbol(program) + left, *places), space.type.dtype)
        block.rebind(total, block.apply("add", total, piece))
    store_result(block, found, total)
    written = frozenset({found.store.output}) if deal.waves else frozenset[str]()
    params = (*used_parameters(problem, (*found.epilogue, found.store), written), space_param(space, "in"))
    grid = (GridAxis(tile, 0, deal.left), GridAxis(strip, 0, schedule["m"] // height))
    hints = (("warps", warps_for(height * schedule["n"])),)
    return Launch(f"{problem.region.name}.stream_k_sum", params, grid, tuple(block.body), hints=hints)


def _within(axis: str) -> Dim:
    """The place of an element within its tile; those outside of the product have none."""
    return dims.symbol(axis) - dims.symbol(f"{axis}.first")


def _named(block: Block, name: str, value: Dim) -> Dim:
    """An index expression by a name."""
    return block.place(block.let(name, block.index_value(value, i32)))


def _open_tile(block: Block, match: Match[MatrixProduct], schedule: Schedule, tile: Dim) -> Ref:
    """The axes of a tile, and an accumulator of zeros."""
    total = match.found.product.reduce.dtype
    axes = _open_axes(block, match, schedule, tile, 0, schedule["m"])
    return block.let("acc", block.full(0.0 if total.is_float else 0, total, axes))


def _open_axes(block: Block, match: Match[MatrixProduct], schedule: Schedule, tile: Dim, offset: Dim, height: int) -> tuple[str, str]:
    """The axes of a tile by its number, or of `height` lines of it from `offset` on."""
    found, extents = match.found.product, match.problem.region.extents
    m, n, swap = schedule["m"], schedule["n"], schedule["swap"]
    sides = (found.rows, found.columns)
    rows, columns = (dims.product(extents[axis] for axis in side) for side in sides)
    count_rows, count_columns = (dims.ceil_div(size, step) for size, step in zip((rows, columns), (n, m) if swap else (m, n), strict=True))
    assert isinstance(count_rows, int) and isinstance(count_columns, int)
    block.index |= parted(tile // (count_rows * count_columns), found.batch, extents)
    row, column = _place(block, tile % (count_rows * count_columns), count_rows, count_columns)
    opened = []
    lines, others = (found.rows, rows, row), (found.columns, columns, column)
    ordered = zip((others, lines) if swap else (lines, others), (m, n), (offset, 0), (height, n), strict=True)
    for (names, size, place), step, start, extent in ordered:
        axis = block.axis("_".join(names), place * step + start, size, extent)
        block.index |= parted(dims.symbol(axis), names, extents)
        opened.append(axis)
    return opened[0], opened[1]


def _place(block: Block, tile: Dim, rows: int, columns: int) -> tuple[Dim, Dim]:
    """Row and column of a tile by its number: in groups of rows, column by column within one."""
    group = min(GROUP, rows)
    first, within = tile // (group * columns) * group, tile % (group * columns)
    height = dims.minimum(rows - first, group) if rows % group else group
    row, column = first + within % height, within // height
    # Where the last group is smaller, ranges alone do not say that these are inside.
    inside = (dims.minimum(row, rows - 1), dims.minimum(column, columns - 1)) if rows % group else (row, column)
    return _named(block, "row", inside[0]), _named(block, "column", inside[1])
