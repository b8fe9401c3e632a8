"""Which file a peer runs beside an engine or a model, and that a report says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from ourcc.compiler.commands import measure
from ourcc.compiler.commands.bench import bench
from ourcc.compiler.commands.build import build
from ourcc.compiler.commands.peers import make_peer, onnxruntime_run, openvino_run, peer_file
from ourcc.compiler.options import BenchOptions, build_options
from ourcc.ir.errors import CompilerError, InternalError, ToolchainError, UsageError


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


def test_a_peer_that_was_told_a_size_takes_no_other(engine: Path) -> None:
    run = onnxruntime_run(engine.with_suffix(".onnx"), 1, {"B": 2})
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    assert np.allclose(run([x])[0], np.tanh(x), atol=1e-6)
    with pytest.raises(ToolchainError, match="the peer onnxruntime does not run this"):
        run([x[:1]])


def test_openvino_is_told_sizes_and_a_precision(engine: Path) -> None:
    pytest.importorskip("openvino")
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    for precision in ("f32", "bf16"):
        (answer,) = openvino_run(engine.with_suffix(".onnx"), 1, precision, [(2, 8)])([x])
        assert np.allclose(answer, np.tanh(x), atol=1e-2)


def test_between_samples_nothing_is_done_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(measure.time, "sleep", rests.append)
    first, second = measure.compare({"a": lambda: None, "b": lambda: None}, 3, inner=0.0, pause=0.25)
    assert rests == [0.25] * 6 and len(first.samples) == len(second.samples) == 3
    measure.compare({"a": lambda: None}, 2, inner=0.0)
    assert rests[6:] == [0.0, 0.0]


def add(path: Path, *sizes: int | str) -> Path:
    """A model of two inputs."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name in "abc"]
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["c"])], "m", ports[:2], ports[2:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


class Halves(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b / 2


@pytest.mark.parametrize("peer", ["onnxruntime", "openvino", "eager", "inductor", "ourcc"])
def test_a_file_of_another_model_is_an_error_of_the_user(peer: str, engine: Path, tmp_path: Path) -> None:
    """Inputs of another number, of other sizes, and a file that is no model at all, whichever the peer is."""
    if peer in ("onnxruntime", "openvino"):
        pytest.importorskip(peer)
    if peer in ("eager", "inductor"):
        torch.export.save(torch.export.export(Halves(), (torch.ones(3, 9), torch.ones(3, 9))), tmp_path / "other.pt2")
        other = tmp_path / "other.pt2"
    elif peer == "ourcc":
        other = tmp_path / "other.ourcc"
        build(str(add(tmp_path / "other.onnx", 3, 9)), build_options({"targets": ["native"]})).save(other)
    else:
        other = add(tmp_path / "other.onnx", 3, 9)
    with pytest.raises(UsageError, match=f"the peer {peer} got 1 inputs, expected 2: a, b"):
        bench(BenchOptions(engine, (f"{peer}={other}",), rounds=1))
    two = tmp_path / "two.ourcc"
    build(str(add(tmp_path / "two.onnx", 2, 8)), build_options({"targets": ["native"]})).save(two)
    with pytest.raises(ToolchainError, match=rf"the peer {peer} does not run this: .*[^:]\n"):
        bench(BenchOptions(two, (f"{peer}={other}",), rounds=1))
    junk = (tmp_path / "junk").with_suffix(other.suffix)
    junk.write_bytes(b"junk")
    with pytest.raises(CompilerError) as error:
        bench(BenchOptions(two, (f"{peer}={junk}",), rounds=1))
    assert not isinstance(error.value, InternalError)
