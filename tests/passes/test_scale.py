"""Text, verifier and passes stay near-linear in the number of ops."""

from __future__ import annotations

import sys

import numpy as np

from ourcc.compiler.pipeline import GRAPH_PIPELINE
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.parse import parse_module
from ourcc.ir.scan import parse_type
from ourcc.ir.text import module_text
from ourcc.passes import load_pass
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


def calls(count: int) -> int:
    """How many functions, Python's and C's, are called by the manager and the text both ways."""
    module = layers(count)
    seen = 0

    def watch(frame: object, event: str, argument: object) -> None:
        nonlocal seen
        seen += event in ("call", "c_call")

    sys.setprofile(watch)
    try:
        parse_module(module_text(module))
        PassManager(parse_pipeline(f"{GRAPH_PIPELINE}, join_products")).run(module)
        PassManager([load_pass("eliminate_dead_code")()]).run(module)
    finally:
        sys.setprofile(None)
    # The weight is shared by all layers, so its transpose is folded once.
    assert [op.name for op in module.main] == ["matmul", "gelu", "add"] * count
    return seen


def test_four_times_the_ops_take_about_four_times_the_calls():
    calls(2)  # what is remembered from the first use
    few, many = calls(40), calls(160)
    # A quadratic step would make it 16.
    assert many < 4.5 * few, (few, many)
