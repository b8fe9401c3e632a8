"""Convolutions of codes by codes, drawn: groups of any size, zero points that fit and that do not, on every level the same integers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir import dims
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import interpret
from ourcc.ir.target import CPU_LEVELS
from ourcc.ir.types import DType, TensorType, f32, i8, i32, u8
from ourcc.runtime.engine import Engine

LEVELS = [level.name for level in CPU_LEVELS if level.name != "x86-64"]


class Drawn:
    """A convolution of what a seed says: `given` is its image, with the zero point that a call brings if there is such."""

    def __init__(self, seed: int) -> None:
        draw, self.numbers = random.Random(seed), np.random.default_rng(seed)
        rank = draw.choice((1, 2, 2, 2, 3))
        self.groups = draw.choice((1, 1, 2, 3, 8, 17))
        self.inputs, self.outputs = draw.choice((1, 1, 1, 2, 3, 4, 8)), draw.choice((1, 1, 2, 4, 8))
        self.sizes = tuple(draw.choice((7, 9, 16)) for _ in range(rank))
        self.window = tuple(draw.choice((1, 2, 3, 3, 5)) for _ in range(rank))
        ones = (1,) * rank
        self.attrs: dict[str, Any] = {
            "strides": tuple(draw.choice((1, 1, 2)) for _ in range(rank)),
            "dilations": ones if draw.random() < 0.7 else (2,) * rank,
            "before": tuple(draw.choice((0, 1, 2)) for _ in range(rank)),
            "after": tuple(draw.choice((2, 3)) for _ in range(rank)),
            "groups": self.groups,
        }
        self.left, self.right = draw.choice((u8, i8)), draw.choice((u8, i8))
        self.brought, self.apart, self.is_scaled, self.is_open = (draw.random() < p for p in (0.4, 0.5, 0.6, 0.3))

    def codes(self, dtype: DType, *shape: int) -> Any:
        low, high = (0, 255) if dtype == u8 else (-128, 127)
        drawn = self.numbers.integers(low, high + 1, shape)
        return np.where(self.numbers.random(shape) < 0.3, self.numbers.choice([low, high], shape), drawn).astype(dtype.numpy)

    def module(self) -> Module:
        module = Module("images")
        graph = module.functions["main"] = Graph("main")
        b = Builder(module, graph)
        batch: dims.Dim = module.declare("B", 1, 3) if self.is_open else 2
        x = graph.add_input("x", TensorType(self.left, (batch, self.groups * self.inputs, *self.sizes)))
        zero: Any = graph.add_input("zero", TensorType(self.left, ())) if self.brought else self.codes(self.left)
        outputs = self.groups * self.outputs
        w = module.add_constant("w", self.codes(self.right, outputs, self.inputs, *self.window))
        others = module.add_constant("zeros", self.codes(self.right, *((outputs,) if self.apart and self.is_scaled else ())))
        if self.is_scaled:
            scales = self.numbers.uniform(0.01, 0.1, outputs).astype(np.float32)
            left: Value = b.dequantize(x, np.float32(0.05), zero, dtype=f32)
            right: Value = b.dequantize(w, scales, others if self.apart else None, axis=0, dtype=f32)
        else:
            left = b.sub(b.cast(x, dtype=i32), b.cast(zero, dtype=i32) if isinstance(zero, Value) else zero.astype(np.int32))
            right = b.sub(b.cast(w, dtype=i32), b.cast(others, dtype=i32))
        graph.set_outputs([b.conv(left, right, **self.attrs)])
        return module

    def given(self, batch: int) -> list[Any]:
        x = self.codes(self.left, batch, self.groups * self.inputs, *self.sizes)
        return [x, self.codes(self.left)] if self.brought else [x]


def test_what_is_drawn_has_what_it_is_for() -> None:
    every = [Drawn(seed) for seed in range(60)]
    for level in range(len(LEVELS)):
        each = every[level :: len(LEVELS)]
        assert any(drawn.inputs == 1 and drawn.groups > 1 for drawn in each)
        assert any(drawn.right == u8 for drawn in each) and any(drawn.brought for drawn in each)
    assert any(drawn.groups > 1 and drawn.inputs % 4 and drawn.right == u8 and drawn.brought for drawn in every)


@pytest.mark.parametrize("seed", range(60))
def test_images_of_codes_are_summed_exactly(seed: int) -> None:
    drawn = Drawn(seed)
    module = drawn.module()
    engine = Engine(compile_module(module, build_options({"emulate": LEVELS[seed % len(LEVELS)], "tune": "off"})))
    rows = [row for row in engine.contents.report["contract"] if row["op"] == "conv"]
    assert all("fp32" not in row["realised"].split(", ") for row in rows), rows
    for batch in (1, 3) if drawn.is_open else (2,):
        given = drawn.given(batch)
        (expected,) = interpret(module, given, wide=True)
        got = np.asarray(engine(*given))
        if got.dtype == np.int32:
            np.testing.assert_array_equal(got, expected)
        else:
            np.testing.assert_allclose(got, expected, rtol=4 * 2.0**-24, atol=4 * 2.0**-24 * np.abs(expected).max())


@pytest.mark.parametrize("turned", [False, True])
def test_what_pads_the_channels_of_an_image_is_no_kernel(turned: bool) -> None:
    """A convolution of each channel copies its image with the zero point around it, whatever order that comes in."""
    module, numbers = Module("images"), np.random.default_rng(3)
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    around: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1)}
    x = graph.add_input("x", TensorType(u8, (1, 9, 8, 32) if turned else (1, 32, 9, 8)))
    image: Value = b.transpose(x, permutation=(0, 3, 1, 2)) if turned else x
    scales = numbers.uniform(0.01, 0.1, 32).astype(np.float32)

    def coded(value: Value) -> Value:
        return b.dequantize(value, np.float32(0.05), np.uint8(124), dtype=f32)

    def filters(*shape: int) -> Value:
        return b.dequantize(module.add_constant("w", numbers.integers(-128, 128, shape).astype(np.int8)), scales, axis=0, dtype=f32)

    if not turned:  # the channels of what a convolution gives lie innermost
        wide = b.conv(coded(image), filters(32, 32, 1, 1), before=(0, 0), after=(0, 0), groups=1, **around)
        image = b.quantize(wide, np.float32(0.5), np.uint8(124), dtype=u8)
    graph.set_outputs([b.conv(coded(image), filters(32, 1, 3, 3), before=(1, 1), after=(1, 1), groups=32, **around)])
    engine = Engine(compile_module(module, build_options({"tune": "off"})))
    (rows,) = engine.contents.report["kernels"].values()
    strategies = [row["strategy"].partition("{")[0] for row in rows if "strategy" in row]
    assert strategies.count("windows") == 1 and len(strategies) <= (2 if turned else 4)
    given = numbers.integers(0, 256, [dims.number(size) for size in x.shape]).astype(np.uint8)
    (expected,) = interpret(module, [given], wide=True)
    np.testing.assert_allclose(np.asarray(engine(given)), expected, rtol=1e-6, atol=1e-5)
