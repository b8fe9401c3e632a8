"""Padding of sums to whole groups: the same sums of codes and of bf16, what is left alone and why, and instructions that then multiply."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module, product_passes
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.types import DType, TensorType, bf16, f16, f32, i8, u8
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.passes.weights.pad_terms import COLUMNS, ROWS, WholeGroups
from ourcc.runtime.engine import Engine

FACTORS = [(u8, i8), (i8, i8), (i8, u8), (bf16, bf16)]


def values(shape: tuple[int, ...], dtype: DType, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    if dtype.is_integer:
        bounds = np.iinfo(dtype.numpy)
        return draw.integers(bounds.min, bounds.max + 1, shape, dtype.numpy)
    return draw.standard_normal(shape, np.float32).astype(dtype.numpy)


def product(
    left: DType, right: DType, terms: int, columns: int, turned: bool = False, constant: bool = True, rows: int | None = None
) -> Module:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    builder = Builder(module, graph)
    x = graph.add_input("x", TensorType(left, (2, rows or module.declare("S", 1, 64), terms)))
    shape = (columns, terms) if turned else (terms, columns)
    w = module.add_constant("w", values(shape, right, 1)) if constant else graph.add_input("w", TensorType(right, shape))
    graph.set_outputs([builder.matmul(x, w, transpose_b=turned, wide=left == bf16)])
    return module


def check_of(module: Module) -> str | None:
    return next(WholeGroups().check(op, module) for op in module.main if op.name == "matmul")


@pytest.mark.parametrize("terms", [1, 5, 67, 129])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("left", "right"), FACTORS, ids=str)
def test_padded_sums_are_the_same(left: DType, right: DType, turned: bool, terms: int) -> None:
    module, x = product(left, right, terms, 33, turned), values((2, 7, terms), left, 0)
    (expected,), (exact,) = interpret(module, [x]), interpret(module, [x], wide=True)
    PassManager(parse_pipeline("pad_terms"), strict=True).run(module)
    assert [op.name for op in module.main] == ["pad", "pad", "matmul"]
    (padded,) = interpret(module, [x])
    (answer,) = (np.asarray(Engine(compile_module(module, build_options({"target": "native"})), threads=1)(x)),)
    if left.is_integer:
        assert np.array_equal(padded, expected) and np.array_equal(answer, expected)
    else:
        assert judge(answer, expected, exact).passed


@pytest.mark.parametrize("terms", [1, 6, 67, 128])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("left", "right"), FACTORS, ids=str)
def test_factors_that_calls_bring_are_padded_however_many_terms_there_are(
    left: DType, right: DType, turned: bool, known: bool, terms: int
) -> None:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    count = terms if known else module.declare("K", 1, 200)
    shape = (33, count) if turned else (count, 33)
    factors = [graph.add_input("x", TensorType(left, (2, 7, count))), graph.add_input("w", TensorType(right, shape))]
    graph.set_outputs([Builder(module, graph).matmul(*factors, transpose_b=turned, wide=left == bf16)])
    given = [values((2, 7, terms), left, 0), values((33, terms) if turned else (terms, 33), right, 1)]
    (expected,), (exact,) = interpret(module, given), interpret(module, given, wide=True)
    contents = compile_module(module, build_options({"target": "native", "tune": "off"}))
    answer = np.asarray(Engine(contents, threads=1)(*given))
    if left.is_integer:
        assert np.array_equal(answer, expected)
    else:
        assert judge(answer, expected, exact).passed
    whole = known and terms % (4 if left.is_integer else 2) == 0
    assert [op.name for op in module.main] == (["matmul"] if whole else ["pad", "pad", "matmul"])


def test_what_has_whole_groups_or_none_is_left() -> None:
    assert check_of(product(u8, i8, 5, 33)) is None and check_of(product(bf16, bf16, 5, COLUMNS)) is None
    for module, why in (
        (product(u8, i8, 8, 33), "8 terms are whole groups of 4"),
        (product(bf16, bf16, 6, 33), "6 terms are whole groups of 2"),
        (product(f32, f32, 5, 33), "f32 and f32 are multiplied one by one"),
        (product(f16, f16, 5, 33), "f16 and f16 are multiplied one by one"),
        (product(u8, i8, 5, COLUMNS - 1), f"rows are not copied for {COLUMNS - 1} columns"),
        (product(u8, i8, 5, 33, constant=False, rows=ROWS - 1), f"not copied for {ROWS - 1} rows"),
    ):
        assert why in str(check_of(module))
        PassManager(parse_pipeline("pad_terms"), strict=True).run(module)
        assert [op.name for op in module.main] == ["matmul"]


def test_a_padded_product_is_no_loop_of_single_terms() -> None:
    """Rows are copied by a kernel of their own, so that the product reads whole groups; it was a plain nest of loops."""
    contents = compile_module(product(u8, i8, 67, 64), build_options({"target": "x86-64-v4-vnni", "tune": "off"}))
    (rows,) = contents.report["kernels"].values()
    strategies = {row["source_ops"]: row["strategy"] for row in rows if row["kind"] == "kernel"}
    assert strategies["matmul"].startswith("packed")


def test_a_gpu_masks_the_rest_of_a_sum() -> None:
    assert "pad_terms" in product_passes(build_options({"target": "cpu"}))
    for targets in (["sm_90a"], ["cpu", "sm_90a"]):
        assert "pad_terms" not in product_passes(build_options({"targets": targets}))
