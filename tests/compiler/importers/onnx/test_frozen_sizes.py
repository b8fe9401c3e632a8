"""Sizes that an export froze into a model: which one makes them agree, and what to say where none can."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ourcc.compiler.cli.main import run


def frozen(path: Path, *shape: int, sizes: tuple[int | str, ...] = ("S", "B", 256)) -> str:
    """A reshape to a shape of constants, where -2 stands for four times the size B."""
    parts = [numpy_helper.from_array(np.array([size], np.int64), f"p{n}") for n, size in enumerate(shape)]
    axis = numpy_helper.from_array(np.array(sizes.index("B") if "B" in sizes else 1, np.int64), "axis")
    four = numpy_helper.from_array(np.array([4], np.int64), "four")
    nodes = [
        helper.make_node("Shape", ["x"], ["all"]),
        helper.make_node("Gather", ["all", "axis"], ["b"]),
        helper.make_node("Mul", ["b", "four"], ["times"]),
        helper.make_node("Concat", ["times" if size == -2 else f"p{n}" for n, size in enumerate(shape)], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, found) for name, found in (("x", sizes), ("y", None))]
    graph = helper.make_graph(nodes, "m", ports[:1], ports[1:], [*parts, axis, four])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return str(path)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert run(["build", *arguments, "-q"]) == 1
    return " ".join(capsys.readouterr().err.split())


def test_the_size_that_makes_shapes_agree_is_proposed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, engine = frozen(tmp_path / "m.onnx", 64, -2, 64), str(tmp_path / "m.ourcc")
    said = refused(capsys, model, "-o", engine)
    assert "[S, B, 256] and [64, 4*B, 64] are not known to have the same number of elements" in said
    assert "they agree where S = 64, as with --shape S=64" in said and "--shape B=1" not in said
    assert run(["build", model, "-o", engine, "--shape", "S=64", "-q"]) == 0


def test_where_no_one_size_does_the_sizes_are_to_be_related(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = frozen(tmp_path / "m.onnx", 64, 4, 64)
    assert "relate or fix the symbolic sizes with --shape, like --shape S=1 --shape B=128" in refused(capsys, model, "-o", "m.ourcc")


def test_constants_are_known_to_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, engine = frozen(tmp_path / "m.onnx", 64, 4, 64), str(tmp_path / "m.ourcc")
    said = refused(capsys, model, "-o", engine, "--shape", "S=128", "--shape", "B=1")
    assert "[128, 1, 256] and [64, 4, 64] do not have the same number of elements" in said
    assert "sizes that are given with --shape, or frozen in the model by its export, contradict it" in said
    said = refused(capsys, frozen(tmp_path / "own.onnx", 64, 4, 64, sizes=(128, 1, 256)), "-o", engine)
    assert "do not have the same number" in said and "--shape" not in said
