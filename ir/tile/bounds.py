"""Bounds: what an access must check at run time, proved from ranges, divisors and symbolic bounds of axes.

A check is emitted unless it is proved; an unknown fact never removes one. Checks come in two sorts: the domains of the
axes whose absolute index stands in the subscripts or in a value that they name (`.first` and `.lane` never mask), and
the operand's own bounds, which are proved for elements inside those domains.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .. import dims
from ..dims import Dim, Expr, Function
from .program import Load, Local, Store
from .proof import at_most, non_negative, simplify, starts
from .scope import Axis, Scope, launch_scope

__all__ = [
    "BoundsCheck",
    "Scope",
    "absolute_axes",
    "access_checks",
    "at_most",
    "bounds_checks",
    "checks_of",
    "domain_checks",
    "launch_scope",
    "names_value",
    "open_ends",
    "simplify",
    "varies_over",
]


@dataclass(frozen=True)
class BoundsCheck:
    """low <= index < high must be tested at run time; None where that side is proved.

    `axes` are the tile axes over which the outcome varies, empty for one scalar test.
    """

    index: Dim
    low: Dim | None
    high: Dim | None
    axes: tuple[str, ...]


def absolute_axes(scope: Scope, subscripts: Iterable[Dim]) -> tuple[str, ...]:
    """The tile axes whose absolute index stands in the subscripts, outermost first; a gather's count as absolute."""
    found = {name for subscript in subscripts for name in dims.symbols(subscript)}
    found |= _axes_of_values(scope, found)
    return tuple(name for name in scope.tile_axes if name in found)


def varies_over(scope: Scope, *expressions: Dim) -> tuple[str, ...]:
    """The tile axes over which any of the expressions varies from lane to lane, outermost first."""
    names = {name for expression in expressions for name in dims.symbols(expression)}
    names |= _axes_of_values(scope, names)
    return tuple(name for name in scope.tile_axes if name in names or scope.axes[name].lane in names)


def _axes_of_values(scope: Scope, names: set[str]) -> set[str]:
    """The axes of the program's values among these names: a gather or scatter takes place lane by lane of its index."""
    values = [scope.values[name[1:]] for name in names if name.startswith("%") and name[1:] in scope.values]
    return {axis for type_ in values for axis in type_.axes}


def domain_checks(scope: Scope, axes: Iterable[str]) -> tuple[BoundsCheck, ...]:
    """The tests that keep these tile axes inside their domains; none for an axis that its tiles cover exactly."""
    checks: list[BoundsCheck] = []
    for name in axes:
        axis = scope.axis(name)
        if axis.kind == "tile":
            index = dims.symbol(name)
            checks += [BoundsCheck(index, None, high, (name,)) for high in open_ends(scope, axis)]
    return tuple(checks)


def open_ends(scope: Scope, axis: Axis) -> tuple[Dim, ...]:
    """The ends of the domain that a tile of this axis may pass; none if its tiles cover the domain exactly."""
    if axis.parent is None:
        return tuple(high for high in axis.highs if not _covers(scope, axis, high))
    parent = scope.axis(axis.parent)
    inherited = tuple(high for high in open_ends(scope, parent) if not _covers(scope, axis, high))
    own = axis.highs[-1]
    return inherited if parent.extent % axis.extent == 0 else (*inherited, own)


def bounds_checks(scope: Scope, shape: tuple[Dim, ...], subscripts: tuple[Dim, ...]) -> tuple[BoundsCheck, ...]:
    """The tests that keep the subscripts inside an operand of this shape, for elements inside their axes' domains."""
    checks: list[BoundsCheck] = []
    for size, index in zip(shape, subscripts, strict=True):
        low = None if at_most(scope, 0, index) else 0
        high = None if _below(scope, index, size) else size
        if low is not None or high is not None:
            checks.append(BoundsCheck(index, low, high, varies_over(scope, index, size)))
    return tuple(checks)


def access_checks(scope: Scope, shape: tuple[Dim, ...], subscripts: tuple[Dim, ...]) -> tuple[BoundsCheck, ...]:
    """All that an access must test: domains first, then the operand's bounds."""
    return domain_checks(scope, absolute_axes(scope, subscripts)) + bounds_checks(scope, shape, subscripts)


def checks_of(scope: Scope, access: Load | Store) -> tuple[BoundsCheck, ...]:
    """What this access must test.

    A store tests its domain; outside the operand it is an error, but for subscripts that name a value (a scatter),
    which are tested: what such a subscript puts outside is not written.
    """
    if isinstance(access, Load):
        return access_checks(scope, scope.shape(access.operand), access.subscripts)
    return domain_checks(scope, absolute_axes(scope, access.subscripts)) + _store_bounds(scope, access, scattered=True)


def unproved(scope: Scope, store: Store) -> tuple[BoundsCheck, ...]:
    """What is not proved of a store to a local, and not tested either: a program with such a store is wrong.

    Of a local, whose extents are numbers chosen beside its subscripts, all can be proved; the shapes of operands may depend on
    what only their makers know.
    """
    return _store_bounds(scope, store, scattered=False) if isinstance(scope.operands[store.operand], Local) else ()


def _store_bounds(scope: Scope, store: Store, scattered: bool) -> tuple[BoundsCheck, ...]:
    """The operand's bounds for the subscripts that name a value of the program, or for the others."""
    shape = scope.shape(store.operand)
    places = [n for n, subscript in enumerate(store.subscripts) if names_value(subscript) is scattered]
    return bounds_checks(scope, tuple(shape[n] for n in places), tuple(store.subscripts[n] for n in places))


def names_value(subscript: Dim) -> bool:
    """Whether a subscript names a value of the program, as gathers and scatters do."""
    return any(name.startswith("%") for name in dims.symbols(subscript))


# --- domains ----------------------------------------------------------------------------------------------------------


def _covers(scope: Scope, axis: Axis, high: Dim) -> bool:
    """Whether every tile of the axis ends at or before `high`."""
    # A loop starts below `high`, at base + n * modulus: if modulus divides high - base, a whole modulus still fits.
    aligned = axis.modulus > 0 and axis.modulus % axis.extent == 0
    if aligned and dims.divides(axis.modulus, starts(scope, high - axis.base), scope.facts):
        return True
    first = axis.base if axis.modulus == 0 else dims.symbol(axis.first)
    return non_negative(scope, high - first - axis.extent)


def _below(scope: Scope, index: Dim, size: Dim) -> bool:
    if at_most(scope, index + 1, size):
        return True
    atom = _single(index)
    if atom is not None and atom.kind == "div" and at_most(scope, 1, atom.right):
        return at_most(scope, atom.left + 1, size * atom.right)
    if atom is not None and atom.kind == "mod" and at_most(scope, 1, atom.right):
        return at_most(scope, atom.right, size)
    return False


def _single(dim: Dim) -> Function | None:
    if isinstance(dim, Expr) and len(dim.terms) == 1 and dim.terms[0][1] == 1 and len(dim.terms[0][0]) == 1:
        atom = dim.terms[0][0][0]
        return atom if isinstance(atom, Function) else None
    return None
