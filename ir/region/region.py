"""Regions: what one fused kernel must compute, before any choice of how.

A region has named axes with extents, operands with logical subscripts over them, and a body of statements in scalar
primitives. Every value has the axes it varies over and is read at exactly those axes. A reduction names the axes it
folds; an axis is parallel wherever a value carries it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from .. import dims
from ..dims import Dim
from ..expression import Apply, Constant, Index
from ..types import DType, TensorType


@dataclass(frozen=True)
class Axis:
    """A named loop range 0..extent of a region."""

    name: str
    extent: Dim


@dataclass(frozen=True)
class Operand:
    """A tensor that a region reads or writes."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class Load:
    """Operand[subscripts]; `other` is the value outside the operand (padding is meaning), None where that cannot be.

    A subscript is an index expression over axes and symbols. A subscript that is itself loaded stands in `gathers`:
    `gathers[n]` is (placeholder symbol, expression of integer dtype) and the placeholder is used in the subscripts.
    """

    operand: str
    subscripts: tuple[Dim, ...]
    dtype: DType
    other: Constant | None = None
    gathers: tuple[tuple[str, Scalar], ...] = ()


@dataclass(frozen=True)
class Ref:
    """The value that a statement named; read at the axes it was defined with."""

    name: str
    dtype: DType


Scalar: TypeAlias = "Apply[Scalar] | Constant | Index | Load | Ref"

REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "argmax_last", "argmin_last")
SCANS = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}
"""The running folds, and the fold that each runs."""


@dataclass(frozen=True)
class Let:
    """`name = value`, one element for every point of `axes`."""

    name: str
    axes: tuple[str, ...]
    value: Scalar


@dataclass(frozen=True)
class Reduce:
    """`name = kind over: value`, folded over the axes `over`, in the dtype of the result.

    sum, prod, max (NaN wins), min, any, all; argmax and argmin give the i64 index along one axis of the first
    extreme (`_last`: of the last); NaN counts as extreme.
    """

    name: str
    axes: tuple[str, ...]
    kind: str
    over: tuple[str, ...]
    value: Scalar
    dtype: DType


@dataclass(frozen=True)
class Scan:
    """`name = running kind along axis: value`; inclusive unless `exclusive`, from the end if `reverse`."""

    name: str
    axes: tuple[str, ...]
    kind: str
    along: str
    value: Scalar
    dtype: DType
    exclusive: bool = False
    reverse: bool = False


@dataclass(frozen=True)
class Store:
    """Output[subscripts] = value at every point of `axes`; a point outside the output is not written.

    `gathers` as in `Load` (a scatter). `combine` is None (each element is written once; for a scatter the last point
    in axis order wins) or add / mul / max / min into what `inout` operand holds.
    """

    output: str
    axes: tuple[str, ...]
    subscripts: tuple[Dim, ...]
    value: Scalar
    gathers: tuple[tuple[str, Scalar], ...] = ()
    combine: str | None = None


Statement: TypeAlias = Let | Reduce | Scan | Store


@dataclass(frozen=True)
class Region:
    """One kernel's meaning: operands, axes, statements in order. `sources` are ids of the graph ops it came from."""

    name: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    axes: tuple[Axis, ...]
    body: tuple[Statement, ...]

    def axis(self, name: str) -> Axis:
        """The axis of that name; KeyError if there is none."""
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise KeyError(name)

    def operand(self, name: str) -> Operand:
        """The operand of that name; KeyError if there is none."""
        for operand in (*self.inputs, *self.outputs):
            if operand.name == name:
                return operand
        raise KeyError(name)

    @property
    def extents(self) -> dict[str, Dim]:
        return {axis.name: axis.extent for axis in self.axes}

    def facts(self, symbols: dims.Facts = dims.NO_FACTS) -> dims.Facts:
        """What is known of axes and symbols together: an axis lies in 0..extent-1."""
        facts = symbols
        for axis in self.axes:
            facts = facts.with_axis(axis.name, axis.extent)
        return facts


def parts(value: Scalar) -> tuple[Scalar, ...]:
    """The operands of an expression, the gathers of a load."""
    if isinstance(value, Apply):
        return value.args
    return tuple(gather for _, gather in value.gathers) if isinstance(value, Load) else ()


def walk(value: Scalar) -> Iterator[Scalar]:
    """Every sub-expression of `value`, itself first, gathers included."""
    pending = [value]
    while pending:
        part = pending.pop()
        yield part
        pending.extend(reversed(parts(part)))


def subscripted(value: Scalar) -> set[str]:
    """The axes and symbols in the subscripts of what an expression loads."""
    return {name for part in walk(value) if isinstance(part, Load) for subscript in part.subscripts for name in dims.symbols(subscript)}


def values_of(statement: Statement) -> tuple[Scalar, ...]:
    """The expressions of a statement, gathered subscripts included."""
    return (statement.value, *(g for _, g in statement.gathers)) if isinstance(statement, Store) else (statement.value,)


