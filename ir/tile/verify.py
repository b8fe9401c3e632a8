"""The verifier of tile programs: names and their blocks, operands, loops, carries, stores and waits.

What values may be stands in `verify_value.py`. The first broken rule is a `VerifyError` whose note is the statement.
"""

from __future__ import annotations

import re
from dataclasses import replace

from .. import dims
from ..dims import NO_FACTS, Dim, Facts
from ..errors import UnsupportedError, VerifyError
from ..types import DType
from .bounds import unproved, varies_over
from .program import AxisDecl, Copy, For, If, Launch, Let, Local, Made, Param, Signal, Statement, Store, TileProgram, Wait, statements
from .proof import at_most
from .scope import Scope, launch_scope
from .text import statement_lines
from .verify_value import check_dim, check_value

SPACES = ("register", "shared", "tensor", "cache", "workspace")
ROLES = ("in", "out", "inout")
ATOMICS = ("add", "max", "min")
_NAME = re.compile(r"[A-Za-z_]\w*")
_TITLE = re.compile(r"[\w.]+")


def verify(program: TileProgram, symbols: Facts = NO_FACTS) -> None:
    """Raise VerifyError at the first rule that the program breaks; `symbols` help to prove that waits look back."""
    if not _TITLE.fullmatch(program.name):
        raise VerifyError(f"program name {program.name!r} is not made of letters, digits, '_' and '.'")
    if not program.launches:
        raise VerifyError(f"program @{program.name} has no launch, expected at least one")
    for name in program.symbols:
        _check_name(name, "symbol")
    for workspace in program.workspaces:
        _check_workspace(program, workspace)
    shared: dict[str, Param] = {workspace.name: workspace for workspace in program.workspaces}
    for launch in program.launches:
        for param in launch.params:
            first = shared.setdefault(param.name, param)
            if replace(first, role=param.role) != param:
                what = f"operand %{param.name} of launch @{launch.name}"
                raise VerifyError(f"{what} differs from its first declaration in type, layout or strides")
        _Verifier(program, launch, symbols).run()


def _check_workspace(program: TileProgram, workspace: Param) -> None:
    roles = [param.role for launch in program.launches for param in launch.params if param.name == workspace.name]
    if not roles:
        raise VerifyError(f"workspace %{workspace.name} is not an operand of any launch")
    if roles[0] == "in":
        raise VerifyError(f"workspace %{workspace.name} is read by the first launch that names it, expected out or inout there")


def _check_name(name: str, what: str) -> None:
    if not _NAME.fullmatch(name) or name in ("min", "max"):
        raise VerifyError(f"{what} name {name!r} is not a plain name")


