"""Scatters whose points may meet: the last one wins, in a search before or one after the other; which scatters are searched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ourcc.codegen.triton import print_launch
from ourcc.codegen.triton.interpret import interpret
from ourcc.ir import dims
from ourcc.ir.dims import Facts
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS
from ourcc.ir.region.interpret import run_region
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.types import DType, TensorType, bf16, f32, i32, i64
from ourcc.passes.regions.simplify_region import simplify_region
from ourcc.passes.tile.gpu.steps import Steps
from ourcc.passes.tile.schedule import Problem

SM_90A = gpu_target("sm_90a")
ROWS = dims.symbol("N")


def problem_of(op: str, types: list[TensorType], attrs: dict[str, Any], most: int) -> Problem:
    region = region_of(OPS[op], types, attrs)
    assert region is not None
    facts = Facts({"N": dims.Range(0, most)})
    return Problem(simplify_region(region, facts), facts, {})


def put(dtype: DType, index: DType, before: tuple[int, ...], places: int, after: tuple[int, ...], most: int) -> Problem:
    """Slices at N places along an axis between others."""
    types = [TensorType(dtype, (*before, places, *after)), TensorType(index, (ROWS,)), TensorType(dtype, (*before, ROWS, *after))]
    return problem_of("put", types, {"axis": len(before)}, most)


def arrays_of(problem: Problem, rows: int, low: int, high: int, seed: int) -> dict[str, np.ndarray]:
    random, found = np.random.default_rng(seed), {}
    for operand in problem.region.inputs:
        shape = tuple(dims.evaluate(d, {"N": rows}) for d in operand.type.shape)
        if operand.type.dtype.is_integer:
            found[operand.name] = random.integers(low, high, shape).astype(operand.type.dtype.numpy)
        else:
            found[operand.name] = random.standard_normal(shape).astype(operand.type.dtype.numpy)
    return found


def check(problem: Problem, arrays: dict[str, np.ndarray], rows: int, in_triton: bool = False) -> int:
    """That both interpreters give what the region says; how many launches there are."""
    strategy = Steps()
    match = strategy.match(problem, SM_90A)
    (wanted,) = run_region(problem.region, arrays, {"N": rows}).values()
    (output,) = (operand.name for operand in problem.region.outputs)
    schedules = list(strategy.space(match, SM_90A))
    for schedule in schedules[: 1 if in_triton else 2]:
        program = strategy.tile(match, schedule, SM_90A)
        np.testing.assert_array_equal(run(program, arrays, {"N": rows}, problem.symbols)[output], wanted)
    if in_triton:
        memory: dict[str, np.ndarray] = dict(arrays) | {output: np.zeros_like(wanted)}
        for space in program.workspaces:
            memory[space.name] = np.zeros([dims.evaluate(d, {"N": rows}) for d in space.shape], space.dtype.numpy)
        for number, launch in enumerate(program.launches):
            printed = print_launch(replace(launch, name=f"k{number}"), problem.symbols)
            names = {param.name for param in launch.params}
            memory |= interpret(printed, {name: memory[name] for name in names}, {"N": rows} if printed.sizes else {})
        np.testing.assert_array_equal(memory[output], wanted)
    return len(program.launches)


@pytest.mark.parametrize("seed", range(12))
def test_the_last_point_wins(seed: int) -> None:
    random = np.random.default_rng(seed)
    before = tuple(int(n) for n in random.integers(1, 5, random.integers(0, 3)))
    after = tuple(int(n) for n in random.integers(1, 200, random.integers(0, 2)))
    places, most = int(random.integers(1, 40)), int(random.choice([3, 40, 300]))
    dtype, index = (bf16, f32, i32)[seed % 3], (i64, i32)[seed % 2]
    problem = put(dtype, index, before, places, after, most)
    for rows in {0, 1, 2, int(random.integers(0, most + 1)), most}:
        # Some places lie outside, from both ends: they are written nowhere.
        for low, high in ((0, places), (-places - 3, places + 3), (places - 1, places)):
            launches = check(problem, arrays_of(problem, rows, low, high, seed), rows)
            assert launches == (2 if most <= 4 else 3)


@pytest.mark.parametrize("seed", range(3))
def test_printed_kernels_agree(seed: int) -> None:
    problem = put((f32, bf16, i32)[seed], i64, (3,), 17, (24,), 50)
    for rows in (1, 37):
        assert check(problem, arrays_of(problem, rows, -20, 20, seed), rows, in_triton=True) == 3


def test_places_of_several_numbers_are_searched_together() -> None:
    types = [TensorType(f32, (5, 6, 7)), TensorType(i64, (ROWS, 2)), TensorType(f32, (ROWS, 7))]
    problem = problem_of("scatter_nd", types, {}, 90)
    for rows, high in ((0, 5), (1, 5), (90, 5), (90, 2), (64, 7)):
        assert check(problem, arrays_of(problem, rows, -3, high, rows), rows) == 3


def test_columns_with_places_of_their_own_and_sums_are_walked() -> None:
    types = [TensorType(f32, (9, 20)), TensorType(i64, (30, 20)), TensorType(f32, (30, 20))]
    for op, attrs in (("scatter_along_axis", {"axis": 0}), ("put", {"axis": 0, "combine": "add"})):
        shapes = types if op != "put" else [types[0], TensorType(i64, (30,)), types[2]]
        problem = problem_of(op, shapes, attrs, 1)
        assert check(problem, arrays_of(problem, 1, -9, 9, 0), 1) == 2


def test_a_search_is_priced_below_a_walk() -> None:
    """A prompt's keys take little beside a launch, and many of them less than one after the other."""
    costs = []
    for rows in (1, 128, 4096):
        types = [TensorType(f32, (8, 8192, 128)), TensorType(i64, (rows,)), TensorType(f32, (8, rows, 128))]
        problem = problem_of("put", types, {"axis": 1}, 1)
        match = Steps().match(problem, SM_90A)
        costs.append(Steps().cost(match, next(Steps().space(match, SM_90A)), SM_90A))
    assert costs[0] < costs[1] < costs[2] < costs[0] + 60e-6
