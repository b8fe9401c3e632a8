"""Lines that GPUs put in order by ranks: the answers of `top_k` and `sort` bit for bit, and no step of the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import ourcc
from ourcc.codegen.triton import print_program
from ourcc.codegen.triton.compile import compile_kernels
from ourcc.codegen.triton.interpret import interpret as run_triton
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import lower
from ourcc.ir import dims
from ourcc.ir.graph import Module, Value
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import interpret
from ourcc.ir.plan import Host, Launch
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run as run_tiles
from ourcc.ir.tile.program import TileProgram
from ourcc.ir.types import DType, bf16, f8e5m2, f16, f32, f64, i8, i32, i64, u8
from ourcc.passes.base import PassContext
from ourcc.passes.fusion.partition import Fusion
from ourcc.passes.lower.schedule import problem_of
from ourcc.passes.regions.compose import Group
from ourcc.passes.tidy.rank_lines import SHORT, RankLines
from ourcc.passes.tile.gpu import STRATEGIES
from ourcc.passes.tile.schedule import Problem, Schedule, matches

Array = np.ndarray[Any, Any]
Run = Callable[[Problem, TileProgram, dict[str, Array], Mapping[str, int]], Mapping[str, Array]]
SM_90A = gpu_target("sm_90a")


def sorted_module(x: str, op: str, results: str, facts: str = "") -> Module:
    body = f"    %v, %n = {op} : {results}\n    return %v, %n\n"
    return parse_module(f"module @m symbols {{ {facts} }} {{\n  func @main(%x: {x}) -> ({results}) {{\n{body}  }}\n}}")


def ranked(module: Module) -> Module:
    assert RankLines().run(module, PassContext())
    assert not {"top_k", "sort"} & {op.name for op in module.main}
    return module


def drawn(dtype: DType, shape: Sequence[int], seed: int = 0) -> Array:
    """Few numbers, so that many are equal; of floats NaN, both infinities and both zeros too."""
    random = np.random.default_rng(seed)
    if dtype.is_integer:
        low, high = (0, 200) if dtype.kind == "uint" else (-100, 100)
        ends = [np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max]
        return random.choice([*ends, *random.integers(low, high, 5)], shape).astype(dtype.numpy)
    numbers = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, *random.standard_normal(6)]
    return random.choice(numbers, shape).astype(np.float32).astype(dtype.numpy)


def best(problem: Problem) -> tuple[Schedule, TileProgram]:
    match = next(matches(STRATEGIES, problem, SM_90A))
    schedule = min(match.strategy.space(match, SM_90A), key=lambda each: match.strategy.cost(match, each, SM_90A))
    return schedule, match.strategy.tile(match, schedule, SM_90A)


def by_tiles(problem: Problem, program: TileProgram, arrays: dict[str, Array], sizes: Mapping[str, int]) -> Mapping[str, Array]:
    return run_tiles(program, arrays, dict(sizes))


def by_triton(problem: Problem, program: TileProgram, arrays: dict[str, Array], sizes: Mapping[str, int]) -> Mapping[str, Array]:
    memory = dict(arrays)
    for launch, kernel in zip(program.launches, print_program(program, problem.symbols), strict=True):
        for param in launch.params:
            memory.setdefault(param.name, np.zeros([dims.evaluate(extent, sizes) for extent in param.shape], param.dtype.numpy))
        memory |= run_triton(kernel, memory, dict(sizes))
    return memory


def computed(module: Module, x: Array, sizes: Mapping[str, int], run: Run) -> list[Array]:
    """What the kernels of a GPU give."""
    values: dict[Value, Array] = {module.main.inputs[0]: x}
    for group in Fusion(module, module.main, narrow=True).units(lambda unit: unit):
        assert isinstance(group, Group)
        problem, symbols = problem_of(group, module.facts, lambda *_: {})
        own = {name: dims.evaluate(size, sizes) for name, size in symbols.items()}
        arrays = {
            o.name: values[v].reshape([dims.evaluate(d, own) for d in o.type.shape])
            for o, v in zip(problem.region.inputs, group.inputs, strict=True)
        }
        found = run(problem, best(problem)[1], arrays, own)
        for operand, value in zip(problem.region.outputs, group.outputs, strict=True):
            values[value] = found[operand.name].reshape([dims.evaluate(d, sizes) for d in value.shape])
    return [values[value] for value in module.main.outputs]


def same(got: Array, expected: Array) -> None:
    """Bit for bit, but for the sign and the payload of NaN."""
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    number = expected.dtype.kind in "iu"
    nan = np.zeros(expected.shape, bool) if number else np.isnan(expected.astype(np.float64))
    assert number or np.array_equal(np.isnan(got.astype(np.float64)), nan)
    np.testing.assert_array_equal(got[~nan].view(np.uint8), expected[~nan].view(np.uint8))


CASES: dict[str, tuple[str, str, str]] = {
    "few of many": ("DTYPE[5, 70]", "top_k(%x) {axis = 1, k = 6}", "DTYPE[5, 6], i64[5, 6]"),
    "the smallest": ("DTYPE[5, 33]", "top_k(%x) {axis = 1, k = 6, largest = false}", "DTYPE[5, 6], i64[5, 6]"),
    "one": ("DTYPE[5, 33]", "top_k(%x) {axis = -1, k = 1}", "DTYPE[5, 1], i64[5, 1]"),
    "all": ("DTYPE[3, 17]", "top_k(%x) {axis = 1, k = 17}", "DTYPE[3, 17], i64[3, 17]"),
    "an axis before others": ("DTYPE[2, 19, 3]", "top_k(%x) {axis = 1, k = 4}", "DTYPE[2, 4, 3], i64[2, 4, 3]"),
    "the first axis": ("DTYPE[19, 4]", "top_k(%x) {axis = 0, k = 5, largest = false}", "DTYPE[5, 4], i64[5, 4]"),
    "a line": ("DTYPE[40]", "top_k(%x) {axis = 0, k = 3}", "DTYPE[3], i64[3]"),
    "of one element": ("DTYPE[4, 1]", "top_k(%x) {axis = 1, k = 1}", "DTYPE[4, 1], i64[4, 1]"),
    "sorted": ("DTYPE[3, 21]", "sort(%x) {axis = 1}", "DTYPE[3, 21], i64[3, 21]"),
    "sorted downwards": ("DTYPE[9, 3]", "sort(%x) {axis = 0, descending = true}", "DTYPE[9, 3], i64[9, 3]"),
    "as many as are asked for": ("DTYPE[5, 33]", "top_k(%x) {axis = 1, k = K}", "DTYPE[5, K], i64[5, K]"),
    "a line of some length": ("DTYPE[5, N]", "top_k(%x) {axis = 1, k = 2}", "DTYPE[5, 2], i64[5, 2]"),
}
SIZES = {"K": 7, "N": 23}


def case(name: str, dtype: DType) -> tuple[Module, Array]:
    x, op, results = (text.replace("DTYPE", dtype.name) for text in CASES[name])
    module = sorted_module(x, op, results, "K in 0..33, N in 2..50")
    return module, drawn(dtype, [dims.evaluate(size, SIZES) for size in module.main.inputs[0].shape])


@pytest.mark.parametrize("dtype", [f32, f16, bf16, f8e5m2, f64, i8, u8, i32, i64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_the_answers_are_those_of_the_ops(name: str, dtype: DType) -> None:
    module, x = case(name, dtype)
    expected = bound(module, x)
    got = computed(ranked(module), x, SIZES, by_tiles)
    for one, other in zip(got, expected, strict=True):
        same(one, other)


def bound(module: Module, x: Array) -> list[Array]:
    """What the op's own body gives, its sizes known."""
    op = next(iter(module.main))
    attrs = {name: dims.evaluate(value, SIZES) if isinstance(value, dims.Expr) else value for name, value in op.attrs.items()}
    wide = x.astype(np.float32) if op.operands[0] is not None and op.operands[0].dtype in (f16, bf16, f8e5m2) else x
    values, places = op.definition.body(wide, **attrs)
    return [values.astype(x.dtype), places]


