"""Coded and 2:4 weights of float32 models whose products are asked for in 16 bits: as those of a model in 16 bits, quantized alike."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

import ourcc
from ourcc.compiler.backends.cuda import lower_cuda
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module, simplify
from ourcc.ir.errors import ContractError
from ourcc.ir.formats import FORMATS
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.target import gpu_target
from ourcc.ir.types import DType, TensorType, bf16, f16, f32
from ourcc.passes.lower.schedule import Scheduled, Scheduler, cheapest
from ourcc.passes.quantize import QUANTIZATIONS
from ourcc.passes.quantize.narrow_products import why_not
from ourcc.passes.regions.contraction import read_contraction
from ourcc.passes.tile.gpu import STRATEGIES
from ourcc.runtime.contents import Contract
from ourcc.runtime.engine import Engine

from .test_gpu_kernels import run_plan

WORDS = [name for name, each in QUANTIZATIONS.items() if each.format is not None and each.activations is None]
ASKED = [*((name, None) for name in WORDS), *((name, "2:4") for name in WORDS), (None, "2:4")]
HALVES = {"bf16": (bf16, 8), "fp16": (f16, 11)}


def layers(dtype: DType, half: DType, seed: int, rows: int | None = None) -> tuple[Module, np.ndarray]:
    """Two products of drawn sizes; their numbers are some that `half` holds, whatever the model's own dtype is."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    rows, columns, depth = rows or draw.choice((1, 3, 5, 19)), draw.choice((1, 7, 24, 41)), draw.choice((256, 512))
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)

    def held(*shape: int) -> np.ndarray:
        return (numbers.standard_normal(shape) / 8).astype(half.numpy).astype(dtype.numpy)

    x = graph.add_input("x", TensorType(dtype, (rows, depth)))
    h = b.relu(b.matmul(x, module.add_constant("w1", held(depth, 256))))
    graph.set_outputs([b.matmul(h, module.add_constant("w2", held(columns, 256)), transpose_b=True)])
    return module, held(rows, depth)


def options(name: str | None, sparsity: str | None, target: str, **more: Any) -> Any:
    return build_options({"target": target, "quantize": name, "sparsity": sparsity, "tune": "off", **more})


def simplified(dtype: DType, precision: str, name: str | None, sparsity: str | None, target: str, seed: int) -> tuple[Module, np.ndarray]:
    """The model in float32 with products asked for in 16 bits, or the model that is in 16 bits itself."""
    module, data = layers(dtype, HALVES[precision][0], seed)
    simplify(module, options(name, sparsity, target, precision=precision if dtype == f32 else None))
    return module, data


