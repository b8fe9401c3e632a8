"""What `ourcc bench` says besides times: what they are not times of."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ourcc.compiler.cli.main import run
from ourcc.compiler.commands import bench as command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model, and its engine of models of AMX's instructions."""
    made = tmp_path_factory.mktemp("bench")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 32]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), made / "m.onnx")
    assert run(["build", str(made / "m.onnx"), "-o", str(made / "m.ourcc"), "-q"]) == 0
    assert run(["build", str(made / "m.onnx"), "-o", str(made / "e.ourcc"), "--emulate", "x86-64-v4-amx-fp16", "-q"]) == 0
    return made


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert run(["bench", *map(str, arguments), "--rounds", "1", "-q"]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_threads_that_have_no_cpu_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    processors = len(os.sched_getaffinity(0))
    assert "take turns" not in said(capsys, folder / "m.ourcc", "--threads", processors)
    found = said(capsys, folder / "m.ourcc", "--threads", processors + 1)
    assert f"{processors + 1} threads take turns on the {processors} CPU" in found


def test_times_of_models_of_instructions_are_told_apart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "runs models of instructions" not in said(capsys, folder / "m.ourcc")
    assert "x86-64-v4-amx-fp16-emulated runs models of instructions that this machine lacks" in said(capsys, folder / "e.ourcc")


def scaled(path: Path, by: float, *shape: int, outputs: int = 1) -> Path:
    """Products by a constant."""
    names = "yz"[:outputs]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None if name != "x" else [4, 32]) for name in ("x", *names)]
    weight = numpy_helper.from_array(np.full(shape, by, np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], [name]) for name in names]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def data(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    return dict(json.loads(said(capsys, *arguments, "--json")))


def test_answers_of_peers_are_compared_with_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of the same signature and other weights is another model, whatever its times are."""
    pytest.importorskip("onnxruntime")
    model, engine = scaled(tmp_path / "m.onnx", 1.0, 32, 8), tmp_path / "m.ourcc"
    assert run(["build", str(model), "-o", str(engine), "-q"]) == 0
    alike = data(capsys, engine, "--against", "onnxruntime")
    ours, theirs = alike["times"]
    assert ours["difference"] is None and theirs["difference"] < 1e-5 and "warning" not in alike
    assert "difference" not in data(capsys, engine)["times"][0]
    near = data(capsys, engine, "--against", f"onnxruntime={scaled(tmp_path / 'near.onnx', 1.25, 32, 8)}")
    assert near["times"][1]["difference"] == pytest.approx(0.2) and "warning" not in near
    negative = scaled(tmp_path / "far.onnx", -1.0, 32, 8)
    far = data(capsys, engine, "--against", f"onnxruntime={negative}")
    assert far["times"][1]["difference"] == 2 and far["warning"].startswith("onnxruntime and ourcc answer otherwise")
    assert "onnxruntime and ourcc answer otherwise" in said(capsys, engine, "--against", f"onnxruntime={negative}")
    for other in (scaled(tmp_path / "wide.onnx", 1.0, 32, 9), scaled(tmp_path / "more.onnx", 1.0, 32, 8, outputs=2)):
        shapes = data(capsys, engine, "--against", f"onnxruntime={other}")
        assert shapes["times"][1]["difference"] is None and "answer otherwise" in shapes["warning"]


def test_what_is_no_number_is_compared_by_its_places() -> None:
    one = np.array([np.nan, np.inf, 4.0], np.float32)
    assert command._share(one, np.array([np.nan, np.inf, 3.0])) == 0.25
    assert command._share(one, np.array([0.0, np.inf, 4.0])) == command._share(one, -one) == 1.0
    assert command._share(np.array(["a", "b"], object), np.array(["a", "c"], object)) == 1.0
    assert command._share(np.zeros(3, bool), np.zeros(3, bool)) == 0.0


def test_engines_are_peers_of_each_other(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = folder / "e.ourcc"
    found = data(capsys, folder / "m.ourcc", "--against", f"ourcc={other},ourcc={folder / 'm.ourcc'}")
    assert [row["what"] for row in found["times"]] == ["ourcc", "ourcc=e.ourcc", "ourcc=m.ourcc"]
    assert found["ourcc=e.ourcc runs"] == str(other) and [row["difference"] for row in found["times"]] == [None, 0, 0]
    assert run(["bench", str(folder / "m.ourcc"), "--against", "ourcc"]) == 2
    assert "--against ourcc=ENGINE.ourcc" in capsys.readouterr().err
    assert run(["bench", str(folder / "m.ourcc"), "--against", f"ourcc={folder / 'm.onnx'}"]) != 70
