"""Attention in 16 bits: what is rounded, that the answers are as near as that allows at odd sizes, and what stays wide."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from ourcc.codegen.c.disassembly import PROGRAMS
from ourcc.compiler.backends import cpu
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.target import AMX_BF16, AMX_I8, AMX_U8, AVX2
from ourcc.ir.types import TensorType, f32, i64
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.passes.quantize.narrow_products import why_not
from ourcc.runtime.engine import Engine

Drawn = Callable[[int, Sequence[int]], tuple[Module, list[np.ndarray]]]

STEPS = "narrow_products, sink_casts, canonicalize, fold_constants, eliminate_common_subexpressions, eliminate_dead_code"


TILES = replace(AVX2, name="x86-64-v3-tiles", instructions=(*AVX2.instructions, AMX_U8, AMX_I8, AMX_BF16))
"""A level whose machines have no tiles: the instructions are functions."""


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("target", ["native", "x86-64-v3", "tiles"])
def test_answers_are_as_near_as_the_factors_allow(seed: int, target: str, drawn_attention: Drawn, monkeypatch: pytest.MonkeyPatch) -> None:
    if target == "tiles":
        monkeypatch.setattr(cpu, "levels_for", lambda target, module: [TILES])
        target = "native"
    module, given = drawn_attention(seed, (6, 8, 16, 24, 64, 80, 7))
    exact = interpret(module, given, wide=True)
    precision = "fp16" if seed % 4 == 3 else "bf16"
    contents = compile_module(module, build_options({"target": target, "precision": precision}))
    (step,), (right,) = interpret(module, given), exact
    got = np.asarray(Engine(contents, threads=1)(*given))
    assert judge(got, step, right, digits={"bf16": 8, "fp16": 11}[precision]).passed


@pytest.mark.skipif(not any(map(shutil.which, PROGRAMS)), reason="no disassembler is installed")
@pytest.mark.parametrize(("columns", "scale"), [(1500, 0.125), (197, 0.125), (128, 1.0)])
def test_sums_stay_in_registers(columns: int, scale: float) -> None:
    """gcc once kept twelve rows of scores in memory, which took four times as long."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    q, k, v = (graph.add_input(name, TensorType(f32, (1, 2, columns, 64))) for name in "qkv")
    graph.set_outputs([Builder(module, graph).attention(q, k, v, None, scale=scale, causal=False, safe=False)])
    contents = compile_module(module, build_options({"target": "x86-64-v4-bf16", "precision": "bf16"}))
    (rows,) = contents.report["kernels"].values()
    (row,) = (row for row in rows if row["kind"] == "kernel" and "attention" in row["source_ops"])
    assert row["inner_spills"] <= 12


TEXT = """module @m {
  func @main(%x: f32[2, 9, 48], %w: f32[48, 144], %o: f32[48, 48]) -> f32[2, 9, 48] {
    %p = matmul(%x, %w) : f32[2, 9, 144]
    %s = slice(%p) {starts = [0, 0, 0], sizes = [2, 9, 48], steps = [1, 1, 1]} : f32[2, 9, 48]
    %t = slice(%p) {starts = [0, 0, 48], sizes = [2, 9, 48], steps = [1, 1, 1]} : f32[2, 9, 48]
    %u = slice(%p) {starts = [0, 0, 96], sizes = [2, 9, 48], steps = [1, 1, 1]} : f32[2, 9, 48]
    %a = reshape(%s) {shape = [2, 9, 3, 16]} : f32[2, 9, 3, 16]
    %b = reshape(%t) {shape = [2, 9, 3, 16]} : f32[2, 9, 3, 16]
    %c = reshape(%u) {shape = [2, 9, 3, 16]} : f32[2, 9, 3, 16]
    %q = transpose(%a) {permutation = [0, 2, 1, 3]} : f32[2, 3, 9, 16]
    %k = transpose(%b) {permutation = [0, 2, 1, 3]} : f32[2, 3, 9, 16]
    %v = transpose(%c) {permutation = [0, 2, 1, 3]} : f32[2, 3, 9, 16]
    %m = attention(%q, %k, %v) {scale = 0.25} : f32[2, 3, 9, 16]
    %n = transpose(%m) {permutation = [0, 2, 1, 3]} : f32[2, 9, 3, 16]
    %r = reshape(%n) {shape = [2, 9, 48]} : f32[2, 9, 48]
    %y = matmul(%r, %o) : f32[2, 9, 48]
    return %y
  }
}"""


def test_queries_keys_and_values_are_stored_once_in_16_bits() -> None:
    """One product makes all three, and its kernel rounds them; what attention gives is read as it lies."""
    module = parse_module(TEXT)
    PassManager(parse_pipeline(STEPS)).run(module)
    names = [op.name for op in module.main]
    assert names.count("cast") == 4 and [op.result.dtype.name for op in module.main if op.name == "attention"] == ["bf16"]
    (whole,) = [op for op in module.main if op.name == "cast" and op.result.shape == (2, 9, 144)]
    assert {user.name for user in whole.result.uses} == {"slice"}


def test_keys_that_are_kept_wide_stay_so() -> None:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    q = graph.add_input("q", TensorType(f32, (1, 2, 1, 8)))
    places, rows = graph.add_input("places", TensorType(i64, (1, 1))), graph.add_input("rows", TensorType(f32, (1, 2, 6, 8)))
    held = b.scatter_nd(graph.add_state(module.add_state("keys", TensorType(f32, (1, 2, 6, 8)))), places, rows)
    seen = b.slice(held, starts=(0, 0, 0, 0), sizes=(1, 2, 4, 8), steps=(1, 1, 1, 1))
    result = b.attention(q, seen, seen, None, scale=1.0)
    graph.set_outputs([result], states={"keys": held})
    assert why_not(result.op) == "its keys and values are kept in f32 from call to call"
