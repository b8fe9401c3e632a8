"""Programs whose sizes only the data decide, of which some results are read for their size alone: passes and engines keep them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from generator import Case
from harness import compared, failing, optimized

from ourcc.compiler.pipeline import GRAPH_PIPELINE
from ourcc.ir.dims import Dim
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import Array, interpret
from ourcc.ir.graph.text import module_text
from ourcc.ir.types import TensorType, f32, i64

BINDERS = ("nonzero", "unique", "non_max_suppression", "item")
USERS = ("dim", "full", "iota", "broadcast_to")


class Sketch:
    """One drawn program: values that it found, sizes that they gave, and what was made of these sizes."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.module = Module("found")
        self.graph = Graph("main")
        self.module.functions["main"] = self.graph
        self.g = Builder(self.module, self.graph)
        self.x = self.graph.add_input("x", TensorType(f32, (self.module.declare("N", 1, 40),)))
        self.boxes = self.graph.add_input("boxes", TensorType(f32, (1, 5, 4)))
        self.scores = self.graph.add_input("scores", TensorType(f32, (1, 2, 5)))
        self.sizes: list[Dim] = []
        self.found: list[Value] = []
        self.made: list[Value] = []

    def bind(self) -> None:
        """An op that gives a symbol its value."""
        kind = self.draw.choice(BINDERS)
        count = self.module.declare(f"found_{len(self.sizes)}")
        source = self.draw.choice([self.x, *(value for value in self.found if value.type.rank == 1)])
        if kind == "item":
            count_of = self.g.nonzero(source, count=count)
            self.sizes.append(count)
            count = self.module.declare(f"found_{len(self.sizes)}")
            results = (self.g.item(self.g.dim(value=self.sizes[-1] + 1), symbol=count), count_of)
        elif kind == "nonzero":
            results = (self.g.nonzero(source, count=count),)
        elif kind == "unique":
            results = self.g.unique(source, count=count)
        else:
            results = (self.g.non_max_suppression(self.boxes, self.scores, limit=3, overlap=0.5, threshold=0.0, count=count),)
        self.sizes.append(count)
        self.found += results

    def use(self) -> None:
        """An op that reads no value, only sizes."""
        size = self.draw.choice(self.sizes) * self.draw.choice((1, 1, 2)) + self.draw.choice((0, 0, 1))
        kind = self.draw.choice(USERS)
        if kind == "dim":
            made = self.g.dim(value=size)
        elif kind == "full":
            made = self.g.full(shape=(size, 2), value=2.0, dtype=f32)
        elif kind == "iota":
            made = self.g.iota(shape=(size,), axis=0, dtype=i64)
        else:
            made = self.g.broadcast_to(self.g.value(np.asarray(1.5, np.float32)), shape=(size,))
        self.made.append(made)

    def finish(self) -> Case:
        """The program, which returns what it made and seldom what it found."""
        kept = [value for value in self.found if self.draw.random() < 0.2]
        outputs = [*self.draw.sample(self.made, self.draw.randint(1, len(self.made))), *kept]
        self.graph.set_outputs(outputs, [f"y{n}" for n in range(len(outputs))])
        arrays = np.random.default_rng(self.draw.getrandbits(32))
        runs = []
        for size in (1, 17):
            boxes = np.sort(arrays.random((1, 5, 2, 2)), axis=2).reshape(1, 5, 4)
            scores = arrays.standard_normal((1, 2, 5))
            given = (arrays.integers(0, 3, size), boxes, scores)
            runs.append(tuple(array.astype(np.float32) for array in given))
        return Case(self.module, tuple(runs))


def drawn(seed: str) -> Case:
    draw = random.Random(seed)
    sketch = Sketch(draw)
    sketch.bind()
    for _ in range(draw.randint(1, 6)):
        (sketch.bind if draw.random() < 0.3 else sketch.use)()
    sketch.use()
    return sketch.finish()


def test_passes_keep_what_gives_sizes_their_values(request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--seed", 0)
    cases = [drawn(f"{seed} {n}") for n in range(request.config.getoption("--cases") // 4)]
    unread = 0
    for case in cases:
        unread += sum(not any(value.uses or value in case.module.main.outputs for value in op.results) for op in case.module.main)
        module = optimized(parse_module(module_text(case.module), _arrays(case)), GRAPH_PIPELINE)
        for run in range(2):
            wrong = compared(case, run, interpret(module, case.inputs[run]))
            assert wrong is None, f"{wrong}\nbefore:\n{module_text(case.module)}\nafter:\n{module_text(module)}"
    assert unread > len(cases) // 2


def test_engines_keep_what_gives_sizes_their_values(request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--seed", 0)
    found = failing([drawn(f"engine {seed} {n}") for n in range(12)])
    assert not found, "\n".join(f"{why}\n{module_text(case.module)}" for case, why in found)


def _arrays(case: Case) -> dict[str, Array]:
    return {value.constant.digest: value.constant.array for value in case.module.constants.values() if value.constant is not None}
