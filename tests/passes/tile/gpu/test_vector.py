"""Products of one row by coded weights: bytes and scales are loaded once, a program has whole columns; right for every format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.program import For, Let, Load, statements, walk
from ourcc.ir.tile.verify import verify
from ourcc.passes.tile.gpu.vector import LONGEST, Vector
from ourcc.passes.tile.schedule import Match

SM_90A = gpu_target("sm_90a")
WORDS = ("int8-weight", "int4-weight", "int4-weight-g128", "int3-weight", "fp8-weight", "fp8-block-weight", "mxfp4-weight", "nvfp4-weight")


def matched(problem: Any) -> Match[Any]:
    match = Vector().match(problem, SM_90A)
    assert isinstance(match, Match)
    return match


@pytest.mark.parametrize("words", WORDS)
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
