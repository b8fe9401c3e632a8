"""One launch of a tile program as the source of one Triton kernel."""

from __future__ import annotations

import re
from dataclasses import replace

from ...ir import dims
from ...ir.dims import Dim, Facts
from ...ir.errors import UnsupportedError
from ...ir.plan import SCALAR_LIMIT
from ...ir.tile import checks_of as checks_of_access
from ...ir.tile import expand_launch, flatten, launch_scope, varies_over
from ...ir.tile.program import (
    AxisDecl,
    Copy,
    For,
    If,
    Launch,
    Let,
    Load,
    Local,
    Param,
    Signal,
    Statement,
    Store,
    TileProgram,
    Value,
    Wait,
    statements,
    walk,
)
from ...ir.tile.ranges import range_of
from ...ir.tile.scope import Scope
from . import descriptors, indices, primitives
from .emitter import RESERVED, Emitter, Tile, check_extent
from .grid import open_grid
from .helpers import SOURCES, closure
from .kernel import Argument, TritonKernel
from .primitives import language_type
from .values import expression, local_axes, tile
from .words import bare, shape_text

_ATOMICS = ("add", "max", "min")


def print_program(
    program: TileProgram, facts: Facts = dims.NO_FACTS, aligned: frozenset[str] | None = None, programs: int = 132
) -> tuple[TritonKernel, ...]:
    """Every launch of a program, in order; the arguments are those of `print_launch`."""
    return tuple(print_launch(launch, facts, aligned, programs) for launch in program.launches)


def print_launch(launch: Launch, facts: Facts = dims.NO_FACTS, aligned: frozenset[str] | None = None, programs: int = 132) -> TritonKernel:
    """The kernel of a launch.

    `facts` are ranges and divisors of the symbols, `aligned` the operands known to start at multiples of 16 bytes
    (None: all), `programs` how many programs a persistent launch has at most.
    """
    launch = expand_launch(launch, facts)
    symbols = _symbols(launch)
    bounded = _bounded(symbols, facts)
    scope = launch_scope(launch, bounded)
    arguments = _arguments(launch, symbols, facts, aligned)
    emitter = Emitter(launch, anywhere=frozenset(each.name for each in arguments if each.kind == "operand" and not each.aligned))
    emitter.taken |= {_parameter(a) for a in arguments} | set(SOURCES)
    grid = open_grid(emitter, scope, launch, programs)
    with grid.body(emitter):
        _statements(emitter, scope, launch.body)
    name = Emitter(launch, taken={*RESERVED, *SOURCES}).fresh(launch.name)
    return TritonKernel(
        name,
        _source(emitter, name, arguments),
        arguments,
        grid.programs,
        warps=_hint(launch, "warps", 4),
        stages=_hint(launch, "stages", 3),
        clusters=_hint(launch, "cluster", 1),
        descriptors=bool(emitter.preamble),
        isa=emitter.isa,
        notes=tuple(emitter.notes),
    )


# --- the kernel around the body -----------------------------------------------------------------------------------------


def _source(emitter: Emitter, name: str, arguments: tuple[Argument, ...]) -> str:
    lines = ["import triton", "import triton.language as tl", ""]
    for helper in closure(emitter.helpers):
        lines += ["", "@triton.jit", *SOURCES[helper].splitlines(), ""]
    lines += ["", "@triton.jit", f"def {name}({', '.join(_parameter(argument) for argument in arguments)}):"]
    lines += [f"    lane_{extent} = tl.arange(0, {extent})" for extent in sorted(emitter.lanes)]
    lines += [f"    {line}" for line in emitter.preamble]
    return "\n".join([*lines, *(emitter.lines or ["    pass"]), ""])


def _parameter(argument: Argument) -> str:
    return f"size_{argument.name}" if argument.kind == "size" else f"{argument.name}_ptr"


def _arguments(launch: Launch, symbols: tuple[str, ...], facts: Facts, aligned: frozenset[str] | None) -> tuple[Argument, ...]:
    result = [_operand_argument(param, aligned is None or param.name in aligned) for param in launch.params]
    result += [Argument(counter.name, "counter", "*i32", True) for counter in launch.counters]
    result += [Argument(name, "size", "i32", facts.divisors.get(name, 1) % 16 == 0) for name in symbols]
    for argument in result:
        if not re.fullmatch(r"[A-Za-z_]\w*", argument.name):
            raise UnsupportedError(
                f"launch {launch.name}: {argument.kind} name {argument.name!r} cannot stand in Python source, expected an identifier"
            )
    return tuple(result)


