"""Sums of blocks of codes in tiles: the bits of register blocks in every schedule, on several levels, at any number of rows."""

from __future__ import annotations

import functools
import random
from dataclasses import replace

import numpy as np
import pytest

from ourcc.codegen.c.printer import print_launch
from ourcc.compiler.backends.cpu import lower_cpu
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module, simplify
from ourcc.ir import dims
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.target import AMX_I8, AMX_SU8, AMX_U8, AVX2, AVX512_AMX, AVX512_BF16, CpuLevel
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.parse import parse
from ourcc.ir.tile.program import Dot, Let, Local, statements
from ourcc.ir.tile.text import text
from ourcc.ir.tile.verify import verify
from ourcc.ir.types import TensorType, f32
from ourcc.passes.lower.schedule import cheapest
from ourcc.passes.tile.cpu.packed import Packed
from ourcc.passes.tile.schedule import Match, Problem, matches
from ourcc.runtime.engine import Engine

MODEL = replace(AVX2, name="x86-64-v3-model", instructions=(*AVX2.instructions, AMX_U8, AMX_I8, AMX_SU8))
FORMATS = (
    "int4-weight",
    "int3-weight",
    "fp8-weight",
    "int4-a8",
    "int4-g64-a8",
    "int4-g128-a8",
    "int3-a8",
    "int2-a8",
    "mxfp6-a8",
    "mxfp4-a8",
)


