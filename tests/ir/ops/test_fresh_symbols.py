"""Sizes that only the data decide: a fresh symbol is bound when its op has run, and later ops may use it."""

import numpy as np

import ourcc.ir.ops  # noqa: F401 - declares the ops
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.reference import interpret
from ourcc.ir.types import TensorType, boolean, f32, i64


def test_a_bound_size_is_used_by_later_ops():
    module = Module("m")
    size, found = module.declare("N"), module.declare("found")
    graph = Graph("main")
    module.functions["main"] = graph
    keep = graph.add_input("keep", TensorType(boolean, (size,)))
    g = Builder(module, graph)
    places = g.nonzero(keep, count=found)
    assert places.type == TensorType(i64, (1, found))
    flat = g.reshape(places, shape=(found,))
    numbers = g.iota(shape=(found,), axis=0, dtype=i64)
    graph.set_outputs([g.add(flat, numbers), g.full(shape=(found, 2), value=1.0, dtype=f32)])
    for count in (0, 2, 3):
        given = np.arange(5) < count
        total, ones = interpret(module, [given])
        np.testing.assert_array_equal(total, 2 * np.arange(count))
        assert ones.shape == (count, 2)
