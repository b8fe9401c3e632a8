"""Rows in groups on CPUs: drawn ends in every schedule, chosen where there are several rows, and what is not taken."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from ourcc.compiler.backends.cpu import lower_cpu
from ourcc.ir.graph import Module
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.target import AVX2, AVX512, AVX512_AMX, AVX512_BF16, CpuLevel
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.program import Local, statements
from ourcc.ir.tile.verify import verify
from ourcc.passes.fusion.partition import Fusion
from ourcc.passes.lower.schedule import cheapest, problem_of
from ourcc.passes.regions.compose import Group
from ourcc.passes.tile.cpu.grouped import CpuGrouped, GroupedProduct
from ourcc.passes.tile.schedule import Match, Problem, Refusal

from ....groups import drawn_ends, drawn_factors, poison, verdict_of

MODULE = """module @m symbols {{ T in 0..4096 }} {{
  func @main(%a: {dtype}[{rows}, {depth}], %b: {dtype}[{groups}, {depth}, {columns}], %e: i32[{groups}]) -> {dtype}[{rows}, {columns}] {{
    %y = grouped_matmul(%a, %b, %e) : {dtype}[{rows}, {columns}]
    return %y
  }}
}}
"""


def module_of(dtype: str, rows: int | str, depth: int, columns: int, groups: int) -> Module:
    return parse_module(MODULE.format(dtype=dtype, rows=rows, depth=depth, columns=columns, groups=groups))


@functools.cache
def posed(dtype: str, rows: int | str, depth: int, columns: int, groups: int) -> Problem:
    module = module_of(dtype, rows, depth, columns, groups)
    (group,) = Fusion(module, module.main).units(lambda unit: unit)
    assert isinstance(group, Group)
    return problem_of(group, module.facts, lambda *_: {})[0]


def matched(problem: Problem, level: CpuLevel) -> Match[GroupedProduct]:
    found = CpuGrouped().match(problem, level)
    assert isinstance(found, Match), found
    return found


@pytest.mark.parametrize("level", [AVX2, AVX512, AVX512_BF16], ids=lambda level: level.name)
@pytest.mark.parametrize("seed", range(6))
def test_drawn_groups_are_right_in_every_schedule(seed: int, level: CpuLevel) -> None:
    random = np.random.default_rng(seed)
    dtype, groups = random.choice(["bf16", "f16", "f32"]), int(random.choice([2, 3, 7, 16]))
    rows, depth, columns = (int(random.choice(sizes)) for sizes in ([0, 1, 5, 70, 150], [8, 33, 72, 128], [8, 40, 130]))
    problem = posed(dtype, "T", depth, columns, groups)
    match = matched(problem, level)
    for schedule in match.strategy.space(match, level):
        program = match.strategy.tile(match, schedule, level)
        verify(program, problem.symbols)
        assert match.strategy.cost(match, schedule, level) > 0
        a, b = drawn_factors(random, problem.region.outputs[0].type.dtype.numpy, rows, depth, columns, groups)
        ends = drawn_ends(random, rows, groups)
        poison(random, a, b, ends)
        by_rank: dict[int, Any] = {2: a, 3: b, 1: ends}
        given = {operand.name: by_rank[operand.type.rank] for operand in problem.region.inputs}
        with np.errstate(all="ignore"):
            got = run(program, given, dict.fromkeys(problem.symbols.ranges, rows), problem.symbols)["y0"]
        verdict = verdict_of(got, a, b, ends)
        assert verdict.passed, f"{schedule} {ends}: {verdict.reason}"


@pytest.mark.parametrize("level", [AVX2, AVX512, AVX512_AMX], ids=lambda level: level.name)
@pytest.mark.parametrize("rows", ["T", 64, 2000])
def test_it_is_chosen(rows: int | str, level: CpuLevel) -> None:
    units = lower_cpu(module_of("bf16", rows, 512, 256, 8), level, cheapest(level)).scheduled.values()
    assert {unit.schedule.strategy for unit in units} == {"grouped"}


@pytest.mark.parametrize(("rows", "is_copied"), [(16, False), (4000, True)])
def test_a_factor_is_copied_for_several_rows(rows: int, is_copied: bool) -> None:
    """Instructions want neighbours along the sum side by side; to put them so takes as long as a few rows of products."""
    problem = posed("bf16", rows, 128, 128, 16)
    match = matched(problem, AVX512_BF16)
    for schedule in match.strategy.space(match, AVX512_BF16):
        (launch,) = match.strategy.tile(match, schedule, AVX512_BF16).launches
        panels = [s for s in statements(launch.body) if isinstance(s, Local) and s.name.startswith("panel")]
        assert bool(panels) is is_copied


@pytest.mark.parametrize(
    ("dtype", "columns", "groups", "why"),
    [
        ("f32", 16, 1, "nothing is gathered"),
        ("f64", 16, 2, "it accumulates in f64"),
        ("f32", 3, 2, "the lane axis has 3 elements"),
        ("f32", 16, 300, "there are 300 groups, expected at most 256"),
    ],
)
def test_what_is_not_taken_says_why(dtype: str, columns: int, groups: int, why: str) -> None:
    found = CpuGrouped().match(posed(dtype, 30, 16, columns, groups), AVX512)
    assert isinstance(found, Refusal) and why in found.why
