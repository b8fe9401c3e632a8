"""Codes of scaled sums without a division: drawn chains give the same codes but beside ties, what is left as it is and why."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module, stage_text
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import interpret
from ourcc.ir.types import DType, TensorType, f16, f32, i8, i32, u8
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.passes.quantize.fold_code_scales import FoldedScale
from ourcc.runtime.engine import Engine

SHAPE = (2, 6, 8, 10)


class Drawn:
    """Chains from sums of integers and codes to a code, each step of which a scale may pass."""

    def __init__(self, seed: int) -> None:
        self.draw, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.module = Module("net")
        self.graph = self.module.functions["main"] = Graph("main")
        self.b = Builder(self.module, self.graph)
        self.given: list[np.ndarray[Any, Any]] = []

    def constant(self, shape: tuple[int, ...], low: float, high: float) -> Value:
        return self.module.add_constant("c", self.numbers.uniform(low, high, shape).astype(np.float32))

    def scaled(self) -> Value:
        """A sum of integers, scaled, or numbers of codes."""
        channels = (SHAPE[1], 1, 1)
        if self.draw.random() < 0.5:
            total = self.graph.add_input(f"t{len(self.given)}", TensorType(i32, SHAPE))
            self.given.append(self.numbers.integers(-30000, 30000, SHAPE, np.int32))
            by = self.constant(self.draw.choice(((), channels)), 1e-4, 2e-4)
            sides = [self.b.cast(total, dtype=f32), by]
            self.draw.shuffle(sides)
            return self.b.add(self.b.mul(*sides), self.constant(channels, -1, 1))
        dtype = self.draw.choice((u8, i8))
        code = self.graph.add_input(f"t{len(self.given)}", TensorType(dtype, SHAPE))
        bounds = np.iinfo(dtype.numpy)
        self.given.append(self.numbers.integers(bounds.min, bounds.max + 1, SHAPE, dtype.numpy))
        zero = self.module.add_constant("z", np.asarray(self.draw.choice((0, 7)), dtype.numpy))
        return self.b.dequantize(code, self.constant((), 0.01, 0.03), zero, dtype=f32)

    def chain(self, depth: int = 3) -> Value:
        kind = self.draw.choice(("scaled", "add", "sub", "relu", "clip", "turn", "neg", "norm")) if depth else "scaled"
        if kind == "scaled":
            return self.scaled()
        if kind in ("add", "sub"):
            return getattr(self.b, kind)(self.chain(depth - 1), self.chain(depth - 1))
        value = self.chain(depth - 1)
        if kind == "clip":
            return self.b.minimum(self.b.maximum(value, self.constant((), -1, 0)), self.constant((), 1, 3))
        if kind == "turn":
            swap = (0, 1, 3, 2)
            return self.b.transpose(self.b.relu(self.b.transpose(value, permutation=swap)), permutation=swap)
        if kind == "norm":
            return self.b.layer_norm(value, self.constant((10,), 0.5, 2), self.constant((10,), -1, 1), axes=(3,), epsilon=1e-5)
        return getattr(self.b, kind)(value)

    def finish(self, dtype: DType) -> None:
        self.wide = self.chain()
        self.scale, self.zero = np.float32(self.draw.uniform(0.01, 0.05)), np.asarray(self.draw.choice((0, 3)), dtype.numpy)
        scale, zero = self.module.add_constant("s", self.scale), self.module.add_constant("z", self.zero)
        self.graph.set_outputs([self.b.quantize(self.wide, scale, zero, dtype=dtype), self.wide])


@pytest.mark.parametrize("dtype", [u8, i8], ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_codes_are_the_same_but_beside_ties(seed: int, dtype: DType) -> None:
    """A code that another rounding made is the other of two that are as near."""
    case = Drawn(seed)
    case.finish(dtype)
    (code, _), (_, exact) = interpret(case.module, case.given), interpret(case.module, case.given, wide=True)
    case.graph.set_outputs([case.graph.outputs[0]])
    PassManager(parse_pipeline("fold_code_scales, eliminate_dead_code"), strict=True).run(case.module)
    (coder,) = [op for op in case.module.main if op.name == "quantize"]
    assert coder.operands[1] is None
    (folded,) = interpret(case.module, case.given)
    built = np.asarray(Engine(compile_module(case.module, build_options({"target": "native", "tune": "off"})), threads=1)(*case.given))
    wanted = exact.astype(np.float64) / float(case.scale)
    beside = np.abs(np.abs(wanted - np.round(wanted)) - 0.5) < 1e-4 * (1 + np.abs(wanted))
    for each in (folded, built):
        differs = each != code
        assert not (differs & ~beside).any() and np.abs(each.astype(int) - code.astype(int)).max() <= 1
        assert differs.mean() < 0.01


def test_what_overflows_still_does() -> None:
    """Numbers of codes that are infinite become the last code, divided by their own scale too."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(u8, (64,)))
    scale = module.add_constant("s", np.float32(1e38))
    graph.set_outputs([b.quantize(b.relu(b.dequantize(x, scale, dtype=f32)), scale, dtype=u8)])
    codes = np.arange(64, dtype=np.uint8)
    with np.errstate(all="ignore"):
        (expected,) = interpret(module, [codes])
    assert expected.max() == 255
    np.testing.assert_array_equal(np.asarray(Engine(compile_module(module, build_options({"tune": "off"})), threads=1)(codes)), expected)


