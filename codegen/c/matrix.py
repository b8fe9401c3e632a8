"""Products of matrices in tiles (AMX): what a dot streams that lies as an instruction reads it.

A block of the accumulator is one row of tiles or two, of up to 16 rows each; it lives in memory, where its epilogue
reads it. The right factor lies in panels `n/16 k/4 n%16 k%4` (bf16 `k/2 .. k%2`), each 16 groups of which are a tile.
Rows of the left factor are read where they lie; rows that are tested one by one, and the end of the contracted axis
that fills no tile, are copied beside the accumulator first, with zeros where there is nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...ir import dims
from ...ir.dims import Dim
from ...ir.target import CpuInstruction, CpuLevel
from ...ir.tile import domain_checks
from ...ir.tile.program import (
    AxisDecl,
    Dot,
    For,
    Full,
    Launch,
    Let,
    Load,
    Local,
    Param,
    Ref,
    Statement,
    Store,
    TileType,
    Value,
    statements,
    walk,
)
from .access import AccessGuard, Spot, Test
from .ahead import Panels, share_of
from .amx import ROW, SIDE, TILES
from .quads import widened_load
from .tiles import Held, Tile
from .values import Values
from .writer import LANE, at_lane, lane_stride

# --- which dots -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Factors:
    """A dot whose types and axes an instruction takes: its two loads, and its axes."""

    instruction: CpuInstruction
    left: Load
    right: Load
    rows: str
    columns: str
    axis: str

    @property
    def step(self) -> int:
        """Contracted elements that the instruction takes."""
        return self.instruction.groups * self.instruction.depth


def _factors(value: Dot, level: CpuLevel, operands: Mapping[str, object]) -> _Factors | None:
    """The factors of a dot that may be taken in tiles: plain loads, the right one of what lies in the instruction's vectors."""
    left, right = widened_load(value.left), widened_load(value.right)
    if left is None or right is None or len(value.type.axes) != 2 or value.left_scale is not None or value.right_scale is not None:
        return None
    rows, columns = value.type.axes
    over = set(left.type.axes) - {rows}
    instruction = level.matrix(left.type.dtype.name, right.type.dtype.name, value.type.dtype.name)
    if instruction is None or len(over) != 1 or set(left.type.axes) != {rows, *over} or set(right.type.axes) != {columns, *over}:
        return None
    operand = operands.get(right.operand)
    layout = operand.layout if isinstance(operand, (Param, Local)) else None
    if layout is None or not layout.in_groups(instruction.lanes, instruction.depth):
        return None
    return _Factors(instruction, left, right, rows, columns, *over)


def accumulated_rows(launch: Launch, level: CpuLevel) -> Iterator[str]:
    """The axes of rows of accumulators that may be tiles: these live in memory."""
    operands: dict[str, object] = {param.name: param for param in launch.params}
    operands |= {statement.name: statement for statement in statements(launch.body) if isinstance(statement, Local)}
    for statement in statements(launch.body) if any(each.is_matrix for each in level.instructions) else ():
        for value in walk(statement.value) if isinstance(statement, (Let, Store)) else ():
            found = _factors(value, level, operands) if isinstance(value, Dot) else None
            if found is not None:
                yield found.rows


def summed(loop: For) -> str | None:
    """The name that a loop adds one product to in each step, and does nothing else; None for other loops."""
    if len(loop.carries) != 1:
        return None
    (name,) = loop.carries
    body: Sequence[Statement] = loop.body
    while True:
        inner = [statement for statement in body if not isinstance(statement, AxisDecl)]
        if len(inner) != 1:
            return None
        (only,) = inner
        if isinstance(only, For) and only.carries == loop.carries:
            body = only.body
            continue
        adds = isinstance(only, Let) and only.name == name and isinstance(only.value, Dot) and only.value.acc == Ref(name, only.value.type)
        return name if adds else None


# --- where the factors lie --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Left:
    """Rows of the left factor: the address of an element by the symbols of its row and place, and what a row is tested for.

    `apart` is how far rows lie apart, `ends` what holds for all rows if it holds for the first and the last; None where
    that is not so.
    """

    pointer: str
    address: Dim
    tests: tuple[Test, ...]
    row: tuple[str, Dim]
    place: tuple[str, Dim]
    apart: Dim | None
    ends: tuple[Test, ...] | None


@dataclass(frozen=True)
class _Panel:
    """16 columns of the right factor: where they begin, how far their groups lie apart, and under which condition they are there at all."""

    pointer: str
    address: Dim
    apart: int
    condition: str


