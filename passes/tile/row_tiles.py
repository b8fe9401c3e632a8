"""Tiles of rows in groups: which rows of which group each has, found by the ends of the groups."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir import dims
from ...ir.dims import Dim
from ...ir.tile.program import Reduce, Ref, Scan, TileType, Value
from ...ir.types import i32
from ..regions.row_groups import GROUP, RowGroups
from .lower import Block


def tiles_of(groups: RowGroups, m: int) -> Dim:
    """How many tiles of m rows there are at most: as many as all rows fill, and one more for each group."""
    return groups.region.axis(groups.row).extent // m + groups.count


@dataclass(frozen=True)
class RowTile:
    """The axis of the rows of a tile, where they end, and whether their product is looked at."""

    axis: str
    end: Dim
    is_needed: Value


def open_rows(block: Block, groups: RowGroups, tile: str, m: int) -> RowTile:
    """The axis of the rows of tile number `tile`: m of one group, or what is left of them.

    Behind the last tile come some without rows. Ends that fall, or lie outside of all rows, lead nowhere else.
    """
    total, nothing = block.problem.region.axis(groups.row).extent, block.full(0, i32)
    each = block.axis("each", 0, groups.count, 1 << (groups.count - 1).bit_length())
    starts, ends = _bounds(block, groups, each)
    filled = block.apply("add", block.apply("sub", ends, starts), block.full(m - 1, i32))
    has = block.let("has", block.apply("floor_div", filled, block.full(m, i32)))
    through = block.let("through", Scan("sum", each, has, TileType(i32, (each,))))
    number = block.index_value(dims.symbol(tile), i32)
    passed = block.apply("cast", block.apply("le", through, number), dtype=i32)
    group = block.let("number", Reduce("sum", each, passed, TileType(i32)))
    own = block.let("own", block.apply("eq", block.index_value(dims.symbol(each), i32), group))

    def of_own(value: Value) -> Value:
        return Reduce("sum", each, block.apply("where", own, value, block.full(0, i32, (each,))), TileType(i32))

    # Of tile p of group g, the first of which has the number q: start of g + (p - q) * m.
    skipped = block.apply("mul", block.apply("sub", through, has), block.full(m, i32))
    place = block.apply("mul", number, block.full(m, i32))
    first = block.let("first", block.apply("max", block.apply("add", of_own(block.apply("sub", starts, skipped)), place), nothing))
    high = block.let("high", of_own(ends))
    known = block.apply("max", block.apply("min", group, block.full(groups.count - 1, i32)), nothing)
    block.index[GROUP] = block.place(block.let("group", known))
    looked = high if groups.last is None else block.apply("min", high, _narrow(block, block.lower(groups.last)))
    is_needed = block.let("needed", block.apply("lt", first, looked))
    end = dims.minimum(block.place(high), total)
    name = block.axis(groups.row, block.place(first), end, m)
    block.index[groups.row] = dims.symbol(name)
    return RowTile(name, end, is_needed)


def _bounds(block: Block, groups: RowGroups, each: str) -> tuple[Ref, Ref]:
    """Where each group begins and ends, as far as there are rows. Where ends fall, the highest so far counts: each row is in one group."""
    place, nothing = dims.symbol(each), block.full(0, i32)
    rows, along = block.index_value(block.problem.region.axis(groups.row).extent, i32), TileType(i32, (each,))

    def end(number: Dim) -> Value:
        if groups.along is not None:
            block.index[groups.along] = number
        block.outside = True
        value = _narrow(block, block.lower(groups.ends))
        block.outside = False
        return block.apply("max", block.apply("min", value, rows), nothing)

    def has_last(number: int) -> Value:
        return block.apply("le", block.full(number, i32), block.index_value(place, i32))

    before = block.apply("where", has_last(groups.count), rows, end(place - 1))
    starts = block.apply("where", has_last(1), before, nothing)
    ends = block.apply("where", has_last(groups.count - 1), rows, end(place))
    return block.let("starts", Scan("max", each, starts, along)), block.let("ends", Scan("max", each, ends, along))


def _narrow(block: Block, value: Value) -> Value:
    return value if value.type.dtype == i32 else block.apply("cast", value, dtype=i32)
