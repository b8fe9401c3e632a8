"""Coded factors: multiplied as narrow floats, decoded for each tile or once, right in both interpreters, without spills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ourcc.codegen.triton import print_program
from ourcc.codegen.triton.compile import compile_kernels
from ourcc.codegen.triton.interpret import interpret
from ourcc.ir import dims
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.program import TileProgram
from ourcc.ir.tile.verify import verify
from ourcc.ir.types import bf16, f16
from ourcc.passes.tile.gpu.decoded import LARGEST, decodable
from ourcc.passes.tile.gpu.split_k import SplitK
from ourcc.passes.tile.gpu.tensor import Tensor
from ourcc.passes.tile.schedule import Match, Schedule

SM_90A = gpu_target("sm_90a")
WORDS = ("int8-weight", "int4-weight", "int4-weight-g128", "int3-weight", "fp8-weight", "fp8-block-weight", "mxfp4-weight", "nvfp4-weight")


def whole(problem: Any) -> Match[Any]:
    match = Tensor().match(problem, SM_90A)
    assert isinstance(match, Match)
    return match


def chosen(match: Match[Any], decoded: int) -> Schedule:
    """The schedule that is predicted to take least, decoded by itself or not."""
    schedules = [schedule for schedule in match.strategy.space(match, SM_90A) if schedule["decoded"] == decoded]
    return min(schedules, key=lambda schedule: match.strategy.cost(match, schedule, SM_90A))


def by_triton(program: TileProgram, given: dict[str, Any]) -> dict[str, Any]:
    """What the launches give in Triton's interpreter, one after the other."""
    memory = dict(given)
    for launch, kernel in zip(program.launches, print_program(program), strict=True):
        for param in launch.params:
            memory.setdefault(param.name, np.zeros([int(size) for size in param.shape], param.dtype.numpy))
        memory |= interpret(kernel, {param.name: memory[param.name] for param in launch.params}, {}, 200.0)
    return memory


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("decoded", [0, 1])
def test_a_coded_product_is_right(words: str, decoded: int, coded: Callable[..., Any]) -> None:
    case = coded(words, 24, 48, 256)
    match = whole(case.problem)
    program = match.strategy.tile(match, chosen(match, decoded), SM_90A)
    assert len(program.launches) == 1 + decoded
    verify(program, case.problem.symbols)
    verdict = case.verdict(run(program, case.given, {}, case.problem.symbols))
    assert verdict.passed, verdict.reason
    verdict = case.verdict(by_triton(program, case.given))
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("decoded", [0, 1, 2, 3])
def test_two_coded_factors_are_decoded_together_or_apart(decoded: int, coded: Callable[..., Any]) -> None:
    """Codes of 4 bits with scales of 8 for each 16, on both sides: other scales leave the sum, f16 holds the rest."""
    case = coded("nvfp4", 24, 48, 256)
    match = whole(case.problem)
    assert (match.found.operands.dtype, match.found.operands.products) == (f16, 1)
    assert decodable(match.problem, match.found) == (1, 2, 3)
    program = match.strategy.tile(match, chosen(match, decoded), SM_90A)
    assert len(program.launches) == 1 + decoded.bit_count()
    verify(program, case.problem.symbols)
    for got in (run(program, case.given, {}, case.problem.symbols), by_triton(program, case.given)):
        verdict = case.verdict(got)
        assert verdict.passed, verdict.reason


@pytest.mark.parametrize("words", ["int8-weight", "int4-weight", "fp8-weight"])
def test_a_long_sum_of_codes_in_parts_is_right(words: str, coded: Callable[..., Any]) -> None:
    case = coded(words, 16, 48, 512)
    match = Match(SplitK(), case.problem, whole(case.problem).found)
    program = match.strategy.tile(match, next(match.strategy.space(match, SM_90A)), SM_90A)
    verify(program, case.problem.symbols)
    verdict = case.verdict(run(program, case.given, {}, case.problem.symbols))
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("words", WORDS)
def test_the_factors_are_narrow(words: str, coded: Callable[..., Any]) -> None:
    operands = whole(coded(words, 24, 48, 256).problem).found.operands
    assert (operands.dtype, operands.products) == (bf16, 1)


