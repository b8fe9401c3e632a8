"""Addresses: where an element of an operand lies in memory, and how far apart the lanes of an axis are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from .. import dims
from ..dims import Dim, Expr, Function, Symbol
from ..layout import Layout
from .program import Local, Param, TileType
from .proof import simplify
from .scope import Scope


def flatten(operand: Param | Local, subscripts: tuple[Dim, ...]) -> Dim:
    """The physical element address (from the operand's start) of a logical element, through layout or strides."""
    strides = operand.strides if isinstance(operand, Param) else None
    return _flattened(operand.shape, operand.layout, strides, subscripts)


@lru_cache(maxsize=4096)
def _flattened(shape: tuple[Dim, ...], layout: Layout | None, strides: tuple[Dim, ...] | None, subscripts: tuple[Dim, ...]) -> Dim:
    """Remembered: what prices a program asks for an address at each rung of a loop, and schedules of one problem share most."""
    if layout is not None:
        return _row_major(layout.extents(shape), layout.subscripts(subscripts))
    if strides is not None:
        address: Dim = 0
        for index, stride in zip(subscripts, strides, strict=True):
            address = address + index * stride
        return address
    return _row_major(shape, subscripts)


def at_lanes(scope: Scope, address: Dim, lanes: dict[str, Dim]) -> Dim:
    """`address` with the lanes of these axes fixed, simplified; a lane is a number or an expression."""
    values: dict[str, Dim] = {}
    for name, lane in lanes.items():
        axis = scope.axis(name)
        values[axis.name] = dims.symbol(axis.first) + lane
        values[axis.lane] = lane
    return simplify(scope, dims.substitute(address, values))


def stride_of(scope: Scope, address: Dim, axis: str, start: int = 0, count: int | None = None) -> Dim | None:
    """How far apart in memory neighbouring lanes of `axis` are, None where that is not one constant step.

    Looks at `count` lanes from `start` (all lanes without `count`): over a layout of panels the whole tile may have
    no single stride while every 16 lanes of it have.
    """
    opened = scope.axis(axis)
    width = opened.extent - start if count is None else count
    lane = dims.symbol(opened.lane)
    narrowed = Scope(scope.facts.with_range(opened.lane, 0, max(0, width - 1)), scope.axes, scope.operands, scope.values)
    moved = at_lanes(narrowed, address, {axis: lane + start})
    return _coefficient(moved, opened.lane)


@dataclass(frozen=True)
class Rearranged:
    """How a store in whole vectors goes where lanes lie apart in memory: squares of vectors are `turned` along another axis, and
    `count` neighbours of the axis `grouped` are put together in 32 bits. Bytes that are neighbours before as well are turned as words.
    """

    turned: str | None
    grouped: str | None = None
    count: int = 1


def rearranged(
    operand: Param | Local,
    subscripts: tuple[Dim, ...],
    type_: TileType,
    extents: Mapping[str, int],
    lanes: int,
    facts: dims.Facts = dims.NO_FACTS,
) -> Rearranged | None:
    """How a tile is stored whose elements along its lanes lie apart, None where it is not in whole vectors.

    Squares of `lanes` by `lanes` elements must fill both axes; elements are turned that have 32 bits in a register, as narrow floats
    and bools have, and bytes in fours. Those that a layout puts in groups of 32 bits are stored as such words. Over a layout in panels
    of so many lanes `facts` know whether vectors begin where panels do.
    """
    dtype = type_.dtype
    *others, lane = type_.axes or ("",)
    grouped, count = _grouped(operand, subscripts, type_)
    are_words = dtype.is_integer and (dtype.bits == 32 or (dtype.bits == 8 and count == 4 and lanes % count == 0))
    is_turned = dtype.kind == "bool" or (dtype.bits <= 32 if dtype.is_float else are_words)
    if len(type_.axes) < 2 or lanes < 2 or not is_turned:
        return None
    if grouped is not None and extents[grouped] % count:
        return None
    apart = _apart(operand, subscripts, lane, lanes, facts)
    if apart == count and grouped not in (None, lane):
        return Rearranged(None, grouped, count)
    wide = [axis for axis in (*others, lane) if extents[axis] % lanes == 0]
    if lane not in wide or apart in (0, 1) or grouped not in (None, lane):
        return None
    turned = next((axis for axis in others if axis in wide and _apart(operand, subscripts, axis, lanes, facts) == count), None)
    return None if turned is None else Rearranged(turned, grouped, count)


def _grouped(operand: Param | Local, subscripts: tuple[Dim, ...], type_: TileType) -> tuple[str | None, int]:
    """The axis of a tile whose neighbours a layout puts side by side in 32 bits, and how many; None and 1 where it does not."""
    if operand.layout is None or not (type_.dtype.is_float or type_.dtype.is_integer):
        return None, 1
    last = operand.layout.factors[-1]
    if last.divisor != 1 or last.modulus is None or last.modulus == 1 or last.modulus * operand.dtype.bits != 32:
        return None, 1
    moving = dims.symbols(subscripts[operand.layout.axes.index(last.axis)])
    along = [axis for axis in type_.axes if {axis, f"{axis}.lane"} & moving]
    return (along[0], last.modulus) if len(along) == 1 else (None, 1)


def _apart(operand: Param | Local, subscripts: tuple[Dim, ...], axis: str, lanes: int, facts: dims.Facts) -> int | None:
    """Elements from one place of an axis to the next, in a vector of so many; None where that is not one number."""
    following = {name: dims.symbol(name) + 1 for name in (axis, f"{axis}.lane")}
    moved = flatten(operand, tuple(dims.substitute(subscript, following) for subscript in subscripts)) - flatten(operand, subscripts)
    if isinstance(moved, int):
        return moved
    lane = dims.symbol("@lane")
    places: dict[str, Dim] = {f"{axis}.lane": lane, axis: dims.symbol(f"{axis}.first") + lane}
    begun = {name: lanes * dims.symbol(f"{name}/{lanes}") for name, divisor in facts.divisors.items() if divisor % lanes == 0}
    within = tuple(dims.substitute(dims.substitute(subscript, places), begun) for subscript in subscripts)
    apart = _coefficient(dims.simplify(flatten(operand, within), facts.with_range("@lane", 0, lanes - 1)), "@lane")
    return apart if isinstance(apart, int) else None


def _coefficient(dim: Dim, name: str) -> Dim | None:
    if isinstance(dim, int):
        return 0
    result: Dim = 0
    for monomial, factor in dim.terms:
        others = tuple(atom for atom in monomial if atom != Symbol(name))
        if any(name in dims.symbols(Expr((((atom,), 1),))) for atom in others):
            return None
        if len(others) == len(monomial) - 1:
            result = result + (Expr(((others, factor),)) if others else factor)
        elif len(others) != len(monomial):
            return None
    return result


def _row_major(extents: tuple[Dim, ...], subscripts: tuple[Dim, ...]) -> Dim:
    address: Dim = 0
    for extent, index in zip(extents, subscripts, strict=True):
        address = address * extent + index
    return recombined(address)


def recombined(dim: Dim) -> Dim:
    """`dim` with the parts of a divided index put together again: x % d + d * (x // d) is x, and

    x % d + d * (x // d % e) is x % (d * e). Axes that are walked as one and lie together are then one stride.
    """
    changed = _recombine_once(dim)
    while changed is not None:
        dim = changed
        changed = _recombine_once(dim)
    return dim


def _recombine_once(dim: Dim) -> Dim | None:
    if isinstance(dim, int):
        return None
    for monomial, factor in dim.terms:
        for atom in monomial:
            if not (isinstance(atom, Function) and atom.kind == "mod" and isinstance(atom.right, int) and atom.right > 1):
                continue
            others = list(monomial)
            others.remove(atom)
            outer: Dim = Expr(((tuple(others), 1),)) if others else 1
            quotient = atom.left // atom.right
            for part, whole in _continued(dim, atom.left, quotient, atom.right):
                if _holds(dim, outer * part, factor * atom.right):
                    remainder = Expr((((atom,), 1),)) * outer * factor
                    return dim - remainder - outer * part * (factor * atom.right) + outer * whole * factor
    return None


def _continued(dim: Expr, value: Dim, quotient: Dim, divisor: int) -> Iterator[tuple[Dim, Dim]]:
    """(what stands beside value % divisor, what both are together)."""
    yield quotient, value
    for monomial, _ in dim.terms:
        for atom in monomial:
            if isinstance(atom, Function) and atom.kind == "mod" and isinstance(atom.right, int) and atom.left == quotient:
                yield quotient % atom.right, value % (divisor * atom.right)


def _holds(dim: Expr, part: Dim, factor: int) -> bool:
    """Whether `part` is one product that stands in `dim` with this factor."""
    return isinstance(part, Expr) and len(part.terms) == 1 and any(part.terms[0] == (m, 1) and f == factor for m, f in dim.terms)
