"""The benchmark of single ops: files that are models, the same numbers in every run, answers that are compared before they are timed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ourcc.compiler.importers.onnx import import_onnx

from .scripts import script

ops = script("ops")


def test_each_case_is_a_model_of_its_op() -> None:
    found = ops.cases()
    assert len(found) > 190
    for name, case in found.items():
        model = ops.model_of(case)
        assert len(import_onnx(model).main.outputs) == case.results
        assert [node.op_type for node in model.graph.node] == [name.split(".")[0]]


@pytest.mark.parametrize("name", ["Exp", "Resize.smaller", "TopK.few"])
def test_both_sides_are_compared_and_timed(name: str) -> None:
    row = ops.measure(ops.cases()[name], 1)
    assert row["largest_difference"] < 1e-4
    assert row["ratio"] == pytest.approx(row["ourcc_us"]["minimum"] / row["onnxruntime_us"]["minimum"], abs=0.02)


@pytest.mark.parametrize(
    ("ours", "theirs", "apart"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([np.inf, 1.0], [3.0, 1.0], np.inf),
    ],
)
def test_how_far_answers_lie_apart(ours: list[float], theirs: list[float], apart: float) -> None:
    found: Any = ops._difference([np.float32(ours)], [np.float32(theirs)])
    assert found == apart or (np.isinf(apart) and found > 1e30)


def test_answers_of_other_shapes_are_no_answers() -> None:
    with pytest.raises(ValueError, match=r"the answers have shapes \(2,\) and \(3,\)"):
        ops._difference([np.zeros(2)], [np.zeros(3)])
