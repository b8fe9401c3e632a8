"""Simplification of regions: what becomes of axes of size 1."""

from __future__ import annotations

import numpy as np

from ourcc.ir.dims import NO_FACTS
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.text import parse_region, print_region
from ourcc.passes.regions.simplify_region import simplify_region

SUM = """region @r(%x0: f32[i 3, k 1]) -> %y0: f32[i 3] {
  axes i: 3, k: 1
  %t0 = KIND k: %x0[i, k] : f32[i]
  %y0[i] = %t0
}
"""


def test_a_sum_of_one_element_begins_at_zero() -> None:
    """The sum of -0 is 0, in torch, in numpy and in ONNX's reference; a maximum is what it is of."""
    x = np.full((3, 1), -0.0, np.float32)
    for kind, negative in (("sum", False), ("max", True)):
        region = parse_region(SUM.replace("KIND", kind))
        simple = simplify_region(region, NO_FACTS)
        assert f"{kind} k" not in print_region(simple)
        for one in (region, simple):
            assert np.signbit(run_region(one, {"x0": x})["y0"]).tolist() == [negative] * 3
