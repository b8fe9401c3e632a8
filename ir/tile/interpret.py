"""The interpreter of tile programs: grid points one after the other, a tile at a time on numpy arrays.

It knows no target. Masks are worked out afresh from domains and shapes and compared with what the bounds analysis
demands, so that a check wrongly proved away is found; lanes without a value are poison, and storing one is an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from .. import dims
from ..dims import NO_FACTS, Facts
from ..errors import InputError, InternalError, VerifyError
from . import evaluate
from .bounds import BoundsCheck, absolute_axes, checks_of, names_value
from .evaluate import Array, Tile
from .frame import Frame, Memory, aligned_lanes
from .ladder import expand_ladders, expand_launch
from .made import made_of
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
    Value,
    Wait,
    parts,
)
from .scope import Scope, launch_scope
from .text import statement_lines, untyped
from .verify import verify

Checks = Callable[[Scope, Load | Store], tuple[BoundsCheck, ...]]


def run(
    program: TileProgram,
    arrays: Mapping[str, Array],
    symbols: Mapping[str, int],
    facts: Facts = NO_FACTS,
    checks: Checks = checks_of,
) -> dict[str, Array]:
    """Execute the program and return its `out` and `inout` operands by name.

    An operand with a layout is given and returned packed; one that is made of another need not be given. `facts` are what the
    bounds analysis may assume of the symbols; `checks` is that analysis, which tests replace.
    """
    verify(program, facts)
    made = [(param, how.operand) for param, how in program.made if how.operand in arrays]
    arrays = {**{param.name: made_of(param, program.params[of], arrays[of]) for param, of in made}, **arrays}
    _check_symbols(program, symbols, facts)
    program = expand_ladders(program, facts)
    workspaces = {workspace.name for workspace in program.workspaces}
    memories: dict[str, Memory] = {}
    outputs: dict[str, Param] = {}
    for launch in program.launches:
        for param in launch.params:
            if param.name not in memories:
                given = None if param.name in workspaces or param.role == "out" else arrays.get(param.name)
                memories[param.name] = _memory(param, given, symbols, fresh=param.name in workspaces or param.role == "out")
            if param.role != "in" and param.name not in workspaces:
                outputs[param.name] = param
        _Machine(launch, dict(symbols), memories, facts, checks).run()
    return {name: _written(param, memories[name], symbols) for name, param in outputs.items()}


def run_launch(
    launch: Launch,
    operands: Mapping[str, Array],
    counters: Mapping[str, Array],
    symbols: Mapping[str, int],
    facts: Facts = NO_FACTS,
) -> None:
    """Execute one launch on the caller's memory, which it writes where it stands; operands are in physical order, counters are i32."""
    memories: dict[str, Memory] = {}
    for param in launch.params:
        array, shape = operands[param.name], _physical(param, symbols)
        if array.shape != shape or array.dtype != param.dtype.numpy:
            raise VerifyError(f"operand %{param.name} is {array.dtype}{list(array.shape)}, expected {param.dtype.numpy}{list(shape)}")
        # What was never written is the business of who made the memory.
        memories[param.name] = Memory(param, array, np.zeros(shape, bool))
    _Machine(expand_launch(launch, facts), dict(symbols), memories, facts, checks_of, dict(counters)).run()


def _physical(param: Param, symbols: Mapping[str, int]) -> tuple[int, ...]:
    shape = tuple(dims.evaluate(size, symbols) for size in param.shape)
    return shape if param.layout is None else tuple(dims.evaluate(size, symbols) for size in param.layout.extents(shape))


def _check_symbols(program: TileProgram, symbols: Mapping[str, int], facts: Facts) -> None:
    for name in program.symbols:
        if name not in symbols:
            raise InputError(f"symbol {name} has no value")
        known, divisor = facts.ranges.get(name, dims.UNBOUNDED), facts.divisors.get(name, 1)
        value = symbols[name]
        if (known.low is not None and value < known.low) or (known.high is not None and value > known.high) or value % divisor:
            raise InputError(f"symbol {name} is {value}, expected {known}" + (f" and a multiple of {divisor}" if divisor != 1 else ""))


def _memory(param: Param, given: Array | None, symbols: Mapping[str, int], fresh: bool) -> Memory:
    shape = _physical(param, symbols)
    if fresh:
        return Memory(param, np.zeros(shape, param.dtype.numpy), np.ones(shape, bool))
    if given is None:
        raise InputError(f"operand %{param.name} is missing")
    if given.shape != shape or given.dtype != param.dtype.numpy:
        raise InputError(f"operand %{param.name} is {given.dtype}{list(given.shape)}, expected {param.dtype.numpy}{list(shape)}")
    return Memory(param, given.copy() if param.role == "inout" else given, np.zeros(shape, bool))


