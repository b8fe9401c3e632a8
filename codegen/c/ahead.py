"""What a product asks memory for before it multiplies it: the panels behind those at hand, a share in each step of each pass over these.

Memory is far away, and a line is wanted hundreds of cycles before it is used. What is asked for at once lies in several stretches, each
in pages of its own: one page after the other comes in twice the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ...ir import dims
from ...ir.dims import Dim
from ...ir.tile import Scope
from ...ir.tile.scope import Axis
from .amx import ROW, SIDE

STREAMS = 8
"""Stretches of memory that come at once."""
OFTEN = 4
"""Times that all panels of a point of the grid are read by the points after it, from which on nothing is asked for: they are near."""


@dataclass(frozen=True)
class Panels:
    """A block's panels of 16 columns: the place of the first one, elements from one to the next, how many there are, bytes of an element.

    `columns` and `streamed` are the axes of their columns and of the sum; a pass takes `steps` steps of `count` elements in all.
    """

    address: Dim
    apart: int
    number: int
    bytes: int
    columns: str
    streamed: str
    steps: int
    count: int


@dataclass(frozen=True)
class Share:
    """What is asked for in each step of a pass: lines `offsets` bytes behind the element `start`, `apart` bytes on with each step."""

    start: Dim
    apart: int
    offsets: tuple[int, ...]


def share_of(panels: Panels, scope: Scope) -> Share | None:
    """The share of a pass at hand; None where nothing lies behind these panels, or only calls know how much."""
    column = scope.axis(panels.columns)
    tile = scope.axes.get(column.parent or "", column)
    width = panels.number * SIDE
    last, moving = dims.range_of(tile.high - tile.low, scope.facts).high, dims.symbols(panels.address)
    if last is None or last <= width:
        return None
    # Where a point of the grid has one block of columns alone, the points after it are passes over the same panels.
    loops = [axis for axis in scope.axes.values() if axis.name not in (column.name, tile.name, panels.streamed)]
    order = [*scope.axes]
    begins = order.index(tile.name if tile.extent <= width else column.name)
    inside = [axis for axis in loops if order.index(axis.name) > begins]
    again = _number(scope, (axis for axis in loops if axis not in inside and axis.first not in moving))
    summed = [axis for axis in inside if axis.first in moving]
    passes = [axis for axis in inside if axis.first not in moving]
    count = _number(scope, summed)
    total = None if count is None else _number(scope, passes)
    if total is None or count is None or again is None or again >= OFTEN or panels.apart != count * panels.count * SIDE:
        return None
    total *= count * panels.steps
    lines = math.ceil(panels.number * panels.apart * panels.bytes / ROW / total)
    streams = min(STREAMS, lines)
    each = math.ceil(lines / streams)
    place: Dim = 0
    for axis in (*passes, *summed):
        place = place * (_count(scope, axis) or 1) + dims.floor_divide(dims.symbol(axis.first) - axis.low, _step(axis))
    behind = dims.substitute(panels.address, {axis.first: axis.low for axis in summed}) + panels.number * panels.apart
    start = behind + place * (panels.steps * each * ROW // panels.bytes)
    offsets = tuple((stream * total * each + line) * ROW for stream in range(streams) for line in range(each))
    return Share(start, each * ROW, offsets)


def _number(scope: Scope, axes: Iterable[Axis]) -> int | None:
    """How often loops over these axes go round in all, at most; None where only calls know."""
    counts = [_count(scope, axis) for axis in axes]
    known = [count for count in counts if count is not None]
    return math.prod(known) if len(known) == len(counts) else None


def _count(scope: Scope, axis: Axis) -> int | None:
    most = dims.range_of(axis.high - axis.low, scope.facts).high
    # A loop that begins where a tile does ends with it.
    around = [each.extent for each in scope.axes.values() if each.kind == "tile" and each.first in dims.symbols(axis.low)]
    ends = [*around, *([] if most is None else [most])]
    return max(1, math.ceil(min(ends) / _step(axis))) if ends else None


def _step(axis: Axis) -> int:
    return max(1, axis.modulus) if axis.kind == "scalar" else axis.extent
