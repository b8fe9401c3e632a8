"""`ourcc verify` draws inputs that a model takes: words, divisors, integers that are sizes, and what stands between tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch.export import Dim, export

from ourcc.compiler.cli.main import run
from ourcc.compiler.commands import verify as command


def elementwise(op: str, dtype: int, opset: int, **attrs: Any) -> onnx.ModelProto:
    """y = op(a, b) of one symbolic axis."""
    a, b, y = (helper.make_tensor_value_info(name, dtype, ["N"]) for name in "aby")
    graph = helper.make_graph([helper.make_node(op, ["a", "b"], ["y"], **attrs)], "g", [a, b], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


MODELS = {
    "Mod": elementwise("Mod", TensorProto.INT64, 18),
    "fmod": elementwise("Mod", TensorProto.INT32, 18, fmod=1),
    "Div": elementwise("Div", TensorProto.INT32, 18),
    "StringConcat": elementwise("StringConcat", TensorProto.STRING, 20),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    onnx.save(MODELS[name], tmp_path / "m.onnx")
    assert run(["build", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.ourcc"), "-q"]) == 0
    assert run(["verify", str(tmp_path / "m.ourcc"), str(tmp_path / "m.onnx"), "-q"]) == 0, capsys.readouterr()


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor, k: float, d: dict[str, Any], *, flag: bool = True, z: Any = None) -> torch.Tensor:
        return x * k + d["a"] + (z if flag else 0)


class Cut(torch.nn.Module):
    def forward(self, x: torch.Tensor, k: int, h: float) -> torch.Tensor:
        return x[:k] * h


def programs() -> dict[str, Any]:
    x = torch.randn(9)
    return {
        "scaled": export(Scaled(), (x, 2.5, {"a": x, "b": None}), {"flag": True, "z": x}),
        "cut": export(Cut(), (x, 4, 2.0), dynamic_shapes=(None, Dim.DYNAMIC, None)),
    }


@pytest.mark.parametrize("name", ["scaled", "cut"])
def test_programs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, engine = str(tmp_path / "m.pt2"), str(tmp_path / "m.ourcc")
    torch.export.save(programs()[name], file)
    assert run(["build", file, "-o", engine, "-q"]) == 0
    assert run(["verify", engine, file, "-q"]) == 0, capsys.readouterr()
    assert run(["bench", engine, "--against", f"eager={file}", "--rounds", "1", "-q"]) == 0, capsys.readouterr()


def test_sizes_are_said_or_drawn_small_where_a_model_is_large(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--shape says them; else no more is computed than the bound allows, but for what the smallest sizes take."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    file, engine = str(tmp_path / "m.onnx"), str(tmp_path / "m.ourcc")
    onnx.save(elementwise("Add", TensorProto.FLOAT, 18), file)
    assert run(["build", file, "-o", engine, "-q", "--shape", "N=3.."]) == 0

    def sizes(*args: str) -> set[int]:
        capsys.readouterr()
        assert run(["verify", engine, file, "-q", "--json", *args]) == 0
        return {row["sizes"][0][0] for row in json.loads(capsys.readouterr().out)["outputs"]}

    assert sizes("--shape", "N=77") == {77}
    assert sizes("--shape", "a=5") == {5}
    assert len(sizes()) > 4 and max(sizes()) > 8
    assert run(["build", file, "-o", str(tmp_path / "open.ourcc"), "-q"]) == 0
    monkeypatch.setattr(command, "MOST", 0)
    capsys.readouterr()
    assert run(["verify", str(tmp_path / "open.ourcc"), file, "-q", "--json"]) == 0  # a size that may be 0 is drawn as 1
    assert {row["sizes"][0][0] for row in json.loads(capsys.readouterr().out)["outputs"]} == {1}
    assert run(["verify", str(tmp_path / "open.ourcc"), file, "-q", "--shape", "N=900"]) == 0
    monkeypatch.setattr(command, "MOST", 8)
    assert 3 <= min(sizes()) and max(sizes()) <= 8
    monkeypatch.setattr(command, "MOST", 0)
    assert sizes() == {3}
    assert run(["verify", engine, file, "--shape", "N=2"]) == 2 and "expected N in 3.." in capsys.readouterr().err
    assert run(["verify", engine, file, "--shape", "N=4", "--inputs", file]) == 2
