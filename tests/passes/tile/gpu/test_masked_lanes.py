"""Folds of rows that fill no tile: lanes beyond the row hold what changes nothing, or are set so."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.text import parse_region
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.program import Index, TileProgram, statements, walk
from ourcc.ir.tile.program import Let as TileLet
from ourcc.passes.tile.gpu.rows import Rows
from ourcc.passes.tile.schedule import Match, Problem

SM_90A = gpu_target("sm_90a")
FREE = {
    "largest": "max k: abs(%x[i, k])",
    "larger of two": "max k: max(abs(%x[i, k]), abs(neg(%x[i, k])))",
    "squares": "sum k: mul(%x[i, k], %x[i, k])",
    "ones": "prod k: exp(%x[i, k])",
}
MASKED = {
    "highest": "max k: %x[i, k]",
    "exponentials": "sum k: exp(%x[i, k])",
    "product": "prod k: %x[i, k]",
    "from a number": "max k: sub(abs(%x[i, k]), f32(1.0))",
    "negative zero": "sum k: mul(%x[i, k], f32(-1.0))",
    "not below 0": "max k: max(%x[i, k], f32(0.0))",
    "smallest": "min k: abs(%x[i, k])",
}


def problem_of(fold: str, rows: int, columns: int | str) -> Problem:
    text = f"region @r(%x: f32[i {rows}, k {columns}]) -> %y: f32[i {rows}] {{\n"
    text += f"  axes i: {rows}, k: {columns}\n  %t = {fold} : f32[i]\n  %y[i] = %t\n}}"
    facts = dims.NO_FACTS if isinstance(columns, int) else dims.NO_FACTS.with_range(columns, 0, 4000)
    return Problem(parse_region(text), facts, {})


def programs(problem: Problem) -> list[TileProgram]:
    match = Rows().match(problem, SM_90A)
    assert isinstance(match, Match), match
    return [match.strategy.tile(match, schedule, SM_90A) for schedule in match.strategy.space(match, SM_90A)]


def is_masked(program: TileProgram) -> bool:
    """Whether the fold looks at places: nothing else does."""
    lets = [s for launch in program.launches for s in statements(launch.body) if isinstance(s, TileLet)]
    return any(isinstance(part, Index) for let in lets for part in walk(let.value))


def rows_of(columns: int) -> np.ndarray:
    """Drawn rows, zeros of both signs, infinities, NaN, numbers below 1."""
    random = np.random.default_rng(columns)
    x = random.standard_normal((9, columns)).astype(np.float32)
    x[1], x[2], x[3] = 0.0, -0.0, x[3] * 1e-3
    x[4, -1], x[5, 0], x[6, columns // 2], x[7] = np.inf, -np.inf, np.nan, -np.inf
    x[8] = np.minimum(x[8], -2.0)
    return x


@pytest.mark.parametrize("name", [*FREE, *MASKED])
@pytest.mark.parametrize("columns", [1, 7, 896, 1000, 3000])
def test_lanes_beyond_a_row_change_nothing(name: str, columns: int) -> None:
    problem = problem_of((FREE | MASKED)[name], 9, columns)
    x = rows_of(columns)
    with np.errstate(all="ignore"):
        (wanted,) = run_region(problem.region, {"x": x}).values()
        for program in programs(problem):
            found = run(program, {"x": x}, {}, problem.symbols)["y"]
            if name in ("largest", "larger of two", "highest", "not below 0", "from a number", "smallest"):
                np.testing.assert_array_equal(found.view(np.uint32)[~np.isnan(found)], wanted.view(np.uint32)[~np.isnan(wanted)])
            np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("name", [*FREE, *MASKED])
def test_only_what_would_change_it_is_set(name: str) -> None:
    found = {is_masked(program) for program in programs(problem_of((FREE | MASKED)[name], 9, 1000))}
    assert found == {name in MASKED}


def test_a_row_may_be_empty() -> None:
    problem = problem_of(FREE["largest"], 9, "N")
    assert all(is_masked(program) for program in programs(problem))
    for program in programs(problem):
        found = run(program, {"x": np.zeros((9, 0), np.float32)}, {"N": 0}, problem.symbols)["y"]
        assert (found == -np.inf).all()
    assert not any(is_masked(program) for program in programs(problem_of(FREE["squares"], 9, "N")))
