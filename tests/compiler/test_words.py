"""What Python users may say in two ways, or to the wrong thing: one clear error, never the last word silently."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import ourcc
from ourcc.compiler.cli.main import run
from ourcc.ir.errors import CompilerError, UsageError


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    """Two inputs of one shape [B, S], added."""
    x, m, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", "S"]) for name in "xmy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "m"], ["y"])], "g", [x, m], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (["x=2,5", "m=2,6"], "got 6 for S, and 5 elsewhere"),
        (["B=2", "B=3"], "got 3 for B, and 2 elsewhere"),
        (["x=2,5", "x=3,5"], "got 3 for B, and 2 elsewhere"),
        (["B=1..4", "B=1..8"], "got 1..8 for B, and 1..4 elsewhere"),
        (["x=P,5", "m=Q,5"], "got Q for B, and P elsewhere"),
    ],
)
def test_shapes_that_contradict_each_other(shapes: list[str], said: str, model: onnx.ModelProto) -> None:
    with pytest.raises(UsageError, match=said):
        ourcc.build(model, shapes=shapes)


def test_shapes_that_agree(model: onnx.ModelProto) -> None:
    engine = ourcc.build(model, shapes=["x=B:1..4,5", "m=B,5", "S=5"], tune="off")
    assert [str(size) for size in engine.inputs[0].type.shape] == ["B", "5"]


Wrong = Callable[[Any, Any], Any]
WRONG: dict[str, tuple[Wrong, str]] = {
    "both spellings of shapes": (lambda m, t: ourcc.build(m, shape=["B=2"], shapes=["B=2"]), "got both 'shape' and 'shapes'"),
    "both spellings of targets": (lambda m, t: ourcc.build(m, target="cpu", targets="cpu"), "got both 'target' and 'targets'"),
    "a place for example inputs": (lambda m, t: ourcc.build(m, "z.ourcc"), "got example inputs with a ModelProto"),
    "inputs for a program": (lambda m, t: ourcc.build(torch.export.export(t, (torch.ones(2),)), (1,)), "got example inputs with a Exp"),
    "a tensor for inputs": (lambda m, t: ourcc.build(t, torch.ones(2)), "got a Tensor for the example inputs"),
    "a scripted module": (lambda m, t: ourcc.build(torch.jit.script(t), (torch.ones(2),)), "which is scripted or traced"),
    "no model": (lambda m, t: ourcc.build(3), "got a int, expected a path"),
    "axes that are missing": (lambda m, t: ourcc.build(m, shapes={"x": [None, 64]}), "expected a size, or a list of sizes"),
    "no axes": (lambda m, t: ourcc.build(m, shapes={"x": None}), "expected a size, or a list of sizes"),
    "a flag for threads": (lambda m, t: ourcc.build(m, threads=True), "threads: got True"),
    "half a thread": (lambda m, t: ourcc.load("m.ourcc", threads=1.5), "threads: got 1.5"),
    "no engine": (lambda m, t: ourcc.load(None), "got a NoneType, expected the path"),
    "a path for a key": (lambda m, t: ourcc.load(__file__, trusted_keys=["k.pem"]), "got a trusted key of str"),
    "a number for targets": (lambda m, t: ourcc.build(m, targets=3), "targets: got 3, expected text"),
    "a number for a promise": (lambda m, t: ourcc.build(m, require=[3]), "require: got 3, expected text"),
    "a float for a batch": (lambda m, t: ourcc.build(m, batch=2.0), "batch: got 2.0"),
    "no target": (lambda m, t: ourcc.build(m, targets=[]), "targets: got none, expected one or more of cpu"),
    "an empty tuple of targets": (lambda m, t: ourcc.build(m, targets=()), "targets: got none"),
    "a number to load": (lambda m, t: ourcc.load(__file__, target=3), "target: got 3"),
    "nowhere": (lambda m, t: ourcc.build(m, tune="off").save(None), "got a NoneType for the output"),
    "inputs that are missing": (lambda m, t: ourcc.explain(t), "got 0 inputs for ReLU"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", WRONG)
def test_wrong_words(name: str, model: onnx.ModelProto) -> None:
    wrong, said = WRONG[name]
    with pytest.raises(UsageError, match=said):
        wrong(model, torch.nn.ReLU())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--precision", "bf16"], "bf16 changes nothing: the model has no product of floats"),
        (["--quantize", "int8-weight"], "int8-weight changes nothing: no product of the model has a constant weight"),
        (["--sparsity", "2:4"], "2:4 changes nothing: no product of the model has a constant weight"),
        (["--unchecked-indices"], "unchecked indices change nothing: the model has no index to check"),
        ([], None),
    ],
)
def test_a_request_that_changes_nothing_is_told_with_the_result(
    words: list[str], told: str | None, model: onnx.ModelProto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(model, tmp_path / "add.onnx")
    assert run(["build", str(tmp_path / "add.onnx"), "-o", str(tmp_path / "a.ourcc"), "--json", *words]) == 0
    assert json.loads(capsys.readouterr().out).get("note") == told
    assert run(["inspect", str(tmp_path / "a.ourcc"), "-q"]) == 0
    assert (f"note       {told}" in capsys.readouterr().out) == (told is not None)


def test_numbers_of_numpy(model: onnx.ModelProto) -> None:
    engine = ourcc.build(model, shapes={"B": np.int64(4)}, threads=np.int64(1), tune="off")  # type: ignore[dict-item,arg-type]
    assert [str(size) for size in engine.inputs[0].type.shape] == ["4", "S"]


def test_a_size_by_number(model: onnx.ModelProto) -> None:
    assert [str(size) for size in ourcc.build(model, shapes={"B": 4, "S": "8"}, tune="off").inputs[0].type.shape] == ["4", "8"]


def test_a_store_that_nobody_serves(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("redis", reason="redis is not installed")
    monkeypatch.setenv("OURCC_CACHE", "redis://localhost:1")
    assert run(["cache", "ls"]) == CompilerError.exit_status
    assert "a store cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize("given", [np.ones((2, 2), np.float32), [np.ones((2, 2), np.float32)], None])
def test_inputs_of_run_have_names(given: Any, model: onnx.ModelProto) -> None:
    engine = ourcc.build(model, tune="off")
    with pytest.raises(ourcc.InputError, match=rf"got a {type(given).__name__}, expected a mapping of inputs by name\n  help: as in run"):
        engine.run(given)
