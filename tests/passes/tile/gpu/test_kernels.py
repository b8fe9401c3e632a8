"""Chosen kernels printed as Triton: right in its interpreter, and compiled for both targets without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ourcc.codegen.triton import print_program
from ourcc.codegen.triton.compile import compile_kernels
from ourcc.codegen.triton.interpret import interpret
from ourcc.ir import dims
from ourcc.ir.target import GpuTarget, gpu_target
from ourcc.ir.tile.program import TileProgram
from ourcc.passes.tile.gpu import STRATEGIES, why_no_matrix_instruction
from ourcc.passes.tile.schedule import Problem, Schedule, matches

SIZES = {"B": 2, "S": 37, "U": 70}
ON_MATRIX_INSTRUCTIONS = (
    *("linear_f32", "linear_i8", "few_rows_f16", "long_sum", "unbounded_sum", "convolution"),
    *("attention", "attention_causal_groups", "attention_long_causal", "attention_long_f32", "attention_long_mask"),
)
OTHERS = (
    "attention_long",
    "one_row_f32",
    "convolution_depthwise",
    "softmax_unbounded",
    "sum_rows_unbounded",
    "cumsum_unbounded",
    "layer_norm",
    "layer_norm_few",
    "softmax_few_f16",
    "transpose",
    "scatter_add_floats",
)
INTERPRETED = (
    *(
        "linear_f16",
        "long_sum",
        "unbounded_sum",
        "convolution",
        "convolution_depthwise",
        "attention",
        "attention_causal_groups",
        "attention_one_row",
        "attention_long",
        "attention_long_mask",
    ),
    *("one_row_f32", "softmax_unbounded", "layer_norm", "argmax_long", "argmin_last", "cumsum", "cumsum_unbounded"),
    *("layer_norm_few", "softmax_few", "logsumexp_few", "reduce_max_few"),
    *("transpose", "gather", "scatter_add_floats", "scatter_last_wins"),
)


def best(problem: Problem, target: GpuTarget) -> tuple[Schedule, TileProgram]:
    match = next(matches(STRATEGIES, problem, target))
    schedule = min(match.strategy.space(match, target), key=lambda s: match.strategy.cost(match, s, target))
    return schedule, match.strategy.tile(match, schedule, target)


@pytest.mark.parametrize("name", INTERPRETED)
def test_interpreted_kernels_are_right(name: str, cases: dict[str, Any], answered: Callable[..., Any]) -> None:
    judged = answered(cases[name])
    schedule, program = best(judged.problem, gpu_target("sm_90a"))
    memory: dict[str, Any] = dict(judged.given)
    for launch, kernel in zip(program.launches, print_program(program, judged.problem.symbols), strict=True):
        for param in launch.params:
            shape = tuple(dims.evaluate(extent, SIZES) for extent in param.shape)
            memory.setdefault(param.name, np.zeros(shape, param.dtype.numpy))
        memory |= interpret(kernel, memory, SIZES)
    verdict = judged.verdict(memory)
    assert verdict.passed, f"{schedule}: {verdict.reason}"


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", [*ON_MATRIX_INSTRUCTIONS, *OTHERS])
def test_compiled_kernels_use_the_machine(name: str, target: str, cases: dict[str, Any]) -> None:
    machine, problem = gpu_target(target), cases[name].problem()
    schedule, program = best(problem, machine)
    kernels = compile_kernels(print_program(program, problem.symbols), machine, is_read=False)
    for kernel in kernels:
        used = kernel.resources
        assert (used.spill_stores, used.spill_loads) == (0, 0), schedule
        assert used.shared <= machine.shared_memory
    found = sum(kernel.resources.instructions.get(machine.matrix_instruction, 0) for kernel in kernels)
    assert (found > 0) == (name in ON_MATRIX_INSTRUCTIONS), schedule
    if found:
        assert why_no_matrix_instruction(problem, schedule, machine) is None
        assert "mma.sync" not in kernels[0].resources.instructions
