"""Tile programs to C: one function per launch, statements as loops and blocks, values as vectors.

`SourceFile(level).add(launch, ...)` prints a launch as

    int32_t NAME(void *const *operands, const int64_t *symbols, int64_t first, int64_t last)

which runs the grid points first..last (row-major, last axis fastest) and gives 0; `NAME_descriptor` has with it what a
thread must do before and after, if an instruction asks for that. Operands are the launch's params, then its
counters; symbols come in the order that the caller gives. No loop is printed but those of the program and those that
run over one tile.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ...ir import dims
from ...ir.dims import NO_FACTS, Dim, Facts
from ...ir.errors import UnsupportedError
from ...ir.target import CpuInstruction, CpuLevel
from ...ir.tile import Axis, Scope, expand_launch, launch_scope
from ...ir.tile.program import AxisDecl, Copy, For, If, Launch, Let, Local, Signal, Statement, Store, Wait
from . import amx, folds, lanes, matrix, primitives, quads, tables
from .abi import declaration, descriptor
from .access import Access, Spot
from .basics import basics
from .elementary import elementary
from .library import ELEMENTS, Library, LibraryFunction
from .placement import Placement, c_name
from .tiles import Held, LaunchPlan, plan_launch
from .values import Values
from .weight import functions_called
from .writer import Writer


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
        return declaration(self.name)


@functools.cache
def library_functions() -> Mapping[str, LibraryFunction]:
    """All that a file may ask for: made once, since each kernel has a file of its own."""
    return MappingProxyType({**basics(), **elementary(), **lanes.functions(), **quads.functions(), **tables.functions(), **amx.functions()})


class SourceFile:
    """A C file for one instruction-set level: kernels and the library functions that they use."""

    def __init__(self, level: CpuLevel) -> None:
        self.level = level
        self.library = Library(level, library_functions())
        self.kernels: list[Kernel] = []

    def add(self, launch: Launch, name: str, symbols: Sequence[str], facts: Facts = NO_FACTS) -> Kernel:
        """Print a launch under a C name; `facts` hold for the symbols in every call of the kernel."""
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UnsupportedError(f"kernel name {name!r} is not a c identifier", hint="use letters, digits and underscores")
        with self.library.noting() as used:
            kernel = _Printer(expand_launch(launch, facts), name, tuple(symbols), facts, self.library).kernel()
        kernel = replace(kernel, source=kernel.source + described(name, [i for i in self.level.instructions if i.feature in used]))
        self.kernels.append(kernel)
        return kernel

    def text(self) -> str:
        """The whole file."""
        includes = ["#define _GNU_SOURCE", '#include "ourcc.h"', "#include <sched.h>"]
        sources = [kernel.source for kernel in self.kernels]
        return "\n".join([*includes, self.library.text(functions_called(sources, self.library)), _KERNELS, *sources]) + "\n"


_KERNELS = "/* Above this line stand the library's functions that are used here, below it kernels. */"


def kernels_of(text: str) -> str:
    """The kernels in the text of a file, without the library's functions; all of a file that does not tell them apart."""
    _, line, kernels = text.partition(f"{_KERNELS}\n")
    return kernels if line else text


def described(name: str, instructions: Sequence[CpuInstruction]) -> str:
    """The description of a kernel that uses these instructions; hooks of one text are called once."""
    hooks = list(dict.fromkeys((each.enter, each.leave) for each in instructions if each.enter or each.leave))
    if not hooks:
        return f"const ourcc_kernel {descriptor(name)} = {{{name}, 0, 0}};\n"
    lines: list[str] = []
    for number, (enter, leave) in enumerate(hooks):
        lines += [f"static int32_t {name}_enter_{number}(void) {{", *_indented(enter), "    return 0;", "}"]
        lines += [f"static void {name}_leave_{number}(void) {{", *_indented(leave), "}"]
    lines += [f"static int32_t {name}_enter(void) {{", "    int32_t status;"]
    for number in range(len(hooks)):
        undone = "".join(f"{name}_leave_{before}(); " for before in reversed(range(number)))
        lines.append(f"    if ((status = {name}_enter_{number}()) != 0) {{ {undone}return status; }}")
    lines += ["    return 0;", "}", f"static void {name}_leave(void) {{"]
    lines += [f"    {name}_leave_{number}();" for number in reversed(range(len(hooks)))]
    lines += ["}", f"const ourcc_kernel {descriptor(name)} = {{{name}, {name}_enter, {name}_leave}};", ""]
    return "\n".join(lines)


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]


