"""The launch of `winograd`: tiles of an image are transformed, multiplied with the filters point by point, and made into places."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from ....ir import dims
from ....ir.dims import Dim
from ....ir.layout import Factor, Layout
from ....ir.tile.program import Dot, GridAxis, Launch, Made, Param, Reduce, Ref, TileType, Value
from ....ir.types import boolean, f32
from ....ir.winograd import TAPS, Filtering, Matrix
from ..lower import Block, used_parameters
from ..schedule import Problem, Schedule
from .winograd_sides import WHOLE, Filtered, Side

FLOAT = 4
"""Bytes of a number."""
Place = tuple[int, ...]
"""A place, or a point, of a tile: a number along each side."""


def held_bytes(problem: Problem, found: Filtered, schedule: Schedule, lanes: int) -> int:
    """Bytes of what a grid point holds."""
    places, tiles = schedule["places"], schedule["rows"] * schedule["across"]
    *outer, _ = sides = [places + TAPS - 1] * len(found.sides)
    held = math.prod(sides) * (tiles + 1) * (dims.number(problem.region.axis(found.channel).extent) + schedule["nb"])
    seen = math.prod(outer) * (schedule["across"] * places + TAPS - 1) + math.prod([places] * len(sides))
    return FLOAT * (held + seen * lanes)


class WinogradLaunch:
    """Builds the launch."""

    def __init__(self, problem: Problem, found: Filtered, schedule: Schedule, filtering: Filtering, lanes: int) -> None:
        self.problem, self.found, self.schedule, self.filtering, self.lanes = problem, found, schedule, filtering, lanes
        self.region, self.sides = problem.region, found.sides
        self.tiles = {side.place: schedule["rows"] for side in self.sides[:-1]} | {self.sides[-1].place: schedule["across"]}
        self.count = schedule["rows"] * schedule["across"]
        self.points = tuple(itertools.product(range(filtering.points), repeat=len(self.sides)))
        self.channels = dims.number(self.region.axis(found.channel).extent)
        self.filters = f"{found.filters.operand}_filtered"

    def launch(self) -> Launch:
        """The kernel."""
        found, region = self.found, self.region
        block = Block(self.problem, names={axis.name: 1 for axis in region.axes})
        grid = [GridAxis(name, 0, region.axis(name).extent) for name in found.batch]
        block.index.update((name, dims.symbol(name)) for name in found.batch)
        for side in self.sides:
            grid.append(GridAxis(side.place, 0, region.axis(side.place).extent, self.tiles[side.place] * self.filtering.places))
        grid.append(GridAxis(found.column, 0, region.axis(found.column).extent, self.schedule["n"]))
        block.axes.append(found.column)
        for let in found.product.prologue:
            block.later(let)
        # A tile more than there are keeps what is stored together apart in the first cache, where sizes are powers of two.
        shape = ("point", len(self.points)), ("tile", self.count + 1)
        image = block.local("image", f32, (*shape, ("c", self.channels)))
        products = block.local("products", f32, (*shape, ("n", self.schedule["nb"])))
        self._transform(block, image)
        with block.loop(found.column, "walk", 0, 0, self.schedule["nb"], parent=found.column) as columns:
            self._multiply(block, columns, image, products)
            self._results(block, columns, products)
        params = (*used_parameters(self.problem, region.body), self._param())
        return Launch(f"{region.name}.winograd", params, tuple(grid), tuple(block.body))

    def _param(self) -> Param:
        """The filters at their points, those of a point in panels."""
        operand = self.region.operand(self.found.filters.operand)
        sizes = self.filtering.shape(tuple(map(dims.number, operand.type.shape)))
        labels = tuple(f"d{n}" for n in range(len(sizes)))
        column, channel = (self._label(labels, name) for name in (self.found.column, self.found.channel))
        points = tuple(Factor(labels[side.dimension]) for side in self.sides)
        layout = Layout(labels, (*points, Factor(column, WHOLE), Factor(channel), Factor(column, 1, WHOLE)))
        return Param(self.filters, f32, tuple(zip(labels, sizes, strict=True)), layout=layout, made=Made(operand.name, self.filtering))

    def _label(self, labels: Sequence[str], axis: str) -> str:
        return next(label for label, s in zip(labels, self.found.filters.subscripts, strict=True) if dims.name_of(s) == axis)

    def _first(self, side: Side) -> Dim:
        """The first place of a grid point."""
        return dims.symbol(f"{side.place}.first")

    # --- the image ---

    def _transform(self, block: Block, image: str) -> None:
        """image[point, tile, channel] = what the windows of a tile see, at a point."""
        with block.loop(self.found.channel, "tile", 0, self.channels, self.lanes) as channel:
            block.axes = [channel]
            block.index[self.found.channel] = dims.symbol(channel)
            lane = dims.symbol(f"{channel}.lane")
            *outer, last = self.sides
            with ExitStack() as loops:
                rows: list[Dim] = [dims.symbol(loops.enter_context(block.loop("r", "scalar", 0, self.tiles[s.place], 1))) for s in outer]
                spans = [self.filtering.points] * len(outer) + [self.tiles[last.place] * self.filtering.places + TAPS - 1]
                seen = block.local("seen", f32, (*((f"s{n}", span) for n, span in enumerate(spans)), ("c", self.lanes)))
                self._see(block, seen, spans, rows, lane)
                across = dims.symbol(loops.enter_context(block.loop("a", "scalar", 0, self.tiles[last.place], 1)))
                found: dict[Place, Value] = {}
                for place in self.points:
                    at = (*place[:-1], across * self.filtering.places + place[-1], lane)
                    found[place] = block.let("seen", block.load(seen, at, f32))
                made = self._along_sides(block, self.filtering.of_image, found)
                for number, point in enumerate(self.points):
                    block.store(image, (number, self._tile(rows, across), dims.symbol(channel)), made[point])

    def _see(self, block: Block, seen: str, spans: Sequence[int], rows: Sequence[Dim], lane: Dim) -> None:
        """seen[s, c] = the left factor where the windows of a row of tiles see it, zeros beyond the image."""
        with ExitStack() as loops:
            steps = [dims.symbol(loops.enter_context(block.loop("s", "scalar", 0, span, 1))) for span in spans]
            for side, row, step in zip(self.sides, (*rows, 0), steps, strict=True):
                block.index[side.place] = self._first(side) + row * self.filtering.places + step
                block.index[side.tap] = 0
            block.outside = True
            value = block.lower(self.found.product.left)
            block.outside = False
            block.store(seen, (*steps, lane), value)

    def _tile(self, rows: Sequence[Dim], across: Dim) -> Dim:
        """The number of a tile."""
        return (rows[0] * self.schedule["across"] if rows else 0) + across

    def _along_sides(self, block: Block, matrix: Matrix, values: Mapping[Place, Value]) -> Mapping[Place, Value]:
        """A matrix applied along each side, the last one first."""
        for side in reversed(range(len(self.sides))):
            lines: dict[Place, dict[int, Value]] = {}
            for place, value in values.items():
                lines.setdefault((*place[:side], *place[side + 1 :]), {})[place[side]] = value
            made: dict[Place, Value] = {}
            for rest, line in lines.items():
                for n, value in enumerate(combined(block, matrix, [line[m] for m in range(len(line))])):
                    made[*rest[:side], n, *rest[side:]] = value
            values = made
        return values

    # --- products ---

    def _multiply(self, block: Block, columns: str, image: str, products: str) -> None:
        """products[point, tile, n] = the sums over the channels."""
        height, width = self.schedule["mr"], self.schedule["nr"]
        tail = tuple(rung for rung in (32, 16) if rung < width)
        point_index: list[Dim] = []
        with ExitStack() as loops:
            for _ in self.sides:
                point_index.append(dims.symbol(loops.enter_context(block.loop("u", "scalar", 0, self.filtering.points, 1))))
            point: Dim = 0
            for index in point_index:
                point = point * self.filtering.points + index
            column = loops.enter_context(block.loop(self.found.column, "walk", 0, 0, width, parent=columns, tail=tail))
            tile = loops.enter_context(block.loop("t", "tile", 0, self.count, height, tail=_ladder(self.count, height)))
            block.axes = [tile, column]
            kind = TileType(f32, (tile, column))
            depth = block.axis("k", 0, self.channels, self.channels)
            block.axes = [tile, depth, column]
            left = block.load(image, (point, dims.symbol(tile), dims.symbol(depth)), f32)
            subscripts: list[Dim] = []
            along = {side.tap: index for side, index in zip(self.sides, point_index, strict=True)}
            for subscript in self.found.filters.subscripts:
                name = dims.name_of(subscript) or ""
                subscripts.append(dims.symbol(column) if name == self.found.column else along.get(name, dims.symbol(depth)))
            right = block.load(self.filters, subscripts, f32)
            total = Dot(left, right, block.full(0.0, f32, kind.axes), kind)
            block.axes.remove(depth)
            block.store(products, (point, dims.symbol(tile), self._within(column, columns)), block.let("sums", total))

    def _within(self, inner: str, outer: str) -> Dim:
        """The place of columns among those that are held."""
        return dims.symbol(f"{inner}.first") + dims.symbol(f"{inner}.lane") - dims.symbol(f"{outer}.first")

    # --- results ---

    def _results(self, block: Block, columns: str, products: str) -> None:
        """The places of each tile, some filters at once, with what follows the sum."""
        *outer, last = self.sides
        with ExitStack() as loops:
            column = loops.enter_context(block.loop(self.found.column, "walk", 0, 0, self.lanes, parent=columns))
            rows = [dims.symbol(loops.enter_context(block.loop("r", "scalar", 0, self._rows(side), 1))) for side in outer]
            across = dims.symbol(loops.enter_context(block.loop("a", "scalar", 0, self._rows(last), 1)))
            block.axes = [column]
            block.index[self.found.column] = dims.symbol(column)
            read: dict[Place, Value] = {}
            for number, point in enumerate(self.points):
                at = number, self._tile(rows, across), self._within(column, columns)
                read[point] = block.let("p", block.load(products, at, f32))
            firsts = [self._first(s) + tile * self.filtering.places for s, tile in zip(self.sides, (*rows, across), strict=True)]
            self._write(block, column, firsts, self._along_sides(block, self.filtering.of_products, read))

    def _write(self, block: Block, column: str, firsts: Sequence[Dim], made: Mapping[Place, Value]) -> None:
        """The places of a tile, in a loop: each is a place of the result, with what follows it."""
        product, lane = self.found.product, dims.symbol(f"{column}.lane")
        sums = block.local("sums", f32, (*((f"p{n}", self.filtering.places) for n in range(len(self.sides))), ("n", self.lanes)))
        for place, value in made.items():
            block.store(sums, (*place, lane), value)
        with block.condition(self._is_strange(block, column, made), seldom=True), self._each_place(block, firsts) as steps:
            block.store(sums, (*steps, lane), self._sum(block, column))
        with self._each_place(block, firsts) as steps:
            total = block.let("total", block.load(sums, (*steps, lane), f32))
            block.readers[product.reduce.name] = lambda _: total
            for let in product.epilogue:
                block.later(let)
            block.store_all(product.store.output, block.subscripts(product.store.subscripts, ()), block.lower(product.store.value))

    def _is_strange(self, block: Block, column: str, made: Mapping[Place, Value]) -> Value:
        """Whether something in a tile is not finite: the places at its corners together are made of all points."""
        ends: Value = block.full(0.0, f32)
        for corner in itertools.product((0, self.filtering.places - 1), repeat=len(self.sides)):
            ends = block.apply("add", ends, made[corner])
        ends = block.let("ends", ends)
        strange = block.apply("ne", block.apply("sub", ends, ends), block.full(0.0, f32))
        return block.let("strange", Reduce("any", column, strange, TileType(boolean)))

    def _rows(self, side: Side) -> Dim:
        """The tiles along a side that have places."""
        left = self.region.axis(side.place).extent - self._first(side)
        return dims.minimum(self.tiles[side.place], dims.ceil_div(left, self.filtering.places))

    @contextmanager
    def _each_place(self, block: Block, firsts: Sequence[Dim]) -> Iterator[list[Dim]]:
        """Loops over the places of a tile."""
        with ExitStack() as loops:
            steps: list[Dim] = []
            for side, first in zip(self.sides, firsts, strict=True):
                most = dims.minimum(self.filtering.places, self.region.axis(side.place).extent - first)
                steps.append(dims.symbol(loops.enter_context(block.loop("i", "scalar", 0, most, 1))))
                block.index[side.place] = first + steps[-1]
            yield steps

    def _sum(self, block: Block, column: str) -> Ref:
        """The sum at a place, term by term."""
        product = self.found.product
        total = block.let("sum", block.full(0.0, f32, (column,)))
        with ExitStack() as loops:
            for name in (*(side.tap for side in self.sides), self.found.channel):
                extent = self.region.axis(name).extent
                block.index[name] = dims.symbol(loops.enter_context(block.loop(name, "scalar", 0, extent, 1, carries=(total,))))
            block.outside = True
            left = block.lower(product.left)
            block.outside = False
            block.rebind(total, block.apply("fma", left, block.lower(product.right), total))
        return total


def _ladder(count: int, height: int) -> tuple[int, ...]:
    """Rows of the blocks that take what whole ones leave."""
    left, rungs = count % height, list[int]()
    for rung in (8, 4, 2, 1):
        if rung < height and left >= rung:
            rungs.append(rung)
            left %= rung
    return tuple(rungs)


def combined(block: Block, matrix: Matrix, values: Sequence[Value]) -> list[Value]:
    """The rows of a matrix times values. Columns and rows that differ in signs alone share their sums and differences."""
    columns = _merged(block, [(tuple(row[n] for row in matrix), value) for n, value in enumerate(values)])
    rows = [[(column[n], value) for column, value in columns if column[n] != 0] for n in range(len(matrix))]
    found: dict[int, Value] = {}
    for n, row in enumerate(rows):
        if n in found:
            continue
        other = next((m for m in range(n + 1, len(rows)) if m not in found and _differ_in_signs(row, rows[m])), None)
        if other is None:
            found[n] = block.let("part", _sum_of(block, row))
            continue
        same, opposite = ([t for t, o in zip(row, rows[other], strict=True) if (t[0] == o[0]) is is_same] for is_same in (True, False))
        even, odd = (block.let("part", _sum_of(block, terms)) for terms in (same, opposite))
        found[n] = block.let("part", block.apply("add", even, odd))
        found[other] = block.let("part", block.apply("sub", even, odd))
    return [found[n] for n in range(len(rows))]


def _merged(block: Block, columns: list[tuple[tuple[float, ...], Value]]) -> list[tuple[tuple[float, ...], Value]]:
    """Columns with the sum and the difference of two values in place of these, where rows take them with equal weights but for signs."""
    found = []
    left = list(columns)
    while left:
        column, value = left.pop(0)
        other = next((n for n, (c, _) in enumerate(left) if all(abs(a) == abs(b) for a, b in zip(column, c, strict=True))), None)
        if other is None:
            found.append((column, value))
            continue
        against, second = left.pop(other)
        signs = [a == b for a, b in zip(column, against, strict=True)]
        for primitive, is_same in (("add", True), ("sub", False)):
            part = tuple(a if same is is_same else 0.0 for a, same in zip(column, signs, strict=True))
            if any(part):
                found.append((part, block.let("both", block.apply(primitive, value, second))))
    return found


def _differ_in_signs(row: Sequence[tuple[float, Value]], other: Sequence[tuple[float, Value]]) -> bool:
    """Whether two rows have the same terms, some with the same weights and all others with opposite ones."""
    if len(row) != len(other) or any(a[1] is not b[1] or abs(a[0]) != abs(b[0]) for a, b in zip(row, other, strict=True)):
        return False
    same = sum(a[0] == b[0] for a, b in zip(row, other, strict=True))
    return 0 < same < len(row)


def _sum_of(block: Block, terms: Sequence[tuple[float, Value]]) -> Value:
    """A sum of weighted values; those of weight 1 come first."""
    (weight, total), *rest = sorted(terms, key=lambda term: (term[0] != 1, term[0] < 0))
    if weight != 1:
        total = block.apply("mul", total, block.full(weight, f32))
    for weight, value in rest:
        if abs(weight) == 1:
            total = block.apply("add" if weight > 0 else "sub", total, value)
        else:
            total = block.apply("fma", value, block.full(weight, f32), total)
    return total