def _operand_argument(param: Param, aligned: bool) -> Argument:
    return Argument(param.name, "operand", f"*{primitives.signature_type(param.dtype)}", aligned)


def _symbols(launch: Launch) -> tuple[str, ...]:
    """The sizes that the launch names anywhere, in order of name."""
    found: set[str] = set()
    bound = {axis.name for axis in launch.grid}
    for axis in launch.grid:
        found |= dims.symbols(axis.low) | dims.symbols(axis.high)
    for param in launch.params:
        for size in (*param.shape, *(param.strides or ())):
            found |= dims.symbols(size)
    for statement in statements(launch.body):
        found |= _statement_symbols(statement)
        if isinstance(statement, (For, AxisDecl)):
            bound.add(statement.name)
    return tuple(sorted(name for name in found if not name.startswith("%") and name.split(".")[0] not in bound))


def _statement_symbols(statement: Statement) -> set[str]:
    named: list[Dim] = []
    values: list[Value] = []
    if isinstance(statement, (For, AxisDecl)):
        named += [statement.low, statement.high]
    elif isinstance(statement, Let):
        values.append(statement.value)
    elif isinstance(statement, Store):
        named += statement.subscripts
        values.append(statement.value)
    elif isinstance(statement, If):
        values.append(statement.condition)
    elif isinstance(statement, Wait):
        named += [*statement.subscripts, statement.value]
    elif isinstance(statement, Signal):
        named += statement.subscripts
    for value in values:
        for part in walk(value):
            named += part.subscripts if isinstance(part, Load) else ()
            part_value = getattr(part, "value", None)
            named += [part_value] if isinstance(part_value, (int, dims.Expr)) else []
    return {name for dim in named for name in dims.symbols(dim)}


def _bounded(symbols: tuple[str, ...], facts: Facts) -> Facts:
    """Facts in which every size is known to be one that a kernel takes. What the data or the caller say may be negative."""
    for name in symbols:
        known = facts.ranges.get(name, dims.Range(0, None))
        low = 1 - SCALAR_LIMIT if known.low is None else max(known.low, 1 - SCALAR_LIMIT)
        high = SCALAR_LIMIT - 1 if known.high is None else min(known.high, SCALAR_LIMIT - 1)
        facts = facts.with_range(name, low, high, facts.divisors.get(name, 1))
    return facts


def _hint(launch: Launch, name: str, default: int) -> int:
    value = launch.hint(name, default)
    if not isinstance(value, int) or value < 1:
        raise UnsupportedError(f"launch {launch.name}: hint {name} is {value!r}, expected a positive number")
    return value


# --- statements -------------------------------------------------------------------------------------------------------


def _statements(emitter: Emitter, scope: Scope, body: tuple[Statement, ...]) -> None:
    for statement in body:
        _statement(emitter, scope, statement)
        if not isinstance(statement, For):
            scope = _known(scope.enter(statement), statement)


def _known(scope: Scope, statement: Statement) -> Scope:
    """A named integer of at most 32 bits fits its own type, whatever it was loaded from."""
    if not isinstance(statement, Let) or f"%{statement.name}" in scope.facts.ranges:
        return scope
    dtype = statement.value.type.dtype
    if not dtype.is_integer or dtype.bits > 32 or dtype.name == "u32":
        return scope
    signed = dtype.kind == "int"
    low, high = (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1) if signed else (0, 2**dtype.bits - 1)
    return replace(scope, facts=scope.facts.with_range(f"%{statement.name}", low, high))


def _statement(emitter: Emitter, scope: Scope, statement: Statement) -> None:
    if isinstance(statement, Let):
        _let(emitter, scope, statement)
    elif isinstance(statement, Store):
        _store(emitter, scope, statement)
    elif isinstance(statement, Local):
        _local(emitter, statement)
    elif isinstance(statement, Copy):
        _copy(emitter, statement)
    elif isinstance(statement, AxisDecl):
        _axis(emitter, scope, statement)
    elif isinstance(statement, For):
        _for(emitter, scope, statement)
    elif isinstance(statement, If):
        _if(emitter, scope, statement)
    elif isinstance(statement, Signal):
        _signal(emitter, scope, statement)
    else:
        _wait(emitter, scope, statement)


def _carried(emitter: Emitter) -> set[str]:
    return {name for s in statements(emitter.launch.body) if isinstance(s, (For, If)) for name in s.carries}


