"""The price of a tile program: what is counted, what is moved, and how near the choice by it comes to the fastest that was measured."""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from ourcc.compiler.backends.cpu import lower_cpu
from ourcc.ir.dims import NO_FACTS, Facts
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS
from ourcc.ir.region.text import parse_region
from ourcc.ir.target import AVX2, AVX512, AVX512_AMX, AVX512_BF16, CPU_LEVELS, CpuLevel, cpu_level
from ourcc.ir.types import TensorType, bf16
from ourcc.ir.workload import Point
from ourcc.passes.lower.layout import constant_layouts
from ourcc.passes.lower.schedule import cheapest
from ourcc.passes.regions.simplify_region import simplify_region
from ourcc.passes.tile.cpu import STRATEGIES
from ourcc.passes.tile.cpu.price import price
from ourcc.passes.tile.cpu.traffic import lines_moved
from ourcc.passes.tile.cpu.work import tiles
from ourcc.passes.tile.schedule import Match, Problem, Schedule, matches

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
PRODUCT = """region @r(%x0: f32[i ROWS, k DEPTH], %x1: f32[k DEPTH, j WIDTH]) -> %y0: f32[i ROWS, j WIDTH] {
  axes i: ROWS, j: WIDTH, k: DEPTH
  %t0 = sum k: mul(%x0[i, k], %x1[k, j]) : f32[i, j]
  %y0[i, j] = %t0
}
"""
TURNED = """region @r(%x0: f32[j SIZE, i SIZE]) -> %y0: f32[i SIZE, j SIZE] {
  axes i: SIZE, j: SIZE
  %y0[i, j] = neg(%x0[j, i])
}
"""


def problem(text: str = PRODUCT, facts: Facts = NO_FACTS, **sizes: Any) -> Problem:
    for name, size in sizes.items():
        text = text.replace(name.upper(), str(size))
    region = parse_region(text)
    constants = frozenset({"x1"} & {operand.name for operand in region.inputs})
    return Problem(region, facts, constant_layouts(region, constants), constants)


def schedules(found: Problem, strategy: str, level: CpuLevel) -> tuple[Match[Any], list[Schedule]]:
    (match,) = matches([each for each in STRATEGIES if each.name == strategy], found, level)
    return match, list(match.strategy.space(match, level))


# --- computing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [AVX2, AVX512], ids=lambda level: level.name)
def test_a_product_of_whole_blocks_takes_its_multiply_adds(level: CpuLevel) -> None:
    match, space = schedules(problem(rows=96, depth=1024, width=256), "packed", level)
    cycles = 96 * 1024 * 256 / level.lanes / level.rates.multiply_adds
    best = min(price(match, schedule, level).computing for schedule in space)
    assert cycles <= best * level.rates.clock <= 1.1 * cycles


def test_computing_grows_with_the_size_of_a_symbol() -> None:
    facts = Facts().with_range("S", 1, 4096)
    match, space = schedules(problem(facts=facts, rows="S", depth=64, width=64), "packed", AVX512)
    for schedule in space:
        found = [price(match.at(Point((("S", rows),))), schedule, AVX512).computing for rows in (1, 2, 5, 16, 100, 1000)]
        assert found == sorted(found) and found[-1] > 100 * found[0] / 8
    assert len(match.programs) == len(space), "one tile program for all sizes"


def test_rows_that_are_left_over_take_longer_each() -> None:
    match, space = schedules(problem(facts=Facts().with_range("S", 1, 4096), rows="S", depth=256, width=256), "packed", AVX512)
    whole, ragged = (price(match.at(Point((("S", rows),))), space[0], AVX512).computing / rows for rows in (96, 97))
    assert ragged > 1.001 * whole


def test_few_sums_wait_for_each_other() -> None:
    """One row in vectors of 16: two sums at a time do not fill what four would."""
    row = PRODUCT.replace("i ROWS, ", "").replace("[i, ", "[").replace("i: ROWS, ", "")
    match, space = schedules(problem(row, depth=512, width=512), "packed", AVX512)
    by_width = {schedule["nr"]: price(match, schedule, AVX512).computing for schedule in space}
    assert by_width[16] > 1.5 * by_width[32] > 2 * by_width[64]


@pytest.mark.parametrize("level", CPU_LEVELS, ids=lambda level: level.name)
def test_every_schedule_has_a_price(level: CpuLevel) -> None:
    for found in (problem(rows=33, depth=40, width=50), problem(TURNED, size=70)):
        for match in matches(STRATEGIES, found, level):
            assert all(0 < price(match, schedule, level).seconds < 1e-3 for schedule in match.strategy.space(match, level))


