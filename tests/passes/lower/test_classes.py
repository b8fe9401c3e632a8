"""Size classes: which sizes have a schedule of their own, what they cost, and that no result depends on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ourcc.compiler.pipeline import lower
from ourcc.compiler.targets.registry import TARGETS
from ourcc.ir import dims
from ourcc.ir.dims import Facts
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.plan import Launch
from ourcc.ir.plan.interpret import run_plan
from ourcc.ir.plan.parse import parse_plan
from ourcc.ir.plan.text import print_plan
from ourcc.ir.region.text import parse_region
from ourcc.ir.target import CPU_LEVELS, gpu_target
from ourcc.ir.workload import Point, Workload
from ourcc.passes.lower.classes import ENDS, MIDDLES, SizeClass, classes_of, offers
from ourcc.passes.lower.lower import fuse
from ourcc.passes.lower.lower import lower as lowered
from ourcc.passes.lower.schedule import Scheduler, cheapest
from ourcc.passes.tile.cpu import STRATEGIES as CPU
from ourcc.passes.tile.gpu import STRATEGIES as GPU
from ourcc.passes.tile.schedule import Candidate, Problem, matches, seconds

PRODUCT = """region @r(%x0: f32[i N0, k 192], %x1: f32[k 192, j 96]) -> %y0: f32[i N0, j 96] {
  axes i: N0, j: 96, k: 192
  %t0 = sum k: mul(%x0[i, k], %x1[k, j]) : f32[i, j]
  %y0[i, j] = %t0
}
"""


def problem(text: str = PRODUCT, low: int = 1, high: int | None = 8192, divisor: int = 1, *points: Point) -> Problem:
    return Problem(parse_region(text), Facts().with_range("N0", low, high, divisor), {}, frozenset(), points)


def chosen(found: Problem, target: Any, strategies: Any) -> Candidate:
    match = next(matches(strategies, found, target))
    return cheapest(target)(found, iter([[(match, schedule) for schedule in match.strategy.space(match, target)]]))


def nothing(_: Problem) -> dict[Any, str]:
    return {}


# --- classes ----------------------------------------------------------------------------------------------------------


def test_classes_cover_a_range_without_gaps() -> None:
    found = classes_of(problem(low=0, high=None), "N0")
    assert [each.high for each in found] == [*ENDS, None]
    assert [each.low for each in found] == [0, *(end + 1 for end in ENDS)]
    assert [each.of(problem(low=0, high=None)).sizes["N0"] for each in found] == list(MIDDLES)


@pytest.mark.parametrize(
    ("low", "high", "divisor", "ends"),
    [(1, 16, 1, []), (1, 17, 1, [16, 64]), (20, 40, 1, []), (1, 300, 64, [64, 256]), (17, 64, 1, []), (300, None, 512, [1024, None])],
)
def test_classes_hold_sizes_that_calls_may_have(low: int, high: int | None, divisor: int, ends: list[int | None]) -> None:
    found = problem(PRODUCT, low, high, divisor)
    assert [each.high for each in classes_of(found, "N0")] == ends
    for each in classes_of(found, "N0"):
        narrow = each.of(found)
        known = narrow.symbols.ranges["N0"]
        assert known.low is not None and known.low >= low and (high is None or (known.high is not None and known.high <= high))
        assert each.holds(narrow.sizes) and narrow.sizes["N0"] % divisor == 0


def test_a_class_is_reckoned_with_at_its_points() -> None:
    points = (Point((("N0", 3),)), Point((("N0", 12),), 2.0), Point((("N0", 900),)))
    small, *_, large = (each.of(problem(PRODUCT, 1, 2048, 1, *points)) for each in classes_of(problem(PRODUCT, 1, 2048), "N0"))
    assert small.points == points[:2] and small.sizes == {"N0": 12}
    assert large.points == (Point((("N0", 2048),)),)


def test_a_guard_asks_what_is_not_known() -> None:
    s = dims.symbol("S")
    middle = SizeClass("N0", 17, 64, 32)
    assert [str(d) for d in middle.guard(2 * s, Facts().with_range("S", 1, None)).positive] == ["2*S - 17", "-2*S + 64"]
    assert [str(d) for d in middle.guard(s, Facts().with_range("S", 20, None)).positive] == ["-S + 64"]
    assert middle.guard(s, Facts().with_range("S", 20, 30)).positive == ()


# --- choices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", CPU_LEVELS, ids=lambda level: level.name)
def test_few_rows_have_blocks_of_their_own_on_a_cpu(level: Any) -> None:
    found = problem()
    usual = chosen(found, level, CPU)
    (offer,) = offers(usual, level, nothing)
    assert offer.size_class.high == 16
    match, schedule = cheapest(level)(offer.problem, iter([offer.candidates]))
    narrow = match.with_points(offer.problem.points)
    assert seconds(narrow, schedule, level) < 0.9 * seconds(usual[0].with_points(offer.problem.points), usual[1], level)
    assert match.strategy.order(match, schedule, level) == match.strategy.order(usual[0], usual[1], level)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_a_gpu_takes_small_tiles_for_few_rows_and_large_ones_for_many(target: str) -> None:
    device = gpu_target(target)
    found = problem(WIDE)
    usual = chosen(found, device, GPU)
    tiles = {}
    for offer in offers(usual, device, nothing):
        _, schedule = cheapest(device)(offer.problem, iter([offer.candidates]))
        tiles[offer.size_class.high] = schedule["m"] * schedule["n"]
    assert list(tiles.values()) == sorted(tiles.values())
    assert usual[1]["m"] * usual[1]["n"] <= 64 * 64 and tiles[None] >= 128 * 128


WIDE = """region @r(%x0: bf16[i N0, k 2048], %x1: bf16[k 2048, j 4096]) -> %y0: bf16[i N0, j 4096] {
  axes i: N0, j: 4096, k: 2048
  %t0 = sum k: mul(cast(%x0[i, k], f32), cast(%x1[k, j], f32)) : f32[i, j]
  %y0[i, j] = round(%t0, bf16)
}
"""


# --- plans ------------------------------------------------------------------------------------------------------------

LAYER = """
module @m symbols { S in 1..2000 } {
  func @main(%x: f32[S, 64], %w: f32[64, 4096]) -> f32[S, 4096] {
    %p = matmul(%x, %w) : f32[S, 4096]
    %y = tanh(%p) : f32[S, 4096]
    return %y
  }
}
"""


SCORES = """
module @m symbols { S in 1..2000 } {
  func @main(%x: f32[8, S, 64], %k: f32[2, 512, 64]) -> f32[8, S, 64] {
    %p = attention(%x, %k, %k, _) {scale = 0.125, causal = false, safe = false} : f32[8, S, 64]
    %y = tanh(%p) : f32[8, S, 64]
    return %y
  }
}
"""
"""A row of four heads over the same keys goes in one block, many rows head by head."""


def one_and_many(*names: str) -> Workload:
    """Calls of one row, and as many of 512 rows: a block for several rows leaves units idle at one."""
    return Workload(tuple(Point(tuple((name, size) for name in names)) for size in (1, 512)))


@pytest.mark.parametrize("target", ["native", "sm_90a"])
def test_a_plan_asks_for_its_classes_and_computes_what_it_did(target: str) -> None:
    is_native = target == "native"
    module = parse_module(SCORES if is_native else LAYER.replace("4096", "512"))
    found = lower(module, TARGETS[target], one_and_many("S") if is_native else None)
    (step,) = (step for step in found.plan.steps if isinstance(step, Launch))
    assert len(step.variants) > 1 and [bool(variant.guard.positive) for variant in step.variants][-2:] == [True, False]
    assert parse_plan(print_plan(found.plan)) == found.plan
    w = np.linspace(-1, 1, 64 * 512, dtype=np.float32).reshape(64, 512)
    for rows in (1, 16, 17, 64, 65) if is_native else (1, 16, 17, 64, 65, 257, 1100):
        x = np.linspace(-2, 2, rows * 64, dtype=np.float32).reshape(rows, 64)
        given = [np.stack([x + n for n in range(8)]), np.stack([w.T, w.T])] if is_native else [x, w]
        weights = np.exp(given[0] @ w / 8) if is_native else np.zeros(0)
        expected = weights @ w.T / weights.sum(-1, keepdims=True) if is_native else x @ w
        (got,) = run_plan(found.plan, found.kernels, {}, given)
        np.testing.assert_allclose(got, np.tanh(expected), atol=1e-4)


def test_a_class_of_two_problems_is_one_kernel() -> None:
    """Graphs and layers whose sizes differ in range alone share what serves few rows."""
    text = SCORES.replace("f32[8, S, 64],", "f32[8, S, 64], %z: f32[8, T, 64],").replace("S in 1..2000", "S in 1..2000, T in 1..900")
    scores, tanh = (
        line.replace("%x", "%z").replace("%p", "%q").replace("%y", "%v").replace("S, ", "T, ") for line in SCORES.splitlines()[3:5]
    )
    text = text.replace("    return %y", f"{scores}\n{tanh}\n    return %y, %v").replace(
        "-> f32[8, S, 64]", "-> (f32[8, S, 64], f32[8, T, 64])"
    )
    found = lower(parse_module(text), TARGETS["native"], one_and_many("S", "T"))
    first, second = (step for step in found.plan.steps if isinstance(step, Launch))
    assert first.variants[0].kernel == second.variants[0].kernel != first.variants[-1].kernel != second.variants[-1].kernel


def test_a_kernel_that_turns_out_bad_is_not_taken_for_a_class_again() -> None:
    level = CPU_LEVELS[-1]
    module = parse_module(SCORES)
    scheduler = Scheduler(CPU, level, cheapest(level), lambda region, constants: {}, one_and_many("S"))
    fusion = fuse(module, workload=one_and_many("S"))
    before = lowered(fusion, scheduler, "cpu")
    bad = next(unit for unit in before.scheduled.values() if unit.when is not None)
    scheduler.refuse(bad, "it spills")
    after = lowered(fusion, scheduler, "cpu")
    assert all(unit.schedule != bad.schedule for unit in after.scheduled.values())


@pytest.mark.parametrize(
    "ops", ["%y = reduce_max(%x) {axes = [1]} : f32[S]", "%z = tanh(%x) : f32[S, 64]\n    %y = reduce_max(%z) {axes = [1]} : f32[S]"]
)
def test_an_op_whose_every_schedule_is_slow_gets_the_least_harmful(ops: str) -> None:
    level = CPU_LEVELS[-1]
    module = parse_module(
        f"module @m symbols {{ S in 1..2000 }} {{\n  func @main(%x: f32[S, 64]) -> f32[S] {{\n    {ops}\n    return %y\n  }}\n}}\n"
    )
    scheduler = Scheduler(CPU, level, cheapest(level), lambda region, constants: {})
    harms: dict[str, int] = {}
    for harm in (700, 300, 500, *range(800, 900)):
        units = lowered(fuse(module), scheduler, "cpu").scheduled.values()
        slow = [unit for unit in units if "reduce_max" in {op.name for op in unit.group.ops} and not scheduler.is_resigned(unit)]
        if not slow:
            break
        for unit in slow:
            harms[str((len(unit.group.ops), unit.schedule))] = harm
            scheduler.refuse(unit, "it spills", harm)
    alone = {what: harm for what, harm in harms.items() if what.startswith("(1,")}
    (taken,) = [unit for unit in units if scheduler.is_resigned(unit)]
    assert len(alone) > 1 and alone[str((1, taken.schedule))] == min(alone.values())