def codes_of(module: Module) -> list[np.ndarray]:
    """What the weights are stored as."""
    found = [value.constant.array for value in module.constants.values() if value.constant is not None and value.uses]
    return sorted((array.astype(np.float32) for array in found), key=lambda array: (array.shape, array.tobytes()))


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize(("name", "sparsity"), ASKED)
def test_the_product_is_that_of_a_model_in_16_bits(name: str | None, sparsity: str | None, precision: str) -> None:
    half, _ = HALVES[precision]
    seed = ASKED.index((name, sparsity))
    wide, data = simplified(f32, precision, name, sparsity, "sm_90a", seed)
    narrow, _ = simplified(half, precision, name, sparsity, "sm_90a", seed)
    for ours, theirs in zip(codes_of(wide), codes_of(narrow), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    products = [op for op in wide.main if op.name == "matmul"]
    assert [value.dtype for op in products for value in op.operands] == [half] * 4 and all(op.attrs["wide"] for op in products)
    (got,), (expected,) = interpret(wide, [data]), interpret(narrow, [data.astype(half.numpy)])
    np.testing.assert_array_equal(got.astype(half.numpy).astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize(("number", "name", "sparsity"), [(n, *asked) for n, asked in enumerate(ASKED)])
def test_a_cpu_computes_it(number: int, name: str | None, sparsity: str | None) -> None:
    """Every other one in f16: dense ones and sparse ones of a format are asked for in different precisions."""
    precision = list(HALVES)[number % 2]
    module, data = layers(f32, HALVES[precision][0], 1 + number)
    contents = compile_module(module, options(name, sparsity, "native", precision=precision))
    (step,), (exact,) = interpret(module, [data]), interpret(module, [data], wide=True)
    verdict = judge(np.asarray(Engine(contents, threads=1)(data)), step, exact, digits=HALVES[precision][1])
    assert verdict.passed, verdict.reason
    words = {precision, *filter(None, (name, sparsity))}
    rows = [row for row in Contract.from_json(contents.report["contract"]) if row.op == "linear"]
    assert all(set(row.requested.split(", ")) == set(row.realised.split(", ")) == words and not row.why for row in rows)


def scheduled(module: Module, target: str) -> tuple[Any, list[Scheduled]]:
    """A plan for a GPU, and what is scheduled for its products."""
    device = gpu_target(target)
    lowered = lower_cuda(module, Scheduler(STRATEGIES, device, cheapest(device), lambda region, constants: {}))
    units = {id(unit.problem): unit for unit in lowered.scheduled.values()}
    return lowered, [unit for unit in units.values() if not isinstance(read_contraction(unit.problem.region), str)]


@pytest.mark.parametrize(("name", "sparsity"), ASKED)
def test_gpu_kernels_compute_it(name: str | None, sparsity: str | None) -> None:
    """By the tile programs, and by the kernels that are printed of them."""
    module, data = simplified(f32, "bf16", name, sparsity, "sm_90a", 2 + ASKED.index((name, sparsity)))
    lowered, _ = scheduled(module, "sm_90a")
    (step,), (exact,) = interpret(module, [data]), interpret(module, [data], wide=True)
    (got,) = run_plan(module, lowered, [data], {})
    verdict = judge(got, step, exact, digits=8)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(("name", "sparsity"), [*ASKED[:3], ("fp8-weight", "2:4"), ("nvfp4-weight", None), (None, "2:4")])
@pytest.mark.parametrize("rows", [3, 200])
def test_kernels_cost_what_those_of_a_model_in_16_bits_do(name: str | None, sparsity: str | None, target: str, rows: int) -> None:
    """Schedules are equal where the results are stored alike, which the last one's are not."""
    found = []
    for dtype in (f32, bf16):
        module = Module("net")
        graph = module.functions["main"] = Graph("main")
        b, x = Builder(module, graph), graph.add_input("x", TensorType(dtype, (rows, 512)))
        weights = (np.random.default_rng(0).standard_normal((2, 512, 512)) / 8).astype(bf16.numpy).astype(dtype.numpy)
        h = b.relu(b.matmul(x, module.add_constant("w1", weights[0])))
        graph.set_outputs([b.matmul(h, module.add_constant("w2", weights[1]))])
        simplify(module, options(name, sparsity, target, precision="bf16" if dtype == f32 else None))
        found.append(scheduled(module, target)[1])
    (ours, last), (theirs, end) = found
    assert (ours.schedule, ours.cost) == (theirs.schedule, theirs.cost)
    assert last.schedule.strategy == end.schedule.strategy


@pytest.mark.parametrize("name", ["fp8", "fp8-block"])
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_sparse_weights_of_8_bits_are_multiplied_in_8_bits(name: str, target: str) -> None:
    """As dense ones are: the numbers that are kept are expanded in registers or by a launch of their own."""
    module, data = layers(f32, bf16, 7, rows=70)
    simplify(module, options(name, "2:4", target))
    lowered, units = scheduled(module, target)
    assert {unit.schedule.strategy for unit in units} <= {"tensor", "split_k", "stream_k", "blocked"}
    dots = [str(unit.program) for unit in units]
    assert all("tf32" not in text and "f8e4m3" in text for text in dots)
    (step,), (exact,) = interpret(module, [data]), interpret(module, [data], wide=True)
    (got,) = run_plan(module, lowered, [data], {})
    verdict = judge(got, step, exact)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize(("target", "sparsity"), [("sm_90a", "2:4"), ("sm_100a", "2:4")])
@pytest.mark.parametrize("asked", [{"quantize": "fp8"}, {"quantize": "fp8-block"}, {"quantize": "int4-weight", "precision": "bf16"}])
def test_engines_tell_what_formats_cost(target: str, sparsity: str, asked: dict[str, str]) -> None:
    """Kernels are compiled for their architecture; for many rows weights are expanded first, which takes longer, and is said."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    x, b = graph.add_input("x", TensorType(f32, (256, 512))), Builder(module, graph)
    weight = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32) / 8
    graph.set_outputs([b.matmul(x, module.add_constant("w", weight), transpose_b=True)])
    contents = compile_module(module, build_options({"target": target, "sparsity": sparsity, "tune": "off", **asked}))
    notes = [note for note in contents.report.get("notes", []) if "is predicted to take" in note]
    if asked["quantize"] == "fp8-block":
        assert notes == []  # scales of activations are within the sum: there is no product to compare it with
        return
    (note,) = notes
    dtype = "bf16" if "precision" in asked else "f8e4m3"
    assert note.startswith(f"{asked['quantize']} with 2:4 is predicted to take ") and f"products of the same weights in {dtype}:" in note


def test_what_calls_make_codes_of_stays_as_it_is() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(64, 32, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    given = (torch.randn(8, 64),)
    rows = {row.op: row for row in ourcc.build(Net(), given, precision="bf16", quantize="fp8").contract}
    linear = rows["linear"]
    assert (linear.requested, linear.realised) == ("bf16, fp8-weight, fp8-activation", "fp32, fp8-weight, fp8-activation")
    assert linear.why == "bf16: it multiplies codes that each call makes, as they are"
    with pytest.raises(ContractError, match="linear:bf16"):
        ourcc.build(Net(), given, precision="bf16", quantize="fp8", require=["linear:bf16"])
    kept = ourcc.build(Net(), given, precision="bf16", quantize="int4-weight", require=["linear:bf16", "linear:int4-weight"])
    assert [row.realised for row in kept.contract] == ["bf16, int4-weight"]


def test_a_codebook_that_rows_are_taken_from_as_well_is_read_twice() -> None:
    """What else reads a coded weight reads it as before: the codes are stored once."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b, x = Builder(module, graph), graph.add_input("x", TensorType(f32, (3, 64)))
    numbers = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
    fields = FORMATS["int4.g32"].encoded(numbers, 1)
    w = b.decode(*(module.add_constant(f"w.{name}", array) for name, array in fields.items()), format="int4.g32", axis=1)
    graph.set_outputs([b.matmul(x, w, transpose_b=True), b.exp(w)])
    data = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    exact = interpret(module, [data], wide=True)
    contents = compile_module(module, options(None, None, "native", precision="bf16"))
    assert sorted(op.attrs["dtype"].name for op in module.main if op.name == "decode") == ["bf16", "f32"]
    first, second = Engine(contents, threads=1)(data)
    assert judge(np.asarray(first), interpret(module, [data])[0], exact[0], digits=8).passed
    assert judge(np.asarray(second), interpret(module, [data])[1], exact[1]).passed
    assert {why_not(op) for op in module.main if op.name == "matmul"} == {"its factors are bf16, not f32"}
