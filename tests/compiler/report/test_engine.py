"""The summary of an engine says what weights it stores and what its model had, for people and for machines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ourcc.compiler.cli.main import run
from ourcc.compiler.report.engine import describe_engine
from ourcc.runtime.reader import read_engine

ROWS, COLUMNS = 96, 64
BROUGHT = 4 * ROWS * COLUMNS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weight = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), dtype=np.float32)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, size]) for name, size in (("x", ROWS), ("y", COLUMNS))]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "m", ports[:1], ports[1:], [numpy_helper.from_array(weight, "w")]
    )
    path = tmp_path_factory.mktemp("summary") / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.mark.parametrize(
    ("asked", "stored"),
    [
        ((), BROUGHT),
        (("--quantize", "int8-weight"), ROWS * COLUMNS + 4 * COLUMNS),
        (("--sparsity", "2:4"), BROUGHT // 2 + ROWS * COLUMNS // 8),
    ],
)
def test_the_bytes_of_weights_are_told(
    asked: tuple[str, ...], stored: int, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = str(tmp_path / "m.ourcc")
    assert run(["build", str(model), "-o", engine, "--target", "x86-64-v3", "-q", *asked]) == 0
    assert f"{stored} bytes stored, {BROUGHT} in the model\n" in capsys.readouterr().out
    for command in (["inspect", engine], ["build", "--rebuild", engine]):
        assert run([*command, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["weights"] == {"stored": stored, "model": BROUGHT}
        parts = read_engine(Path(engine)).parts.values()
        sources = sum(len(data) for part in parts for name, data in part.files.items() if name.endswith(".c"))
        assert told["code"] == {"native": sum(len(part.files["engine.so"]) for part in parts), "sources": sources}


def test_an_engine_that_does_not_say_what_its_model_had(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.ourcc"
    assert run(["build", str(model), "-o", str(path), "--target", "x86-64-v3", "-q"]) == 0
    contents = read_engine(path)
    contents = replace(contents, report={name: value for name, value in contents.report.items() if name != "model_bytes"})
    report = describe_engine(contents, path)
    assert report.facts["weights"] == f"{BROUGHT} bytes stored" and report.to_data()["weights"] == {"stored": BROUGHT, "model": None}
