"""Scopes: what is known of axes, operands and scalar values at one place of a tile program.

A scope is immutable; `enter` gives the scope of a statement's body (loops) or of the statements after it (`axis`,
`local`, named values). Everything in it holds wherever the block runs: inside a loop the axis has at least one element
of its domain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .. import dims
from ..dims import Dim, Facts
from ..errors import VerifyError
from ..ops.rounding import holds
from ..types import DType
from .program import (
    AxisDecl,
    Counter,
    For,
    Full,
    If,
    Index,
    Launch,
    Let,
    Local,
    Param,
    Ref,
    Statement,
    TileApply,
    TileType,
    Value,
    statements,
)


@dataclass(frozen=True)
class Axis:
    """An open axis: its domain is low <= index < every one of `highs`; kind tile or scalar (extent 1).

    The start is `base` plus a multiple of `modulus`; modulus 0 means that the start is `base` itself (`axis`
    declarations, which alone may lie wholly outside their domain).
    """

    name: str
    kind: str
    low: Dim
    highs: tuple[Dim, ...]
    extent: int
    base: Dim
    modulus: int
    parent: str | None = None

    @property
    def first(self) -> str:
        """The symbol of the start; a scalar axis is its own start."""
        return f"{self.name}.first" if self.kind == "tile" else self.name

    @property
    def lane(self) -> str:
        """The symbol of 0..extent-1."""
        return f"{self.name}.lane"

    @property
    def high(self) -> Dim:
        """The end of the domain, excluded."""
        result = self.highs[0]
        for other in self.highs[1:]:
            result = dims.minimum(result, other)
        return result


Operand = Param | Local | Counter


@dataclass(frozen=True)
class Scope:
    """Facts of all symbols (axes as `i`, `i.first`, `i.lane`), open axes outermost first, operands, named values."""

    facts: Facts
    axes: Mapping[str, Axis] = field(default_factory=dict)
    operands: Mapping[str, Operand] = field(default_factory=dict)
    values: Mapping[str, TileType] = field(default_factory=dict)
    rebound: frozenset[str] = frozenset()

    def axis(self, name: str) -> Axis:
        """The open axis of that name; VerifyError if there is none."""
        if name not in self.axes:
            raise VerifyError(f"axis {name} is not open here, expected one of: {', '.join(self.axes) or 'none'}")
        return self.axes[name]

    def extent(self, name: str) -> int:
        """The number of elements that a tile has along an axis."""
        return self.axis(name).extent

    def shape(self, operand: str) -> tuple[Dim, ...]:
        """The logical sizes of a param, local or counter."""
        if operand not in self.operands:
            raise VerifyError(f"operand %{operand} is not declared here, expected one of: {', '.join(self.operands) or 'none'}")
        found = self.operands[operand]
        return (found.extent,) if isinstance(found, Counter) else tuple(extent for _, extent in found.dims)

    @property
    def tile_axes(self) -> tuple[str, ...]:
        return tuple(name for name, axis in self.axes.items() if axis.kind == "tile")

    @property
    def scalar_axes(self) -> tuple[str, ...]:
        return tuple(name for name, axis in self.axes.items() if axis.kind == "scalar")

    @property
    def params(self) -> tuple[Param, ...]:
        return tuple(operand for operand in self.operands.values() if isinstance(operand, Param))

    def domain(self, name: str) -> tuple[Dim, Dim]:
        """(low, high) of an axis; the index of an element inside the domain is at least low and below high."""
        return self.axis(name).low, self.axis(name).high

    def enter(self, statement: Statement) -> Scope:
        """The scope of a loop's body, or of what follows an axis, local or named value in its block."""
        if isinstance(statement, For):
            return self._with_axis(self._loop_axis(statement))
        if isinstance(statement, AxisDecl):
            low = statement.low
            return self._with_axis(Axis(statement.name, "tile", low, (statement.high,), statement.extent, low, 0))
        if isinstance(statement, Local):
            return replace(self, operands={**self.operands, statement.name: statement})
        if isinstance(statement, Let):
            return self._with_value(statement)
        return self

    def _loop_axis(self, loop: For) -> Axis:
        if loop.kind == "scalar":
            return Axis(loop.name, "scalar", loop.low, (loop.high,), 1, loop.low, loop.step)
        if loop.kind == "tile":
            return Axis(loop.name, "tile", loop.low, (loop.high,), loop.step, loop.low, loop.step)
        parent = self.axis(loop.parent or "")
        first = dims.symbol(parent.first)
        highs = (*parent.highs, first + parent.extent)
        return Axis(loop.name, "tile", first, highs, loop.step, parent.base, math.gcd(loop.step, parent.modulus), parent.name)

    def _with_axis(self, axis: Axis) -> Scope:
        low = dims.range_of(axis.low, self.facts).low
        ends = [dims.range_of(high, self.facts).high for high in axis.highs]
        last = min((end - 1 for end in ends if end is not None), default=None)
        divisor = math.gcd(dims.divisor_of(axis.base, self.facts), axis.modulus)
        if axis.kind == "scalar":
            facts = self.facts.with_range(axis.name, low, last, divisor)
        else:
            # Only a loop promises a start inside the domain; an `axis` starts where it says.
            start = dims.range_of(axis.base, self.facts) if axis.modulus == 0 else dims.Range(low, last)
            facts = self.facts.with_range(axis.name, low, last)
            facts = facts.with_range(axis.first, start.low, start.high, divisor)
            facts = facts.with_range(axis.lane, 0, axis.extent - 1)
        return replace(self, facts=facts, axes={**self.axes, axis.name: axis})

    def _with_value(self, statement: Let) -> Scope:
        value = statement.value
        facts = self.facts
        if value.type.dtype.is_integer and statement.name not in self.rebound:
            known = self._range(value)
            is_single = isinstance(value, Index) and not value.type.axes
            divisor = dims.divisor_of(value.value, facts) if is_single and isinstance(value, Index) else 1
            facts = facts.with_range(f"%{statement.name}", known.low, known.high, divisor or 1)
        return replace(self, facts=facts, values={**self.values, statement.name: value.type})

    def _range(self, value: Value) -> dims.Range:
        """The least and the most of an integer value, at elements inside their axes' domains."""
        if isinstance(value, Full) and isinstance(value.value.value, int):
            return dims.Range(value.value.value, value.value.value)
        if isinstance(value, Index):
            return dims.range_of(value.value, self.facts)
        if isinstance(value, Ref):
            return self.facts.ranges.get(f"%{value.name}", _range_of(value.type.dtype))
        if isinstance(value, TileApply) and value.primitive == "cast":
            source = value.args[0].type.dtype
            if source.is_integer and holds(value.dtype, source):
                return self._range(value.args[0])
        if not isinstance(value, TileApply) or value.primitive not in ("min", "max"):
            return _range_of(value.type.dtype)
        sides = [self._range(arg) for arg in value.args]
        lows, highs = [side.low for side in sides if side.low is not None], [side.high for side in sides if side.high is not None]
        if value.primitive == "min":
            return dims.Range(min(lows) if len(lows) == len(sides) else None, min(highs, default=None))
        return dims.Range(max(lows, default=None), max(highs) if len(highs) == len(sides) else None)


def _range_of(dtype: DType) -> dims.Range:
    """What codes may be; nothing is said of wider integers, whose limits prove little."""
    if not dtype.is_integer or dtype.bits > 8:
        return dims.UNBOUNDED
    half = 1 << (dtype.bits - 1)
    return dims.Range(-half, half - 1) if dtype.kind == "int" else dims.Range(0, 2 * half - 1)


def launch_scope(launch: Launch, symbols: Facts) -> Scope:
    """The scope of a launch's body: its symbols, operands, counters and grid axes."""
    operands: dict[str, Operand] = {param.name: param for param in launch.params}
    operands.update({counter.name: counter for counter in launch.counters})
    rebound = {name for s in statements(launch.body) if isinstance(s, (For, If)) for name in s.carries}
    scope = Scope(symbols, {}, operands, {}, frozenset(rebound))
    for axis in launch.grid:
        kind, step = ("scalar", 1) if axis.step is None else ("tile", axis.step)
        scope = scope._with_axis(Axis(axis.name, kind, axis.low, (axis.high,), step, axis.low, step))
    return scope
