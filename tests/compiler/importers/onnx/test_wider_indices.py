"""Indices along one axis that have more places along another than the data: the standard knows no such element."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import ourcc


def model(op_type: str, axis: int) -> ModelProto:
    """Data of N x M and indices of K x L, no size known."""
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "M"]),
        helper.make_tensor_value_info("i", TensorProto.INT64, ["K", "L"]),
    ]
    names = ["x", "i"]
    if op_type == "ScatterElements":
        inputs.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, ["K", "L"]))
        names.append("u")
    node = helper.make_node(op_type, names, ["y"], axis=axis)
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op_type", ["GatherElements", "ScatterElements"])
def test_more_places_than_the_data_has_are_an_error(op_type: str, axis: int) -> None:
    engine = ourcc.build(model(op_type, axis), shapes={"x": ["N:0..", "M:0.."], "i": ["K:0..", "L:0.."]})
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for rows in range(6):
        for columns in range(6):
            indices = np.full((rows, columns), -1)
            updates = [np.full((rows, columns), 7, np.float32)] if op_type == "ScatterElements" else []
            is_wider = columns > 4 if axis == 0 else rows > 3
            if is_wider and rows and columns:
                with pytest.raises(ourcc.CompilerError, match=r"is out of range, expected 0\.\."):
                    engine(x, indices, *updates)
            elif not is_wider:
                (got, expected) = engine(x, indices, *updates), x.copy()
                if op_type == "ScatterElements":
                    np.put_along_axis(expected[:, :columns] if axis == 0 else expected[:rows], indices, 7, axis)
                else:
                    expected = np.take_along_axis(x[:, :columns] if axis == 0 else x[:rows], indices, axis)
                np.testing.assert_array_equal(got, expected)
