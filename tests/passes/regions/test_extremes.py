"""Places of extremes as two folds: the same places, with ties, zeros of both signs, NaN and infinities, of floats, integers and bools."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.region import Reduce
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.text import parse_region
from ourcc.ir.region.verify import verify_region
from ourcc.ir.types import DTYPES
from ourcc.passes.regions.extremes import in_two_folds


def rows(dtype: str) -> np.ndarray:
    random = np.random.default_rng(7)
    x = random.integers(0, 3, (12, 9)).astype(np.float64)
    if DTYPES[dtype].is_float:
        x[0] = np.nan
        x[1, 4], x[1, 6] = np.nan, np.inf
        x[2] = -np.inf
        x[3] = np.where(np.arange(9) % 2, 0.0, -0.0)
        x[4, 8] = np.nan
        x[5, 2], x[5, 3] = np.inf, -np.inf
    elif dtype != "bool":
        x[0] = np.iinfo(DTYPES[dtype].numpy).min
        x[1] = np.iinfo(DTYPES[dtype].numpy).max
    return x.astype(DTYPES[dtype].numpy)


@pytest.mark.parametrize("kind", ["argmax", "argmin", "argmax_last", "argmin_last"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64", "i8", "i32", "i64", "u8", "bool"])
def test_places_are_the_same(dtype: str, kind: str) -> None:
    region = parse_region(
        f"region @r(%x: {dtype}[i 12, j 9]) -> %y: i64[i 12] {{\n  axes i: 12, j: 9\n  %p = {kind} j: %x[i, j] : i64[i]\n  %y[i] = %p\n}}"
    )
    made = in_two_folds(region)
    verify_region(made)
    assert [s.kind for s in made.body if isinstance(s, Reduce)] == [
        "max" if "max" in kind else "min",
        "max" if kind.endswith("_last") else "min",
    ]
    x = rows(dtype)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run_region(made, {"x": x})["y"], run_region(region, {"x": x})["y"])


def test_regions_without_places_stay_what_they_are() -> None:
    region = parse_region(
        "region @r(%x: f32[i 3, j 9]) -> %y: f32[i 3] {\n  axes i: 3, j: 9\n  %p = max j: %x[i, j] : f32[i]\n  %y[i] = %p\n}"
    )
    assert in_two_folds(region) == region
