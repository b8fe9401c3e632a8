"""The choice without measuring: the least price, ties in order, and few tile programs made for it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ourcc.compiler.backends.cpu import lower_cpu
from ourcc.ir.dims import NO_FACTS
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.region.text import parse_region
from ourcc.ir.target import AVX512, gpu_target
from ourcc.ir.tile.program import TileProgram
from ourcc.ir.types import TensorType, f32
from ourcc.passes.lower.choice import CLOSE, FAR, NEAR, floor, least
from ourcc.passes.lower.schedule import cheapest
from ourcc.passes.tile.cpu import STRATEGIES
from ourcc.passes.tile.schedule import Candidate, Match, Order, Problem, Schedule, matches

PRODUCT = """region @r(%x0: f32[i 64, k 64], %x1: f32[k 64, j 64]) -> %y0: f32[i 64, j 64] {
  axes i: 64, j: 64, k: 64
  %t0 = sum k: mul(%x0[i, k], %x1[k, j]) : f32[i, j]
  %y0[i, j] = %t0
}
"""
PROBLEM = Problem(parse_region(PRODUCT), NO_FACTS, {})


@dataclass
class Listed:
    """A strategy whose costs are given; what it was asked is kept."""

    name: str
    costs: tuple[float, ...]
    asked: list[int] = field(default_factory=list)

    def match(self, problem: Problem, target: Any) -> Match[None]:
        return Match(self, problem, None)

    def space(self, match: Match[None], target: Any) -> Iterator[Schedule]:
        return (Schedule(self.name, (("n", n),)) for n in range(len(self.costs)))

    def cost(self, match: Match[None], schedule: Schedule, target: Any) -> float:
        self.asked.append(schedule["n"])
        return self.costs[schedule["n"]]

    def order(self, match: Match[None], schedule: Schedule, target: Any) -> Order:
        return ()

    def tile(self, match: Match[None], schedule: Schedule, target: Any) -> TileProgram:
        raise NotImplementedError


def chosen(*listed: Listed, target: Any = AVX512) -> str:
    families: list[Sequence[Candidate]] = []
    for each in listed:
        match = each.match(PROBLEM, target)
        families.append([(match, schedule) for schedule in each.space(match, target)])
    return str(least(families, target)[1])


def test_all_strategies_compete_by_price() -> None:
    assert chosen(Listed("a", (3.0, 2.0)), Listed("b", (4.0, 1.0))) == "b{n=1}"


def test_prices_that_are_close_go_to_what_is_offered_first() -> None:
    assert chosen(Listed("a", (2.0, 1.0 + (CLOSE - 1) / 2)), Listed("b", (1.0,))) == "a{n=1}"
    assert chosen(Listed("a", (2.0, 1.0 + 2 * (CLOSE - 1))), Listed("b", (1.0,))) == "b{n=0}"


def test_a_strategy_that_is_far_off_is_not_looked_into() -> None:
    slow = Listed("slow", (1.1 * FAR, 0.5))
    assert chosen(Listed("a", (1.0, 2.0)), slow) == "a{n=0}" and slow.asked == [0]


def test_nothing_is_looked_into_after_what_cannot_be_bettered() -> None:
    lowest = floor(PROBLEM, AVX512)
    first, second = Listed("a", (9 * lowest, lowest * (NEAR + 1) / 2, 8 * lowest)), Listed("b", (lowest,))
    assert chosen(first, second) == "a{n=1}" and first.asked == [0, 1] and not second.asked


def test_the_floor_is_that_of_the_widest_instruction() -> None:
    """Two operations for each product, on 16 lanes; of bytes four at once."""
    rates = AVX512.rates
    assert floor(PROBLEM, AVX512) == pytest.approx(64**3 / (16 * rates.multiply_adds * rates.clock))
    assert floor(PROBLEM, gpu_target("sm_90a")) == 0.0


def test_where_prices_do_not_compare_the_first_strategy_is_taken() -> None:
    other = Listed("b", (0.5,))
    assert chosen(Listed("a", (3.0, 2.0)), other, target=gpu_target("sm_90a")) == "a{n=1}" and not other.asked


# --- tile programs ----------------------------------------------------------------------------------------------------


def layers(*widths: int, rows: int | None) -> Module:
    """Products one after the other, with a bias and tanh."""
    module, graph = Module("m"), Graph("main")
    module.functions["main"] = graph
    size = module.declare("S", 1, 4096) if rows is None else rows
    value, b = graph.add_input("x", TensorType(f32, (size, widths[0]))), Builder(module, graph)
    for n, (depth, width) in enumerate(itertools.pairwise(widths)):
        weight = module.add_constant(f"w{n}", np.full((depth, width), n + 1.0, np.float32))
        value = b.tanh(b.add(b.matmul(value, weight), module.add_constant(f"b{n}", np.full(width, n + 1.0, np.float32))))
    graph.set_outputs([value], ["y"])
    return module


@pytest.mark.parametrize("rows", [128, 3, None])
def test_a_build_makes_few_tile_programs_and_none_twice(rows: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many schedules and classes of sizes are priced, and although equal layers share what was chosen."""
    made: Counter[tuple[Any, ...]] = Counter()

    def counting(tile: Any) -> Any:
        def counted(self: Any, match: Match[Any], schedule: Schedule, target: Any) -> TileProgram:
            made[str(match.problem), schedule] += 1
            found: TileProgram = tile(self, match, schedule, target)
            return found

        return counted

    for strategy in STRATEGIES:
        monkeypatch.setattr(type(strategy), "tile", counting(type(strategy).tile))
    lowered = lower_cpu(layers(256, 512, 256, 512, 256, rows=rows), AVX512, cheapest(AVX512))
    assert len({unit.problem.region for unit in lowered.scheduled.values()}) == 2
    assert set(made.values()) == {1}
    problems = {unit.problem.region: unit.problem for unit in lowered.scheduled.values() if unit.when is None}.values()
    offered = sum(len(list(m.strategy.space(m, AVX512))) for each in problems for m in matches(STRATEGIES, each, AVX512))
    assert 2 <= len(made) <= offered * (0.5 if rows == 128 else 1)
