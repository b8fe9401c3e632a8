"""The strategy `attention`: softmax between two products with the scores in registers, column step by column step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from ....ir import dims
from ....ir.dims import Dim
from ....ir.expression import Apply
from ....ir.region import Let, Scalar, transform
from ....ir.region import Ref as Name
from ....ir.target import GpuTarget
from ....ir.tile.program import Dot, GridAxis, Launch, Param, Reduce, Ref, TileProgram, TileType, Value
from ....ir.types import DType
from ...regions.contraction import plain_load
from ..limits import Block as Rows
from ..limits import Limit, Spans, share_looked_at, spans_of, without
from ..lower import Block, upper_bound, used_parameters
from ..powers import Base, Powers, Words, powers_of
from ..schedule import Match, Order, Problem, Refusal, Schedule
from ..softmax import Attention
from .heads import Heads, heads_of, posed, read_heads
from .matrix import Operands, factor_dtype, narrowed, operands_for, products_on
from .shape import LAUNCH_SECONDS, beside, is_covered, memory_seconds, power_of_two, traffic
from .sweep import fresh_block

WIDEST = 512
"""The largest head size: query, keys and values of a step lie in shared memory together."""

ROWS_OF_WARP = 16
"""Rows of a tile that a warp holds with all their columns, unless there are more warps than rows for them."""

TILES: dict[tuple[int, int], tuple[tuple[int, int, int, int, int], ...]] = {
    (1, 64): ((128, 128, 64, 8, 2), (128, 64, 64, 8, 3), (64, 64, 64, 4, 3), (64, 64, 64, 4, 2), (64, 32, 64, 4, 2)),
    (1, 128): ((128, 128, 128, 8, 2), (128, 64, 128, 8, 3), (64, 64, 128, 4, 3), (64, 64, 128, 8, 2)),
    (1, 256): ((128, 64, 256, 8, 2), (64, 64, 256, 8, 2), (64, 32, 256, 8, 2)),
    (1, 512): ((64, 32, 64, 8, 2), (64, 16, 64, 8, 2)),
    (3, 64): ((128, 64, 64, 8, 2), (64, 64, 64, 8, 2), (64, 32, 64, 8, 2), (64, 32, 64, 4, 2)),
    (3, 128): ((64, 64, 64, 8, 2), (64, 32, 64, 4, 2), (64, 16, 64, 8, 1)),
    (3, 256): ((64, 16, 64, 8, 1),),
    (3, 512): ((32, 16, 64, 8, 1),),
}
"""(rows, columns of a step, elements of the head of a step, warps, stages) that keep everything in registers, by products
for each one that is asked and by head size. Beyond them the assembler spills on one target or the other."""

OF_WGMMA: dict[tuple[int, int], tuple[tuple[int, int, int, int, int], ...]] = {
    (1, 64): ((64, 128, 64, 4, 2), (128, 64, 64, 4, 3)),
    (1, 256): ((64, 32, 256, 4, 2),),
    (3, 128): ((128, 32, 128, 8, 2),),
}
"""More of them, to be preferred, where accumulators are registers of four warps: with tensor memory these spill."""

OF_WGMMA_UNLIMITED: dict[tuple[int, int], tuple[tuple[int, int, int, int, int], ...]] = {(1, 128): ((128, 64, 128, 4, 2),)}
"""And where every column counts: between the loops of limits these spill."""

RESERVED = 1024
"""Bytes of shared memory that the driver takes of each program."""

STEP_SECONDS = 3e-7
"""What a step waits for its keys and values, in each stage's turn."""

AT_EDGES = 1.2
"""How much more scores cost than a row looks at where limits leave others out: blocks of rows look at more, and ask those at edges."""

INVERSE = "%inverse"
"""How statements after the loops call the inverse of the sum of the weights: no name of a region has such a sign."""


