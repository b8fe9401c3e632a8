"""Whole models through their GPU kernels without a GPU: every launch of the plan runs in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ourcc.codegen.triton import TritonKernel, print_launch
from ourcc.codegen.triton.interpret import interpret as run_kernel
from ourcc.compiler.backends.built import pack
from ourcc.compiler.backends.cuda import lower_cuda
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.models.importing import import_model
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module, simplify
from ourcc.ir import dims
from ourcc.ir.graph import Module
from ourcc.ir.graph.reference import bind_attribute, interpret, judge
from ourcc.ir.ops import table
from ourcc.ir.ops.check import IN_RANGE, told
from ourcc.ir.plan import VALUE, Check, CheckPlace, Copy, Host, Launch, Zero, storage
from ourcc.ir.target import gpu_target
from ourcc.passes.lower.build_plan import Lowered
from ourcc.passes.lower.schedule import Scheduler, cheapest
from ourcc.passes.tile.gpu import STRATEGIES
from ourcc.runtime.launches import holds
from ourcc.runtime.steps import misplaced

from ..models import models
from ..models.onnx_files import shapes_of, write_onnx

Array = np.ndarray[Any, Any]
DEADLINE = 200.0


def lowered(name: str, path: Path) -> tuple[Module, Lowered]:
    """The simplified module of a model, and its plan for Hopper."""
    model = models.make(name, layers=1)
    options = build_options({"targets": ["sm_90a"], "shapes": shapes_of(model)})
    module = import_model(str(write_onnx(model, path)), options)
    simplify(module, options)
    device = gpu_target("sm_90a")
    scheduler = Scheduler(STRATEGIES, device, cheapest(device), lambda region, constants: {})
    return module, lower_cuda(module, scheduler)


def run_plan(module: Module, found: Lowered, inputs: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
    """The outputs of a plan whose kernels Triton's interpreter runs."""
    plan, kernels = found.plan, {name: printed(found, name) for name in found.kernels}
    sizes = dict(sizes)
    memory: dict[str, Array] = {}
    for buffer in plan.buffers:
        if isinstance(buffer.storage, storage.Constant):
            memory[buffer.name] = np.ascontiguousarray(pack(buffer.storage, module))
        elif isinstance(buffer.storage, storage.Verdict):
            memory[buffer.name] = np.array(IN_RANGE)
        else:
            # Whatever a kernel reads before it is written shows.
            shape = tuple(dims.evaluate(size, sizes) for size in buffer.type.shape)
            memory[buffer.name] = np.full(shape, np.nan if buffer.type.dtype.is_float else 77, buffer.type.dtype.numpy)
    for (_, name), array in zip(plan.inputs, inputs, strict=True):
        memory[name] = array
    for step in plan.steps:
        if isinstance(step, Zero):
            memory[step.target][...] = 0
        elif isinstance(step, Copy):
            memory[step.target] = memory[step.source].copy()
        elif isinstance(step, Host):
            operands = tuple(memory[name] for name in step.reads)
            attrs = {name: bind_attribute(value, sizes) for name, value in step.attrs.items()}
            arrays = table.run(table.OPS[step.routine], operands, attrs, tuple(plan.named[name].type for name in step.writes), False)
            assert all(axis == VALUE for _, _, axis in step.binds), f"{step} makes a size"
            sizes |= {symbol: int(arrays[result]) for symbol, result, _ in step.binds}
            memory |= dict(zip(step.writes, arrays, strict=True))
        elif isinstance(step, CheckPlace):
            failure = misplaced(step, sizes)
            if failure is not None:
                raise failure
        elif isinstance(step, Check):
            assert told(int(memory[step.worst])) == IN_RANGE
        else:
            assert isinstance(step, Launch), f"{step} is no step of a GPU"
            variant = next(v for v in step.variants if holds(v.guard, sizes))
            launch = found.kernels[variant.kernel]
            parameters = [param.name for param in launch.params] + [counter.name for counter in launch.counters]
            places = dict(zip(parameters, variant.arguments, strict=True))
            own = {name: dims.evaluate(size, sizes) for name, size in step.symbols}
            after = run_kernel(kernels[variant.kernel], {name: memory[place] for name, place in places.items()}, own, DEADLINE)
            memory |= {places[name]: array.reshape(memory[places[name]].shape) for name, array in after.items()}
    return [memory[name] for _, name in plan.outputs]


def printed(found: Lowered, name: str) -> TritonKernel:
    """A kernel for any alignment."""
    return print_launch(replace(found.kernels[name], name=name), found.scheduled[name].problem.symbols, frozenset())


@pytest.mark.parametrize(
    ("name", "size", "sizes"), [("minilm", (2, 17), {"B": 2, "S": 17}), ("resnet50", (2, 32), {"B": 2})], ids=["minilm", "resnet50"]
)
def test_every_launch_of_the_plan_is_right(name: str, size: tuple[int, int], sizes: dict[str, int], tmp_path: Path) -> None:
    module, found = lowered(name, tmp_path / f"{name}.onnx")
    inputs = [tensor.numpy() for tensor in models.make(name, layers=1).draw(*size, 0)]
    got = run_plan(module, found, inputs, {**sizes, **{symbol: r.low for symbol, r in module.facts.ranges.items() if r.low == r.high}})
    expected, wide = interpret(module, inputs), interpret(module, inputs, wide=True)
    for value, narrow, exact in zip(got, expected, wide, strict=True):
        verdict = judge(value, narrow, exact)
        assert verdict.passed, verdict.reason


def test_a_token_that_asks_shared_keys_is_told_by_parts_of_them() -> None:
    """One row for each of four heads, two of which share keys: the heads of a group are the rows of one tile."""

    class Token(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    q, k = torch.zeros(1, 4, 1, 64, dtype=torch.bfloat16), torch.zeros(1, 2, 8192, 64, dtype=torch.bfloat16)
    contents = compile_module(import_exported(torch.export.export(Token(), (q, k, k))), build_options({"targets": ["sm_90a"]}))
    rows = contents.report["kernels"]["sm_90a"]
    assert {row["strategy"].partition("{")[0] for row in rows} == {"split_attention"} and not any(
        row["spills"] or row["notes"] for row in rows
    )
    assert any("wgmma" in row["instructions"] for row in rows)
