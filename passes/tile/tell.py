"""Kernels that read every index, or every divisor, and so tell of one that is wrong: they raise a number by an atomic maximum."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...ir import dims
from ...ir.dims import Dim, Facts
from ...ir.expression import Constant
from ...ir.ops.check import IN_RANGE
from ...ir.tile.bounds import BoundsCheck, domain_checks
from ...ir.tile.program import (
    AxisDecl,
    Dot,
    For,
    Full,
    If,
    Index,
    Let,
    Load,
    Local,
    Param,
    Reduce,
    Ref,
    Statement,
    Store,
    TileApply,
    TileProgram,
    TileType,
    Value,
    parts,
    statements,
    transform,
    walk,
)
from ...ir.tile.scope import Scope, launch_scope
from ...ir.types import DType, boolean, i32, i64

FEW = 128
"""Elements of which each has a place of its own: one for each thread of a usual program."""


@dataclass(frozen=True)
class Question:
    """What is asked of the integers in the operand `asked`: whether all lie in 0..size-1, or with `negative` in -size..size-1; without a
    `size`, whether none is 0. The operand `told` (i64[1]) is raised, as `ir/ops/check.py` says, where one is wrong.
    """

    asked: str
    told: str
    size: Dim | None
    negative: bool


def telling(program: TileProgram, question: Question, symbols: Facts, first: int = 0) -> TileProgram | None:
    """The program with a launch, not before the `first`, that answers the question too.

    None where none is known to read all integers whenever there are any.
    """
    for number, launch in list(enumerate(program.launches))[first:]:
        if not any(param.name == question.asked and param.role == "in" for param in launch.params):
            continue
        answer = _Answer(question, launch.param(question.asked).shape, symbols)
        body = answer.within(launch.body, launch_scope(launch, symbols), tuple(axis.name for axis in launch.grid))
        if body is not None:
            told = Param(question.told, i64, (("d0", 1),), "inout")
            new = replace(launch, params=(*launch.params, told), body=body)
            return replace(program, launches=(*program.launches[:number], new, *program.launches[number + 1 :]))
    return None


def names_of(program: TileProgram) -> frozenset[str]:
    """The names that the launches of a program give: operands, symbols, axes, values."""
    found: set[str] = set(program.symbols)
    for launch in program.launches:
        found |= {param.name for param in launch.params} | {counter.name for counter in launch.counters}
        found |= {axis.name for axis in launch.grid}
        found |= {s.name for s in statements(launch.body) if isinstance(s, (Let, Local, AxisDecl, For))}
    return frozenset(found)


class _Answer:
    """Puts the answer behind the first load of a launch that, over all its programs, reads the whole operand of this shape."""

    def __init__(self, question: Question, shape: tuple[Dim, ...], symbols: Facts) -> None:
        self.question = question
        self.shape = shape
        self.symbols = symbols

    def within(self, body: tuple[Statement, ...], scope: Scope, around: tuple[str, ...]) -> tuple[Statement, ...] | None:
        """A body with the answer; `around` are the axes that it runs for each point of. None where no load reads everything."""
        for number, statement in enumerate(body):
            load = next((load for load in _loads(statement, self.question.asked) if self._is_whole(load, scope, around)), None)
            if load is not None:
                rest = tuple(_replaced(each, load, Ref(self._name("index"), load.type)) for each in body[number:])
                return (*body[:number], *self._answer(load, scope), *rest)
            if isinstance(statement, For) and statement.kind != "walk" and not _multiplies(statement):
                inner = self.within(statement.body, scope.enter(statement), (*around, statement.name))
                if inner is not None:
                    return (*body[:number], replace(statement, body=inner), *body[number + 1 :])
            scope = scope.enter(statement)
        return None

    def _name(self, word: str) -> str:
        return f"{self.question.told}_{word}"

    def _is_whole(self, load: Load, scope: Scope, around: tuple[str, ...]) -> bool:
        """Whether each dimension is read along an axis of its own, from end to end, and at least once along all others."""
        axes = [dims.name_of(subscript) for subscript in load.subscripts]
        if len(set(axes)) != len(axes) or not all(self._spans(scope, name, size) for name, size in zip(axes, self.shape, strict=True)):
            return False
        others = [scope.axis(name) for name in around if name not in axes]
        return all(axis.parent is None and dims.at_most(axis.low + 1, axis.high, self.symbols) is True for axis in others)

    def _spans(self, scope: Scope, name: str | None, size: Dim) -> bool:
        """Whether an axis of this name goes from 0 to a size."""
        if name is None or name not in scope.axes:
            return False
        axis = scope.axis(name)
        if axis.parent is not None or axis.low != 0 or axis.highs != (size,):
            return False
        # A declared axis is one tile.
        return axis.kind != "tile" or axis.modulus != 0 or dims.at_most(size, axis.extent, self.symbols) is True

    def _answer(self, load: Load, scope: Scope) -> Iterator[Statement]:
        """Name what is loaded, and raise the operand where an element of it is wrong."""
        axes = load.type.axes
        index = Ref(self._name("index"), load.type)
        yield Let(index.name, load)
        wide = index if load.type.dtype == i64 else _apply("cast", i64, axes, index)
        high, low = self._ends(load.type.dtype, axes, wide)
        wrong = high if low is None else _apply("bit_or", boolean, axes, high, low)
        raised = self._raised(axes, wide, high, low)
        if math.prod(scope.extent(axis) for axis in axes) <= FEW:
            place = Ref(self._name("place"), TileType(i32, axes))
            yield Let(place.name, _apply("where", i32, axes, wrong, _full(0, i32), _full(1, i32)))
            yield Store(self.question.told, (dims.symbol(f"%{place.name}"),), raised, "max")
            return
        # Of many, whether any is wrong is asked first: each in a place of its own would go through shared memory to get there.
        for check in domain_checks(scope, axes):
            wrong = _apply("where", boolean, axes, _below(check), wrong, _full(False, boolean))
        found = Ref(self._name("any"), TileType(boolean))
        yield Let(found.name, _folded("any", wrong))
        worst = _apply("where", i64, axes, wrong, raised, _full(IN_RANGE, i64))
        yield If(found, (Store(self.question.told, (0,), _folded("max", worst), "max"),), seldom=True)

    def _ends(self, dtype: DType, axes: tuple[str, ...], wide: Value) -> tuple[Value, Value | None]:
        """Whether an index is too large, or a divisor 0, and whether an index is too small, where it may be."""
        size = self.question.size
        if size is None:
            return _apply("eq", boolean, axes, wide, _full(0, i64)), None
        high = _apply("le", boolean, axes, Index(size, TileType(i64)), wide)
        if dtype.kind != "int" and dtype.bits < i64.bits:
            return high, None
        lowest = -size if self.question.negative and dtype.kind == "int" else 0
        return high, _apply("lt", boolean, axes, wide, Index(lowest, TileType(i64)))

    def _raised(self, axes: tuple[str, ...], wide: Value, high: Value, low: Value | None) -> Value:
        if low is None:
            return wide
        held = _apply("max", i64, axes, wide, _full(IN_RANGE + 1, i64))
        return _apply("where", i64, axes, high, wide, _apply("sub", i64, axes, _full(IN_RANGE, i64), held))


def _apply(primitive: str, dtype: DType, axes: tuple[str, ...], *args: Value) -> TileApply:
    return TileApply(primitive, args, dtype, type=TileType(dtype, axes))


def _folded(kind: str, value: Value) -> Value:
    """A tile folded along all of its axes."""
    while value.type.axes:
        *left, axis = value.type.axes
        value = Reduce(kind, axis, value, TileType(value.type.dtype, tuple(left)))
    return value


def _below(check: BoundsCheck) -> Value:
    """Whether an index along an axis lies in its domain."""
    index = Index(check.index, TileType(i64, check.axes))
    return _apply("lt", boolean, check.axes, index, Index(check.high if check.high is not None else index.value, TileType(i64)))


def _full(value: bool | int, dtype: DType) -> Full:
    return Full(Constant(value, dtype), TileType(dtype))


def _loads(statement: Statement, operand: str) -> Iterator[Load]:
    if isinstance(statement, (Let, Store)):
        yield from _loads_of(statement.value, operand)


def _loads_of(value: Value, operand: str) -> Iterator[Load]:
    """The loads of an operand, those apart that a dot streams."""
    if isinstance(value, Load) and value.operand == operand:
        yield value
    for part in () if isinstance(value, Dot) else parts(value):
        yield from _loads_of(part, operand)


def _multiplies(loop: For) -> bool:
    """Whether a loop has products of matrices, whose stages nothing may stand between."""
    held = (s.value for s in statements(loop.body) if isinstance(s, (Let, Store)))
    return any(isinstance(part, Dot) for value in held for part in walk(value))


def _replaced(statement: Statement, load: Load, by: Ref) -> Statement:
    """A statement that reads `by` for the load."""

    def changed(value: Value) -> Value:
        return transform(value, lambda part: by if part == load else part if isinstance(part, Dot) else None)

    if isinstance(statement, For):
        return replace(statement, body=tuple(_replaced(each, load, by) for each in statement.body))
    if isinstance(statement, If):
        body, otherwise = (tuple(_replaced(each, load, by) for each in block) for block in (statement.body, statement.otherwise))
        return replace(statement, condition=changed(statement.condition), body=body, otherwise=otherwise)
    return replace(statement, value=changed(statement.value)) if isinstance(statement, (Let, Store)) else statement


__all__ = ["Question", "names_of", "telling"]
