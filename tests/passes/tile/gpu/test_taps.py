"""Windows of known places: what they read and in which order they add, which folds are none, right in both interpreters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ourcc.codegen.triton import print_program
from ourcc.codegen.triton.interpret import interpret
from ourcc.ir import dims
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.text import parse_region
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.program import For, statements
from ourcc.ir.tile.verify import verify
from ourcc.passes.tile.gpu.taps import MOST, Taps
from ourcc.passes.tile.schedule import Match, Problem, Refusal

SM_90A = gpu_target("sm_90a")
POOL = """region @r(%x: f32[c 6, h 21, w 75]) -> %y: f32[c 6, h 10, w 37] {
  axes c: 6, i: 10, j: 37, a: 3, b: 3
  %t = max a, b: %x[c, 2*i + a, 2*j + b] : f32[c, i, j]
  %y[c, i, j] = %t
}"""
TWO = """region @r(%x: f32[c 6, h 12, w 70]) -> %y: f32[c 6, h 10, w 68] {
  axes c: 6, i: 10, j: 68, a: 3, b: 3
  %s = sum a, b: %x[c, i + a, j + b] : f32[c, i, j]
  %t = max a: abs(%x[c, i + a, j]) : f32[c, i, j]
  %y[c, i, j] = div(%s, %t)
}"""


def posed(text: str) -> Problem:
    return Problem(parse_region(text), dims.NO_FACTS, {})


@pytest.mark.parametrize("text", [POOL, TWO])
def test_a_window_is_right_and_every_schedule_gives_the_same_bits(text: str) -> None:
    problem = posed(text)
    match = Taps().match(problem, SM_90A)
    assert isinstance(match, Match)
    (operand,) = problem.region.inputs
    given = {"x": np.random.default_rng(3).integers(1, 100, [int(size) for size in operand.type.shape]).astype(np.float32)}
    expected = run_region(problem.region, given, {})["y"]
    found: list[Any] = []
    for schedule in match.strategy.space(match, SM_90A):
        program = match.strategy.tile(match, schedule, SM_90A)
        verify(program, problem.symbols)
        found.append(run(program, given, {}, problem.symbols)["y"])
        (kernel,) = print_program(program)
        memory = {**given, "y": np.zeros(expected.shape, np.float32)}
        np.testing.assert_array_equal(interpret(kernel, memory, {}, 200.0)["y"], found[-1])
    np.testing.assert_array_equal(found[0], expected)
    assert all(each.tobytes() == found[0].tobytes() for each in found)


def test_places_are_written_out() -> None:
    problem = posed(POOL)
    match = Taps().match(problem, SM_90A)
    assert isinstance(match, Match)
    program = match.strategy.tile(match, next(iter(match.strategy.space(match, SM_90A))), SM_90A)
    (launch,) = program.launches
    loops = [each for each in statements(launch.body) if isinstance(each, For)]
    assert [(each.kind, dict(each.hints)) for each in loops] == [("scalar", {"unroll": 1})] * 2
    (kernel,) = print_program(program)
    assert kernel.source.count("tl.static_range(0, 3)") == 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("max a, b", "argmax b"), "one number"),
        (("a: 3, b: 3", f"a: 3, b: {MOST // 2}"), "places"),
        (("2*i + a, 2*j + b", "2*j + b, 2*i + a"), "neighbours"),
        (("%y[c, i, j] = %t", "%y[c, j, i] = %t"), "neighbours"),
    ],
)
def test_what_is_no_window_says_why(change: tuple[str, str], why: str) -> None:
    text = POOL.replace(*change)
    if "argmax" in text:
        text = text.replace(" : f32[c, i, j]", " : i64[c, i, j, a]").replace("%y: f32[c 6, h 10, w 37]", "%y: i64[c 6, h 10, w 37, a 3]")
        text = text.replace("%y[c, i, j] = %t", "%y[c, i, j, a] = %t")
    if "%y[c, j, i]" in text:
        text = text.replace("%y: f32[c 6, h 10, w 37]", "%y: f32[c 6, w 37, h 10]")
    found = Taps().match(posed(text), SM_90A)
    assert isinstance(found, Refusal) and why in found.why, found
