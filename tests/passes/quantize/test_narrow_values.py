"""Residuals in 16 bits: who reads what products read, and in which type kernels store it."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module, stage_text
from ourcc.ir.errors import UsageError
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import interpret
from ourcc.ir.types import TensorType, bf16, f32
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.passes.quantize.narrow_values import NarrowValues
from ourcc.runtime.engine import Engine


def residual(blocks: int = 3) -> Module:
    """x -> relu(x + product(relu(product(x)))), again and again; a norm reads the last one, and the caller too."""
    module, numbers = Module("net"), np.random.default_rng(0)
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    w = module.add_constant("w", (numbers.standard_normal((64, 64)) / 8).astype(np.float32))
    value = b.relu(b.add(b.matmul(graph.add_input("x", TensorType(f32, (24, 64))), w), module.add_constant("b", np.ones(64, np.float32))))
    for _ in range(blocks):
        inner = value
        for _ in range(2):
            w = module.add_constant("w", (numbers.standard_normal((64, 64)) / 8).astype(np.float32))
            inner = b.relu(b.matmul(inner, w))
        value = b.relu(b.add(value, inner))
    normed = b.layer_norm(value, None, None, axes=(1,), epsilon=1e-5)
    graph.set_outputs([b.matmul(value, module.add_constant("v", np.eye(64, dtype=np.float32))), normed, value])
    return module


def narrowed() -> Module:
    module = residual()
    tidy = "sink_casts, canonicalize, fold_constants, eliminate_common_subexpressions, eliminate_dead_code"
    PassManager(parse_pipeline(f"narrow_products{{dtype=bf16}}, {tidy}, narrow_values"), strict=True).run(module)
    return module


def test_sums_read_what_products_read() -> None:
    module = narrowed()
    _, *sums = [op for op in module.main if op.name == "add"]  # the first one is that of a bias
    for op in sums:
        assert op.operands[0] is not None and op.operands[0].op is not None
        wide = op.operands[0].op
        assert wide.name == "cast" and wide.operands[0] is not None and wide.operands[0].dtype == bf16
    (norm,) = [op for op in module.main if op.name == "layer_norm"]
    assert norm.operands[0] is module.main.outputs[2] and norm.operands[0].op is not None and norm.operands[0].op.name == "relu"


def test_kernels_store_residuals_in_16_bits_as_the_program_says() -> None:
    x = np.random.default_rng(1).standard_normal((24, 64)).astype(np.float32)
    contents = compile_module(residual(), build_options({"target": "native", "precision": "bf16", "tune": "off"}))
    engine = Engine(contents, threads=1)
    found, wide, exact = engine(x), interpret(narrowed(), [x]), interpret(residual(), [x])
    for each, program, real in zip(found, wide, exact, strict=True):
        each = np.asarray(each)
        assert np.abs(each - program).max() <= 2**-7 * np.abs(real).max()
        assert np.linalg.norm(each - real) <= 0.01 * np.linalg.norm(real)
    text = stage_text(narrowed(), build_options({"target": "native"}), "tiles")
    stored = re.findall(r": out (\w+)\[", text)
    assert (stored.count("f32"), stored.count("bf16")) == (3, 4), "what the caller gets is wide, all else is narrow"


def changed(build: Callable[[Builder, Value], list[Value]]) -> bool:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    graph.set_outputs(build(b, graph.add_input("x", TensorType(f32, (8, 64)))))
    tidy = "sink_casts, canonicalize, fold_constants, eliminate_common_subexpressions, eliminate_dead_code"
    records = PassManager(parse_pipeline(f"narrow_products, {tidy}, narrow_values"), strict=True).run(module)
    return records[-1].changed


def test_sums_that_something_wide_takes_part_in_stay_wide() -> None:
    """Steps of a solver are smaller than what 16 bits tell apart: its state is not rounded in each, as it is not under autocast."""
    w = (np.random.default_rng(0).standard_normal((64, 64)) / 8).astype(np.float32)

    def product(b: Builder, x: Value) -> Value:
        return b.matmul(x, b.module.add_constant("w", w))

    def steps(b: Builder, x: Value) -> list[Value]:
        x = b.mul(x, 1.0001)
        for _ in range(3):
            x = b.add(x, b.mul(b.tanh(product(b, x)), 0.001))
        return [x]

    def normed(b: Builder, x: Value) -> list[Value]:
        x = b.layer_norm(product(b, x), None, None, axes=(1,), epsilon=1e-5)
        return [b.add(x, product(b, x))]

    def narrow(b: Builder, x: Value) -> list[Value]:
        x = b.relu(product(b, x))
        return [b.add(x, product(b, x))]

    assert not changed(build=steps) and not changed(build=normed) and changed(build=narrow)


def test_what_is_wide_alone_stays() -> None:
    assert not changed(build=lambda b, x: [b.cast(b.relu(x), dtype=bf16), b.gt(x, np.float32(1)), b.add(x, x), b.cast(x, dtype=bf16)])


def test_other_types_are_refused() -> None:
    with pytest.raises(UsageError, match="expected bf16"):
        NarrowValues(dtype="f16").check()
