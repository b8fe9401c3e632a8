import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ourcc.compiler import onnx_backend
from ourcc.compiler.onnx_backend import Backend
from ourcc.ir.errors import InputError, UnsupportedError

F, INT = TensorProto.FLOAT, TensorProto.INT64


def model(nodes, inputs, outputs):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def reshape():
    return model([helper.make_node("Reshape", ["x", "s"], ["y"])], {"x": (F, [12]), "s": (INT, [2])}, ["y"])


def test_models_run_with_inputs_in_order_and_by_name():
    prepared = onnx_backend.prepare(model([helper.make_node("Sub", ["a", "b"], ["y"])], {"a": (F, [2]), "b": (F, [2])}, ["y"]))
    a, b = np.array([3, 4], np.float32), np.array([1, 1], np.float32)
    for inputs in ([a, b], {"b": b, "a": a}):
        np.testing.assert_array_equal(prepared.run(inputs)[0], [2, 3])


def test_one_node_runs_alone():
    x = np.array([-1, 2], np.float32)
    np.testing.assert_array_equal(onnx_backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [x])[0], [0, 2])


def test_values_that_decide_shapes_are_fixed_and_tried_again():
    prepared = Backend.prepare(reshape())
    assert not prepared.modules
    x = np.arange(12, dtype=np.float32)
    for shape in ((3, 4), (2, 6), (3, 4), (-1, 2)):
        np.testing.assert_array_equal(prepared.run([x, np.array(shape)])[0], x.reshape(shape))
    assert prepared.fixed == {"s"} and len(prepared.modules) == 3


def test_the_reference_can_stand_in_for_the_compiler(monkeypatch):
    monkeypatch.setattr(onnx_backend, "compile_module", onnx_backend.interpret_module)
    x = np.arange(12, dtype=np.float32)
    np.testing.assert_array_equal(Backend.run_model(reshape(), [x, np.array([4, 3])])[0], x.reshape(4, 3))


def test_empty_inputs_have_a_module_of_their_own():
    prepared = Backend.prepare(model([helper.make_node("Neg", ["x"], ["y"])], {"x": (F, ["N", 2])}, ["y"]))
    for rows in (3, 0, 1):
        x = np.ones((rows, 2), np.float32)
        np.testing.assert_array_equal(prepared.run([x])[0], -x)
    assert len(prepared.modules) == 2


def test_data_are_never_fixed():
    nodes = [helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0), helper.make_node("Cast", ["m"], ["n"], to=INT)]
    nodes += [helper.make_node("Unsqueeze", ["n", "a"], ["s"]), helper.make_node("ConstantOfShape", ["s"], ["y"])]
    proto = model(nodes, {"x": (F, [4, 4])}, ["y"])
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "a"))
    prepared = Backend.prepare(proto)
    with pytest.raises(UnsupportedError, match="the shape is not known at import"):
        prepared.run([np.ones((4, 4), np.float32)])


def test_unsupported_models_are_refused_when_prepared():
    with pytest.raises(UnsupportedError, match="1 node is not supported: ImageDecoder"):
        Backend.prepare(model([helper.make_node("ImageDecoder", ["x"], ["y"])], {"x": (TensorProto.UINT8, [4])}, ["y"]))


def test_wrong_inputs_and_devices_are_errors():
    prepared = Backend.prepare(reshape())
    for inputs in ([], [np.zeros(4, np.float32)], {"x": np.zeros(4, np.float32), "t": np.array([2, 2])}):
        with pytest.raises(InputError, match=r"got \d inputs, expected 2: x, s"):
            prepared.run(inputs)
    assert Backend.supports_device("CPU") and not Backend.supports_device("CUDA")
    with pytest.raises(UnsupportedError, match="device 'CUDA'"):
        Backend.prepare(reshape(), "CUDA")


def test_a_model_that_needs_ever_more_values_is_refused(monkeypatch):
    monkeypatch.setattr(onnx_backend, "FIXED_ROUNDS", 1)
    with pytest.raises(UnsupportedError, match="the model's shapes depend on too many inputs"):
        Backend.prepare(reshape()).run([np.zeros(12, np.float32), np.array([2, 6])])
