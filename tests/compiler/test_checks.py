"""Indices out of range and divisors of 0, from the model to the error; and the option that leaves the checks out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import ourcc
from ourcc.compiler.cli.main import run
from ourcc.ir.errors import CompilerError, IndexRangeError

WORDS = np.arange(15, dtype=np.float32).reshape(5, 3)


def lookup(indices: list[int] | None = None) -> onnx.ModelProto:
    """Rows of an input by an input, or by constant indices."""
    inputs = [helper.make_tensor_value_info("words", TensorProto.FLOAT, [5, 3])]
    constants = []
    if indices is None:
        inputs.append(helper.make_tensor_value_info("ids", TensorProto.INT64, ["N"]))
    else:
        constants.append(helper.make_tensor("ids", TensorProto.INT64, [len(indices)], indices))
    node = helper.make_node("Gather", ["words", "ids"], ["y"], name="lookup")
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N" if indices is None else len(indices), 3])
    return helper.make_model(
        helper.make_graph([node], "g", inputs, [output], constants), opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )


def test_an_index_out_of_range_names_the_input_and_the_op(tmp_path: Path) -> None:
    engine = ourcc.build(lookup())
    engine.save(tmp_path / "lookup.ourcc")
    for each in (engine, ourcc.load(tmp_path / "lookup.ourcc")):
        for bad in (5, -6, 2**62, -(2**62)):
            with pytest.raises(IndexRangeError, match=rf"^index {bad} of input 'ids' is out of range, expected -5\.\.4\n  at lookup\n"):
                each.run({"words": WORDS, "ids": np.array([0, bad])})
        answer = each.run({"words": WORDS, "ids": np.array([0, -5, 4, -1])})["y"]
        np.testing.assert_array_equal(answer, WORDS[[0, -5, 4, -1]])


def test_constant_indices_are_checked_at_build() -> None:
    np.testing.assert_array_equal(ourcc.build(lookup([4, -5])).run({"words": WORDS})["y"], WORDS[[4, 0]])
    with pytest.raises(IndexError, match=r"index 7 of .* is out of range, expected -5\.\.4"):
        ourcc.build(lookup([0, 7])).run({"words": WORDS})


def test_unchecked_indices_stay_inside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = ourcc.build(lookup(), unchecked_indices=True)
    answer = engine.run({"words": WORDS, "ids": np.array([2**62, -(2**62), 1])})["y"]
    assert np.isin(answer, WORDS).all() and (answer[2] == WORDS[1]).all()
    onnx.save(lookup(), tmp_path / "m.onnx")
    words = ["build", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.ourcc"), "--unchecked-indices"]
    assert run(words) == 0
    ourcc.load(tmp_path / "m.ourcc").run({"words": WORDS, "ids": np.array([5])})
    assert run(["build", "--rebuild", str(tmp_path / "m.ourcc"), "--unchecked-indices"]) == 2
    assert "got --unchecked-indices with --rebuild" in capsys.readouterr().err


def test_torch_indices_raise_index_errors() -> None:
    table = torch.randn(10, 4)
    fast = torch.compile(lambda ids: torch.nn.functional.embedding(ids, table) * 2, backend="ourcc")
    with torch.no_grad():
        assert torch.equal(fast(torch.tensor([1, 9])), table[[1, 9]] * 2)
        for bad in (10, -1):
            with pytest.raises(IndexError, match=rf"index {bad} of input .* is out of range, expected 0\.\.9\n  at .*embedding"):
                fast(torch.tensor([1, bad]))


def test_torch_integers_divided_by_zero_raise_runtime_errors() -> None:
    fast = torch.compile(lambda x, y: (x // y, x % y, torch.fmod(x, y)), backend="ourcc")
    x, y = torch.tensor([7, -7, 3]), torch.tensor([2, -2, 5])
    assert all(torch.equal(a, b) for a, b in zip(fast(x, y), (x // y, x % y, torch.fmod(x, y)), strict=True))
    with pytest.raises(RuntimeError, match=r"input .* divides integers by 0\n  at ") as raised:
        fast(x, torch.tensor([1, 0, 2]))
    assert isinstance(raised.value, (CompilerError, ZeroDivisionError))


def test_how_many_are_wanted_may_be_none_at_all() -> None:
    """What only sizes say of k: none of an axis, even of an empty one; more than it has is one clear error."""
    shapes = helper.make_node("Shape", ["x"], ["sizes"])
    nodes = [
        *(shapes, helper.make_node("Gather", ["sizes", "one"], ["size"]), helper.make_node("Div", ["size", "two"], ["half"])),
        *(helper.make_node("Mul", ["half", "three"], ["all"]), helper.make_node("Reshape", ["all", "list"], ["k"])),
        helper.make_node("TopK", ["x", "k"], ["values", "places"], axis=1),
    ]
    held = {"one": 1, "two": 2, "three": 1, "list": [1]}

    def engine(factor: int) -> ourcc.Engine:
        constants = [onnx.numpy_helper.from_array(np.array(value, np.int64), name) for name, value in (held | {"three": factor}).items()]
        given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "M"])]
        results = [helper.make_empty_tensor_value_info(name) for name in ("values", "places")]
        graph = helper.make_graph(nodes, "g", given, results, constants)
        return ourcc.build(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), shapes=["M=0..99"])

    half = engine(1)
    for size in (0, 1, 2, 9):
        x = np.random.default_rng(size).standard_normal((3, size)).astype(np.float32)
        values, places = half(x)
        np.testing.assert_array_equal(values, -np.sort(-x, axis=1)[:, : size // 2])
        np.testing.assert_array_equal(np.take_along_axis(x, places, 1), values)
    with pytest.raises(IndexError, match=r"index 6 of axis 1 of input 'x' is out of range, expected 0\.\.4"):
        engine(3)(np.zeros((3, 4), np.float32))


@pytest.mark.parametrize("bad", [2, -1, 2**32, -(2**63) + 1])
def test_members_of_a_batch_are_checked(bad: int) -> None:
    node = helper.make_node("RoiAlign", ["x", "regions", "members"], ["y"], sampling_ratio=1)
    kinds = {"x": (TensorProto.FLOAT, [2, 1, 4, 4]), "regions": (TensorProto.FLOAT, [1, 4]), "members": (TensorProto.INT64, [1])}
    inputs = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in kinds.items()]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    engine = ourcc.build(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    x, regions = np.zeros((2, 1, 4, 4), np.float32), np.array([[0, 0, 3, 3]], np.float32)
    assert not engine(x, regions, np.array([1])).any()
    with pytest.raises(IndexError, match=rf"index {bad} of input 'members' is out of range, expected 0\.\.1"):
        engine(x, regions, np.array([bad]))


@pytest.mark.parametrize("size", [3, "N"])
def test_texts_are_moved_about(size: int | str) -> None:
    nodes = [helper.make_node("Concat", ["x", "x"], ["t"], axis=0), helper.make_node("Gather", ["t", "i"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.STRING, [size]), helper.make_tensor_value_info("i", TensorProto.INT64, [2])]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info("y")])
    engine = ourcc.build(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))
    assert list(engine(np.array(["a", "bc", "d"], object), np.array([4, 0]))) == ["bc", "a"]
