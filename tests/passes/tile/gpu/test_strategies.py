"""Strategies on problems of several tiles: right in the tile interpreter, chosen where they should be, compiled for both targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.verify import verify
from ourcc.ir.types import bf16
from ourcc.passes.tile.gpu import STRATEGIES
from ourcc.passes.tile.gpu.attention import GpuAttention
from ourcc.passes.tile.gpu.shape import LAUNCH_SECONDS
from ourcc.passes.tile.gpu.split_attention import SplitAttention
from ourcc.passes.tile.schedule import Match, matches

SM_90A = gpu_target("sm_90a")
SIZES = {"B": 2, "S": 37, "U": 70}
EXPECTED = {
    "linear_f32": "tensor",
    "linear_f32_unbounded": "tensor",
    "linear_f16": "tensor",
    "linear_bf16": "tensor",
    "linear_i8": "tensor",
    "linear_i64": "rows",
    "few_rows_f16": "tensor",
    "one_row_f32": "vector",
    "one_row_columns_contiguous": "vector",
    "one_column_f16": "vector",
    "four_rows_unbounded": "vector",
    "long_sum": "split_k",
    "long_even_sum": "split_k",
    "batched": "tensor",
    "convolution": "tensor",
    "convolution_channels": "tensor",
    "convolution_groups": "taps",
    "convolution_depthwise": "taps",
    "attention": "attention",
    "attention_causal_groups": "attention",
    "attention_mask": "attention",
    "attention_bias": "attention",
    "attention_one_row": "attention",
    "attention_long": "split_attention",
    "attention_long_f32": "split_attention",
    "attention_long_mask": "split_attention",
    "attention_long_causal": "attention",
    "attention_wide": "attention",
    "attention_wide_f16": "attention",
    "attention_too_wide": "rows",
    "softmax": "rows",
    "softmax_unbounded": "rows",
    "softmax_outer": "rows",
    "layer_norm": "rows",
    "layer_norm_long": "split_rows",
    "layer_norm_few": "split_rows",
    "softmax_few": "split_rows",
    "softmax_few_f16": "split_rows",
    "logsumexp_few": "split_rows",
    "sum_few": "split_rows",
    "reduce_max_few": "split_rows",
    "sum_all": "rows",
    "sum_outer": "rows",
    "sum_rows_unbounded": "rows",
    "argmax_long": "rows",
    "argmin_last": "rows",
    "argmin_whole_last": "rows",
    "cumsum": "rows",
    "cumsum_unbounded": "steps",
    "cumsum_exclusive_unbounded": "steps",
    "transpose": "elementwise",
    "transpose_heads": "elementwise",
    "add_broadcast": "elementwise",
    "gather": "elementwise",
    "scatter_add_integers": "steps",
    "scatter_add_floats": "steps",
    "scatter_last_wins": "steps",
    "scatter_add_floats_one_column": "steps",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_strategy_that_applies_is_right(name: str, cases: dict[str, Any], answered: Callable[..., Any]) -> None:
    judged = answered(cases[name])
    problem = judged.problem
    taking = list(matches(STRATEGIES, problem, SM_90A))
    assert taking[0].strategy.name == EXPECTED[name], [match.strategy.name for match in taking]
    for match in taking:
        schedules = list(match.strategy.space(match, SM_90A))
        best = min(schedules, key=lambda s: match.strategy.cost(match, s, SM_90A))
        for schedule in dict.fromkeys((best, schedules[-1])):
            program = match.strategy.tile(match, schedule, SM_90A)
            verify(program, problem.symbols)
            assert match.strategy.cost(match, schedule, SM_90A) > LAUNCH_SECONDS * len(program.launches)
            with np.errstate(all="ignore"):
                got = run(program, judged.given, SIZES, problem.symbols)
            verdict = judged.verdict(got)
            assert verdict.passed, f"{schedule}: {verdict.reason}"


@pytest.mark.parametrize("name", ["attention_causal_groups", "attention_long_causal"])
def test_parts_of_the_columns_stay_below_the_diagonal(name: str, cases: dict[str, Any], answered: Callable[..., Any]) -> None:
    """Whole rows are quicker where few columns count, so that parts are asked for here."""
    judged = answered(cases[name])
    problem, whole = judged.problem, GpuAttention().match(judged.problem, SM_90A)
    assert isinstance(whole, Match)
    tiles = next(GpuAttention().space(whole, SM_90A))
    for splits in (2, 5):
        schedule = replace(tiles, strategy="split_attention", parameters=(("splits", splits), *tiles.parameters))
        program = SplitAttention().tile(replace(whole, strategy=SplitAttention()), schedule, SM_90A)
        verify(program, problem.symbols)
        with np.errstate(all="ignore"):
            verdict = judged.verdict(run(program, judged.given, SIZES, problem.symbols))
        assert verdict.passed, f"{schedule}: {verdict.reason}"


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_103a", "sm_120a", "h100"])
def test_every_space_has_a_first_choice_with_a_finite_cost(target: str, cases: dict[str, Any]) -> None:
    machine = gpu_target(target)
    for name, case in cases.items():
        problem = case.problem()
        match = next(matches(STRATEGIES, problem, machine))
        costs = [match.strategy.cost(match, schedule, machine) for schedule in match.strategy.space(match, machine)]
        assert costs and all(0 < cost < 1 for cost in costs), name


def test_no_product_is_faster_than_the_machine(cases: dict[str, Any]) -> None:
    rows = 128  # what a symbol is reckoned with
    small, large = (best_cost(replace(cases["linear_bf16"], operands=sized(n))) for n in (512, 8192))
    assert large > 2 * rows * 8192 * 8192 / SM_90A.rates["bf16"]
    assert large > 2 * 8192 * 8192 / SM_90A.memory_rate
    assert large > 3 * small


def sized(count: int) -> tuple[Any, ...]:
    return tuple((bf16, shape) for shape in (("S", count), (count, count)))


def best_cost(case: Any) -> float:
    problem = case.problem()
    match = next(matches(STRATEGIES, problem, SM_90A))
    return min(match.strategy.cost(match, schedule, SM_90A) for schedule in match.strategy.space(match, SM_90A))
