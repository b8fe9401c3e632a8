"""Symbols of two programs are one where inputs show it, and never two of them at once; sizes are told in the other's names."""

from __future__ import annotations

import numpy as np

from ourcc.compiler.report.wording import Wording, has_values, inputs_paired, symbols_paired
from ourcc.ir import dims
from ourcc.ir.graph import ConstantData, Graph, Module
from ourcc.ir.types import TensorType, f32


def module(inputs: dict[str, tuple[str | int, ...]], *more: str) -> Module:
    made = Module("m")
    graph = made.functions["main"] = Graph("main")
    for name in dict.fromkeys([*(size for shape in inputs.values() for size in shape if isinstance(size, str)), *more]):
        made.declare(name, 1, 8)
    for name, shape in inputs.items():
        graph.add_input(name, TensorType(f32, tuple(dims.symbol(size) if isinstance(size, str) else size for size in shape)))
    return made


def test_inputs_are_paired_by_name_then_by_place() -> None:
    left, right = module({"a": ("B", 4), "x": ("B",), "y": ("S", 2)}), module({"p": ("n",), "a": ("n", 4), "q": ("m",)})
    assert [(one.name, other.name) for one, other in inputs_paired(left.main, right.main)] == [("a", "a"), ("x", "p")]


def test_symbols_take_each_others_names() -> None:
    left, right = module({"x": ("B", "S")}), module({"x": ("S", "B")})
    called = symbols_paired(left, right)
    assert called == {"S": "B", "B": "S"}
    assert Wording(called).type(right.main.inputs[0]) == Wording().type(left.main.inputs[0]) == "f32[B, S]"
    # What no input shows keeps its name, unless it is another's now; one symbol is not two.
    assert symbols_paired(module({"x": ("B", "S")}), module({"x": ("T", "U")}, "B")) == {"T": "B", "U": "S", "B": "B'"}
    assert symbols_paired(module({"x": ("B", "B")}), module({"x": ("T", "U")})) == {"T": "B", "U": "U"}


def test_values_that_are_not_at_hand_are_seen() -> None:
    made = module({"x": ("B",)})
    made.add_constant("w", np.zeros(2, np.float32))
    assert has_values(made)
    made.add_constant("v", ConstantData(digest="0" * 64, available=False), type=TensorType(f32, (2,)))
    assert not has_values(made)
