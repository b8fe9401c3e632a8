"""Problems to choose for, and strategies whose true speed is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from ourcc.autotune.record import Failure, Sample, Trial
from ourcc.ir.dims import Facts
from ourcc.ir.region.text import parse_region
from ourcc.ir.tile.program import TileProgram
from ourcc.passes.lower.layout import constant_layouts
from ourcc.passes.tile.schedule import Candidate, Match, Order, Problem, Schedule

MATMUL = """region @region(%x0: f32[i B, k 64], %x1: f32[k 64, j 48], %x2: f32[j 48]) -> %y0: f32[i B, j 48] {
  axes i: B, j: 48, k: 64
  %t0 = sum k: mul(%x0[i, k], %x1[k, j]) : f32[i, j]
  %y0[i, j] = add(%t0, %x2[j])
}
"""


def make_problem(symbol: str = "B", high: int | None = 64) -> Problem:
    region = parse_region(MATMUL.replace("B", symbol))
    constants = frozenset({"x1", "x2"})
    return Problem(region, Facts().with_range(symbol, 1, high), constant_layouts(region, constants), constants)


@pytest.fixture
def problem() -> Problem:
    """A matrix product with a bias, its right factor packed."""
    return make_problem()


@dataclass(frozen=True)
class Fake:
    """A strategy whose costs are given; nothing is tiled."""

    name: str
    costs: tuple[float, ...]

    def match(self, problem: Problem, target: Any) -> Match[None]:
        return Match(self, problem, None)

    def space(self, match: Match[None], target: Any) -> Iterator[Schedule]:
        return (Schedule(self.name, (("n", n),)) for n in range(len(self.costs)))

    def cost(self, match: Match[None], schedule: Schedule, target: Any) -> float:
        return self.costs[schedule["n"]]

    def order(self, match: Match[None], schedule: Schedule, target: Any) -> Order:
        return ()

    def tile(self, match: Match[None], schedule: Schedule, target: Any) -> TileProgram:
        raise NotImplementedError

    def candidates(self) -> list[Candidate]:
        match = self.match(make_problem(), None)
        return [(match, schedule) for schedule in self.space(match, None)]


@dataclass
class Oracle:
    """Measures by a table of true times; what it was asked is kept."""

    truth: dict[str, int]
    asked: list[list[str]] = field(default_factory=list)
    failures: dict[str, Failure] = field(default_factory=dict)

    def measure(self, problem: Problem, candidates: list[Candidate]) -> tuple[Trial, ...]:
        self.asked.append([str(schedule) for _, schedule in candidates])
        run = f"{len(self.asked):016x}"
        return tuple(self._trial(schedule, run) for _, schedule in candidates)

    def _trial(self, schedule: Schedule, run: str) -> Trial:
        failure = self.failures.get(str(schedule))
        time = self.truth[str(schedule)]
        return Trial(schedule, (), (failure,)) if failure else Trial(schedule, (Sample(run, (time, time + time // 200)),))
