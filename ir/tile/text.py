"""The text of tile programs: uniform, types on every value, read back without loss by `parse.py`.

Written out: `program @mlp symbols { B } { workspace %part: f32[s 4, i B] launch @fc1(%x: f32[i B, k 384], %w: f32[j 1536,
k 384] as j/16 k j%16, %y: out f32[i B, j 1536]) { counter %done: i32[4] = 0 grid (i: 0..B step 96, j: 0..1536 step 256)
handout queue { .. } } }`, one statement a line.
"""

from __future__ import annotations

from ..dims import Dim
from ..expression import literal
from .program import (
    AxisDecl,
    Copy,
    Dot,
    Expand2to4,
    For,
    Full,
    If,
    Index,
    Join,
    Launch,
    Let,
    Load,
    Local,
    Param,
    Reduce,
    Ref,
    Rename,
    Scan,
    Signal,
    Slice,
    Statement,
    Store,
    TileApply,
    TileProgram,
    Unpack,
    Value,
    Wait,
)

INDENT = "  "


def text(program: TileProgram) -> str:
    """The program as text, one statement a line."""
    symbols = f" symbols {{ {', '.join(program.symbols)} }}" if program.symbols else ""
    lines = [f"program @{program.name}{symbols} {{"]
    lines += [f"{INDENT}workspace {param_text(workspace)}" for workspace in program.workspaces]
    for launch in program.launches:
        lines += [INDENT + line for line in launch_lines(launch)]
    return "\n".join([*lines, "}"]) + "\n"


def launch_lines(launch: Launch) -> list[str]:
    """One launch, a line each."""
    params = ", ".join(param_text(param) for param in launch.params)
    lines = [f"launch @{launch.name}({params}) {{"]
    lines += [f"{INDENT}counter %{counter.name}: i32[{counter.extent}] = 0" for counter in launch.counters]
    axes = ", ".join(f"{a.name}: {a.low}..{a.high}" + ("" if a.step is None else f" step {a.step}") for a in launch.grid)
    hints = "".join(f" {name} {value}" for name, value in launch.hints)
    lines.append(f"{INDENT}grid ({axes}){hints} {{")
    lines += [INDENT * 2 + line for line in block_lines(launch.body)]
    return [*lines, f"{INDENT}}}", "}"]


def param_text(param: Param) -> str:
    """`%w: out f32[j 1536, k 384] as j/16 k j%16`, and where it is made when building ` from %v filtered 2 along (2, 3)` or
    ` from %v paired 32 by 16 along (0, 1)`.
    """
    role = "" if param.role == "in" else f"{param.role} "
    dims_ = ", ".join(f"{label} {extent}" for label, extent in param.dims)
    layout = "" if param.layout is None else f" as {param.layout}"
    strides = "" if param.strides is None else f" strides ({_commas(param.strides)})"
    made = "" if param.made is None else f" from %{param.made.operand} {param.made.how.word} {param.made.how}"
    return f"%{param.name}: {role}{param.dtype}[{dims_}]{layout}{strides}{made}"


# --- statements -------------------------------------------------------------------------------------------------------


def block_lines(body: tuple[Statement, ...]) -> list[str]:
    """The statements of a block, a line each, nested blocks indented."""
    return [line for statement in body for line in statement_lines(statement)]


def statement_lines(statement: Statement) -> list[str]:
    """One statement; loops and conditions take several lines."""
    if isinstance(statement, For):
        return [_for_head(statement) + " {", *(INDENT + line for line in block_lines(statement.body)), "}"]
    if isinstance(statement, If):
        seldom = " seldom" if statement.seldom else ""
        lines = [f"if ({typed(statement.condition)}){seldom}{_carry(statement.carries)} {{"]
        lines += [INDENT + line for line in block_lines(statement.body)]
        if statement.otherwise:
            lines += ["} else {", *(INDENT + line for line in block_lines(statement.otherwise))]
        return [*lines, "}"]
    return [_simple(statement)]