@pytest.mark.parametrize("dtype", [f32, bf16, i64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_kernels_in_tritons_interpreter_give_them_too(name: str, dtype: DType) -> None:
    module, x = case(name, dtype)
    expected = bound(module, x)
    for one, other in zip(computed(ranked(module), x, SIZES, by_triton), expected, strict=True):
        same(one, other)


@pytest.mark.parametrize(("length", "count"), [(8, 2), (64, 8), (128, 128), (256, 8), (256, 200), (SHORT, 4)])
def test_lengths_of_experts_are_right(length: int, count: int) -> None:
    module = sorted_module(f"f32[3, {length}]", f"top_k(%x) {{axis = 1, k = {count}}}", f"f32[3, {count}], i64[3, {count}]")
    x = drawn(f32, (3, length), length)
    expected = interpret(module, [x])
    for one, other in zip(computed(ranked(module), x, {}, by_tiles), expected, strict=True):
        same(one, other)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(("length", "count"), [(8, 2), (64, 64), (256, 8), (SHORT, SHORT)])
def test_kernels_are_compiled(target: str, length: int, count: int) -> None:
    module = ranked(
        sorted_module(f"f32[N, {length}]", f"top_k(%x) {{axis = 1, k = {count}}}", f"f32[N, {count}], i64[N, {count}]", "N in 1..4096")
    )
    for group in Fusion(module, module.main, narrow=True).units(lambda unit: unit):
        assert isinstance(group, Group)
        problem, _ = problem_of(group, module.facts, lambda *_: {})
        for kernel in compile_kernels(print_program(best(problem)[1], problem.symbols), gpu_target(target), is_read=False):
            assert (kernel.resources.spill_stores, kernel.resources.spill_loads) == (0, 0)


def test_long_lines_stay() -> None:
    for length in (SHORT + 1, "N"):
        module = sorted_module(f"f32[3, {length}]", "top_k(%x) {axis = 1, k = 2}", "f32[3, 2], i64[3, 2]", "N in 2..5000")
        assert not RankLines().run(module, PassContext())


class Routed(torch.nn.Module):
    """The routing of experts: the best of them for each row, with weights that add up to 1."""

    def __init__(self, experts: int, count: int) -> None:
        super().__init__()
        torch.manual_seed(experts)
        self.gate, self.count = torch.nn.Linear(16, experts), count

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, experts = torch.topk(torch.softmax(self.gate(x), -1), self.count, dim=-1)
        return weights / weights.sum(-1, keepdim=True), experts


def program(experts: int = 32, count: int = 4) -> Any:
    return torch.export.export(Routed(experts, count).eval(), (torch.randn(9, 16),))


def test_gpus_have_no_step_of_the_host_and_cpus_keep_their_routine() -> None:
    engine = ourcc.build(program(), targets=["x86-64-v3", "sm_90a"], tune="off")
    plans = {name: part.plan for name, part in engine.contents.parts.items()}
    assert all(isinstance(step, Launch) for step in plans["sm_90a"].steps)
    assert [step.routine for step in plans["x86-64-v3"].steps if isinstance(step, Host)] == ["top_k"]


def test_the_contract_holds_for_gpus() -> None:
    engine = ourcc.build(program(), targets=["sm_90a"], tune="off", require=["no-host"])
    (row,) = (row for row in engine.contents.report["contract"] if row["op"] == "top_k")
    assert row["runs"] == "kernel"


def test_the_cpu_answers_as_eager_does() -> None:
    x = torch.randn(9, 16)
    got = ourcc.build(program(), targets=["native"], tune="off")(x.numpy())
    expected = Routed(32, 4).eval()(x)
    np.testing.assert_allclose(got[0], expected[0].detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got[1], expected[1].numpy())


def test_the_module_that_other_targets_read_stays() -> None:
    module = sorted_module("f32[3, 8]", "top_k(%x) {axis = 1, k = 2}", "f32[3, 2], i64[3, 2]")
    options = build_options({"targets": ["sm_90a"]})
    steps = lower(module, options.targets[0]).plans["main"].steps
    assert all(isinstance(step, Launch) for step in steps)
    assert [op.name for op in module.main] == ["top_k"]
