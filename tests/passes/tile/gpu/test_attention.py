"""Attention on GPUs: right at any length, group and limit, also where scores are extreme, and what its machine code holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ourcc.codegen.sass.reading import read_kernel
from ourcc.codegen.triton import print_program
from ourcc.codegen.triton.compile import compile_kernel, disassemble
from ourcc.codegen.triton.interpret import interpret
from ourcc.codegen.triton.kernel import TritonKernel
from ourcc.ir import dims
from ourcc.ir.dims import Facts
from ourcc.ir.graph.reference import judge
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS
from ourcc.ir.region import Region
from ourcc.ir.region.interpret import run_region
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.types import DType, TensorType, bf16, boolean, f16, f32, f64
from ourcc.passes.regions.simplify_region import simplify_region
from ourcc.passes.tile.gpu.attention import OF_WGMMA, OF_WGMMA_UNLIMITED, TILES, GpuAttention
from ourcc.passes.tile.schedule import Match, Problem, Schedule

Array = np.ndarray[Any, Any]
TARGET = gpu_target("sm_90a")


def posed(types: list[TensorType], **attrs: Any) -> Region:
    region = region_of(OPS["attention"], types, {"scale": 0.25} | attrs)
    assert region is not None
    return region


def matched(region: Region, facts: Facts) -> Match[Any]:
    match = GpuAttention().match(Problem(simplify_region(region, facts), facts, {}), TARGET)
    assert isinstance(match, Match), match
    return match


def judged(dtype: DType, arrays: list[Array], schedule: Schedule, printed: bool = False, symbolic: bool = False, **attrs: Any) -> None:
    """One schedule against the reference, by the interpreter of tile programs or Triton's."""
    sizes = {"S": arrays[0].shape[2], "T": arrays[1].shape[2]}
    names = {2: "S"}, {2: "T"}, {2: "T"}, {2: "S", 3: "T"}

    def types(of: DType) -> list[TensorType]:
        found = []
        for array, named in zip(arrays, names, strict=False):
            shape = tuple(dims.symbol(named[n]) if symbolic and n in named else size for n, size in enumerate(array.shape))
            found.append(TensorType(boolean if array.dtype == bool else of, shape))
        return found

    facts = Facts({"S": dims.Range(1, 300), "T": dims.Range(1, 300)}) if symbolic else Facts()
    region, match = posed(types(dtype), **attrs), matched(posed(types(dtype), **attrs), facts)
    program = GpuAttention().tile(match, schedule, TARGET)
    operands = match.problem.region.inputs
    given = {o.name: array.reshape([dims.evaluate(d, sizes) for d in o.type.shape]) for o, array in zip(operands, arrays, strict=True)}
    out = match.problem.region.outputs[0]
    known = sizes if symbolic else {}
    if printed:
        (kernel,) = print_program(program, facts)
        empty = {out.name: np.zeros([dims.evaluate(d, sizes) for d in out.type.shape], out.type.dtype.numpy)}
        got = interpret(kernel, given | empty, known)[out.name]
    else:
        got = run(program, given, known, facts)[out.name]
    wide = [array if array.dtype == bool else array.astype(np.float64) for array in arrays]
    places = {o.name: n for n, o in enumerate(region.inputs)}
    with np.errstate(all="ignore"):
        (expected,) = run_region(region, {name: arrays[n] for name, n in places.items()}, known).values()
        (exact,) = run_region(posed(types(f64), **attrs), {name: wide[n] for name, n in places.items()}, known).values()
    verdict = judge(got.reshape(expected.shape), expected, exact)
    assert verdict.passed, verdict.reason


def tiles(m: int, t: int, d: int) -> Schedule:
    return Schedule("attention", (("m", m), ("t", t), ("d", d), ("warps", 4), ("stages", 2)))


def drawn(dtype: DType, rows: int, columns: int, heads: int, groups: int, scale: float = 1.0) -> list[Array]:
    random = np.random.default_rng(rows + columns)
    shapes = (1, heads, rows, 16), (1, groups, columns, 16), (1, groups, columns, 16)
    return [(random.standard_normal(shape) * scale).astype(np.float32).astype(dtype.numpy) for shape in shapes]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "columns", "groups"), [(64, 64, 2), (37, 37, 1), (16, 90, 1), (90, 16, 2), (130, 128, 1), (1, 33, 2)])
@pytest.mark.parametrize("dtype", [bf16, f16, f32], ids=str)
def test_lengths_and_groups(dtype: DType, rows: int, columns: int, groups: int, causal: bool, symbolic: bool) -> None:
    for schedule in (tiles(32, 16, 16), tiles(16, 32, 16)):
        judged(dtype, drawn(dtype, rows, columns, 2, groups), schedule, symbolic=symbolic, causal=causal)


