"""Which file a peer runs beside an engine or a model, and that a report says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ourcc.compiler.commands.bench import bench
from ourcc.compiler.commands.build import build
from ourcc.compiler.commands.peers import make_peer, peer_file
from ourcc.compiler.options import BenchOptions, build_options
from ourcc.ir.errors import UsageError


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """`m.ourcc` beside the `m.onnx` that it was built from."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", 8]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "m", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), tmp_path / "m.onnx")
    build(str(tmp_path / "m.onnx"), build_options({"targets": ["native"]})).save(tmp_path / "m.ourcc")
    return tmp_path / "m.ourcc"


def test_a_peer_runs_the_file_of_the_same_name(engine: Path) -> None:
    assert peer_file("onnxruntime", engine) == peer_file("onnxruntime", engine.with_suffix(".onnx")) == engine.with_suffix(".onnx")
    report = bench(BenchOptions(engine, ("onnxruntime",), rounds=2))
    assert report.facts["onnxruntime runs"] == str(engine.with_suffix(".onnx"))
    assert [row[0] for row in report.tables[0].rows] == ["ourcc", "onnxruntime"]


def test_a_file_can_be_named(engine: Path, tmp_path: Path) -> None:
    other = engine.with_suffix(".onnx").rename(tmp_path / "other.onnx")
    report = bench(BenchOptions(engine, (f"onnxruntime={other}",), rounds=2))
    assert report.facts["onnxruntime runs"] == str(other)


def test_without_such_a_file_the_option_is_named(engine: Path) -> None:
    with pytest.raises(UsageError, match=r"eager runs \.pt2 files: got 'm\.ourcc', and there is no 'm\.pt2' beside it") as error:
        bench(BenchOptions(engine, ("eager",)))
    assert "--against eager=MODEL.pt2" in str(error.value)
    with pytest.raises(UsageError, match=r"onnxruntime runs \.onnx files: got 'm\.ourcc'"):
        make_peer("onnxruntime", engine)


def test_the_peer_answers(engine: Path) -> None:
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    (answer,) = make_peer("onnxruntime", engine.with_suffix(".onnx"))([x])
    assert np.allclose(answer, np.tanh(x), atol=1e-6)
