"""The strategy `tensor`: contractions on the matrix instructions, a tile of the result in each program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ....ir import dims
from ....ir.dims import Dim
from ....ir.expression import Apply
from ....ir.region import Load, Operand, Scalar, walk
from ....ir.region.cost import EXPENSIVE, FREE
from ....ir.target import GpuTarget
from ....ir.tile.program import GridAxis, Launch, Ref, Slice, TileProgram, TileType
from ...regions.contraction import Contraction, read_contraction
from ...regions.small_floats import small_floats
from ..lower import Block, upper_bound, used_parameters
from ..schedule import Match, Order, Problem, Refusal, Schedule
from .decoded import Decoding, decodable, decode_launches, decoding, decoding_seconds, is_coded, launch_seconds, waits
from .matrix import (
    FEWEST,
    SHALLOWEST,
    MatrixProduct,
    Merged,
    Sizes,
    instruction_order,
    is_in_chunks,
    k_steps,
    merged,
    multiply,
    operands_of,
    parted,
    products_on,
    sizes_of,
    why_not_apart,
)
from .parts import space_param
from .shape import LAUNCH_SECONDS, REACHED, beside, power_of_two, traffic
from .sweep import fresh_block

TILES = ((128, 128, 8), (64, 128, 4), (128, 64, 4), (64, 64, 4), (128, 256, 8), (64, 256, 8), (64, 32, 4), (128, 32, 4), (64, 16, 4))
"""(side of the instruction's rows, the other side, warps)."""


STAGES = (3, 4, 2, 5, 6)
"""Buffers that steps go through. What is on its way decides where a processor has one program: six of 32 KiB keep it busy."""

WHOLE_ROWS = 16
"""A number of elements of which rows must be multiples so that copies of 16 bytes serve them."""

AWAITED = 3e-7
"""Seconds of a step in which a load is waited for: what is of a few bytes, scales above all, is not copied ahead."""

EFFICIENCY = 0.86
"""The share of its rate at which the matrix instruction goes on in a loop of full tiles."""

NARROWEST = 32
"""Columns that the instruction takes the time of where it has fewer: it reads its rows from shared memory all the same."""

HALVED = 7e-11
"""Seconds in which a processor takes an element of float32 apart for three products of tf32."""

FULL_ROWS = 128
"""Rows with which tensor memory's instruction goes at its rate; with 64 it takes as long for half of the results."""

STEP = 3e-8
"""Seconds of a step beside all that it does: its barriers."""

DECODED = 2.5e-7
"""Seconds of a step that codes take through registers to where the instruction reads them, if nothing else goes on meanwhile."""

LOADED = 2.0
"""How many times as long a copy takes where many are on their way as on an idle device; one by descriptor to tensor memory's
instruction is asked for as a whole, and takes once that.
"""

AROUND = 1e-6
"""Seconds of a program beside its steps, until the first copy is there."""

STORED, STORED_WHOLE = 6e-11, 4.7e-11
"""Seconds in which a program stores one of its results, when its steps are over, and in which it does by a descriptor (estimated)."""

FEWEST_WARPS = 4
"""Warps that bring the results of a tile from tensor memory, at least."""

PERSISTENT = ("persistent", 1)
"""At most as many programs as processors, which take tiles in turn, and read and write by descriptors: what the next tile reads is on
its way while this one is written. Estimates say that Hopper gains a hundredth by it: there, where others were measured and this never
ran, it is offered, and costs `UNTRIED` more.
"""

SPECIALISED = ("specialised", 1)
"""Some warps of such a program copy and issue, others bring results away, where results lie in tensor memory. The estimator reads no
kernel of several kinds of warps, and none ran: it is offered to be measured, and costs `UNTRIED` more.
"""

UNTRIED = 2e-6
"""Seconds that a form is taken to cost more where another one was measured or estimated, and it never was."""

COPIED = 2.4e-13
"""Seconds of a byte that the threads which multiply copy themselves, by pointers (estimated)."""

DESCRIBED = 5e-7
"""Seconds in which a program makes its descriptors."""

POINTED = 1.4e-7
"""Seconds of a step in which a program that is alone copies by pointers what goes to tensor memory's instruction (estimated)."""

CHAINED, ISSUED = 1.6e-7, 1.65e-8
"""Seconds of a step at least, and more for each warp, where results lie in tensor memory: one warp issues what all wait for (estimated)."""

HELD, AT_A_TIME = 128, 64
"""Results that a thread holds when a tile is stored at once, and of each part where there are more."""

BROUGHT, COMPUTED, STANDS_FOR = 5e-7, 4e-8, 20
"""Seconds in which a part loads what follows the sum, and of each primitive of that; as many as one of them stands for (estimated)."""

WRITTEN = 128 * 128
"""Results of a tile that lie in shared memory at a time while they are written, beside the buffers: a part of it, where by descriptors."""

MANY = 64
"""Rows from which on a factor may be decoded beforehand whatever their number: fewer take less time than to write and read it whole."""


@dataclass(frozen=True)
class Tensor:
    """Tiles of m x n, the contracted axes in steps of k through `stages` buffers; `swap`: m counts columns, n counts rows.
    `persistent`: programs take tiles in turn.

    A coded factor is decoded for each tile, or once by a launch of its own (`decoded` says which), where not even the fewest rows would
    wait for it.
    """

    name: str = "tensor"

    def match(self, problem: Problem, target: GpuTarget) -> Match[MatrixProduct] | Refusal:
        found = matrix_product(problem)
        return Refusal(found) if isinstance(found, str) else Match(self, problem, found)

    def space(self, match: Match[MatrixProduct], target: GpuTarget) -> Iterator[Schedule]:
        """Tiles that fit the shared memory; few rows change places with the columns, so that the instruction is filled."""
        sides = decodable(match.problem, match.found) if _has_many_rows(match) else ()
        kinds = [(0, match), *((chosen, _match(decoding(match.problem, match.found, chosen))) for chosen in sides)]
        for decoded, each in kinds:
            for m, n, k, warps, stages, swap in tiles(each.problem, each.found, target):
                item = (m, n, k, warps, stages, swap)
                yield _schedule(item, decoded)
                if may_persist(each, m * n, shared_bytes(each.found, item), target):
                    yield from (_schedule((m, n, k, some, stages, swap), decoded, *how) for some, how in _in_turn(warps, target))

    def cost(self, match: Match[MatrixProduct], schedule: Schedule, target: GpuTarget) -> float:
        if not schedule["decoded"]:
            return seconds(match, schedule, target, 1)
        found = decoding(match.problem, match.found, schedule["decoded"])
        return seconds(_match(found), schedule, target, 1) + launch_seconds(found, target)

    def order(self, match: Match[MatrixProduct], schedule: Schedule, target: GpuTarget) -> Order:
        """By steps of k through an accumulator for each result, by the same instruction; classes of sizes share launches, too."""
        return self.name, *instruction_order(match.problem, match.found, schedule, target), schedule["decoded"]

    def tile(self, match: Match[MatrixProduct], schedule: Schedule, target: GpuTarget) -> TileProgram:
        """One launch, or more and the workspaces between them."""
        problem = match.problem
        if not schedule["decoded"]:
            return TileProgram(problem.region.name, (_launch(problem, schedule, match.found),), symbols=tuple(problem.symbols.ranges))
        found = decoding(problem, match.found, schedule["decoded"])
        launches = (*decode_launches(found, target), _launch(found.product, schedule, _match(found).found))
        spaces = tuple(space_param(space, "out") for space in found.spaces)
        return TileProgram(problem.region.name, launches, spaces, tuple(problem.symbols.ranges))


def _schedule(item: tuple[int, int, int, int, int, int], decoded: int, *more: tuple[str, int]) -> Schedule:
    names = ("m", "n", "k", "warps", "stages", "swap", "decoded")
    return Schedule("tensor", (*zip(names, (*item, decoded), strict=True), *more))


def _in_turn(usual: int, target: GpuTarget) -> Iterator[tuple[int, tuple[tuple[str, int], ...]]]:
    """Warps of programs that take tiles in turn, and what they do: where results lie in tensor memory, registers hold none meanwhile."""
    if not target.tensor_memory:
        yield usual, (PERSISTENT,)
        return
    for warps in sorted({FEWEST_WARPS, max(usual, FEWEST_WARPS)}):
        yield warps, (PERSISTENT,)
        yield warps, (PERSISTENT, SPECIALISED)


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
    """A region as a product for the matrix instructions, or why it is none; codes of small floats become numbers by their bits."""
    found = read_contraction(small_floats(problem.region))
    if isinstance(found, str):
        return found
    operands = operands_of(found)
    if isinstance(operands, str):
        return operands
    why = why_no_tile(problem, found)
    return MatrixProduct(found, operands) if why is None else why


def why_no_tile(problem: Problem, found: Contraction, any_rows: bool = False) -> str | None:
    """Why a contraction fills no tile of the matrix instruction; None where it does. It may have `any_rows`, if few are so as well."""
    extents, shared = problem.region.extents, why_not_apart(found)
    if shared is not None:
        return shared
    if any(extent == 0 for extent in extents.values()):
        return "an axis has no elements"
    fewest = 1 if any_rows else FEWEST
    sides = (("rows", found.rows, fewest), ("columns", found.columns, FEWEST), ("contracted elements", found.over, SHALLOWEST))
    for what, axes, least in sides:
        if not axes:
            return f"there are no {what} of their own (a matrix-vector product)"
        bound = upper_bound(dims.product(extents[a] for a in axes), problem.symbols)
        if bound is not None and bound < least:
            return f"there are at most {bound} {what}, a tile of the matrix instruction is used for at least {least}"
    return None


def tiles(
    problem: Problem, matched: MatrixProduct, target: GpuTarget, sizes: Sizes | None = None
) -> Iterator[tuple[int, int, int, int, int, int]]:
    """(m, n, k, warps, stages, swap) that fit the problem, whose sizes may be others than its axes have, and the shared memory."""
    operands, sizes = matched.operands, sizes or sizes_of(problem, matched.product)
    few = sizes.most_rows is not None and sizes.most_rows < full_rows(target)
    depth = dims.product(problem.region.axis(axis).extent for axis in matched.product.over)
    # Rows that start anywhere are read in short pieces, which nothing copies ahead: more of them would fill the registers. Programs
    # that hold several numbers for each result gain nothing from deep buffers: with fewer, more programs are beside each other.
    is_ahead = dims.divides(WHOLE_ROWS, depth, problem.symbols) is True and operands.products == 1 and not _is_in_parts(problem, matched)
    in_blocks = matched.product.block is not None
    steps = (block_size(problem, matched.product),) if in_blocks else k_steps(operands, sizes)
    stages = STAGES if is_ahead else STAGES[:3]
    seen = set()
    for swap, (m, n, warps), k in product((1, 0) if few else (0,), TILES, steps if is_ahead else steps[:1]):
        short = sizes.most_rows if swap else sizes.most_columns
        n = n if short is None else max(16, min(n, power_of_two(short)))
        # Several numbers for each result lie in registers: halves of both factors, or a block and the sum.
        if (operands.products > 1 or in_blocks) and m * n > 128 * 128:
            continue
        for count in stages:
            item = (m, n, k, warps, count, swap)
            if item not in seen and shared_bytes(matched, item) <= target.shared_memory - 8192:
                seen.add(item)
                yield item


def may_persist(match: Match[MatrixProduct], results: int, shared: int, target: GpuTarget) -> bool:
    """Whether programs may take tiles of so many results in turn: there is memory for what is written and what is read meanwhile."""
    operands, stored = match.found.operands, match.found.product.store.value.dtype
    if operands.products > 1 or match.found.product.block is not None or _is_in_parts(match.problem, match.found):
        return False
    factors = match.found.product.left, match.found.product.right
    if any(is_coded(value, match.found) or not _is_described(match.problem, value) for value in factors):
        return False
    held = 2 * results * 4 <= target.tensor_memory if target.tensor_memory else True
    return held and shared + min(results, WRITTEN) * stored.bits // 8 <= target.shared_memory - 2048


def _is_described(problem: Problem, value: Scalar) -> bool:
    """Whether a factor is one load that a descriptor serves."""
    while isinstance(value, Apply) and value.primitive == "cast":
        (value,) = value.args
    if not isinstance(value, Load) or value.gathers or problem.layouts.get(value.operand) is not None:
        return False
    operand = next(operand for operand in problem.region.inputs if operand.name == value.operand)
    return _is_in_rows(problem, operand, value.subscripts)


def _is_in_rows(problem: Problem, operand: Operand, subscripts: tuple[Dim, ...]) -> bool:
    """Whether a descriptor serves an operand there: its rows start at multiples of 16 bytes, and it is read or written at plain axes."""
    is_whole = dims.divides(128 // operand.type.dtype.bits, operand.type.shape[-1], problem.symbols) is True
    return is_whole and all(subscript == 0 or dims.name_of(subscript) is not None for subscript in subscripts)


def is_stored_whole(problem: Problem, found: Contraction, schedule: Schedule) -> bool:
    """Whether a program that takes tiles in turn writes its results by a descriptor: along the columns, in numbers of 16 or 32 bits.

    Estimates gain a hundredth by it. They lose where steps are over as soon as those of bytes, where threads that hold more than goes
    at once would compute with it, and where each result is computed with a number of its own from memory.
    """
    if PERSISTENT not in schedule.parameters or found.store.gathers or found.store.combine or schedule["swap"]:
        return False
    factors = (part for value in (found.left, found.right) for part in walk(value) if isinstance(part, Load))
    if any(part.dtype.bits < 16 for part in factors) or _reads_beside(found):
        return False
    if _is_more_than_held(schedule) and not _is_rounded_alone(found):
        return False
    output = next(operand for operand in problem.region.outputs if operand.name == found.store.output)
    ends_in_columns = bool(found.store.subscripts) and dims.name_of(found.store.subscripts[-1]) in found.columns
    return output.type.dtype.bits in (16, 32) and ends_in_columns and _is_in_rows(problem, output, found.store.subscripts)


def block_size(problem: Problem, found: Contraction) -> int:
    """Elements of a block of a sum that goes over blocks, typically."""
    return problem.typical(dims.product(problem.region.axis(axis).extent for axis in found.streamed))


def shared_bytes(matched: MatrixProduct, item: tuple[int, int, int, int, int, int]) -> int:
    """Shared memory of a schedule: what is loaded for each stage, and what is computed from it for each step."""
    m, n, k, _, stages, swap = item
    bits = 0
    for value, side in zip((matched.product.left, matched.product.right), (n, m) if swap else (m, n), strict=True):
        own = matched.operands.dtype.bits
        loaded = sum(part.dtype.bits for part in walk(value) if isinstance(part, Load)) if is_coded(value, matched) else own
        # Three products keep both halves of each operand.
        bits += side * (stages * loaded + (own if loaded != own or matched.operands.products > 1 else 0))
    return bits * k // 8


@dataclass(frozen=True)
class Share:
    """What the busiest processor has of a product: `steps` of all its programs, of which `resident` are there at a time; `chain` steps and
    `rounds` tiles one after the other. So many processors are `busy`.
    """

    steps: float
    resident: int
    chain: float
    rounds: float
    busy: int


def seconds(
    match: Match[MatrixProduct],
    schedule: Schedule,
    target: GpuTarget,
    splits: int,
    after: float = 0.0,
    chain: float = 0.0,
    sizes: Sizes | None = None,
) -> float:
    """The time of programs of one tile each, or of one of `splits` equal parts of its sum; `sizes` are others than the axes have."""
    sizes = sizes or sizes_of(match.problem, match.found.product)
    programs = count_tiles(sizes, schedule) * splits
    steps = -(-sizes.depth // (splits * schedule["k"]))
    each = -(-programs // target.processors)
    resident = min(residents(match, schedule, target), each)
    rounds = -(-each // resident)
    share = Share(each * steps, resident, rounds * steps, rounds, min(programs, target.processors))
    return seconds_of(match, schedule, target, share, after, chain)


def seconds_of(
    match: Match[MatrixProduct], schedule: Schedule, target: GpuTarget, share: Share, after: float = 0.0, chain: float = 0.0
) -> float:
    """The steps of all programs of one processor: products, copies from the cache and what is waited for of them, beside all bytes
    from memory. `after` are seconds of a step in which a processor computes with what it multiplied, `chain` what a step takes at least.
    Constants were measured on H100 (benchmarks/kernels/schedules.py).
    """
    operands, resident = match.found.operands, share.resident
    m, n, k = schedule["m"], schedule["n"], schedule["k"]
    stays = PERSISTENT in schedule.parameters
    is_issued = bool(target.tensor_memory) and stays
    times = products_on(operands, target)
    filled = 2.0 * max(m, full_rows(target)) * max(n, NARROWEST) * k
    products = filled * times * target.processors / (target.rates[operands.rate] * EFFICIENCY)
    left, right = (n, m) if schedule["swap"] else (m, n)
    sides = ((match.found.product.left, left), (match.found.product.right, right))
    coded = sum(decoding_seconds(value, match.found, side * k * target.processors, target) for value, side in sides)
    halved = (m + n) * k * HALVED if times > 1 else 0.0
    # Programs beside each other compute while others multiply; one alone waits for each of its own steps.
    work = products + (coded + halved + after) * max(0.7, 1.15 - 0.15 * resident) + STEP + (DECODED if coded and resident == 1 else 0.0)
    bytes_of_step = (m + n) * k * operands.dtype.bits / 8
    if not stays and not target.tensor_memory:
        work += COPIED * bytes_of_step
    elif not stays and resident == 1 and not chain:
        work += POINTED
    work = max(work, CHAINED + ISSUED * schedule["warps"]) if is_issued else work
    cached = bytes_of_step / min(target.port_rate, target.cache_rate / share.busy)
    ahead = max(chain, (1.0 if is_issued else LOADED) * target.latency / (schedule["stages"] - 1))
    memory = traffic(match.problem) / (target.memory_rate * REACHED)
    waiting = AWAITED * waits(match.found) * max(share.chain / share.rounds, share.steps / 2)
    whole = is_stored_whole(match.problem, match.found.product, schedule)
    return (
        beside(share.steps * work, share.steps * cached, share.chain * ahead, memory)
        + (1 if is_issued else share.rounds) * AROUND
        + share.rounds * m * n * (STORED_WHOLE if whole else STORED)
        + share.rounds * _parting_seconds(match.found.product, parts_of(schedule, whole))
        + (DESCRIBED if stays else 0.0)
        + (UNTRIED if SPECIALISED in schedule.parameters else 0.0)
        + waiting
        + LAUNCH_SECONDS
    )


def full_rows(target: GpuTarget) -> int:
    """Rows with which the matrix instruction goes at its rate."""
    return FULL_ROWS if target.tensor_memory else target.matrix_rows


def count_tiles(sizes: Sizes, schedule: Schedule) -> int:
    """Tiles of a product."""
    long, short = (sizes.columns, sizes.rows) if schedule["swap"] else (sizes.rows, sizes.columns)
    return sizes.batch * -(-long // schedule["m"]) * -(-short // schedule["n"])


def _is_in_parts(problem: Problem, matched: MatrixProduct) -> bool:
    """Whether the sum is so long that it is added up in parts, and has no blocks that are."""
    if matched.product.block is not None:
        return False
    depth = dims.product(problem.region.axis(axis).extent for axis in matched.product.over)
    return is_in_chunks(problem, matched.product, depth)


def residents(match: Match[MatrixProduct], schedule: Schedule, target: GpuTarget) -> int:
    """Programs that a processor holds at a time: by shared memory, and by registers or tensor memory for the results; one that stays for
    all tiles is alone.
    """
    if PERSISTENT in schedule.parameters:
        return 1
    m, n, k, warps, stages, swap = (schedule[name] for name in ("m", "n", "k", "warps", "stages", "swap"))
    shared = target.shared_memory // max(1, shared_bytes(match.found, (m, n, k, warps, stages, swap)))
    # Beside the result lies a block that is added up; of a long sum a part of it, and what rounding lost of the whole.
    in_blocks = match.found.product.block is not None
    results = m * n * (2 if in_blocks else 3 if _is_in_parts(match.problem, match.found) else 1)
    if target.tensor_memory:
        each, kept = 64 if match.found.operands.products == 1 else 150, results - m * n
        # Tensor memory is given out in powers of two.
        taken = m * n * 4 * (2 if match.found.with_scales else 1)
        held = min(target.tensor_memory // taken, target.registers // (kept + warps * 32 * each))
    else:
        each = 64 if match.found.operands.products == 1 else 120
        held = target.registers // (results + warps * 32 * each)
    return max(1, min(shared, held))


def _launch(problem: Problem, schedule: Schedule, matched: MatrixProduct) -> Launch:
    region, found, operands = problem.region, matched.product, matched.operands
    product = open_product(problem, found, schedule)
    block, persists = product.block, PERSISTENT in schedule.parameters
    block.hints = ("descriptor",) if persists else ()
    multiply(block, product.acc, found, operands, schedule["k"], 0, dims.product(region.extents[axis] for axis in found.over))
    block.hints = ()
    store_tile(product, found, schedule)
    params = used_parameters(problem, (*found.prologue, found.reduce, *found.epilogue, found.store))
    handout = "persistent" if persists else "static"
    hints = (("order", "grouped(8)"), ("handout", handout), ("warps", schedule["warps"]), ("stages", schedule["stages"]))
    kinds = (("specialise", 1),) if SPECIALISED in schedule.parameters else ()
    return Launch(f"{region.name}.tensor", params, product.grid, tuple(block.body), hints=(*hints, *kinds))


def parts_of(schedule: Schedule, is_whole: bool) -> int:
    """In how many parts a tile is stored: all that its threads can hold goes at once, and by a descriptor what is beside the buffers."""
    results = schedule["m"] * schedule["n"]
    held = results // (32 * schedule["warps"] * AT_A_TIME) if _is_more_than_held(schedule) else 1
    return max(held, results // WRITTEN if is_whole else 1)


def _is_more_than_held(schedule: Schedule) -> bool:
    return schedule["m"] * schedule["n"] > HELD * 32 * schedule["warps"]


def _reads_beside(found: Contraction) -> bool:
    """Whether what follows a sum loads a number for each row and column."""
    values = (*(let.value for let in found.epilogue), found.store.value)
    loads = (part for value in values for part in walk(value) if isinstance(part, Load))
    named = ({name for subscript in load.subscripts for name in dims.symbols(subscript)} for load in loads)
    return any(names & set(found.rows) and names & set(found.columns) for names in named)


def _is_rounded_alone(found: Contraction) -> bool:
    """Whether nothing follows a sum but its rounding."""
    computed = (part for part in walk(found.store.value) if isinstance(part, Apply) and part.primitive not in ("cast", "round"))
    return not found.epilogue and next(computed, None) is None and not any(isinstance(part, Load) for part in walk(found.store.value))


def _parting_seconds(found: Contraction, parts: int) -> float:
    """Seconds in which the parts of a tile follow each other: nothing hides what each loads and computes."""
    if parts == 1:
        return 0.0
    values = (*(let.value for let in found.epilogue), found.store.value)
    after = [part for value in values for part in walk(value)]
    computed = [part.primitive for part in after if isinstance(part, Apply) and part.primitive not in FREE]
    primitives = sum(STANDS_FOR if primitive in EXPENSIVE else 1 for primitive in computed)
    return parts * (BROUGHT * any(isinstance(part, Load) for part in after) + primitives * COMPUTED)


def store_tile(product: Product, found: Contraction, schedule: Schedule) -> None:
    """What follows a contraction whose sums are there, for one part of the tile's second axis after the other."""
    block, acc, along = product.block, product.acc, product.along
    is_whole = is_stored_whole(block.problem, found, schedule)
    hints, parts = ("descriptor",) if is_whole else (), parts_of(schedule, is_whole)
    if parts == 1:
        store_result(block, found, acc, hints)
        return
    for number in range(parts):
        index, axes = dict(block.index), list(block.axes)
        size = schedule["n"] // parts
        part = block.axis(f"{along.name}_part", dims.symbol(f"{along.name}.first") + number * size, along.extent, size)
        block.index |= parted(dims.symbol(part), along.axes, block.problem.region.extents)
        kept = tuple(part if axis == along.name else axis for axis in acc.type.axes)
        store_result(block, found, block.let("acc_part", Slice(acc, along.name, part, number, TileType(acc.type.dtype, kept))), hints)
        block.index, block.axes = index, axes


def store_result(block: Block, found: Contraction, acc: Ref, hints: tuple[str, ...] = ()) -> None:
    """What follows a contraction, for a tile whose sums are there."""
    block.readers[found.reduce.name] = lambda _: acc
    for let in found.epilogue:
        value = block.let(let.name, block.lower(let.value))
        block.readers[let.name] = lambda _, value=value: value  # type: ignore[misc]
    subscripts = block.subscripts(found.store.subscripts, ())
    block.store_all(found.store.output, subscripts, block.lower(found.store.value), hints=hints)


@dataclass(frozen=True)
class Product:
    """An open kernel: its block, the accumulator and the grid; `along` is what lies along the tile's second axis."""

    block: Block
    acc: Ref
    grid: tuple[GridAxis, ...]
    along: Merged


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
    across, along = (columns, rows) if schedule["swap"] else (rows, columns)
    order = across.name, along.name
    block.axes += order
    acc = block.let("acc", block.full(0.0 if found.reduce.dtype.is_float else 0, found.reduce.dtype, order))
    return Product(block, acc, tuple(grid), along)
