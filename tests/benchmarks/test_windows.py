"""The benchmark of attention in windows: the file is the function, every side gives the same answer, all of them are timed."""

from __future__ import annotations

from typing import Any

import pytest

from .scripts import script

windows: Any = script("windows")


def test_every_side_answers_alike() -> None:
    sides = ("ourcc", "onnxruntime", "torch")
    row = windows.measure(160, 32, 1, sides)
    assert {*row["apart"]} == {*row["ms"]} == {*sides} < {*windows.SIDES}
    assert max(row["apart"].values()) < 1e-4
    least = min(each["minimum"] for name, each in row["ms"].items() if name != "ourcc")
    assert row["ms"][row["best"]]["minimum"] == least
    assert row["ratio"] == pytest.approx(least / row["ms"]["ourcc"]["minimum"], rel=0.1)
