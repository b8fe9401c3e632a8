"""The strategy `grouped`: rows in groups, each multiplied by a factor of its own, tiles of which have rows of one group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ....ir import dims
from ....ir.region import Let
from ....ir.target import GpuTarget
from ....ir.tile.program import GridAxis, Launch, TileProgram
from ...regions.contraction import read_contraction
from ...regions.row_groups import RowGroups, read_row_groups
from ...regions.small_floats import small_floats
from ..lower import used_parameters
from ..row_tiles import open_rows, tiles_of
from ..schedule import Match, Order, Problem, Refusal, Schedule
from .matrix import MatrixProduct, Sizes, instruction_order, merged, multiply, operands_of, sizes_of
from .sweep import fresh_block
from .tensor import Tensor, seconds, store_result, tiles, why_no_tile

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
    why = why_no_tile(problem, found, any_rows=True)
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
    grid = (GridAxis(tile, 0, tiles_of(groups, m)), GridAxis(columns.name, 0, columns.extent, n))
    block.index |= columns.index
    rows = open_rows(block, groups, tile, m)
    block.axes = [columns.name, rows.axis] if schedule["swap"] else [rows.axis, columns.name]
    acc = block.let("acc", block.full(0.0 if found.reduce.dtype.is_float else 0, found.reduce.dtype, tuple(block.axes)))
    with block.condition(rows.is_needed, carries=(acc,)):
        multiply(block, acc, found, operands, schedule["k"], 0, dims.product(extents[axis] for axis in found.over))
    store_result(block, found, acc)
    ends = Let("ends", (), groups.ends)
    last = () if groups.last is None else (Let("last", (), groups.last),)
    params = used_parameters(problem, (*found.prologue, ends, *last, found.reduce, *found.epilogue, found.store))
    hints = (("order", "grouped(8)"), ("warps", schedule["warps"]), ("stages", schedule["stages"]))
    return Launch(f"{problem.region.name}.grouped", params, grid, tuple(block.body), hints=hints)
