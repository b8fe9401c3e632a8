"""Splitting of axes in groups: products with a batch of groups, of the same meaning."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS
from ourcc.ir.region.interpret import run_region
from ourcc.ir.types import TensorType, f32
from ourcc.passes.regions.contraction import Contraction, read_contraction
from ourcc.passes.regions.simplify_region import simplify_region
from ourcc.passes.regions.split_groups import split_groups


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