def _let(emitter: Emitter, scope: Scope, statement: Let) -> None:
    value = statement.value
    printed = expression(emitter, scope, value, value.type.axes)
    if statement.name not in _carried(emitter):
        if printed.constant is None:
            printed = emitter.held(replace(printed, wanted=statement.name))
        emitter.values[statement.name] = printed
        emitter.ranges[statement.name] = range_of(value, emitter.ranges)
        return
    # What a loop rebinds keeps one type: every axis of it is there from the start.
    printed = printed if printed.axes == value.type.axes else emitter.held(printed)
    text = emitter.broadcast(scope, printed, value.type.axes)
    known = emitter.values.get(statement.name)
    if known is None:
        emitter.values[statement.name] = emitter.held(Tile(text, value.type.axes, value.type.dtype, wanted=statement.name))
    else:
        emitter.line(f"{known.text} = {bare(text)}")


def _store(emitter: Emitter, scope: Scope, statement: Store) -> None:
    operand = scope.operands.get(statement.operand)
    axes = statement.value.type.axes
    if isinstance(operand, Local):
        order = local_axes(emitter, scope, operand, statement.subscripts, axes)
        text = emitter.broadcast(scope, tile(emitter, scope, statement.value, order), order)
        emitter.line(f"{emitter.locals[operand.name]} = {bare(text)}")
        return
    if not isinstance(operand, Param):
        raise UnsupportedError(
            f"launch {emitter.launch.name}: store to {statement.operand}, which is no operand", hint="counters are for signal and wait"
        )
    printed = tile(emitter, scope, statement.value, axes)
    address = flatten(operand, statement.subscripts)
    over = varies_over(scope, indices.resolve(emitter, scope, address))
    if not set(axes) <= set(over):
        lost = ", ".join(axis for axis in axes if axis not in over and scope.extent(axis) > 1)
        if lost:
            raise UnsupportedError(
                f"launch {emitter.launch.name}: a store to {operand.name} writes one element for every {lost}", hint="reduce first"
            )
        axes = tuple(axis for axis in axes if axis in over)
        printed = _dropped(emitter, scope, printed, axes)
    if "descriptor" in statement.hints and statement.atomic is None and descriptors.store(emitter, scope, statement, operand, printed):
        return
    condition = indices.mask(emitter, scope, checks_of_access(scope, statement), axes)
    where = indices.pointer(emitter, scope, operand.name, address, axes)
    masked = f", mask={condition}" if condition is not None else ""
    if statement.atomic is not None:
        _atomic(emitter, scope, statement, where, emitter.broadcast(scope, printed, axes), masked)
        return
    text = emitter.broadcast(scope, printed, ()) if printed.constant is not None else emitter.aligned(printed, axes)
    policy = "".join(f', eviction_policy="{hint}"' for hint in statement.hints if hint in ("evict_first", "evict_last"))
    emitter.line(f"tl.store({where}, {bare(text)}{masked}{policy})")


def _dropped(emitter: Emitter, scope: Scope, printed: Tile, axes: tuple[str, ...]) -> Tile:
    """The tile without its axes of one element that are not in `axes`."""
    left = tuple(axis for axis in printed.axes if axis in axes)
    if left == printed.axes:
        return printed
    return Tile(f"tl.reshape({printed.text}, {shape_text(emitter.shape(scope, left))})", left, printed.dtype)


def _atomic(emitter: Emitter, scope: Scope, statement: Store, where: str, text: str, masked: str) -> None:
    dtype = statement.value.type.dtype
    if statement.atomic not in _ATOMICS or not dtype.is_integer or dtype.bits < 32:
        raise UnsupportedError(
            f"launch {emitter.launch.name}: atomic {statement.atomic} of {dtype} is not supported in Triton kernels, "
            f"expected {', '.join(_ATOMICS)} of i32, u32, i64 or u64",
            hint="combine partial results in a fixed order in a second launch",
        )
    emitter.line(f'tl.atomic_{statement.atomic}({where}, {text}{masked}, sem="relaxed", scope="gpu")')


