"""Why a strategy does not take a problem, and why a kernel does not use the matrix instruction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ourcc.ir.target import gpu_target
from ourcc.ir.types import bf16, f64
from ourcc.passes.tile.gpu import STRATEGIES, why_no_matrix_instruction
from ourcc.passes.tile.gpu.attention import GpuAttention
from ourcc.passes.tile.gpu.elementwise import Elementwise
from ourcc.passes.tile.gpu.rows import Rows
from ourcc.passes.tile.gpu.split_k import SplitK
from ourcc.passes.tile.gpu.tensor import Tensor
from ourcc.passes.tile.gpu.vector import Vector
from ourcc.passes.tile.schedule import Refusal, Schedule, matches

SM_90A = gpu_target("sm_90a")

REFUSALS = [
    (GpuAttention(), "softmax", "the region is not a product, a maximum and two sums that end in one result"),
    (GpuAttention(), "attention_too_wide", "head size 600 is not a number from 1 to 512"),
    (Tensor(), "softmax", "the region has 2 reductions, expected one"),
    (Tensor(), "one_row_f32", "there are no rows of their own (a matrix-vector product)"),
    (Tensor(), "linear_i64", "matrix instructions do not sum i64 and i64 in i64"),
    (SplitK(), "linear_f32_unbounded", "no sum is long enough for 2 parts, or the parts take more than 16 million elements"),
    (Vector(), "linear_f32", "there may be more than 7 rows and columns: matrix instructions are faster"),
    (Vector(), "softmax", "the region has 2 reductions, expected one"),
    (Rows(), "add_broadcast", "nothing is folded"),
    (Rows(), "scatter_last_wins", "nothing is folded"),
    (Rows(), "cumsum_unbounded", "what is kept along i does not fit the registers: more than 4096 elements"),
    (Elementwise(), "softmax", "folds an axis"),
    (Elementwise(), "scatter_last_wins", "the result is scattered"),
]


def why_not(strategy: Any, case: Any) -> str:
    found = strategy.match(case.problem(), SM_90A)
    assert isinstance(found, Refusal)
    return found.why


@pytest.mark.parametrize(("strategy", "name", "reason"), REFUSALS)
def test_refusals_say_why(strategy: Any, name: str, reason: str, cases: dict[str, Any]) -> None:
    assert reason in why_not(strategy, cases[name])


def test_few_terms_fill_no_instruction(cases: dict[str, Any]) -> None:
    short = replace(cases["linear_bf16"], operands=((bf16, (64, 4)), (bf16, (64, 4))))
    assert "there are at most 4 contracted elements, a tile of the matrix instruction is used for at least 8" in why_not(Tensor(), short)


def test_parts_of_a_sum_must_pay(cases: dict[str, Any]) -> None:
    wide = replace(cases["linear_bf16"], operands=((bf16, (2048, 1024)), (bf16, (2048, 1024))))
    assert "one program for each tile takes" in why_not(SplitK(), wide)


def test_heads_of_f64_are_refused(cases: dict[str, Any]) -> None:
    heads = replace(cases["attention"], operands=tuple((f64, shape) for _, shape in cases["attention"].operands))
    assert "f64 does not fit the registers" in why_not(GpuAttention(), heads)


def reason_for(case: Any, target: str) -> str | None:
    machine, problem = gpu_target(target), case.problem()
    match = next(matches(STRATEGIES, problem, machine))
    return why_no_matrix_instruction(problem, next(iter(match.strategy.space(match, machine))), machine)


def test_a_product_that_misses_the_matrix_instruction_says_why(cases: dict[str, Any]) -> None:
    assert reason_for(cases["one_row_f32"], "sm_90a") == "there are no rows of their own (a matrix-vector product)"
    assert reason_for(cases["linear_i64"], "sm_90a") == "matrix instructions do not sum i64 and i64 in i64"
    assert reason_for(cases["attention_one_row"], "sm_90a") == "each head has one row (a vector-matrix product)"
    assert reason_for(cases["linear_f32"], "sm_120a") == "sm_120a has mma.sync only"
    double = replace(cases["linear_f32"], operands=tuple((f64, shape) for _, shape in cases["linear_f32"].operands))
    assert reason_for(double, "sm_90a") == "wgmma has no f64, mma.sync does it"


def test_what_is_no_product_has_no_reason(cases: dict[str, Any]) -> None:
    for name in ("softmax", "layer_norm", "add_broadcast", "linear_f32", "attention"):
        assert reason_for(cases[name], "sm_90a") is None, name


def test_small_tiles_and_other_strategies_say_so(cases: dict[str, Any]) -> None:
    problem = cases["linear_f32"].problem()
    small = Schedule("tensor", (("m", 32), ("n", 32), ("k", 32), ("warps", 4), ("stages", 2), ("swap", 0)))
    assert why_no_matrix_instruction(problem, small, SM_90A) == "the tile has 32 rows, wgmma takes at least 64"
    assert why_no_matrix_instruction(problem, Schedule("rows"), SM_90A) == "strategy rows was chosen instead of tensor"
