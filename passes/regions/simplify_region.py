"""Simplification of regions: axes of size 1 go, axes that every operand steps through together merge, and one is taken apart if asked."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import pairwise

from ...ir import dims
from ...ir.dims import Dim
from ...ir.expression import Apply, Constant, Index
from ...ir.region import Axis, Let, Load, Operand, Reduce, Region, Scalar, Scan, Statement, Store, transform, walk
from ...ir.types import TensorType


def simplify_region(region: Region, symbols: dims.Facts) -> Region:
    """The region with unit axes removed, divisions worked out and contiguous axes merged; the same meaning.

    Before: x[b, s, k] * w[n, k] -> y[b, s, n]      After: x[m, k] * w[n, k] -> y[m, n]   (m = b * S + s)
    """
    region = _resolve_divisions(_drop_unit_axes(region), symbols)
    while True:
        pair = _mergeable_pair(region)
        if pair is None:
            return region
        region = _merge(region, *pair)


def split_axis(region: Region, name: str, sizes: Sequence[int], symbols: dims.Facts) -> Region:
    """The region with an axis of known length as several, the last one of sizes[-1] elements; each size divides the one before."""
    extent = region.axis(name).extent
    if not isinstance(extent, int):
        raise ValueError(f"axis {name} has no known length")
    taken = {*region.extents, *symbols.ranges}
    lengths = (extent, *sizes, 1)
    parts: list[Axis] = []
    for length, inner in pairwise(lengths):
        unique = next(f"{name}{n}" for n in range(len(taken) + 1) if f"{name}{n}" not in taken)
        taken.add(unique)
        parts.append(Axis(unique, length // inner))
    place: Dim = 0
    for part, size in zip(parts, (*sizes, 1), strict=True):
        place = place + dims.symbol(part.name) * size
    axes = tuple(part for axis in region.axes for part in (parts if axis.name == name else (axis,)))
    facts = Region("", (), (), axes, ()).facts(symbols)
    made = with_axes_as(region, {name: place}, axes, facts)
    while True:
        # What one quotient is simplified to may be the place of another.
        simpler = with_axes_as(made, {}, axes, facts)
        if simpler == made:
            return made
        made = simpler


def join_axes(region: Region, names: Sequence[str], name: str, symbols: dims.Facts) -> Region:
    """The region with axes as one called `name` where the first of them stood, neighbours along the last; all but the first have known
    lengths.

    Before: y[i, k] = x[k, i]    After: y[r // K, r % K] = x[r % K, r // K]   (r = K*i + k)
    """
    first, *others = names
    places: dict[str, Dim] = {}
    size = 1
    for each in reversed(others):
        length = dims.number(region.axis(each).extent)
        places[each] = dims.symbol(name) // size % length
        size *= length
    places[first] = dims.symbol(name) // size
    joined = Axis(name, region.axis(first).extent * size)
    axes = tuple(joined if axis.name == first else axis for axis in region.axes if axis.name not in others)
    return with_axes_as(region, places, axes, Region("", (), (), axes, ()).facts(symbols))


def unused(name: str, taken: Container[str]) -> str:
    """The name, or one that begins so, which is not taken."""
    while name in taken:
        name += "_"
    return name


def with_axes_as(region: Region, axis_map: dict[str, Dim], axes: tuple[Axis, ...], facts: dims.Facts) -> Region:
    """The region with axes replaced by index expressions (integers drop an axis, symbols rename it)."""
    names = {axis.name for axis in axes}

    def kept(old: tuple[str, ...]) -> tuple[str, ...]:
        found = [name for axis in old for name in sorted(dims.symbols(axis_map.get(axis, dims.symbol(axis))) & names)]
        return tuple(dict.fromkeys(found))

    def subscript(dim: Dim) -> Dim:
        return dims.simplify(dims.substitute(dim, axis_map), facts)

    def change(value: Scalar) -> Scalar | None:
        if isinstance(value, Index):
            return replace(value, value=subscript(value.value))
        if isinstance(value, Load):
            gathers = tuple((name, transform(gather, change)) for name, gather in value.gathers)
            return replace(value, subscripts=tuple(subscript(s) for s in value.subscripts), gathers=gathers)
        return None

    body: list[Statement] = []
    for statement in region.body:
        value = transform(statement.value, change)
        if isinstance(statement, Store):
            gathers = tuple((name, transform(gather, change)) for name, gather in statement.gathers)
            subscripts = tuple(subscript(s) for s in statement.subscripts)
            body.append(replace(statement, value=value, axes=kept(statement.axes), subscripts=subscripts, gathers=gathers))
        elif isinstance(statement, Reduce):
            over = kept(statement.over)
            if over or statement.kind.startswith("arg"):
                body.append(replace(statement, value=value, axes=kept(statement.axes), over=over or statement.over))
            else:
                # A sum of one element begins at 0 as well: that of -0 is 0.
                begins = statement.kind == "sum" and statement.dtype.is_float
                one = Apply("add", (value, Constant(0.0, statement.dtype)), statement.dtype) if begins else value
                body.append(Let(statement.name, kept(statement.axes), one))
        elif isinstance(statement, Scan):
            body.append(replace(statement, value=value, axes=kept(statement.axes), along=kept((statement.along,))[0]))
        else:
            body.append(replace(statement, value=value, axes=kept(statement.axes)))
    return replace(region, axes=axes, body=tuple(body))


def _drop_unit_axes(region: Region) -> Region:
    bound = {s.along for s in region.body if isinstance(s, Scan)}
    bound |= {a for s in region.body if isinstance(s, Reduce) and s.kind.startswith("arg") for a in s.over}
    unit = {axis.name: 0 for axis in region.axes if axis.extent == 1 and axis.name not in bound}
    if not unit:
        return region
    axes = tuple(axis for axis in region.axes if axis.name not in unit)
    return with_axes_as(region, dict(unit), axes, dims.NO_FACTS)


def _resolve_divisions(region: Region, symbols: dims.Facts) -> Region:
    return with_axes_as(region, {}, region.axes, region.facts(symbols))


def _accesses(region: Region) -> list[tuple[str, tuple[Dim, ...], bool]]:
    """Every (operand, subscripts, may lie outside) in the region."""
    found = []
    for statement in region.body:
        values = [statement.value]
        if isinstance(statement, Store):
            found.append((statement.output, statement.subscripts, bool(statement.gathers)))
            values += [gather for _, gather in statement.gathers]
        for value in values:
            found += [(p.operand, p.subscripts, p.other is not None or bool(p.gathers)) for p in walk(value) if isinstance(p, Load)]
    return found


def _mergeable_pair(region: Region) -> tuple[str, str] | None:
    """Two axes (outer, inner) that appear together everywhere: adjacent dimensions of every operand that has either."""
    accesses = _accesses(region)
    for outer in region.axes:
        for inner in region.axes:
            if outer is not inner and _merges(region, accesses, outer, inner):
                return outer.name, inner.name
    return None


def _merges(region: Region, accesses: list[tuple[str, tuple[Dim, ...], bool]], outer: Axis, inner: Axis) -> bool:
    seen = False
    operands: dict[str, int | None] = {}
    for operand, subscripts, guarded in accesses:
        users = [n for n, s in enumerate(subscripts) if dims.symbols(s) & {outer.name, inner.name}]
        place: int | None = None
        if users:
            shape = region.operand(operand).type.shape
            if len(users) == 1 and _as_one(subscripts[users[0]], outer, inner) is not None:
                # Already one dimension: nothing to merge here, the subscript is one of the new axis.
                seen = True
                if operands.setdefault(operand, None) is not None:
                    return False
                continue
            pair = len(users) == 2 and users[1] == users[0] + 1
            plain = pair and str(subscripts[users[0]]) == outer.name and str(subscripts[users[1]]) == inner.name
            if guarded or not plain or shape[users[1]] != inner.extent or shape[users[0]] != outer.extent:
                return False
            place, seen = users[0], True
        if operands.setdefault(operand, place) != place:
            return False
    if not seen:
        return False
    for statement in region.body:
        used = [set(statement.axes)]
        if isinstance(statement, Reduce):
            if statement.kind.startswith("arg") and {outer.name, inner.name} & set(statement.over):
                return False
            used.append(set(statement.over))
        if isinstance(statement, Scan) and statement.along in (outer.name, inner.name):
            return False
        if any((outer.name in names) != (inner.name in names) for names in used):
            return False
        values = [statement.value, *(g for _, g in statement.gathers)] if isinstance(statement, Store) else [statement.value]
        for value in values:
            if any(isinstance(p, Index) and dims.symbols(p.value) & {outer.name, inner.name} for p in walk(value)):
                return False
    return True


def _together(outer: Axis, inner: Axis) -> Dim:
    """The place of (outer, inner) in a dimension that holds both."""
    return dims.symbol(outer.name) * inner.extent + dims.symbol(inner.name)


def _as_one(subscript: Dim, outer: Axis, inner: Axis) -> Dim | None:
    """A subscript by the axis that both become, which has the outer one's name; None where it does not see them as one."""
    step = dims.substitute(subscript, {inner.name: dims.symbol(inner.name) + 1}) - subscript
    rest = subscript - step * _together(outer, inner)
    if step == 0 or dims.symbols(step) & {outer.name, inner.name} or dims.symbols(rest) & {outer.name, inner.name}:
        return None
    return rest + step * dims.symbol(outer.name)


def _merge(region: Region, outer: str, inner: str) -> Region:
    """The region with (outer, inner) as one axis named `outer`; the operands' dimensions merge with them."""
    extent = region.axis(outer).extent * region.axis(inner).extent
    pair = region.axis(outer), region.axis(inner)
    axes = tuple(Axis(outer, extent) if axis.name == outer else axis for axis in region.axes if axis.name != inner)
    places: dict[str, int] = {}
    for operand, subscripts, _ in _accesses(region):
        for n, subscript in enumerate(subscripts):
            if dims.name_of(subscript) == outer:
                places[operand] = n

    def shape_of(operand: Operand) -> Operand:
        if operand.name not in places:
            return operand
        n, shape = places[operand.name], operand.type.shape
        return Operand(operand.name, TensorType(operand.type.dtype, (*shape[:n], shape[n] * shape[n + 1], *shape[n + 2 :])))

    def drop(operand: str, subscripts: tuple[Dim, ...]) -> tuple[Dim, ...]:
        if operand not in places:
            return tuple(s if (one := _as_one(s, *pair)) is None else one for s in subscripts)
        return (*subscripts[: places[operand] + 1], *subscripts[places[operand] + 2 :])

    def change(value: Scalar) -> Scalar | None:
        if isinstance(value, Load):
            gathers = tuple((name, transform(gather, change)) for name, gather in value.gathers)
            return replace(value, subscripts=drop(value.operand, value.subscripts), gathers=gathers)
        return None

    def names(old: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in old if name != inner)

    body: list[Statement] = []
    for statement in region.body:
        value = transform(statement.value, change)
        if isinstance(statement, Store):
            gathers = tuple((name, transform(gather, change)) for name, gather in statement.gathers)
            subscripts = drop(statement.output, statement.subscripts)
            body.append(replace(statement, value=value, axes=names(statement.axes), subscripts=subscripts, gathers=gathers))
        elif isinstance(statement, Reduce):
            body.append(replace(statement, value=value, axes=names(statement.axes), over=names(statement.over)))
        else:
            body.append(replace(statement, value=value, axes=names(statement.axes)))
    inputs = tuple(shape_of(o) for o in region.inputs)
    outputs = tuple(shape_of(o) for o in region.outputs)
    return Region(region.name, inputs, outputs, axes, tuple(body))
