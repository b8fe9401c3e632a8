"""Tile programs to C: one function per launch, statements as loops and blocks, values as vectors.

`SourceFile(level).add(launch, ...)` prints a launch as

    void NAME(void *const *operands, const int64_t *symbols, int64_t first, int64_t last)

which runs the grid points first..last (row-major, last axis fastest). Operands are the launch's params, then its
counters; symbols come in the order that the caller gives. No loop is printed but those of the program and those that
run over one tile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from ...ir import dims
from ...ir.dims import NO_FACTS, Dim, Facts
from ...ir.errors import UnsupportedError
from ...ir.target import CpuLevel
from ...ir.tile import Axis, Scope, expand_launch, launch_scope
from ...ir.tile.program import (
    AxisDecl,
    Copy,
    Dot,
    Expand2to4,
    For,
    If,
    Join,
    Launch,
    Let,
    Load,
    Local,
    Reduce,
    Ref,
    Rename,
    Scan,
    Signal,
    Statement,
    Store,
    TileApply,
    TileType,
    Unpack,
    Value,
    Wait,
    parts,
    walk,
)
from . import primitives
from .access import Access, Spot
from .basics import basics, register
from .elementary import elementary
from .folds import dot_block, scan
from .library import ELEMENTS, Library
from .tiles import Plan, Tile, plan_launch, positions
from .values import Values, accumulator
from .writer import LANE, Writer

STACK_LIMIT = 1 << 20


@dataclass(frozen=True)
class Kernel:
    """A printed launch: its C name and text, what `operands` holds in order, the number of grid points."""

    name: str
    source: str
    operands: tuple[str, ...]
    symbols: tuple[str, ...]
    points: Dim

    @property
    def declaration(self) -> str:
        return f"void {self.name}(void *const *operands, const int64_t *symbols, int64_t first, int64_t last);"


class SourceFile:
    """A C file for one instruction-set level: kernels and the library functions that they use."""

    def __init__(self, level: CpuLevel) -> None:
        self.level = level
        self.library = Library(level, {**basics(), **elementary()})
        self.kernels: list[Kernel] = []

    def add(self, launch: Launch, name: str, symbols: Sequence[str], facts: Facts = NO_FACTS) -> Kernel:
        """Print a launch under a C name; `facts` hold for the symbols in every call of the kernel."""
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UnsupportedError(f"kernel name {name!r} is not a c identifier", hint="use letters, digits and underscores")
        kernel = _Printer(expand_launch(launch, facts), name, tuple(symbols), facts, self.library).kernel()
        self.kernels.append(kernel)
        return kernel

    def text(self) -> str:
        """The whole file."""
        includes = ["#define _GNU_SOURCE", '#include "ourcc.h"', "#include <sched.h>"]
        return "\n".join([*includes, self.library.text(), *(kernel.source for kernel in self.kernels)]) + "\n"


def print_launch(launch: Launch, level: CpuLevel, symbols: Sequence[str], facts: Facts = NO_FACTS, name: str = "kernel") -> tuple[Kernel, str]:
    """One launch as a C file of its own."""
    file = SourceFile(level)
    kernel = file.add(launch, name, symbols, facts)
    return kernel, file.text()


def grid_points(launch: Launch) -> Dim:
    """The number of points of a launch's grid."""
    return dims.product(dims.maximum(0, dims.ceil_div(axis.high - axis.low, axis.step or 1)) for axis in launch.grid)