@dataclass(frozen=True)
class GpuAttention:
    """`m` rows of one head in each program, keys and values in steps of `t` columns, an online softmax between."""

    name: str = "attention"

    def match(self, problem: Problem, target: GpuTarget) -> Match[Heads] | Refusal:
        heads = read_heads(problem)
        if isinstance(heads, str):
            return Refusal(heads)
        region, found = heads.readings[0].region, heads.attention
        if len(found.inner) != 1:
            return Refusal(f"scores fold {len(found.inner)} axes, expected one")
        for name in (*found.inner, found.feature):
            extent = region.axis(name).extent
            if not isinstance(extent, int) or not 1 <= extent <= WIDEST:
                return Refusal(f"head size {extent} is not a number from 1 to {WIDEST}")
        for operands in attention_operands(found):
            if isinstance(operands, str):
                return Refusal(operands)
            if operands.dtype.bits > 32:
                return Refusal(f"{operands.dtype} does not fit the registers, expected elements of at most 32 bits")
        if any(extent == 0 for extent in region.extents.values()):
            return Refusal("an axis has no elements")
        return Match(self, problem, heads)

    def space(self, match: Match[Heads], target: GpuTarget) -> Iterator[Schedule]:
        """Tiles of rows, of one head or of several, and steps of columns; wide heads take small ones, and come in steps themselves."""
        problem, found = posed(match)
        first = attention_operands(found)[0]
        if isinstance(first, str):
            return
        shared = [each.heads for each in match.found.readings]
        depth = _extent(problem, found.inner[0])
        wide = max(64, depth, _extent(problem, found.feature))
        key = first.products, wide
        more = OF_WGMMA.get(key, ()) + (() if found.limits else OF_WGMMA_UNLIMITED.get(key, ()))
        choices = (*(more if target.matrix_instruction == "wgmma" else ()), *TILES[key])
        for m, t, d, warps, stages in choices:
            # One more step of keys lies there while it is split or turned. The last choice is the smallest.
            held = (m + (2 * stages + 1) * t) * wide * first.dtype.bits // 8
            if held <= target.shared_memory or (m, t, d, warps, stages) == choices[-1]:
                rows = m if found.row else 1
                own = (("m", rows), ("t", t), ("d", min(d, depth)), ("warps", warps), ("stages", stages))
                for heads in shared:
                    yield Schedule(self.name, own if heads == 1 else (*own, ("heads", heads)))

    def cost(self, match: Match[Heads], schedule: Schedule, target: GpuTarget) -> float:
        """Both products and one exponential a score, or all bytes from memory."""
        return attention_seconds(match, schedule, target)

    def order(self, match: Match[Heads], schedule: Schedule, target: GpuTarget) -> Order:
        """By steps of columns and of the head, by warps that share rows; below the diagonal by blocks of rows as well, which
        look at columns that weigh nothing.
        """
        sharing = max(1, schedule["warps"] * ROWS_OF_WARP // schedule["m"])
        looking = (schedule["m"], heads_of(schedule)) if match.found.attention.limits else ()
        return self.name, schedule["t"], schedule["d"], sharing, *looking

    def tile(self, match: Match[Heads], schedule: Schedule, target: GpuTarget) -> TileProgram:
        """One launch."""
        problem, found = posed(match, schedule)
        return TileProgram(problem.region.name, (attention_launch(problem, schedule, found),), symbols=tuple(problem.symbols.ranges))


def attention_seconds(match: Match[Heads], schedule: Schedule, target: GpuTarget, splits: int = 1) -> float:
    """Predicted seconds where the columns of a row are the work of `splits` programs."""
    problem, found = posed(match, schedule)
    operands = attention_operands(found)[0]
    if isinstance(operands, str):
        return float("inf")
    sizes = {name: problem.typical(extent) for name, extent in problem.region.extents.items()}
    heads = 1
    for name in found.batch:
        heads *= sizes[name]
    m = schedule["m"]
    programs = heads * (-(-sizes[found.row] // m) if found.row else 1) * splits
    columns = -(-sizes[found.column] // (splits * schedule["t"])) * schedule["t"]
    if found.row is not None:
        rows = Rows(found.row, 0, m, found.column, int(sizes[found.column]), schedule["t"])
        columns = ceil(columns * min(1.0, AT_EDGES * share_looked_at(rows, sizes[found.row], found.limits)))
    scores = float(programs * m * columns)
    wide = _extent(problem, found.inner[0]) + _extent(problem, found.feature)
    neighbours = _neighbours(schedule, wide // 2, operands.dtype.bits, target)
    products = 2 * scores * wide * products_on(operands, target) / (target.rates[operands.rate] * _share(schedule, neighbours))
    exponentials = scores * 12 / target.rates["f32"]
    # Smaller programs wait beside each other; of single rows memory decides. Where results lie in tensor memory, programs that are beside
    # each other cover what one waits for as its buffers do (estimated).
    resident, turns = neighbours if found.row else 2, schedule["stages"]
    if target.tensor_memory and found.row:
        turns = max(turns, resident)
    latency = columns / schedule["t"] * STEP_SECONDS * -(-programs // (target.processors * resident)) / turns
    # Programs of other rows and heads read the same keys and values again, from the second cache. That few programs do not fill the
    # device is in what their steps wait, where those have buffers.
    again = programs * columns * wide * operands.dtype.bits / 8 / target.cache_rate
    memory = memory_seconds(traffic(problem), target.processors if found.row else programs, target)
    return beside((products + exponentials) * _rounds(programs, target), again, memory) + latency + LAUNCH_SECONDS


def _rounds(programs: float, target: GpuTarget) -> float:
    """Rounds of two programs beside each other, the last one of single programs if they are enough; over those without idle processors."""
    full, left = divmod(programs, 2 * target.processors)
    rounds = 2 * full + min(2, ceil(left / target.processors))
    return max(1.0, rounds * target.processors / max(1.0, programs))


def _share(schedule: Schedule, neighbours: int) -> float:
    """The share of the instruction's rate that its products reach, as measured on H100 (benchmarks/kernels/schedules.py): best where
    another program multiplies while one looks at its scores.
    """
    m, t, warps = schedule["m"], schedule["t"], schedule["warps"]
    if warps * ROWS_OF_WARP > m:
        return 0.3
    if neighbours > 1 and warps < 8:
        return 0.76 if warps * ROWS_OF_WARP == m else 0.66
    return 0.57 if t <= 64 < m else 0.5


def _neighbours(schedule: Schedule, wide: int, bits: int, target: GpuTarget) -> int:
    """Programs that a processor holds at a time: their warps, registers and shared memory."""
    m, t, warps = schedule["m"], schedule["t"], schedule["warps"]
    held = m * (t + wide) + warps * 32 * 40
    memory = target.shared_memory // (_shared(schedule, wide, bits) + RESERVED)
    return max(1, min(16 // warps, memory, target.registers // held))


def _shared(schedule: Schedule, wide: int, bits: int) -> int:
    """Bytes of shared memory of a program: its rows, and steps of keys and values."""
    return (schedule["m"] + 2 * schedule["stages"] * schedule["t"]) * wide * bits // 8


def _extent(problem: Problem, axis: str) -> int:
    return power_of_two(upper_bound(problem.region.axis(axis).extent, problem.symbols) or WIDEST)


def attention_operands(found: Attention) -> tuple[Operands | str, Operands | str]:
    """The operands of the product of query and key, and of that of the weights, which are as wide as the query, with the values."""
    query = factor_dtype(found.query)
    first = operands_for(query, factor_dtype(found.key), found.product.dtype)
    return first, operands_for(query, factor_dtype(found.value), found.result.dtype)


@dataclass(frozen=True)
class Parts:
    """Columns in `count` parts, each a program's along the grid axis `name`; what each gives goes to three workspaces: its highest
    scores, its sums of exponentials, its weighted values.
    """

    name: str
    count: int
    spaces: tuple[Param, ...]


def attention_launch(problem: Problem, schedule: Schedule, found: Attention, parts: Parts | None = None) -> Launch:
    """The kernel of all columns, or of each part of them."""
    return _Launch(problem, schedule, found, parts).launch()


class _Launch:
    """Builds the kernel: `rows` and `features` are tile axes of the result, `columns` the step of the loop."""

    def __init__(self, problem: Problem, schedule: Schedule, found: Attention, parts: Parts | None) -> None:
        self.problem, self.schedule, self.found, self.parts = problem, schedule, found, parts
        self.extents = problem.region.extents
        self.dtype: DType = found.product.dtype
        first, second = attention_operands(found)
        if isinstance(first, str) or isinstance(second, str):
            raise ValueError(f"{first} {second}")
        self.first, self.second = first, second
        self.powers: Powers = powers_of(found.score, found.before)
        self.rows = (found.row,) if found.row else ()

    def launch(self) -> Launch:
        """The kernel."""
        found, problem = self.found, self.problem
        names = (*found.batch, *((found.row,) if found.row else ()))
        block = fresh_block(problem, names)
        grid = [GridAxis(name, 0, self.extents[name], None) for name in found.batch]
        block.index |= {name: dims.symbol(name) for name in names}
        if found.row is not None:
            grid.append(GridAxis(found.row, 0, self.extents[found.row], self.schedule["m"]))
            block.axes.append(found.row)
        query: Ref | None = None
        if self.schedule["d"] >= _extent(problem, found.inner[0]):
            self.depth = self._whole(block, found.inner[0])
            query = block.let("query", self._side(block, found.query, self.first.dtype, self.depth))
        self.features = self._whole(block, found.feature)
        state = self._start(block)
        if self.parts is not None:
            grid.insert(0, GridAxis(self.parts.name, 0, self.parts.count))
        spans, known = self._spans()
        # Loops whose products pend at their end keep those of a loop before them from pending: the long one comes last.
        for span, limits in (*((edge, None) for edge in spans.edges), (spans.plain, known)):
            with block.loop(found.column, "tile", *span, self.schedule["t"], carries=state) as columns:
                block.index[found.column] = dims.symbol(columns)
                self._step(block, query, columns, state, limits)
        hints: tuple[tuple[str, str | int], ...] = (("warps", self.schedule["warps"]), ("stages", self.schedule["stages"]))
        if found.is_causal:
            # The last rows look at most columns: they come first, and what is short fills up the last round.
            hints = (*hints, ("order", "reversed"))
        name = f"{problem.region.name}.{self.schedule.strategy}"
        if self.parts is None:
            self._finish(block, state)
            return Launch(name, used_parameters(problem, problem.region.body), tuple(grid), tuple(block.body), hints=hints)
        self._keep(block, state, self.parts)
        params = (*used_parameters(problem, (*found.before, found.product, *self._read())), *self.parts.spaces)
        return Launch(name, params, tuple(grid), tuple(block.body), hints=hints)

    def _spans(self) -> tuple[Spans, tuple[Limit, ...]]:
        """The columns of a program: with scores that may not count, and without."""
        found, schedule, facts = self.found, self.schedule, self.problem.symbols
        columns, step = self.extents[found.column], schedule["t"]
        first: Dim = 0
        if found.row is not None:
            most, m = upper_bound(self.extents[found.row], facts), schedule["m"]
            facts = facts.with_range(f"{found.row}.first", 0, None if most is None else (most - 1) // m * m, m)
            first = dims.symbol(f"{found.row}.first")
        part = None
        if self.parts is not None:
            chunk = dims.ceil_div(columns, self.parts.count * step) * step
            low = dims.symbol(self.parts.name) * chunk
            facts = facts.with_range(self.parts.name, 0, self.parts.count - 1)
            part = low, low + chunk
        rows = Rows(found.row, first, schedule["m"], found.column, columns, step, part)
        return spans_of(rows, found.limits, facts)

    def _read(self) -> tuple[Let, ...]:
        """What a part reads beside its first product, as statements."""
        found = self.found
        return Let("score", (), found.score), Let("value", (), found.value)

    def _keep(self, block: Block, state: tuple[Ref, Ref, Ref], parts: Parts) -> None:
        """Write what a part gives."""
        found = self.found
        rows = (*found.batch, *self.rows)
        for space, value, axes in zip(parts.spaces, state, (rows, rows, (*rows, found.feature)), strict=True):
            block.store(space.name, (dims.symbol(parts.name), *(block.index[axis] for axis in axes)), value)

    def _whole(self, block: Block, axis: str) -> str:
        name = block.axis(axis, 0, self.extents[axis], _extent(self.problem, axis))
        block.index[axis] = dims.symbol(name)
        return name

    def _start(self, block: Block) -> tuple[Ref, Ref, Ref]:
        """Highest score and sum of weights of each row, and the sum of weighted values."""
        highest = block.let("highest", block.full(float("-inf"), self.dtype, self.rows))
        total = block.let("total", block.full(0.0, self.dtype, self.rows))
        return highest, total, block.let("sums", block.full(0.0, self.dtype, (*self.rows, self.features)))

    def _side(self, block: Block, value: Scalar, dtype: DType, axis: str, extent: Dim | None = None) -> Value:
        """An operand of a product; lanes beyond the contracted axis are 0."""
        block.outside = True
        # A row alone has no use for a tile in shared memory, where descriptors put it.
        block.hints = ("descriptor",) if self.rows and value is not self.found.query else ()
        self._named(block)
        result = block.lower(narrowed(value, dtype))
        block.outside, block.hints = False, ()
        load = plain_load(value)
        if load is not None and (load.other is None or load.other.value == 0) and not load.gathers:
            return result
        size = self.extents[self.found.inner[0]] if extent is None else extent
        return block.inside(dims.symbol(axis), size, result, 0.0)

    def _named(self, block: Block) -> None:
        for let in self.found.before:
            block.later(let)

    def _product(self, block: Block, query: Ref | None, axes: tuple[str, ...]) -> Ref:
        """query * key of one step; without a query in registers the head goes in steps, both sides streamed."""
        found = self.found
        kind = TileType(self.dtype, axes)
        zeros = block.full(0.0, self.dtype, axes)
        if query is not None:
            key = self._side(block, found.key, self.first.dtype, self.depth)
            return block.let(found.product.name, Dot(query, key, zeros, kind, self.first.precision))
        product = block.let(found.product.name, zeros)
        inner = found.inner[0]
        with block.loop(inner, "tile", 0, self.extents[inner], self.schedule["d"], carries=(product,)) as depth:
            block.index[inner] = dims.symbol(depth)
            left, right = (self._side(block, part, self.first.dtype, depth) for part in (found.query, found.key))
            block.rebind(product, Dot(left, right, product, kind, self.first.precision))
        return product

    def _step(self, block: Block, query: Ref | None, columns: str, state: tuple[Ref, Ref, Ref], limits: tuple[Limit, ...] | None) -> None:
        """One step of columns, which all exist and stay within `limits`; None: at the edges, where scores may not count."""
        found = self.found
        highest, total, sums = state
        axes = (*self.rows, columns)
        product = self._product(block, query, axes)
        block.readers[found.product.name] = lambda _: product
        score = block.let("score", self._score(block, columns, axes, limits))
        new = block.let("new", block.apply("max", highest, Reduce("max", columns, score, TileType(self.dtype, self.rows))))
        words = Words[Value](block.apply, lambda number: block.full(number, self.dtype), block.let)
        base: Base[Value] = self.powers.base(words, new)
        weights = block.let("weights", self.powers.weight(words, score, base))
        factor = block.let("factor", self.powers.factor(words, highest, base))
        added = Reduce("sum", columns, weights, TileType(self.dtype, self.rows))
        block.rebind(total, block.apply("add", block.apply("mul", total, factor), added))
        block.rebind(highest, new)
        value = self._side(block, found.value, self.second.dtype, columns, self.extents[found.column])
        narrow = weights if self.second.dtype == self.dtype else block.apply("cast", weights, dtype=self.second.dtype)
        scaled = block.apply("mul", sums, factor)
        block.rebind(sums, Dot(narrow, value, scaled, sums.type, self.second.precision))

    def _score(self, block: Block, columns: str, axes: tuple[str, ...], limits: tuple[Limit, ...] | None) -> Value:
        """The scores of a step; at the edges -inf beyond the last column."""
        self._named(block)
        score = self.powers.score if limits is None else without(self.powers.score, self.found.before, limits)
        block.outside = True
        value = block.spread(block.lower(score), axes)
        block.outside = False
        extent = self.extents[self.found.column]
        if limits is not None or is_covered(extent, self.schedule["t"], self.problem.symbols):
            return value
        return block.inside(dims.symbol(columns), extent, value, float("-inf"))

    def _finish(self, block: Block, state: tuple[Ref, Ref, Ref]) -> None:
        """Write the rows; they are multiplied with the inverse of their sum, which is at least about 1, or 0, or no number."""
        found = self.found
        _, total, sums = state
        inverse = block.let("inverse", block.apply("div", block.full(1.0, self.dtype), total))
        block.readers[found.result.name] = lambda _: sums
        block.readers[found.total.name] = lambda _: total
        block.readers[INVERSE] = lambda _: inverse
        for let in found.after:
            block.later(replace(let, value=self._multiplied(let.value)))
        subscripts = block.subscripts(found.store.subscripts, ())
        block.store_all(found.store.output, subscripts, block.lower(self._multiplied(found.store.value)))

    def _multiplied(self, value: Scalar) -> Scalar:
        """A value with products where it divides by the sum of the weights."""
        total = Name(self.found.total.name, self.dtype)

        def change(part: Scalar) -> Scalar | None:
            if isinstance(part, Apply) and part.primitive in ("div", "div_narrow") and part.args[1] == total:
                return Apply("mul", (transform(part.args[0], change), Name(INVERSE, self.dtype)), part.dtype)
            return None

        return transform(value, change)
