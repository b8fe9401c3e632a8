"""Products of two activations as integers: drawn shapes, signs and zero points on two levels; what stays in floats and why."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.types import TensorType, f32, i8, i32, u8
from ourcc.passes.quantize.activation_products import MOST, ActivationProduct
from ourcc.runtime.engine import Engine


def drawn(seed: int) -> tuple[Module, list[np.ndarray]]:
    """A product of codes of drawn signs, with scales and zero points that are constants or given."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    rows, depth, columns = draw.choice((1, 3, 13, 40)), draw.choice((1, 4, 7, 64, 197, 33)), draw.choice((5, 16, 33, 64))
    kinds, turned_a, turned_b = [draw.choice((u8, i8)) for _ in "xy"], draw.random() < 0.2, draw.random() < 0.5
    batch = draw.choice(((2, 3), (3,), ()))
    shapes = [(2, 3, *((depth, rows) if turned_a else (rows, depth))), (*batch, *((columns, depth) if turned_b else (depth, columns)))]
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b, given, factors = Builder(module, graph), list[np.ndarray](), []
    count = module.declare("K", 1, 300) if seed % 2 else depth
    sizes = [(2, 3, *((count, rows) if turned_a else (rows, count))), (*batch, *((columns, count) if turned_b else (count, columns)))]
    for name, kind, size, shape in zip("xy", kinds, sizes, shapes, strict=True):
        code = graph.add_input(name, TensorType(kind, size))
        given.append(numbers.integers(0, 256, shape).astype(np.uint8).view(kind.numpy))
        scale = module.add_constant(f"{name}.scale", np.asarray([0.03] if draw.random() < 0.3 else 0.02, np.float32))
        number = np.asarray(draw.choice((0, 5, 127, -128) if kind == i8 else (0, 128, 255)), kind.numpy)
        way, zero = draw.random(), ()
        if way < 0.5:
            zero = (module.add_constant(f"{name}.zero", number),)
        elif way < 0.7:
            zero = (graph.add_input(f"{name}.zero", TensorType(kind, ())),)
            given.append(number)
        factors.append(b.dequantize(code, scale, *zero, dtype=f32))
    graph.set_outputs([b.matmul(*factors, transpose_a=turned_a, transpose_b=turned_b)])
    return module, given


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("level", ["native", "x86-64-v3"])
def test_codes_are_multiplied_as_integers(seed: int, level: str) -> None:
    module, given = drawn(seed)
    (step,), (exact,) = interpret(module, given), interpret(module, given, wide=True)
    got = np.asarray(Engine(compile_module(module, build_options({"target": level})), threads=1)(*given))
    verdict = judge(got, step, exact)
    assert verdict.passed, verdict.reason
    assert all(op.result.dtype == i32 for op in module.main if op.name == "matmul")


@pytest.mark.parametrize("most", [300, MOST])
def test_sums_whose_length_calls_decide_go_in_fours(most: int) -> None:
    """In register blocks with dot products, of columns that are copied side by side, as sums of known length do; not in plain loops."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b, count = Builder(module, graph), module.declare("K", 1, most)
    x, y = graph.add_input("x", TensorType(u8, (19, count))), graph.add_input("y", TensorType(i8, (count, 40)))
    graph.set_outputs([b.matmul(*(b.dequantize(code, module.add_constant(code.name, np.float32(0.5)), dtype=f32) for code in (x, y)))])
    contents, numbers = compile_module(module, build_options({"target": "x86-64-v3"})), np.random.default_rng(most)
    (rows,) = contents.report["kernels"].values()
    assert [row["strategy"].partition("{")[0] for row in rows if "matmul" in row["source_ops"]] == ["packed"]
    engine = Engine(contents, threads=1)
    for depth in (1, 3, 4, 5, 127, 128, 300, most):
        given = numbers.integers(0, 256, (19, depth)).astype(np.uint8), numbers.integers(-128, 128, (depth, 40)).astype(np.int8)
        want = given[0].astype(np.int64) @ given[1].astype(np.int64)
        np.testing.assert_array_equal(np.asarray(engine(*given)), (want * 0.25).astype(np.float32))


def test_on_gpus_they_stay_in_floats() -> None:
    """Their instructions want both factors contiguous along the sum."""
    from ourcc.passes.manager import PassManager
    from ourcc.passes.pipeline import parse_pipeline

    module, _ = drawn(0)
    PassManager(parse_pipeline("integer_products{codes=i8}")).run(module)
    assert [op.result.dtype for op in module.main if op.name == "matmul"] == [f32]


@pytest.mark.parametrize(
    ("depth", "scale", "why"),
    [
        (MOST + 1, (), f"a sum of {MOST + 1} terms is not known to fit 32 bits"),
        (0, (), "a sum of 0 terms is not known to fit 32 bits"),
        (8, (3,), "scales or zero points vary"),
    ],
)
def test_what_stays_says_why(depth: int, scale: tuple[int, ...], why: str) -> None:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(u8, (3, depth)))
    y = graph.add_input("y", TensorType(i8, (depth, 4)))
    left = b.dequantize(x, module.add_constant("s", np.full(scale, 0.1, np.float32)), axis=0 if scale else None, dtype=f32)
    product = b.matmul(left, b.dequantize(y, module.add_constant("t", np.float32(0.1)), dtype=f32))
    graph.set_outputs([product])
    assert ActivationProduct().check(product.op, module) == why


@pytest.mark.parametrize("depth", [1, MOST])
def test_sums_fit_at_extreme_codes(depth: int) -> None:
    """All codes and zero points at their ends: the sum of the four parts is exact."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x, y = graph.add_input("x", TensorType(u8, (2, depth))), graph.add_input("y", TensorType(u8, (depth, 16)))
    one, zeros = module.add_constant("one", np.float32(1)), [module.add_constant(f"z{n}", np.uint8(n)) for n in (0, 255)]
    graph.set_outputs([b.matmul(b.dequantize(x, one, zeros[1], dtype=f32), b.dequantize(y, one, zeros[0], dtype=f32))])
    contents = compile_module(module, build_options({"target": "native"}))
    got = np.asarray(Engine(contents, threads=1)(np.zeros((2, depth), np.uint8), np.full((depth, 16), 255, np.uint8)))
    np.testing.assert_array_equal(got, np.full((2, 16), np.float32(-255 * 255 * depth)))
