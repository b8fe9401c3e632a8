"""`ourcc verify`: what is allowed follows the precision computed inside, not the dtype of the outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ourcc.compiler.driver import build
from ourcc.compiler.options import VerifyOptions, build_options
from ourcc.compiler.verification import verify

pytest.importorskip("onnxruntime")


def attention(path: Path, inside: int, scale: float = 1.0) -> Path:
    """A product, softmax and another product; floats at the ports, `inside` between."""
    rng = np.random.default_rng(0)
    dtype = helper.tensor_dtype_to_np_dtype(inside)
    weights = [
        numpy_helper.from_array((rng.standard_normal(shape) * factor * scale).astype(dtype), name)
        for name, shape, factor in (("w", (16, 32), 3), ("v", (32, 8), 10))
    ]
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=inside),
        helper.make_node("MatMul", ["h", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["s"]),
        helper.make_node("MatMul", ["s", "v"], ["z"]),
        helper.make_node("Cast", ["z"], ["y"], to=TensorProto.FLOAT),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", size]) for name, size in (("x", 16), ("y", 8))]
    graph = helper.make_graph(nodes, "m", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def engine_of(model: Path, **options: object) -> Path:
    path = model.with_suffix(".ourcc")
    build(model, build_options(options)).save(path)
    return path


@pytest.mark.parametrize(("inside", "precision"), [(TensorProto.FLOAT, "f32"), (TensorProto.FLOAT16, "f16")])
def test_a_right_engine_passes_in_the_precision_that_it_computes_in(inside: int, precision: str, tmp_path: Path) -> None:
    model = attention(tmp_path / "m.onnx", inside)
    report = verify(VerifyOptions(engine_of(model), model))
    assert report.violations == () and report.facts["precision"] == precision
    assert {row["precision"] for row in report.tables[0].to_data()} == {precision}


def test_quantized_weights_are_judged_as_integers(tmp_path: Path) -> None:
    model = attention(tmp_path / "m.onnx", TensorProto.FLOAT, scale=0.3)
    report = verify(VerifyOptions(engine_of(model, quantize="int8-weight"), model))
    assert report.violations == () and report.facts["precision"] == "i8"


@pytest.mark.parametrize("inside", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_an_engine_of_another_model_fails(inside: int, tmp_path: Path) -> None:
    model = attention(tmp_path / "m.onnx", inside)
    engine = engine_of(attention(tmp_path / "other.onnx", inside, scale=1.02))
    options = VerifyOptions(engine, model)
    assert len(verify(options).violations) == 8
    assert verify(replace(options, tolerance=10.0)).violations == ()


def test_a_model_that_the_peer_cannot_run_is_one_error(tmp_path: Path) -> None:
    from ourcc.compiler.peers import make_peer
    from ourcc.ir.errors import ToolchainError

    model = attention(tmp_path / "m.onnx", TensorProto.FLOAT)
    with pytest.raises(ToolchainError, match="the peer onnxruntime does not run this"):
        make_peer("onnxruntime", model)([np.zeros((2, 3), np.float32)])
    (tmp_path / "bad.onnx").write_bytes(b"junk")
    with pytest.raises(ToolchainError, match="the peer onnxruntime does not run this"):
        make_peer("onnxruntime", tmp_path / "bad.onnx")
