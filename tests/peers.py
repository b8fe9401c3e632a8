"""What ONNX Runtime, which tests compare with, computes exactly on the CPU at hand."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import onnxruntime
import pytest


@functools.cache
def saturates() -> bool:
    """Whether ONNX Runtime's sums of unsigned and signed bytes saturate on this CPU, as they do where there is AVX2 and no VNNI."""
    helper, kinds = onnx.helper, onnx.TensorProto
    ports = [helper.make_tensor_value_info(name, kind, [4, 64]) for name, kind in (("x", kinds.UINT8), ("y", kinds.INT32))]
    weight = onnx.numpy_helper.from_array(np.full((64, 64), 127, np.int8), "w")
    graph = helper.make_graph([helper.make_node("MatMulInteger", ["x", "w"], ["y"])], "m", ports[:1], ports[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (answer,) = session.run(None, {"x": np.full((4, 64), 255, np.uint8)})
    return bool((np.asarray(answer) != 255 * 127 * 64).any())


def needs_exact_sums() -> None:
    """Skip a test of sums of codes that ONNX Runtime does not compute here."""
    if saturates():
        pytest.skip("ONNX Runtime's sums of codes saturate on this CPU, which has no VNNI")
