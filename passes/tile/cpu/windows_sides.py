"""Reading a region as a fold over windows: the image, the dimensions that windows go along, and what is computed of the image alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ....ir import dims
from ....ir.dims import Dim
from ....ir.expression import Apply, Constant
from ....ir.region import Let, Load, Reduce, Ref, Region, Scalar, Scan, Store, walk
from ...regions.contraction import axes_of, innermost, stride_of

MOST = 1024
"""Places of a window at most."""
REACH = 32
"""Places that a window of groups reaches over, at most."""
LONGEST = 16
"""Places of a row of a window at most: it is written out."""
FILLING = (2, 4, 8)
"""Results of a group of which several fill a vector."""
KINDS = ("sum", "max", "min")


@dataclass(frozen=True)
class Side:
    """A dimension of the image that windows go along: `stride * place + step * tap + start` is where it is read; some have one place.

    Where that is the channels, each lane has its own start: the first channel of its group.
    """

    dimension: int
    place: str | None
    tap: str
    stride: int
    step: int
    start: Dim


@dataclass(frozen=True)
class Windows:
    """A fold over windows of `image` and what follows it; `held` is what is computed of the image alone. The last side has places."""

    fold: Reduce
    image: Load
    held: Scalar
    lane: str
    sides: tuple[Side, ...]
    after: tuple[Let, ...]
    store: Store


def shares_vectors(region: Region) -> bool:
    """Whether a region folds windows of groups of channels, several of which lie in a vector, and what windows see fits a cache."""
    found = read_windows(region)
    if not isinstance(found, Windows) or not any(found.lane in dims.symbols(side.start) for side in found.sides):
        return False
    return all((dims.number(region.axis(side.tap).extent) - 1) * side.step <= REACH for side in found.sides)


def read_windows(region: Region) -> Windows | str:
    """The windows that a region folds, or why it is not that."""
    fold, *others = region.body
    stores = [s for s in others if isinstance(s, Store)]
    if not isinstance(fold, Reduce) or fold.kind not in KINDS or len(stores) != 1 or any(isinstance(s, (Reduce, Scan)) for s in others):
        return "the region is not one fold and one result"
    (store,) = stores
    if store.gathers or store.combine or set(store.axes) != set(fold.axes):
        return "the result is not one number for each of the fold"
    extents = [region.axis(name).extent for name in fold.over]
    if not all(isinstance(extent, int) and extent > 0 for extent in extents) or prod(map(dims.number, extents)) > MOST:
        return f"windows have more than {MOST} places, or an unknown number"
    if any(region.axis(name).extent == 0 for name in fold.axes):
        return "there are no places"
    lane = innermost(region, store)
    loads = list(dict.fromkeys(part for part in walk(fold.value) if isinstance(part, Load)))
    images = [load for load in loads if axes_of(load) - {lane} & set(fold.axes) - set(fold.over) and axes_of(load) & set(fold.over)]
    if len(images) != 1 or any(load.gathers for load in loads) or any(isinstance(part, Ref) for part in walk(fold.value)):
        return "there is not one image that windows go along"
    (image,) = images
    sides = _sides(region, fold, image, lane)
    if isinstance(sides, str):
        return sides
    if any(axes_of(load) & {side.place for side in sides} for load in loads if load is not image):
        return "another factor varies from place to place"
    if not _are_beside(region, image, lane, sides):
        return "channels are not side by side"
    if dims.number(region.axis(sides[-1].tap).extent) > LONGEST:
        return f"a row of a window has more than {LONGEST} places"
    after = tuple(s for s in region.body if isinstance(s, Let))
    # What goes along with places or the window is no part of what is held: a fold of codes that are scaled holds scaled numbers.
    moving = frozenset({*fold.over, *(side.place for side in sides if side.place is not None)})
    return Windows(fold, image, _held(fold.value, image, moving), lane, sides, after, store)


def _are_beside(region: Region, image: Load, lane: str, sides: tuple[Side, ...]) -> bool:
    """Whether the lanes are channels that lie next to each other, or groups of them."""
    if lane in {side.place for side in sides}:
        return False
    of_groups = [side for side in sides if lane in dims.symbols(side.start)]
    return stride_of(image, region, of_groups[0].tap if of_groups else lane) == 1


def _sides(region: Region, fold: Reduce, image: Load, lane: str) -> tuple[Side, ...] | str:
    """The dimensions that windows go along, those with one place first, the others in the order in which they lie."""
    found = []
    for dimension, subscript in enumerate(image.subscripts):
        taps = [name for name in fold.over if name in dims.symbols(subscript)]
        if not taps:
            continue
        rest = subscript - dims.symbol(taps[0])
        if dims.symbols(rest) == {lane} and _size_of_groups(rest, lane) == region.axis(taps[0]).extent:
            found.append(Side(dimension, None, taps[0], 1, 1, rest))
            continue
        places = [name for name in fold.axes if name in dims.symbols(subscript)]
        if len(taps) != 1 or len(places) > 1:
            return "a dimension of the image is not gone along by places and by one axis of windows"
        place, step = places[0] if places else None, _coefficient(subscript, taps[0])
        stride = 1 if place is None else _coefficient(subscript, place)
        if stride is None or step is None or stride < 1 or step < 1:
            return "windows do not lie a number of places apart"
        if stride > (dims.number(region.axis(taps[0]).extent) - 1) * step + 1:
            return "windows lie apart: most of the image would be copied for nothing"
        start = subscript - step * dims.symbol(taps[0]) - (0 if place is None else stride * dims.symbol(place))
        found.append(Side(dimension, place, taps[0], stride, step, start))
    walked = [side.place for side in found if side.place is not None]
    if {side.tap for side in found} != set(fold.over) or len(set(walked)) != len(walked) or not walked:
        return "an axis of the window does not go along the image, or there is one place"
    return tuple(sorted(found, key=lambda side: side.place is not None))


def _size_of_groups(start: Dim, lane: str) -> int | None:
    """n where each lane begins at n * (lane // m): the inputs of the group of its m results. None if such groups do not fill vectors."""
    if isinstance(start, int) or len(start.terms) != 1:
        return None
    ((monomial, inputs),) = start.terms
    group = monomial[0]
    if len(monomial) != 1 or not isinstance(group, dims.Function) or group.kind != "div" or group.left != dims.symbol(lane):
        return None
    return next((inputs for results in FILLING if group.right == results and inputs <= results), None)


def _coefficient(subscript: Dim, name: str) -> int | None:
    moved = dims.substitute(subscript, {name: dims.symbol(name) + 1}) - subscript
    return moved if isinstance(moved, int) else None


def _held(value: Scalar, image: Load, moving: frozenset[str]) -> Scalar:
    """The largest part of a value that is computed of the image alone, and of what varies over none of the `moving` axes."""
    pending = [value]
    for part in pending:
        if _is_of(part, image, moving):
            return part
        pending += part.args if isinstance(part, Apply) else ()
    return image


def _is_of(value: Scalar, image: Load, moving: frozenset[str]) -> bool:
    leaves = [part for part in walk(value) if not isinstance(part, Apply)]
    others = [leaf for leaf in leaves if leaf != image and not isinstance(leaf, Constant)]
    return image in leaves and all(isinstance(leaf, Load) and not axes_of(leaf) & moving for leaf in others)
