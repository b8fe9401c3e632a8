"""Selections: where decoding chooses, by positions, one of few kept numbers or 0 for each place of a group; 2:4 sparsity is one.

Along an axis with k = 4*g + r the number at r is that kept one of the group whose position is r:

    where(eq(p[2*g], r), v[2*g], where(eq(p[2*g + 1], r), v[2*g + 1], 0))

It is found whatever p and v are: codes of any format, packed in any way, with zero points subtracted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ...ir import dims
from ...ir.codes import number_of
from ...ir.dims import Dim
from ...ir.expression import Apply, Constant, Index
from ...ir.region import Load, Ref, Region, Scalar, transform, walk
from ...ir.tile.address import recombined


@dataclass(frozen=True)
class Selection:
    """Numbers of an axis of which `chosen` in every `group` are kept.

    `number` and `position` are a kept number and its place in its group, at the symbol `kept`, which counts kept numbers.
    `expression` is what stands in the region.
    """

    expression: Scalar
    group: int
    chosen: int
    kept: str
    number: Scalar
    position: Scalar


def find_selections(region: Region, value: Scalar, along: str) -> list[Selection]:
    """The selections along an axis in an expression, outermost ones alone."""
    found: dict[Scalar, Selection] = {}

    def look(part: Scalar) -> Scalar | None:
        selection = _read(region, part, along)
        if selection is None:
            return None
        found[part] = selection
        return part

    transform(value, look)
    return list(found.values())


def _read(region: Region, value: Scalar, along: str) -> Selection | None:
    choices: list[tuple[Scalar, Index, Scalar]] = []
    rest = value
    while isinstance(rest, Apply) and rest.primitive == "where":
        test, number, rest = rest.args
        if not (isinstance(test, Apply) and test.primitive == "eq"):
            return None
        position, place = sorted(test.args, key=lambda arg: isinstance(arg, Index))
        if not isinstance(place, Index):
            return None
        choices.append((position, place, number))
    if not choices or number_of(rest) != 0:
        return None
    group = _group(choices[0][1].value, along)
    if group is None or any(place != choices[0][1] for _, place, _ in choices):
        return None
    return _joined(region, value, along, group, choices)


def _group(place: Dim, along: str) -> int | None:
    """The number of places of a group, if an expression is the place of an axis in its group."""
    atoms = [atom for monomial, _ in (() if isinstance(place, int) else place.terms) for atom in monomial]
    sizes = [atom.right for atom in atoms if isinstance(atom, dims.Function)]
    size = sizes[0] if sizes else None
    return size if isinstance(size, int) and place == dims.symbol(along) % size else None


def _joined(region: Region, value: Scalar, along: str, group: int, choices: list[tuple[Scalar, Index, Scalar]]) -> Selection | None:
    """The selection whose kept numbers and positions are these, if they are the same expressions of where each is kept."""
    first, rest, kept = (f"{along}.{what}" for what in ("group", "rest", "kept"))
    facts = region.facts().with_axis(first, dims.ceil_div(region.axis(along).extent, group)).with_axis(rest, group)
    places = {along: dims.symbol(first) * group + dims.symbol(rest)}

    def apart(part: Scalar) -> Scalar:
        return with_places(part, lambda dim: dims.simplify(dims.substitute(dim, places), facts))

    joining = _Joining(facts, first, kept, len(choices))
    number = joining.scalars([apart(number) for _, _, number in choices])
    position = joining.scalars([apart(position) for position, _, _ in choices])
    if number is None or position is None or any(rest in _symbols(part) or first in _symbols(part) for part in (number, position)):
        return None
    return Selection(value, group, len(choices), kept, number, position)


def with_places(value: Scalar, change: Callable[[Dim], Dim]) -> Scalar:
    """An expression with each of its index expressions changed."""

    def part(each: Scalar) -> Scalar | None:
        if isinstance(each, Index):
            return replace(each, value=change(each.value))
        if isinstance(each, Load):
            return replace(each, subscripts=tuple(change(s) for s in each.subscripts))
        return None

    return transform(value, part)


def _symbols(value: Scalar) -> set[str]:
    return {name for dim in places_in(value) for name in dims.symbols(dim)}


def places_in(value: Scalar) -> Iterator[Dim]:
    """The index expressions in an expression."""
    for part in walk(value):
        yield from part.subscripts if isinstance(part, Load) else (part.value,) if isinstance(part, Index) else ()


@dataclass(frozen=True)
class _Joining:
    """The expressions of the kept numbers of a group as one, of where each is kept: the first of group g is number `chosen * g`."""

    facts: dims.Facts
    group: str
    kept: str
    chosen: int

    def scalars(self, parts: list[Scalar]) -> Scalar | None:
        """One expression for all members; None if they differ in more than where they read."""
        one = parts[0]
        if isinstance(one, Apply):
            others = [part for part in parts if isinstance(part, Apply)]
            heads = {(part.primitive, part.dtype, len(part.args)) for part in others}
            if len(others) != len(parts) or len(heads) != 1:
                return None
            args = [self.scalars([part.args[n] for part in others]) for n in range(len(one.args))]
            found = tuple(arg for arg in args if arg is not None)
            return replace(one, args=found) if len(found) == len(args) else None
        if isinstance(one, Index):
            value = self.dims([part.value for part in parts if isinstance(part, Index) and part.dtype == one.dtype])
            return None if value is None else replace(one, value=value)
        if isinstance(one, Load):
            return self._loads(one, [part for part in parts if isinstance(part, Load)], len(parts))
        return one if isinstance(one, (Constant, Ref)) and all(part == one for part in parts) else None

    def _loads(self, one: Load, loads: list[Load], wanted: int) -> Scalar | None:
        alike = [load for load in loads if replace(load, subscripts=one.subscripts) == one]
        if len(alike) != wanted or one.gathers:
            return None
        places = [self.dims([load.subscripts[n] for load in alike]) for n in range(len(one.subscripts))]
        found = tuple(place for place in places if place is not None)
        return replace(one, subscripts=found) if len(found) == len(places) else None

    def dims(self, members: list[Dim]) -> Dim | None:
        """One index expression for all members, which are each what it is at the member's number."""
        if len(members) != self.chosen:
            return None
        for found in (self._counted(members[0]), self._stepped(members)):
            if found is not None and all(self._is_at(found, n, member) for n, member in enumerate(members)):
                return found
        return None

    def _stepped(self, members: list[Dim]) -> Dim:
        """The first member's expression, and for each after it the step from the first to the second."""
        kept, step = dims.symbol(self.kept), members[1] - members[0] if self.chosen > 1 else 0
        found = dims.substitute(members[0], {self.group: kept // self.chosen})
        # Numbers that are read backwards are left as they stand.
        return recombined(found + step * (kept % self.chosen)) if isinstance(step, int) and step > 0 else found

    def _is_at(self, found: Dim, number: int, member: Dim) -> bool:
        place = dims.substitute(found, {self.kept: dims.symbol(self.group) * self.chosen + number})
        return dims.simplify(place, self.facts) == member or dims.equal(place, member, self.facts) is True

    def _counted(self, member: Dim) -> Dim | None:
        """The first member's expression with `chosen * g` as the number of the kept one; None where g stands otherwise."""
        if isinstance(member, int):
            return member
        total: Dim = 0
        for monomial, factor in member.terms:
            term: Dim = factor
            for atom in monomial:
                if isinstance(atom, dims.Function):
                    left, right = self._counted(atom.left), self._counted(atom.right)
                    if left is None or right is None:
                        return None
                    term = term * dims.APPLY[atom.kind](left, right)
                elif atom.name == self.group:
                    if not isinstance(term, int) or term % self.chosen:
                        return None
                    term = dims.symbol(self.kept) * (term // self.chosen)
                else:
                    term = term * dims.symbol(atom.name)
            total = total + term
        return total
