"""Text, verifier and passes stay near-linear in the number of ops."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

from ourcc.compiler.pipeline import GRAPH_PIPELINE
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.text import module_text
from ourcc.ir.scan import parse_type
from ourcc.passes import load_pass
from ourcc.passes.fusion.choices import Choices
from ourcc.passes.fusion.partition import decided
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline


def layers(count: int) -> Module:
    module = Module("m")
    module.declare("B", 1, 32)
    graph = Graph("main")
    module.functions["main"] = graph
    x = graph.add_input("x", parse_type("f32[B, 16]"))
    weight = module.add_constant("w", np.full((16, 16), 0.25, np.float32))
    g = Builder(module, graph)
    for _ in range(count):
        h = g.mul(g.matmul(x, g.transpose(weight, permutation=(1, 0))), 1.0)
        gelu = g.mul(g.mul(h, g.add(g.erf(g.div(h, 1.4142135)), 1.0)), 0.5)
        g.exp(gelu)
        x = g.add(x, g.reshape(g.reshape(gelu, shape=(*x.shape[:1], 4, 4)), shape=x.shape))
    graph.set_outputs([x])
    return module


def chain(count: int) -> Module:
    """One after the other: pointwise ops and a transpose."""
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    x = graph.add_input("x", parse_type("f32[16, 16]"))
    g = Builder(module, graph)
    for _ in range(count):
        x = g.transpose(g.neg(g.tanh(x)), permutation=(1, 0))
    graph.set_outputs([x])
    return module


def counted(work: Callable[[], object]) -> int:
    """How many functions, Python's and C's, are called."""
    seen = 0

    def watch(frame: object, event: str, argument: object) -> None:
        nonlocal seen
        seen += event in ("call", "c_call")

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen


def calls(count: int) -> int:
    """The calls of the manager and of the text both ways."""
    module = layers(count)

    def work() -> None:
        parse_module(module_text(module))
        PassManager(parse_pipeline(f"{GRAPH_PIPELINE}, join_products")).run(module)
        PassManager([load_pass("eliminate_dead_code")()]).run(module)

    seen = counted(work)
    # The weight is shared by all layers, so its transpose is folded once.
    assert [op.name for op in module.main] == ["matmul", "gelu", "add"] * count
    return seen


@pytest.mark.parametrize("family", [layers, chain])
def test_choices_of_fusion_grow_with_the_ops(family: Callable[[int], Module]) -> None:
    def work(count: int) -> int:
        module = family(count)
        return counted(lambda: decided(Choices(module, module.main, {}, {"B": 4})))

    work(2)
    few, many = work(100), work(400)
    assert many < 4.5 * few, (few, many)


def test_four_times_the_ops_take_about_four_times_the_calls():
    calls(2)  # what is remembered from the first use
    few, many = calls(40), calls(160)
    # A quadratic step would make it 16.
    assert many < 4.5 * few, (few, many)