def coded(value: Any, scale: Any = 0.02, dtype: DType = u8, **attrs: Any) -> str | None:
    """Why the rule leaves a code of `value(builder, input)` as it is."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(i32, (4, 8)))
    kept = graph.add_input("s", TensorType(f32, ())) if scale is None else module.add_constant("s", np.asarray(scale, np.float32))
    graph.set_outputs([b.quantize(value(b, x), kept, None, dtype=dtype, **attrs)])
    return next(FoldedScale().check(op, module) for op in module.main if op.name == "quantize")


def test_what_is_left_as_it_is_says_why() -> None:
    def scaled(b: Builder, x: Value, by: float = 0.01) -> Value:
        return b.mul(b.cast(x, dtype=f32), b.module.add_constant("a", np.full(8, by, np.float32)))

    assert coded(scaled) is None
    assert coded(scaled, scale=None) == "the scale is known at run time alone"
    for scale in (0.0, -1.0, np.inf, np.nan, 1e-40):
        assert coded(scaled, scale=scale) == "the scale is zero, negative, denormal or no number"
    assert coded(scaled, scale=np.linspace(1, 2, 8), axis=1) == "no numbers in f32 become integers by one scale"
    assert coded(lambda b, x: scaled(b, x, 1e-38), scale=1e3) == "a constant is too large, or its quotient has fewer digits"
    assert coded(lambda b, x: scaled(b, x, 1e38), scale=1e-3) == "a constant is too large, or its quotient has fewer digits"
    assert coded(lambda b, x: b.tanh(scaled(b, x))) == "tanh is not divided by a constant of its own"
    assert coded(lambda b, x: b.cast(x, dtype=f32)) == "cast is not divided by a constant of its own"
    assert coded(lambda b, x: b.mul(scaled(b, x), b.cast(x, dtype=f32))) == "mul is not divided by a constant of its own"

    def twice(b: Builder, x: Value) -> Value:
        value = b.relu(scaled(b, x))
        return b.add(value, value)

    assert coded(twice) == "something else reads what is divided"
    assert coded(lambda b, x: b.cast(b.mul(b.cast(x, dtype=f16), np.float16(2)), dtype=f16)) == (
        "no numbers in f32 become integers by one scale"
    )


def test_a_scale_of_one_divides_nothing() -> None:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(f32, (4, 64)))
    graph.set_outputs([b.quantize(b.tanh(x), module.add_constant("s", np.float32(1)), None, dtype=i8)])
    PassManager(parse_pipeline("fold_code_scales"), strict=True).run(module)
    assert "div(" not in stage_text(module, build_options({"target": "native"}), "tiles")
