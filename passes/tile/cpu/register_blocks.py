"""The tile program of `packed`: a launch over tiles of rows and columns, walked in register blocks, and the sums of a block.

A sum streams along its innermost contracted axis, in steps where it is long. Where blocks are summed (`../blocks.py`) each has an
accumulator of its own, and the sums of the left factor alone are found once for a tile of the grid.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

from ....ir import dims
from ....ir.codes import FOUR
from ....ir.dims import Dim
from ....ir.expression import Apply, Constant
from ....ir.formats.sparse import SERVED
from ....ir.layout import Factor
from ....ir.region import Load, Reduce, Ref, Scalar, transform, walk
from ....ir.target import CpuLevel
from ....ir.tile.program import Dot, GridAxis, Launch, Param, TileApply, TileType, Value
from ....ir.tile.program import Load as TileLoad
from ....ir.tile.program import Reduce as TileReduce
from ....ir.tile.program import Ref as TileRef
from ....ir.types import bf16, f16, f32
from ...regions.contraction import Contraction, axes_of, group_of, in_fours, plain_load, stride_of, unwidened, whole_step
from ...regions.selections import find_selections
from ..expand import with_expansion
from ..lower import Block, is_long, parameters, upper_bound, zero
from ..schedule import Order, Problem, Schedule
from .matrix import WHOLE, ladder
from .traffic import LINE

CHAIN, STEP, LEAST = 1024, 512, 128
"""A sum of more than CHAIN products is a sum of partial ones of at most STEP: the error of a plain sum grows with the
root of its length, and this keeps it near that of libraries, which block for their caches. Adding a partial sum costs
as much as a few products of its block, so that one of fewer than LEAST does not pay. Sums of more than 16 * WHOLE
carry along what is lost: their error is that of one partial sum, which has LEAST.
"""
LONGEST = 4 * WHOLE
"""The longest sum that stays in tiles of matrices: bringing it from there and back costs as much as many products, and the error of a
plain sum of so many is far below that of factors of 16 bits.
"""
LANES = 16
"""Rows and neighbours of a square that is turned at once."""
OFTEN, APART, NEAR = 4, 256, 32 << 10
"""Blocks of rows that read a column block, and columns of its matrix, from which on it is copied, if it is of more bytes than the
first cache holds.
"""


def few_rows(target: CpuLevel, sums: int, heights: tuple[int, ...] = (8, 4, 1)) -> list[tuple[int, tuple[int, ...]]]:
    """Blocks of few rows, and how many vectors of columns they may have, the most first, so that `sums` for each result, a vector of
    each column and one of a row fit the registers.

    One row may have as many columns as fill lines of memory with bytes: each vector is used as it comes, and where sums are
    of blocks those of all blocks may wait in memory.
    """
    widths = {rows: tuple(n for n in (4, 2, 1) if sums * rows * n + n + 1 <= target.registers) for rows in heights}
    if 1 in widths and (whole := LINE // target.lanes) > widths[1][0]:
        widths[1] = (whole, *widths[1])
    return [(rows, vectors) for rows, vectors in widths.items() if vectors]


def whole_blocks(low: Dim, high: Dim, rows: int) -> Dim:
    """Where the whole blocks of so many rows end that begin at `low`."""
    return low + dims.floor_divide(high - low, rows) * rows


def lengths_of(extent: Dim, most: int) -> set[int]:
    """How many rows grid tiles of at most so many have; nothing where only calls know."""
    return {length for length in (min(most, extent), extent % most) if length} if isinstance(extent, int) else set()


class RegisterBlocks:
    """Builds the launch of one contraction."""

    def __init__(self, problem: Problem, schedule: Schedule, found: Contraction, target: CpuLevel, in_tiles: bool = False) -> None:
        self.problem = problem
        self.region = problem.region
        self.schedule = schedule
        self.found = found
        self.extents = problem.region.extents
        self.column = found.columns[-1]
        self.row = found.rows[-1] if found.rows else None
        self.inner = found.over[-1]
        self.in_tiles = in_tiles
        self.in_fours = in_fours(self.region, found, problem.symbols)
        """Whether bytes are multiplied four at a time."""
        self.group, self.pairs = self._group(target), target.pairs
        """How many neighbours along the sum lie together in a panel that is copied."""
        self.few, self.lanes, self.level2 = few_rows(target, 1 if found.block is None else 2), target.lanes, target.level2_bytes
        self.width = schedule["nr"]
        """Columns of the register block at hand."""
        self.widens = self.row is not None and not in_tiles and self._is_widened(target)
        """Whether the left factor is computed, or of 16 bits where nothing multiplies those: that is done in rows, before they are used."""
        self._is_inside = False

    def _is_widened(self, target: CpuLevel) -> bool:
        left, right = plain_load(self.found.left), plain_load(self.found.right)
        if (self.found.block or self.found.reduce).dtype != f32:
            return False
        if left is None:
            return True
        if self.problem.typical(self.extents[self.inner]) < LANES:
            return False
        are_alike = right is not None and right.dtype == left.dtype
        return left.dtype in (bf16, f16) and not (are_alike and target.dot(left.dtype.name, left.dtype.name, "f32") is not None)

    def order(self) -> Order:
        """The contracted axes in the order of their loops, where partial sums begin, and whether roundings are carried along."""
        over = self.found.over
        return over, self._step(), self._is_compensated(), self.group, *(self._begins_part(over[n:]) for n in range(len(over) - 1))

    def launch(self) -> Launch:
        block = self._fresh()
        grid = self._grid(block)
        alone = None if self.found.alone is None else self._alone(block, self.found.alone)
        if alone is not None and self.found.alone is not None:
            block.readers[self.found.alone.name] = lambda inner: self._read_alone(inner, alone)
        self._prepare(block)
        if self.row is None:
            with block.loop(self.column, "walk", 0, 0, self.schedule["nr"], parent=self.column) as columns:
                block.index[self.column] = dims.symbol(columns)
                self._block(block, columns, self._panel(block, columns))
        else:
            self._rows(block, self.row)
        return Launch(f"{self.region.name}.{self.schedule.strategy}", self._parameters(), tuple(grid), tuple(block.body))

    def _fresh(self) -> Block:
        return Block(self.problem, names={axis.name: 1 for axis in self.region.axes})

    def _grid(self, block: Block) -> list[GridAxis]:
        """The axes of the grid; those of its tiles are open then."""
        grid = [self._whole(block, name) for name in (*self.found.batch, *self.found.rows[:-1], *self.found.columns[:-1])]
        columns_of_tiles = GridAxis(self.column, 0, self.extents[self.column], self.schedule["n"])
        if self.row is not None:
            rows_of_tiles = GridAxis(self.row, 0, self.extents[self.row], self.schedule["m"])
            if self._is_by_columns(self.row):
                grid.insert(len(grid) - len(self._shares_columns()), columns_of_tiles)
                grid.append(rows_of_tiles)
            else:
                grid += [rows_of_tiles, columns_of_tiles]
            block.axes.append(self.row)
        else:
            grid.append(columns_of_tiles)
        block.axes.append(self.column)
        return grid

    def _prepare(self, block: Block) -> None:
        """What all columns of a grid tile share besides."""

    def _parameters(self) -> tuple[Param, ...]:
        return parameters(self.problem)

    def _shares_columns(self) -> list[str]:
        """The innermost axes of the grid, those of its tiles aside, that a column of the right factor serves all of."""
        outer, moving = (*self.found.batch, *self.found.rows[:-1], *self.found.columns[:-1]), axes_of(self.found.right)
        return list(itertools.takewhile(lambda name: name not in moving, reversed(outer)))

    def _is_by_columns(self, row: str) -> bool:
        """Whether all rows that a tile's columns serve come before the next columns: what is read again for each tile of the other
        factor is less then. A factor of which half the second cache holds all stays there.
        """
        shared = {name: self.problem.typical(self.extents[name]) for name in self._shares_columns()}
        among = math.prod(count for name, count in shared.items() if name in self.found.batch)
        sizes = [self._bytes(self.found.left) * among, self._bytes(self.found.right)]
        tiles = [-(-self.problem.typical(self.extents[self.column]) // self.schedule["n"])]
        tiles.append(-(-self.problem.typical(self.extents[row]) // self.schedule["m"]) * math.prod(shared.values()))
        again = [size * (1 if size <= self.level2 // 2 else count) for size, count in zip(sizes, tiles, strict=True)]
        return sizes[1] + again[0] < sizes[0] + again[1]

    def _bytes(self, value: Scalar) -> int:
        """Of all that a factor is read from, for one index of the batch."""
        found = 0
        for operand in {part.operand for part in walk(value) if isinstance(part, Load)}:
            kind = self.region.operand(operand).type
            found += math.prod(map(self.problem.typical, kind.shape)) * kind.dtype.bits // 8
        return found // max(1, math.prod(self.problem.typical(self.extents[name]) for name in self.found.batch))

    def _rows(self, block: Block, row: str) -> None:
        """Columns by rows. What blocks of `mr` rows leave goes in blocks of fewer rows, which are wider: registers hold as many sums."""
        for width, loop in list(self._row_loops(row, block)):
            self.width = width
            with block.loop(self.column, "walk", 0, 0, self.width, parent=self.column) as columns:
                block.index[self.column] = dims.symbol(columns)
                panel = self._panel(block, columns)
                with loop() as rows:
                    block.index[row] = dims.symbol(rows)
                    # Registers hold rows x columns, the columns in lanes, whatever the order of the loops is.
                    block.axes = [a for a in block.axes if a != columns] + [columns]
                    self._block(block, columns, panel)

    def _row_loops(self, row: str, block: Block) -> Iterator[tuple[int, Callable[[], AbstractContextManager[str]]]]:
        """The loops over blocks of rows, one after the other, each with the columns of its blocks."""
        blocks = self._blocks(row)
        start: Dim = dims.symbol(f"{row}.first")
        end = dims.minimum(start + self.schedule["m"], self._end(row))
        for heights, width in blocks:
            high = end
            if heights[-1] != 1:
                high = start
                for height in heights:
                    high = whole_blocks(high, end, height)
            if len(blocks) == 1:
                yield width, partial(block.loop, row, "walk", 0, 0, heights[0], parent=row, tail=heights[1:])
            else:
                yield width, partial(block.loop, row, "tile", start, high, heights[0], tail=heights[1:])
            start = high

    def _end(self, row: str) -> Dim:
        """Where the rows end that the grid's tiles are of."""
        return self.extents[row]

    def _lengths(self, row: str) -> set[int]:
        """How many rows tiles of the grid have; nothing where only calls know."""
        return lengths_of(self.extents[row], self.schedule["m"])

    def _blocks(self, row: str) -> list[tuple[tuple[int, ...], int]]:
        """Register blocks: rows of each, in falling order, with their columns. The fewer rows, the more columns: one row of few columns
        would wait for its own sums.
        """
        height, width, left = self.schedule["mr"], self.schedule["nr"], self._lengths(row)
        if self.in_tiles:
            return [(ladder(height, left), width)]
        found: list[tuple[tuple[int, ...], int]] = [((height,), width)]
        # What is copied for blocks of `nr` columns is read by these alone.
        fitting = {n for _, vectors in self.few for n in vectors if self._fills(n * self.lanes)} if self._copied_depth() is None else set()
        for rows, vectors in self.few:
            wide = max((width, *(n * self.lanes for n in fitting.intersection(vectors))))
            left = {length % found[-1][0][-1] for length in left}
            if rows >= height or (left and max(left) < rows) or (rows > 4 and wide == width):
                continue
            if wide == found[-1][1]:
                found[-1] = ((*found[-1][0], rows), wide)
            else:
                found.append(((rows,), wide))
        return found

    def _fills(self, width: int) -> bool:
        """Whether blocks of so many columns fill the grid tiles."""
        return self.schedule["n"] % width == 0 and dims.divides(width, self.extents[self.column]) is True

    def _alone(self, block: Block, reduce: Reduce) -> str:
        """The sums of the left factor by itself in each block, for all rows of a grid tile: columns share them."""
        outer = self.found.over[: -len(self.found.streamed)]
        sizes = [(name, dims.evaluate(self.extents[name], {})) for name in outer]
        if self.row is None:
            local = block.local("alone", reduce.dtype, sizes)
            self._sum_blocks(block, reduce, local, (), list(outer))
            return local
        local = block.local("alone", reduce.dtype, [(self.row, self.schedule["m"]), *sizes])
        with block.loop(self.row, "walk", 0, 0, 1, parent=self.row) as row:
            block.index[self.row] = dims.symbol(row)
            self._sum_blocks(block, reduce, local, (self._in_tile(row),), list(outer))
        return local

    def _in_tile(self, rows: str) -> Dim:
        """The place of rows among those of the grid tile."""
        return dims.symbol(f"{rows}.first") + dims.symbol(f"{rows}.lane") - dims.symbol(f"{self.row}.first")

    def _sum_blocks(self, block: Block, reduce: Reduce, local: str, place: tuple[Dim, ...], over: list[str]) -> None:
        """Store the sum of each block of one row; the parts of a block, of which there are few, one after the other."""
        if over:
            with block.loop(over[0], "scalar", 0, self.extents[over[0]], 1) as outer:
                block.index[over[0]] = dims.symbol(outer)
                self._sum_blocks(block, reduce, local, (*place, dims.symbol(outer)), over[1:])
            return
        *parts, inner = self.found.streamed
        total: Value = block.full(zero(reduce.dtype), reduce.dtype)
        for at in itertools.product(*(range(dims.evaluate(self.extents[name], {})) for name in parts)):
            block.index.update(zip(parts, at, strict=True))
            axis = block.axis(inner, 0, self.extents[inner], dims.evaluate(self.extents[inner], {}))
            block.index[inner] = dims.symbol(axis)
            value = block.let("terms", block.lower(accumulated(reduce.value, TileType(reduce.dtype))))
            block.axes.remove(axis)
            part = TileReduce("sum", axis, value, TileType(reduce.dtype, block.ordered(set(value.type.axes))))
            total = block.let("sum", block.apply("add", total, part))
        block.store(local, place, total)

    def _read_alone(self, block: Block, local: str) -> Value:
        """The sums of the left factor in the block at hand, one for each row."""
        outer = self.found.over[: -len(self.found.streamed)]
        place = [block.index[name] for name in outer]
        if self.row is not None:
            place.insert(0, self._in_tile(str(block.index[self.row])))
        assert self.found.alone is not None
        return block.load(local, place, self.found.alone.dtype)

    def _whole(self, block: Block, name: str) -> GridAxis:
        block.index[name] = dims.symbol(name)
        return GridAxis(name, 0, self.extents[name], None)

    def _panel(self, block: Block, columns: str) -> str | None:
        """The right factor of one column block in a cache tile, if its lanes or its rows lie apart and it fits.

        Neighbours along the sum that instructions add up at once lie together.
        """
        load, depth = plain_load(self.found.right), self._copied_depth()
        if load is None or depth is None:
            return None
        group, is_near = self.group, stride_of(load, self.region, self.column) == 1
        order = together(group) if group > 1 else ()
        value = load if group > 1 else self.found.right
        local = block.local("panel", value.dtype, (("k", depth), ("n", self.width)), order)
        along = stride_of(load, self.region, self.inner) == 1
        step = 1 if group == 1 else LANES if along and not is_near and depth % LANES == 0 else group
        with block.loop(self.inner, "scalar" if step == 1 else "tile", 0, self.extents[self.inner], step) as k:
            axes = block.axes
            # What lies side by side in memory is read in vectors: columns, or neighbours along the sum.
            block.axes = axes if step in (1, LANES) else [*(axis for axis in axes if axis != columns), columns]
            block.index[self.inner] = dims.symbol(k)
            block.outside = True
            lowered = block.lower(value)
            block.outside = False
            block.store(local, (dims.symbol(k), dims.symbol(f"{columns}.lane")), lowered)
            block.axes = axes
        return local

    def _copied_depth(self) -> int | None:
        """How many terms the copies of column blocks of the right factor have; None where these are read as they lie."""
        load, depth = plain_load(self.found.right), upper_bound(self.extents[self.inner], self.problem.symbols)
        if load is None or load.operand in self.problem.layouts or len(self.found.over) > 1:
            return None
        if depth is None or depth * load.dtype.bits > WHOLE * f32.bits:
            return None
        is_near = stride_of(load, self.region, self.column) == 1
        is_copied = self.group > 1 or not is_near or self._is_read_often(depth * self.found.right.dtype.bits // 8)
        return depth if is_copied else None

    def _group(self, target: CpuLevel) -> int:
        """So many as are added up at once, if there are rows to share a copy: bytes, and 16 bits where there is an instruction."""
        group, right = group_of(self.region, self.found, target.pairs, self.problem.symbols), plain_load(self.found.right)
        if self.row is None or right is None or group == 1:
            return 1
        has_dot = target.dot(right.dtype.name, right.dtype.name, self.found.reduce.dtype.name) is not None
        return group if self.in_tiles or has_dot or self.in_fours else 1

    def _is_read_often(self, depth: int) -> bool:
        """Whether so many blocks of rows read a column block that it is worth a copy: its rows lie apart, each in a page of its own.

        `depth` is the bytes of a column.
        """
        if self.row is None or depth * self.schedule["nr"] <= NEAR or self.in_fours:
            return False
        rows = min(self.problem.typical(self.extents[self.row]), self.schedule["m"])
        return rows >= OFTEN * self.schedule["mr"] and self.problem.typical(self.extents[self.column]) >= APART

    def _block(self, block: Block, columns: str, panel: str | None) -> None:
        tile = block.ordered({columns, *([str(block.index[self.row])] if self.row else [])})
        kind = TileType(self.found.reduce.dtype, tile)
        zeros = block.full(zero(kind.dtype), kind.dtype, tile)
        if self.in_tiles and len(self.found.over) == 1 and self._step() is None:
            # Tiles that one dot fills begin as zeros in registers, and need no memory of zeros.
            total = self._once(block, zeros, kind, columns, panel)
        else:
            total = self._contract(block, block.let("acc", zeros), kind, columns, panel, list(self.found.over))
        acc = total if isinstance(total, TileRef) else block.let("acc", total)
        block.readers[self.found.reduce.name] = lambda _: acc
        for let in self.found.epilogue:
            value = block.let(let.name, block.lower(let.value))
            block.readers[let.name] = lambda _, value=value: value  # type: ignore[misc]
        subscripts = block.subscripts(self.found.store.subscripts, ())
        block.store(self.found.store.output, subscripts, block.lower(self.found.store.value))

    def _contract(self, block: Block, acc: TileRef, kind: TileType, columns: str, panel: str | None, over: list[str]) -> Value:
        """`acc` plus the sum of products: loops over the outer contracted axes, the last one is streamed."""
        if self.found.block is not None and tuple(over) == self.found.streamed and not self._is_inside:
            return self._scaled(block, acc, kind, columns, panel, self.found.block)
        if len(over) == 1:
            return self._stream(block, acc, kind, columns, panel)
        if self._is_inside:
            return self._unrolled(block, acc, kind, columns, panel, over)
        lost = self._lost(block, acc)
        with block.loop(over[0], "scalar", 0, self.extents[over[0]], 1, carries=(acc,) if lost is None else (acc, lost)) as k:
            block.index[over[0]] = dims.symbol(k)
            self._add(block, acc, lost, over, lambda start: self._contract(block, start, kind, columns, panel, over[1:]))
        return acc

    def _add(self, block: Block, acc: TileRef, lost: TileRef | None, over: list[str], step: Callable[[TileRef], Value]) -> None:
        """What a step along the first of these axes makes of `acc`, or of a partial sum that is added to it then."""
        start, kind = acc, acc.type
        if lost is not None or self._begins_part(over):
            start = block.let("part", block.full(zero(kind.dtype), kind.dtype, kind.axes))
        value = step(start)
        if start is not acc:
            block.add_to(acc, lost, value)
        elif value is not acc:
            block.rebind(acc, value)

    def _unrolled(self, block: Block, acc: TileRef, kind: TileType, columns: str, panel: str | None, over: list[str]) -> Value:
        """As `_contract` for the few parts of a block, whose codes lie in the same bytes: each is shifted by a number that is known."""
        for part in range(dims.evaluate(self.extents[over[0]], {})):
            block.index[over[0]] = part
            value = self._contract(block, acc, kind, columns, panel, over[1:])
            acc = value if isinstance(value, TileRef) else block.let("block", value)
        return acc

    def _scaled(self, block: Block, acc: TileRef, kind: TileType, columns: str, panel: str | None, inner: Reduce) -> Value:
        """`acc` plus the sum of one block, scaled."""
        part = TileType(inner.dtype, kind.axes)
        start = block.full(zero(part.dtype), part.dtype, part.axes)
        value, more = _without_addend(self.found.reduce.value, inner)
        if more is not None:
            # What is added to a sum of integers begins it as well: that is exact, and costs nothing.
            start = block.apply("add", start, block.lower(more))
        start = block.let("block", start)
        self._is_inside = True
        found = self._contract(block, start, part, columns, panel, list(self.found.streamed))
        self._is_inside = False
        total = found if isinstance(found, TileRef) else block.let("block", found)
        block.readers[inner.name] = lambda _: total
        return scaled_onto(block, acc, self._of_columns(block, columns, value))

    def _stream(self, block: Block, acc: TileRef, kind: TileType, columns: str, panel: str | None) -> Value:
        """`acc` plus the sum along the innermost contracted axis, in one `dot` or in one for each step."""
        extent, step = self.extents[self.inner], self._step()
        if step is None:
            return self._once(block, acc, kind, columns, panel)
        lost = self._lost(block, acc)
        with block.loop(self.inner, "tile", 0, extent, step, carries=(acc,) if lost is None else (acc, lost)) as k:
            block.index[self.inner] = dims.symbol(k)
            zeros = block.let("zeros", block.full(zero(kind.dtype), kind.dtype, kind.axes))
            part = block.let("part", self._dot(block, zeros, kind, columns, panel, guarded=dims.divides(step, extent) is not True))
            block.add_to(acc, lost, part)
        return acc

    def _once(self, block: Block, acc: Value, kind: TileType, columns: str, panel: str | None) -> Value:
        """`acc` plus the whole sum along the innermost contracted axis."""
        extent = self.extents[self.inner]
        axis = block.axis(self.inner, 0, extent, dims.evaluate(extent, {}))
        block.index[self.inner] = dims.symbol(axis)
        result = self._dot(block, acc, kind, columns, panel, guarded=False)
        block.axes.remove(axis)
        return result

    def _begins_part(self, over: Sequence[str]) -> bool:
        """Whether each index of the first of these axes has a partial sum of its own."""
        return self._is_long and self._terms(over) > STEP and LEAST <= self._terms(over[1:]) <= STEP

    def _is_compensated(self) -> bool:
        is_float = self.found.reduce.dtype.is_float
        return is_float and is_long([self.extents[name] for name in self.found.over], self.problem.symbols, 16 * WHOLE)

    def _lost(self, block: Block, acc: TileRef) -> TileRef | None:
        """The companion of a sum of many partial sums."""
        return block.lost(acc) if self._is_compensated() else None

    def _step(self) -> int | None:
        """How many terms of the innermost contracted axis one `dot` takes; None: all of them."""
        extent = self.extents[self.inner]
        if self.in_tiles and isinstance(extent, int) and extent <= LONGEST:
            return None
        if isinstance(extent, int) and self.found.reduce.dtype.is_integer:
            # Sums of integers are exact in any order: only the cache bounds a step.
            unit = SERVED if extent % SERVED == 0 else FOUR
            return None if extent <= WHOLE else next(step for step in range(WHOLE, 0, -unit) if extent % step == 0)
        if isinstance(extent, int) and extent > WHOLE:
            whole = whole_step(extent)
            if whole is not None and (self._in_groups() or find_selections(self.region, self.found.right, self.inner)):
                return whole
        if not isinstance(extent, int) or extent > WHOLE:
            return LEAST if self._is_compensated() else STEP
        if extent <= STEP or not self._is_long:
            return None
        # Steps that divide the axis need no masks; they start where packed groups of elements do.
        even = [step for step in range(STEP, LEAST - 1, -16) if extent % step == 0]
        return even[0] if even else None

    @property
    def _is_long(self) -> bool:
        # Sums of blocks leave tiles block by block.
        most = LONGEST if self.in_tiles and self.found.block is None else CHAIN
        return self.found.reduce.dtype.is_float and self._terms(self.found.over) > most

    def _terms(self, over: Sequence[str]) -> int:
        """How many terms a sum over these axes has."""
        return math.prod(self.problem.typical(self.extents[name]) for name in over)

    def _dot(self, block: Block, acc: Value, kind: TileType, columns: str, panel: str | None, guarded: bool) -> Value:
        for let in self.found.prologue:
            block.later(let)
        copied = self._copied_rows(block, kind, columns) if self.widens else None
        block.outside = guarded
        if copied is None:
            left = block.lower(accumulated(self.found.left, kind))
        else:
            local, place = copied
            zero = Constant(0.0, kind.dtype) if guarded else None
            left = TileLoad(local, place, TileType(kind.dtype, block.ordered(block.axes_in(*place))), zero)
        right = self._right(block, kind, columns, panel)
        block.outside = False
        return Dot(left, right, acc, kind)

    def _copied_rows(self, block: Block, kind: TileType, columns: str) -> tuple[str, tuple[Dim, Dim]]:
        """The left factor's part of one `dot` in f32, in a cache tile: else each number would be widened for each vector of columns."""
        axis, extent = str(block.index[self.inner]), self.extents[self.inner]
        first, count = self._stretch(axis)
        local = block.local("rows", kind.dtype, ((f"{self.row}", self.schedule["mr"]), ("k", count + LANES)))
        rows, axes, place = dims.symbol(f"{block.index[self.row or '']}.lane"), block.axes, block.index[self.inner]
        block.axes = [each for each in axes if each not in (columns, axis)]
        high = extent if count == extent else dims.minimum(first + count, extent)
        with block.loop(self.inner, "tile", first, high, min(count, 4 * LANES)) as k:
            block.index[self.inner] = dims.symbol(k)
            block.outside = True
            block.store(local, (rows, dims.symbol(k) - first), block.lower(accumulated(self.found.left, kind)))
            block.outside = False
        block.axes, block.index[self.inner] = axes, place
        return local, (rows, place - first)

    def _right(self, block: Block, kind: TileType, columns: str, panel: str | None) -> Value:
        place = block.index[self.inner]
        if panel is not None:
            lane = dims.symbol(f"{columns}.lane")
            dtype = unwidened(self.found.right).dtype if self.group > 1 else self.found.right.dtype
            zero = Constant(0.0, dtype) if block.outside else None
            loaded = TileLoad(panel, (place, lane), TileType(dtype, block.ordered({columns, *block.axes_in(place)})), zero)
            return cast(block, loaded, kind)
        return self._of_columns(block, columns, accumulated(self._expanded(block, place, columns), kind))

    def _of_columns(self, block: Block, columns: str, value: Scalar) -> Value:
        """An expression that varies along the columns, in the lanes of a register block."""
        if not (self._is_padded() or self._in_groups()):
            block.outside = True
            return block.lower(value)
        # Panels are padded with zeros: lanes beyond the last column are read there and never stored.
        saved = block.index[self.column]
        block.index[self.column] = dims.symbol(f"{columns}.first") + dims.symbol(f"{columns}.lane")
        lowered = block.lower(value)
        block.index[self.column] = saved
        return lowered

    def _in_groups(self) -> bool:
        """Whether neighbours along the sum lie together, those of columns beyond the last one too."""
        load = plain_load(self.found.right)
        is_packed = load is not None and load.operand in self.problem.layouts
        return self.in_fours or (is_packed and group_of(self.region, self.found, self.pairs, self.problem.symbols) > 1)

    def _expanded(self, block: Block, place: Dim, columns: str) -> Scalar:
        """The right factor, 2:4 sparse values in it read from a tile that expands them."""
        axis = str(place)
        first, count = self._stretch(axis)
        # Of bytes in fours each is computed once as it is.
        lanes = None if self.in_fours else (columns, self.width)
        return with_expansion(block, self.region, self.found.right, self.inner, axis, first, count, lanes)

    def _stretch(self, axis: str) -> tuple[Dim, int]:
        """Where what one `dot` takes of the innermost contracted axis begins, and how many terms that are at most."""
        step = self._step()
        return (0, dims.evaluate(self.extents[self.inner], {})) if step is None else (dims.symbol(f"{axis}.first"), step)

    def _is_padded(self) -> bool:
        """Whether the layouts pad the columns so far that every lane of a register block lies inside."""
        read = (self.found.right, *(() if self.found.block is None else (self.found.reduce.value,)))
        loads = [part for value in read for part in walk(value) if isinstance(part, Load)]
        moving = [part for part in loads if any(self.column in dims.symbols(s) for s in part.subscripts)]
        extent: Dim = self.extents[self.column]
        packed = bool(moving) and all(part.operand in self.problem.layouts for part in moving)
        return packed and dims.divides(self.width, extent) is True


def together(group: int) -> tuple[Factor, ...]:
    """The order of a panel of which so many neighbours along the sum lie together."""
    return Factor("k", group), Factor("n"), Factor("k", 1, group)


def scaled_onto(block: Block, acc: TileRef, scaled: Value) -> Value:
    """`acc` plus a scaled sum, rounded once where that is a product."""
    block.outside = False
    if isinstance(scaled, TileApply) and scaled.primitive == "mul":
        return block.apply("fma", *scaled.args, acc)
    return block.apply("add", acc, scaled)


def _without_addend(value: Scalar, inner: Reduce) -> tuple[Scalar, Scalar | None]:
    """An expression with the sum of a block of integers in place of that sum and something more, which is given too."""
    total, found = Ref(inner.name, inner.dtype), list[Scalar]()

    def change(part: Scalar) -> Scalar | None:
        if not (isinstance(part, Apply) and part.primitive == "add" and part.dtype.is_integer and total in part.args):
            return None
        found.extend(arg for arg in part.args if arg != total)
        return total

    changed = transform(value, change)
    reads = sum(1 for part in walk(value) if part == total)
    return (changed, found[0]) if len(found) == 1 and reads == 1 else (value, None)


def cast(block: Block, value: Value, kind: TileType) -> Value:
    return value if value.type.dtype == kind.dtype else block.apply("cast", value, dtype=kind.dtype)


def accumulated(value: Scalar, kind: TileType) -> Scalar:
    """The factor in the accumulator's dtype."""
    return value if value.dtype == kind.dtype else Apply("cast", (value,), kind.dtype)
