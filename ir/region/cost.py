"""What a region costs at least: arithmetic and bytes, counted from its structure.

An operation counts once for each point of the axes that what it is applied to varies over: a weight is decoded once, whatever the
number of rows that are multiplied by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .. import dims
from ..dims import Dim
from ..expression import Apply, Index
from .region import Load, Operand, Reduce, Ref, Region, Scalar, Scan, Statement, Store, walk

FREE = frozenset({"cast", "round", "bitcast"})
EXPENSIVE = frozenset(
    (
        "div pow exp exp2 expm1 log log2 log1p sqrt rsqrt sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf erfc lgamma"
    ).split()
)
"""Primitives that cost far more than an addition."""


@dataclass(frozen=True)
class Cost:
    """Arithmetic operations (a multiply-add is two) and bytes that must move when each operand is touched once."""

    operations: float
    bytes: float

    def seconds(self, operations_per_second: float, bytes_per_second: float) -> float:
        """The floor on a machine with these rates: the longer of computing and moving."""
        return max(self.operations / operations_per_second, self.bytes / bytes_per_second)


def cost_of(region: Region, sizes: Mapping[str, int]) -> Cost:
    """The cost at these symbol values."""
    extents = {axis.name: dims.evaluate(axis.extent, sizes) for axis in region.axes}
    operations = sum(operations_of(region, sizes).values())
    moved = 0.0
    for operand in (*region.inputs, *region.outputs):
        elements = min(dims.evaluate(operand.type.elements, sizes), dims.evaluate(_reached(region, operand, extents), sizes))
        moved += elements * operand.type.dtype.bits / 8
    return Cost(operations, moved)


def operations_of(region: Region, sizes: Mapping[str, int]) -> dict[str, float]:
    """How often each primitive is computed at these symbol values, and each kind of fold goes on."""
    extents = {axis.name: float(dims.evaluate(axis.extent, sizes)) for axis in region.axes}
    found: dict[str, float] = {}
    for name, axes in _operations(region):
        found[name] = found.get(name, 0.0) + math.prod(extents[axis] for axis in axes)
    return found


def reached_elements(region: Region) -> dict[str, Dim]:
    """Of each operand the elements that a region reaches at most, and it has no more."""
    extents = region.extents
    operands = (*region.inputs, *region.outputs)
    return {operand.name: dims.minimum(operand.type.elements, _reached(region, operand, extents)) for operand in operands}


def symbolic_cost(region: Region) -> tuple[Dim, Dim]:
    """Arithmetic operations, and bits that must move when each operand is touched once, over the region's symbols."""
    extents = region.extents
    operations: Dim = 0
    for _, axes in _operations(region):
        operations = operations + dims.product(extents[name] for name in extents if name in axes)
    bits: Dim = 0
    reached = reached_elements(region)
    for operand in (*region.inputs, *region.outputs):
        bits = bits + reached[operand.name] * operand.type.dtype.bits
    return operations, bits


def _points(statement: Statement, extents: Mapping[str, int]) -> float:
    names = (*statement.axes, *(statement.over if isinstance(statement, Reduce) else ()))
    total = 1.0
    for name in names:
        total *= extents[name]
    return total


def iterations(region: Region) -> int:
    """The points of the largest statement of a region whose sizes are known."""
    extents = {axis.name: axis.extent for axis in region.axes if isinstance(axis.extent, int)}
    return max((int(_points(statement, extents)) for statement in region.body), default=0)


def _operations(region: Region) -> Iterator[tuple[str, frozenset[str]]]:
    """Each arithmetic operation of a region, and the axes along which it is done again."""
    named: dict[str, frozenset[str]] = {}
    for statement in region.body:
        loops = frozenset((*statement.axes, *(statement.over if isinstance(statement, Reduce) else ())))
        found: dict[int, frozenset[str]] = {}
        # What an operation is applied to comes behind it.
        for part in reversed(list(walk(statement.value))):
            found[id(part)] = _varying(part, found, named) & loops
            if isinstance(part, Apply) and part.primitive not in FREE:
                yield part.primitive, found[id(part)]
        if isinstance(statement, (Reduce, Scan)):
            yield statement.kind, loops
        if not isinstance(statement, Store):
            named[statement.name] = frozenset(statement.axes)


def _varying(part: Scalar, found: Mapping[int, frozenset[str]], named: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The axes that an expression varies over, by those of its parts."""
    if isinstance(part, Apply):
        return frozenset().union(*(found[id(arg)] for arg in part.args))
    if isinstance(part, Load):
        return frozenset(_names(part, named))
    if isinstance(part, Index):
        return frozenset(dims.symbols(part.value))
    return named[part.name] if isinstance(part, Ref) else frozenset()


def _reached(region: Region, operand: Operand, extents: Mapping[str, Dim]) -> Dim:
    """The elements that accesses of an operand reach at most: one for each point of their axes, and no more than their subscripts name."""
    total: Dim = 0
    for names, subscripts in _accesses(region, operand):
        points = dims.product(extents[name] for name in extents if name in names)
        places = [_places(subscript, extents) for subscript in subscripts]
        known = None not in places and any(map(dims.has_functions, subscripts))
        total = total + (dims.minimum(points, dims.product(place for place in places if place is not None)) if known else points)
    return total


def _places(subscript: Dim, extents: Mapping[str, Dim]) -> Dim | None:
    """How many places an index expression names, such as one for each `h // 3` that several h share; None where that is not told."""
    axes = [name for name in extents if name in dims.symbols(subscript)]
    if isinstance(subscript, int) or not axes:
        return 1 if isinstance(subscript, int) else None
    if not dims.has_functions(subscript):
        return dims.product(extents[name] for name in axes) if len(axes) == len(dims.symbols(subscript)) else None
    atoms = [(atom, factor) for monomial, factor in subscript.terms for atom in monomial if isinstance(atom, dims.Function)]
    if len(axes) > 1 or any(atom.kind != "div" or factor < 0 for atom, factor in atoms):
        return None
    last, first = (dims.substitute(subscript, {axes[0]: place}) for place in (extents[axes[0]] - 1, 0))
    return last - first + 1


def _accesses(region: Region, operand: Operand) -> Iterator[tuple[set[str], tuple[Dim, ...]]]:
    """The axes and the subscripts of each access of an operand."""
    named = {statement.name: statement.axes for statement in region.body if not isinstance(statement, Store)}
    for statement in region.body:
        if isinstance(statement, Store) and statement.output == operand.name:
            yield set(statement.axes), statement.subscripts
        for part in walk(statement.value):
            if isinstance(part, Load) and part.operand == operand.name:
                yield _names(part, named), part.subscripts


def _names(load: Load, named: Mapping[str, Iterable[str]]) -> set[str]:
    """The axes that a load varies over, those of what it gathers by included."""
    names = {name for subscript in load.subscripts for name in dims.symbols(subscript)}
    for _, gather in load.gathers:
        for part in walk(gather):
            if isinstance(part, Load):
                names |= {name for subscript in part.subscripts for name in dims.symbols(subscript)}
            elif isinstance(part, Ref):
                names |= set(named[part.name])
    return names


__all__ = ["Cost", "cost_of", "iterations", "operations_of", "reached_elements", "symbolic_cost"]