def _simple(statement: Let | Store | Local | Copy | AxisDecl | Signal | Wait) -> str:
    if isinstance(statement, Let):
        return f"%{statement.name} = {untyped(statement.value)} : {statement.value.type}"
    if isinstance(statement, Store):
        word = "store" if statement.atomic is None else f"atomic {statement.atomic}"
        place = f"%{statement.operand}[{_commas(statement.subscripts)}]{_hints(statement.hints)}"
        return f"{word} {place} = {typed(statement.value)}"
    if isinstance(statement, Local):
        dims_ = ", ".join(f"{label} {extent}" for label, extent in statement.dims)
        layout = "" if statement.layout is None else f" as {statement.layout}"
        return f"local %{statement.name}: {statement.dtype}[{dims_}] in {statement.space}{layout}"
    if isinstance(statement, Copy):
        return f"copy %{statement.target} = %{statement.source}"
    if isinstance(statement, AxisDecl):
        return f"axis {statement.name} in {statement.low}..{statement.high} extent {statement.extent}"
    if isinstance(statement, Signal):
        return f"signal %{statement.counter}[{_commas(statement.subscripts)}]"
    return f"wait %{statement.counter}[{_commas(statement.subscripts)}] >= {statement.value}"


def _for_head(loop: For) -> str:
    if loop.kind == "walk":
        head = f"for {loop.name} in {loop.parent} step {loop.step}"
    elif loop.kind == "tile":
        head = f"for {loop.name} in {loop.low}..{loop.high} step {loop.step}"
    else:
        head = f"for {loop.name} in {loop.low}..{loop.high}" + ("" if loop.step == 1 else f" by {loop.step}")
    tail = f" tail ({_commas(loop.tail)})" if loop.tail else ""
    return head + tail + _carry(loop.carries) + "".join(f" {name} {value}" for name, value in loop.hints)


def _carry(names: tuple[str, ...]) -> str:
    return f" carry ({', '.join('%' + name for name in names)})" if names else ""


# --- values -----------------------------------------------------------------------------------------------------------


def typed(value: Value) -> str:
    """A value where it is used: a named one by its name, any other with its type."""
    return f"%{value.name}" if isinstance(value, Ref) else f"{untyped(value)} : {value.type}"


def untyped(value: Value) -> str:
    """A value without the type that follows it."""
    if isinstance(value, Ref):
        return f"%{value.name}"
    if isinstance(value, Full):
        return f"full({literal(value.value.value)})"
    if isinstance(value, Index):
        return f"index({value.value})"
    if isinstance(value, Load):
        other = "" if value.other is None else f" else {literal(value.other.value)}"
        return f"load %{value.operand}[{_commas(value.subscripts)}]{_hints(value.hints)}{other}"
    if isinstance(value, TileApply):
        return f"{value.primitive}({', '.join(typed(arg) for arg in value.args)})"
    return _structured(value)


def _structured(value: Dot | Reduce | Scan | Rename | Slice | Join | Unpack | Expand2to4) -> str:
    if isinstance(value, Dot):
        words = [typed(value.left), typed(value.right), typed(value.acc)]
        words += [f"left_scale = {typed(value.left_scale)}"] if value.left_scale is not None else []
        words += [f"right_scale = {typed(value.right_scale)}"] if value.right_scale is not None else []
        words += [f"precision = {value.precision}"] if value.precision != "exact" else []
        return f"dot({', '.join(words)})"
    if isinstance(value, Reduce):
        return f"reduce {value.kind} {value.axis} ({typed(value.value)})"
    if isinstance(value, Scan):
        return f"scan {value.kind} {value.axis}{' reverse' if value.reverse else ''} ({typed(value.value)})"
    if isinstance(value, Rename):
        return f"{_rename_word(value)} {_axes(value.before)} -> {_axes(value.after)} ({typed(value.value)})"
    if isinstance(value, Slice):
        return f"slice {value.part} of {value.before} -> {value.after} ({typed(value.value)})"
    if isinstance(value, Join):
        return f"join {value.axis} ({typed(value.left)}, {typed(value.right)})"
    if isinstance(value, Unpack):
        return f"unpack({typed(value.value)}, {value.before} -> {value.after}, {value.bits} low first)"
    return f"expand_2to4({typed(value.values)}, {typed(value.positions)}, {value.before} -> {value.after})"


def _rename_word(value: Rename) -> str:
    if len(value.before) == 1 and len(value.after) > 1:
        return "split"
    return "merge" if len(value.before) > 1 and len(value.after) == 1 else "rename"


def _axes(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def _commas(values: tuple[Dim, ...] | tuple[int, ...]) -> str:
    return ", ".join(str(value) for value in values)


def _hints(hints: tuple[str, ...]) -> str:
    return f" {{{', '.join(hints)}}}" if hints else ""
