"""Plans as they are built: what their verifier asks of them, for programs that strain it."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

import ourcc
from ourcc.ir.plan import Copy, Host


def engine(node, inputs, outputs):
    infos = [[helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in ports] for ports in (inputs, outputs)]
    model = helper.make_model(helper.make_graph([node], "g", *infos), opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return ourcc.build(model, tune="off", targets=["native"])


def test_strings_that_are_returned_as_they_came():
    made = engine(helper.make_node("Identity", ["x"], ["y"]), [("x", TensorProto.STRING, ["B"])], [("y", TensorProto.STRING, ["B"])])
    assert not any(isinstance(step, Copy) for step in made.contents.best.plan.steps)
    given = np.array(["a", "bc"], dtype=object)
    got = made(given)
    assert got.tolist() == ["a", "bc"]
    got[0] = "changed"
    assert given[0] == "a"


def test_a_size_of_two_results_is_bound_once():
    node = helper.make_node("Unique", ["x"], ["y", "first", "", "count"])
    outputs = [("y", TensorProto.FLOAT, None), ("first", TensorProto.INT64, None), ("count", TensorProto.INT64, None)]
    made = engine(node, [("x", TensorProto.FLOAT, ["B"])], outputs)
    (step,) = (step for step in made.contents.best.plan.steps if isinstance(step, Host))
    assert [symbol for symbol, _, _ in step.binds] == list(dict.fromkeys(symbol for symbol, _, _ in step.binds))
    for values in ([3, 1, 3, 2], [], [5]):
        y, first, count = made(np.array(values, np.float32))
        expected = np.unique(np.array(values, np.float32), return_index=True, return_counts=True)
        assert all(np.array_equal(a, b) for a, b in zip((y, first, count), expected, strict=True))
