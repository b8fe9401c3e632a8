"""The strategy `grouped`: rows in groups, each multiplied by a factor of its own, in register blocks of rows of one group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ....ir.dims import Dim
from ....ir.target import CpuLevel
from ....ir.tile.program import GridAxis, TileProgram, TileType, Value
from ....ir.tile.program import Ref as TileRef
from ...regions.contraction import Contraction, plain_load, read_contraction
from ...regions.row_groups import RowGroups, read_row_groups
from ..lower import Block
from ..row_tiles import RowTile, open_rows, tiles_of
from ..schedule import Match, Order, Problem, Refusal, Schedule
from .packed import HIGHEST, why_no_blocks
from .price import Priced
from .register_blocks import RegisterBlocks

MOST_GROUPS = 256
"""Each tile looks for its group among the ends of so many; it is to be small beside its products."""
COPIED = 4
"""Rows that a group has on average from which on its factor is copied, as instructions for two products want it."""
TILES = ((8, 256), (4, 128), (16, 256), (4, 64))
"""Register blocks of rows, and columns, of tiles of the grid."""


@dataclass(frozen=True)
class GroupedProduct:
    """The groups of rows, and the product of the rows of one group."""

    groups: RowGroups
    product: Contraction


@dataclass(frozen=True)
class CpuGrouped(Priced):
    """Register blocks of mr x nr as in `packed`; tiles of the grid have at most m rows of one group."""

    name: str = "grouped"

    def match(self, problem: Problem, target: CpuLevel) -> Match[GroupedProduct] | Refusal:
        groups = read_row_groups(problem.region)
        if isinstance(groups, str):
            return Refusal(groups)
        if groups.count > MOST_GROUPS:
            return Refusal(f"there are {groups.count} groups, expected at most {MOST_GROUPS}")
        found = read_contraction(groups.region)
        if isinstance(found, str):
            return Refusal(found)
        if found.block is not None or found.batch or found.rows != (groups.row,) or len(found.columns) != 1 or len(found.over) != 1:
            return Refusal("the rows in groups are not all rows of one product")
        if plain_load(found.left) is None or plain_load(found.right) is None:
            return Refusal("a factor is computed")
        why = why_no_blocks(replace(problem, region=groups.region), found)
        return Match(self, problem, GroupedProduct(groups, found)) if why is None else Refusal(why)

    def space(self, match: Match[GroupedProduct], target: CpuLevel) -> Iterator[Schedule]:
        """Register blocks that fit the registers."""
        for vectors in (2, 4, 1):
            spare = 1 if target.registers < 32 else 2
            rows = min(HIGHEST, max(1, (target.registers - 4) // vectors - spare))
            rows -= rows % 6 if rows >= 6 else 0
            for high, columns in TILES:
                width = vectors * target.lanes
                yield Schedule(self.name, (("m", high * rows), ("n", max(columns, width)), ("mr", rows), ("nr", width)))

    def cost(self, match: Match[GroupedProduct], schedule: Schedule, target: CpuLevel) -> float:
        """That of tiles that are all whole, by the rows that there are among theirs."""
        rows, m = match.problem.typical(match.problem.region.axis(match.found.groups.row).extent), schedule["m"]
        reckoned = (rows // m + match.found.groups.count) * min(rows, m)
        return super().cost(match, schedule, target) * rows / reckoned

    def order(self, match: Match[GroupedProduct], schedule: Schedule, target: CpuLevel) -> Order:
        """By the steps of the sum, as in `packed`: which rows are beside a row does not matter."""
        return self.name, *_blocks(match, schedule, target).order()

    def tile(self, match: Match[GroupedProduct], schedule: Schedule, target: CpuLevel) -> TileProgram:
        """One launch."""
        launch, symbols = _blocks(match, schedule, target).launch(), match.problem.symbols
        return TileProgram(match.problem.region.name, (launch,), symbols=tuple(symbols.ranges))


def _blocks(match: Match[GroupedProduct], schedule: Schedule, target: CpuLevel) -> GroupedBlocks:
    problem = replace(match.problem, region=match.found.groups.region)
    return GroupedBlocks(problem, schedule, match.found, target)


class GroupedBlocks(RegisterBlocks):
    """Register blocks of which each tile of the grid finds its rows by the ends of the groups."""

    def __init__(self, problem: Problem, schedule: Schedule, grouped: GroupedProduct, target: CpuLevel) -> None:
        super().__init__(problem, schedule, grouped.product, target)
        self.groups = grouped.groups
        self.rows: RowTile | None = None
        self.is_nothing = False
        """Whether the rows at hand are of no group: their sums are looked at by nothing."""
        rows = problem.typical(self.extents[self.groups.row])
        self.are_few = rows < COPIED * min(rows, self.groups.count)
        if self.are_few:
            self.group = 1

    def _fresh(self) -> Block:
        region = self.region
        taken = {*region.extents, *(o.name for o in (*region.inputs, *region.outputs)), *self.problem.symbols.ranges}
        return Block(self.problem, names=dict.fromkeys(sorted(taken - {self.groups.row}), 1))

    def _grid(self, block: Block) -> list[GridAxis]:
        """Tiles of columns, and for each of them those of rows, of which neighbours are of one group, whose factor is near."""
        tile = block.unique("tile")
        self.rows = open_rows(block, self.groups, tile, self.schedule["m"])
        block.axes = [self.rows.axis, self.column]
        columns = GridAxis(self.column, 0, self.extents[self.column], self.schedule["n"])
        return [columns, GridAxis(tile, 0, tiles_of(self.groups, self.schedule["m"]))]

    def _rows(self, block: Block, row: str) -> None:
        assert self.rows is not None
        with block.either(self.rows.is_needed, ()) as otherwise:
            super()._rows(block, row)
            otherwise()
            self.is_nothing = True
            super()._rows(block, row)
            self.is_nothing = False

    def _end(self, row: str) -> Dim:
        assert self.rows is not None
        return self.rows.end

    def _lengths(self, row: str) -> set[int]:
        return set()

    def _panel(self, block: Block, columns: str) -> str | None:
        return None if self.is_nothing else super()._panel(block, columns)

    def _copied_depth(self) -> int | None:
        return None if self.are_few else super()._copied_depth()

    def _contract(self, block: Block, acc: TileRef, kind: TileType, columns: str, panel: str | None, over: list[str]) -> Value:
        return acc if self.is_nothing else super()._contract(block, acc, kind, columns, panel, over)
