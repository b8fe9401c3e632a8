"""Products of few rows by coded and sparse weights: right for every format, and only where matrix instructions take longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ourcc.codegen.triton import print_program
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.program import Expand2to4, For, Let, Load, statements, walk
from ourcc.ir.tile.verify import verify
from ourcc.passes.tile.gpu import STRATEGIES
from ourcc.passes.tile.gpu.parts import fastest
from ourcc.passes.tile.gpu.split_k import SplitK, seconds_beforehand
from ourcc.passes.tile.gpu.tensor import Tensor
from ourcc.passes.tile.gpu.vector import LONGEST, MOST, Vector
from ourcc.passes.tile.schedule import Match, Refusal

SM_90A = gpu_target("sm_90a")
WORDS = ("int8-weight", "int4-weight", "int4-weight-g128", "int3-weight", "fp8-weight", "fp8-block-weight", "mxfp4-weight", "nvfp4-weight")


def matched(problem: Any) -> Match[Any]:
    match = Vector().match(problem, SM_90A)
    assert isinstance(match, Match)
    return match


@pytest.mark.parametrize("words", [*WORDS, "2:4 none", "2:4 int8-weight", "2:4 int4-weight"])
@pytest.mark.parametrize("depth", [256, 5120])
def test_a_row_by_coded_weights_is_right(words: str, depth: int, coded: Callable[..., Any]) -> None:
    case = coded(words, 1, 24, depth)
    match = matched(case.problem)
    schedules = list(match.strategy.space(match, SM_90A))
    for schedule in dict.fromkeys((min(schedules, key=lambda s: match.strategy.cost(match, s, SM_90A)), schedules[-1])):
        program = match.strategy.tile(match, schedule, SM_90A)
        verify(program, case.problem.symbols)
        verdict = case.verdict(run(program, case.given, {}, case.problem.symbols))
        assert verdict.passed, f"{schedule}: {verdict.reason}"


@pytest.mark.parametrize(("words", "lanes"), [("int4-weight", {2, 3}), ("mxfp8-weight", {1, 2}), ("int8-weight", {1})])
def test_bytes_and_scales_are_loaded_once(words: str, lanes: set[int], coded: Callable[..., Any]) -> None:
    """A tile of codes has no lane for each of a byte's codes, that of scales none for each element of a group."""
    match = matched(coded(words, 1, 64, 2048).problem)
    (launch,) = match.strategy.tile(match, next(iter(match.strategy.space(match, SM_90A))), SM_90A).launches
    assert not any(isinstance(each, For) for each in statements(launch.body)), "one step holds the row"
    values = [part for each in statements(launch.body) if isinstance(each, Let) for part in walk(each.value)]
    loads = {value for value in values if isinstance(value, Load)}
    assert {len(load.type.axes) for load in loads} - {0} <= {1, *lanes}
    assert max(len(load.type.axes) for load in loads) == max(lanes)


def test_what_has_parts_has_whole_columns(coded: Callable[..., Any]) -> None:
    four, eight = (matched(coded(words, 1, 64, 2048).problem) for words in ("int4-weight", "int8-weight"))
    assert len(four.found.parts) == 2 and not eight.found.parts
    assert all(s["step"] == s["elements"] for s in four.strategy.space(four, SM_90A))
    assert any(s["step"] < s["elements"] for s in eight.strategy.space(eight, SM_90A))
    assert LONGEST >= 1024


@pytest.mark.parametrize("words", ["none", "2:4 none", "2:4 int8-weight", "int4-weight", "nvfp4-weight"])
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 20, 264), (2, 24, 512), (3, 1000, 2048), (5, 96, 1024), (7, 2048, 512)])
def test_few_rows_go_where_they_take_less(words: str, rows: int, columns: int, depth: int, coded: Callable[..., Any]) -> None:
    """Whichever strategy comes first is right, and none of the others is predicted to be faster."""
    case = coded(words, rows, columns, depth)
    found = next(match for s in STRATEGIES if isinstance(match := s.match(case.problem, SM_90A), Match))
    others = [match for s in (SplitK(), Tensor()) if isinstance(match := s.match(case.problem, SM_90A), Match)]
    assert found.strategy.name in ("vector", "stream_k", "split_k", "tensor")
    assert all(fastest(found, SM_90A) <= fastest(other, SM_90A) for other in others)
    if rows == 1:
        assert found.strategy.name == "vector" and not others
    schedule = min(found.strategy.space(found, SM_90A), key=lambda s: found.strategy.cost(found, s, SM_90A))
    program = found.strategy.tile(found, schedule, SM_90A)
    verify(program, case.problem.symbols)
    verdict = case.verdict(run(program, case.given, {}, case.problem.symbols))
    assert verdict.passed, f"{schedule}: {verdict.reason}"


def test_matrix_instructions_take_what_is_larger(coded: Callable[..., Any]) -> None:
    """A small product lane by lane, a large one of as many rows by the instruction; more than a few rows never lane by lane."""
    small, large, many = (coded("none", *sizes).problem for sizes in ((2, 64, 512), (7, 2048, 2048), (MOST + 1, 64, 512)))
    assert matched(small).strategy.name == "vector" and seconds_beforehand(small, SM_90A) < float("inf")
    for problem, why in ((large, "by matrix instructions"), (many, f"more than {MOST} rows and columns")):
        found = Vector().match(problem, SM_90A)
        assert isinstance(found, Refusal) and why in found.why


@pytest.mark.parametrize("words", ["2:4 none", "2:4 int8-weight", "2:4 int4-weight"])
def test_sparse_weights_are_expanded_and_not_looked_for(words: str, coded: Callable[..., Any]) -> None:
    """Each kept number is loaded once, and each byte of places: none for each of the dense numbers."""
    match = matched(coded(words, 1, 64, 2048).problem)
    for schedule in match.strategy.space(match, SM_90A):
        (launch,) = match.strategy.tile(match, schedule, SM_90A).launches
        values = [part for each in statements(launch.body) if isinstance(each, Let) for part in walk(each.value)]
        assert any(isinstance(part, Expand2to4) for part in values)


def test_products_are_rounded_when_they_are_added(coded: Callable[..., Any]) -> None:
    case = coded("none", 1, 24, 5120)
    match = matched(case.problem)
    schedule = next(s for s in match.strategy.space(match, SM_90A) if s["step"] == 512)
    program = match.strategy.tile(match, schedule, SM_90A)
    text = print_program(program, case.problem.symbols)[0].source
    assert "tl.fma(" in text
