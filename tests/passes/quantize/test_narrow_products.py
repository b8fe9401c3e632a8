"""Products of 16 bits: what is rounded, once, where it is stored so, and that the answers are as near as 16 bits allow."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ourcc.compiler.contract import is_notable
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module, lower
from ourcc.compiler.targets.registry import TARGETS
from ourcc.ir.errors import ContractError, UnsupportedError
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.types import TensorType, bf16, f32, f64
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.passes.quantize.narrow_products import why_not
from ourcc.runtime.engine import Engine

STEPS = "narrow_products, sink_casts, fold_constants, eliminate_common_subexpressions, eliminate_dead_code"


def drawn(seed: int) -> Module:
    """Two products of one value, what is between them moved or computed, a product of two computed values, a convolution."""
    draw = random.Random(seed)
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b, numbers = Builder(module, graph), np.random.default_rng(seed)
    rows, width, inner = module.declare("B", 1, 8), draw.choice((6, 16, 33)), draw.choice((8, 24, 34))

    def constant(*shape: int) -> object:
        return module.add_constant(f"w{len(module.constants)}", numbers.standard_normal(shape).astype(np.float32))

    x = graph.add_input("x", TensorType(f32, (rows, width)))
    first = b.matmul(x, constant(inner, width), transpose_b=True)
    second = b.matmul(x, constant(width, inner))
    moved = b.transpose(b.gelu(b.add(first, constant(inner))), permutation=(1, 0)) if draw.random() < 0.5 else b.relu(first)
    turned = moved.shape[0] == inner
    both = b.matmul(second, moved, transpose_b=not turned)
    image = b.reshape(second, shape=(rows, 1, 1, inner))
    conv = b.conv(
        b.broadcast_to(image, shape=(rows, 3, 5, inner)),
        constant(4, 3, 3, 3),
        constant(4) if draw.random() < 0.5 else None,
        strides=(1, 1),
        dilations=(1, 1),
        before=(1, 1),
        after=(1, 1),
    )
    graph.set_outputs([both, conv, b.reduce_max(first, axes=(1,), keepdims=False)])
    return module


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_answers_are_as_near_as_the_factors_allow(seed: int, precision: str) -> None:
    module = drawn(seed)
    x = np.random.default_rng(seed + 100).standard_normal((5, int(str(module.main.arguments[0].shape[1])))).astype(np.float32)
    exact = interpret(module, [x], wide=True)
    contents = compile_module(module, build_options({"target": "native", "precision": precision}))
    stepwise = interpret(module, [x])
    for got, step, right in zip(Engine(contents, threads=1)(x), stepwise, exact, strict=True):
        # Narrow in the same places as the program says, which may round a factor the other way in f32 than in f64.
        assert judge(np.asarray(got), step, right, digits={"bf16": 8, "fp16": 11}[precision]).passed
    products = [op for op in module.main if op.name in ("matmul", "conv")]
    assert len(products) == 4 and all(op.attrs["wide"] and op.result.dtype == f32 for op in products)


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_what_products_read_is_stored_in_16_bits(target: str) -> None:
    text = """module @m {
  func @main(%x: f32[32, 64], %w1: f32[64, 64], %w2: f32[64, 64]) -> f32[32, 64] {
    %a = layer_norm(%x, _, _) {axes = [1], epsilon = 1e-05} : f32[32, 64]
    %b = matmul(%a, %w1) {transpose_b = true} : f32[32, 64]
    %c = gelu(%b) : f32[32, 64]
    %y = matmul(%c, %w2) {transpose_b = true} : f32[32, 64]
    return %y
  }
}"""
    module = parse_module(text)
    PassManager(parse_pipeline(STEPS)).run(module)
    plan = lower(module, TARGETS[target]).plan
    kept = [buffer for buffer in plan.buffers if str(buffer.type).startswith("bf16[32")]
    assert len(kept) == 2 and not [b for b in plan.buffers if str(b.type).startswith("f32[32") and "slot" in str(b.storage).lower()]


def test_a_value_that_several_products_read_is_rounded_once() -> None:
    module = drawn(1)
    PassManager(parse_pipeline(STEPS)).run(module)
    (x,) = module.main.arguments
    assert [op.name for op in x.uses] == ["cast"]


def test_the_contract_says_what_was_narrowed_and_what_was_not() -> None:
    import torch

    import ourcc

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(x).reshape(1, 2, 8, 8)
            return torch.nn.functional.scaled_dot_product_attention(y, y, y).softmax(-1)

    engine = ourcc.build(Net(), (torch.randn(8, 16),), precision="bf16")
    rows = {row.op: row for row in engine.contract}
    assert (rows["linear"].requested, rows["linear"].realised, rows["linear"].why) == ("bf16", "bf16", "")
    assert (rows["attention"].requested, rows["attention"].realised, rows["attention"].why) == ("bf16", "bf16", "")
    assert (rows["softmax"].requested, rows["softmax"].realised) == ("fp32", "fp32")
    with pytest.raises(ContractError, match="softmax:bf16"):
        ourcc.build(Net(), (torch.randn(8, 16),), precision="bf16", require=["linear:bf16", "attention:bf16", "softmax:bf16"])
    with pytest.raises(UnsupportedError, match="linear at fp64 is not converted to bf16 yet"):
        ourcc.build(Net().double(), (torch.randn(8, 16, dtype=torch.float64),), precision="bf16")


def test_moves_are_asked_for_in_the_precision_of_what_they_move() -> None:
    """What attention gives, and what a product reads, is moved narrow and widened behind: the contract tells of no exception."""
    import torch

    import ourcc

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(x).reshape(1, 8, 2, 8).transpose(1, 2)
            z = torch.nn.functional.scaled_dot_product_attention(y, y, y).transpose(1, 2).reshape(8, 16)
            return self.outer((x + z).reshape(4, 2, 16).transpose(0, 1))

    rows = ourcc.build(Net(), (torch.randn(8, 16),), precision="bf16").contract
    moves = [row for row in rows if row.op == "transpose" and row.runs == "kernel"]
    assert {row.realised for row in moves} == {"bf16"}
    assert [row for row in rows if is_notable(row)] == []


def test_weights_with_scales_are_read_in_16_bits() -> None:
    module = drawn(3)
    contents = compile_module(module, build_options({"target": "native", "precision": "bf16", "quantize": "int8-weight"}))
    ops = list(parse_module(contents.graph).main)
    assert {why_not(op) for op in ops if op.name == "matmul"} == {"its factors are bf16, not f32"}
    read = [op for op in ops if op.name == "dequantize"]
    assert read and {op.attrs["dtype"] for op in read} == {bf16}


def test_what_a_call_makes_codes_of_is_multiplied_as_it_is() -> None:
    module = drawn(3)
    PassManager(parse_pipeline("quantize_int8_weight, quantize_activations")).run(module)
    reasons = [why_not(op) for op in module.main if op.name == "matmul"]
    assert "it multiplies codes that each call makes, as they are" in reasons


def test_refusals_have_sentences() -> None:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x, y = (graph.add_input(name, TensorType(dtype, (4, 4))) for name, dtype in (("x", f64), ("y", bf16)))
    ops = [b.matmul(x, x).op, b.matmul(y, y).op, b.add(x, x).op]
    assert [why_not(op) for op in ops] == [
        "its factors are f64, not f32",
        "its factors are bf16, not f32",
        "only the factors of matmul, conv and attention are rounded, add takes them as they are",
    ]
