"""Engines on a CUDA device: built for it, run on it, judged against the reference; one graph for each kind of kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.compiler.targets.machine import probe_cuda
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.types import TensorType, bf16, f16, f32, i64
from ourcc.runtime.engine import Engine

pytestmark = pytest.mark.gpu
SIZES = {"B": (1, 32), "S": (1, 512)}
POINTS = ((1, 1), (2, 16), (3, 17), (1, 511), (2, 128))
Body = Callable[[Module, Builder, list[Value]], Value]


@pytest.fixture(scope="module")
def target() -> str:
    devices = probe_cuda().gpus
    if not devices:
        pytest.skip("no CUDA device on this machine")
    return devices[0].target


def draw(shape: tuple[int, ...], seed: int, dtype: Any = np.float32) -> Any:
    random = np.random.default_rng(seed)
    return random.integers(0, 1000, shape) if dtype == np.int64 else (random.standard_normal(shape) * 0.5).astype(dtype)


def mlp(m: Module, b: Builder, x: list[Value]) -> Value:
    hidden = b.gelu(b.add(b.matmul(x[0], m.add_constant("w0", draw((384, 1536), 1))), m.add_constant("b0", draw((1536,), 2))))
    return b.add(b.matmul(hidden, m.add_constant("w1", draw((1536, 384), 3))), x[0])


def norm(m: Module, b: Builder, x: list[Value]) -> Value:
    return b.layer_norm(x[0], m.add_constant("s", draw((384,), 1)), m.add_constant("b", draw((384,), 2)), axes=(2,), epsilon=1e-5)


def softmax(m: Module, b: Builder, x: list[Value]) -> Value:
    return b.softmax(x[0], axis=-1)


def attention(m: Module, b: Builder, x: list[Value]) -> Value:
    heads = b.transpose(b.reshape(x[0], shape=(*x[0].shape[:2], 12, 32)), permutation=(0, 2, 1, 3))
    return b.attention(heads, heads, heads, scale=0.2, causal=True)


def columns(m: Module, b: Builder, x: list[Value]) -> Value:
    return b.sum(x[0], axes=(1,))


def turned(m: Module, b: Builder, x: list[Value]) -> Value:
    return b.transpose(b.tanh(x[0]), permutation=(2, 0, 1))


def embedding(m: Module, b: Builder, x: list[Value]) -> Value:
    return b.take(m.add_constant("table", draw((1000, 384), 5)), x[0], axis=0)


def image(m: Module, b: Builder, x: list[Value]) -> Value:
    convolve = {"strides": (2, 2), "dilations": (1, 1), "before": (1, 1), "after": (1, 1), "groups": 1}
    return b.relu(b.conv(x[0], m.add_constant("k", draw((64, 16, 3, 3), 6)), **convolve))


GRAPHS: dict[str, tuple[Body, Any]] = {
    "mlp": (mlp, f32),
    "mlp-bf16": (mlp, bf16),
    "mlp-f16": (mlp, f16),
    "norm": (norm, f32),
    "softmax": (softmax, f32),
    "attention": (attention, f32),
    "attention-f16": (attention, f16),
    "columns": (columns, f32),
    "turned": (turned, f32),
    "embedding": (embedding, i64),
    "image": (image, f32),
}


def build(name: str) -> Module:
    """The module of one graph; weights take the dtype of its input."""
    body, dtype = GRAPHS[name]
    module = Module(name.replace("-", "_"))
    graph = Graph("main")
    module.functions["main"] = graph
    batch, sequence = (module.declare(symbol, *bounds) for symbol, bounds in SIZES.items())
    shape = {"image": (batch, 16, 33, 31), "embedding": (batch, sequence)}.get(name, (batch, sequence, 384))
    value = graph.add_input("x", TensorType(dtype, shape))
    add = module.add_constant
    if dtype in (bf16, f16):
        module.add_constant = lambda label, data: add(label, data.astype(dtype.numpy))  # type: ignore[method-assign]
    graph.set_outputs([body(module, Builder(module, graph), [value])], ["y"])
    return module


@pytest.mark.parametrize("name", GRAPHS)
def test_engine_agrees_with_the_reference(name: str, target: str) -> None:
    module = build(name)
    engine = Engine(compile_module(module, build_options({"targets": [target]})))
    dtype = GRAPHS[name][1]
    for batch, sequence in POINTS:
        shape = {"image": (batch, 16, 33, 31), "embedding": (batch, sequence)}.get(name, (batch, sequence, 384))
        x = draw(shape, batch * 1000 + sequence, np.int64 if dtype == i64 else np.float32).astype(dtype.numpy)
        verdict = judge(np.asarray(engine.run({"x": x})["y"]), interpret(module, [x])[0], interpret(module, [x], wide=True)[0])
        assert verdict.passed, f"{name} at B = {batch}, S = {sequence}: {verdict.reason}"
