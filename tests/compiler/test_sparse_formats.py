"""2:4 sparse weights in every format, on every kind of machine: numbers whose sums are exact, so that all orders give the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir import dims
from ourcc.ir.formats import FORMATS, Format, format_of, sparse_name
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.target import AVX2, AVX512, AVX512_AMX, BASELINE, CpuLevel, GpuTarget, gpu_target
from ourcc.ir.tile.interpret import run as run_program
from ourcc.ir.tile.program import Dot, Expand2to4, Let, Local, Statement, Store, TileProgram, statements, walk
from ourcc.ir.tile.verify import verify
from ourcc.ir.types import TensorType, f32, i32
from ourcc.passes.fusion.partition import partition
from ourcc.passes.lower.schedule import Scheduler, cheapest
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.passes.regions.compose import Group
from ourcc.passes.tile.cpu import STRATEGIES as CPU_STRATEGIES
from ourcc.passes.tile.gpu import STRATEGIES as GPU_STRATEGIES
from ourcc.runtime.engine import Engine

ROWS, COLUMNS = 5, 32
KEPT = ("f32", *FORMATS)
MACHINES: dict[str, CpuLevel | GpuTarget] = {each.name: each for each in (BASELINE, AVX2, AVX512, gpu_target("sm_90a"))}


def drawn(random: np.random.Generator, known: Format, name: str, kind: TensorType) -> np.ndarray:
    """A field of few digits, whose sums of products are exact: codes of any bits, scales that are powers of two."""
    shape = tuple(int(str(size)) for size in kind.shape)
    if name == "e":  # the exponent of a power of two
        return random.integers(126, 130, shape).astype(kind.dtype.numpy)
    if not kind.dtype.is_float:
        return random.integers(0, 128, shape).astype(kind.dtype.numpy)
    if name == known.fields[0].name and name in ("codes", "kept"):
        return random.integers(-8, 9, shape).astype(np.float32).astype(kind.dtype.numpy)
    return (2.0 ** random.integers(-1, 2, shape)).astype(np.float32).astype(kind.dtype.numpy)


def linear(kept: str, blocks: int = 0, most: int = 64) -> tuple[Module, np.ndarray, np.ndarray]:
    """x times a 2:4 weight kept in a format, with what numpy says of it."""
    known, random = format_of(sparse_name(kept)), np.random.default_rng(len(kept))
    k = known.group * (blocks or max(1, 256 // known.group))
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(f32, (module.declare("B", 1, most), k)))
    types = zip(known.fields, known.types((COLUMNS, k), 1), strict=True)
    fields = {field.name: drawn(random, known, field.name, kind) for field, kind in types}
    held = [module.add_constant(f"w.{name}", array) for name, array in fields.items()]
    weight = b.decode(*held, format=known.name, axis=1, dtype=known.plain or f32)
    weight = weight if weight.dtype == f32 else b.cast(weight, dtype=f32)
    graph.set_outputs([b.matmul(x, weight, transpose_b=True)])
    data = random.integers(-4, 5, (ROWS, k)).astype(np.float32)
    return module, data, (data.astype(np.float64) @ known.decoded(fields).astype(np.float64).T).astype(np.float32)


def computed(module: Module, data: np.ndarray, machine: CpuLevel | GpuTarget) -> tuple[np.ndarray, list[TileProgram]]:
    """The result by the tile programs that are chosen for a machine, and these."""
    strategies: Any = GPU_STRATEGIES if isinstance(machine, GpuTarget) else CPU_STRATEGIES
    scheduler = Scheduler(strategies, machine, cheapest(machine), lambda region, constants: {})
    values: dict[Value, np.ndarray] = {v: v.constant.array for v in module.constants.values() if v.constant is not None}
    values |= dict(zip(module.main.inputs, [data], strict=True))
    programs = []
    for group in partition(module, module.main):
        assert isinstance(group, Group)
        unit = scheduler.schedule(group, module.facts)
        verify(unit.program, unit.problem.symbols)
        programs.append(unit.program)
        own = {name: dims.evaluate(dim, {"B": len(data)}) for name, dim in unit.binding.items()}
        arrays = {
            operand.name: values[value].reshape(tuple(dims.evaluate(size, own) for size in operand.type.shape))
            for operand, value in zip(unit.problem.region.inputs, group.inputs, strict=True)
        }
        result = run_program(unit.program, arrays, own)
        for operand, value in zip(unit.problem.region.outputs, group.outputs, strict=True):
            values[value] = result[operand.name].reshape(tuple(dims.evaluate(size, {"B": len(data)}) for size in value.shape))
    return values[module.main.outputs[0]], programs


def every_statement(programs: list[TileProgram]) -> list[Statement]:
    return [s for program in programs for launch in program.launches for s in statements(launch.body)]


def expansions(programs: list[TileProgram]) -> int:
    return sum(isinstance(part, Expand2to4) for s in every_statement(programs) if isinstance(s, (Let, Store)) for part in walk(s.value))


@pytest.mark.parametrize(("kept", "machine"), [(kept, [*MACHINES][n % len(MACHINES)]) for n, kept in enumerate(KEPT)])
def test_every_format_is_expanded_in_registers(kept: str, machine: str) -> None:
    module, data, expected = linear(kept)
    got, programs = computed(module, data, MACHINES[machine])
    np.testing.assert_array_equal(got, expected)
    assert expansions(programs) > 0


def test_numbers_that_are_computed_wait_in_a_cache_tile() -> None:
    """They are computed once for each that is kept, not for each place that may hold it; of few rows, which share no panels."""
    for kept, waits in (("f32", False), ("int8", False), ("int4.g32", True), ("mxfp6.e2m3", True)):
        module, data, _ = linear(kept, most=8)
        _, programs = computed(module, data[:8], AVX512)
        locals_ = [s for p in programs for launch in p.launches for s in statements(launch.body) if isinstance(s, Local)]
        assert [dict(each.dims)["kept"] for each in locals_] == ([32] if waits else [])


@pytest.mark.parametrize("kept", ["f32", "int8", "fp8.e4m3", "int4.g32"])
def test_sums_that_no_byte_of_positions_divides(kept: str) -> None:
    """A sum of 20 or of 4,160 terms: the first are looked up one by one, the last go in steps."""
    for k in (20, 4160):
        known = format_of(sparse_name(kept))
        if k % known.group:
            continue
        module, data, expected = linear(kept, k // known.group)
        for machine in (AVX512, MACHINES["sm_90a"]):
            np.testing.assert_array_equal(computed(module, data, machine)[0], expected)


@pytest.mark.parametrize("kept", ["int4.g32", "int3.g32", "q8_0", "mxfp4"])
@pytest.mark.parametrize("machine", [AVX512_AMX, gpu_target("sm_90a")], ids=["tiles", "sm_90a"])
def test_rounded_activations_are_multiplied_as_integers(kept: str, machine: CpuLevel | GpuTarget) -> None:
    """Whole numbers of which each block has one of the largest magnitude are their own codes."""
    module, data, _ = linear(kept)
    data[:, ::32] = 127
    weight = module.main.outputs[0].op.operands[1]
    fields = {field.name: v.constant.array for field, v in zip(format_of(sparse_name(kept)).fields, weight.op.operands, strict=True)}
    expected = data.astype(np.float64) @ format_of(sparse_name(kept)).decoded(fields).astype(np.float64).T
    PassManager(parse_pipeline("quantize_activations"), strict=True).run(module)
    got, programs = computed(module, data, machine)
    np.testing.assert_array_equal(got, expected.astype(np.float32))
    dots = [part for s in every_statement(programs) if isinstance(s, (Let, Store)) for part in walk(s.value) if isinstance(part, Dot)]
    assert isinstance(machine, GpuTarget) or {dot.type.dtype for dot in dots} == {i32}


@pytest.mark.parametrize(
    ("kept", "target"),
    [*((kept, "native") for kept in ("f32", "int8", "int4.g32", "uint4.g32", "mxfp6.e2m3", "nvfp4", "q4_1")), ("int4.g32", "x86-64")],
)
def test_engines_compute_what_numpy_does(kept: str, target: str) -> None:
    module, data, expected = linear(kept)
    contents = compile_module(module, build_options({"target": target, "tune": "off"}))
    np.testing.assert_array_equal(Engine(contents, threads=1)(data), expected)
