"""Scatters whose last point wins, as scatters whose points never meet: what a later point writes again is written nowhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from ....ir import dims
from ....ir.expression import Apply, Constant, Index
from ....ir.region import Axis, Let, Reduce, Ref, Region, Scalar, Store, subscripted, substitute, transform, walk
from ....ir.types import boolean, i64
from ...regions.simplify_region import unused
from ..accesses import apart

NOWHERE = -1
"""A place outside of every output."""


@dataclass(frozen=True)
class Search:
    """`fold` says for every point along an axis whether a later one has its place; `store` leaves those out. `region` has both's axes."""

    region: Region
    fold: Reduce
    store: Store


def search_of(region: Region, lets: Mapping[str, Let], store: Store, taken: Collection[str]) -> Search | None:
    """What finds points that are overwritten, with names that are not taken; None where points may meet along several axes, or in another
    form than by loaded places.

    Before: y[g(m), c] = x[m, c]         (the last m wins)
    After: o[m] = any w: m < w and g(m) == g(w)     y[where(o[m], -1, g(m)), c] = x[m, c]     (no two points meet)
    """
    walked = [axis for axis in store.axes if axis not in apart(store)]
    places = {name: transform(value, lambda part: _spelled_out(part, lets)) for name, value in store.gathers}
    if store.combine is not None or len(walked) != 1 or not places:
        return None
    (axis,) = walked
    is_direct = all(dims.symbol(name) in store.subscripts for name in places)
    named = {name for value in places.values() for name in _named(value)}
    others = {name for subscript in store.subscripts for name in dims.symbols(subscript)}
    signed = all(value.dtype.kind == "int" for value in places.values())
    is_read = not any(isinstance(part, Ref) for value in places.values() for part in walk(value))
    if not (is_direct and signed and is_read) or axis in others or named & region.extents.keys() != {axis}:
        return None
    later, fold_name = unused(f"{axis}_later", {*region.extents, *taken}), unused(f"{axis}_overwritten", {*lets, *taken})
    meet: Scalar = Apply("lt", (Index(dims.symbol(axis), i64), Index(dims.symbol(later), i64)), boolean)
    for place in places.values():
        same = Apply("eq", (place, substitute(place, {axis: dims.symbol(later)})), boolean)
        meet = Apply("bit_and", (meet, same), boolean)
    fold = Reduce(fold_name, (axis,), "any", (later,), meet, boolean)
    first, place = next(iter(places.items()))
    places[first] = Apply("where", (Ref(fold.name, boolean), Constant(NOWHERE, place.dtype), place), place.dtype)
    axes = (*region.axes, Axis(later, region.axis(axis).extent))
    return Search(replace(region, axes=axes), fold, replace(store, gathers=tuple(places.items())))


def _spelled_out(value: Scalar, lets: Mapping[str, Let]) -> Scalar | None:
    if isinstance(value, Ref) and value.name in lets:
        return transform(lets[value.name].value, lambda part: _spelled_out(part, lets))
    return None


def _named(value: Scalar) -> set[str]:
    """Axes and symbols in the subscripts and index expressions of a value."""
    return subscripted(value) | {name for part in walk(value) if isinstance(part, Index) for name in dims.symbols(part.value)}
