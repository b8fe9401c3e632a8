"""The strategy `grouped`: rows in groups, each multiplied by a factor of its own, tiles of which have rows of one group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ....ir import dims
from ....ir.region import Let
from ....ir.target import GpuTarget
from ....ir.tile.program import GridAxis, Launch, Ref, Scan, TileProgram, TileType, Value
from ....ir.tile.program import Reduce as TileReduce
from ....ir.types import i32
from ...regions.contraction import read_contraction
from ...regions.row_groups import GROUP, RowGroups, read_row_groups
from ...regions.small_floats import small_floats
from ..lower import Block, used_parameters
from ..schedule import Match, Order, Problem, Refusal, Schedule
from .matrix import MatrixProduct, Sizes, instruction_order, merged, multiply, operands_of, sizes_of
from .shape import power_of_two
from .sweep import fresh_block
from .tensor import Tensor, seconds, store_result, tiles, why_too_small

UNEVEN = 4
"""How many times as many rows as on average a group may have that a tile is to hold whole."""
MOST_GROUPS = 4096
"""The ends of so many groups lie in the registers of a program, which looks for its own among them."""


@dataclass(frozen=True)
class GroupedProduct:
    """The groups of rows, and the product of the rows of one group."""

    groups: RowGroups
    matched: MatrixProduct


@dataclass(frozen=True)
class Grouped:
    """Tiles as in `tensor`; each program finds by the ends of the groups which rows are its own. A group has as many tiles as its rows
    fill, the last one not always whole: together as many as all rows fill, and one more for each group at most.
    """

    name: str = "grouped"

    def match(self, problem: Problem, target: GpuTarget) -> Match[GroupedProduct] | Refusal:
        found = grouped_product(problem)
        return Refusal(found) if isinstance(found, str) else Match(self, problem, found)

    def space(self, match: Match[GroupedProduct], target: GpuTarget) -> Iterator[Schedule]:
        """The tiles of `tensor` for the rows of a group."""
        for item in tiles(match.problem, match.found.matched, target, _sizes(match)):
            yield Schedule(self.name, tuple(zip(("m", "n", "k", "warps", "stages", "swap"), item, strict=True)))

    def cost(self, match: Match[GroupedProduct], schedule: Schedule, target: GpuTarget) -> float:
        """That of `tensor` for a batch of groups of equally many rows."""
        return seconds(Match(Tensor(), match.problem, match.found.matched), schedule, target, 1, sizes=_sizes(match))

    def order(self, match: Match[GroupedProduct], schedule: Schedule, target: GpuTarget) -> Order:
        """As in `tensor`: which rows are beside a row in its tile does not matter."""
        return self.name, *instruction_order(match.problem, match.found.matched, schedule, target)

    def tile(self, match: Match[GroupedProduct], schedule: Schedule, target: GpuTarget) -> TileProgram:
        """One launch."""
        problem = replace(match.problem, region=match.found.groups.region)
        launch = _launch(problem, schedule, match.found)
        return TileProgram(problem.region.name, (launch,), symbols=tuple(problem.symbols.ranges))


def grouped_product(problem: Problem) -> GroupedProduct | str:
    """A region as products of rows in groups for the matrix instructions, or why it is none."""
    groups = read_row_groups(small_floats(problem.region))
    if isinstance(groups, str):
        return groups
    if groups.count > MOST_GROUPS:
        return f"there are {groups.count} groups, expected at most {MOST_GROUPS}"
    found = read_contraction(groups.region)
    if isinstance(found, str):
        return found
    if found.block is not None or found.batch or found.rows != (groups.row,):
        return "the rows in groups are not all rows of one product"
    operands = operands_of(found)
    if isinstance(operands, str):
        return operands
    why = why_too_small(problem, found, any_rows=True)
    return GroupedProduct(groups, MatrixProduct(found, operands)) if why is None else why


def _sizes(match: Match[GroupedProduct]) -> Sizes:
    """Those of a batch of products, one for each group that has rows, the rows spread evenly over them."""
    sizes = sizes_of(match.problem, match.found.matched.product)
    filled = min(match.found.groups.count, sizes.rows)
    rows = -(-sizes.rows // filled)
    most = UNEVEN * rows if sizes.most_rows is None else min(UNEVEN * rows, sizes.most_rows)
    return replace(sizes, batch=filled, rows=rows, most_rows=most)


def _launch(problem: Problem, schedule: Schedule, grouped: GroupedProduct) -> Launch:
    groups, (found, operands) = grouped.groups, (grouped.matched.product, grouped.matched.operands)
    extents = problem.region.extents
    block = fresh_block(problem, ())
    m, n = (schedule["n"], schedule["m"]) if schedule["swap"] else (schedule["m"], schedule["n"])
    tile, columns = block.unique("tile"), merged(block, found.columns, extents)
    grid = (GridAxis(tile, 0, extents[groups.row] // m + groups.count), GridAxis(columns.name, 0, columns.extent, n))
    block.index |= columns.index
    rows, is_needed = open_rows(block, groups, tile, m)
    block.axes = [columns.name, rows] if schedule["swap"] else [rows, columns.name]
    acc = block.let("acc", block.full(0.0 if found.reduce.dtype.is_float else 0, found.reduce.dtype, tuple(block.axes)))
    with block.condition(is_needed, carries=(acc,)):
        multiply(block, acc, found, operands, schedule["k"], 0, dims.product(extents[axis] for axis in found.over))
    store_result(block, found, acc)
    ends = Let("ends", (), groups.ends)
    last = () if groups.last is None else (Let("last", (), groups.last),)
    params = used_parameters(problem, (*found.prologue, ends, *last, found.reduce, *found.epilogue, found.store))
    hints = (("order", "grouped(8)"), ("warps", schedule["warps"]), ("stages", schedule["stages"]))
    return Launch(f"{problem.region.name}.grouped", params, grid, tuple(block.body), hints=hints)


def open_rows(block: Block, groups: RowGroups, tile: str, m: int) -> tuple[str, Value]:
    """The axis of the rows of tile number `tile`, m of one group or what is left of them, and whether their product is looked at.

    Behind the last tile come some without rows. Ends that fall, or lie outside of all rows, lead nowhere else.
    """
    total, count = block.problem.region.axis(groups.row).extent, groups.count
    each = block.axis("each", 0, count, power_of_two(count))
    place, lanes = dims.symbol(each), TileType(i32, (each,))
    rows, nothing = block.index_value(total, i32), block.full(0, i32)

    def end(number: dims.Dim) -> Value:
        if groups.along is not None:
            block.index[groups.along] = number
        block.outside = True
        value = _narrow(block, block.lower(groups.ends))
        block.outside = False
        return block.apply("max", block.apply("min", value, rows), nothing)

    def of_own(value: Value) -> Value:
        return TileReduce("sum", each, block.apply("where", own, value, block.full(0, i32, (each,))), TileType(i32))

    is_later = block.apply("le", block.full(1, i32), block.index_value(place, i32))
    starts = block.let("starts", block.apply("where", is_later, end(place - 1), nothing))
    is_last = block.apply("eq", block.index_value(place, i32), block.full(count - 1, i32))
    ends = block.let("ends", block.apply("max", starts, block.apply("where", is_last, rows, end(place))))
    has = block.let("has", block.index_value(dims.ceil_div(_place(block, ends) - _place(block, starts), m), i32))
    through = block.let("through", Scan("sum", each, has, lanes))
    number = block.index_value(dims.symbol(tile), i32)
    passed = block.apply("cast", block.apply("le", through, number), dtype=i32)
    group = block.let("number", TileReduce("sum", each, passed, TileType(i32)))
    own = block.let("own", block.apply("eq", block.index_value(place, i32), group))
    skipped = block.apply("mul", block.apply("sub", through, has), block.full(m, i32))
    ahead = block.apply("mul", number, block.full(m, i32))
    first = block.let("first", block.apply("max", block.apply("add", of_own(block.apply("sub", starts, skipped)), ahead), nothing))
    high = block.let("high", of_own(ends))
    known = block.apply("max", block.apply("min", group, block.full(count - 1, i32)), nothing)
    block.index[GROUP] = _place(block, block.let("group", known))
    looked = high if groups.last is None else block.apply("min", high, _narrow(block, block.lower(groups.last)))
    needed = block.let("needed", block.apply("lt", first, looked))
    name = block.axis(groups.row, _place(block, first), dims.minimum(_place(block, high), total), m)
    block.index[groups.row] = dims.symbol(name)
    return name, needed


def _narrow(block: Block, value: Value) -> Value:
    return value if value.type.dtype == i32 else block.apply("cast", value, dtype=i32)


def _place(block: Block, value: Ref) -> dims.Dim:
    """A named value in index expressions."""
    block.types[value.name] = value.type
    return dims.symbol(f"%{value.name}")
