"""Regions in canonical form: symbols, axes and dimensions of their own, so that equal problems of any graph are equal.

region @r(%x0: f32[i B*S, k 384], ..)  ->  region @r(%x0: f32[i N0, k 384], ..)  with N0 = B*S
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from ...ir import dims
from ...ir.dims import Dim
from ...ir.region import Axis, Reduce, Region, Scan, Statement, accesses, indices_of, rewritten, sizes_of, with_dims

AXES = "ijklmnopqrstuvwxyz"
MOST_DIVISOR = 64
"""A power of two up to this is kept as a divisor of a symbol: what vectors and blocks are made of."""


@dataclass(frozen=True)
class Canonical:
    """A region over symbols of its own, what is known of these, and what each is in the graph's symbols."""

    region: Region
    symbols: dims.Facts
    binding: Mapping[str, Dim]


def canonical(region: Region, facts: dims.Facts) -> Canonical:
    """The region with dimensions of size 1 dropped, axes named in order, and each whole size that can be a symbol one.

    A size becomes a symbol if then none of its own symbols is left anywhere, and if every access that was known to stay
    inside its operand still is. Other symbols are only named anew.
    """
    # A graph may call its symbols as an axis is called, here or there: while both have names, axes have such as no symbol has.
    plain = _with_axes(_without_unit_dimensions(region), [f"${n}" for n in range(len(region.axes))])
    made = _bound(plain, facts, _whole_sizes(plain))
    if not _proves_as_much(made, plain, facts):
        made = _bound(plain, facts, ())
    return replace(made, region=_with_axes(made.region, [AXES[n] if n < len(AXES) else f"i{n}" for n in range(len(region.axes))]))


def _bound(region: Region, facts: dims.Facts, whole: tuple[Dim, ...]) -> Canonical:
    """The region with these sizes and all other symbols under names of their own, in the order in which they occur."""
    axes = set(region.extents)
    binding: dict[str, Dim] = {}
    names: dict[Dim, str] = {}
    for dim in chain(sizes_of(region), indices_of(region)):
        for part in (
            (dim,) if dim in whole else (dims.symbol(name) for name in sorted(dims.symbols(dim) - axes) if not name.startswith("%"))
        ):
            if part not in names:
                names[part] = f"N{len(names)}"
                binding[names[part]] = part
    change = {str(part): dims.symbol(name) for part, name in names.items() if part not in whole}

    def renamed(dim: Dim) -> Dim:
        return dims.symbol(names[dim]) if dim in names else dims.substitute(dim, change)

    own = dims.Facts()
    for name, part in binding.items():
        known = dims.range_of(part, facts)
        # A size that is never 0 is enough to know: from which number on it starts only tells graphs apart.
        low = known.low if known.low is None or known.low < 1 else 1
        own = own.with_range(name, low, known.high, _divisor(part, facts))
    return Canonical(with_dims(region, renamed), own, binding)


def _divisor(dim: Dim, facts: dims.Facts) -> int:
    divisor = MOST_DIVISOR
    while divisor > 1 and dims.divides(divisor, dim, facts) is not True:
        divisor //= 2
    return divisor


def _whole_sizes(region: Region) -> tuple[Dim, ...]:
    """The sizes that can be symbols: expressions of which no symbol stands anywhere but in sizes that can, too."""
    sizes = {dim for dim in sizes_of(region) if not isinstance(dim, int)}
    axes = set(region.extents)
    left = {name for dim in chain(sizes_of(region), indices_of(region)) if dim not in sizes for name in dims.symbols(dim) - axes}
    # The subscripts of a load may hold a size as a whole as well, where it means something else.
    left |= {name for dim in indices_of(region) for name in dims.symbols(dim) - axes}
    while True:
        more = {name for dim in sizes for name in dims.symbols(dim) if dims.symbols(dim) & left}
        if more <= left:
            return tuple(dim for dim in sizes if not dims.symbols(dim) & left)
        left |= more


def _proves_as_much(made: Canonical, region: Region, facts: dims.Facts) -> bool:
    """Whether every subscript that is known to lie inside its operand is so in the canonical form as well."""
    exact, own = region.facts(facts), made.region.facts(made.symbols)
    for (size, subscript), (own_size, own_subscript) in zip(_places(region), _places(made.region), strict=True):
        if dims.at_most(subscript, size - 1, exact) is True and dims.at_most(own_subscript, own_size - 1, own) is not True:
            return False
    return True


def _places(region: Region) -> Iterator[tuple[Dim, Dim]]:
    """Every subscript with the size of the dimension that it stands in."""
    for operand, subscripts in accesses(region.body):
        yield from zip(region.operand(operand).type.shape, subscripts, strict=True)


# --- rewriting --------------------------------------------------------------------------------------------------------


def _without_unit_dimensions(region: Region) -> Region:
    """The region with the dimensions gone that have size 1 and are read and written at 0 only."""
    elsewhere = {(operand, n) for operand, subscripts in accesses(region.body) for n, s in enumerate(subscripts) if s != 0}
    kept = {
        operand.name: [n for n, size in enumerate(operand.type.shape) if size != 1 or (operand.name, n) in elsewhere]
        for operand in (*region.inputs, *region.outputs)
    }
    return rewritten(region, lambda operand, values: tuple(values[n] for n in kept[operand]), lambda dim: dim)


def _with_axes(region: Region, wanted: Sequence[str]) -> Region:
    """The region with its axes, in the order in which it lists them, under other names, which no symbol of it has."""
    names = {axis.name: name for axis, name in zip(region.axes, wanted, strict=True)}
    change: dict[str, Dim] = {old: dims.symbol(new) for old, new in names.items()}
    made = with_dims(region, lambda dim: dims.substitute(dim, change))

    def named(old: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names[axis] for axis in old)

    body: list[Statement] = []
    for statement in made.body:
        if isinstance(statement, Reduce):
            body.append(replace(statement, axes=named(statement.axes), over=named(statement.over)))
        elif isinstance(statement, Scan):
            body.append(replace(statement, axes=named(statement.axes), along=names[statement.along]))
        else:
            body.append(replace(statement, axes=named(statement.axes)))
    axes = tuple(Axis(names[axis.name], axis.extent) for axis in made.axes)
    return replace(made, axes=axes, body=tuple(body))
