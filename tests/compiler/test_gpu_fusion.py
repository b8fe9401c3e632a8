"""Chains, shared values and wide concats on a GPU: the kernels, run by Triton's interpreter, against the reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ourcc.compiler.backends.cuda import lower_cuda
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.target import gpu_target
from ourcc.ir.types import TensorType, f32
from ourcc.passes.lower.schedule import Scheduler, cheapest
from ourcc.passes.tile.gpu import STRATEGIES

from .test_gpu_kernels import run_plan


def chain(b: Builder, x: Value) -> Value:
    for n in range(148):
        x = b.sin(x) if n % 2 else b.abs(x)
    return x


def shared_in_a_fold(b: Builder, x: Value) -> Value:
    for _ in range(30):
        x = b.add(b.sin(x), x)
    return b.sum(x, axes=(0,), keepdims=False)


def shared_by_two_folds(b: Builder, x: Value) -> Value:
    for _ in range(40):
        x = b.add(b.sin(x), x)
    return b.softmax(x, axis=-1)


def doubled(b: Builder, x: Value) -> Value:
    for _ in range(40):
        x = b.add(x, x)
    return x


def concats(b: Builder, x: Value) -> Value:
    return b.concat(*[x] * 20, axis=0)


@pytest.mark.parametrize("body", [chain, shared_in_a_fold, shared_by_two_folds, doubled, concats])
def test_kernels_of_large_groups_are_right(body: Callable[[Builder, Value], Value]) -> None:
    pytest.importorskip("triton")
    module = Module("m")
    graph = Graph("main")
    module.functions["main"] = graph
    size = module.declare("S")
    graph.set_outputs([body(Builder(module, graph), graph.add_input("x", TensorType(f32, (size, 7))))], ["y"])
    device = gpu_target("sm_90a")
    lowered = lower_cuda(module, Scheduler(STRATEGIES, device, cheapest(device), lambda region, constants: {}))
    x = np.linspace(-1, 1, 35, dtype=np.float32).reshape(5, 7)
    (found,) = run_plan(module, lowered, [x], {"S": 5})
    (stepwise,), (wide,) = interpret(module, [x]), interpret(module, [x], wide=True)
    verdict = judge(found, stepwise, wide)
    assert verdict.passed, verdict.reason