@dataclass(frozen=True)
class _Block:
    """One accumulator in tiles: `down` x `across` of them, each of `rows` rows; how many elements are contracted.

    `whole` is how many times as many as an instruction takes, and `rest` what is left of them. A sum that is shorter than that has tiles
    of its own, which take it whole.
    """

    factors: _Factors
    left: _Left
    panels: tuple[_Panel, ...]
    down: int
    rows: int
    count: int
    whole: Dim
    rest: int

    @property
    def across(self) -> int:
        return len(self.panels)

    @property
    def step(self) -> int:
        """Contracted elements that tiles hold."""
        return min(self.count, self.factors.step)

    @property
    def groups(self) -> int:
        """Rows of the right factor's tiles, and 32-bit groups in a row of the left one's."""
        return self.step // self.factors.instruction.depth

    @property
    def sums(self) -> int:
        """The tiles of accumulators, which come first."""
        return self.down * self.across

    @property
    def few(self) -> int:
        """The tiles of accumulators and of the left factor."""
        return self.sums + self.down

    @property
    def shapes(self) -> tuple[int, int, int, int]:
        """What tiles are made for: rows, groups, accumulators, and those with the left factor's."""
        return self.rows, self.groups, self.sums, self.few

    def sum(self, down: int, across: int) -> int:
        return down * self.across + across

    def left_tile(self, down: int) -> int:
        return self.sums + down

    def right_tile(self, across: int) -> int:
        return self.few + across % (TILES - self.few)


