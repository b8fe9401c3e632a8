"""Loops inside each other reach every element once, and say which steps reach beyond the axis."""

from __future__ import annotations

from ourcc.ir import dims
from ourcc.ir.dims import Dim, Facts
from ourcc.ir.region.text import parse_region
from ourcc.ir.tile.program import For, statements
from ourcc.passes.tile.lower import Block
from ourcc.passes.tile.schedule import Problem
from ourcc.passes.tile.walk import Walk, walk

REGION = "region @r(%x: f32[7, 5]) -> %y: f32[7, 5] {\n  axes i: 7, j: 5\n  %y[i, j] = %x[i, j]\n}\n"


def test_stretches_inside_each_other() -> None:
    block = Block(Problem(parse_region(REGION), Facts(), {}))
    seen: list[tuple[dict[str, Dim], tuple[str, ...], bool]] = []
    walks = [Walk("i", 4, ((0, 4, True), (4, 7, False))), Walk("j", 1, ((0, 5, True),))]
    walk(block, walks, lambda whole: seen.append((dict(block.index), tuple(block.axes), whole)))
    loops = [s for s in statements(tuple(block.body)) if isinstance(s, For)]
    assert [(loop.kind, loop.low, loop.high, loop.step) for loop in loops] == [
        ("tile", 0, 4, 4),
        ("scalar", 0, 5, 1),
        ("tile", 4, 7, 4),
        ("scalar", 0, 5, 1),
    ]
    assert [whole for _, _, whole in seen] == [True, False]
    # A loop over single indices opens no axis; a name is given once.
    assert [axes for _, axes, _ in seen] == [("i",), ("i_1",)]
    assert [index for index, _, _ in seen] == [{"i": dims.symbol(a), "j": dims.symbol(b)} for a, b in (("i", "j"), ("i_1", "j_1"))]
    assert (block.index, block.axes) == ({}, [])


def test_nothing_to_walk_is_one_step() -> None:
    block = Block(Problem(parse_region(REGION), Facts(), {}))
    seen: list[bool] = []
    walk(block, [], seen.append)
    assert (seen, block.body) == ([True], [])
