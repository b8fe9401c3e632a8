"""Text, verifier and passes stay near-linear in the number of ops."""

from __future__ import annotations

import time

import numpy as np

from ourcc.compiler.pipeline import GRAPH_PIPELINE
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.parse import parse_module, parse_type
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


def seconds(count: int) -> float:
    """The better of two runs: everything that the manager does, and the text both ways."""
    times = []
    for _ in range(2):
        module = layers(count)
        start = time.perf_counter()
        parse_module(module_text(module))
        PassManager(parse_pipeline(GRAPH_PIPELINE)).run(module)
        PassManager([load_pass("eliminate_dead_code")()]).run(module)
        times.append(time.perf_counter() - start)
        # The weight is shared by all layers, so its transpose is folded once.
        assert [op.name for op in module.main] == ["matmul", "gelu", "add"] * count
    return min(times)


def test_eight_times_the_ops_take_about_eight_times_as_long():
    few, many = seconds(80), seconds(640)
    # A quadratic step would make it 64; the bound leaves room for a noisy machine.
    assert many < 24 * max(few, 0.02), (few, many)
    assert many < 20
