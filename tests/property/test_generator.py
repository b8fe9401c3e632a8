"""What the generator takes back: results that a right program may round to something else than the judge accepts."""

from __future__ import annotations

import numpy as np
import pytest
from generator import Run, _terms, accepts

from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import Array
from ourcc.ir.types import type_of


class Program:
    """Ops on given arrays, with what one run of them knows."""

    def __init__(self, *arrays: Array) -> None:
        module, graph = Module("case"), Graph("main")
        module.functions["main"] = graph
        self.build = Builder(module, graph)
        self.run = Run({}, np.random.default_rng(0))
        self.inputs = [graph.add_input(f"x{n}", type_of(array)) for n, array in enumerate(arrays)]
        for value, array in zip(self.inputs, arrays, strict=True):
            self.run.set(value, array)

    def accepts(self, value: Value) -> bool:
        assert value.op is not None
        return accepts(self.run, value.op)


def test_a_sum_has_as_many_terms_as_it_folds() -> None:
    program = Program(np.ones((2, 6, 4), np.float32), np.ones((3, 6, 3), np.float32), np.ones((5, 4, 7), np.float32))
    x, w, y = program.inputs
    b = program.build
    attrs = {"strides": (1,), "dilations": (1,), "before": (0,), "after": (0,)}
    found = {
        18: b.conv(x, w, **attrs),
        4: b.matmul(b.reshape(x, shape=(12, 4)), y),
        24: b.sum(x, axes=(1, 2)),
        7: b.cumsum(y, axis=2),
        1: b.mul(x, x),
    }
    assert {terms: _terms(value.op, {}) for terms, value in found.items() if value.op is not None} == {n: n for n in found}


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_the_sign_of_a_zero_that_a_sum_gives_is_not_asked_for(zero: float) -> None:
    program = Program(np.array([zero, 1.0], np.float32))
    total = program.build.cumsum(program.inputs[0], axis=0)
    assert program.accepts(total)
    assert not program.accepts(program.build.atan2(total, total))
    assert program.accepts(program.build.abs(total))


def test_a_power_of_a_long_sum_is_not_asked_for() -> None:
    """A sum of 64 numbers that is 12 may be off by a few units in its last place, and its exponential by as many times 12."""
    array = np.random.default_rng(2).uniform(-1, 1, (1, 64)).astype(np.float32)
    array += np.float32((12 - array.sum()) / array.size)
    program = Program(array, np.ones((64, 1), np.float32))
    product = program.build.matmul(*program.inputs)
    assert program.accepts(product)
    assert not program.accepts(program.build.exp(product))
    assert program.accepts(program.build.tanh(product))
