"""Rows in groups on the matrix instruction: drawn ends in every schedule, both interpreters, compiled for both targets."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from ourcc.codegen.triton import print_program
from ourcc.codegen.triton.compile import compile_kernels
from ourcc.codegen.triton.interpret import interpret
from ourcc.ir import dims
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.region.cost import cost_of
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.program import TileProgram
from ourcc.ir.tile.verify import verify
from ourcc.passes.fusion.partition import Fusion
from ourcc.passes.lower.schedule import problem_of
from ourcc.passes.regions.compose import Group
from ourcc.passes.tile.gpu import STRATEGIES, why_no_matrix_instruction
from ourcc.passes.tile.gpu.grouped import Grouped, GroupedProduct
from ourcc.passes.tile.gpu.rates import operations_rate
from ourcc.passes.tile.schedule import Match, Problem, Refusal, Schedule, matches

from ....groups import Array, drawn_ends, drawn_factors, looped, poison, verdict_of

SM_90A = gpu_target("sm_90a")
MODULE = """module @m symbols {{ T in 0..4096 }} {{
  func @main(%a: {dtype}[{rows}, {depth}], %b: {dtype}[{groups}, {depth}, {columns}], %e: i32[{groups}]) -> {dtype}[{rows}, {columns}] {{
    %y = grouped_matmul(%a, %b, %e) : {dtype}[{rows}, {columns}]
    {rest}
  }}
}}
"""


@functools.cache
def posed(dtype: str, rows: int | str, depth: int, columns: int, groups: int, rest: str = "return %y") -> Problem:
    module = parse_module(MODULE.format(dtype=dtype, rows=rows, depth=depth, columns=columns, groups=groups, rest=rest))
    (group,) = Fusion(module, module.main).units(lambda unit: unit)
    assert isinstance(group, Group)
    return problem_of(group, module.facts, lambda *_: {})[0]


def matched(problem: Problem, target: Any = SM_90A) -> Match[GroupedProduct]:
    found = Grouped().match(problem, target)
    assert isinstance(found, Match), found
    return found


def operands(problem: Problem, a: Array, b: Array, ends: Array) -> dict[str, Array]:
    by_rank = {2: a, 3: b, 1: ends}
    return {operand.name: by_rank[operand.type.rank] for operand in problem.region.inputs}


def sizes_of(problem: Problem, a: Array) -> dict[str, int]:
    return {name: len(a) for name in problem.symbols.ranges}


def triton(problem: Problem, program: TileProgram, given: Mapping[str, Array], sizes: Mapping[str, int]) -> Array:
    """What Triton's interpreter makes of the one kernel, whose result held another number before."""
    (launch,), (kernel,) = program.launches, print_program(program, problem.symbols)
    memory = dict(given)
    for param in launch.params:
        shape = [dims.evaluate(size, sizes) for size in param.shape]
        memory.setdefault(param.name, np.full(shape, 7, param.dtype.numpy))
    return interpret(kernel, {param.name: memory[param.name] for param in launch.params}, dict(sizes), 200.0)["y0"]