class _Printer:
    """Prints one launch; follows the statements with scope, writer and the places of named tiles."""

    def __init__(self, launch: Launch, name: str, symbols: tuple[str, ...], facts: Facts, library: Library) -> None:
        self.launch, self.name, self.symbols, self.library = launch, name, symbols, library
        self.plan: Plan = plan_launch(launch, library.level)
        self.writer = Writer(library)
        self.scope: Scope = launch_scope(launch, facts)
        self.pointers: dict[str, str] = {}
        self.access = Access(self.writer, self.pointers)
        self.values = Values(self.writer, self.access, self.plan, self.scope)
        self.stack = 0
        self._synthetic = 0

    # --- the function -----------------------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        self.writer.open(f"void {self.name}(void *const *operands, const int64_t *symbols, int64_t first, int64_t last)")
        for place, symbol in enumerate(self.symbols):
            self.writer.line(f"const int64_t {_c_name('n', symbol)} = symbols[{place}];")
            self.writer.bind(symbol, _c_name("n", symbol))
        for place, param in enumerate(self.launch.params):
            storage = ELEMENTS[primitives.storage_type(param.dtype)[0]][0]
            const = "const " if param.role == "in" else ""
            self.pointers[param.name] = _c_name("x", param.name)
            self.writer.line(f"{const}{storage} *{self.pointers[param.name]} = operands[{place}];")
        for place, counter in enumerate(self.launch.counters, len(self.launch.params)):
            self.pointers[counter.name] = _c_name("c", counter.name)
            self.writer.line(f"int32_t *{self.pointers[counter.name]} = operands[{place}];")
        self._grid()
        self.writer.close()
        operands = (*(param.name for param in self.launch.params), *(counter.name for counter in self.launch.counters))
        source = "\n".join(self.writer.blocks[0].lines) + "\n"
        return Kernel(self.name, source, operands, self.symbols, grid_points(self.launch))

    def _grid(self) -> None:
        self.writer.facts = self.scope.facts
        counts = []
        for axis in self.launch.grid:
            count = self.writer.index(dims.ceil_div(axis.high - axis.low, axis.step or 1))
            counts.append(self.writer.define("int64_t", count, "g"))
        self.writer.open("for (int64_t point = first; point < last; ++point)")
        rest = "point"
        starts = []
        for place in range(len(counts) - 1, -1, -1):
            axis = self.launch.grid[place]
            number = f"{rest} % {counts[place]}" if place else rest
            starts.append((axis, self.writer.define("int64_t", f"{self.writer.index(axis.low)} + ({number}) * {axis.step or 1}", "g")))
            rest = f"({rest} / {counts[place]})"
        for axis, start in reversed(starts):
            self.writer.bind(self.scope.axis(axis.name).first, start)
        self._block(self.launch.body)
        self.writer.close()

    # --- statements -------------------------------------------------------------------------------------------------

    def _block(self, body: tuple[Statement, ...]) -> None:
        outer, pointers, stack = self.scope, dict(self.pointers), self.stack
        self.values.tiles.append({})
        for statement in body:
            self._enter(self.scope)
            self._statement(statement)
            self.values.forget()
            if not isinstance(statement, (For, If)):
                self._enter(self.scope.enter(statement))
        self.values.tiles.pop()
        self.pointers.clear()
        self.pointers.update(pointers)
        self.stack = stack
        self._enter(outer)

    def _enter(self, scope: Scope) -> None:
        self.scope = scope
        self.values.scope = scope
        self.writer.facts = scope.facts

    def _statement(self, statement: Statement) -> None:
        if isinstance(statement, Let):
            self._let(statement.name, statement.value)
        elif isinstance(statement, Store):
            self._store(statement)
        elif isinstance(statement, For):
            self._for(statement)
        elif isinstance(statement, If):
            self._if(statement)
        elif isinstance(statement, AxisDecl):
            self.writer.bind(f"{statement.name}.first", self.writer.define("int64_t", self.writer.index(statement.low), "s"))
        elif isinstance(statement, Local):
            self._local(statement)
        elif isinstance(statement, Copy):
            self._copy(statement)
        elif isinstance(statement, Signal):
            place = self._subscript(statement.subscripts)
            self.writer.line(f"__atomic_fetch_add(&{self.pointers[statement.counter]}[{place}], 1, __ATOMIC_RELEASE);")
        elif isinstance(statement, Wait):
            place, value = self._subscript(statement.subscripts), self.writer.index(statement.value)
            load = f"__atomic_load_n(&{self.pointers[statement.counter]}[{place}], __ATOMIC_ACQUIRE)"
            self.writer.line(f"while ({load} < {value}) sched_yield();")

    def _subscript(self, subscripts: tuple[Dim, ...]) -> str:
        return self.writer.index(subscripts[0])

    def _for(self, loop: For) -> None:
        inner = self.scope.enter(loop)
        axis: Axis = inner.axis(loop.name)
        low, high = self.writer.index(axis.low), self.writer.index(axis.high)
        name = self.writer.fresh("s")
        self.writer.open(f"for (int64_t {name} = {low}; {name} < {high}; {name} += {loop.step})")
        self._enter(inner)
        self.writer.bind(axis.first, name)
        self._carry(loop.carries)
        outer = self.scope
        self._block(loop.body)
        self.scope = outer
        self.writer.close()
        self._carry(loop.carries)

    def _if(self, statement: If) -> None:
        condition = self.writer.define("int32_t", self.values.vector(statement.condition, Spot({}, 1))[0])
        self.values.forget()
        scope = self.scope
        self.writer.open(f"if ({condition})")
        self._carry(statement.carries)
        self._block(statement.body)
        self.writer.close()
        if statement.otherwise:
            self._enter(scope)
            self.writer.open(f"if (!{condition})")  # not `else`: what is hoisted stands between the two blocks
            self._carry(statement.carries)
            self._block(statement.otherwise)
            self.writer.close()
        self._enter(scope)
        self._carry(statement.carries)

    def _carry(self, names: Iterable[str]) -> None:
        """Carried integers change in here: index expressions over them hold in this block only."""
        for name in names:
            tile = self.values.tile(name)
            if tile is not None and not tile.type.axes and tile.type.dtype.is_integer:
                self.writer.rebind(f"%{name}", f"(int64_t){tile.names[()]}")

    def _local(self, local: Local) -> None:
        sizes = [size for _, size in local.dims if isinstance(size, int)]
        if len(sizes) != len(local.dims):
            raise UnsupportedError(f"local %{local.name} has a symbolic size", hint="use a workspace of the program")
        if local.dtype.bits < 8:
            raise UnsupportedError(f"local %{local.name} holds {local.dtype}, narrower than a byte", hint="keep it as bytes")
        count = 1
        for size in sizes:
            count *= size
        ctype = ELEMENTS[primitives.storage_type(local.dtype)[0]][0]
        self.pointers[local.name] = self._array(local.name, ctype, count + 16, count * local.dtype.itemsize)

    def _array(self, name: str, ctype: str, elements: int, nbytes: int) -> str:
        self.stack += nbytes
        if self.stack > STACK_LIMIT:
            hint = "make the tile smaller or use a workspace of the program"
            raise UnsupportedError(f"%{name} needs {self.stack} bytes of stack with what is open here, expected at most {STACK_LIMIT}", hint=hint)
        array = f"{_c_name('l', name)}_{self.writer.fresh('')}"
        self.writer.line(f"{ctype} {array}[{elements}] __attribute__((aligned(64)));")
        return array

    def _copy(self, copy: Copy) -> None:
        target, source = self.scope.operands.get(copy.target), self.scope.operands.get(copy.source)
        if not isinstance(target, Local) or not isinstance(source, Local) or target.dtype != source.dtype:
            raise UnsupportedError(f"copy %{copy.source} to %{copy.target} is not between locals of one type", hint="use load and store")
        elements = 1
        for _, size in target.dims:
            elements *= size if isinstance(size, int) else 1
        self.writer.line(f"memcpy({self.pointers[copy.target]}, {self.pointers[copy.source]}, {elements * target.dtype.itemsize});")

    # --- named values -----------------------------------------------------------------------------------------------

    def _let(self, name: str, value: Value) -> None:
        known = self.values.tile(name)
        value = self._place_parts(value)
        if isinstance(value, Scan):
            value = self._place(value)
        if known is not None and known.array and not isinstance(value, Dot) and _reads_elsewhere(value, name):
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
        extents = {axis: self.scope.extent(axis) for axis in type_.axes}
        tile = Tile(type_, self.plan.lane_axis(type_, extents))
        if self.plan.in_memory(type_):
            self._make_array(name, tile)
        return tile

    def _make_array(self, name: str, tile: Tile) -> None:
        extents = [self.scope.extent(axis) for axis in tile.type.axes]
        width = self.plan.width(extents[-1])
        tile.pitch = -(-extents[-1] // width) * width
        count = tile.pitch
        for extent in extents[:-1]:
            count *= extent
        kind, size = ELEMENTS[register(tile.type.dtype)]
        tile.array = self._array(name, kind, count + 16, count * size)

    def _scalar(self, name: str, tile: Tile, value: Value, known: bool) -> None:
        text = self._dot_starts(value, [Spot({}, 1)])[0] if isinstance(value, Dot) else self.values.vector(value, Spot({}, 1))[0]
        if known:
            self.writer.line(f"{tile.names[()]} = {text};")
        else:
            tile.names[()] = f"{_c_name('v', name)}_{self.writer.fresh('')}"
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
        for name, text in pending:
            self.writer.line(f"{name} = {text};")

    def _set(self, tile: Tile, spot: Spot, text: str, known: bool, pending: list[tuple[str, str]]) -> None:
        dtype = tile.type.dtype
        if tile.array:
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
            starts[-1] = starts[-1] // self.plan.width(self.scope.extent(tile.lane_axis))
        return tuple(start for start in starts if isinstance(start, int))

    def _each(self, type_: TileType, visit: Callable[[Spot], None], lane_axis: str | None) -> None:
        """Visit every vector of a tile: printed loops over long axes, one visit per position of the others."""
        self._blocks(type_, lambda spots: [visit(spot) for spot in spots] and None, lane_axis)

    def _blocks(self, type_: TileType, visit: Callable[[list[Spot]], None], lane_axis: str | None) -> None:
        """Visit the unrolled block of a tile at once, inside printed loops over its long axes."""
        counts: list[int] = []
        fixed: dict[str, Dim] = {}
        for axis in type_.axes:
            extent = self.scope.extent(axis)
            count = -(-extent // self.plan.width(extent)) if axis == lane_axis else extent
            if axis in self.plan.looped:
                variable, position = self.writer.position(0, count - 1)
                self.writer.open(f"for (int64_t {variable} = 0; {variable} < {count}; ++{variable})")
                self.writer.bind(f"@{variable}", variable)
                fixed[axis] = position
            counts.append(1 if axis in fixed else count)
        visit([self._spot(type_, place, fixed, lane_axis) for place in positions(counts)])
        for _ in fixed:
            self.writer.close()

    def _spot(self, type_: TileType, place: tuple[int, ...], fixed: dict[str, Dim], lane_axis: str | None) -> Spot:
        found: dict[str, Dim] = {axis: fixed.get(axis, number) for axis, number in zip(type_.axes, place, strict=True)}
        if lane_axis is None:
            return Spot(found, 1)
        extent = self.scope.extent(lane_axis)
        width = self.plan.width(extent)
        start = found[lane_axis] * width
        found[lane_axis] = start + dims.symbol(LANE)
        whole = extent % width == 0 or (isinstance(start, int) and start + width <= extent)
        return Spot(found, width, () if whole else ((found[lane_axis], extent),))

    def _dot(self, tile: Tile, value: Dot, known: bool) -> None:
        pending: list[tuple[str, str]] = []

        def block(spots: list[Spot]) -> None:
            for spot, text in zip(spots, self._dot_starts(value, spots), strict=True):
                self._set(tile, spot, text, known, pending)

        self._blocks(value.type, block, tile.lane_axis)
        for name, text in pending:
            self.writer.line(f"{name} = {text};")

    # --- nested folds get a place of their own ------------------------------------------------------------------------

    def _place_parts(self, value: Value) -> Value:
        """The value with every dot, reduction and scan inside it replaced by the name of a tile computed before."""
        return _with_parts(value, tuple(self._place(part) if isinstance(part, (Dot, Reduce, Scan)) else self._place_parts(part) for part in parts(value)))

    def _place(self, value: Value) -> Value:
        """Compute a value into a tile without a name of the program."""
        value = self._place_parts(value)
        self._synthetic += 1
        name = f"@{self._synthetic}"
        if isinstance(value, Scan):
            self._scan(name, value)
        else:
            self._let(name, value)
        self._enter(replace(self.scope, values={**self.scope.values, name: value.type}))
        return Ref(name, value.type)

    def _scan(self, name: str, value: Scan) -> None:
        tile = Tile(value.type, None)
        self._make_array(name, tile)
        self.values.tiles[-1][name] = tile
        lane = value.type.axes[-1] if value.type.axes[-1] != value.axis else None

        def each(type_: TileType, visit: Callable[[Spot], None]) -> None:
            self._each(type_, visit, lane if lane and self.scope.extent(lane) > 1 else None)

        scan(self.values, value, each, lambda spot, text: self._set(tile, spot, text, False, []))

    def _store(self, statement: Store) -> None:
        value = self._place_parts(statement.value)
        if isinstance(value, (Dot, Reduce, Scan)) or _loads(value, statement):
            value = self._place(value)
        names = {n for s in statement.subscripts for n in dims.symbols(s) if n.startswith("%")}
        extents = {axis: self.scope.extent(axis) for axis in value.type.axes}
        lane_axis = self.plan.lane_axis(value.type, extents)
        operand = self.scope.operands[statement.operand]
        dtype = value.type.dtype
        if getattr(operand, "dtype", dtype) != dtype:
            raise UnsupportedError(f"store of {dtype} to %{statement.operand} of another type", hint="cast the value")

        def one(spot: Spot) -> None:
            text = self.values.spread(dtype, self.values.vector(value, spot), spot.lanes)
            self.access.store(self.scope, statement, self.values.gathers(names, spot), text)

        self._each(value.type, one, lane_axis)


def _c_name(prefix: str, name: str) -> str:
    return f"{prefix}_{re.sub(r'[^A-Za-z0-9]', '_', name)}"


def _loads(value: Value, store: Store) -> bool:
    """Whether the value reads what the store writes at other places: then all of it is computed first."""
    return any(isinstance(part, Load) and part.operand == store.operand and part.subscripts != store.subscripts for part in walk(value))


def _reads_elsewhere(value: Value, name: str) -> bool:
    """Whether a value reads the tile of that name at other positions than its own."""
    if isinstance(value, TileApply):
        return any(_reads_elsewhere(arg, name) for arg in value.args)
    return not isinstance(value, Ref) and any(isinstance(part, Ref) and part.name == name for part in walk(value))


def _with_parts(value: Value, new: tuple[Value, ...]) -> Value:
    if new == parts(value):
        return value
    if isinstance(value, TileApply):
        return replace(value, args=new)
    if isinstance(value, Dot):
        return replace(value, left=new[0], right=new[1], acc=new[2])
    if isinstance(value, (Reduce, Scan, Rename, Unpack)):
        return replace(value, value=new[0])
    if isinstance(value, Join):
        return replace(value, left=new[0], right=new[1])
    if isinstance(value, Expand2to4):
        return replace(value, values=new[0], positions=new[1])
    return value