@pytest.mark.parametrize("printed", [False, True])
@pytest.mark.parametrize("scale", [1e2, 3e3, 2e4])
def test_far_scores_weigh_all_or_nothing(scale: float, printed: bool) -> None:
    arrays = drawn(f32, 40, 40, 1, 1, scale)
    judged(f32, arrays, tiles(16, 16, 16), printed, causal=True)


@pytest.mark.parametrize("printed", [False, True])
@pytest.mark.parametrize("safe", [False, True])
def test_rows_without_columns(safe: bool, printed: bool) -> None:
    mask = np.random.default_rng(3).random((1, 1, 40, 40)) < 0.5
    mask[..., 5, :], mask[..., 39, :] = False, False
    judged(f16, [*drawn(f16, 40, 40, 1, 1), mask], tiles(16, 16, 16), printed, safe=safe)
    lowest = np.where(mask, 0, np.finfo(np.float32).min).astype(np.float32)
    judged(f32, [*drawn(f32, 40, 40, 1, 1), lowest], tiles(16, 16, 16), printed, safe=safe)


def test_nan_and_infinity_stay_in_their_rows() -> None:
    arrays = drawn(f32, 48, 48, 1, 1)
    arrays[0][0, 0, 3, 0], arrays[0][0, 0, 20, 1], arrays[1][0, 0, 40, 0] = np.nan, np.inf, 1e20
    judged(f32, arrays, tiles(16, 16, 16), causal=True)


# --- machine code -----------------------------------------------------------------------------------------------------


def kernel_of(dtype: DType, deep: int, tile: tuple[int, int, int, int, int], causal: bool = True) -> TritonKernel:
    names = ("m", "t", "d", "warps", "stages")
    shape = (1, 4, 1024, deep)
    match = matched(posed([TensorType(dtype, shape)] * 3, causal=causal), Facts())
    (kernel,) = print_program(GpuAttention().tile(match, Schedule("attention", tuple(zip(names, tile, strict=True))), TARGET))
    return kernel


def test_a_step_takes_as_few_instructions_as_by_hand() -> None:
    """A kernel written by hand takes 509 for its step of 128 x 128 scores; the matrix unit takes 1024 cycles for them."""
    kernel = kernel_of(bf16, 128, TILES[1, 128][0])
    compiled = compile_kernel(kernel, TARGET)
    listing = disassemble(compiled.cubin, kernel.name)
    reading = read_kernel(listing)
    (loop,) = [reading.loop_counts(n) for n, each in enumerate(reading.flow.loops) if not each.waits]
    assert loop.classes["matrix"] == 16 and loop.instructions <= 515
    assert loop.instructions * 8 / 4 <= 0.55 * 1024 * 2 and not loop.masked
    assert compiled.resources.spill_stores == 0 and "tma" in compiled.resources.instructions
    # The assembler waits for each matrix instruction alone where it cannot see that the accumulators are left alone.
    assert listing.count("WARPGROUP.DEPBAR") <= 4


def test_the_query_is_read_once_and_the_last_rows_come_first() -> None:
    source = kernel_of(bf16, 128, TILES[1, 128][0]).source
    before, *loops = source.split("for ")
    assert "x0_ptr +" in before and not any("x0_ptr +" in loop for loop in loops)
    assert len(loops) == 2 and "tl.where((k_first" not in loops[1] and "from_end" in before


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("key", [(1, 64), (1, 128), (1, 256), (1, 512)])
def test_preferred_tiles_stay_in_registers(key: tuple[int, int], target: str) -> None:
    machine = gpu_target(target)
    for causal in (False, True):
        more = OF_WGMMA.get(key, ()) + (() if causal else OF_WGMMA_UNLIMITED.get(key, ()))
        first = (*(more if machine.matrix_instruction == "wgmma" else ()), *TILES[key])[0]
        resources = compile_kernel(kernel_of(bf16, key[1], first, causal), machine, is_read=False).resources
        assert (resources.spill_stores, resources.spill_loads) == (0, 0)


def test_where_results_lie_in_tensor_memory_programs_beside_each_other_count() -> None:
    """Heads of 64: a third buffer takes the place of a fourth program. Where accumulators are registers, measured choices stay."""
    types = [TensorType(bf16, (1, 32, 4096, 64))] * 3
    match = matched(posed(types), Facts())
    best = {}
    for name in ("b200", "h100"):
        target = gpu_target(name)
        best[name] = min(GpuAttention().space(match, target), key=lambda schedule: GpuAttention().cost(match, schedule, target))
    assert [best["b200"][each] for each in ("m", "t", "warps", "stages")] == [64, 64, 4, 2]
    assert [best["h100"][each] for each in ("m", "t", "warps", "stages")] == [64, 128, 4, 2]
