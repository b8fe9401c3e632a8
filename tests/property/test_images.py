"""Drawn networks of images: results of convolutions, pools and resizes that leave the graph, are read again, or both."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from generator import Case
from harness import failing

from ourcc.compiler.backends.cpu import lower_cpu
from ourcc.compiler.options import BuildOptions
from ourcc.compiler.pipeline import simplify
from ourcc.ir import dims
from ourcc.ir.graph import Builder, ConstantData, Graph, Module, Op, Value
from ourcc.ir.graph.text import module_text
from ourcc.ir.region import Reduce
from ourcc.ir.target import AVX2, AVX512
from ourcc.ir.types import TensorType, f32
from ourcc.passes.lower.schedule import cheapest

GROUP = 10


class Images:
    """A module under construction: a batch of images, then ops on what is there; several values are results."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.module = Module("images")
        self.graph = self.module.functions["main"] = Graph("main")
        self.builder = Builder(self.module, self.graph)
        self.rank = draw.choice((1, 2, 2, 2))
        batch: dims.Dim = self.module.declare(draw.choice(("N", "i", "i0", "N0")), 1, 4) if draw.random() < 0.4 else draw.choice((1, 2))
        shape = (batch, draw.choice((1, 3, 8, 16, 20)), *(draw.choice((5, 8, 13, 17)) for _ in range(self.rank)))
        self.values = [self.graph.add_input("x", TensorType(f32, shape))]

    def weight(self, *shape: int) -> Value:
        numbers = np.random.default_rng(self.draw.randrange(1 << 30)).normal(size=shape) / np.sqrt(max(1, np.prod(shape[1:])))
        return self.module.add_constant(f"w{len(self.module.constants)}", ConstantData(numbers.astype(np.float32)))

    def amounts(self, *choices: int) -> tuple[int, ...]:
        return tuple(self.draw.choice(choices) for _ in range(self.rank))

    def conv(self, x: Value) -> Value:
        channels = int(x.shape[1])
        groups = self.draw.choice([g for g in (1, 1, 1, 2, 4, channels) if channels % g == 0])
        outputs = groups * self.draw.choice((1, 4, 8) if groups > 1 else (1, 4, 16, 24))
        window = self.amounts(1, 2, 3, 3, 5)
        bias = self.weight(outputs) if self.draw.random() < 0.5 else None
        before = tuple(size // 2 for size in window) if self.draw.random() < 0.7 else self.amounts(2, 3)
        filters = self.weight(outputs, channels // groups, *window)
        steps = {"strides": self.amounts(1, 1, 2), "dilations": self.amounts(1, 1, 2)}
        # Padding enough for a window with holes.
        after = tuple(n + size for n, size in zip(before, window, strict=True))
        return self.builder.conv(x, filters, bias, before=before, after=after, groups=groups, **steps)

    def conv_transpose(self, x: Value) -> Value:
        channels = int(x.shape[1])
        groups = self.draw.choice([g for g in (1, 1, 2, channels) if channels % g == 0])
        outputs = groups * self.draw.choice((1, 4, 8))
        window, strides = self.amounts(2, 3, 4), self.amounts(1, 2, 2, 3)
        bias = self.weight(outputs) if self.draw.random() < 0.5 else None
        filters = self.weight(channels, outputs // groups, *window)
        more = {"before": self.amounts(0, 1), "after": self.amounts(0, 1), "output_padding": self.amounts(0, 0, 1)}
        return self.builder.conv_transpose(x, filters, bias, strides=strides, dilations=self.amounts(1, 1, 1, 2), groups=groups, **more)

    def pool(self, x: Value) -> Value:
        attrs = {"window": self.amounts(2, 3), "strides": self.amounts(1, 2), "before": self.amounts(0, 1), "after": self.amounts(1, 2)}
        build = self.builder.max_pool if self.draw.random() < 0.5 else self.builder.avg_pool
        return build(x, dilations=(1,) * self.rank, **attrs)

    def pointwise(self, x: Value) -> Value:
        return self.draw.choice((self.builder.relu, self.builder.sigmoid))(x)

    def joined(self, x: Value) -> Value:
        same = [v for v in self.values if v.type.rank == x.type.rank and v.shape[2:] == x.shape[2:]]
        other = self.draw.choice(same)
        if other.shape == x.shape and self.draw.random() < 0.5:
            return self.builder.add(x, other)
        return self.builder.concat(x, other, axis=1)

    def grow(self) -> None:
        steps = (self.conv, self.conv, self.conv, self.conv_transpose, self.pool, self.pointwise, self.pointwise, self.joined)
        x = self.draw.choice(self.values[-2:])
        small = np.prod([int(size) for size in x.shape[1:]]) < 20_000
        self.values.append(self.draw.choice(steps if small else steps[4:7])(x))

    def finish(self) -> Case:
        ends = [v for v in self.values[1:] if not v.uses]
        others = [v for v in self.values[1:] if v.uses and self.draw.random() < 0.3]
        results = [*ends, *others]
        self.graph.set_outputs(results, [f"y{n}" for n in range(len(results))])
        return Case(self.module, tuple(self._inputs(run) for run in range(2)))

    def _inputs(self, run: int) -> tuple[np.ndarray, ...]:
        shape = tuple(size if isinstance(size, int) else 3 - run for size in self.values[0].shape)
        return (np.random.default_rng(run).normal(size=shape).astype(np.float32),)


def images(draw: random.Random) -> Case:
    sketch = Images(draw)
    for _ in range(draw.randint(1, 5)):
        sketch.grow()
    return sketch.finish()


def test_images_that_leave_the_graph_are_right(request: pytest.FixtureRequest) -> None:
    draw = random.Random(request.config.getoption("--seed", 0))
    count = max(1, request.config.getoption("--cases") // 40)
    drawn = [images(draw) for _ in range(count)]
    wrong = [found for n in range(0, count, GROUP) for found in failing(drawn[n : n + GROUP])]
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(f"{why}\n{module_text(case.module)}" for case, why in wrong[:3])


def is_dense(op: Op) -> bool:
    """Whether a convolution has vectors of outputs that share a window of more than a few elements."""
    if op.name != "conv" or op.attrs["groups"] != 1:
        return False
    shape = [int(size) for size in op.operands[1].shape]
    return shape[0] >= 16 and math.prod(shape[1:]) >= 8


def test_every_dense_convolution_runs_in_register_blocks(request: pytest.FixtureRequest) -> None:
    draw = random.Random(request.config.getoption("--seed", 0))
    count, wrong, asked = max(1, request.config.getoption("--cases") // 10), [], 0
    for number in range(count):
        case = images(draw)
        simplify(case.module, BuildOptions())
        level = (AVX2, AVX512)[number % 2]
        for unit in lower_cpu(case.module, level, cheapest(level)).scheduled.values():
            if any(is_dense(op) for op in unit.group.ops):
                asked += 1
                # The copy into row-major order names the op whose result it copies.
                if unit.schedule.strategy != "packed" and any(isinstance(s, Reduce) for s in unit.problem.region.body):
                    wrong.append(f"{unit.schedule}: {unit.problem.region}\n{module_text(case.module)}")
    assert asked
    assert not wrong, f"{len(wrong)} of {asked} kernels in {count} modules:\n" + "\n".join(wrong[:2])
