"""Heads that share keys as rows of one tile: right for drawn groups, sizes and masks, and taken where heads have few rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ourcc.codegen.triton import print_program
from ourcc.codegen.triton.interpret import interpret
from ourcc.ir import dims
from ourcc.ir.dims import Dim
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.verify import verify
from ourcc.ir.types import DType, bf16, boolean, f16, f32
from ourcc.ir.workload import Point
from ourcc.passes.tile.gpu.attention import GpuAttention
from ourcc.passes.tile.gpu.heads import FEW, Heads, heads_of, read_heads
from ourcc.passes.tile.gpu.split_attention import SplitAttention
from ourcc.passes.tile.schedule import Match, Problem, Schedule

from .conftest import SIZES, Case, heads

TARGETS = gpu_target("sm_90a"), gpu_target("sm_100a")


def shared(rows: Dim | str, groups: int, members: int, dtype: DType = f16, columns: Dim | str = 50, **attrs: Any) -> Case:
    """Queries of `members` heads for each of `groups` of keys and values."""
    keys = (1, groups, columns, 16)
    return heads(dtype, (1, groups * members, rows, 16), keys, keys, **attrs)


def read(case: Case) -> Heads:
    found = read_heads(case.problem())
    assert isinstance(found, Heads)
    return found


def matched(problem: Problem) -> Match[Heads]:
    match = GpuAttention().match(problem, TARGETS[0])
    assert isinstance(match, Match), match
    return match


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (shared(3, 2, 4), [1, 4]),
        (shared("S", 2, 4, causal=True), [1, 4]),
        (shared(5, 1, 7, causal=True), [1, 7]),
        (shared(5, 1, 7), [1]),
        (shared(5, 2, 6), [1, 6]),
        (shared(FEW - 1, 2, 2), [1, 2]),
        (shared(FEW, 2, 2), [1]),
        (shared(3, 4, 1), [1]),
        (shared(1, 2, 4), [1]),
    ],
)
def test_heads_of_few_rows_that_share_keys_may_fill_a_tile(case: Case, expected: list[int]) -> None:
    problem = replace(case.problem(), points=(Point((("S", 2),)),)) if "S" in str(case.operands) else case.problem()
    found = read_heads(problem)
    assert isinstance(found, Heads)
    assert [each.heads for each in found.readings] == expected
    if expected[-1] > 1:
        packed = found.readings[-1]
        assert packed.attention.row is not None
        rows = packed.region.axis(packed.attention.row).extent
        assert rows == case.operands[0][1][2] * expected[-1] if isinstance(case.operands[0][1][2], int) else expected[-1] * dims.symbol("S")


def test_one_row_of_each_head_is_read_as_rows_of_heads() -> None:
    found = read(shared(1, 2, 4))
    assert found.attention.row is not None and found.readings[0].region.axis(found.attention.row).extent == 4


@pytest.mark.parametrize("seed", range(24))
def test_drawn_groups_sizes_and_masks_are_right(seed: int, answered: Callable[..., Any]) -> None:
    draw = random.Random(seed)
    causal = draw.random() < 0.5
    # All heads over the same keys are rows of one axis by themselves, where nothing asks for the place of a row.
    groups, members = draw.choice((1, 2, 3) if causal else (2, 3)), draw.choice((2, 3, 4, 7))
    rows: Dim | str = draw.choice(("S", 2, 3, 9, 20))
    columns: Dim | str = rows if draw.random() < 0.3 else draw.choice((33, 64, 90))
    attrs: dict[str, Any] = {"causal": causal}
    shape: list[tuple[Dim | str, ...]] = [
        (1, groups * members, rows, 16),
        (1, groups, columns, 16),
        (1, groups, columns, draw.choice((16, 24))),
    ]
    if draw.random() < 0.5:
        attrs["mask"] = draw.choice((boolean, f32))
        attrs["safe"] = attrs["mask"] == boolean
        shape.append((1, draw.choice((1, groups * members)), draw.choice((1, rows)), columns))
    judged = answered(heads(draw.choice((f16, bf16, f32)), *shape, **attrs))
    problem = replace(judged.problem, points=(Point((("S", 2),)),)) if judged.problem.symbols.ranges else judged.problem
    match = matched(problem)
    schedules = [each for each in GpuAttention().space(match, TARGETS[0]) if heads_of(each) > 1]
    assert schedules
    own = draw.choice(schedules)
    for strategy, schedule in (
        (GpuAttention(), own),
        (SplitAttention(), Schedule("split_attention", (("splits", draw.choice((2, 3))), *own.parameters))),
    ):
        program = strategy.tile(replace(match, strategy=strategy), schedule, TARGETS[0])
        verify(program, problem.symbols)
        with np.errstate(all="ignore"):
            verdict = judged.verdict(run(program, judged.given, SIZES, problem.symbols))
        assert verdict.passed, f"{schedule}: {verdict.reason}"


@pytest.mark.parametrize(("rows", "causal"), [("S", True), (3, False)])
def test_printed_kernels_are_right(rows: Dim | str, causal: bool, answered: Callable[..., Any]) -> None:
    judged = answered(shared(rows, 2, 3, bf16, rows if causal else 70, causal=causal))
    problem = replace(judged.problem, points=(Point((("S", 2),)),)) if judged.problem.symbols.ranges else judged.problem
    match = matched(problem)
    schedule = next(each for each in GpuAttention().space(match, TARGETS[0]) if heads_of(each) > 1)
    (kernel,) = print_program(GpuAttention().tile(match, schedule, TARGETS[0]), problem.symbols)
    empty = {o.name: np.zeros([dims.evaluate(d, SIZES) for d in o.type.shape], o.type.dtype.numpy) for o in problem.region.outputs}
    verdict = judged.verdict(interpret(kernel, judged.given | empty, SIZES if problem.symbols.ranges else {}))
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_token_of_a_language_model_takes_all_heads_of_a_group_together(target: Any) -> None:
    """Eight groups of four heads, 4,096 columns: each key is read by one program, not by four."""
    case = heads(bf16, (1, 32, "S", 128), (1, 8, 4096, 128), (1, 8, 4096, 128))
    problem = replace(case.problem(), points=(Point((("S", 1),)),))
    match = SplitAttention().match(problem, target)
    assert isinstance(match, Match), match
    best = min(match.strategy.space(match, target), key=lambda each: match.strategy.cost(match, each, target))
    assert heads_of(best) == 4


def test_orders_of_sums_differ_by_heads_only_where_limits_leave_columns_out() -> None:
    for causal in (False, True):
        problem = replace(shared("S", 2, 4, columns="S", causal=causal).problem(), points=(Point((("S", 2),)),))
        match = matched(problem)
        orders: dict[int, set[Any]] = {}
        for each in GpuAttention().space(match, TARGETS[0]):
            orders.setdefault(heads_of(each), set()).add(GpuAttention().order(match, each, TARGETS[0]))
        assert (orders[1] == orders[4]) is not causal
