"""Packing of codes: constants of 2 and 4 bits become bytes that `decode` reads, the same numbers; what stays and why."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.plan import Host
from ourcc.ir.types import DTYPES, TensorType, f32, i4
from ourcc.passes.manager import PassManager
from ourcc.passes.match import operand
from ourcc.passes.pipeline import parse_pipeline
from ourcc.passes.weights.pack_codes import PackedCodes
from ourcc.runtime.engine import Engine


def module_with(dtype: str, shape: tuple[int, ...], axis: int | None, block: int, zero: bool, scales: str = "f32") -> Module:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    random, kind = np.random.default_rng(0), DTYPES[dtype]
    low, high = (-(1 << (kind.bits - 1)), 1 << (kind.bits - 1)) if kind.kind == "int" else (0, 1 << kind.bits)
    sizes: tuple[int, ...] = ()
    if axis is not None:
        sizes = tuple(-(-n // block) if m == axis else n for m, n in enumerate(shape)) if block else (shape[axis],)
    code = module.add_constant("w", random.integers(low, high, shape).astype(kind.numpy))
    scale = module.add_constant("s", random.uniform(0.01, 0.1, sizes).astype(DTYPES[scales].numpy))
    zeros = module.add_constant("z", random.integers(low, high, sizes).astype(kind.numpy)) if zero else None
    x = graph.add_input("x", TensorType(f32, (module.declare("B", 1, 64), shape[1])))
    weight = b.dequantize(code, scale, zeros, axis=axis, block=block, dtype=f32)
    graph.set_outputs([b.matmul(x, weight, transpose_b=True), weight])
    return module


CASES = [
    ("i4", (24, 96), 1, 32, False, "f32"),
    ("i4", (24, 96), 1, 16, True, "f16"),
    ("u4", (24, 96), 1, 96, True, "bf16"),
    ("u4", (24, 96), 1, 24, False, "f32"),
    ("i4", (24, 96), 0, 0, False, "f32"),
    ("u4", (24, 64), 0, 0, True, "f32"),
    ("i4", (64, 96), 0, 32, True, "f32"),
    ("i4", (24, 64), None, 0, True, "f32"),
    ("i2", (24, 96), 1, 32, False, "f32"),
    ("u2", (24, 96), 1, 32, True, "f32"),
    ("i4", (64, 32), 1, 0, True, "f32"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_packed_codes_are_the_same_numbers(case: tuple) -> None:  # type: ignore[type-arg]
    module = module_with(*case)
    x = np.random.default_rng(1).standard_normal((3, case[1][1])).astype(np.float32)
    _, before = interpret(module, [x])
    PassManager(parse_pipeline("pack_codes, eliminate_dead_code"), strict=True).run(module)
    assert [op.name for op in module.main] == ["decode", "matmul"]
    assert all(value.type.dtype.bits >= 8 for value in module.constants.values())
    _, after = interpret(module, [x])
    np.testing.assert_array_equal(after, before)
    stored = sum(int(str(value.type.nbytes)) for name, value in module.constants.items() if name.startswith("w.codes"))
    assert stored * 8 == np.prod(case[1]) * DTYPES[case[0]].bits


@pytest.mark.parametrize("case", CASES[:4], ids=str)
def test_no_host_step_expands_them(case: tuple) -> None:  # type: ignore[type-arg]
    module = module_with(*case)
    contents = compile_module(module, build_options({"target": "native"}))
    assert not any(isinstance(step, Host) for step in contents.best.plan.steps)
    x = np.random.default_rng(1).standard_normal((3, case[1][1])).astype(np.float32)
    for got, step, exact in zip(Engine(contents, threads=1)(x), interpret(module, [x]), interpret(module, [x], wide=True), strict=True):
        verdict = judge(got, step, exact)
        assert verdict.passed, verdict.reason


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (("i4", (24, 90), 1, 32, False), "90 codes along axis 1 are not whole groups of 32"),
        (("i4", (24, 90), 1, 10, False), "90 codes along axis 1 are not whole groups of 10"),
        (("i4", (24, 90), 0, 0, False), "90 codes along axis 1 are not whole groups of 32"),
        (("i8", (24, 96), 1, 32, False), "the codes are not of 2 or 4 bits"),
    ],
)
def test_why_codes_stay(case: tuple, why: str) -> None:  # type: ignore[type-arg]
    module = module_with(*case)
    op = next(iter(module.main))
    assert PackedCodes().check(op, module) == why
    assert operand(op, 0).dtype.name == case[0]


def test_codes_that_are_given_stay() -> None:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(i4, (4, 32)))
    graph.set_outputs([b.dequantize(x, module.add_constant("s", np.float32(0.5)), dtype=f32)])
    assert PackedCodes().check(next(iter(graph)), module) == "codes, scales and zero points are not all constant"


@pytest.mark.parametrize(
    "case",
    [
        ("i4", (24, 90), 1, 32, False),
        ("u4", (24, 90), 1, 3, True),
        ("i2", (24, 90), 1, 30, True),
        ("u4", (24, 90), 0, 0, True),
        ("u2", (0, 32), 1, 32, False),
    ],
    ids=str,
)
def test_codes_that_do_not_pack_become_bytes(case: tuple) -> None:  # type: ignore[type-arg]
    module = module_with(*case)
    x = np.random.default_rng(1).standard_normal((3, case[1][1])).astype(np.float32)
    _, before = interpret(module, [x])
    contents = compile_module(module, build_options({"target": "native", "require": "no-fallback"}))
    assert not any(isinstance(step, Host) for step in contents.best.plan.steps)
    if case[1][0]:  # what has no elements is not computed
        (op,) = (op for op in module.main if op.name == "dequantize")
        assert operand(op, 0).dtype.bits == 8
    np.testing.assert_array_equal(Engine(contents, threads=1)(x)[1], before)


def test_blocks_longer_than_the_axis_are_one() -> None:
    module = module_with("i4", (5, 40), 1, 1 << 40, False)
    x = np.random.default_rng(1).standard_normal((3, 40)).astype(np.float32)
    expected = interpret(module, [x])
    for got, exact in zip(Engine(compile_module(module, build_options({"target": "native"})), threads=1)(x), expected, strict=True):
        np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)
