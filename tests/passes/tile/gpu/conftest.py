"""Problems that fill more than one tile, with symbolic sizes: what the strategies for GPUs are tested on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import simplify
from ourcc.ir import dims
from ourcc.ir.dims import Dim, Facts
from ourcc.ir.graph import Module, Value
from ourcc.ir.graph.reference import Verdict, interpret, judge
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS
from ourcc.ir.region import Region
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.text import parse_region
from ourcc.ir.types import DType, TensorType, bf16, boolean, f16, f32, f64, i8, i32, i64
from ourcc.passes.fusion.partition import Fusion
from ourcc.passes.lower.schedule import problem_of
from ourcc.passes.regions.compose import Group
from ourcc.passes.regions.simplify_region import simplify_region
from ourcc.passes.tile.schedule import Problem

Array = np.ndarray[Any, Any]

FACTS = Facts({"B": dims.Range(1, 32), "S": dims.Range(1, 512), "U": dims.Range(0, None)})
SIZES = {"B": 2, "S": 37, "U": 70}


@dataclass(frozen=True)
class Case:
    """An op with operand types, attributes, and the largest integer that its integer operands hold."""

    op: str
    operands: tuple[tuple[DType, tuple[Dim | str, ...]], ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    highest: int = 100

    def types(self, wide: bool = False) -> list[TensorType]:
        return [
            TensorType(f64 if wide and dtype.is_float else dtype, tuple(dims.symbol(d) if isinstance(d, str) else d for d in shape))
            for dtype, shape in self.operands
        ]

    def region(self, wide: bool = False) -> Region:
        region = region_of(OPS[self.op], self.types(wide), self.attrs)
        assert region is not None
        return region

    def arrays(self) -> list[Array]:
        random = np.random.default_rng(5)
        found: list[Array] = []
        for kind in self.types():
            shape = tuple(dims.evaluate(d, SIZES) for d in kind.shape)
            if kind.dtype == boolean:
                found.append(random.random(shape) < 0.7)
            elif kind.dtype.is_integer:
                found.append(random.integers(-min(self.highest, 100), self.highest + 1, shape).astype(kind.dtype.numpy))
            else:
                found.append(random.standard_normal(shape).astype(np.float32).astype(kind.dtype.numpy))
        return found

    def problem(self, facts: Facts = FACTS) -> Problem:
        return Problem(simplify_region(self.region(), facts), facts, {})


def linear(dtype: DType, rows: Dim | str, columns: Dim | str, depth: Dim | str, **attrs: Any) -> Case:
    shapes = (
        (depth, rows) if attrs.get("transpose_a") else (rows, depth),
        (columns, depth) if attrs.get("transpose_b") else (depth, columns),
    )
    return Case("matmul", tuple((dtype, shape) for shape in shapes), attrs)


def image(dtype: DType, batch: Dim | str, channels: int, size: int, filters: int, window: int, **changes: Any) -> Case:
    attrs = {"strides": (1, 1), "dilations": (1, 1), "before": (1, 1), "after": (1, 1), "groups": 1} | changes
    shapes = ((batch, channels, size, size), (filters, channels // attrs["groups"], window, window), (filters,))
    return Case("conv", tuple((dtype, shape) for shape in shapes), attrs)


def heads(dtype: DType, *shapes: tuple[Dim | str, ...], mask: DType | None = None, **attrs: Any) -> Case:
    operands = tuple((dtype, shape) for shape in shapes[:3]) + (((mask, shapes[3]),) if mask is not None else ())
    return Case("attention", operands, {"scale": 0.25} | attrs)


def scattered(dtype: DType, columns: int, **attrs: Any) -> Case:
    """Thirty rows into nine, some of them outside."""
    return Case(
        "scatter_along_axis", ((dtype, (9, columns)), (i64, (30, columns)), (dtype, (30, columns))), {"axis": 0} | attrs, highest=10
    )


def product_of(dtype: str, rows: int | str, columns: int, depth: int, batch: int | None = None, after: str = "%t") -> Problem:
    """y = x w^T, with what follows."""
    b, outer = ("b, ", f"b {batch}, ") if batch else ("", "")
    total = "i32" if dtype == "i8" else "f32"
    left, right = (f"cast({each}, {total})" for each in (f"%x[{b}i, k]", f"%w[{b}j, k]"))
    text = (
        f"region @r(%x: {dtype}[{outer}i {rows}, k {depth}], %w: {dtype}[{outer}j {columns}, k {depth}], %z: f32[j {columns}])"
        f" -> %y: f32[{outer}i {rows}, j {columns}] {{\n  axes {f'b: {batch}, ' if batch else ''}i: {rows}, j: {columns}, k: {depth}\n"
        f"  %t = sum k: mul({left}, {right}) : {total}[{b}i, j]\n  %y[{b}i, j] = {after}\n}}"
    )
    facts = dims.NO_FACTS if isinstance(rows, int) else dims.NO_FACTS.with_range(rows, 1, 300)
    return Problem(parse_region(text), facts, {})


CASES: dict[str, Case] = {
    "linear_f32": linear(f32, "S", 150, 72, transpose_b=True),
    "linear_f32_unbounded": linear(f32, "U", 75, "U"),
    "linear_f16": linear(f16, 70, 50, 100, transpose_a=True),
    "linear_bf16": linear(bf16, "S", 96, 128, transpose_b=True),
    "linear_i8": linear(i8, 70, 40, 96, transpose_b=True),
    "linear_i64": linear(i64, 9, 20, 70),
    "few_rows_f16": linear(f16, 12, 200, 512, transpose_b=True),
    "one_row_f32": linear(f32, 1, 150, 700, transpose_b=True),
    "one_row_columns_contiguous": linear(f32, 1, 150, 700),
    "one_column_f16": linear(f16, "S", 1, 300),
    "four_rows_unbounded": linear(f32, 4, 50, "U", transpose_b=True),
    "unbounded_sum": Case("matmul", ((f16, (128, "U")), (f16, ("U", 128)))),
    "long_sum": linear(f32, 24, 40, 2100, transpose_b=True),
    "long_even_sum": linear(bf16, 24, 40, 8192, transpose_b=True),
    "batched": Case("matmul", ((f32, ("B", 4, "S", 24)), (f32, ("B", 4, 24, "S")))),
    "convolution": image(f32, "B", 5, 11, 12, 3, strides=(2, 2)),
    "convolution_channels": image(f16, 2, 64, 6, 20, 3),
    "convolution_groups": image(f32, 2, 8, 6, 8, 3, groups=2),
    "convolution_depthwise": image(f32, 2, 12, 9, 12, 3, groups=12),
    "attention": heads(f32, ("B", 2, "S", 24), ("B", 2, "S", 24), ("B", 2, "S", 40)),
    "attention_causal_groups": heads(f16, ("B", 4, "U", 32), ("B", 2, "U", 32), ("B", 2, "U", 32), causal=True),
    "attention_mask": heads(bf16, (2, 2, 70, 16), (2, 2, 90, 16), (2, 2, 90, 16), (2, 1, 70, 90), mask=boolean, safe=True),
    "attention_bias": heads(f32, (2, 2, 70, 16), (2, 2, 90, 16), (2, 2, 90, 16), (2, 1, 1, 90), mask=f32),
    "attention_one_row": heads(f16, ("B", 4, 1, 32), ("B", 4, "S", 32), ("B", 4, "S", 32)),
    "attention_long": heads(f16, (1, 2, 1, 32), (1, 2, 4100, 32), (1, 2, 4100, 32)),
    "attention_long_f32": heads(f32, (1, 2, 3, 24), (1, 2, 2050, 24), (1, 2, 2050, 40)),
    "attention_long_mask": heads(bf16, (1, 4, 1, 16), (1, 2, 3000, 16), (1, 2, 3000, 16), (1, 1, 1, 3000), mask=boolean),
    "attention_long_causal": heads(f16, (1, 2, 70, 64), (1, 1, 4100, 64), (1, 1, 4100, 64), causal=True),
    "attention_wide": heads(f32, (1, 1, 20, 300), (1, 1, 90, 300), (1, 1, 90, 20)),
    "attention_wide_f16": heads(f16, (1, 2, 70, 512), (1, 1, 90, 512), (1, 1, 90, 300), causal=True),
    "attention_too_wide": heads(f32, (1, 1, 20, 600), (1, 1, 90, 600), (1, 1, 90, 20)),
    "softmax": Case("softmax", ((f32, ("B", 5, "S")),), {"axis": 2}),
    "softmax_unbounded": Case("softmax", ((f32, ("U", "U")),), {"axis": 1}),
    "softmax_outer": Case("softmax", ((f32, (70, 150)),), {"axis": 0}),
    "layer_norm": Case("layer_norm", ((f32, ("B", "S", 100)), (f32, (100,)), (f32, (100,))), {"axes": (2,), "epsilon": 1e-5}),
    "layer_norm_long": Case("layer_norm", ((f32, (3, 17_000)), (f32, (17_000,))), {"axes": (1,), "epsilon": 1e-5}),
    "layer_norm_few": Case("layer_norm", ((bf16, ("B", 40_000)), (bf16, (40_000,))), {"axes": (1,), "epsilon": 1e-5}),
    "softmax_few": Case("softmax", ((f32, (3, 50_000)),), {"axis": 1}),
    "softmax_few_f16": Case("softmax", ((f16, (2, 32_768)),), {"axis": -1}),
    "logsumexp_few": Case("logsumexp", ((f32, (3, 36_000)),), {"axes": (1,), "keepdims": True}),
    "sum_few": Case("sum", ((f32, (2, 65_536)),), {"axes": (1,)}),
    "reduce_max_few": Case("reduce_max", ((i32, (2, 131_072)),), {"axes": (1,)}),
    "sum_all": Case("sum", ((f32, ("U", 33)),), {"axes": (0, 1)}),
    "sum_outer": Case("sum", ((f32, (600, 70)),), {"axes": (0,)}),
    "sum_rows_unbounded": Case("sum", ((f32, ("U", "U")),), {"axes": (1,)}),
    "argmax_long": Case("argmax", ((i32, (3, "U")),), {"axis": 1}),
    "argmin_last": Case("argmin", ((i32, ("U", 40)),), {"axis": 0, "last": True}, highest=3),
    "argmin_whole_last": Case("argmin", ((i32, (70, 40)),), {"axis": 1, "last": True}, highest=3),
    "cumsum": Case("cumsum", ((i32, (5, "S")),), {"axis": 1, "exclusive": True}),
    "cumsum_unbounded": Case("cumsum", ((f32, ("U", 9)),), {"axis": 0, "reverse": True}),
    "cumsum_exclusive_unbounded": Case("cumsum", ((f32, (9, "U")),), {"axis": 1, "exclusive": True}),
    "transpose": Case("transpose", ((f32, ("B", 50, 70)),), {"permutation": (0, 2, 1)}),
    "transpose_heads": Case("transpose", ((f32, ("B", "S", 4, 16)),), {"permutation": (0, 2, 1, 3)}),
    "add_broadcast": Case("add", ((f32, ("B", "S", 40)), (f32, (40,)))),
    "gather": Case("take", ((f32, (101, 70)), (i64, ("B", "S"))), {"axis": 0}),
    "scatter_add_integers": scattered(i32, 200, combine="add"),
    "scatter_add_floats": scattered(f32, 200, combine="add"),
    "scatter_last_wins": scattered(f32, 20),
    "scatter_add_floats_one_column": Case("scatter_nd", ((f32, (9, 1)), (i64, (30, 2)), (f32, (30,))), {"combine": "add"}, highest=8),
}


@dataclass(frozen=True)
class Judged:
    """A case with its inputs by operand, and what its outputs must be: in the operands' own types and in f64."""

    problem: Problem
    given: dict[str, Array]
    expected: dict[str, Array]
    exact: dict[str, Array]

    def verdict(self, got: Mapping[str, Array]) -> Verdict:
        """The first failing verdict on the outputs, or the last one."""
        verdict = Verdict(False, "there is no output")
        for name, array in self.expected.items():
            verdict = judge(got[name].reshape(array.shape), array, self.exact[name])
            if not verdict.passed:
                break
        return verdict