def test_tiles_cover_a_range_once() -> None:
    for low, high, step in ((0, 10, 3), (2, 11, 3), (0, 2, 5), (5, 5, 2), (0, 7, None)):
        assert sum(length * times for _, length, times in tiles(low, high, step)) == high - low


# --- moving -------------------------------------------------------------------------------------------------------------


def moved(size: int, vectors: int) -> list[float]:
    match, space = schedules(problem(TURNED, size=size), "nest", AVX512)
    (schedule,) = (each for each in space if each["vectors"] == vectors)
    (launch,) = match.program(schedule, AVX512).launches
    return lines_moved(launch, {}, AVX512)


def test_what_fits_a_cache_is_not_moved_again() -> None:
    assert moved(48, 1) == [0.0, 0.0, 0.0]
    first, second, third = moved(200, 1)
    assert first > 0 and second == third == 0.0


def test_lines_a_power_of_two_apart_push_each_other_out() -> None:
    """64 rows that lie 2048 bytes apart share two sets of the first cache; those 2080 bytes apart do not."""
    assert moved(512, 4)[0] > 3 * moved(520, 4)[0]
    assert moved(512, 4)[0] > 3 * moved(512, 1)[0]


@pytest.mark.parametrize("level", [AVX512_BF16, AVX512_AMX], ids=lambda level: level.name)
def test_weights_in_groups_are_moved_whole(level: CpuLevel) -> None:
    """Neighbours along the sum lie side by side, and the next group a line further on."""
    region = region_of(OPS["matmul"], [TensorType(bf16, (16, 4096)), TensorType(bf16, (4096, 512))], {})
    assert region is not None
    region = simplify_region(region, NO_FACTS)
    match, space = schedules(Problem(region, NO_FACTS, constant_layouts(region, frozenset({"x1"})), frozenset({"x1"})), "packed", level)
    for schedule in space:
        (launch,) = match.program(schedule, level).launches
        assert lines_moved(launch, {}, level)[0] >= 4096 * 512 * 2 / 64


@pytest.mark.parametrize("level", [AVX512_BF16, AVX512_AMX], ids=lambda level: level.name)
@pytest.mark.parametrize(("terms", "columns"), [(1024, 4096), (4096, 1024), (2048, 1000), (600, 300)])
def test_one_row_by_weights_in_groups_goes_along_columns(level: CpuLevel, terms: int, columns: int) -> None:
    """Along the sum two neighbours lie together and the next two far away: each is a load of its own."""
    types = [TensorType(bf16, (1, terms)), TensorType(bf16, (columns, terms))]
    region = region_of(OPS["matmul"], types, {"transpose_a": False, "transpose_b": True, "wide": True})
    assert region is not None
    region = simplify_region(region, NO_FACTS)
    held = Problem(region, NO_FACTS, constant_layouts(region, frozenset({"x1"})))
    least = {name: min(price(*each, level).seconds for each in offered(held, name, level)) for name in ("packed", "nest")}
    assert 2 * least["packed"] < least["nest"]


def offered(found: Problem, strategy: str, level: CpuLevel) -> list[tuple[Match[Any], Schedule]]:
    match, space = schedules(found, strategy, level)
    return [(match, schedule) for schedule in space]


def test_a_reflection_of_one_element_has_a_price() -> None:
    """Its period is 0 there, by which positions are divided."""
    module = parse_module("""module @case symbols { N in 0..3 } {
  func @main(%x: f64[4, N]) -> f64[4, N + 1] {
    %y = pad(%x) {before = [0, 0], after = [0, 1], mode = "reflect"} : f64[4, N + 1]
    return %y as "y0"
  }
}""")
    assert lower_cpu(module, AVX512, cheapest(AVX512)).kernels


# --- what was measured --------------------------------------------------------------------------------------------------


def problems_of_models() -> Any:
    spec = importlib.util.spec_from_file_location("problems_of_models", BENCHMARKS / "problems.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_choices_come_near_the_fastest_that_was_measured() -> None:
    """No time is taken: the choice of today among the schedules whose times benchmarks/cost.py has written. What was not offered on the
    machine that was measured has none.
    """
    recorded = json.loads((BENCHMARKS / "results" / "cost.json").read_text(encoding="utf-8"))
    made, level, over = problems_of_models(), cpu_level(recorded["level"]), []
    for name, times in recorded["picoseconds"].items():
        found, families = made.problem_of_case(made.cases()[name], level, cheapest(level))
        timed = [[candidate for candidate in family if str(candidate[1]) in times] for family in families]
        over.append(times[str(cheapest(level)(found, iter(filter(None, timed)))[1])] / min(times.values()))
    assert len(over) >= 60
    assert statistics.median(over) < 1.02 and statistics.quantiles(over, n=10)[-1] < 1.1
    assert sum(each <= 1.1 for each in over) >= 0.95 * len(over)
