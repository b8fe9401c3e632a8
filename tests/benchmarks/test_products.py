"""The sweep over products: the same shapes in every run, right answers told from wrong ones, goals and picture from given times."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .scripts import script

products = script("products")
RATES = {"fma_gflops": 100.0, "bf16_dot_gflops": 200.0, "int8_dot_gops": 400.0}


def shape(rows: int, terms: int, columns: int, constant: bool = True) -> Any:
    return products.Shape(rows, terms, columns, constant)


def row(of: Any, **shares: float) -> dict[str, Any]:
    """A row of results whose products reach these shares."""
    seconds = {kind: of.operations / (part * RATES[products.KINDS[kind].rate(RATES)] * 1e9) for kind, part in shares.items()}
    return {"shape": asdict(of), **{kind: {"seconds": each, "schedules": [], "wrong": False} for kind, each in seconds.items()}}


def test_shapes_are_drawn_alike_and_a_longer_list_goes_on() -> None:
    found = products.shapes()
    assert len(set(found)) == products.COUNT == 200 and products.shapes(20) == found[:20]
    sizes = np.array([(each.rows, each.terms, each.columns) for each in found])
    assert sizes.min() >= 1 and sizes.max() <= products.LARGEST
    assert np.all(np.abs(np.log(sizes[::2]).mean(axis=0) - math.log(products.LARGEST) / 2) < 0.7)
    assert all(each.has_goal for each in found[1::2]) and not all(each.has_goal for each in found[::2])
    assert 70 < sum(each.constant for each in found) < 130
    assert products.shapes(seed=1) != products.shapes(seed=2)


@pytest.mark.parametrize("constant", [True, False])
def test_each_kind_is_measured_and_right(constant: bool) -> None:
    found = products.measure(shape(5, 8, 16, constant), list(products.KINDS))
    assert set(found) == set(products.KINDS)
    assert all(each["seconds"] > 0 and each["schedules"] and not each["wrong"] for each in found.values())


def test_a_wrong_answer_is_told() -> None:
    left, right = np.ones((3, 4), np.float32), np.ones((4, 2), np.float32)
    assert products.is_right(left @ right, left, right)
    assert not products.is_right(left @ right + np.float32(0.01), left, right)
    codes = np.full((2, 4), 127, np.int8)
    assert products.is_right(codes.astype(np.int32) @ codes.T.astype(np.int32), codes, np.ascontiguousarray(codes.T))


def test_goals_are_held_by_large_products_alone() -> None:
    large, other, small = shape(64, 256, 256), shape(100, 300, 400), shape(63, 4096, 4096)
    assert large.has_goal and not small.has_goal
    rows = [row(large, f32=0.9, bf16=0.5), row(other, f32=0.4), row(small, f32=0.1)]
    found = products.verdicts(rows, RATES)
    expected = {"rate": "fma_gflops", "goal": 0.88, "shapes": 2, "reached": 1, "least": 0.4, "mean": 0.6}
    assert found["f32"] == expected | {"worst": [f"{other}: 0.40", f"{large}: 0.90"]}
    assert found["bf16"]["reached"] == 0 and "int8" not in found and products.verdicts(rows[2:], RATES) == {}


def test_what_is_multiplied_in_tiles_is_held_against_their_rate() -> None:
    rows = [row(shape(64, 256, 256), f32=0.9, bf16=2.0, int8=1.9)]
    found = products.verdicts(rows, RATES | {"bf16_matrix_gflops": 700.0, "int8_matrix_gops": 1000.0})
    assert (found["bf16"]["rate"], found["bf16"]["goal"], found["bf16"]["reached"], found["bf16"]["least"]) == (
        "bf16_matrix_gflops",
        0.55,
        1,
        0.571,
    )
    assert found["int8"]["reached"] == 1 and found["f32"]["goal"] == 0.88


def test_the_picture_has_a_point_for_each_product(tmp_path: Path) -> None:
    rows = [row(shape(64, 256, 256), f32=0.9, int8=1.1), row(shape(1, 1, 1, constant=False), f32=0.001)]
    drawn = products.picture(rows, RATES)
    assert drawn.count("<circle") == 3 and "64x256x256, int8: 1.10" in drawn and "1x1x1 of values" in drawn
    products.report(tmp_path / "found.json", rows, {"cpu": "none"}, RATES)
    held = json.loads((tmp_path / "found.json").read_text())
    assert held["rows"] == rows and held["verdicts"]["f32"]["reached"] == 1 and (tmp_path / "found.svg").read_text() == drawn