def _written(param: Param, memory: Memory, symbols: Mapping[str, int]) -> Array:
    poison = memory.poison
    if param.layout is not None:
        poison = param.layout.unpack(poison, tuple(dims.evaluate(size, symbols) for size in param.shape))
    if poison.any():
        raise VerifyError(f"output %{param.name}: {int(poison.sum())} of {poison.size} elements are written by no grid point")
    return memory.data


@dataclass(frozen=True)
class _Analysed:
    """What is the same of an access at every point: its checks, the axes whose domains bound it, which subscripts name values."""

    checks: tuple[BoundsCheck, ...]
    axes: tuple[str, ...]
    found: tuple[bool, ...]


@dataclass
class _Machine:
    """One launch."""

    launch: Launch
    symbols: dict[str, int]
    memories: dict[str, Memory]
    facts: Facts
    checks: Checks
    counters: dict[str, Array] = field(default_factory=dict)
    scopes: dict[tuple[int, int], Scope] = field(default_factory=dict)
    accesses: dict[tuple[int, int], _Analysed] = field(default_factory=dict)

    def run(self) -> None:
        for counter in self.launch.counters:
            self.counters.setdefault(counter.name, np.zeros(dims.evaluate(counter.extent, self.symbols), np.int32))
        scope = launch_scope(self.launch, self.facts)
        ranges = [(dims.evaluate(axis.low, self.symbols), dims.evaluate(axis.high, self.symbols)) for axis in self.launch.grid]
        starts = [range(low, high, axis.step or 1) for axis, (low, high) in zip(self.launch.grid, ranges, strict=True)]
        for point in itertools.product(*starts):
            frame = Frame(scope, dict(self.symbols), {}, {}, {p.name: self.memories[p.name] for p in self.launch.params})
            for axis, first, (low, high) in zip(self.launch.grid, point, ranges, strict=True):
                if axis.step is None:
                    frame.numbers[axis.name] = first
                else:
                    frame.open(axis.name, first, low, high, axis.step)
            self.block(frame, self.launch.body)

    # --- statements ---------------------------------------------------------------------------------------------------

    def block(self, frame: Frame, body: tuple[Statement, ...]) -> None:
        for statement in body:
            try:
                self.statement(frame, statement)
            except (VerifyError, InternalError) as error:
                if isinstance(error, VerifyError) and error.note is None:
                    error.note = f"in launch @{self.launch.name}: {statement_lines(statement)[0]}"
                raise
            if not isinstance(statement, For):
                frame.scope = self.entered(frame.scope, statement)

    def entered(self, scope: Scope, statement: Statement) -> Scope:
        # Scopes are kept, so that ids stay valid and every statement is analysed once, not once for each point.
        key = (id(scope), id(statement))
        if key not in self.scopes:
            self.scopes[key] = scope.enter(statement)
        return self.scopes[key]

    def statement(self, frame: Frame, statement: Statement) -> None:
        if isinstance(statement, Let):
            frame.values[statement.name] = self.value(frame, statement.value)
        elif isinstance(statement, Store):
            self.store(frame, statement)
        elif isinstance(statement, Local):
            sizes = statement.shape if statement.layout is None else statement.layout.extents(statement.shape)
            shape = tuple(dims.evaluate(size, frame.numbers) for size in sizes)
            frame.memories[statement.name] = Memory(statement, np.zeros(shape, statement.dtype.numpy), np.ones(shape, bool))
        elif isinstance(statement, Copy):
            target, source = frame.memories[statement.target], frame.memories[statement.source]
            target.data[...], target.poison[...] = source.data, source.poison
        elif isinstance(statement, AxisDecl):
            low, high = frame.number(statement.low), frame.number(statement.high)
            frame.open(statement.name, low, low, high, statement.extent)
        elif isinstance(statement, For):
            self.loop(frame, statement)
        elif isinstance(statement, If):
            self.condition(frame, statement)
        elif isinstance(statement, Signal):
            self.counters[statement.counter][self.counter_place(frame, statement)] += 1
        else:
            self.wait(frame, statement)

    def counter_place(self, frame: Frame, statement: Signal | Wait) -> int:
        place, size = frame.number(statement.subscripts[0]), self.counters[statement.counter].size
        if not 0 <= place < size:
            raise VerifyError(f"counter %{statement.counter}[{place}] is outside its {size} elements")
        return place

    def wait(self, frame: Frame, statement: Wait) -> None:
        wanted = frame.number(statement.value)
        got = int(self.counters[statement.counter][self.counter_place(frame, statement)])
        if got < wanted:
            raise VerifyError(f"wait for %{statement.counter} never ends: it is {got} after all earlier grid points, expected {wanted}")

    def loop(self, frame: Frame, loop: For) -> None:
        low, high = 0, 0
        if loop.kind == "walk":
            parent, extent = frame.axes[loop.parent or ""], frame.scope.extent(loop.parent or "")
            low, high = parent.first, min(parent.high, parent.first + extent)
        else:
            low, high = frame.number(loop.low), frame.number(loop.high)
        for first in range(low, high, loop.step):
            inner = frame.inner(self.entered(frame.scope, loop))
            if loop.kind == "scalar":
                inner.numbers[loop.name] = first
            else:
                inner.open(loop.name, first, low, high, loop.step)
            self.block(inner, loop.body)
            for name in loop.carries:
                frame.values[name] = inner.values[name]

    def condition(self, frame: Frame, statement: If) -> None:
        chosen = self.value(frame, statement.condition)
        if chosen.poison is not None and chosen.poison.any():
            raise VerifyError("condition is poison")
        inner = frame.inner(frame.scope)
        self.block(inner, statement.body if bool(chosen.data) else statement.otherwise)
        for name in statement.carries:
            frame.values[name] = inner.values[name]

    # --- memory -------------------------------------------------------------------------------------------------------

    def masks(self, frame: Frame, access: Load | Store, axes: tuple[str, ...], indices: list[Array]) -> tuple[Array, Array]:
        """(lanes that take part, those of them inside the operand); finds lanes that the demanded checks let through."""
        shape = tuple(frame.scope.extent(axis) for axis in axes)
        known = self.analysed(frame.scope, access)
        wanted = np.ones(shape, bool)
        for name in known.axes:
            wanted = wanted & aligned_lanes(frame.axes[name].inside, name, axes)
        within = wanted
        for is_found, index, size in zip(known.found, indices, self.sizes(frame, frame.memories[access.operand]), strict=True):
            inside = (index >= 0) & (index < size)
            within = within & inside
            if is_found:
                wanted = wanted & inside
        allowed = wanted if isinstance(access, Store) else within
        passed = self.passed(frame, known.checks, axes, shape)
        if (passed & ~allowed).any():
            shown = untyped(access) if isinstance(access, Load) else statement_lines(access)[0]
            raise InternalError(f"bounds analysis: {int((passed & ~allowed).sum())} lanes pass its checks and need a mask: {shown}")
        return wanted, within

    def sizes(self, frame: Frame, memory: Memory) -> list[int]:
        return [dims.evaluate(size, frame.numbers) for _, size in memory.operand.dims]

    def analysed(self, scope: Scope, access: Load | Store) -> _Analysed:
        key = (id(scope), id(access))
        if key not in self.accesses:
            found = tuple(map(names_value, access.subscripts))
            self.accesses[key] = _Analysed(self.checks(scope, access), absolute_axes(scope, access.subscripts), found)
        return self.accesses[key]

    def passed(self, frame: Frame, checks: tuple[BoundsCheck, ...], axes: tuple[str, ...], shape: tuple[int, ...]) -> Array:
        result = np.ones(shape, bool)
        for check in checks:
            index = frame.index(check.index, axes)
            if check.low is not None:
                result = result & (index >= frame.index(check.low, axes))
            if check.high is not None:
                result = result & (index < frame.index(check.high, axes))
        return result

    def place(self, memory: Memory, indices: list[Array], mask: Array) -> tuple[Array, ...]:
        """Physical subscripts; masked lanes read element 0."""
        logical = [np.where(mask, index, 0) for index in indices]
        if memory.operand.layout is None:
            return tuple(logical)
        layout = memory.operand.layout
        named = dict(zip(layout.axes, logical, strict=True))
        pieces = [(named[f.axis] // f.divisor, f.modulus) for f in layout.factors]
        return tuple(piece if modulus is None else piece % modulus for piece, modulus in pieces)

    def load(self, frame: Frame, value: Load) -> Tile:
        axes, memory = value.type.axes, frame.memories[value.operand]
        indices = [frame.index(subscript, axes) for subscript in value.subscripts]
        domain, mask = self.masks(frame, value, axes, indices)
        if not memory.data.size:
            data, poison = np.zeros(mask.shape, value.type.dtype.numpy), ~mask
        else:
            place = self.place(memory, indices, mask)
            data, poison = np.asarray(memory.data[place]), memory.poison[place] | ~mask
        if data.shape != mask.shape:
            data = np.broadcast_to(data, mask.shape)
        if value.other is not None:
            data = np.where(mask, data, np.asarray(value.other.value).astype(value.type.dtype.numpy))
            poison = poison & mask
        if (lost := frame.poisoned_index(value.subscripts, axes)) is not None:
            # A lane that is masked whatever its subscript says needs none.
            poison = poison | (lost & domain)
        return Tile(axes, data, poison if poison.any() else None)

    def store(self, frame: Frame, statement: Store) -> None:
        tile = self.value(frame, statement.value)
        axes, memory = tile.axes, frame.memories[statement.operand]
        indices = [frame.index(subscript, axes) for subscript in statement.subscripts]
        domain, within = self.masks(frame, statement, axes, indices)
        lost = frame.poisoned_index(statement.subscripts, axes)
        if lost is not None and (lost & domain).any():
            raise VerifyError(f"store to %{statement.operand} at a subscript that is poison")
        if (domain & ~within).any():
            raise VerifyError(f"store to %{statement.operand}: {int((domain & ~within).sum())} lanes of the domain lie outside the operand")
        poison = np.zeros(domain.shape, bool) if tile.poison is None else np.broadcast_to(tile.poison, domain.shape)
        if isinstance(memory.operand, Param) and (poison & domain).any():
            raise VerifyError(f"store of poison to %{statement.operand}: {int((poison & domain).sum())} lanes of the domain have no value")
        place = tuple(np.broadcast_to(p, domain.shape)[domain] for p in self.place(memory, indices, domain))
        data = np.broadcast_to(tile.data, domain.shape)[domain]
        if statement.atomic is not None:
            _ATOMIC[statement.atomic](memory.data, place, data)
            return
        if not place:
            # Rank 0: the mask of one point selects a vector of one element, or of none.
            for element, state in zip(data, poison[domain], strict=True):
                memory.data[()], memory.poison[()] = element, state
            return
        memory.data[place], memory.poison[place] = data, poison[domain]

    # --- values -------------------------------------------------------------------------------------------------------

    def value(self, frame: Frame, value: Value) -> Tile:
        if isinstance(value, Load):
            return self.load(frame, value)
        if isinstance(value, Ref):
            return frame.values[value.name]
        axes = value.type.axes
        shape = tuple(frame.scope.extent(axis) for axis in axes)
        if isinstance(value, Full):
            return Tile(axes, np.full(shape, value.value.value).astype(value.type.dtype.numpy))
        if isinstance(value, Index):
            data = np.broadcast_to(frame.index(value.value, axes), shape).astype(value.type.dtype.numpy)
            return Tile(axes, data, frame.poisoned_index((value.value,), axes))
        args = [self.value(frame, part) for part in parts(value)]
        return self.computed(frame, value, args)

    def computed(self, frame: Frame, value: Value, args: list[Tile]) -> Tile:
        if isinstance(value, TileApply):
            return evaluate.apply(value, args)
        if isinstance(value, Dot):
            return evaluate.dot(value, args, {name: axis.inside for name, axis in frame.axes.items()})
        if isinstance(value, Reduce):
            return evaluate.reduce(value, args[0])
        if isinstance(value, Scan):
            return evaluate.scan(value, args[0])
        if isinstance(value, Rename):
            return evaluate.rename(value, args[0], {name: frame.scope.extent(name) for name in frame.axes})
        if isinstance(value, Slice):
            return evaluate.slice_of(value, args[0], {name: frame.scope.extent(name) for name in frame.axes})
        if isinstance(value, Join):
            return evaluate.join(value, args[0], args[1])
        if isinstance(value, Expand2to4):
            return evaluate.expand_2to4(value, args[0], args[1])
        if isinstance(value, (Full, Index, Load, Ref)):
            raise InternalError(f"{untyped(value)} is not computed from tiles")
        return evaluate.unpack(value, args[0])


_ATOMIC: dict[str, Callable[..., None]] = {"add": np.add.at, "max": np.maximum.at, "min": np.minimum.at}