class _Verifier:
    """One launch; `scope` says what is visible, `rebindable` which values the enclosing block lists as carried."""

    def __init__(self, program: TileProgram, launch: Launch, symbols: Facts) -> None:
        self.program = program
        self.launch = launch
        self.symbols = symbols
        self.statement: Statement | None = None

    def run(self) -> None:
        try:
            self.header()
            self.block(launch_scope(self.launch, self.symbols), self.launch.body, frozenset())
        except (VerifyError, UnsupportedError) as error:
            where = f"launch @{self.launch.name}"
            if self.statement is not None and error.note is None:
                error.note = f"in {where}: {statement_lines(self.statement)[0]}"
            elif error.note is None:
                error.note = f"in {where}"
            raise

    def header(self) -> None:
        launch = self.launch
        if not _TITLE.fullmatch(launch.name):
            raise VerifyError(f"launch name {launch.name!r} is not made of letters, digits, '_' and '.'")
        names = [p.name for p in launch.params] + [c.name for c in launch.counters]
        for name in names:
            _check_name(name, "operand")
            if names.count(name) > 1:
                raise VerifyError(f"operand %{name} is declared twice")
        for param in launch.params:
            self.param(param)
        outer = Scope(self.symbols)
        for counter in launch.counters:
            self.scalar(outer, counter.extent, f"extent of counter %{counter.name}")
        axes = [axis.name for axis in launch.grid]
        for axis in launch.grid:
            self.new_axis(outer, axis.name)
            if axes.count(axis.name) > 1:
                raise VerifyError(f"grid axis {axis.name} is declared twice")
            # Grid points are independent: one axis may not bound another.
            self.scalar(outer, axis.low, f"range of grid axis {axis.name}")
            self.scalar(outer, axis.high, f"range of grid axis {axis.name}")
            if axis.step is not None and axis.step < 1:
                raise VerifyError(f"grid axis {axis.name} has step {axis.step}, expected at least 1")

    def param(self, param: Param) -> None:
        if param.role not in ROLES:
            raise VerifyError(f"operand %{param.name} has role {param.role!r}, expected one of: {', '.join(ROLES)}")
        if param.layout is not None and param.strides is not None:
            raise VerifyError(f"operand %{param.name} has both a layout and strides, expected one of them")
        labels = tuple(label for label, _ in param.dims)
        if param.layout is not None and param.layout.axes != labels:
            raise VerifyError(f"operand %{param.name}: the layout's axes are {param.layout.axes}, expected its labels {labels}")
        if param.strides is not None and len(param.strides) != len(param.dims):
            raise VerifyError(f"operand %{param.name} has {len(param.strides)} strides, expected {len(param.dims)}")
        if param.made is not None:
            self.made(param, param.made)
        check_dtype(param.dtype, f"operand %{param.name}")
        for size in (*param.shape, *(param.strides or ())):
            self.scalar(Scope(self.symbols), size, f"shape of operand %{param.name}")

    def made(self, param: Param, made: Made) -> None:
        """It is made of an operand of known sizes that the launch reads as well."""
        of = next((other for other in self.launch.params if other.name == made.operand), None)
        if of is None or of.made is not None or (of.role, param.role) != ("in", "in"):
            raise VerifyError(f"operand %{param.name} is made of %{made.operand}, expected another that is read")
        if made.how.dtype(of.dtype) != param.dtype:
            raise VerifyError(f"operand %{param.name}: what is {made.how.word} {made.how} of %{of.name} is {made.how.dtype(of.dtype)}")
        sizes = tuple(size for size in of.shape if isinstance(size, int))
        if len(sizes) != len(of.shape) or made.how.shape(sizes) != param.shape:
            raise VerifyError(f"operand %{param.name}: what is {made.how.word} {made.how} of %{of.name} has other sizes")

    def scalar(self, scope: Scope, dim: Dim, what: str) -> None:
        """An index expression that must be one integer for the whole tile."""
        check_dim(scope, self.program.symbols, dim, what)
        axes = varies_over(scope, dim)
        if axes:
            raise VerifyError(f"{what} varies over the lanes of {', '.join(axes)}, expected one integer", hint=f"use {axes[0]}.first")

    def new_axis(self, scope: Scope, name: str) -> None:
        _check_name(name, "axis")
        if name in self.program.symbols:
            raise VerifyError(f"axis {name} has the name of a symbol; axes and symbols share one namespace")
        if name in scope.axes:
            raise VerifyError(f"axis {name} is open already")

    def new_name(self, scope: Scope, name: str) -> None:
        _check_name(name, "value")
        if name in scope.operands or name in scope.values:
            raise VerifyError(f"%{name} is defined already; only values that a block carries may be bound again")

    # --- statements ---------------------------------------------------------------------------------------------------

    def block(self, scope: Scope, body: tuple[Statement, ...], rebindable: frozenset[str]) -> None:
        fixed = frozenset(scope.values) - rebindable
        for statement in body:
            self.statement = statement
            self.check(scope, statement, rebindable)
            if isinstance(statement, (For, If)) and fixed & set(statement.carries):
                name = min(fixed & set(statement.carries))
                raise VerifyError(f"%{name} is carried by a block inside one that does not carry it", hint="carry it in both, or rename it")
            if not isinstance(statement, For):
                scope = scope.enter(statement)

    def check(self, scope: Scope, statement: Statement, rebindable: frozenset[str]) -> None:
        if isinstance(statement, Let):
            self.let(scope, statement, rebindable)
        elif isinstance(statement, Store):
            self.store(scope, statement)
        elif isinstance(statement, Local):
            self.local(scope, statement)
        elif isinstance(statement, Copy):
            self.copy(scope, statement)
        elif isinstance(statement, AxisDecl):
            self.axis(scope, statement)
        elif isinstance(statement, For):
            self.loop(scope, statement)
        elif isinstance(statement, If):
            self.condition(scope, statement)
        else:
            self.synchronise(scope, statement)

    def let(self, scope: Scope, statement: Let, rebindable: frozenset[str]) -> None:
        check_value(scope, self.program.symbols, statement.value)
        if statement.name in scope.values and statement.name in rebindable:
            before = scope.values[statement.name]
            if statement.value.type != before:
                raise VerifyError(f"%{statement.name} is carried as {before} and bound again as {statement.value.type}")
            return
        self.new_name(scope, statement.name)

    def store(self, scope: Scope, statement: Store) -> None:
        check_value(scope, self.program.symbols, statement.value)
        shape = scope.shape(statement.operand)
        target = scope.operands[statement.operand]
        if not isinstance(target, (Param, Local)):
            raise VerifyError(f"%{statement.operand} is a counter, expected an operand or a local", hint="counters change by signal")
        if isinstance(target, Param) and target.role == "in":
            raise VerifyError(f"store to %{target.name}, which is an input", hint="declare it out or inout")
        if len(statement.subscripts) != len(shape):
            raise VerifyError(f"store to %{target.name} has {len(statement.subscripts)} subscripts, expected {len(shape)}")
        type_ = statement.value.type
        if type_.dtype != target.dtype:
            raise VerifyError(f"store of {type_.dtype} to %{target.name} of {target.dtype}", hint="cast the value")
        for subscript in statement.subscripts:
            check_dim(scope, self.program.symbols, subscript, f"subscript of %{target.name}")
        axes = set(varies_over(scope, *statement.subscripts))
        if not axes <= set(type_.axes):
            raise VerifyError(f"store to %{target.name} has subscripts over {_names(axes)}, the value has {_names(type_.axes)}")
        if statement.atomic is None and axes != set(type_.axes):
            missing = set(type_.axes) - axes
            raise VerifyError(f"store to %{target.name}: all lanes of {_names(missing)} would write one element")
        if statement.atomic is not None:
            self.atomic(statement, target)
        for check in unproved(scope, statement):
            end = "0 or more" if check.high is None else f"below {check.high}"
            hint = "declare a larger local, or steps that divide it"
            raise VerifyError(f"store to %{target.name}: subscript {check.index} is not proved to be {end}", hint=hint)

    def atomic(self, statement: Store, target: Param | Local) -> None:
        if statement.atomic not in ATOMICS:
            raise VerifyError(f"atomic {statement.atomic!r} is unknown, expected one of: {', '.join(ATOMICS)}")
        if not isinstance(target, Param) or target.role != "inout":
            raise VerifyError(f"atomic {statement.atomic} on %{target.name}, expected an inout operand")
        if not target.dtype.is_integer:
            # Float sums would depend on timing.
            raise VerifyError(f"atomic {statement.atomic} on {target.dtype}, expected an integer type")

    def local(self, scope: Scope, statement: Local) -> None:
        self.new_name(scope, statement.name)
        check_dtype(statement.dtype, f"local %{statement.name}")
        if statement.space not in SPACES:
            raise VerifyError(f"local %{statement.name} is in {statement.space!r}, expected one of: {', '.join(SPACES)}")
        for label, extent in statement.dims:
            if not isinstance(extent, int) or extent < 1:
                hint = "a tile whose size is known only at run time is a workspace of the program"
                raise VerifyError(f"local %{statement.name}: extent {label} is {extent}, expected a positive constant", hint=hint)
        if statement.layout is not None:
            labels = tuple(label for label, _ in statement.dims)
            if statement.layout.axes != labels:
                raise VerifyError(f"local %{statement.name}: the layout {statement.layout} is not of the axes {', '.join(labels)}")
            for label, extent in statement.dims:
                if isinstance(extent, int) and extent % statement.layout.granule(label):
                    raise VerifyError(
                        f"local %{statement.name}: extent {label} is {extent}, expected a multiple of {statement.layout.granule(label)}, "
                        f"as the layout {statement.layout} has it"
                    )

    def copy(self, scope: Scope, statement: Copy) -> None:
        shapes = [scope.shape(name) for name in (statement.target, statement.source)]
        target, source = scope.operands[statement.target], scope.operands[statement.source]
        if not isinstance(target, Local) or not isinstance(source, Local):
            raise VerifyError(f"copy %{statement.target} = %{statement.source}, expected two locals", hint="store a load instead")
        if shapes[0] != shapes[1] or target.dtype != source.dtype:
            raise VerifyError(f"copy from {source.dtype}{list(shapes[1])} to {target.dtype}{list(shapes[0])}, expected the same type")

    def axis(self, scope: Scope, statement: AxisDecl) -> None:
        self.new_axis(scope, statement.name)
        self.scalar(scope, statement.low, f"range of axis {statement.name}")
        self.scalar(scope, statement.high, f"range of axis {statement.name}")
        if statement.extent < 1:
            raise VerifyError(f"axis {statement.name} has extent {statement.extent}, expected at least 1")

    def loop(self, scope: Scope, loop: For) -> None:
        self.new_axis(scope, loop.name)
        if loop.kind not in ("tile", "scalar", "walk"):
            raise VerifyError(f"loop over {loop.name} is of kind {loop.kind!r}, expected tile, scalar or walk")
        if loop.step < 1:
            raise VerifyError(f"loop over {loop.name} has step {loop.step}, expected at least 1")
        if loop.kind == "walk":
            if loop.parent is None or scope.axis(loop.parent).kind != "tile":
                raise VerifyError(f"loop over {loop.name} walks {loop.parent}, expected a tile axis")
            if loop.low != 0 or loop.high != 0:
                raise VerifyError(f"loop over {loop.name} walks {loop.parent} and has a range of its own, expected 0..0")
        else:
            self.scalar(scope, loop.low, f"range of loop {loop.name}")
            self.scalar(scope, loop.high, f"range of loop {loop.name}")
        ladder = (loop.step, *loop.tail)
        if any(after < 1 or after >= before for before, after in zip(ladder, loop.tail, strict=False)):
            raise VerifyError(f"loop over {loop.name}: the ladder {ladder} does not fall to at least 1")
        if loop.tail and loop.kind == "scalar":
            raise VerifyError(f"loop over {loop.name} runs a scalar and has a tail, expected a tile axis")
        self.carries(scope, loop.carries)
        self.block(scope.enter(loop), loop.body, frozenset(loop.carries))

    def condition(self, scope: Scope, statement: If) -> None:
        check_value(scope, self.program.symbols, statement.condition)
        type_ = statement.condition.type
        if type_.dtype.kind != "bool" or type_.axes:
            raise VerifyError(f"condition is {type_}, expected one bool", hint="use where for a condition per lane")
        self.carries(scope, statement.carries)
        self.block(scope, statement.body, frozenset(statement.carries))
        self.block(scope, statement.otherwise, frozenset(statement.carries))

    def carries(self, scope: Scope, names: tuple[str, ...]) -> None:
        for name in names:
            if name not in scope.values:
                raise VerifyError(f"%{name} is carried but no value of that name is defined before")

    def synchronise(self, scope: Scope, statement: Signal | Wait) -> None:
        counters = [counter.name for counter in self.launch.counters]
        if statement.counter not in counters:
            raise VerifyError(f"%{statement.counter} is not a counter of launch @{self.launch.name}")
        if len(statement.subscripts) != 1:
            raise VerifyError(f"counter %{statement.counter} has {len(statement.subscripts)} subscripts, expected 1")
        self.scalar(scope, statement.subscripts[0], f"subscript of %{statement.counter}")
        if isinstance(statement, Wait):
            self.scalar(scope, statement.value, f"value awaited of %{statement.counter}")
            self.looks_back(scope, statement)

    def looks_back(self, scope: Scope, wait: Wait) -> None:
        """Points run in order on as many workers as there are: a wait for a later point can hang for ever."""
        ordered = _linear_points(self.launch)
        for signal in statements(self.launch.body):
            if not isinstance(signal, Signal) or signal.counter != wait.counter:
                continue
            place = signal.subscripts[0]
            if place not in ordered:
                hint = f"signal at one of: {', '.join(str(dim) for dim in ordered)}"
                raise VerifyError(f"signal %{signal.counter}[{place}] is not in the order of grid points", hint=hint)
            if not at_most(scope, wait.subscripts[0] + 1, place):
                hint = "only grid points earlier in order may be waited for"
                raise VerifyError(f"wait for %{wait.counter}[{wait.subscripts[0]}] is not proved to be below {place}", hint=hint)


def _linear_points(launch: Launch) -> list[Dim]:
    """The row-major numbers of grid points, by each leading part of the grid; they never fall in grid order."""
    result: list[Dim] = []
    number: Dim = 0
    for axis in launch.grid:
        if axis.step is not None:
            break
        number = number * (axis.high - axis.low) + (dims.symbol(axis.name) - axis.low)
        result.append(number)
    return result


def check_dtype(dtype: DType, what: str) -> None:
    """Element types that kernels have no form for."""
    if dtype.kind in ("complex", "string"):
        hint = "split complex values into two real operands; strings are host steps"
        raise UnsupportedError(f"{what} is {dtype}, which tile programs do not hold", hint=hint)


def _names(axes: set[str] | tuple[str, ...]) -> str:
    return "[" + ", ".join(sorted(axes)) + "]"
