"""Reading a region as a convolution by windows of three taps, whose neighbouring places Winograd's filtering gives together."""

from __future__ import annotations

from dataclasses import dataclass

from ....ir import dims
from ....ir.expression import Index
from ....ir.region import Let, Load, Region, Scalar, walk
from ....ir.types import f32
from ....ir.winograd import TAPS
from ...regions.contraction import Contraction, plain_load, read_contraction, stride_of
from ..schedule import Problem

FEWEST, MOST = 16, 1024
"""Channels of an image: with fewer the rest takes as long as the products, with more a sum would need parts of its own."""
WHOLE = 16
"""Filters come in so many, whole panels."""


@dataclass(frozen=True)
class Side:
    """A dimension of the image that windows go along, by the axes of places and of taps; `dimension` is that of the taps."""

    place: str
    tap: str
    dimension: int


@dataclass(frozen=True)
class Filtered:
    """A convolution: sides in the order of places, the axes of channels and filters, and the filters."""

    product: Contraction
    sides: tuple[Side, ...]
    channel: str
    column: str
    filters: Load

    @property
    def batch(self) -> tuple[str, ...]:
        """What else varies: images."""
        walked = {side.place for side in self.sides}
        return tuple(name for name in self.product.rows if name not in walked)


def read_filtered(problem: Problem) -> Filtered | str:
    """The convolution that a region is, or why its places are not found together."""
    region = problem.region
    found = read_contraction(region)
    if isinstance(found, str):
        return found
    filters = plain_load(found.right)
    if filters is None or found.block is not None or found.batch or len(found.columns) != 1:
        return "it is not a sum over one image and its filters"
    if found.reduce.dtype != f32 or found.left.dtype != f32 or filters.dtype != f32:
        return "factors are not in float32"
    if filters.operand not in problem.constants:
        return "filters are not known when building"
    sides = _sides(region, found, filters)
    if isinstance(sides, str):
        return sides
    (channel,) = set(found.over) - {side.tap for side in sides}
    (column,) = found.columns
    if any(not isinstance(region.axis(name).extent, int) for name in (channel, column)):
        return "channels or filters are as many as a call says"
    if not FEWEST <= dims.number(region.axis(channel).extent) <= MOST or dims.number(region.axis(column).extent) % WHOLE:
        return f"expected {FEWEST} to {MOST} channels, and a multiple of {WHOLE} filters"
    if any(region.axis(name).extent == 0 for name in found.rows):
        return "there are no places"
    loads = _loads(found.left, found.prologue)
    if any(load.gathers for load in loads) or any(stride_of(load, region, channel) not in (0, 1) for load in loads):
        return "channels are not side by side"
    return Filtered(found, sides, channel, column, filters)


def _sides(region: Region, found: Contraction, filters: Load) -> tuple[Side, ...] | str:
    """The sides, of which there are one or two, and one more axis to sum over."""
    taps = {dims.name_of(subscript): n for n, subscript in enumerate(filters.subscripts)}
    sides = []
    for place in found.rows:
        tap = next((name for name in found.over if _go_together(found, place, name)), None)
        if tap is not None:
            if region.axis(tap).extent != TAPS or tap not in taps:
                return f"windows have not {TAPS} taps along each side"
            sides.append(Side(place, tap, taps[tap]))
    if len(sides) not in (1, 2) or len({side.tap for side in sides}) != len(sides) or len(found.over) != len(sides) + 1:
        return "windows do not go along one or two sides, place by place"
    if set(taps) != {*found.over, *found.columns}:
        return "filters are not a number for each channel, filter and tap"
    return tuple(sides)


def _go_together(found: Contraction, place: str, tap: str) -> bool:
    """Whether the left factor at a place and a tap is that at the next place and the tap before."""
    moved = {place: dims.symbol(place) + 1, tap: dims.symbol(tap) - 1}
    subscripts = [s for load in _loads(found.left, found.prologue) for s in load.subscripts]
    subscripts += [part.value for part in _parts(found.left, found.prologue) if isinstance(part, Index)]
    moving = [s for s in subscripts if {place, tap} & dims.symbols(s)]
    return bool(moving) and all(dims.substitute(s, moved) == s for s in moving)


def _loads(value: Scalar, lets: tuple[Let, ...]) -> list[Load]:
    return [part for part in _parts(value, lets) if isinstance(part, Load)]


def _parts(value: Scalar, lets: tuple[Let, ...]) -> list[Scalar]:
    """All that the left factor may be made of: what comes before the product is named for it alone."""
    return [part for each in (value, *(let.value for let in lets)) for part in walk(each)]