def print_launch(
    launch: Launch, level: CpuLevel, symbols: Sequence[str], facts: Facts = NO_FACTS, name: str = "kernel"
) -> tuple[Kernel, str]:
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
        self.plan: LaunchPlan = plan_launch(launch, library.level, matrix.accumulated_rows(launch, library.level))
        self.writer = Writer(library)
        self.scope: Scope = launch_scope(launch, facts)
        self.pointers: dict[str, str] = {}
        self.access = Access(self.writer, self.pointers)
        self.values = Values(self.writer, self.access, self.plan, self.scope, folds.reduce)
        self.placement = Placement(self.writer, self.access, self.plan, self.values)

    # --- the function -----------------------------------------------------------------------------------------------

    def kernel(self) -> Kernel:
        self.writer.open(f"int32_t {self.name}(void *const *operands, const int64_t *symbols, int64_t first, int64_t last)")
        for place, symbol in enumerate(self.symbols):
            self.writer.line(f"const int64_t {c_name('n', symbol)} = symbols[{place}];")
            self.writer.bind(symbol, c_name("n", symbol))
        for place, param in enumerate(self.launch.params):
            storage = ELEMENTS[primitives.storage_type(param.dtype)[0]][0]
            const = "const " if param.role == "in" else ""
            self.pointers[param.name] = c_name("x", param.name)
            self.writer.line(f"{const}{storage} *{self.pointers[param.name]} = operands[{place}];")
        for place, counter in enumerate(self.launch.counters, len(self.launch.params)):
            self.pointers[counter.name] = c_name("c", counter.name)
            self.writer.line(f"int32_t *{self.pointers[counter.name]} = operands[{place}];")
        self._grid()
        self.writer.line("return 0;")
        self.writer.begin(self.placement.memory())
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
        outer, pointers, held = self.scope, dict(self.pointers), self.placement.held
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
        self.placement.held = held
        self._enter(outer)

    def _enter(self, scope: Scope) -> None:
        self.scope = scope
        self.values.scope = scope
        self.writer.facts = scope.facts

    def _statement(self, statement: Statement) -> None:
        if isinstance(statement, Let):
            self.placement.let(statement.name, statement.value)
        elif isinstance(statement, Store):
            self.placement.store(statement)
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
            self.writer.line(f"while ({load} < {value}) {{ if (ourcc_ended() != 0) return 0; sched_yield(); }}")

    def _subscript(self, subscripts: tuple[Dim, ...]) -> str:
        return self.writer.index(subscripts[0])

    def _for(self, loop: For) -> None:
        inner = self.scope.enter(loop)
        axis: Axis = inner.axis(loop.name)
        low, high = self.writer.index(axis.low), self.writer.index(axis.high)
        name, held = self.writer.fresh("s"), None
        if self.values.held is None and (added := matrix.summed(loop)) is not None:
            held = self.values.held = Held(added, self.writer.depth)
        self.writer.open(f"for (int64_t {name} = {low}; {name} < {high}; {name} += {loop.step})")
        self._enter(inner)
        self.writer.bind(axis.first, name)
        self._carry(loop.carries)
        outer = self.scope
        self._block(loop.body)
        self.scope = outer
        self.writer.close()
        if held is not None:
            self.values.held = None
            for line in held.after:
                self.writer.line(line)
        self._carry(loop.carries)

    def _if(self, statement: If) -> None:
        condition = self.writer.define("int32_t", self.values.vector(statement.condition, Spot({}, 1))[0])
        self.values.forget()
        scope = self.scope
        self.writer.open(f"if (__builtin_expect({condition}, 0))" if statement.seldom else f"if ({condition})")
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
        """Carried values change in here: index expressions over integers hold in this block only."""
        for name in names:
            tile = self.values.tile(name)
            if tile is not None and self.values.held is None:
                tile.is_zero = False
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
        self.pointers[local.name] = self.placement.array(local.name, ctype, count + 16, local.dtype.itemsize)

    def _copy(self, copy: Copy) -> None:
        target, source = self.scope.operands.get(copy.target), self.scope.operands.get(copy.source)
        if not isinstance(target, Local) or not isinstance(source, Local) or (target.dtype, target.layout) != (source.dtype, source.layout):
            raise UnsupportedError(f"copy %{copy.source} to %{copy.target} is not between locals of one type", hint="use load and store")
        elements = 1
        for _, size in target.dims:
            elements *= size if isinstance(size, int) else 1
        self.writer.line(f"memcpy({self.pointers[copy.target]}, {self.pointers[copy.source]}, {elements * target.dtype.itemsize});")
