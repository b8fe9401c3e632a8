"""Where named tiles live in C: registers (one variable per vector or element) or a stack array."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...ir import dims
from ...ir.target import CpuLevel
from ...ir.tile.program import (
    AxisDecl,
    Dot,
    Expand2to4,
    For,
    Index,
    Launch,
    Let,
    Load,
    Ref,
    Rename,
    Slice,
    Store,
    TileType,
    Unpack,
    Value,
    parts,
    statements,
    walk,
)
from ...ir.types import boolean, f64

UNROLLED_VECTORS = 64  # a larger tile lives in memory, its outermost axes become loops
UNROLLED_CHUNKS = 8
UNROLLED_ROWS = 24


@dataclass(frozen=True)
class LaunchPlan:
    """Choices for a whole launch: lanes of a full vector, axes that are printed as loops, axes held as scalars.

    Extents are given with each question: the rungs of a ladder open one axis with several.
    """

    lanes: int
    looped: frozenset[str]
    spread: frozenset[str]

    def width(self, extent: int) -> int:
        """Lanes of one vector along an axis of this extent: the least power of two that covers it, at most a register."""
        return 1 if extent == 1 else 4 if extent <= 4 else min(8, self.lanes) if extent <= 8 else self.lanes

    def lane_axis(self, tile: TileType, extents: Mapping[str, int]) -> str | None:
        """The axis whose elements share a vector, None if the tile is kept element by element."""
        if not tile.axes or (len(tile.axes) == 1 and tile.axes[0] in self.spread) or extents[tile.axes[-1]] == 1:
            return None
        return tile.axes[-1]

    def in_memory(self, tile: TileType) -> bool:
        return any(axis in self.looped for axis in tile.axes)


@dataclass
class Tile:
    """A named value: `names` by position (registers), or `array` (memory); a scalar has the empty position.

    `is_zero` says that an array was filled with zeros, and not written since.
    """

    type: TileType
    lane_axis: str | None
    array: str = ""
    pitch: int = 0
    is_zero: bool = False
    names: dict[tuple[int, ...], str] = field(default_factory=dict)


@dataclass
class Held:
    """Sums that a loop only adds to: they come into the registers of the instruction before the loop, at the end of what the block
    of text at `depth` holds so far, and `after` are the lines that bring them back.
    """

    name: str
    depth: int
    after: list[str] = field(default_factory=list)


def plan_launch(launch: Launch, level: CpuLevel, in_memory: Iterable[str] = ()) -> LaunchPlan:
    """Decide which axes are printed as loops and which small tiles are kept as scalars; what has one of `in_memory` is an array."""
    extents = {axis.name: axis.step or 1 for axis in launch.grid}
    for statement in statements(launch.body):
        if isinstance(statement, For) and statement.kind != "scalar":
            extents[statement.name] = max(extents.get(statement.name, 0), statement.step)
        elif isinstance(statement, AxisDecl):
            extents[statement.name] = max(extents.get(statement.name, 0), statement.extent)
    types = list(_types(launch))
    lanes = max(4, level.vector_bits // (64 if _is_wide(types) else 32))
    spread = frozenset(axis for tile in types for axis in tile.axes[:-1])
    looped = _looped(LaunchPlan(lanes, frozenset(), spread), types, extents)
    looped |= {axis for axis in _streamed(launch) if extents[axis] > UNROLLED_CHUNKS} | frozenset(in_memory)
    return LaunchPlan(lanes, _with_sources(launch, looped), spread)


def _is_wide(types: Sequence[TileType]) -> bool:
    """Whether vectors have as many lanes as 64-bit elements fill a register: with f64, and where all numbers are of 64 bits."""
    numbers = {tile.dtype.bits for tile in types if tile.axes and tile.dtype != boolean}
    return any(tile.dtype == f64 for tile in types) or numbers == {64}


def _with_sources(launch: Launch, looped: frozenset[str]) -> frozenset[str]:
    """A reshape to an axis that is a loop reads its own axes at computed places: these are loops too."""
    pairs: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    for statement in statements(launch.body):
        for value in walk(statement.value) if isinstance(statement, (Let, Store)) else ():
            if isinstance(value, Rename):
                pairs.append((value.before, value.after))
            elif isinstance(value, (Slice, Unpack, Expand2to4)):
                pairs.append(((value.before,), (value.after,)))
    while True:
        more = {axis for before, after in pairs if looped.intersection(after) for axis in before} - looped
        if not more:
            return looped
        looped |= more


def _streamed(launch: Launch) -> Iterator[str]:
    """Axes along which a dot reads a named tile: from memory it is a loop, from registers it would all be unrolled."""
    types = {statement.name: statement.value.type for statement in statements(launch.body) if isinstance(statement, Let)}
    for statement in statements(launch.body):
        values = walk(statement.value) if isinstance(statement, (Let, Store)) else ()
        for dot in (value for value in values if isinstance(value, Dot)):
            names = {name for side in (dot.left, dot.right) for part in walk(side) for name in tiles_read(part)}
            yield from (axis for name in sorted(names & types.keys()) for axis in types[name].axes if axis not in dot.type.axes)


def tiles_read(value: Value) -> Iterator[str]:
    """The named tiles that a value itself reads, in its parts none: it is one, or its subscripts are."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, (Load, Index)):
        subscripts = value.subscripts if isinstance(value, Load) else (value.value,)
        yield from (name[1:] for subscript in subscripts for name in sorted(dims.symbols(subscript)) if name.startswith("%"))


def _types(launch: Launch) -> Iterator[TileType]:
    """The types of all values that may get a place of their own; what a dot streams does not."""
    for statement in statements(launch.body):
        if isinstance(statement, (Let, Store)):
            yield from _placed(statement.value)


def _placed(value: Value) -> Iterator[TileType]:
    yield value.type
    for part in (value.acc,) if isinstance(value, Dot) else parts(value):
        yield from _placed(part)


def _looped(plan: LaunchPlan, types: list[TileType], extents: Mapping[str, int]) -> frozenset[str]:
    """Axes too long to be unrolled, then the longest axes of tiles that are still too large."""
    looped: set[str] = set()
    for tile in types:
        lane = plan.lane_axis(tile, extents)
        counts = {axis: -(-extents[axis] // plan.width(extents[axis])) if axis == lane else extents[axis] for axis in tile.axes}
        looped |= {axis for axis, count in counts.items() if count > (UNROLLED_CHUNKS if axis == lane else UNROLLED_ROWS)}
        while True:
            left = {axis: count for axis, count in counts.items() if axis not in looped}
            if math.prod(left.values()) <= UNROLLED_VECTORS:
                break
            looped.add(max(left, key=lambda axis: (left[axis], axis)))
    return frozenset(looped)


def positions(counts: Iterable[int]) -> Iterator[tuple[int, ...]]:
    """All positions of a block, last axis fastest."""
    return itertools.product(*(range(count) for count in counts))
