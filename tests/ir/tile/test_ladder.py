"""Ladders: the loops that a tail becomes cover every element once, and need no mask where the last rung is 1."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.dims import NO_FACTS, Facts
from ourcc.ir.tile.bounds import access_checks
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.ladder import expand_ladders
from ourcc.ir.tile.parse import parse
from ourcc.ir.tile.program import For, TileProgram, statements
from ourcc.ir.tile.scope import launch_scope
from ourcc.ir.tile.verify import verify

FACTS = NO_FACTS.with_range("B", 1, 64)


def rows(loop: str, low: str = "0") -> TileProgram:
    return parse(
        f"""program @rows symbols {{ B }} {{ launch @rows(%x: f32[i B], %y: inout f32[i B]) {{
          grid (i: {low}..B step 24) {{ {loop} {{ store %y[ii] = neg(load %x[ii] : f32[ii]) : f32[ii] }} }} }} }}"""
    )


def loops(program: TileProgram) -> list[For]:
    return [s for launch in program.launches for s in statements(launch.body) if isinstance(s, For)]


@pytest.mark.parametrize("size", [1, 3, 4, 11, 12, 24, 25, 37, 47, 48, 53])
@pytest.mark.parametrize(
    "loop",
    ["for ii in i step 12 tail (4, 1)", "for ii in i step 12 tail (5)", "for ii in i.first..min(B, i.first + 24) step 7 tail (2)"],
)
def test_every_element_is_reached(size: int, loop: str) -> None:
    x = np.arange(1, size + 1, dtype=np.float32)
    out = run(rows(loop), {"x": x, "y": np.zeros(size, np.float32)}, {"B": size}, FACTS)
    assert np.array_equal(out["y"], -x)


def test_rungs_down_to_one_need_no_mask() -> None:
    expanded = expand_ladders(rows("for ii in i step 12 tail (4, 1)"), FACTS)
    verify(expanded, FACTS)
    scope = launch_scope(expanded.launches[0], FACTS)
    assert [loop.step for loop in loops(expanded)] == [12, 4, 1]
    for loop in loops(expanded):
        store = loop.body[0]
        assert access_checks(scope.enter(loop), scope.shape("y"), store.subscripts) == ()  # type: ignore[union-attr]
        assert not loop.tail and loop.kind == "tile"


def test_a_last_rung_above_one_is_masked() -> None:
    expanded = expand_ladders(rows("for ii in i step 12 tail (4)"), FACTS)
    scope = launch_scope(expanded.launches[0], FACTS)
    masked = [bool(access_checks(scope.enter(loop), scope.shape("y"), loop.body[0].subscripts)) for loop in loops(expanded)]  # type: ignore[union-attr]
    assert masked == [False, True]


def test_empty_rungs_are_left_out() -> None:
    fours: Facts = NO_FACTS.with_range("B", 1, None, divisor=4)
    assert [loop.step for loop in loops(expand_ladders(rows("for ii in i step 12 tail (4, 1)"), fours))] == [12, 4]
    twelves = NO_FACTS.with_range("B", 1, None, divisor=12)
    assert [loop.step for loop in loops(expand_ladders(rows("for ii in i step 12 tail (4, 1)"), twelves))] == [12]


def test_ladders_inside_conditions_and_loops_are_found() -> None:
    inner = "if (full(true) : bool) { for ii in i step 8 tail (1) { } } else { for s in 0..2 { for ii in i step 8 tail (2, 1) { } } }"
    program = parse(f"program @p symbols {{ B }} {{ launch @l() {{ grid (i: 0..B step 24) {{ {inner} }} }} }}")
    assert [loop.step for loop in loops(expand_ladders(program))] == [8, 1, 1, 8, 2, 1]


def test_a_ladder_inside_a_rung_follows_its_size() -> None:
    inner = "for ii in r step 8 tail (3, 1) { store %y[ii] = neg(load %x[ii] : f32[ii]) : f32[ii] }"
    head = "program @rows symbols { B } { launch @rows(%x: f32[i B], %y: out f32[i B]) { grid (i: 0..B step 24) { "
    program = parse(head + f"for r in i step 12 tail (4, 1) {{ {inner} }} }} }} }}")
    x = np.arange(1, 31, dtype=np.float32)
    assert np.array_equal(run(program, {"x": x}, {"B": 30}, FACTS)["y"], -x)
    assert [loop.step for loop in loops(expand_ladders(program, FACTS))] == [12, 8, 3, 1, 4, 3, 1, 1, 1]
