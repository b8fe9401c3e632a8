"""What `ourcc bench` says besides times: what they are not times of."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from ourcc.compiler.cli.main import run


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