@pytest.mark.parametrize("words", ["int8-weight", "int4-weight"])
def test_many_rows_are_worth_a_launch_that_decodes_and_few_are_not(words: str, coded: Callable[..., Any]) -> None:
    costs = {}
    for rows in (64, 4096):
        match = whole(coded(words, rows, 16384, 512).problem)
        costs[rows] = [match.strategy.cost(match, chosen(match, decoded), SM_90A) for decoded in (0, 1)]
    assert costs[64][0] < costs[64][1] and costs[4096][0] > costs[4096][1]


def test_results_do_not_depend_on_where_a_factor_is_decoded(coded: Callable[..., Any]) -> None:
    case = coded("int4-weight", 24, 48, 256)
    match = whole(case.problem)
    plain, apart = (chosen(match, decoded) for decoded in (0, 1))
    apart = Schedule("tensor", (*plain.parameters[:-1], ("decoded", 1)))
    assert match.strategy.order(match, plain, SM_90A)[:-1] == match.strategy.order(match, apart, SM_90A)[:-1]
    first, second = (run(match.strategy.tile(match, s, SM_90A), case.given, {}, case.problem.symbols) for s in (plain, apart))
    assert all(np.array_equal(first[name], second[name]) for name in first if name.startswith("y"))


@pytest.mark.parametrize(("low", "kinds"), [(1, {0}), (63, {0}), (64, {0, 1})])
def test_calls_that_may_have_few_rows_decode_in_their_tiles(low: int, kinds: set[int], coded: Callable[..., Any]) -> None:
    """A decoded weight of one token would be written and read whole; classes of sizes share launches."""
    problem = coded("int4-weight", 24, 48, 256).problem
    row = next(axis for axis in problem.region.axes if axis.extent == 24)
    region = replace(
        problem.region,
        axes=tuple(replace(axis, extent=dims.symbol("M")) if axis is row else axis for axis in problem.region.axes),
        inputs=tuple(map(_with_rows, problem.region.inputs)),
        outputs=tuple(map(_with_rows, problem.region.outputs)),
    )
    match = whole(replace(problem, region=region, symbols=dims.NO_FACTS.with_range("M", low, 4096)))
    assert {schedule["decoded"] for schedule in match.strategy.space(match, SM_90A)} == kinds


def _with_rows(operand: Any) -> Any:
    shape = tuple(dims.symbol("M") if size == 24 else size for size in operand.type.shape)
    return replace(operand, type=operand.type.with_shape(shape))


def test_a_factor_that_is_loaded_is_not_decoded(cases: dict[str, Any]) -> None:
    match = whole(cases["linear_bf16"].problem())
    assert decodable(match.problem, match.found) == ()
    assert {schedule["decoded"] for schedule in match.strategy.space(match, SM_90A)} == {0}


def test_a_workspace_has_a_largest_size(coded: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    problem = coded("int4-weight", 24, 48, 256).problem
    match = whole(problem)
    assert LARGEST > 48 * 256 and decodable(problem, match.found) == (1,)
    monkeypatch.setattr("ourcc.passes.tile.gpu.decoded.LARGEST", 48 * 256 - 1)
    assert decodable(problem, match.found) == ()


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("words", ["int8-weight", "int4-weight", "fp8-block-weight", "mxfp4-weight"])
def test_no_kernel_spills(words: str, target: str, coded: Callable[..., Any]) -> None:
    machine = gpu_target(target)
    match = whole(coded(words, 512, 1024, 1024).problem)
    kernels = [kernel for d in (0, 1) for kernel in print_program(match.strategy.tile(match, chosen(match, d), machine))]
    for kernel, compiled in zip(kernels, compile_kernels(kernels, machine, is_read=False), strict=True):
        assert compiled.resources.spill_stores == compiled.resources.spill_loads == 0
        assert (compiled.resources.instructions.get(machine.matrix_instruction, 0) > 0) is ("tl.dot" in kernel.source)
