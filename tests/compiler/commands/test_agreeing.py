"""`ourcc verify` reads models with the sizes that an engine fixes, and calls engines with those that a model fixes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from ourcc.compiler.cli.main import run


def saved(path: Path, nodes: list[onnx.NodeProto], shape: list[int | str], *constants: onnx.TensorProto) -> str:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, found) for name, found in (("x", shape), ("y", None))]
    graph = helper.make_graph(nodes, "m", ports[:1], ports[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return str(path)


class Tanh(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x)


@pytest.fixture
def frozen(tmp_path: Path) -> tuple[str, str]:
    """A model that reshapes [B, S, 8] to rows of 64 places, as torch freezes them, and its engine for S = 64."""
    pytest.importorskip("onnxruntime")
    shape = numpy_helper.from_array(np.array([-1, 64, 4, 2], np.int64), "shape")
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    model, engine = saved(tmp_path / "m.onnx", nodes, ["B", "S", 8], shape), str(tmp_path / "m.ourcc")
    assert run(["build", model, "-o", engine, "-q"]) == 1
    assert run(["build", model, "-o", engine, "-q", "--shape", "S=64"]) == 0
    return engine, model


def verified(capsys: pytest.CaptureFixture[str], *args: str) -> list[list[int]]:
    """The sizes of the first input of every set."""
    capsys.readouterr()
    assert run(["verify", *args, "-q", "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return [row["sizes"][0] for row in found["outputs"]]


def failed(capsys: pytest.CaptureFixture[str], status: int, *args: str) -> str:
    capsys.readouterr()
    assert run(["verify", *args, "-q"]) == status
    return " ".join(capsys.readouterr().err.split())


def test_a_model_is_read_with_the_sizes_that_the_engine_fixes(
    frozen: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {shape[1] for shape in verified(capsys, *frozen)} == {64}
    assert {tuple(shape) for shape in verified(capsys, *frozen, "--shape", "B=3", "--shape", "S=64")} == {(3, 64, 8)}
    np.savez(tmp_path / "data.npz", x=np.ones((2, 64, 8), np.float32))
    assert verified(capsys, *frozen, "--inputs", str(tmp_path / "data.npz")) == [[2, 64, 8]]
    assert {shape[1] for shape in verified(capsys, *frozen, "--shape", "S=32..128")} == {64}
    assert "the engine was built for S = 64 alone" in failed(capsys, 2, *frozen, "--shape", "S=128")
    assert "got T, which is no input and no dimension" in failed(capsys, 2, *frozen, "--shape", "T=64")


def test_a_model_is_read_with_the_sizes_that_are_said(frozen: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An engine of any S, made of a model that says the same by other means."""
    sizes = numpy_helper.from_array(np.array([0, 0, 4, 2], np.int64), "shape")
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    other, engine = saved(tmp_path / "any.onnx", nodes, ["N", "L", 8], sizes), str(tmp_path / "any.ourcc")
    assert run(["build", other, "-o", engine, "-q"]) == 0
    for name in "LS":
        assert {shape[1] for shape in verified(capsys, engine, frozen[1], "--shape", f"{name}=64")} == {64}


def test_an_engine_is_called_with_the_sizes_that_a_model_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine, model = str(tmp_path / "m.ourcc"), str(tmp_path / "m.pt2")
    onnx_model = saved(tmp_path / "m.onnx", [helper.make_node("Tanh", ["x"], ["y"])], ["N", 8])
    assert run(["build", onnx_model, "-o", engine, "-q"]) == 0
    torch.export.save(torch.export.export(Tanh(), (torch.ones(1, 8),)), model)
    assert verified(capsys, engine, model) == [[1, 8]] * 8
    assert run(["verify", engine, model, "-q"]) == 0
    assert "the model fixes N to 1: the engine takes other sizes" in " ".join(capsys.readouterr().out.split())
    assert run(["verify", engine, model, "-q", "--shape", "N=1"]) == 0
    assert "the model fixes" not in capsys.readouterr().out
    assert "got N = 4, expected N in 1..1 help: the engine takes that size, the model does not" in failed(
        capsys, 2, engine, model, "--shape", "N=4"
    )
    # Ranges are narrowed alike.
    dynamic = {"x": {0: torch.export.Dim("n", min=3, max=5)}}
    torch.export.save(torch.export.export(Tanh(), (torch.ones(4, 8),), dynamic_shapes=dynamic), tmp_path / "some.pt2")
    assert {shape[0] for shape in verified(capsys, engine, str(tmp_path / "some.pt2"))} <= {3, 4, 5}


def test_sizes_that_have_nothing_in_common_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = [helper.make_node("Tanh", ["x"], ["y"])]
    engine, one = str(tmp_path / "m.ourcc"), saved(tmp_path / "one.onnx", node, [1, 8])
    any_size = saved(tmp_path / "any.onnx", node, ["N", 8])
    assert run(["build", any_size, "-o", engine, "-q", "--shape", "N=2..9"]) == 0
    assert "axis 0 of input x is N in the engine, with N in 2..9, and 1 in the model" in failed(capsys, 1, engine, one)
    assert run(["build", any_size, "-o", engine, "-q", "--shape", "N=2"]) == 0
    assert "axis 0 of input x is 2 in the engine, and 1 in the model" in failed(capsys, 1, engine, one)