def product(rows: dims.Dim | None, depth: int, columns: int, format_: str) -> Module:
    """A product by coded weights, with something behind it; any number of rows where none is said."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(f32, (module.declare("B", 1, 300) if rows is None else rows, depth)))
    numbers = np.random.default_rng(depth + columns)
    w = module.add_constant("w", numbers.standard_normal((depth, columns)).astype(np.float32))
    bias = module.add_constant("bias", numbers.standard_normal(columns).astype(np.float32))
    graph.set_outputs([b.relu(b.add(b.matmul(x, w), bias))])
    simplify(module, build_options({"quantize": format_}))
    return module


def coded(module: Module, level: CpuLevel) -> Match[object]:
    """What `packed` finds in the product of codes."""
    problems: list[Problem] = [unit.problem for unit in lower_cpu(module, level, cheapest(level)).scheduled.values()]
    (match,) = (match for problem in problems for match in matches([Packed()], problem, level))
    return match


def is_decoded(schedule: object) -> bool:
    return "decoded" in str(schedule)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("seed", range(2))
def test_every_schedule_gives_the_bits_of_register_blocks(format_: str, seed: int) -> None:
    draw = random.Random(f"{format_} {seed}")
    group = 128 if "g128" in format_ else 64 if "g64" in format_ else 32
    depth, columns, rows = group * (2 if group > 32 else draw.randint(2, 3)), draw.choice([16, 40, 64]), draw.choice([9, 16, 20, 37])
    match = coded(product(rows, depth, columns, format_), MODEL)
    problem, numbers = match.problem, np.random.default_rng(seed)
    given = {}
    for operand in problem.region.inputs:
        shape, kind = [dims.number(size) for size in operand.type.shape], operand.type.dtype.numpy
        array = (
            numbers.integers(-128, 128, shape).astype(kind)
            if operand.type.dtype.is_integer
            else numbers.standard_normal(shape).astype(kind)
        )
        given[operand.name] = problem.layouts[operand.name].pack(array) if operand.name in problem.layouts else array
    space = list(Packed().space(match, MODEL))
    usual = next(schedule for schedule in space if not is_decoded(schedule))
    tiles = [schedule for schedule in space if is_decoded(schedule)]
    assert len(tiles) == 10 if format_.endswith("a8") else tiles
    expected = run(Packed().tile(match, usual, MODEL), given, {}, problem.symbols)
    for schedule in draw.sample(tiles, 2):
        assert Packed().order(match, schedule, MODEL) == Packed().order(match, usual, MODEL)
        program = Packed().tile(match, schedule, MODEL)
        verify(program, problem.symbols)
        assert parse(text(program)) == program
        result = run(program, given, {}, problem.symbols)
        for name, array in expected.items():
            if format_.endswith("a8"):
                assert np.array_equal(result[name], array, equal_nan=True), schedule
            else:  # numpy adds up floats in an order of its own: that kernels give the same bits is shown below
                np.testing.assert_allclose(result[name], array, rtol=1e-5, atol=1e-5 * np.abs(array).max())


@functools.cache
def engine(format_: str, level: str) -> Engine:
    module = product(None, 256, 48, format_)
    return Engine(compile_module(module, build_options({"targets": ["native"], "emulate": level, "tune": "off"})), threads=1)


@pytest.mark.parametrize("format_", ["int4-a8", "int4-g128-a8", "mxfp4-a8"])
def test_levels_with_tiles_and_without_give_the_same_bits(format_: str) -> None:
    """At sizes that are told apart by kernels, beside the ends of classes and of tiles."""
    with_tiles, without = engine(format_, "x86-64-v4-amx"), engine(format_, "x86-64-v3")
    (part,) = with_tiles.contents.report["kernels"].values()
    assert any(is_decoded(row["strategy"]) for row in part)
    for rows in (1, 2, 15, 16, 17, 31, 33, 64, 65, 100, 257):
        x = np.random.default_rng(rows).standard_normal((rows, 256)).astype(np.float32)
        x[rows // 2] *= 1e-20
        x[0, :32] = 0
        assert np.array_equal(with_tiles(x), without(x)), rows


@pytest.mark.parametrize(("format_", "signed"), [("int4-a8", True), ("int2-a8", True), ("mxfp4-a8", True), ("mxfp6-a8", False)])
def test_codes_have_signs_where_that_spares_the_sums_of_the_left_factor(format_: str, signed: bool) -> None:
    match = coded(product(64, 128, 64, format_), AVX512_AMX)
    schedule = next(schedule for schedule in Packed().space(match, AVX512_AMX) if is_decoded(schedule))
    (launch,) = Packed().tile(match, schedule, AVX512_AMX).launches
    found = {statement.name: statement for statement in statements(launch.body) if isinstance(statement, Local)}
    assert ("alone" not in found) == signed and found["decoded"].dtype.name == ("i8" if signed else "u8")


@pytest.mark.parametrize(
    ("rows", "format_", "level"),
    [
        (8, "int4-a8", AVX512_AMX),
        (64, "int4-a8", AVX512_BF16),
        (64, "nvfp4-a8", AVX512_AMX),
        (8, "int4-weight", AVX2),
        (64, "int8-weight", AVX2),
    ],
    ids=["few rows", "no tiles", "blocks of 16", "few rows of floats", "floats that are bytes"],
)
def test_what_does_not_pay_or_has_no_tiles_is_not_offered(rows: int, format_: str, level: CpuLevel) -> None:
    match = coded(product(rows, 256, 64, format_), level)
    assert not any(is_decoded(schedule) for schedule in Packed().space(match, level))


@pytest.mark.parametrize("format_", ["int4-weight", "int3-weight", "mxfp4-weight", "mxfp6-weight", "fp8-weight", "fp8-block-weight"])
def test_rows_share_floats_that_are_decoded_once(format_: str) -> None:
    """What is chosen for many rows decodes panels, with the bits of what decodes for each block of rows."""
    built = engine(format_, "x86-64-v3")
    (part,) = built.contents.report["kernels"].values()
    assert any(is_decoded(row["strategy"]) for row in part) and not all(is_decoded(row["strategy"]) for row in part)
    x = np.random.default_rng(1).standard_normal((257, 256)).astype(np.float32)
    few, many = np.concatenate([built(x[n : n + 1]) for n in range(len(x))]), built(x)
    assert np.array_equal(few, many)


def test_the_next_product_comes_before_a_sum_is_scaled() -> None:
    match = coded(product(64, 256, 64, "int4-a8"), AVX512_AMX)
    schedule = next(schedule for schedule in Packed().space(match, AVX512_AMX) if is_decoded(schedule))
    (launch,) = Packed().tile(match, schedule, AVX512_AMX).launches
    order = ["dot" if isinstance(s.value, Dot) else s.name for s in statements(launch.body) if isinstance(s, Let)]
    assert order[:9] == ["acc", "dot", "dot", "acc", "dot", "acc", "dot", "acc", "acc"]


@pytest.mark.parametrize(("depth", "fewest"), [(256, 10), (8192, 10), (16384, 5), (32768, 0)])
def test_panels_have_room_in_a_kernels_arrays(depth: int, fewest: int) -> None:
    """Deep sums: fewer columns at a time, then none; what is offered is printed."""
    match = coded(product(64, depth, 64, "int4-a8"), AVX512_AMX)
    tiles = [schedule for schedule in Packed().space(match, AVX512_AMX) if is_decoded(schedule)]
    assert len(tiles) == fewest
    for schedule in tiles[:2]:
        (launch,) = Packed().tile(match, schedule, AVX512_AMX).launches
        assert "tdpbssd" in print_launch(launch, AVX512_AMX, ())[1]
