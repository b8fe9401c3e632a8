"""Products of bytes in pairs: exact for every code, where pairs fit 16 bits and where they do not, and taken where that is worth it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ourcc
from ourcc.codegen.c.printer import print_launch
from ourcc.compiler.backends.cpu import lower_cpu
from ourcc.compiler.options import BuildOptions
from ourcc.compiler.pipeline import compile_module
from ourcc.compiler.requests import parse_measuring
from ourcc.compiler.targets.registry import TARGETS
from ourcc.ir import dims
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.reference import interpret
from ourcc.ir.pairing import Pairing
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.text import parse_region
from ourcc.ir.target import AVX2, AVX2_VNNI, AVX512, AVX512_VNNI, CpuLevel
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.parse import parse
from ourcc.ir.tile.program import TileProgram
from ourcc.ir.tile.text import text
from ourcc.ir.types import TensorType, i8, u8
from ourcc.passes.lower.layout import constant_layouts
from ourcc.passes.lower.schedule import cheapest
from ourcc.passes.tile.cpu.packed import Packed
from ourcc.passes.tile.schedule import Problem, matches
from ourcc.runtime.engine import Engine

Array = np.ndarray[Any, Any]
WEIGHTS = ("small", "drawn", "ends", "lowest")
INPUTS = ("middle", "low", "drawn", "ends", "highest")


def codes(kind: str, shape: tuple[int, ...], draw: np.random.Generator) -> Array:
    """Constants of i8."""
    if kind == "drawn":
        return np.clip(np.rint(draw.standard_normal(shape) * 32), -127, 127).astype(np.int8)
    values = {"small": (-64, 63), "ends": (-128, 127), "lowest": (-128, -128)}[kind]
    return draw.choice(values, shape).astype(np.int8)


def given(kind: str, shape: tuple[int, ...], draw: np.random.Generator) -> Array:
    """Unsigned bytes."""
    if kind == "drawn":
        return draw.integers(0, 256, shape, np.uint8)
    if kind == "middle":
        return np.clip(np.rint(draw.standard_normal(shape) * 12 + 128), 0, 255).astype(np.uint8)
    values = {"low": (0, 120), "ends": (0, 255), "highest": (255, 255)}[kind]
    return draw.choice(values, shape).astype(np.uint8)


def product(seed: int, weights: str) -> Module:
    """Rows by a constant, or an image by filters, of sizes that fill blocks and stretches or do not."""
    draw, numbers, module = random.Random(seed), np.random.default_rng(seed), Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)

    columns, depth = draw.choice([64, 72, 100, 136]), draw.choice([16, 32, 48, 96])
    if draw.random() < 0.5:
        rows: dims.Dim = module.declare("M", 1, 70) if draw.random() < 0.5 else draw.choice([7, 16, 33, 60])
        x = graph.add_input("x", TensorType(u8, (rows, depth)))
        y = b.matmul(x, module.add_constant("w", codes(weights, (depth, columns), numbers)))
    else:
        size, taps, border = draw.randint(5, 11), draw.choice([1, 3]), draw.randint(0, 1)
        x = graph.add_input("x", TensorType(u8, (draw.choice([1, 2]), depth, size, size)))
        w = module.add_constant("w", codes(weights, (columns, depth, taps, taps), numbers))
        around = {"before": (border,) * 2, "after": (border,) * 2, "strides": (draw.choice([1, 2]),) * 2, "dilations": (1, 1)}
        # What comes from a caller has its channels first, and no neighbours along the sum.
        y = b.conv(b.maximum(x, module.add_constant("least", np.array(1, np.uint8))), w, **around)
    graph.set_outputs([y], ["y"])
    return module


def paired(module: Module, level: CpuLevel) -> Iterator[tuple[Problem, TileProgram]]:
    """The programs of every schedule that takes products in pairs."""
    for unit in lower_cpu(module, level, cheapest(level)).scheduled.values():
        for match in matches([Packed()], unit.problem, level):
            for schedule in match.strategy.space(match, level):
                program = match.program(schedule, level)
                if program.made:
                    yield unit.problem, program


@pytest.mark.parametrize("level", [AVX2, AVX512], ids=["AVX2", "AVX-512"])
@pytest.mark.parametrize("seed", range(12))
def test_programs_add_up_no_pair_that_does_not_fit(seed: int, level: CpuLevel) -> None:
    """The interpreter saturates as the instruction does."""
    draw, weights = np.random.default_rng(seed), WEIGHTS[seed % len(WEIGHTS)]
    found = list(paired(product(seed, weights), level))
    assert found
    problem, program = found[seed % len(found)]
    assert parse(text(program)) == program
    sizes = {name: random.Random(seed).choice([1, 5, 23]) for name in problem.symbols.ranges}
    for kind in INPUTS[seed % 2 :: 2]:
        arrays = {}
        for operand in problem.region.inputs:
            shape = tuple(dims.evaluate(size, sizes) for size in operand.type.shape)
            arrays[operand.name] = codes(weights, shape, draw) if operand.type.dtype == i8 else given(kind, shape, draw)
        packed = {name: problem.layouts[name].pack(array) if name in problem.layouts else array for name, array in arrays.items()}
        expected = run_region(problem.region, arrays, sizes)
        for name, array in run(program, packed, sizes, problem.symbols).items():
            np.testing.assert_array_equal(array, expected[name], err_msg=kind)


BESIDE = """
region @region(%x0: u8[i 20, k 32], %x1: i8[k 32, j 64], %x2: i32[i 20, j 64]) -> %y0: i32[i 20, j 64] {
  axes i: 20, j: 64, k: 32
  %t0 = mul(%x2[i, j], %x2[i, j]) : i32[i, j]
  %t1 = sum k: mul(cast(%x0[i, k], i32), cast(%x1[k, j], i32)) : i32[i, j]
  %y0[i, j] = add(mul(%t1, %t0), %t0)
}
"""


def test_what_is_named_before_the_sum_is_there_behind_it() -> None:
    region, draw = parse_region(BESIDE), np.random.default_rng(0)
    problem = Problem(region, dims.NO_FACTS, constant_layouts(region, frozenset({"x1"})), frozenset({"x1"}))
    (match,) = matches([Packed()], problem, AVX2)
    programs = [match.program(schedule, AVX2) for schedule in match.strategy.space(match, AVX2)]
    arrays = {"x0": given("drawn", (20, 32), draw), "x1": codes("drawn", (32, 64), draw), "x2": draw.integers(-9, 9, (20, 64), np.int32)}
    expected = run_region(region, arrays, {})["y0"]
    packed = {**arrays, "x1": problem.layouts["x1"].pack(arrays["x1"])}
    taken = [program for program in programs if program.made]
    assert taken
    for program in taken[:3]:
        np.testing.assert_array_equal(run(program, packed, {})["y0"], expected)


@pytest.mark.parametrize("seed", range(16))
def test_engines_are_exact_for_every_code(seed: int) -> None:
    weights = WEIGHTS[seed // 4]
    module = product(seed, weights)
    options = BuildOptions(targets=(TARGETS["x86-64-v3"],), tune=parse_measuring("off"))
    engine = Engine(compile_module(product(seed, weights), options), threads=2)
    draw = np.random.default_rng(seed)
    for kind in INPUTS:
        sizes = {name: random.Random(f"{seed} {kind}").choice([1, 4, 17, 70]) for name in module.facts.ranges}
        (port,) = module.main.inputs
        x = given(kind, tuple(dims.evaluate(size, sizes) for size in port.type.shape), draw)
        (expected,) = interpret(module, [x])
        np.testing.assert_array_equal(engine(x), expected, err_msg=kind)


def test_the_interpreter_saturates_what_does_not_fit() -> None:
    program = parse(
        "program @p {\n launch @p(%x: u8[k 4], %w: i8[k 4, n 1], %y: out i32[n 1]) {\n grid () {\n axis k in 0..4 extent 4\n"
        " axis n in 0..1 extent 1\n store %y[n] = dot(cast(load %x[k] : u8[k]) : i32[k], cast(load %w[k, n] : i8[k, n]) : i32[k, n],"
        " full(0) : i32[n], precision = pairs) : i32[n]\n } } }"
    )
    x, w = np.array([255, 255, 255, 1], np.uint8), np.array([[127], [127], [-100], [5]], np.int8)
    assert run(program, {"x": x, "w": w}, {})["y"].tolist() == [2**15 - 1 - 25500 + 5]
    x[0] = 1
    assert run(program, {"x": x, "w": w}, {})["y"].tolist() == [127 + 255 * 127 - 25500 + 5]


def test_pairs_are_for_levels_that_have_no_instruction_for_four() -> None:
    module = product(1, "drawn")
    for level, is_taken in ((AVX2, True), (AVX512, True), (AVX2_VNNI, False), (AVX512_VNNI, False)):
        units = lower_cpu(module, level, cheapest(level)).scheduled.values()
        launches = [(launch, unit.problem.symbols) for unit in units for launch in unit.program.launches]
        texts = [print_launch(launch, level, tuple(symbols.ranges), symbols)[1] for launch, symbols in launches]
        assert ("dot4_pairs" in "".join(texts)) == is_taken


def test_limits_are_weights_of_the_engine_and_its_program_is_read_back() -> None:
    contents = compile_module(product(1, "drawn"), BuildOptions(targets=(TARGETS["x86-64-v3"],), tune=parse_measuring("off")))
    held = [constant for part in contents.parts.values() for constant in part.constants.values()]
    assert any(isinstance(constant.making, Pairing) for constant in held) and any(constant.making is None for constant in held)


@pytest.mark.parametrize("zero", [0, 200, 255])
def test_what_pads_an_image_counts_among_its_bytes(zero: int) -> None:
    """An image of small codes, whose border is its zero point, which is large."""
    draw = np.random.default_rng(zero)
    w, x = draw.choice([-128, 127], (64, 32, 3, 3)).astype(np.int8), draw.integers(0, 20, (1, 32, 9, 9), np.uint8)
    ports = [
        helper.make_tensor_value_info("x", TensorProto.UINT8, list(x.shape)),
        helper.make_tensor_value_info("y", TensorProto.INT32, [1, 64, 9, 9]),
    ]
    nodes = [
        helper.make_node("Max", ["x", "least"], ["t"]),
        helper.make_node("ConvInteger", ["t", "w", "z"], ["y"], pads=[1, 1, 1, 1]),
    ]
    constants = {"w": w, "z": np.array(zero, np.uint8), "least": np.array(1, np.uint8)}
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    model = helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:], weights), opset_imports=[helper.make_opsetid("", 17)])
    engine = ourcc.build(model, targets=["x86-64-v3"])
    assert any(isinstance(constant.making, Pairing) for constant in engine.contents.best.constants.values())
    wide = np.pad(np.maximum(x, 1).astype(np.int64) - zero, [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(2, 3))
    expected = np.einsum("bcyxij,ocij->boyx", windows, w.astype(np.int64))
    np.testing.assert_array_equal(engine.run({"x": x})["y"], expected)
