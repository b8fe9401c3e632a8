"""Scores as sums of integers: the same on every level, whatever signs and zero points codes have; what stays in floats and why."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ourcc.codegen.c.disassembly import PROGRAMS
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.types import DTYPES, TensorType, bf16, f32, i64
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.passes.quantize.attention import why_not
from ourcc.runtime import native
from ourcc.runtime.engine import Engine

Drawn = Callable[[int, Sequence[int]], tuple[Module, list[np.ndarray]]]

STEPS = "quantize_attention, canonicalize, eliminate_common_subexpressions, eliminate_dead_code"
LEVELS = ["x86-64-v3", "x86-64-v3-vnni", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-bf16"]


def built(module: Module, level: str, **options: str) -> Engine:
    return Engine(compile_module(module, build_options({"target": level, **options})), threads=1)


def runnable() -> list[str]:
    from ourcc.ir.target import CPU_LEVELS

    flags = native.cpu_flags()
    return [level.name for level in CPU_LEVELS if level.name in LEVELS and flags.issuperset(level.features)]


@pytest.mark.parametrize("seed", range(6))
def test_every_level_gives_the_model_with_codes(seed: int, drawn_attention: Drawn) -> None:
    """Judged by the program with its roundings, and near the one without them; values in 16 bits where the options say so."""
    options = {"quantize": "int8"} | ({"precision": "bf16"} if seed % 3 == 0 else {})
    sizes = (4, 8, 16, 20, 64, 80, 7, 96)
    module, given = drawn_attention(seed, sizes)
    given[0] *= 10.0 ** np.random.default_rng(seed).integers(-2, 1, (*given[0].shape[:-1], 1))  # tokens differ by powers of ten
    (wide,) = interpret(module, given, wide=True)
    for level in runnable():
        module, _ = drawn_attention(seed, sizes)
        engine = built(module, level, **options)
        assert any(op.name == "dequantize" for op in module.main)
        (step,), (exact,) = interpret(module, given), interpret(module, given, wide=True)
        verdict = judge(np.asarray(engine(*given)), step, exact, digits=8 if "precision" in options else None)
        assert verdict.passed, f"{level}: {verdict.reason}"
    assert np.linalg.norm(exact - wide) <= 0.03 * np.linalg.norm(wide)


@pytest.mark.parametrize("seed", range(8))
def test_codes_of_any_sign_with_any_zero_point(seed: int) -> None:
    """What static quantizers write: codes of 8 bits with one scale, zero points known or given."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    kinds = [DTYPES[draw.choice(("u8", "i8"))] for _ in "qk"]
    head, rows, columns = draw.choice((8, 20, 64, 260, 7)), draw.choice((1, 3, 13)), draw.choice((5, 33, 130))
    shapes = [(1, 2, rows, head), (1, 2, columns, head)]
    given = [
        numbers.integers(*((0, 256) if kind.name == "u8" else (-128, 128)), shape).astype(kind.numpy)
        for kind, shape in zip(kinds, shapes, strict=True)
    ]
    given.append(numbers.standard_normal((1, 2, columns, 24)).astype(np.float32))

    def make() -> tuple[Module, list[np.ndarray]]:
        module = Module("net")
        graph = module.functions["main"] = Graph("main")
        b, more, factors = Builder(module, graph), list[np.ndarray](), list[Value]()
        chosen = random.Random(seed + 1)
        for name, kind, shape in zip("qk", kinds, shapes, strict=True):
            code = graph.add_input(name, TensorType(kind, shape))
            number = np.asarray(chosen.choice((0, 1, 37, 127) if kind.name == "i8" else (0, 3, 128, 255)), kind.numpy)
            scale = module.add_constant(f"{name}.scale", np.asarray(0.02 / head**0.25, np.float32))
            if chosen.random() < 0.3:
                zero = graph.add_input(f"{name}.zero", TensorType(kind, ()))
                more.append(number)
            else:
                zero = module.add_constant(f"{name}.zero", number)
            factors.append(b.dequantize(code, scale, *(() if chosen.random() < 0.2 and not more else (zero,)), dtype=f32))
        values = graph.add_input("v", TensorType(f32, given[2].shape))
        graph.set_outputs([b.attention(*factors, values, None, scale=0.3, causal=chosen.random() < 0.3, safe=False)])
        order = {value.name: n for n, value in enumerate(graph.inputs)}
        arrays = dict(zip("qkv", given, strict=True))
        rest = iter(more)
        return module, [arrays[name] if name in arrays else next(rest) for name in order]

    for level in runnable():
        module, arrays = make()
        (step,), (exact,) = interpret(module, arrays), interpret(module, arrays, wide=True)
        got = np.asarray(built(module, level)(*arrays))
        verdict = judge(got, step, exact)
        assert verdict.passed, f"{level}: {verdict.reason}"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_token_that_is_not_finite_gives_none_that_is(value: float) -> None:
    module, q, k, v = plain(3, 5)
    engine = built(module, "native", quantize="int8")
    right = np.asarray(engine(q, k, v))
    q[0, 0, 1, 3] = value
    got = np.asarray(engine(q, k, v))
    assert not np.isfinite(got[0, 0, 1]).any()
    np.testing.assert_array_equal(np.delete(got, 1, 2), np.delete(right, 1, 2))
    k[0, 1, 4, 0] = value
    assert not np.isfinite(np.asarray(engine(q, k, v))[0, 1]).any()


