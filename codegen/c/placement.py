"""Named values: where each lives, the loops over its tile, and the order in which folds inside it are computed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from ...ir import dims
from ...ir.codes import FOUR
from ...ir.dims import Dim
from ...ir.errors import UnsupportedError
from ...ir.tile import Rearranged, rearranged
from ...ir.tile.program import (
    Dot,
    Full,
    Load,
    Reduce,
    Ref,
    Scan,
    Store,
    TileApply,
    TileType,
    Value,
    parts,
    walk,
    with_parts,
)
from . import matrix, primitives
from .access import Access, Spot, Stream
from .basics import register
from .folds import dot_block, scan
from .lanes import computed_bytes
from .library import ELEMENTS
from .tiles import LaunchPlan, Tile, positions
from .values import Values, accumulator
from .writer import LANE, Writer

LIMIT = 1 << 20
"""Bytes of arrays that are open at once, at most: what a core's second cache holds."""
LARGE = 4096
"""Bytes from which on an array is no part of the stack: threads of callers may have little of that."""
LINE = 64
HELD = "ourcc_held"
"""The name of the memory of a kernel's large arrays."""


class Placement:
    """Computes values into tiles and stores of one kernel; `held` counts the bytes of open arrays that are not on the stack."""

    def __init__(self, writer: Writer, access: Access, plan: LaunchPlan, values: Values) -> None:
        self.writer, self.access, self.plan, self.values = writer, access, plan, values
        self.library = writer.library
        self.held = self._taken = 0
        self._parts: list[str] = []
        self._synthetic = 0

    def array(self, name: str, ctype: str, elements: int, size: int) -> str:
        """An array of so many elements of `size` bytes."""
        array = f"{c_name('l', name)}_{self.writer.fresh('')}"
        nbytes = -(-elements * size // LINE) * LINE
        if nbytes < LARGE:
            self.writer.line(f"{ctype} {array}[{elements}] __attribute__((aligned({LINE})));")
            return array
        self._parts.append(f"{ctype} *const {array} = ourcc_part({HELD}, {self._taken});")
        self.held, self._taken = self.held + nbytes, self._taken + nbytes
        if self.held > LIMIT:
            hint = "make the tile smaller or use a workspace of the program"
            raise UnsupportedError(f"%{name} needs {self.held} bytes with what is open here, expected at most {LIMIT}", hint=hint)
        return array

    def memory(self) -> list[str]:
        """The lines that a kernel with large arrays begins with: it gives back what it takes however it ends.

        Each array has a part to itself, also those that are never open at once: compilers are told that no two are the same memory.
        """
        if not self._parts:
            return []
        taken = f"uint8_t *const {HELD} __attribute__((cleanup(ourcc_give_back))) = ourcc_take({self._taken}); if (!{HELD}) return ENOMEM;"
        return [taken, *self._parts]

    # --- named values -----------------------------------------------------------------------------------------------

    def let(self, name: str, value: Value) -> None:
        known = self.values.tile(name)
        value = self._place_parts(value)
        if isinstance(value, Scan):
            value = self._place(value)
        if known is not None and known.array and _reads_elsewhere(value, name):
            value = self._place(value)
        tile = known or self._new_tile(name, value.type)
        if not value.type.axes:
            self._scalar(name, tile, value, known is not None)
        elif isinstance(value, Dot):
            self._dot(tile, value, known is not None)
        else:
            self._fill(tile, value, known is not None)
        if known is None:
            self.values.tiles[-1][name] = tile

    def _new_tile(self, name: str, type_: TileType) -> Tile:
        extents = {axis: self.values.scope.extent(axis) for axis in type_.axes}
        tile = Tile(type_, self.plan.lane_axis(type_, extents))
        if self.plan.in_memory(type_):
            self._make_array(name, tile)
        return tile

    def _make_array(self, name: str, tile: Tile) -> None:
        extents = [self.values.scope.extent(axis) for axis in tile.type.axes]
        width = self.plan.width(extents[-1])
        tile.pitch = -(-extents[-1] // width) * width
        count = tile.pitch
        for extent in extents[:-1]:
            count *= extent
        kind, size = ELEMENTS[register(tile.type.dtype)]
        tile.array = self.array(name, kind, count + 16, size)

    def _scalar(self, name: str, tile: Tile, value: Value, known: bool) -> None:
        text = self._dot_starts(value, [Spot({}, 1)])[0] if isinstance(value, Dot) else self.values.vector(value, Spot({}, 1))[0]
        if known:
            self.writer.line(f"{tile.names[()]} = {text};")
        else:
            tile.names[()] = f"{c_name('v', name)}_{self.writer.fresh('')}"
            self.writer.line(f"{self.values.ctype(value.type.dtype, 1)} {tile.names[()]} = {text};")
        if value.type.dtype.is_integer:
            self.writer.rebind(f"%{name}", f"(int64_t){tile.names[()]}")

    def _dot_starts(self, value: Dot, spots: list[Spot]) -> list[str]:
        """The finished vectors of a dot at these spots, rounded to its type."""
        dtype = accumulator(value.type.dtype)
        starts = [self.values.spread(dtype, self.values.vector(value.acc, spot), spot.lanes) for spot in spots]
        sums = dot_block(self.values, value, spots, starts)
        return [primitives.cast(self.library, dtype, value.type.dtype, s.lanes, n) for s, n in zip(spots, sums, strict=True)]

    def _fill(self, tile: Tile, value: Value, known: bool) -> None:
        """Evaluate a value over its whole tile; a known tile is assigned after all of it is computed."""
        pending: list[tuple[str, str]] = []

        def one(spot: Spot) -> None:
            text = self.values.spread(value.type.dtype, self.values.vector(value, spot), spot.lanes)
            self._set(tile, spot, text, known, pending)

        self._each(value.type, one, tile.lane_axis)
        tile.is_zero = bool(tile.array) and isinstance(value, Full) and value.value.value == 0
        for name, text in pending:
            self.writer.line(f"{name} = {text};")

    def _set(self, tile: Tile, spot: Spot, text: str, known: bool, pending: list[tuple[str, str]]) -> None:
        dtype = tile.type.dtype
        if tile.array:
            tile.is_zero = False
            at = self.writer.index(self._array_start(tile, spot))
            self.writer.line(f"{self.library.call(f'store_{register(dtype)}', spot.lanes, f'{tile.array} + {at}', text)};")
            return
        key = self._key(tile, spot)
        if known:
            pending.append((tile.names[key], self.values.define(dtype, text, spot.lanes)))
            return
        tile.names[key] = self.writer.fresh("v")
        self.writer.line(f"{self.values.ctype(dtype, spot.lanes)} {tile.names[key]} = {text};")

    def _array_start(self, tile: Tile, spot: Spot) -> Dim:
        return dims.substitute(self.values.array_address(tile, spot), {LANE: 0})

    def _key(self, tile: Tile, spot: Spot) -> tuple[int, ...]:
        starts = [dims.substitute(spot.positions[axis], {LANE: 0}) for axis in tile.type.axes]
        if tile.lane_axis is not None:
            starts[-1] = starts[-1] // self.plan.width(self.values.scope.extent(tile.lane_axis))
        return tuple(start for start in starts if isinstance(start, int))

    def _each(self, type_: TileType, visit: Callable[[Spot], None], lane_axis: str | None) -> None:
        """Visit every vector of a tile: printed loops over long axes, one visit per position of the others."""

        def visit_all(spots: list[Spot]) -> None:
            for spot in spots:
                visit(spot)

        self._blocks(type_, visit_all, lane_axis)

    def _blocks(self, type_: TileType, visit: Callable[[list[Spot]], None], lane_axis: str | None, budget: int = 1) -> None:
        """Visit the unrolled block of a tile at once, inside printed loops over its long axes.

        A step of such a loop takes several positions where their number divides the axis and `budget` allows it.
        """
        counts = {axis: self._count(axis, lane_axis) for axis in type_.axes}
        budget //= math.prod(count for axis, count in counts.items() if axis not in self.plan.looped)
        fixed: dict[str, Dim] = {}
        for axis in reversed(type_.axes):
            if axis not in self.plan.looped:
                continue
            most = 2 if axis == lane_axis else 12
            group = max(n for n in range(1, most + 1) if n == 1 or (counts[axis] % n == 0 and n <= budget))
            budget //= group
            trips = counts[axis] // group
            variable, position = self.writer.position(0, trips - 1)
            self.writer.open(f"for (int64_t {variable} = 0; {variable} < {trips}; ++{variable})", is_tile=True)
            self.writer.bind(f"@{variable}", variable)
            fixed[axis], counts[axis] = position * group, group
        visit([self._spot(type_, place, fixed, lane_axis) for place in positions(counts.values())])
        for _ in fixed:
            self.writer.close()

    def _count(self, axis: str, lane_axis: str | None) -> int:
        extent = self.values.scope.extent(axis)
        return -(-extent // self.plan.width(extent)) if axis == lane_axis else extent

    def _spot(self, type_: TileType, place: tuple[int, ...], fixed: dict[str, Dim], lane_axis: str | None) -> Spot:
        found: dict[str, Dim] = {axis: fixed.get(axis, 0) + number for axis, number in zip(type_.axes, place, strict=True)}
        if lane_axis is None:
            return Spot(found, 1)
        extent = self.values.scope.extent(lane_axis)
        width = self.plan.width(extent)
        start = found[lane_axis] * width
        found[lane_axis] = start + dims.symbol(LANE)
        whole = extent % width == 0 or (isinstance(start, int) and start + width <= extent)
        return Spot(found, width, () if whole else ((found[lane_axis], extent),))

    def _dot(self, tile: Tile, value: Dot, known: bool) -> None:
        if matrix.multiply(self.values, tile, value):
            return
        pending: list[tuple[str, str]] = []

        def block(spots: list[Spot]) -> None:
            for spot, text in zip(spots, self._dot_starts(value, spots), strict=True):
                self._set(tile, spot, text, known, pending)

        self._blocks(value.type, block, tile.lane_axis, self.library.level.registers * 3 // 4)
        for name, text in pending:
            self.writer.line(f"{name} = {text};")

    # --- nested folds get a place of their own ------------------------------------------------------------------------

    def _place_parts(self, value: Value) -> Value:
        """The value with every dot, reduction and scan inside it replaced by the name of a tile computed before."""
        return with_parts(
            value, tuple(self._place(part) if isinstance(part, (Dot, Reduce, Scan)) else self._place_parts(part) for part in parts(value))
        )

    def _place(self, value: Value) -> Value:
        """Compute a value into a tile without a name of the program."""
        value = self._place_parts(value)
        self._synthetic += 1
        name = f"@{self._synthetic}"
        if isinstance(value, Scan):
            self._scan(name, value)
        else:
            self.let(name, value)
        scope = self.values.scope
        self.values.scope = replace(scope, values={**scope.values, name: value.type})
        return Ref(name, value.type)

    def _scan(self, name: str, value: Scan) -> None:
        tile = Tile(value.type, None)
        self._make_array(name, tile)
        self.values.tiles[-1][name] = tile
        lane = value.type.axes[-1] if value.type.axes[-1] != value.axis else None

        def each(type_: TileType, visit: Callable[[Spot], None]) -> None:
            self._each(type_, visit, lane if lane and self.values.scope.extent(lane) > 1 else None)

        scan(self.values, value, each, lambda spot, text: self._set(tile, spot, text, False, []))

    def store(self, statement: Store) -> None:
        value = self._place_parts(statement.value)
        if isinstance(value, Dot) and matrix.multiply_into(self.values, statement, value):
            return
        if isinstance(value, (Dot, Reduce, Scan)) or _loads(value, statement):
            value = self._place(value)
        names = {n for s in statement.subscripts for n in dims.symbols(s) if n.startswith("%")}
        extents = {axis: self.values.scope.extent(axis) for axis in value.type.axes}
        lane_axis = self.plan.lane_axis(value.type, extents)
        operand = self.values.scope.operands[statement.operand]
        dtype = value.type.dtype
        if getattr(operand, "dtype", dtype) != dtype:
            raise UnsupportedError(f"store of {dtype} to %{statement.operand} of another type", hint="cast the value")

        def one(spot: Spot) -> None:
            text = self.values.spread(dtype, self.values.vector(value, spot), spot.lanes)
            self.access.store(self.values.scope, statement, self.values.gathers(names, spot), text)

        way = self._rearranged(statement, value, lane_axis, extents) if not names else None
        if way is None:
            self._each(value.type, one, lane_axis)
        else:
            found = way
            self._blocks(value.type, lambda spots: self._store_rearranged(statement, value, spots, found), lane_axis)

    def _rearranged(self, statement: Store, value: Value, lane_axis: str | None, extents: Mapping[str, int]) -> Rearranged | None:
        """How a store whose lanes lie apart in memory is made of whole vectors, if it can be."""
        if lane_axis is None or statement.atomic:
            return None
        operand, _ = self.access.operand(self.values.scope, statement.operand)
        found = rearranged(operand, statement.subscripts, value.type, extents, self.plan.width(extents[lane_axis]), self.writer.known())
        return None if found is None or self.plan.looped & {found.turned, found.grouped} else found

    def _store_rearranged(self, statement: Store, value: Value, spots: list[Spot], way: Rearranged) -> None:
        """Store the vectors of a block: squares are turned, then neighbours put together."""
        vectors: list[tuple[Spot, str]] = []
        if way.turned is not None and value.type.dtype.bits == 8 and value.type.dtype.is_integer:
            self._store_words(statement, value, spots, way.turned)
            return
        if way.turned is None and value.type.dtype.bits == 8 and self._store_bytes(statement, value, spots, way):
            return
        if way.turned is None:
            vectors = [(spot, self.values.spread(value.type.dtype, self.values.vector(value, spot), spot.lanes)) for spot in spots]
        else:
            for rows in _beside(spots, way.turned):
                for start in range(0, len(rows), rows[0].lanes):
                    vectors += self._turned(value, rows[start : start + rows[0].lanes], way.turned)
        texts = {id(spot): text for spot, text in vectors}
        for neighbours in _beside([spot for spot, _ in vectors], way.grouped):
            for start in range(0, len(neighbours), way.count):
                group = neighbours[start : start + way.count]
                self.access.store_group(self.values.scope, statement, group, [texts[id(spot)] for spot in group])

    def _store_bytes(self, statement: Store, value: Value, spots: list[Spot], way: Rearranged) -> bool:
        """Store bytes of which four neighbours lie together as what they are computed from does; False where that lies elsewhere."""
        if way.grouped is None or way.count != FOUR:
            return False
        firsts = [neighbours[n] for neighbours in _beside(spots, way.grouped) for n in range(0, len(neighbours), FOUR)]
        words = computed_bytes(self.values, value, firsts, way.grouped)
        for spot, word in zip(firsts, words or (), strict=words is not None):
            self.access.store_words(self.values.scope, statement, spot, word)
        return words is not None

    def _store_words(self, statement: Store, value: Value, spots: list[Spot], turned: str) -> None:
        """Store squares of bytes, four neighbours of a row as one word of a column."""
        lane = value.type.axes[-1]
        for rows in _beside(spots, turned):
            for start in range(0, len(rows), rows[0].lanes):
                square, first = self._square(value, rows[start : start + rows[0].lanes], turned), rows[start]
                words = self.writer.fresh("w")
                count = first.lanes // 4
                self.writer.line(f"{self.library.vector('i32', first.lanes)} {words}[{count}];")
                self.writer.line(f"{self.library.call(f'turn_words_{register(value.type.dtype)}', first.lanes, square, words)};")
                for word in range(count):
                    begin = dims.substitute(first.positions[lane], {LANE: 4 * word})
                    places = {**first.positions, turned: first.positions[turned] + dims.symbol(LANE), lane: begin}
                    self.access.store_words(self.values.scope, statement, Spot(places, first.lanes), f"{words}[{word}]")

    def _square(self, value: Value, rows: list[Spot], turned: str) -> str:
        """The vectors of a square, one after the other. Its rows lie apart: those of the next square are asked for."""
        dtype, lanes = value.type.dtype, rows[0].lanes
        with self.access.streaming(Stream(3 * lanes, turned)):
            texts = [self.values.spread(dtype, self.values.vector(value, spot), lanes) for spot in rows]
        square = self.writer.fresh("q")
        self.writer.line(f"{self.values.ctype(dtype, lanes)} {square}[{lanes}] = {{{', '.join(texts)}}};")
        return square

    def _turned(self, value: Value, rows: list[Spot], turned: str) -> list[tuple[Spot, str]]:
        """A square: its vectors are computed as rows, and given as columns."""
        dtype, lanes, first = value.type.dtype, rows[0].lanes, rows[0]
        square = self._square(value, rows, turned)
        self.writer.line(f"{self.library.call(f'turn_{register(dtype)}', lanes, square)};")
        lane, columns = value.type.axes[-1], []
        for column in range(lanes):
            start = dims.substitute(first.positions[lane], {LANE: column})
            places = {**first.positions, turned: first.positions[turned] + dims.symbol(LANE), lane: start}
            columns.append((Spot(places, lanes), f"{square}[{column}]"))
        return columns


def _beside(spots: list[Spot], axis: str | None) -> list[list[Spot]]:
    """Spots that differ along one axis alone, together; each alone without an axis."""
    if axis is None:
        return [[spot] for spot in spots]
    found: dict[tuple[Dim, ...], list[Spot]] = {}
    for spot in spots:
        found.setdefault(tuple(place for name, place in spot.positions.items() if name != axis), []).append(spot)
    return list(found.values())


def c_name(prefix: str, name: str) -> str:
    return f"{prefix}_{re.sub(r'[^A-Za-z0-9]', '_', name)}"


def _loads(value: Value, store: Store) -> bool:
    """Whether the value reads what the store writes at other places: then all of it is computed first."""
    return any(isinstance(part, Load) and part.operand == store.operand and part.subscripts != store.subscripts for part in walk(value))


def _reads_elsewhere(value: Value, name: str) -> bool:
    """Whether a value reads the tile of that name at other positions than its own."""
    if isinstance(value, TileApply):
        return any(_reads_elsewhere(arg, name) for arg in value.args)
    if isinstance(value, Dot):
        factors = any(isinstance(part, Ref) and part.name == name for side in (value.left, value.right) for part in walk(side))
        return factors or _reads_elsewhere(value.acc, name)
    return not isinstance(value, Ref) and any(isinstance(part, Ref) and part.name == name for part in walk(value))
