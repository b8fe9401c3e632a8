"""`nest` offers itself where it can be made, and says why where it cannot."""

from __future__ import annotations

import pytest

from ourcc.ir.dims import Facts
from ourcc.ir.region_text import parse_region
from ourcc.ir.target import AVX2
from ourcc.passes.tile.cpu.nest import Nest
from ourcc.passes.tile.schedule import Problem

FOLDS = """region @region(%x0: f32[i S, j S], %x1: f32[j S, e 16]) -> %y0: f32[i S, e 16] {
  axes i: S, j: S, e: 16, d: 16
  %t0 = sum d: mul(%x1[i, d], %x1[j, d]) : f32[i, j]
  %t1 = max j: %t0 : f32[i]
  %t2 = sum j: mul(sub(%t0, %t1), %x1[j, e]) : f32[i, e]
  %y0[i, e] = %t2
}
"""


@pytest.mark.parametrize(("high", "why"), [(None, "%t0 varies over j, which has no bound"), (64, None)])
def test_a_fold_inside_needs_a_bound(high: int | None, why: str | None) -> None:
    problem = Problem(parse_region(FOLDS), Facts().with_range("S", 1, high), {})
    assert Nest().applies(problem, AVX2) == why
    if why is None:
        assert all(Nest().tile(problem, schedule, AVX2).launches for schedule in Nest().space(problem, AVX2))