def spread(match: Match[GroupedProduct], count: int) -> list[Schedule]:
    found = list(match.strategy.space(match, SM_90A))
    return found[:: max(1, len(found) // count)]


@pytest.mark.parametrize("seed", range(12))
def test_drawn_groups_are_right_in_every_schedule(seed: int) -> None:
    random = np.random.default_rng(seed)
    dtype, groups = random.choice(["bf16", "f16", "f32"]), int(random.choice([2, 3, 7, 16]))
    rows, depth, columns = (int(random.choice(sizes)) for sizes in ([0, 1, 5, 70, 150], [8, 33, 72, 128], [8, 40, 130]))
    problem = posed(dtype, "T", depth, columns, groups)
    match = matched(problem)
    for schedule in spread(match, 6):
        program = match.strategy.tile(match, schedule, SM_90A)
        verify(program, problem.symbols)
        drawn = np.random.default_rng(seed)
        a, b = drawn_factors(drawn, problem.region.outputs[0].type.dtype.numpy, rows, depth, columns, groups)
        ends = drawn_ends(drawn, rows, groups)
        poison(drawn, a, b, ends)
        with np.errstate(all="ignore"):
            got = run(program, operands(problem, a, b, ends), sizes_of(problem, a), problem.symbols)["y0"]
        verdict = verdict_of(got, a, b, ends)
        assert verdict.passed, f"{schedule} {ends}: {verdict.reason}"


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("rows", [5, 90])
def test_triton_agrees(dtype: str, rows: int) -> None:
    problem, random = posed(dtype, "T", 72, 40, 5), np.random.default_rng(rows)
    match = matched(problem)
    for schedule in (min(match.strategy.space(match, SM_90A), key=lambda s: match.strategy.cost(match, s, SM_90A)), *spread(match, 2)):
        program = match.strategy.tile(match, schedule, SM_90A)
        a, b = drawn_factors(random, problem.region.outputs[0].type.dtype.numpy, rows, 72, 40, 5)
        ends = drawn_ends(random, rows, 5)
        poison(random, a, b, ends)
        got = triton(problem, program, operands(problem, a, b, ends), sizes_of(problem, a))
        verdict = verdict_of(got, a, b, ends)
        assert verdict.passed, f"{schedule} {ends}: {verdict.reason}"


def test_ends_that_fall_or_lie_outside_touch_nothing_else() -> None:
    """What such rows are is not said; the interpreter would see an access outside of an operand."""
    problem, random = posed("f32", "T", 16, 16, 4), np.random.default_rng(0)
    match = matched(problem)
    a, b = drawn_factors(random, np.float32, 70, 16, 16, 4)
    for ends in ([50, 20, 80, 70], [-5, 300, 2, 1 << 30], [70, 0, 0, 0], [-1, -1, -1, -1]):
        for schedule in spread(match, 3):
            program = match.strategy.tile(match, schedule, SM_90A)
            run(program, operands(problem, a, b, np.array(ends, np.int32)), sizes_of(problem, a), problem.symbols)


def test_what_follows_is_computed_beside() -> None:
    rest = "%z = relu(%y) : f32[T, 40]\n    return %z"
    problem, random = posed("f32", "T", 24, 40, 3, rest), np.random.default_rng(3)
    match = matched(problem)
    a, b = drawn_factors(random, np.float32, 70, 24, 40, 3)
    ends = np.array([10, 10, 60], np.int32)
    program = match.strategy.tile(match, next(match.strategy.space(match, SM_90A)), SM_90A)
    got = run(program, operands(problem, a, b, ends), sizes_of(problem, a), problem.symbols)["y0"]
    expected = np.maximum(looped(a, b, ends, np.float64), 0)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert not got[60:].any()


def test_tiles_are_as_many_as_rows_fill_and_one_for_each_group() -> None:
    problem = posed("bf16", 1000, 64, 64, 8)
    match = matched(problem)
    for schedule in match.strategy.space(match, SM_90A):
        (launch,) = match.strategy.tile(match, schedule, SM_90A).launches
        rows = schedule["n"] if schedule["swap"] else schedule["m"]
        assert launch.grid[0].high == 1000 // rows + 8


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(("dtype", "rows"), [("bf16", 4096), ("bf16", "T"), ("f16", 64), ("f32", 512)])
def test_kernels_use_the_instruction_and_spill_nothing(dtype: str, rows: int | str, target: str) -> None:
    machine, problem = gpu_target(target), posed(dtype, rows, 1024, 768, 16)
    match = next(matches(STRATEGIES, problem, machine))
    assert match.strategy.name == "grouped"
    schedule = min(match.strategy.space(match, machine), key=lambda s: match.strategy.cost(match, s, machine))
    (kernel,) = compile_kernels(print_program(match.strategy.tile(match, schedule, machine), problem.symbols), machine, is_read=False)
    assert kernel.resources.spilled == 0
    assert kernel.resources.instructions.get(machine.matrix_instruction, 0) > 0, kernel.resources.instructions
    assert kernel.resources.instructions.get("cp.async 16", 0) > 0, "what a step reads is copied ahead"
    assert why_no_matrix_instruction(problem, schedule, machine) is None
    assert operations_rate(problem, schedule, machine) == pytest.approx(
        machine.rates["tf32"] / 3 if dtype == "f32" else machine.rates[dtype]
    )


def test_few_rows_read_the_factors_of_their_groups_alone() -> None:
    """The bytes at least are those of as many matrices as there are rows, or of all."""
    few, many = (cost_of(posed("bf16", rows, 256, 128, 16).region, {}).bytes for rows in (4, 64))
    matrix = 256 * 128 * 2
    assert 4 * matrix < few < 5 * matrix and 16 * matrix < many < 18 * matrix


@pytest.mark.parametrize(
    ("dtype", "rows", "depth", "columns", "groups", "why"),
    [
        ("f32", 30, 16, 16, 1, "nothing is gathered"),
        ("i64", 30, 16, 16, 2, "matrix instructions do not sum"),
        ("f32", 30, 4, 16, 2, "there are at most 4 contracted elements"),
        ("f32", 30, 16, 1, 2, "not all rows of one product"),
        ("f32", 30, 16, 16, 5000, "there are 5000 groups, expected at most 4096"),
    ],
)
def test_what_is_not_taken_says_why(dtype: str, rows: int, depth: int, columns: int, groups: int, why: str) -> None:
    found = Grouped().match(posed(dtype, rows, depth, columns, groups), SM_90A)
    assert isinstance(found, Refusal) and why in found.why