def judged(case: Case) -> Judged:
    """The case with its answers."""
    problem, region = case.problem(), case.region()
    arrays = {operand.name: array for operand, array in zip(region.inputs, case.arrays(), strict=True)}
    wide = {o.name: arrays[o.name].astype(np.float64) if o.type.dtype.is_float else arrays[o.name] for o in region.inputs}
    with np.errstate(all="ignore"):
        expected, exact = run_region(region, arrays, SIZES), run_region(case.region(wide=True), wide, SIZES)
    shapes = {o.name: tuple(dims.evaluate(d, SIZES) for d in o.type.shape) for o in problem.region.inputs}
    return Judged(problem, {name: arrays[name].reshape(shape) for name, shape in shapes.items()}, expected, exact)


@dataclass(frozen=True)
class Coded:
    """A product with a coded weight: its problem as GPUs get it, its inputs by operand, and what it must give."""

    problem: Problem
    given: dict[str, Array]
    module: Module
    x: Array

    def verdict(self, got: Mapping[str, Array]) -> Verdict:
        """Of the one output."""
        (expected,), (exact,) = interpret(self.module, [self.x]), interpret(self.module, [self.x], wide=True)
        (name,) = (operand.name for operand in self.problem.region.outputs)
        return judge(got[name].reshape(expected.shape), expected, exact)


