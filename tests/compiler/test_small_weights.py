"""Quantized and sparse weights from the graph to the engine: right answers, one narrow copy in memory, a smaller file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir import dims
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.plan import storage
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run as run_program
from ourcc.ir.tile.program import Expand2to4, Let, Store, statements, walk
from ourcc.ir.tile.verify import verify
from ourcc.ir.types import TensorType, f32
from ourcc.passes.fusion.partition import partition
from ourcc.passes.lower.schedule import Scheduler, cheapest
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.passes.regions.compose import Group
from ourcc.passes.tile.gpu import STRATEGIES
from ourcc.runtime.engine import Engine

SHAPES: dict[str, dict[str, Any]] = {
    "int8": {"quantize": "int8-weight"},
    "2:4": {"sparsity": "2:4"},
    "int8 and 2:4": {"quantize": "int8-weight", "sparsity": "2:4"},
}
PASSES = {"int8": "quantize_int8_weight", "2:4": "sparsify_two_four", "int8 and 2:4": "sparsify_two_four, quantize_int8_weight"}


class Net:
    """A module under construction, with seeded weights."""

    def __init__(self) -> None:
        self.module = Module("net")
        self.graph = self.module.functions["main"] = Graph("main")
        self.b = Builder(self.module, self.graph)
        self.random = np.random.default_rng(0)
        self.inputs: list[np.ndarray] = []

    def input(self, *shape: int) -> Value:
        """An input of this shape; its first size is a symbol."""
        batch = self.module.declare("B", 1, 64)
        self.inputs.append(self.random.standard_normal(shape).astype(np.float32))
        return self.graph.add_input("x", TensorType(f32, (batch, *shape[1:])))

    def weight(self, name: str, *shape: int) -> Value:
        return self.module.add_constant(name, self.random.standard_normal(shape).astype(np.float32))

    def done(self, *values: Value) -> Net:
        self.graph.set_outputs(values)
        return self


def mlp(rows: int = 7, k: int = 64, hidden: int = 96, n: int = 40) -> Net:
    """Two linear layers, one with its weight as [k, n] and one as [n, k]."""
    net = Net()
    x = net.input(rows, k)
    h = net.b.relu(net.b.add(net.b.matmul(x, net.weight("w1", k, hidden)), net.weight("b1", hidden)))
    return net.done(net.b.matmul(h, net.weight("w2", n, hidden), transpose_b=True))


def long_rows() -> Net:
    """More contracted elements than one product streams over."""
    return mlp(5, 4104, 16, 12)


def odd_sizes() -> Net:
    """Sizes that no panel and no byte of places divides."""
    return mlp(3, 20, 36, 13)


def weight_on_the_left() -> Net:
    """matmul(w, x) for each image of a batch."""
    net = Net()
    x = net.input(2, 48, 10)
    return net.done(net.b.matmul(net.weight("w", 24, 48), x))


def two_readers() -> Net:
    """One weight for two layers."""
    net = Net()
    x, w = net.input(4, 32), net.weight("w", 32, 32)
    return net.done(net.b.matmul(net.b.tanh(net.b.matmul(x, w)), w))


def convolutions() -> Net:
    """A dense and a grouped convolution, then one without a window."""
    net = Net()
    x = net.input(2, 8, 5, 4)
    ones, zeros = (1, 1), (0, 0)
    settings = {"strides": ones, "dilations": ones, "before": ones, "after": ones}
    y = net.b.relu(net.b.conv(x, net.weight("w1", 32, 8, 3, 3), net.weight("b1", 32), **settings))
    y = net.b.relu(net.b.conv(y, net.weight("w2", 32, 16, 3, 3), None, **{**settings, "strides": (2, 2)}, groups=2))
    return net.done(net.b.conv(y, net.weight("w3", 20, 32, 1, 1), None, strides=ones, dilations=ones, before=zeros, after=zeros))


def convolution_without_window() -> Net:
    """A product whose weight is the left factor: pixels are the innermost axis of the result."""
    net = Net()
    x, settings = net.input(2, 16, 5, 4), {"strides": (1, 1), "dilations": (1, 1), "before": (0, 0), "after": (0, 0)}
    return net.done(net.b.conv(x, net.weight("w", 20, 16, 1, 1), None, **settings))


NETS: list[Callable[[], Net]] = [mlp, long_rows, odd_sizes, weight_on_the_left, two_readers, convolutions]


def expect_right(module: Module, net: Net, got: list[np.ndarray]) -> None:
    """The compressed program is the meaning."""
    stepwise, wide = interpret(module, net.inputs), interpret(module, net.inputs, wide=True)
    for one, step, exact in zip(got, stepwise, wide, strict=True):
        verdict = judge(one, step, exact)
        assert verdict.passed, verdict.reason


@pytest.mark.parametrize("form", SHAPES)
@pytest.mark.parametrize("make", NETS, ids=lambda make: make.__name__)
def test_engine_computes_the_compressed_program(make: Callable[[], Net], form: str) -> None:
    net = make()
    original = interpret(net.module, net.inputs)
    contents = compile_module(net.module, build_options({"target": "native", **SHAPES[form]}))
    got = Engine(contents, threads=1)(*net.inputs)
    got = list(got) if isinstance(got, tuple) else [got]
    expect_right(net.module, net, got)
    # It is another program than the original one: had nothing been done, this test would show nothing.
    assert any(not np.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in zip(got, original, strict=True))
    plan = contents.best.plan
    constants = {b.storage.value: b.type for b in plan.buffers if isinstance(b.storage, storage.Constant)}
    weights = {name: type for name, type in constants.items() if type.rank > 1}
    assert weights
    for name, type in weights.items():
        assert name.endswith((".int8", ".places")) if "int8" in form else name.endswith((".kept", ".places")), (name, type)
        assert type.dtype.name in (("i8", "u8") if "int8" in form else ("f32", "u8"))
    # What is stored narrow is not widened into a buffer either.
    largest = max(type.elements for type in weights.values())
    assert not any(isinstance(b.storage, storage.Arena) and b.type.elements == largest for b in plan.buffers)


def test_the_file_is_a_quarter(tmp_path: Path) -> None:
    sizes = {}
    for quantize, sparsity in ((None, None), ("int8-weight", None), (None, "2:4"), ("int8-weight", "2:4")):
        net = mlp(4, 256, 768, 512)
        engine = Engine(compile_module(net.module, build_options({"target": "native", "quantize": quantize, "sparsity": sparsity})))
        sizes[quantize, sparsity] = sum(constant.data.size for file in engine.contents.weights.values() for constant in file.values())
        engine.save(tmp_path / "m.ourcc")
        # Code, also that for classes of sizes, graph and plan come on top of the weights.
        files = sum(len(data) for data in engine.contents.best.files.values())
        assert (tmp_path / "m.ourcc").stat().st_size < sizes[quantize, sparsity] + files + 100_000
    dense = sizes[None, None]
    assert sizes["int8-weight", None] < dense * 0.255
    assert sizes[None, "2:4"] < dense * 0.535
    assert sizes["int8-weight", "2:4"] < dense * 0.165


@pytest.mark.parametrize(
    ("make", "form"),
    [
        *((mlp, form) for form in PASSES),
        (odd_sizes, "2:4"),
        (weight_on_the_left, "int8 and 2:4"),
        (convolution_without_window, "int8 and 2:4"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_gpu_programs_compute_the_compressed_program(make: Callable[[], Net], form: str) -> None:
    net = make()
    PassManager(parse_pipeline(f"{PASSES[form]}, eliminate_dead_code")).run(net.module)
    device = gpu_target("sm_90a")
    scheduler = Scheduler(STRATEGIES, device, cheapest(device), lambda region, constants: {})
    values: dict[Value, np.ndarray] = {v: v.constant.array for v in net.module.constants.values() if v.constant is not None}
    values |= dict(zip(net.graph.inputs, net.inputs, strict=True))
    symbols = {"B": net.inputs[0].shape[0]}

    def sizes(shape: tuple[dims.Dim, ...]) -> tuple[int, ...]:
        return tuple(dims.evaluate(size, symbols) for size in shape)

    expanded = 0
    for group in partition(net.module, net.graph):
        assert isinstance(group, Group)
        unit = scheduler.schedule(group, net.module.facts)
        region, program = unit.problem.region, unit.program
        verify(program, unit.problem.symbols)
        own = {name: dims.evaluate(dim, symbols) for name, dim in unit.binding.items()}
        arrays = {
            operand.name: values[value].reshape(tuple(dims.evaluate(size, own) for size in operand.type.shape))
            for operand, value in zip(region.inputs, group.inputs, strict=True)
        }
        result = run_program(program, arrays, own)
        for operand, value in zip(region.outputs, group.outputs, strict=True):
            values[value] = result[operand.name].reshape(sizes(value.shape))
        found = [
            part for launch in program.launches for s in statements(launch.body) if isinstance(s, (Let, Store)) for part in walk(s.value)
        ]
        expanded += any(isinstance(part, Expand2to4) for part in found)
    expect_right(net.module, net, [values[v] for v in net.graph.outputs])
    assert bool(expanded) == ("2:4" in form)
