"""Products in tiles and in pairs: kernels give exact integers on AMX and on its portable model, and the same bits of bf16 sums."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from ourcc.codegen.c.printer import SourceFile, kernels_of, print_launch
from ourcc.compiler.backends import cpu
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir import dims
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS
from ourcc.ir.target import (
    AMX_BF16,
    AMX_F16,
    AMX_I8,
    AMX_U8,
    AVX2,
    AVX512_AMX,
    AVX512_AMX_F16,
    AVX512_BF16,
    DOT_BF16,
    CpuLevel,
    emulated,
)
from ourcc.ir.tile.program import TileProgram
from ourcc.ir.tile.verify import verify
from ourcc.ir.types import DType, TensorType, bf16, f16, f32, type_of, u8
from ourcc.passes.lower.layout import constant_layouts
from ourcc.passes.regions.simplify_region import simplify_region
from ourcc.passes.tile.cpu.packed import Packed
from ourcc.passes.tile.schedule import Problem, matches
from ourcc.runtime import Engine
from ourcc.runtime.native import cpu_flags, withheld

from .conftest import Runner

MODEL = replace(AVX2, name="x86-64-v3-model", instructions=(*AVX2.instructions, AMX_U8, AMX_I8, AMX_BF16))
"""A level whose machines have no tiles: the instructions are functions."""
DOT_MODEL = replace(AVX2, name="x86-64-v3-dots", instructions=(*AVX2.instructions, DOT_BF16))
F16_MODEL = replace(AVX2, name="x86-64-v3-f16", instructions=(*AVX2.instructions, AMX_F16))
CASES = 24


@dataclass(frozen=True)
class Drawn:
    """A product of codes as a problem with its packed operands, and what it gives."""

    problem: Problem
    arrays: dict[str, Any]
    expected: Any

    def program(self, level: CpuLevel, choice: int) -> TileProgram:
        """One of the tile programs that are offered."""
        (match,) = matches([Packed()], self.problem, level)
        space = list(Packed().space(match, level))
        found = Packed().tile(match, space[choice % len(space)], level)
        verify(found, self.problem.symbols)
        return found


def drawn(left: Any, right: Any, expected: Any, constant: bool = True) -> Drawn:
    """The product of two matrices, the right one constant, or a value that is copied into panels."""
    region = region_of(OPS["matmul"], [type_of(left), type_of(right)], {"transpose_a": False, "transpose_b": False})
    assert region is not None
    region = simplify_region(region, dims.NO_FACTS)
    layouts = constant_layouts(region, frozenset({"x1"}), AVX512_AMX_F16.pairs) if constant else {}
    arrays = {}
    for operand, array in zip(region.inputs, (left, right), strict=True):
        shaped = array.reshape(tuple(dims.evaluate(d, {}) for d in operand.type.shape))
        arrays[operand.name] = layouts[operand.name].pack(shaped) if operand.name in layouts else shaped
    return Drawn(Problem(region, dims.NO_FACTS, layouts), arrays, expected)


def products() -> Iterator[Drawn]:
    """Rows, columns and depths around the sizes of tiles."""
    choices, numbers = random.Random(3), np.random.default_rng(3)
    for _ in range(CASES):
        rows, columns = choices.choice((2, 3, 14, 16, 17, 28, 32, 33, 49, 70)), choices.choice((5, 16, 17, 32, 40, 64, 90))
        depth = choices.choice((4, 28, 60, 64, 68, 128, 200, 4100))
        left = numbers.integers(0, 256, (rows, depth)).astype(choices.choice((np.uint8, np.int8)))
        right = numbers.integers(-128, 128, (depth, columns)).astype(np.int8)
        yield drawn(left, right, left.astype(np.int32) @ right.astype(np.int32), choices.random() < 0.6)


LEVELS = [MODEL, AVX512_AMX]


def runs(level: CpuLevel) -> bool:
    return cpu_flags().issuperset(level.features) and withheld(level.features) is None


def results(run_c: Runner, cases: list[Drawn], level: CpuLevel) -> list[Any]:
    """What each case gives, by one of its schedules."""
    programs = [case.program(level, number) for number, case in enumerate(cases)]
    among = [(program, case.problem.symbols) for program, case in zip(programs, cases, strict=True)]
    found = []
    for case, program in zip(cases, programs, strict=True):
        (got,) = run_c(program, case.arrays, {}, level, among=among).values()
        found.append(got.reshape(case.expected.shape))
    return found


@pytest.mark.parametrize("machine", LEVELS, ids=lambda level: level.name)
def test_tiles_give_the_exact_integers(run_c: Runner, machine: CpuLevel) -> None:
    if not runs(machine):
        pytest.skip(f"this cpu lacks {', '.join(sorted(set(machine.features) - cpu_flags()))}, or withholds it")
    cases = list(products())
    for case, got in zip(cases, results(run_c, cases, machine), strict=True):
        np.testing.assert_array_equal(got, case.expected)


def halves(dtype: DType) -> Iterator[Drawn]:
    """Products of 16 bits, some with numbers that are almost none, infinite or no numbers."""
    small = (-70, -55) if dtype == bf16 else (-22, -13)
    choices, numbers = random.Random(4), np.random.default_rng(4)
    for number in range(CASES):
        rows, columns, depth = (
            choices.choice((2, 5, 16, 28, 33, 70)),
            choices.choice((5, 16, 33, 64)),
            choices.choice((2, 30, 64, 70, 600, 1536)),
        )
        factors = [numbers.standard_normal(shape).astype(np.float32) for shape in ((rows, depth), (depth, columns))]
        if number % 3 == 0:
            factors = [x * np.float32(2.0) ** numbers.integers(*small, x.shape).astype(np.float32) for x in factors]
        if number % 8 == 0:
            factors[0][rows // 2, depth // 2] = choices.choice((np.inf, np.nan, 1e-39))
        left, right = (x.astype(dtype.numpy) for x in factors)
        with np.errstate(all="ignore"):
            yield drawn(left, right, left.astype(np.float32) @ right.astype(np.float32), number % 3 != 1)


@pytest.mark.parametrize(
    ("model", "machine", "dtype", "name"),
    [
        (MODEL, AVX512_AMX, bf16, "ourcc_tdpbf16ps("),
        (DOT_MODEL, AVX512_BF16, bf16, "vdpbf16ps_"),
        (F16_MODEL, AVX512_AMX_F16, f16, "ourcc_tdpfp16ps("),
    ],
    ids=["tiles", "dots", "tiles-f16"],
)
def test_models_add_up_as_the_instructions_do(run_c: Runner, model: CpuLevel, machine: CpuLevel, dtype: DType, name: str) -> None:
    cases = list(halves(dtype))
    for level in (model, machine):
        text = "".join(print_launch(case.program(level, 0).launches[0], level, ())[1] for case in cases[:1])
        assert name in text
    found = results(run_c, cases, model)
    least = 1e-37 if dtype == bf16 else 2.0**-24
    for case, got in zip(cases, found, strict=True):
        exact = case.expected
        with np.errstate(all="ignore"):
            near = np.isclose(
                got.astype(np.float32), exact, rtol=0.02, atol=0.02 * np.abs(exact[np.isfinite(exact)]).max(initial=0) + least
            )
        assert (near | (np.isnan(got.astype(np.float32)) & np.isnan(exact))).all()
    if runs(machine):
        for ours, theirs in zip(found, results(run_c, cases, machine), strict=True):
            np.testing.assert_array_equal(ours.astype(np.float32), theirs.astype(np.float32))


def images(seed: int) -> Module:
    """Codes through two convolutions and sums of rows: padding is read as it is, or as the zero point is."""
    choices, numbers = random.Random(seed), np.random.default_rng(seed)
    module, graph = Module("m"), Graph("main")
    module.functions["main"] = graph
    b, size = Builder(module, graph), choices.choice((7, 10, 18))
    value = graph.add_input("x", TensorType(u8, (2, 16, size, size)))
    for channels, zero in ((choices.choice((16, 20, 72)), 0), (33, choices.choice((0, 5)))):
        given = b.dequantize(value, np.float32(0.03), np.uint8(zero), dtype=f32)
        kernel, step = choices.choice((1, 3)), choices.choice((1, 2))
        codes = numbers.integers(-128, 128, (channels, value.shape[1], kernel, kernel)).astype(np.int8)
        weight = b.dequantize(codes, numbers.uniform(0.001, 0.002, channels).astype(np.float32), axis=0, dtype=f32)
        pads = {"before": (kernel // 2,) * 2, "after": (kernel // 2,) * 2}
        result = b.conv(given, weight, None, strides=(step, step), dilations=(1, 1), groups=1, **pads)
        value = b.quantize(result, np.float32(0.05), np.uint8(zero), dtype=u8)
    graph.set_outputs([value], ["y"])
    return module


@pytest.mark.parametrize("seed", range(4))
def test_convolutions_in_tiles(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = images(seed)
    x = np.random.default_rng(9).integers(0, 256, [int(str(size)) for size in module.main.inputs[0].shape]).astype(np.uint8)
    found = []
    for level in (AVX2, *filter(runs, LEVELS)):
        monkeypatch.setattr(cpu, "levels_for", lambda target, module, level=level: [level])
        contents = compile_module(images(seed), build_options({"targets": ["native"], "tune": "off"}))
        texts = [data.decode() for name, data in contents.parts[level.name].files.items() if name.endswith(".c")]
        assert any("ourcc_tdpbusd" in text for text in texts) == (level is not AVX2)
        found.append(Engine(contents)(x))
    for result in found[1:]:
        np.testing.assert_array_equal(result, found[0])


def test_sums_stay_in_tiles_over_the_taps_of_a_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from memory before both loops over taps, and go back after them."""
    monkeypatch.setattr(cpu, "levels_for", lambda target, module: [MODEL])
    module, numbers = Module("m"), np.random.default_rng(2)
    graph = module.functions["main"] = Graph("main")
    b, value = Builder(module, graph), graph.add_input("x", TensorType(u8, (1, 64, 14, 14)))
    for taps in (1, 3, 1):
        codes = numbers.integers(-128, 128, (64, 64, taps, taps)).astype(np.int8)
        weight = b.dequantize(codes, numbers.uniform(0.001, 0.002, 64).astype(np.float32), axis=0, dtype=f32)
        given, pads = b.dequantize(value, np.float32(0.03), np.uint8(0), dtype=f32), {"before": (taps // 2,) * 2, "after": (taps // 2,) * 2}
        result = b.conv(given, weight, None, strides=(1, 1), dilations=(1, 1), groups=1, **pads)
        value = b.quantize(result, np.float32(0.05), np.uint8(0), dtype=u8)
    graph.set_outputs([value], ["y"])
    contents = compile_module(module, build_options({"targets": ["native"], "tune": "off"}))
    texts = [kernels_of(data.decode()) for name, data in contents.parts[MODEL.name].files.items() if name.endswith(".c")]
    (text,) = [text for text in texts if "ourcc_tdpbusd" in text and "+= 1)" in text]
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line.startswith(("for (int64_t s", "ourcc_tile_zero(0", "ourcc_tile_store(0", "ourcc_tdpbusd(0"))]
    products = [number for number, line in enumerate(kept) if line.startswith("ourcc_tdpbusd")]
    assert products
    for number in products:
        start = max(place for place, line in enumerate(kept[:number]) if not line.startswith(("for", "ourcc_tdpbusd")))
        end = next(line for line in kept[number:] if not line.startswith("ourcc_tdpbusd"))
        assert kept[start].startswith("ourcc_tile_zero") and end.startswith("ourcc_tile_store")
        assert sum("+= 1)" in line for line in kept[start:number]) >= 2, "two loops over taps"


HARDWARE = emulated(AVX512_AMX, frozenset(AVX512_BF16.features))
"""AMX's level without its tiles, whose vectors are the same."""


@pytest.mark.skipif(not (runs(AVX512_AMX) and runs(HARDWARE)), reason="this cpu has no AMX, or withholds it")
@pytest.mark.parametrize("seed", range(8))
def test_attention_has_the_bits_of_its_model(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choices, numbers = random.Random(seed), np.random.default_rng(seed)
    heads, head, features = choices.choice((1, 3)), choices.choice((16, 32, 40, 64, 80)), choices.choice((16, 33, 64))
    rows, columns = choices.choice((2, 5, 33, 70)), choices.choice((3, 64, 130, 300))
    shapes = [(2, heads, rows, head), (2, heads, columns, head), (2, heads, columns, features)]
    given = [numbers.standard_normal(shape).astype(bf16.numpy) for shape in shapes]
    found = []
    for level in (HARDWARE, AVX512_AMX):
        module = Module("m")
        graph = module.functions["main"] = Graph("main")
        values = [graph.add_input(name, TensorType(bf16, shape)) for name, shape in zip("qkv", shapes, strict=True)]
        graph.set_outputs([Builder(module, graph).attention(*values, scale=head**-0.5, causal=seed % 3 == 0)])
        monkeypatch.setattr(cpu, "levels_for", lambda target, module, level=level: [level])
        contents = compile_module(module, build_options({"targets": ["native"], "tune": "off"}))
        texts = [kernels_of(data.decode()) for name, data in contents.parts[level.name].files.items() if name.endswith(".c")]
        assert sum(text.count("ourcc_tdpbf16ps(0") for text in texts) >= 2, "both products are made in tiles"
        found.append(np.asarray(Engine(contents)(*given)).astype(np.float32))
    np.testing.assert_array_equal(found[0], found[1])


def test_tiles_of_f16_multiply_numbers_below_the_normal_ones(run_c: Runner) -> None:
    """2^-24 and its multiples times whole numbers, exactly: bf16's instruction takes such numbers for 0."""
    numbers = np.random.default_rng(5)
    left = (numbers.integers(1, 8, (20, 64)) * 2.0**-24).astype(np.float16)
    right = (numbers.integers(-4, 5, (64, 32)) * 2.0**12).astype(np.float16)
    case = drawn(left, right, left.astype(np.float32) @ right.astype(np.float32))
    (got,) = results(run_c, [case], F16_MODEL)
    assert np.abs(case.expected).max() > 0
    np.testing.assert_array_equal(got.astype(np.float32), case.expected.astype(got.dtype).astype(np.float32))


def test_a_machine_without_all_of_a_levels_tiles_runs_models_of_all() -> None:
    """What lies in registers is no operand of a model."""
    here = frozenset(AVX512_AMX.features)
    assert set(emulated(AVX512_AMX_F16, here).features) == set(AVX512_BF16.features)
    assert emulated(AVX512_AMX, here).features == AVX512_AMX.features


@pytest.mark.parametrize(
    ("rows", "depth", "is_taken"), [(70, 64, True), (9, 64, True), (70, 4096, True), (70, 4100, True), (70, 16388, False)]
)
def test_what_calls_bring_is_multiplied_in_tiles_where_rows_share_its_copies(run_c: Runner, rows: int, depth: int, is_taken: bool) -> None:
    numbers = np.random.default_rng(depth)
    left, right = numbers.integers(0, 256, (rows, depth), np.uint8), numbers.integers(-128, 128, (depth, 48), np.int8)
    case = drawn(left, right, left.astype(np.int32) @ right.astype(np.int32), constant=False)
    assert ("ourcc_tdp" in print_launch(case.program(MODEL, 0).launches[0], MODEL, ())[1]) == is_taken
    np.testing.assert_array_equal(*results(run_c, [case], MODEL), case.expected)


@pytest.mark.parametrize(("dtype", "model"), [(bf16, MODEL), (f16, F16_MODEL)])
def test_16_bits_that_calls_bring_are_multiplied_in_tiles(dtype: DType, model: CpuLevel) -> None:
    left, right = np.ones((33, 64), dtype.numpy), np.ones((64, 48), dtype.numpy)
    case = drawn(left, right, np.full((33, 48), 64.0), constant=False)
    assert "ourcc_tdp" in print_launch(case.program(model, 0).launches[0], model, ())[1]


def test_kernels_of_tiles_set_them_up_where_there_are_tiles() -> None:
    case = next(products())
    for level, hooked in ((MODEL, False), (AVX512_AMX, True)):
        file = SourceFile(level)
        file.add(case.program(level, 0).launches[0], "kernel", ())
        text = file.text()
        assert "ourcc_tdp" in text, "the dot is taken in tiles"
        assert (("tileloadd" in text, "kernel_enter, kernel_leave" in text, "ourcc_tile_at(tile)" in text)) == (hooked, hooked, not hooked)