def _values(module: Module, values: Sequence[Value], row: Array) -> list[Array]:
    """What some values of a module are for its one input: constants, the input, and what other kernels make of it."""
    made = [value for value in values if value.constant is None and value.op is not None]
    results = module.main.outputs
    module.main.set_outputs(made)
    found = dict(zip(made, interpret(module, [row]), strict=True)) if made else {}
    module.main.set_outputs(results)
    return [value.constant.array if value.constant is not None else found.get(value, row) for value in values]


@functools.cache
def coded_product(quantize: str, rows: int, columns: int, depth: int) -> Coded:
    """bf16 rows by a weight that is stored as `quantize` says: as it is (`none`), in a format, after `2:4 ` with two of four numbers."""
    torch.manual_seed(1)
    x = torch.randn(rows, depth, dtype=torch.bfloat16)
    program = torch.export.export(torch.nn.Linear(depth, columns, bias=False, dtype=torch.bfloat16).eval(), (x,))
    *sparse, words = quantize.split(" ")
    asked = {"sparsity": sparse[0] if sparse else None, "quantize": None if words == "none" else words}
    module, options = import_exported(program), build_options({"targets": ["sm_90a"], **asked})
    simplify(module, options)
    group = Fusion(module, module.main, narrow=True).units(lambda unit: unit)[-1]
    assert isinstance(group, Group)
    problem, _ = problem_of(group, module.facts, lambda *_: {})
    row = x.float().numpy().astype(bf16.numpy)
    arrays = _values(module, group.inputs, row)
    given = {o.name: array.reshape(o.type.shape) for o, array in zip(problem.region.inputs, arrays, strict=True)}
    return Coded(problem, given, module, row)


@pytest.fixture
def coded() -> Callable[[str, int, int, int], Coded]:
    return coded_product


@pytest.fixture
def cases() -> dict[str, Case]:
    return CASES


@pytest.fixture
def answered() -> Callable[[Case], Judged]:
    return judged