def scalars(statements: Iterable[Statement]) -> Iterator[Scalar]:
    """Every sub-expression of statements."""
    for statement in statements:
        for value in values_of(statement):
            yield from walk(value)


def accesses(statements: Iterable[Statement]) -> Iterator[tuple[str, tuple[Dim, ...]]]:
    """Every (operand, subscripts) that statements read or write."""
    for statement in statements:
        if isinstance(statement, Store):
            yield statement.output, statement.subscripts
        yield from ((part.operand, part.subscripts) for part in scalars((statement,)) if isinstance(part, Load))


def sizes_of(region: Region) -> Iterator[Dim]:
    """Every size of a region, in order: of its operands' dimensions, then of its axes."""
    for operand in (*region.inputs, *region.outputs):
        yield from operand.type.shape
    for axis in region.axes:
        yield axis.extent


def indices_of(region: Region) -> Iterator[Dim]:
    """Every index expression of a region, in order."""
    for statement in region.body:
        for part in scalars((statement,)):
            if isinstance(part, Load):
                yield from part.subscripts
            elif isinstance(part, Index):
                yield part.value
        if isinstance(statement, Store):
            yield from statement.subscripts


Places: TypeAlias = "Callable[[str, tuple[Dim, ...]], tuple[Dim, ...]]"
"""What becomes of the sizes of an operand's dimensions, or of the subscripts of an access to it."""


def rewritten(region: Region, places: Places, change: Callable[[Dim], Dim]) -> Region:
    """The region with the dimensions of its operands and all their subscripts, and all other index expressions, replaced."""

    def inner(value: Scalar) -> Scalar | None:
        if isinstance(value, Index):
            return replace(value, value=change(value.value))
        if isinstance(value, Load):
            gathers = tuple((name, transform(gather, inner)) for name, gather in value.gathers)
            return replace(value, subscripts=places(value.operand, value.subscripts), gathers=gathers)
        return None

    def operands(old: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple(replace(o, type=o.type.with_shape(places(o.name, o.type.shape))) for o in old)

    body: list[Statement] = []
    for statement in region.body:
        value = transform(statement.value, inner)
        if isinstance(statement, Store):
            gathers = tuple((name, transform(gather, inner)) for name, gather in statement.gathers)
            body.append(replace(statement, value=value, subscripts=places(statement.output, statement.subscripts), gathers=gathers))
        else:
            body.append(replace(statement, value=value))
    axes = tuple(Axis(axis.name, change(axis.extent)) for axis in region.axes)
    return Region(region.name, operands(region.inputs), operands(region.outputs), axes, tuple(body))


def with_dims(region: Region, change: Callable[[Dim], Dim]) -> Region:
    """The region with every size and index expression replaced."""
    return rewritten(region, lambda _, sizes: tuple(map(change, sizes)), change)


def transform(value: Scalar, change: Callable[[Scalar], Scalar | None]) -> Scalar:
    """`value` rebuilt with `change` applied top down; None keeps an expression and goes on into its parts.

    A part that stands in several places is changed once and stays one.
    """
    done: dict[int, Scalar] = {}
    pending = [(value, False)]
    while pending:
        part, is_ready = pending.pop()
        if id(part) in done:
            continue
        changed = _with_parts(part, [done[id(p)] for p in parts(part)]) if is_ready else change(part)
        if changed is None and parts(part):
            pending.append((part, True))
            pending.extend((inner, False) for inner in reversed(parts(part)))
            continue
        done[id(part)] = part if changed is None else changed
    return done[id(value)]


def _with_parts(value: Scalar, changed: list[Scalar]) -> Scalar:
    """An expression with other operands, a load with other gathers."""
    if isinstance(value, Apply):
        return replace(value, args=tuple(changed))
    if isinstance(value, Load):
        return replace(value, gathers=tuple((name, gather) for (name, _), gather in zip(value.gathers, changed, strict=True)))
    return value


def substitute(value: Scalar, axes: dict[str, Dim], refs: dict[str, str] | None = None, operands: dict[str, str] | None = None) -> Scalar:
    """`value` with axes replaced by index expressions and references and operands renamed."""
    refs, operands = refs or {}, operands or {}

    def change(part: Scalar) -> Scalar | None:
        if isinstance(part, Index):
            return replace(part, value=dims.substitute(part.value, axes))
        if isinstance(part, Ref):
            return replace(part, name=refs.get(part.name, part.name))
        if isinstance(part, Load):
            return replace(
                part,
                operand=operands.get(part.operand, part.operand),
                subscripts=tuple(dims.substitute(s, axes) for s in part.subscripts),
                gathers=tuple((name, substitute(gather, axes, refs, operands)) for name, gather in part.gathers),
            )
        return None

    return transform(value, change)


def dtype_of(value: Scalar) -> DType:
    """The element type of a scalar expression."""
    return value.dtype
