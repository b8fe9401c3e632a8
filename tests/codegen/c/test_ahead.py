"""What products ask memory for: all that lies behind the panels at hand, once in all passes over these, in stretches far apart."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from dataclasses import dataclass

import pytest

from ourcc.codegen.c.ahead import OFTEN, STREAMS, Panels, Share, share_of
from ourcc.codegen.c.amx import ROW, SIDE
from ourcc.ir import dims
from ourcc.ir.dims import symbol
from ourcc.ir.tile.program import AxisDecl, For, GridAxis, Launch
from ourcc.ir.tile.scope import launch_scope


@dataclass(frozen=True)
class Product:
    """Rows of some lines by columns, in tiles of m x n and blocks of mr x nr; a sum over taps and elements of 16 bits."""

    lines: int
    rows: int
    columns: int
    taps: int
    depth: int
    m: int
    n: int
    mr: int
    nr: int

    @property
    def apart(self) -> int:
        """Elements of a panel of 16 columns."""
        return self.taps * self.depth * SIDE

    @property
    def steps(self) -> int:
        return self.depth // 32

    def share(self) -> Share | None:
        """The share of a pass, in loops as the strategy makes them."""
        grid = (GridAxis("i", 0, self.columns, self.n), GridAxis("j", 0, self.lines), GridAxis("k", 0, self.rows, self.m))
        scope = launch_scope(Launch("l", (), grid, ()), dims.NO_FACTS)
        for statement in (
            For("i_1", "walk", 0, 0, self.nr, (), parent="i"),
            For("k_1", "tile", symbol("k.first"), dims.minimum(self.rows, symbol("k.first") + self.m), self.mr, ()),
            For("t", "scalar", 0, self.taps, 1, ()),
            AxisDecl("l", 0, self.depth, self.depth),
        ):
            scope = scope.enter(statement)
        address = dims.floor_divide(symbol("i_1.first"), self.nr) * (self.nr // SIDE * self.apart) + symbol("t") * (self.depth * SIDE)
        return share_of(Panels(address, self.apart, self.nr // SIDE, 2, "i_1", "l", self.steps, self.depth), scope)

    def asked(self, share: Share, column: int, line: int, tile: int) -> Counter[int]:
        """Lines of memory that passes over the panels of a column ask for: of all lines and tiles of rows, or of one of them."""
        alone = self.n <= self.nr
        found: Counter[int] = Counter()
        lines = range(self.lines) if alone else (line,)
        tiles = range(0, self.rows, self.m) if alone else (tile,)
        for j, k in itertools.product(lines, tiles):
            for row, tap in itertools.product(range(k, min(self.rows, k + self.m), self.mr), range(self.taps)):
                at = {"i.first": column // self.n * self.n, "j": j, "k.first": k, "i_1.first": column, "k_1.first": row, "t": tap}
                start = dims.evaluate(share.start, at) * 2
                found.update((start + share.apart * step + offset) // ROW for step in range(self.steps) for offset in share.offsets)
        return found


@pytest.mark.parametrize("seed", range(40))
def test_all_that_lies_behind_is_asked_for_once(seed: int) -> None:
    draw = random.Random(seed)
    nr = draw.choice((16, 32, 48, 64))
    columns = nr * draw.randint(2, 5)
    n, mr = nr * draw.choice((1, 1, 2, 5)), draw.choice((7, 16, 32))
    alone = n <= nr
    case = Product(
        *(draw.randint(1, 7 if alone else OFTEN - 1), mr * draw.randint(1, 4), columns, draw.choice((1, 1, 9)), 32 * draw.randint(1, 6)),
        *(mr * 4, n, mr, nr),
    )
    share = case.share()
    assert share is not None
    column = draw.randrange(columns // nr - 1) * nr
    found = case.asked(share, column, 0, 0)
    first, size = (column + nr) // SIDE * case.apart * 2 // ROW, nr // SIDE * case.apart * 2 // ROW
    passes = (case.lines if alone else 1) * math.ceil(case.rows / mr) * case.taps * case.steps
    assert set(range(first, first + size)) <= set(found), "nothing is left out"
    assert max(found.values()) == 1 and sum(found.values()) <= size + passes * STREAMS, "nothing is asked for twice"
    stretches = sorted(share.offsets)
    assert sum(b - a > ROW for a, b in itertools.pairwise(stretches)) <= STREAMS - 1
    if size >= STREAMS * passes:
        assert sum(b - a > ROW for a, b in itertools.pairwise(stretches)) >= STREAMS // 2 or passes == 1


def test_nothing_is_asked_for_where_nothing_comes_or_all_is_near() -> None:
    whole = Product(1, 128, 64, 1, 768, 128, 64, 32, 64)
    assert whole.share() is None, "there are no other columns"
    often = {"lines": OFTEN, "rows": 32, "columns": 256, "taps": 9, "depth": 64, "m": 32, "n": 256, "mr": 32, "nr": 32}
    assert Product(**often).share() is None, "panels of a tile of the grid stay near from line to line"
    assert Product(**{**often, "lines": OFTEN - 1}).share() is not None
    assert Product(**{**often, "n": 32}).share() is not None, "lines are passes over the same panels"
