"""Tiles of rows in groups: together they have every row once, each those of one group, whatever the ends are."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.region.text import parse_region
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.program import GridAxis, Launch, TileProgram
from ourcc.ir.tile.verify import verify
from ourcc.passes.regions.row_groups import GROUP, RowGroups, read_row_groups
from ourcc.passes.tile.lower import Block, parameters
from ourcc.passes.tile.row_tiles import open_rows, tiles_of
from ourcc.passes.tile.schedule import Problem

from ...groups import Array, drawn_ends

REGION = """region @region(%x0: i32[GROUPS], %x1: i32[GROUPS]) -> %y0: i32[t S] {
  axes t: S, e: LAST
  %t0 = sum e: cast(le(%x0[e], index(t, i32)), i32) : i32[t]
  %y0[t] = %x1[%g0] with (%g0 = %t0)
}
"""


def groups_of(ends: Array, rows: int, m: int) -> Array:
    """The number that stands at the group of each row, written by tiles of m rows; -1 where none writes it."""
    facts = dims.Facts({"S": dims.Range(0, None)})
    found = read_row_groups(parse_region(REGION.replace("GROUPS", str(len(ends))).replace("LAST", str(len(ends) - 1))))
    assert isinstance(found, RowGroups)
    problem = Problem(found.region, facts, {})
    block = Block(problem, names=dict.fromkeys(("x0", "x1", "y0", "S"), 1))
    rows_of_tile = open_rows(block, found, "tile", m)
    block.axes = [rows_of_tile.axis]
    value = block.load("x1", (block.index[GROUP],), found.ends.dtype)
    block.store_all("y0", (block.index["t"],), value)
    launch = Launch("rows", parameters(problem, frozenset({"y0"})), (GridAxis("tile", 0, tiles_of(found, m)),), tuple(block.body))
    program = TileProgram("rows", (launch,), symbols=("S",))
    verify(program, facts)
    given = {"x0": ends, "x1": np.arange(len(ends), dtype=np.int32), "y0": np.full(rows, -1, np.int32)}
    return run(program, given, {"S": rows}, facts)["y0"]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("m", [1, 12, 16, 64])
def test_every_row_is_in_one_tile_of_its_group(seed: int, m: int) -> None:
    random = np.random.default_rng(seed)
    groups, rows = int(random.choice([3, 4, 9, 33])), int(random.choice([0, 1, 16, 77, 130]))
    ends = drawn_ends(random, rows, groups)
    # Rows that are of no group stand with the last one.
    expected = np.minimum(np.searchsorted(ends, np.arange(rows), side="right"), groups - 1)
    assert np.array_equal(groups_of(ends, rows, m), expected)


@pytest.mark.parametrize("highest", [70, 200, 1 << 31])
@pytest.mark.parametrize("groups", [2, 3, 5, 16, 33])
def test_ends_that_fall_or_lie_outside_leave_no_row_and_no_other_memory(groups: int, highest: int) -> None:
    """Each row is written once, for the first group that ends behind it. The interpreter would see what is written outside of the rows."""
    random = np.random.default_rng(groups)
    for _ in range(8):
        ends = random.integers(-highest, highest, groups).astype(np.int32)
        reached = np.maximum.accumulate(np.clip(ends, 0, 70))
        expected = np.minimum(np.searchsorted(reached, np.arange(70), side="right"), groups - 1)
        assert np.array_equal(groups_of(ends, 70, 16), expected)
