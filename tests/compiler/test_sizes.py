"""Sizes beyond memory are refused when a model is built or when a call binds them; folding and unrolling have budgets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ourcc
from ourcc.compiler.options import BuildOptions
from ourcc.compiler.pipeline import simplify
from ourcc.ir.errors import CompilerError, InputError, OutOfMemoryError
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.types import LARGEST, TensorType, f32, u8
from ourcc.runtime import memory


def model(nodes: Sequence[onnx.NodeProto], shape: Sequence[str | int], **constants: object) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def build(proto: onnx.ModelProto) -> ourcc.Engine:
    return ourcc.build(proto, targets=["native"], tune="off")


@pytest.mark.parametrize("power", [40, 61, 62, 63])
@pytest.mark.parametrize("sign", [1, -1])
def test_steps_longer_than_any_dimension(power: int, sign: int) -> None:
    start, end = (0, 2**62) if sign > 0 else (-1, -(2**62))
    step = sign * min(2**power, 2**63 - 1)
    nodes = [helper.make_node("Slice", ["x", "start", "end", "axis", "step"], ["y"])]
    given = {"start": [start], "end": [end], "axis": [1], "step": [step]}
    engine = build(model(nodes, (2, "N"), **{name: np.array(value, np.int64) for name, value in given.items()}))
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    np.testing.assert_array_equal(engine(x), x[:, :1] if sign > 0 else x[:, -1:])


def test_what_no_memory_holds_is_refused_with_the_node() -> None:
    nodes = [helper.make_node("Expand", ["x", "s"], ["y"], name="wide")]
    with pytest.raises(
        CompilerError, match=r"f32\[3, 4611686018427387904\] has size 4611686018427387904, expected at most 281474976710656"
    ):
        build(model(nodes, (3, 1), s=np.array([3, 2**62])))
    with pytest.raises(CompilerError, match="bytes, expected at most"):
        build(model(nodes, (1, 1), s=np.array([2**30, 2**30])))


def test_what_this_machine_does_not_have_is_an_error_with_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build(model([helper.make_node("Tile", ["x", "r"], ["y"])], ("N", 2), r=np.array([1, 2**28])))
    monkeypatch.setattr(memory, "available_bytes", lambda: 3 << 30)
    with pytest.raises(OutOfMemoryError, match=r"a result f32\[3, 536870912\] needs 6.0 GiB, 3.0 GiB are available") as caught:
        engine(np.ones((3, 2), np.float32))
    assert isinstance(caught.value, MemoryError) and caught.value.exit_status == 1
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    with pytest.raises(OutOfMemoryError, match="the buffer needs"):
        memory.allocate(12 << 60, lambda: "the buffer", lambda: np.empty(12 << 60, np.uint8))


def test_sizes_of_a_call_cannot_wrap_around() -> None:
    graph_text = """module @m symbols { N in 0.. } {
  func @main(%x: f32[N]) -> f32[N, N, N, N] {
    %a = broadcast_to(%x) {shape = [N, N, N, N]} : f32[N, N, N, N]
    return %a
  }
}
"""
    from ourcc.compiler.pipeline import compile_module

    module = parse_module(graph_text)
    engine = ourcc.Engine(compile_module(module, BuildOptions()))
    assert engine(np.ones(3, np.float32)).shape == (3, 3, 3, 3)
    with pytest.raises(OutOfMemoryError, match=r"f32\[10000, 10000, 10000, 10000\]"):
        engine(np.ones(10_000, np.float32))


def test_a_size_below_zero_is_named() -> None:
    nodes = [helper.make_node("Pad", ["x", "p"], ["y"])]
    engine = build(model(nodes, ("N",), p=np.array([-3, 0])))
    np.testing.assert_array_equal(engine(np.arange(5, dtype=np.float32)), [3, 4])
    with pytest.raises(InputError, match=r"sizes \[-1\], expected none below 0"):
        engine(np.ones(2, np.float32))


def test_types_know_what_is_too_much() -> None:
    assert TensorType(f32, (LARGEST, 0)).excess() is None
    assert TensorType(u8, (LARGEST,)).excess() is None
    assert TensorType(f32, (LARGEST,)).excess() == f"{4 * LARGEST} bytes"
    assert TensorType(f32, (0, 4 * LARGEST)).excess() == f"size {4 * LARGEST}"


def test_unrolling_has_a_budget() -> None:
    functions = []
    for depth in range(30):
        nodes = (
            [helper.make_node("Add", ["a", "a"], ["b"])]
            if depth == 0
            else [helper.make_node(f"F{depth - 1}", [before], [after], domain="f") for before, after in (("a", "t"), ("t", "b"))]
        )
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
        functions.append(helper.make_function("f", f"F{depth}", ["a"], ["b"], nodes, imports))
    proto = model([helper.make_node("F29", ["x"], ["y"], domain="f")], (3,))
    proto.functions.extend(functions)
    proto.opset_import.append(helper.make_opsetid("f", 1))
    with pytest.raises(CompilerError, match="unrolls to more than 20000 nodes, its file has 60"):
        build(proto)


def test_what_is_expensive_to_fold_is_left_to_run_time_with_a_note() -> None:
    module = Module("m")
    graph = Graph("main")
    module.functions["main"] = graph
    builder = Builder(module, graph)
    x = graph.add_input("x", TensorType(f32, ()))
    a = module.add_constant("a", np.ones((2000, 2000), np.float32))
    small = builder.matmul(module.add_constant("b", np.ones((8, 8), np.float32)), module.add_constant("c", np.ones((8, 8), np.float32)))
    product = builder.sum(builder.matmul(a, a), axes=(0, 1), keepdims=False)
    graph.set_outputs([builder.add(builder.add(product, x), builder.sum(small, axes=(0, 1), keepdims=False))])
    notes: list[str] = []

    class Notes:
        def stage(self, name: str, total: int | None = None) -> None: ...
        def advance(self, steps: int = 1) -> None: ...
        def note(self, message: str) -> None:
            notes.append(message)

    simplify(module, BuildOptions(), Notes())
    assert [op.name for op in graph].count("matmul") == 1
    assert any(note.startswith("left to run time: matmul") for note in notes), notes


def test_products_of_many_sizes_are_no_dimension() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["s0"])]
    nodes += [helper.make_node("Mul", [f"s{n}", f"s{n}"], [f"s{n + 1}"]) for n in range(14)]
    engine = build(model([*nodes, helper.make_node("Identity", ["s14"], ["y"])], ("N",)))
    assert engine(np.ones(1, np.float32)).tolist() == [1]
    assert engine(np.ones(3, np.float32)).tolist() == [int(np.int64(np.uint64(pow(3, 2**14, 2**64))))]