def _local(emitter: Emitter, statement: Local) -> None:
    if statement.space == "workspace":
        raise UnsupportedError(
            f"launch {emitter.launch.name}: local {statement.name} in a workspace is not supported in Triton kernels",
            hint="make it a workspace of the program, between two launches",
        )
    if statement.layout is not None:
        raise UnsupportedError(
            f"launch {emitter.launch.name}: local {statement.name} lies as {statement.layout}, which is not supported in Triton kernels",
            hint="a Triton tile has no addresses",
        )
    extents: list[int] = []
    for axis, extent in statement.dims:
        if not isinstance(extent, int):
            raise UnsupportedError(f"launch {emitter.launch.name}: local {statement.name} has extent {extent}, expected a constant")
        check_extent(emitter.launch, axis, extent)
        extents.append(extent)
    zero = "0.0" if statement.dtype.is_float else "0"
    text = f"tl.full({shape_text(tuple(extents))}, {zero}, {language_type(statement.dtype)})"
    emitter.locals[statement.name] = emitter.assign(statement.name, text)


def _copy(emitter: Emitter, statement: Copy) -> None:
    for name in (statement.target, statement.source):
        if name not in emitter.locals:
            raise UnsupportedError(f"launch {emitter.launch.name}: copy of {name}, which is no local here", hint="use load and store")
    emitter.line(f"{emitter.locals[statement.target]} = {emitter.locals[statement.source]}")


def _axis(emitter: Emitter, scope: Scope, statement: AxisDecl) -> None:
    check_extent(emitter.launch, statement.name, statement.extent)
    if any(name.startswith("%") for name in dims.symbols(statement.low)):
        emitter.starts[statement.name] = emitter.assign(f"{statement.name}_first", indices.scalar(emitter, scope, statement.low))


def _for(emitter: Emitter, scope: Scope, statement: For) -> None:
    inner = scope.enter(statement)
    low, high = _loop_range(scope, statement)
    if statement.kind != "scalar":
        check_extent(emitter.launch, statement.name, statement.step)
    wanted = statement.name if statement.kind == "scalar" else f"{statement.name}_first"
    variable = emitter.fresh(wanted)
    texts = [indices.scalar(emitter, scope, bound) for bound in (low, high)]
    with emitter.block(f"for {variable} in {_range(statement, texts, isinstance(low, int) and isinstance(high, int))}"):
        emitter.starts[statement.name] = variable
        _statements(emitter, inner, statement.body)


def _loop_range(scope: Scope, statement: For) -> tuple[Dim, Dim]:
    if statement.kind != "walk":
        return statement.low, statement.high
    parent = scope.axis(statement.parent or "")
    first = dims.symbol(parent.first)
    return first, dims.minimum(parent.high, first + parent.extent)


def _range(statement: For, texts: list[str], constant: bool) -> str:
    hints = dict(statement.hints)
    bounds = [*texts, str(statement.step)] if statement.step != 1 else texts
    if "unroll" in hints and constant:
        return f"tl.static_range({', '.join(bounds)})"
    words = [f"num_stages={hints['stages']}"] if "stages" in hints else []
    words += [f"loop_unroll_factor={hints['unroll']}"] if hints.get("unroll", 1) > 1 else []
    words += ["warp_specialize=True"] if hints.get("specialise") else []
    words += ["flatten=True"] if hints.get("flatten") else []
    return f"tl.range({', '.join([*bounds, *words])})"


def _if(emitter: Emitter, scope: Scope, statement: If) -> None:
    printed = tile(emitter, scope, statement.condition)
    if printed.axes:
        raise UnsupportedError(
            f"launch {emitter.launch.name}: an if depends on {', '.join(printed.axes)}, expected one condition", hint="use where"
        )
    condition = emitter.broadcast(scope, printed, ())
    with emitter.block(f"if {bare(condition)}"):
        _statements(emitter, scope, statement.body)
    if statement.otherwise:
        with emitter.block("else"):
            _statements(emitter, scope, statement.otherwise)


def _signal(emitter: Emitter, scope: Scope, statement: Signal) -> None:
    """All threads' stores come before the barrier, and the release of one thread covers them."""
    where = indices.pointer(emitter, scope, statement.counter, statement.subscripts[0], ())
    emitter.line("tl.debug_barrier()")
    emitter.line(f'tl.atomic_add({where}, 1, sem="release", scope="gpu")')


def _wait(emitter: Emitter, scope: Scope, statement: Wait) -> None:
    """One thread's acquire, and a barrier that hands what it saw to all others."""
    where = indices.pointer(emitter, scope, statement.counter, statement.subscripts[0], ())
    wanted = indices.scalar(emitter, scope, statement.value)
    with emitter.block(f'while tl.atomic_add({where}, 0, sem="acquire", scope="gpu") < {wanted}'):
        pass
    emitter.line("tl.debug_barrier()")
