"""Simplification of regions: what becomes of axes of size 1."""

from __future__ import annotations

import numpy as np

from ourcc.ir.dims import NO_FACTS, Facts
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


ROWS = """region @r(%x0: f32[18*N*M], %x1: f32[N*M, k 5]) -> %y0: f32[i N, j M, k 5] {
  axes i: N, j: M, k: 5, l: 18
  %t0 = sum l: %x0[18*M*i + 18*j + l] : f32[i, j]
  %y0[i, j, k] = mul(%t0, %x1[M*i + j, k])
}
"""
APART = ROWS.replace("18*M*i + 18*j + l", "17*M*i + 18*j + l")


def test_rows_that_an_operand_holds_several_places_of_are_one_axis() -> None:
    """Rows of a batch: a token's blocks lie in one dimension, and so do the tokens of all sequences."""
    symbols = Facts().with_range("N", 1, 9).with_range("M", 1, 9)
    simple = simplify_region(parse_region(ROWS), symbols)
    assert [str(axis.extent) for axis in simple.axes] == ["M*N", "5", "18"] or [str(axis.extent) for axis in simple.axes] == [
        "N*M",
        "5",
        "18",
    ]
    random, sizes = np.random.default_rng(0), {"N": 2, "M": 3}
    given = {"x0": random.standard_normal(108).astype(np.float32), "x1": random.standard_normal((6, 5)).astype(np.float32)}
    before, after = (run_region(each, given, sizes)["y0"] for each in (parse_region(ROWS), simple))
    np.testing.assert_array_equal(after.reshape(before.shape), before)
    assert len(simplify_region(parse_region(APART), symbols).axes) == 4
