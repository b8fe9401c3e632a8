"""What two programs do not share: each kind of change is said where it is, and nothing else is; A and B exchanged say the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from ourcc.compiler.cli.main import run
from ourcc.compiler.report.difference import differences
from ourcc.compiler.report.table import Report
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.text import module_text
from ourcc.ir.types import TensorType, f32


def module(edit: Callable[[Builder, int, Value], Value] | None = None, axis: int = 1, scale: float = 1.0, layers: int = 3) -> Module:
    """A stack of layers; `edit` puts something behind the softmax of a layer, `axis` and `scale` are those of the last layer."""
    made = Module("m")
    graph = made.functions["main"] = Graph("main")
    b = Builder(made, graph)
    x = graph.add_input("x", TensorType(f32, (made.declare("B", 1, 64), 4)))
    for number in range(layers):
        is_last = number == layers - 1
        weight = made.add_constant(f"w{number}", np.full((4, 4), (scale if is_last else 1.0) + number, np.float32))
        h = b.softmax(x, axis=axis if is_last else 1)
        h = h if edit is None else edit(b, number, h)
        x = b.add(x, b.matmul(h, weight))
    graph.set_outputs([x], ["y"])
    return made


def rows(left: Module, right: Module) -> list[tuple[object, ...]]:
    report = differences(left, right, ("A", "B"))
    return [tuple(row[name] for name in ("where", "op", "value", "what")) for table in report.tables for row in table.to_data()]


def counts(report: Report) -> list[object]:
    return [report.facts[name] for name in ("same ops", "only in A", "only in B", "changed")]


def test_a_program_is_what_its_text_says_whatever_values_are_called() -> None:
    one = module()
    named = {op.result.name: f"value{place}" for place, op in enumerate(one.main)}
    other = module()
    for op in other.main:
        op.result.name = named[op.result.name]
    for same in (parse_module(module_text(one)), other):
        report = differences(one, same, ("A", "B"))
        assert report.tables == () and counts(report) == [9, 0, 0, 0]


def test_an_op_put_in_between_is_the_one_that_is_new() -> None:
    found = rows(module(), module(lambda b, number, h: b.tanh(h) if number == 1 else h))
    assert [row[:2] for row in found] == [("changed", "matmul"), ("only in B", "tanh")]
    assert str(found[0][3]).startswith("operand 0: ")


def test_attributes_weights_types_and_symbols() -> None:
    assert [(row[1], row[3]) for row in rows(module(axis=1), module(axis=0))] == [("softmax", "axis: 1 -> 0")]
    assert [(row[1], row[3]) for row in rows(module(), module(scale=2.0))] == [("matmul", "other values in @w2")]
    wide = module()
    wide.facts = wide.facts.with_range("B", 1, 128)
    assert rows(module(), wide) == [("changed", "symbol", "B", "B in 1..64 -> B in 1..128")]


def exported(axis: int = 1, is_renamed: bool = False, epsilon: float = 1e-5, shift: float = 0.0) -> Module:
    """One model as two exporters write it: other names, sums with their operands exchanged, weights in the other order, digits of f32."""
    made = Module("m")
    graph = made.functions["main"] = Graph("main")
    b = Builder(made, graph)
    batch, count = (made.declare(name, 1, high) for name, high in ((("rows", 64), ("words", 32)) if is_renamed else (("B", 64), ("S", 32))))
    x = graph.add_input("input" if is_renamed else "x", TensorType(f32, (batch, count, 4)))
    y = graph.add_input("other" if is_renamed else "y", TensorType(f32, (batch, count, 4)))
    ones, zeros = (made.add_constant(name, np.full(4, value, np.float32)) for name, value in (("one", 1.0), ("zero", 0.0)))
    h = b.layer_norm(x, ones, zeros, axes=(2,), epsilon=float(np.float32(epsilon)) if is_renamed else epsilon)
    weight = np.arange(12, dtype=np.float32).reshape(4, 3) + shift
    stored = made.add_constant("weight.t" if is_renamed else "w", weight.T.copy() if is_renamed else weight)
    bias = made.add_constant("bias", np.arange(3, dtype=np.float32))
    product = b.matmul(b.add(y, h) if is_renamed else b.add(h, y), stored, transpose_b=is_renamed)
    sums = b.add(bias, product) if is_renamed else b.add(product, bias)
    graph.set_outputs([b.softmax(sums, axis=axis)], ["result" if is_renamed else "out"])
    return made


def test_what_exporters_write_differently_is_no_difference() -> None:
    report = differences(exported(), exported(is_renamed=True), ("A", "B"))
    assert report.tables == () and counts(report) == [5, 0, 0, 0]


def test_what_is_different_is_told_under_other_names_too() -> None:
    for changed, op in (({"axis": 2}, "softmax"), ({"epsilon": 2e-5}, "layer_norm"), ({"shift": 1.0}, "matmul")):
        found = rows(exported(), exported(is_renamed=True, **changed))  # type: ignore[arg-type]
        assert [(row[0], row[1]) for row in found] == [("changed", op)], (changed, found)
    wide = exported(is_renamed=True)
    wide.facts = wide.facts.with_range("words", 1, 128)
    assert rows(exported(), wide) == [("changed", "symbol", "S", "S in 1..32 -> S in 1..128")]


def test_inputs_and_outputs_that_only_one_has() -> None:
    more = exported(is_renamed=True)
    extra = more.main.add_input("extra", TensorType(f32, (3,)))
    more.main.set_outputs([more.main.results[0], extra], ["result", "copy"])
    assert [row[:3] for row in rows(exported(), more)] == [("only in B", "input", "extra"), ("only in B", "output", "copy")]


@pytest.mark.parametrize("seed", range(12))
def test_renamed_programs_are_the_same(seed: int) -> None:
    draw = np.random.default_rng(seed)
    one, other = module(layers=6), module(layers=6)
    names = [f"n{number}" for number in draw.permutation(40)]
    for value in (*other.main.inputs, *(op.result for op in other.main)):
        value.name = names.pop()
    assert differences(one, other, ("A", "B")).tables == ()


def test_exports_of_one_model_are_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By both exporters of torch to ONNX, and by torch.export, with names and opsets of their own."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")

    class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.wide, self.narrow = torch.nn.LayerNorm(16), torch.nn.Linear(16, 24), torch.nn.Linear(24, 16)

        def forward(self, x: Any) -> Any:
            return x + self.narrow(torch.nn.functional.gelu(self.wide(self.norm(x))))

    torch.manual_seed(0)
    model, x = torch.nn.Sequential(Layer(), Layer()).eval(), torch.randn(2, 5, 16)
    sizes = {0: torch.export.Dim("B", min=1, max=8), 1: torch.export.Dim("S", min=1, max=8)}
    old, new, saved = (str(tmp_path / name) for name in ("old.onnx", "new.onnx", "m.pt2"))
    torch.onnx.export(
        model, (x,), old, dynamo=False, opset_version=17, input_names=["a"], output_names=["z"], dynamic_axes={"a": {0: "batch", 1: "seq"}}
    )
    torch.onnx.export(model, (x,), new, dynamo=True, dynamic_shapes={"input": sizes}, verbose=False)
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes={"input": sizes}), saved)
    capsys.readouterr()
    assert run(["inspect", old, "--diff", new, "-q"]) == 0
    assert "the programs are the same, but for names and sources" in capsys.readouterr().out
    assert run(["inspect", new, "--diff", saved, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # torch.export alone says how large sizes may be.
    assert {row["op"] for row in found.get("differences", ())} <= {"symbol"} and found["only in A"] == found["only in B"] == 0
    assert run(["inspect", old, "--diff", new, "--ir", "import", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stage"] == "import"
    assert run(["inspect", old, "--diff", new, "--ir", "plan"]) == 2
    assert "got --diff and --ir plan, expected import or simplify" in capsys.readouterr().err


def test_a_function_of_one_alone() -> None:
    more = module()
    more.functions["other"] = Graph("other")
    assert rows(module(), more) == [("only in B", None, None, "a function of 0 ops")]


@given(st.lists(st.sampled_from(["", "tanh", "relu"]), min_size=3, max_size=3), st.lists(st.sampled_from(["", "tanh", "relu"]), min_size=3))
def test_exchanged_the_counts_are_exchanged(ones: list[str], others: list[str]) -> None:
    def edit(names: list[str]) -> Callable[[Builder, int, Value], Value]:
        return lambda b, number, h: getattr(b, names[number])(h) if names[number] else h

    left, right = module(edit(ones)), module(edit(others))
    one, other = differences(left, right, ("A", "B")), differences(right, left, ("B", "A"))
    same, only_left, only_right, changed = counts(one)
    assert counts(other) == [same, only_right, only_left, changed]
    assert same + only_left + sum(
        row["where"] == "changed" and row["op"] != "output" for table in one.tables for row in table.to_data()
    ) == len(left.main)


def test_an_engine_is_compared_with_what_its_model_becomes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine, mlp = tmp_path / "m.ourcc", tmp_path / "mlp.onnx"
    weight = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, size]) for name, size in (("x", 4), ("y", 3))]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "m", ports[:1], ports[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), mlp)
    assert run(["build", str(mlp), "-o", str(engine)]) == 0
    capsys.readouterr()
    assert run(["inspect", str(engine), "--diff", str(mlp)]) == 0
    assert "the programs are the same" in capsys.readouterr().out
    assert run(["inspect", str(engine), "--diff", str(mlp), "--kernels"]) == 2
    assert "got --diff and --kernels, expected --diff alone" in capsys.readouterr().err