@pytest.mark.parametrize("scale", [0.0, 1e-44, 1e-30, 1e15, 1e30])
def test_tokens_of_any_size(scale: float) -> None:
    module, q, k, v = plain(3, 5)
    k[0, 0, 2] *= np.float32(scale)
    (exact,) = interpret(module, [q, k, v], wide=True)
    got = np.asarray(built(module, "native", quantize="int8")(q, k, v))
    assert np.isfinite(got).all() and np.abs(got - exact).max() < 0.05 * np.abs(exact).max()


def plain(rows: int, columns: int) -> tuple[Module, np.ndarray, np.ndarray, np.ndarray]:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    shapes = [(1, 2, n, 64) for n in (rows, columns, columns)]
    q, k, v = (graph.add_input(name, TensorType(f32, shape)) for name, shape in zip("qkv", shapes, strict=True))
    graph.set_outputs([Builder(module, graph).attention(q, k, v, None, scale=0.125, causal=False, safe=False)])
    numbers = np.random.default_rng(rows)
    return (module, *(numbers.standard_normal(shape).astype(np.float32) for shape in shapes))


@pytest.mark.skipif(not any(map(shutil.which, PROGRAMS)), reason="no disassembler is installed")
def test_scores_are_dot_products_of_bytes_in_registers() -> None:
    """Their sums begin with what the keys' codes add up to, and no loop over them spills."""
    module, *_ = plain(1500, 1500)
    contents = compile_module(module, build_options({"target": "x86-64-v4-vnni", "quantize": "int8"}))
    (rows,) = contents.report["kernels"].values()
    (row,) = (row for row in rows if row["kind"] == "kernel" and "attention" in row["source_ops"])
    assert row["inner_spills"] <= 12
    files = contents.parts["x86-64-v4-vnni"].files
    assert any("vpdpbusd" in bytes(text).decode() for name, text in files.items() if name.endswith((".c", ".h")))


def test_what_stays_says_why() -> None:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    q = graph.add_input("q", TensorType(f32, (1, 2, 1, 8)))
    places, rows = graph.add_input("places", TensorType(i64, (1, 1))), graph.add_input("rows", TensorType(f32, (1, 2, 6, 8)))
    held = b.scatter_nd(graph.add_state(module.add_state("keys", TensorType(f32, (1, 2, 6, 8)))), places, rows)
    seen = b.slice(held, starts=(0, 0, 0, 0), sizes=(1, 2, 4, 8), steps=(1, 1, 1, 1))
    result = b.attention(q, seen, seen, None, scale=1.0)
    narrow = b.attention(*(b.cast(value, dtype=bf16) for value in (q, q, q)), None, scale=1.0)
    free = b.attention(q, q, q, None, scale=1.0)
    kept = b.scatter_nd(graph.add_state(module.add_state("narrow", TensorType(bf16, (1, 2, 6, 8)))), places, b.cast(rows, dtype=bf16))
    wide = b.cast(b.slice(kept, starts=(0, 0, 0, 0), sizes=(1, 2, 4, 8), steps=(1, 1, 1, 1)), dtype=f32)
    cached = b.attention(q, wide, wide, None, scale=1.0)
    graph.set_outputs([result, b.cast(narrow, dtype=f32), free, cached], states={"keys": held, "narrow": kept})
    assert why_not(cached.op) == "its keys are kept in bf16 from call to call"
    assert why_not(result.op) == "its keys are kept in f32 from call to call"
    assert why_not(narrow.op) == "its queries and keys are bf16, not f32"
    assert why_not(free.op) is None
    PassManager(parse_pipeline(STEPS)).run(module)
    assert [op.name for op in module.main].count("quantize") == 1  # queries and keys are one value
    coded = next(
        op for op in module.main if op.name == "attention" and op.operands[0].op is not None and op.operands[0].op.name == "dequantize"
    )
    assert why_not(coded) == "its queries or keys are stored with scales already"
