"""Strategies on problems of several tiles: right in the tile interpreter, chosen where they should be, compiled for both targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ourcc.ir.target import gpu_target
from ourcc.passes.tile.gpu import STRATEGIES

SM_90A = gpu_target("sm_90a")
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
    "convolution_groups": "vector",
    "convolution_depthwise": "rows",
    "attention": "attention",
    "attention_causal_groups": "attention",
    "attention_mask": "attention",
    "attention_bias": "attention",
    "attention_one_row": "attention",
    "attention_wide": "rows",
    "softmax": "rows",
    "softmax_unbounded": "rows",
    "softmax_outer": "rows",
    "layer_norm": "rows",
    "layer_norm_long": "rows",
    "sum_all": "rows",
    "sum_outer": "rows",
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
}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_strategy_that_applies_is_right(name: str, cases: dict[str, Any], judged: Callable[..., Any]) -> None:
    case = cases[name]
    problem = case.problem()
    taking = [s for s in STRATEGIES if s.applies(problem, SM_90A) is None]
    assert taking[0].name == EXPECTED[name], [(s.name, s.applies(problem, SM_90A)) for s in STRATEGIES]
    for strategy in taking:
        schedules = list(strategy.space(problem, SM_90A))
        best = min(schedules, key=lambda s: strategy.cost(problem, s, SM_90A))
        for schedule in dict.fromkeys((best, schedules[-1])):
            verdict = judged(case, strategy, schedule, SM_90A)
            assert verdict.passed, f"{schedule}: {verdict.reason}"