def _block(values: Values, value: Dot) -> _Block | None:
    """The block of a dot; None where its sizes or addresses are not what tiles take."""
    found = _factors(value, values.library.level, values.scope.operands)
    if found is None:
        return None
    rows, columns, count = (values.scope.extent(axis) for axis in (found.rows, found.columns, found.axis))
    down, across = 1 if rows <= SIDE else 2, columns // SIDE
    fits = rows % down == 0 and rows <= down * SIDE and columns % SIDE == 0 and count % found.instruction.depth == 0
    if not fits or down * across + down >= TILES:
        return None
    whole, rest = _steps(values, found, count)
    left = _left(values, found, rows, count)
    panels = [_panel(values, found, number, count) for number in range(across)]
    if left is None or whole is None:
        return None
    present = tuple(each for each in panels if each is not None)
    return _Block(found, left, present, down, rows // down, count, whole, rest) if all(panels) else None


def _steps(values: Values, found: _Factors, count: int) -> tuple[Dim | None, int]:
    """How many instructions take the contracted elements, and how many are left; None where only calls know whether any are."""
    axis = values.scope.axis(found.axis)
    if not domain_checks(values.scope, (found.axis,)):
        return divmod(count, min(count, found.step))
    length = axis.high - axis.low
    is_whole = axis.modulus == 0 and axis.base == axis.low and dims.divides(found.step, length, values.writer.known()) is True
    return dims.floor_divide(length, found.step) if is_whole else None, 0


def _plain(values: Values, found: _Factors, load: Load, spot: Spot) -> tuple[str, Dim, AccessGuard]:
    """Where a factor lies, without the tests of the contracted axis: what is beyond its end is not read."""
    tests = values.access.guard(values.scope, domain_checks(values.scope, (found.axis,)), spot).tests
    with values.access.passing(frozenset(tests)):
        return values.access.plain(values.scope, load, spot)


def _left(values: Values, found: _Factors, rows: int, count: int) -> _Left | None:
    """Where the left factor lies; None where neighbours along the contracted axis are none in memory, or are tested one by one."""
    writer = values.writer
    row, place = writer.position(0, rows - 1), writer.position(0, count - 1)
    writer.open("")  # a place for names, of which nothing is kept
    for variable, _ in (row, place):
        writer.bind(f"@{variable}", variable)
    pointer, address, guard = _plain(values, found, found.left, Spot({found.rows: row[1], found.axis: place[1]}, 1))
    writer.drop()
    along = _stepped(values, address, place[0])
    if (
        along != 1
        or not guard.whole
        or any(f"@{place[0]}" in dims.symbols(side) for left, _, right in guard.tests for side in (left, right))
    ):
        return None
    first, last = ({f"@{row[0]}": end} for end in (0, rows - 1))
    steady = all(_stepped(values, right - left, row[0]) is not None for left, _, right in guard.tests)
    ends = [(dims.substitute(left, end), sign, dims.substitute(right, end)) for left, sign, right in guard.tests for end in (first, last)]
    apart = _stepped(values, address, row[0])
    return _Left(pointer, address, guard.tests, row, place, apart, tuple(dict.fromkeys(ends)) if steady else None)


def _stepped(values: Values, dim: Dim, variable: str) -> Dim | None:
    """What an expression grows by with a loop variable, if that is the same for each step."""
    symbol = f"@{variable}"
    grown = values.access.tidy(dims.substitute(dim, {symbol: dims.symbol(symbol) + 1}) - dim, 1)
    return None if symbol in dims.symbols(grown) else grown


def _panel(values: Values, found: _Factors, number: int, count: int) -> _Panel | None:
    """Where 16 columns lie; None where they are not the vectors that the instruction reads, one after the other."""
    writer, depth, lanes = values.writer, found.instruction.depth, found.instruction.lanes
    group, position = writer.position(0, count // depth - 1)
    writer.open("")
    writer.bind(f"@{group}", group)
    column = number * lanes + dims.symbol(LANE)
    spots = [Spot({found.columns: column, found.axis: position * depth + n}, lanes) for n in range(depth)]
    pointer, address, guard = _plain(values, found, found.right, spots[0])
    others = [_plain(values, found, found.right, spot) for spot in spots[1:]]
    writer.drop()
    together = all(other[1] - address == n and other[2] == guard for n, other in enumerate(others, 1))
    fixed = all(f"@{group}" not in dims.symbols(side) for left, _, right in guard.tests for side in (left, right))
    apart = _stepped(values, address, group)
    if not (together and fixed and guard.whole and lane_stride(address) == depth and isinstance(apart, int)):
        return None
    return _Panel(pointer, at_lane(dims.substitute(address, {f"@{group}": 0}), 0), apart, guard.condition)


# --- the text ---------------------------------------------------------------------------------------------------------


def multiply_into(values: Values, statement: Store, value: Dot) -> bool:
    """Print a dot whose sums are tiles that are stored as they are, and may begin with what is there; False where it cannot be one."""
    tile = _filled(values, statement, value.type)
    if tile is None:
        return False
    acc = value.acc
    is_there = isinstance(acc, Load) and (acc.operand, acc.subscripts) == (statement.operand, statement.subscripts)
    return multiply(values, tile, value, tile.array if is_there else None)


def _filled(values: Values, statement: Store, kind: TileType) -> Tile | None:
    """The memory of a local that a store fills, if it is as tiles leave sums: elements of a row side by side, and nothing is tested."""
    local = values.scope.operands.get(statement.operand)
    if not isinstance(local, Local) or local.dtype.bits != 32 or statement.atomic or len(kind.axes) != 2:
        return None
    rows, columns = kind.axes
    row, position = values.writer.position(0, values.scope.extent(rows) - 1)
    values.writer.open("")
    values.writer.bind(f"@{row}", row)
    load = Load(statement.operand, statement.subscripts, kind)
    pointer, address, guard = values.access.plain(values.scope, load, Spot({rows: position, columns: dims.symbol(LANE)}, SIDE))
    values.writer.drop()
    pitch = _stepped(values, address, row)
    if guard.condition or not guard.whole or lane_stride(address) != 1 or not isinstance(pitch, int):
        return None
    start = values.writer.index(at_lane(dims.substitute(address, {f"@{row}": 0}), 0))
    return Tile(kind, columns, f"{pointer} + {start}", pitch)


def multiply(values: Values, tile: Tile, value: Dot, start: str | None = None) -> bool:
    """Print a dot whose sums are tiles; False, and nothing is printed, where it cannot be one. They begin with what lies at `start`, or
    in the memory of the accumulator.
    """
    if start is None:
        start = "" if isinstance(value.acc, Full) and value.acc.value.value == 0 else _array(values, value.acc, tile)
    block = _block(values, value) if tile.array and start is not None else None
    if block is None:
        return False
    held = values.held if values.held is not None and isinstance(value.acc, Ref) and values.held.name == value.acc.name else None
    _Printer(values, block, tile).print("" if held is not None and tile.is_zero else start or "", held)
    tile.is_zero = False
    return True


def _array(values: Values, acc: Value, tile: Tile) -> str | None:
    """The memory that holds the first values of the sums, if it is one of the same shape."""
    known = values.tile(acc.name) if isinstance(acc, Ref) else None
    return known.array if known is not None and known.array and known.pitch == tile.pitch and known.type == tile.type else None


class _Printer:
    """The text of one block."""

    def __init__(self, values: Values, block: _Block, tile: Tile) -> None:
        self.scope, self.writer, self.access = values.scope, values.writer, values.access
        self.block, self.tile = block, tile
        self.bytes = ROW // block.factors.step

    def print(self, start: str, held: Held | None) -> None:
        """The product added to what lies at `start`, or to zeros; sums that are `held` come into tiles and leave them elsewhere."""
        block, writer = self.block, self.writer
        shapes, whole = ", ".join(map(str, block.shapes)), block.rows == SIDE and block.groups == SIDE
        name = 0 if whole else functools.reduce(lambda known, size: known << 5 | size, block.shapes)
        writer.once("int tile_shapes = 0;  /* whole tiles, as they are on entry */")
        before = [f"if (tile_shapes != {name}) ourcc_tile_shapes({shapes}), tile_shapes = {name};"]
        after = []
        for tile, at in self._sums():
            place = f"{start} + {at}, {self.tile.pitch * 4}"
            before.append(f"ourcc_tile_load({tile}, {block.rows}, {ROW}, {place});" if start else f"ourcc_tile_zero({tile});")
            after.append(f"ourcc_tile_store({tile}, {block.rows}, {self.tile.array} + {at}, {self.tile.pitch * 4});")
        for line in before:
            writer.line(line, None if held is None else held.depth)
        writer.open("")
        if any(panel.condition for panel in block.panels):
            writer.line(f"static const uint8_t nothing[{ROW}];")
        rights = [self._right(panel) for panel in block.panels]
        if block.whole != 0:
            self._whole(rights)
        if block.rest:
            self._rest(rights)
        writer.close()
        if held is not None:
            held.after += after
            return
        for line in after:
            writer.line(line)

    def _sums(self) -> Iterator[tuple[int, int]]:
        """The tiles of the accumulator, and where each begins in its memory."""
        for down in range(self.block.down):
            for across in range(self.block.across):
                yield self.block.sum(down, across), down * self.block.rows * self.tile.pitch + across * SIDE

    def _right(self, panel: _Panel) -> tuple[str, str]:
        """Where a panel is, and how far its groups lie apart: nowhere where it is not there."""
        place, apart = f"(const uint8_t *)({panel.pointer} + {self.writer.index(panel.address)})", str(panel.apart * self.bytes)
        if not panel.condition:
            return self.writer.define("uint8_t *", place), apart
        apart = self.writer.define("int64_t", f"{panel.condition} ? {apart} : 0")
        return self.writer.define("uint8_t *", f"{apart} ? {place} : nothing"), apart

    def _whole(self, rights: Sequence[tuple[str, str]]) -> None:
        """The loop over all that fills tiles: from where the rows lie, or from copies of those that are there."""
        left = self.block.left
        if left.apart is None or left.ends is None:
            self._steps(rights, True)
            return
        inside = " && ".join(self.access.test(*test) for test in left.ends)
        if not inside:
            self._steps(rights, False)
            return
        name = self.writer.define("int", inside)
        for condition, copied in ((name, False), (f"!{name}", True)):
            self.writer.open(f"if ({condition})")
            self._steps(rights, copied)
            self.writer.close()

    def _steps(self, rights: Sequence[tuple[str, str]], copied: bool) -> None:
        writer, block = self.writer, self.block
        lefts = [] if copied else self._lefts()
        ahead = self._ahead()
        variable, position = writer.position(0, block.count // block.step - 1)
        writer.open(f"for (int64_t {variable} = 0; {variable} < {writer.index(block.whole)}; ++{variable})")
        for place in ahead:
            writer.line(f"__builtin_prefetch({place.format(variable)}, 0, 2);")
        writer.bind(f"@{variable}", variable)
        if copied:
            lefts = self._copied(position * block.step, block.step)
        else:
            lefts = [(f"{pointer} + {ROW} * {variable}", apart) for pointer, apart in lefts]
        self._multiply(lefts, [(f"{pointer} + {block.groups} * {apart} * {variable}", apart) for pointer, apart in rights])
        writer.close()

    def _ahead(self) -> list[str]:
        """The lines that each step asks for, by its number; none where panels are computed here."""
        block, factors, (panel, *others) = self.block, self.block.factors, self.block.panels
        if not isinstance(self.scope.operands[factors.right.operand], Param) or not isinstance(block.whole, int):
            return []
        apart = others[0].address - panel.address if others else block.count * SIDE
        if not isinstance(apart, int):
            return []
        panels = Panels(panel.address, apart, block.across, self.bytes, factors.columns, factors.axis, block.whole, block.count)
        share = share_of(panels, self.scope)
        if share is None:
            return []
        start = self.writer.define("uint8_t *", f"(const uint8_t *)({panel.pointer} + {self.writer.index(share.start)})")
        return [f"{start} + {share.apart} * {{}} + {offset}" for offset in share.offsets]

    def _lefts(self) -> list[tuple[str, str]]:
        """Where the left tiles begin, and the bytes between their rows."""
        left, writer = self.block.left, self.writer
        apart = writer.define("int64_t", f"{writer.index(left.apart or 0)} * {self.bytes}")
        first = {f"@{left.place[0]}": 0, f"@{left.row[0]}": 0}
        address = writer.index(self.access.tidy(dims.substitute(left.address, first), 1))
        start = writer.define("uint8_t *", f"(const uint8_t *)({left.pointer} + {address})")
        return [(f"{start} + {self.block.rows * down} * {apart}" if down else start, apart) for down in range(self.block.down)]

    def _copied(self, place: Dim, count: int) -> list[tuple[str, str]]:
        """The rows from one place of the contracted axis on, copied: what is outside has the value that it is read as."""
        left, writer, load = self.block.left, self.writer, self.block.factors.left
        array = self._array(self.block.down * self.block.rows)
        row, _ = left.row
        writer.open(f"for (int64_t {row} = 0; {row} < {self.block.down * self.block.rows}; ++{row})")
        writer.bind(f"@{row}", row)
        address = self.access.tidy(dims.substitute(left.address, {f"@{left.place[0]}": place}), 1)
        inside = " && ".join(self.access.test(*test) for test in left.tests)
        amount = f"{inside} ? {count * self.bytes} : 0" if inside else str(count * self.bytes)
        other = int(load.other.value) & 255 if load.other is not None and isinstance(load.other.value, int) else 0
        writer.line(f"ourcc_tile_row({array} + {ROW} * {row}, {left.pointer} + {writer.index(address)}, {amount}, {other});")
        writer.close()
        return [(f"{array} + {ROW * self.block.rows * down}", str(ROW)) for down in range(self.block.down)]

    def _rest(self, rights: Sequence[tuple[str, str]]) -> None:
        """What is left of the contracted axis, both factors copied, with zeros up to a whole tile."""
        writer, whole, rest = self.writer, self.block.count // self.block.step, self.block.rest
        groups = rest // self.block.factors.instruction.depth
        lefts = self._copied(whole * self.block.step, rest)
        copies = []
        for pointer, apart in rights:
            array = self._array(SIDE)
            row, _ = writer.position(0, SIDE - 1)
            writer.open(f"for (int64_t {row} = 0; {row} < {SIDE}; ++{row})")
            place = f"{pointer} + ({SIDE * whole} + {row}) * {apart}"
            writer.line(f"ourcc_tile_row({array} + {ROW} * {row}, {place}, {row} < {groups} ? {ROW} : 0, 0);")
            writer.close()
            copies.append((array, str(ROW)))
        self._multiply(lefts, copies)

    def _array(self, rows: int) -> str:
        array = self.writer.fresh("l")
        self.writer.line(f"uint8_t {array}[{rows * ROW}] __attribute__((aligned({ROW})));")
        return array

    def _multiply(self, lefts: Sequence[tuple[str, str]], rights: Sequence[tuple[str, str]]) -> None:
        """One step of the contracted axis: a tile is loaded where it is first multiplied: loads and products go side by side. Panels
        stay for all rows, as far as there are tiles for them; else rows do.
        """
        block = self.block
        pairs = [(down, across) for across in range(block.across) for down in range(block.down)]
        if block.few + block.across <= TILES:
            pairs.sort()
        here: tuple[set[int], set[int]] = set(), set()
        for down, across in pairs:
            if down not in here[0]:
                self._load(block.left_tile(down), block.rows, 4 * block.groups, lefts[down])
            if across not in here[1]:
                self._load(block.right_tile(across), block.groups, ROW, rights[across])
            here[0].add(down)
            here[1].add(across)
            self._add(down, across)

    def _load(self, tile: int, rows: int, count: int, place: tuple[str, str]) -> None:
        self.writer.line(f"ourcc_tile_load({tile}, {rows}, {count}, {place[0]}, {place[1]});")

    def _add(self, down: int, across: int) -> None:
        block = self.block
        tiles = f"{block.sum(down, across)}, {block.left_tile(down)}, {block.right_tile(across)}"
        self.writer.line(f"ourcc_{block.factors.instruction.name}({tiles});")
