"""Splitting of axes in groups: products with a batch of groups, of the same meaning."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.text import parse_region, print_region
from ourcc.ir.types import TensorType, f32
from ourcc.passes.regions.contraction import Contraction, read_contraction
from ourcc.passes.regions.simplify_region import simplify_region
from ourcc.passes.regions.split_groups import split_groups, split_rows


@pytest.mark.parametrize(
    ("channels", "filters", "groups", "splits"),
    [(8, 16, 2, True), (12, 12, 3, True), (16, 64, 4, True), (8, 8, 8, False), (8, 16, 8, False), (8, 6, 2, False), (8, 16, 1, False)],
    ids=["two", "three", "four", "depthwise", "two filters a channel", "three filters a group", "one"],
)
def test_groups_become_a_batch(channels: int, filters: int, groups: int, splits: bool) -> None:
    types = [TensorType(f32, (2, channels, 7, 6)), TensorType(f32, (filters, channels // groups, 3, 2)), TensorType(f32, (filters,))]
    attrs = {"strides": (2, 1), "dilations": (1, 1), "before": (1, 0), "after": (0, 1), "groups": groups}
    region = region_of(OPS["conv"], types, attrs)
    assert region is not None
    plain = simplify_region(region, dims.NO_FACTS)
    made = split_groups(plain, dims.NO_FACTS)
    assert (made != plain) is splits
    found = read_contraction(made)
    assert isinstance(found, Contraction)
    if splits:
        assert made.axis(found.batch[-1]).extent == groups and found.rows and found.columns
        assert filters // groups in {made.axis(name).extent for name in (found.rows[-1], found.columns[-1])}
    random = np.random.default_rng(0)
    arrays = {f"x{n}": random.integers(-3, 4, [int(size) for size in type.shape]).astype(np.float32) for n, type in enumerate(types)}
    given = [
        {operand.name: arrays[operand.name].reshape([int(size) for size in operand.type.shape]) for operand in each.inputs}
        for each in (plain, made)
    ]
    before, after = (run_region(each, values) for each, values in zip((plain, made), given, strict=True))
    for name, array in before.items():
        np.testing.assert_array_equal(after[name].reshape(array.shape), array)


ROWS = """region @r(%x0: f32[h 12, i 5, d 64], %x1: f32[k 768]) -> %y0: f32[i 5, k 768] {
  axes i: 5, k: 768
  %y0[i, k] = add(%x0[(k // 64), i, (k % 64)], %x1[k])
}
"""
FOLDED = """region @r(%x0: f32[h 12, i 5, d 64]) -> %y0: f32[i 5] {
  axes i: 5, k: 768
  %t0 = sum k: %x0[(k // 64), i, (k % 64)] : f32[i]
  %y0[i] = %t0
}
"""


@pytest.mark.parametrize(("least", "splits"), [(16, True), (64, True), (128, False)])
def test_what_is_read_by_rows_has_an_axis_for_them(least: int, splits: bool) -> None:
    region = parse_region(ROWS)
    made = split_rows(region, dims.NO_FACTS, least)
    assert sorted(axis.extent for axis in made.axes) == ([5, 12, 64] if splits else [5, 768])  # type: ignore[type-var]
    assert ("//" in print_region(made)) is not splits
    random = np.random.default_rng(0)
    given = {"x0": random.standard_normal((12, 5, 64)).astype(np.float32), "x1": random.standard_normal(768).astype(np.float32)}
    np.testing.assert_array_equal(run_region(made, given)["y0"], run_region(region, given)["y0"])


BESIDE = """
region @beside(%x0: f32[4, 5, 48]) -> (%y0: f32[5, 192]) {
  axes i: 5, j: 192
  %y0[i, j] = %x0[(j % 4), i, (j // 4)]
}
"""
REPEATED = """
region @repeated(%x0: f32[5, 48]) -> (%y0: f32[5, 192]) {
  axes i: 5, j: 192
  %y0[i, j] = %x0[i, (j // 4)]
}
"""


PATCHES = """
region @patches(%x0: f32[4, 5, 48]) -> (%y0: f32[5, 192]) {
  axes i: 5, j: 192
  %y0[i, j] = %x0[(j // 48), i, (j % 48)]
}
"""


@pytest.mark.parametrize(
    ("text", "least", "splits"), [(BESIDE, 16, True), (BESIDE, 32, False), (BESIDE, 64, False), (REPEATED, 16, False), (PATCHES, 64, False)]
)
def test_rows_that_lie_side_by_side_have_an_axis(text: str, least: int, splits: bool) -> None:
    """Lanes go along rows, which are contiguous where they are read; what is read once for several places stays as it is."""
    region = parse_region(text)
    made = split_rows(region, dims.NO_FACTS, least)
    assert sorted(axis.extent for axis in made.axes) == ([4, 5, 48] if splits else [5, 192])  # type: ignore[type-var]
    assert ("//" in print_region(made)) is not splits
    given = {"x0": np.random.default_rng(0).standard_normal(region.inputs[0].type.shape).astype(np.float32)}
    np.testing.assert_array_equal(run_region(made, given)["y0"], run_region(region, given)["y0"])


def test_a_sum_keeps_its_order() -> None:
    region = parse_region(FOLDED)
    assert split_rows(region, dims.NO_FACTS, 16) == region
