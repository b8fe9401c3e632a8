"""Checks of accesses: what is proved away, what stands, and that nothing is proved away that is not so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ourcc.ir import dims, types
from ourcc.ir.dims import NO_FACTS, Dim, Facts, symbol
from ourcc.ir.dims_text import parse_dim
from ourcc.ir.errors import VerifyError
from ourcc.ir.expression import Constant
from ourcc.ir.tile.bounds import BoundsCheck, access_checks, bounds_checks, domain_checks, varies_over
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.program import (
    AxisDecl,
    For,
    Full,
    GridAxis,
    Index,
    Launch,
    Let,
    Load,
    Local,
    Param,
    Ref,
    Statement,
    TileApply,
    TileProgram,
    TileType,
    Value,
)
from ourcc.ir.tile.proof import at_most, simplify
from ourcc.ir.tile.scope import Scope, launch_scope

POSITIVE = NO_FACTS.with_range("B", 1, None)


def scope_of(*grid: GridAxis, facts: Facts = POSITIVE) -> Scope:
    return launch_scope(Launch("test", (), grid, ()), facts)


def walk(name: str, parent: str, step: int) -> For:
    return For(name, "walk", 0, 0, step, (), parent)


def checks(scope: Scope, shape: str, subscript: str) -> list[str]:
    found = access_checks(scope, (parse_dim(shape),), (parse_dim(subscript),))
    return [f"{'' if c.low is None else c.low} <= {c.index} < {'' if c.high is None else c.high}" for c in found]


B = symbol("B")


def test_tiles_that_divide_their_domain_need_no_mask() -> None:
    scope = scope_of(GridAxis("i", 0, 96, 12))
    assert checks(scope, "96", "i") == []
    assert checks(scope_of(GridAxis("i", 0, 97, 12)), "97", "i") == [" <= i < 97"]


def test_a_known_divisor_of_a_symbol_replaces_the_mask() -> None:
    facts = NO_FACTS.with_range("B", 1, None, divisor=16)
    assert access_checks(scope_of(GridAxis("i", 0, B, 8), facts=facts), (B,), (symbol("i"),)) == ()
    assert checks(scope_of(GridAxis("i", 0, B, 32), facts=facts), "B", "i") == [" <= i < B"]


def test_a_walk_that_divides_its_parent_inherits_the_parents_mask() -> None:
    exact = scope_of(GridAxis("i", 0, 96, 24)).enter(walk("ii", "i", 12))
    assert checks(exact, "96", "ii") == []
    ragged = scope_of(GridAxis("i", 0, B, 24)).enter(walk("ii", "i", 12))
    assert checks(ragged, "B", "ii") == [" <= ii < B"]


def test_a_walk_that_does_not_divide_its_parent_is_clipped_to_it() -> None:
    scope = scope_of(GridAxis("i", 0, 96, 12)).enter(walk("ii", "i", 5))
    assert checks(scope, "96", "ii") == [" <= ii < i.first + 12"]


def test_lanes_and_starts_never_mask_by_domain() -> None:
    scope = scope_of(GridAxis("i", 0, B, 16))
    assert checks(scope, "16", "i.lane") == []
    assert checks(scope, "B", "i.first") == []
    assert checks(scope, "15", "i.lane") == [" <= i.lane < 15"]


def test_padding_is_checked_on_both_sides() -> None:
    scope = scope_of(GridAxis("o", 0, parse_dim("(B + 1) // 2"), 1))
    assert checks(scope, "B", "2*o - 1") == ["0 <= 2*o - 1 < "]
    assert checks(scope, "B", "2*o + 1") == [" <= 2*o + 1 < B"]


def test_an_axis_merged_from_three_needs_its_own_mask_only() -> None:
    facts = POSITIVE.with_range("H", 1, None).with_range("W", 1, None)
    scope = scope_of(GridAxis("m", 0, parse_dim("B*H*W"), 64), facts=facts)
    shape = (B, symbol("H"), symbol("W"))
    subscripts = tuple(parse_dim(text) for text in ("m // (H*W)", "(m // W) % H", "m % W"))
    assert bounds_checks(scope, shape, subscripts) == ()
    assert [check.index for check in domain_checks(scope, ["m"])] == [symbol("m")]


def test_an_unknown_symbol_licenses_nothing() -> None:
    scope = scope_of(GridAxis("i", 0, 16, 16), facts=NO_FACTS)
    assert checks(scope, "B", "i") == [" <= i < B"]
    assert checks(scope, "16", "i + B") == ["0 <= B + i < 16"]


def test_what_a_named_index_is_held_to_is_not_checked_again() -> None:
    scope = scope_of(GridAxis("i", 0, 16, 16))
    kind = TileType(types.i32, ("i",))
    at = Load("table", (symbol("i"),), kind)

    def full(number: int) -> Full:
        return Full(Constant(number, types.i32), TileType(types.i32))

    def held(primitive: str, *args: Value) -> TileApply:
        return TileApply(primitive, args, types.i32, type=kind)

    def missing(value: Value, rebound: bool = False) -> list[str]:
        inner = replace(scope, rebound=frozenset({"row"} if rebound else ())).enter(Let("row", value))
        return [f"{check.low} {check.high}" for check in access_checks(inner, (8,), (symbol("%row"),))]

    clamped = held("max", full(0), held("min", at, full(7)))
    assert missing(clamped) == missing(held("min", held("max", at, full(0)), full(7))) == []
    assert missing(clamped, rebound=True) == ["0 8"]
    assert missing(held("min", at, full(7))) == ["0 None"] and missing(held("max", full(0), at)) == ["None 8"]
    assert missing(held("max", full(0), held("min", at, full(8)))) == ["None 8"]
    assert missing(held("add", clamped, full(1))) == ["0 8"]
    assert missing(full(7)) == [] and missing(full(8)) == ["None 8"] and missing(full(-1)) == ["0 None"]
    again = scope.enter(Let("row", clamped)).enter(Let("same", Ref("row", kind)))
    assert access_checks(again, (8,), (symbol("%same"),)) == ()


def test_a_loaded_index_is_always_checked_over_its_own_axes() -> None:
    scope = scope_of(GridAxis("i", 0, 16, 16))
    load = Load("table", (symbol("i"),), TileType(types.i32, ("i",)))
    gathered = scope.enter(Let("row", load))
    index = symbol("%row")
    assert access_checks(gathered, (B,), (index,)) == (BoundsCheck(index, 0, B, ("i",)),)
    assert varies_over(gathered, index) == ("i",)


def test_a_computed_scalar_keeps_its_range_unless_it_is_carried() -> None:
    let = Let("row", Index(parse_dim("p % 4"), TileType(types.i32)))
    body: tuple[Statement, ...] = (let,)
    grid = (GridAxis("p", 0, 9),)
    scope = launch_scope(Launch("test", (), grid, body), NO_FACTS).enter(let)
    assert checks(scope, "4", "%row") == []
    carried = (let, For("s", "scalar", 0, 2, 1, (let,), carries=("row",)))
    scope = launch_scope(Launch("test", (), grid, carried), NO_FACTS).enter(let)
    assert checks(scope, "4", "%row") == ["0 <= %row < 4"]


def test_an_axis_without_a_loop_may_lie_outside_its_domain() -> None:
    scope = scope_of(GridAxis("p", 0, 4)).enter(AxisDecl("i", parse_dim("16*p"), B, 16))
    # The start itself is past B for a late p: only the loop of a grid or `for` keeps it inside.
    assert checks(scope, "B", "i.first") == [" <= i.first < B"]
    assert checks(scope, "B", "i") == [" <= i < B"]
    inner = scope.enter(walk("ii", "i", 4))
    assert checks(inner, "B", "ii.first") == []


def test_locals_have_constant_bounds() -> None:
    scope = scope_of(GridAxis("i", 0, B, 8)).enter(Local("row", types.f32, (("r", 8),), "cache"))
    assert scope.shape("row") == (8,)
    assert access_checks(scope, scope.shape("row"), (symbol("i.lane"),)) == ()


def test_the_domain_of_an_axis_is_readable() -> None:
    scope = scope_of(GridAxis("i", 0, B, 16), GridAxis("s", 0, 3)).enter(walk("ii", "i", 4))
    assert scope.domain("ii") == (symbol("i.first"), dims.minimum(B, symbol("i.first") + 16))
    assert (scope.tile_axes, scope.scalar_axes, scope.extent("ii")) == (("i", "ii"), ("s",), 4)


def test_an_axis_that_is_not_open_is_refused() -> None:
    with pytest.raises(VerifyError, match="axis k is not open here, expected one of: i"):
        domain_checks(scope_of(GridAxis("i", 0, B, 16)), ["k"])


def test_an_operand_that_is_not_declared_is_refused() -> None:
    with pytest.raises(VerifyError, match="operand %x is not declared here, expected one of: none"):
        scope_of().shape("x")


def test_simplify_splits_starts_from_lanes() -> None:
    scope = scope_of(GridAxis("j", 0, 256, 32)).enter(walk("jj", "j", 16))
    assert str(simplify(scope, parse_dim("(jj.first + jj.lane) % 16"))) == "jj.lane"
    assert simplify(scope, parse_dim("(jj.first + jj.lane) // 16")) == parse_dim("jj.first // 16")


def test_minima_are_decided_case_by_case() -> None:
    scope = scope_of(GridAxis("i", 0, B, 96))
    end = parse_dim("min(i.first + 96, B)")
    assert at_most(scope, symbol("i.first") + (end - symbol("i.first")) // 12 * 12, B)
    assert at_most(scope, symbol("i.first") + 1, end)
    assert not at_most(scope, B, end)


# --- soundness --------------------------------------------------------------------------------------------------------

STEPS = (1, 2, 3, 4, 5, 8, 12)


@st.composite
def launches(draw: Any) -> tuple[TileProgram, int, Facts]:
    """A nest of random loops around one load with random subscripts."""
    divisor = draw(st.sampled_from((1, 4)))
    size = divisor * draw(st.integers(1, 10))
    facts = NO_FACTS.with_range("B", 1, draw(st.sampled_from((None, size, size + 7))), divisor)
    lows, highs, steps = st.sampled_from((0, 1, 4)), st.sampled_from((B, B + 3, 2 * B, 13, (B + 1) // 2)), st.sampled_from(STEPS)
    names = draw(st.sampled_from((("i",), ("i", "j"))))
    grid = tuple(GridAxis(name, draw(lows), draw(highs), draw(steps)) for name in names)
    operand = Param("x", types.f32, tuple((f"d{n}", draw(sizes())) for n in range(draw(st.integers(1, 2)))))
    scope = launch_scope(Launch("test", (operand,), grid, ()), facts)
    body = draw(bodies(scope, operand, draw(st.integers(0, 2))))
    return TileProgram("test", (Launch("test", (operand,), grid, body),), (), ("B",)), size, facts


def sizes() -> st.SearchStrategy[Dim]:
    return st.sampled_from((B, 2 * B, B + 2, (B + 1) // 2, 4, 13, B // 4, dims.minimum(B, 9)))


@st.composite
def bodies(draw: Any, scope: Scope, operand: Param, depth: int) -> tuple[Statement, ...]:
    if depth == 0:
        subscripts = tuple(draw(subscripts_over(scope)) for _ in operand.dims)
        type_ = TileType(types.f32, varies_over(scope, *subscripts))
        return (Let("value", Load("x", subscripts, type_, Constant(0, types.f32))),)
    name = f"a{depth}"
    parent = draw(st.sampled_from(scope.tile_axes))
    step, tail = draw(st.sampled_from(STEPS)), ()
    first = symbol(f"{parent}.first")
    low = draw(st.sampled_from((0, 3, first, 2 * first, B // 2)))
    high = draw(st.sampled_from((B, low + 7, low + 12, dims.minimum(B, first + scope.extent(parent)), 2 * B)))
    kind = draw(st.sampled_from(("walk", "tile", "scalar", "axis")))
    if kind == "axis":
        axis = AxisDecl(name, low, high, step)
        return (axis, *draw(bodies(scope.enter(axis), operand, depth - 1)))
    if kind != "scalar" and step > 1:
        tail = draw(st.sampled_from(((), (1,), tuple(n for n in (4, 1) if n < step))))
    walked = kind == "walk"
    loop = For(name, kind, 0 if walked else low, 0 if walked else high, step, (), parent if walked else None, tail)
    inner = draw(bodies(scope.enter(loop), operand, depth - 1))
    return (For(loop.name, loop.kind, loop.low, loop.high, loop.step, inner, loop.parent, loop.tail),)


@st.composite
def subscripts_over(draw: Any, scope: Scope) -> Dim:
    names = [name for axis in scope.tile_axes for name in (axis, axis, f"{axis}.first", f"{axis}.lane")] + list(scope.scalar_axes)
    value: Dim = draw(st.sampled_from((0, 0, -1, 2)))
    for _ in range(draw(st.integers(1, 2))):
        value = value + draw(st.sampled_from((1, 1, 1, 2, -1))) * symbol(draw(st.sampled_from(names)))
    shape = draw(st.sampled_from(("plain", "plain", "div", "mod")))
    by = draw(st.sampled_from((2, 4, 16)))
    return value if shape == "plain" else value // by if shape == "div" else value % by


@settings(max_examples=150, deadline=None)
@given(launches())
def test_no_check_is_proved_away_that_some_lane_needs(case: tuple[TileProgram, int, Facts]) -> None:
    program, size, facts = case
    shape = [dims.evaluate(extent, {"B": size}) for extent in program.launches[0].params[0].shape]
    # The interpreter compares the checks with what every lane needs, and fails where they let one through.
    run(program, {"x": np.zeros(shape, np.float32)}, {"B": size}, facts)
