"""Chosen kernels printed as Triton: right in its interpreter, and compiled for both targets without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ourcc.codegen.triton import print_program
from ourcc.codegen.triton.compile import compile_kernels
from ourcc.codegen.triton.interpret import interpret
from ourcc.ir import dims
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import interpret as interpret_graph
from ourcc.ir.graph.reference import judge
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.text import parse_region
from ourcc.ir.target import GpuTarget, gpu_target
from ourcc.ir.tile.interpret import run as run_tiles
from ourcc.ir.tile.program import Let, Slice, TileProgram, statements
from ourcc.passes.fusion.partition import Fusion
from ourcc.passes.lower.schedule import problem_of
from ourcc.passes.regions.compose import Group
from ourcc.passes.tile.gpu import STRATEGIES, why_no_matrix_instruction
from ourcc.passes.tile.gpu.tensor import PERSISTENT, SPECIALISED, Tensor, parts_of
from ourcc.passes.tile.schedule import Match, Problem, Refusal, Schedule, matches

from .conftest import product_of

SIZES = {"B": 2, "S": 37, "U": 70}
ON_MATRIX_INSTRUCTIONS = (
    *("linear_f32", "linear_i8", "few_rows_f16", "long_sum", "unbounded_sum", "convolution"),
    *("attention", "attention_causal_groups", "attention_long_causal", "attention_long_f32", "attention_long_mask", "attention_wide_f16"),
)
OTHERS = (
    "attention_long",
    "one_row_f32",
    "convolution_depthwise",
    "softmax_unbounded",
    "sum_rows_unbounded",
    "cumsum_unbounded",
    "layer_norm",
    "layer_norm_few",
    "softmax_few_f16",
    "transpose",
    "scatter_add_floats",
)
INTERPRETED = (
    *(
        "linear_f16",
        "long_sum",
        "unbounded_sum",
        "convolution",
        "convolution_depthwise",
        "attention",
        "attention_causal_groups",
        "attention_one_row",
        "attention_long",
        "attention_long_mask",
        "attention_wide_f16",
    ),
    *("one_row_f32", "softmax_unbounded", "layer_norm", "argmax_long", "argmin_last", "cumsum", "cumsum_unbounded"),
    *("layer_norm_few", "softmax_few", "logsumexp_few", "reduce_max_few"),
    *("transpose", "gather", "scatter_add_floats", "scatter_last_wins"),
)


def best(problem: Problem, target: GpuTarget) -> tuple[Schedule, TileProgram]:
    match = next(matches(STRATEGIES, problem, target))
    schedule = min(match.strategy.space(match, target), key=lambda s: match.strategy.cost(match, s, target))
    return schedule, match.strategy.tile(match, schedule, target)


@pytest.mark.parametrize("name", INTERPRETED)
def test_interpreted_kernels_are_right(name: str, cases: dict[str, Any], answered: Callable[..., Any]) -> None:
    judged = answered(cases[name])
    schedule, program = best(judged.problem, gpu_target("sm_90a"))
    memory: dict[str, Any] = dict(judged.given)
    for launch, kernel in zip(program.launches, print_program(program, judged.problem.symbols), strict=True):
        for param in launch.params:
            shape = tuple(dims.evaluate(extent, SIZES) for extent in param.shape)
            memory.setdefault(param.name, np.zeros(shape, param.dtype.numpy))
        memory |= interpret(kernel, memory, SIZES)
    verdict = judged.verdict(memory)
    assert verdict.passed, f"{schedule}: {verdict.reason}"


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", [*ON_MATRIX_INSTRUCTIONS, *OTHERS])
def test_compiled_kernels_use_the_machine(name: str, target: str, cases: dict[str, Any]) -> None:
    machine, problem = gpu_target(target), cases[name].problem()
    schedule, program = best(problem, machine)
    kernels = compile_kernels(print_program(program, problem.symbols), machine, is_read=False)
    for kernel in kernels:
        used = kernel.resources
        assert (used.spill_stores, used.spill_loads) == (0, 0), schedule
        assert used.shared <= machine.shared_memory
    found = sum(kernel.resources.instructions.get(machine.matrix_instruction, 0) for kernel in kernels)
    assert (found > 0) == (name in ON_MATRIX_INSTRUCTIONS), schedule
    if found:
        assert why_no_matrix_instruction(problem, schedule, machine) is None
        assert "mma.sync" not in kernels[0].resources.instructions


def persistent(problem: Problem, target: GpuTarget, specialised: bool = False) -> list[TileProgram]:
    """Programs of the strategy `tensor` that take tiles in turn, the cheapest first; with warps of one kind, or of several."""
    match = Tensor().match(problem, target)
    assert isinstance(match, Match)
    found = [schedule for schedule in match.strategy.space(match, target) if PERSISTENT in schedule.parameters]
    found = [schedule for schedule in found if (SPECIALISED in schedule.parameters) is specialised]
    return [match.strategy.tile(match, each, target) for each in sorted(found, key=lambda s: match.strategy.cost(match, s, target))]


BIASED = "max(add(cast(%t, f32), %z[j]), f32(0.0))"
PRODUCTS = {
    "rows": product_of("f16", 200, 264, 96),
    "few rows": product_of("bf16", 12, 200, 512),
    "integers": product_of("i8", 130, 96, 160, after=BIASED),
    "symbolic": product_of("bf16", "B", 136, 64, after=BIASED),
    "batch": product_of("f16", 70, 72, 64, batch=3),
}


def drawn(problem: Problem, sizes: dict[str, int], random: np.random.Generator) -> dict[str, Any]:
    """Small integers for each input."""
    arrays: dict[str, Any] = {}
    for operand in problem.region.inputs:
        numbers = random.integers(-8, 9, [dims.evaluate(size, sizes) for size in operand.type.shape])
        arrays[operand.name] = numbers.astype(operand.type.dtype.numpy)
    return arrays


@pytest.mark.parametrize("programs", [1, 3, 1000])
@pytest.mark.parametrize("name", PRODUCTS)
def test_programs_that_take_tiles_in_turn_are_right(name: str, programs: int) -> None:
    problem, sizes, random = PRODUCTS[name], {"B": 150}, np.random.default_rng(0)
    found = persistent(problem, gpu_target("sm_100a"))
    arrays = drawn(problem, sizes, random)
    expected = run_region(problem.region, arrays, sizes)["y"]
    for program in (found[0], found[len(found) // 2], found[-1]):
        (kernel,) = print_program(program, problem.symbols, None, programs)
        assert f", {programs}, flatten=True)" in kernel.source and kernel.descriptors and not kernel.notes
        assert "y_descriptor.store([" in kernel.source or name != "rows"
        result = interpret(kernel, {**arrays, "y": np.full_like(expected, np.nan)}, sizes)["y"]
        np.testing.assert_array_equal(result, expected)


READ_OFTEN = """module @m {
  func @main(%x: DTYPE[ROWS, 72], %w: DTYPE[72, 50], %b: DTYPE[50], %z: DTYPE[ROWS, 50]) -> DTYPE[ROWS, 50] {
    %p = matmul(%x, %w) : DTYPE[ROWS, 50]
    %a = add(%p, %b) : DTYPE[ROWS, 50]
    %s = sigmoid(%a) : DTYPE[ROWS, 50]
    %m = mul(%a, %s) : DTYPE[ROWS, 50]
    %e = erf(%m) : DTYPE[ROWS, 50]
    %g = mul(%m, %e) : DTYPE[ROWS, 50]
    %r = add(%g, %p) : DTYPE[ROWS, 50]
    %y = mul(%r, %z) : DTYPE[ROWS, 50]
    return %y
  }
}"""
"""A product that four ops read, or what is made of it: twice an activation that an exporter spelled, a residual, a gate."""


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_a_product_that_is_read_often_is_right_by_every_strategy(rows: int, dtype: str) -> None:
    text = READ_OFTEN.replace("DTYPE", dtype).replace("ROWS", str(rows))
    module, target, random = parse_module(text), gpu_target("sm_90a"), np.random.default_rng(rows)
    (group,) = Fusion(module, module.main).units(lambda unit: unit)
    assert isinstance(group, Group)
    problem, _ = problem_of(group, module.facts, lambda *_: {})
    drawn = {v: random.standard_normal(v.shape).astype(np.float32).astype(v.dtype.numpy) for v in module.main.inputs}
    given = {o.name: drawn[v].reshape(o.type.shape) for o, v in zip(problem.region.inputs, group.inputs, strict=True)}
    (expected,), (exact,) = (interpret_graph(module, list(drawn.values()), wide=wide) for wide in (False, True))
    (result,) = (operand.name for operand in problem.region.outputs)
    found = list(matches(STRATEGIES, problem, target))
    assert {match.strategy.name for match in found} & {"tensor", "vector"}
    for match in found:
        schedule = min(match.strategy.space(match, target), key=lambda s, m=match: m.strategy.cost(m, s, target))  # type: ignore[misc]
        program = match.strategy.tile(match, schedule, target)
        got = run_tiles(program, given, {})
        verdict = judge(got[result].reshape(expected.shape), expected, exact)
        assert verdict.passed, f"{schedule}: {verdict.reason}"
    schedule, program = best(problem, target)
    memory: dict[str, Any] = dict(given)
    for launch, kernel in zip(program.launches, print_program(program, problem.symbols), strict=True):
        for param in launch.params:
            memory.setdefault(param.name, np.zeros([dims.evaluate(extent, {}) for extent in param.shape], param.dtype.numpy))
        memory |= interpret(kernel, memory, {})
    assert judge(memory[result].reshape(expected.shape), expected, exact).passed, schedule


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_a_product_that_is_read_often_is_compiled_with_what_reads_it(target: str) -> None:
    machine, module = gpu_target(target), parse_module(READ_OFTEN.replace("DTYPE", "bf16").replace("ROWS", "200"))
    (group,) = Fusion(module, module.main).units(lambda unit: unit)
    assert isinstance(group, Group)
    problem, _ = problem_of(group, module.facts, lambda *_: {})
    schedule, program = best(problem, machine)
    (kernel,) = compile_kernels(print_program(program, problem.symbols), machine, is_read=False)
    assert kernel.resources.instructions.get(machine.matrix_instruction, 0) > 0, schedule
    assert (kernel.resources.spill_stores, kernel.resources.spill_loads) == (0, 0), schedule


RESIDUAL = """region @r(%x: bf16[i 200, k 96], %w: bf16[j 264, k 96], %z: f32[i 200, j 264]) -> %y: f32[i 200, j 264] {
  axes i: 200, j: 264, k: 96
  %t = sum k: mul(cast(%x[i, k], f32), cast(%w[j, k], f32)) : f32[i, j]
  %y[i, j] = add(%t, %z[i, j])
}"""


@pytest.mark.parametrize("name", [*PRODUCTS, "residual"])
def test_which_programs_write_by_descriptors(name: str) -> None:
    """Not bytes' products, rows that changed places with columns, results that meet others, or such as are too many and computed with."""
    problem = PRODUCTS[name] if name in PRODUCTS else Problem(parse_region(RESIDUAL), dims.NO_FACTS, {})
    match = Tensor().match(problem, gpu_target("sm_100a"))
    assert isinstance(match, Match)
    for schedule in match.strategy.space(match, gpu_target("sm_100a")):
        program = match.strategy.tile(match, schedule, gpu_target("sm_100a"))
        (kernel,) = print_program(program, problem.symbols)
        is_many = schedule["m"] * schedule["n"] // (32 * schedule["warps"]) > 128
        fits = not (schedule["swap"] or name in ("integers", "residual") or (is_many and name == "symbolic"))
        assert ("y_descriptor.store([" in kernel.source) == (fits and PERSISTENT in schedule.parameters), str(schedule)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_programs_that_take_tiles_in_turn_are_compiled(name: str, target: str) -> None:
    problem, machine = PRODUCTS[name], gpu_target(target)
    (kernel,) = compile_kernels(print_program(persistent(problem, machine)[0], problem.symbols, None, 132), machine)
    used = kernel.resources
    assert used.instructions["tma"] and used.instructions[machine.matrix_instruction] and not used.spilled


@pytest.mark.parametrize("name", ["rows", "symbolic", "batch"])
def test_warps_of_several_kinds_are_right_and_launched_as_compiled(name: str) -> None:
    """The interpreter has one kind of warps; what the toolchain makes of them says how many are launched."""
    problem, sizes, machine = PRODUCTS[name], {"B": 150}, gpu_target("sm_100a")
    found = persistent(problem, machine, specialised=True)
    arrays = drawn(problem, sizes, np.random.default_rng(0))
    expected = run_region(problem.region, arrays, sizes)["y"]
    (kernel,) = print_program(found[0], problem.symbols, None, 3)
    assert ", 3, flatten=True, warp_specialize=True)" in kernel.source
    np.testing.assert_array_equal(interpret(kernel, {**arrays, "y": np.full_like(expected, np.nan)}, sizes)["y"], expected)
    (built,) = compile_kernels((kernel,), machine)
    assert built.resources.warps > kernel.warps and not built.resources.spilled
    assert not persistent(problem, gpu_target("sm_90a"), specialised=True)
    match = Tensor().match(problem, machine)
    assert isinstance(match, Match)
    assert SPECIALISED not in min(match.strategy.space(match, machine), key=lambda s: match.strategy.cost(match, s, machine)).parameters


MERGED = """region @r(%x: f16[i ROWS, k 128], %w: f16[h 5, d 53, k 128], %z: f32[h 5], %u: f32[d 53]) -> %y: f32[h 5, i ROWS, d 53] {
  axes i: ROWS, h: 5, d: 53, k: 128
  %t = sum k: mul(cast(%x[i, k], f32), cast(%w[h, d, k], f32)) : f32[i, h, d]
  %y[h, i, d] = mul(add(%t, %z[h]), %u[d])
}"""
"""A product whose columns are two axes, which results are stored apart by, as those of heads."""


def merged_columns(rows: int, size: int) -> Problem:
    return Problem(parse_region(MERGED.replace("ROWS", str(rows)).replace("53", str(size))), dims.NO_FACTS, {})


WIDE = {
    "heads": merged_columns(140, 64),
    "odd heads": merged_columns(140, 53),
    "odd heads of few rows": merged_columns(9, 53),
    "rows": product_of("bf16", 200, 264, 128),
    "bytes": product_of("f8e4m3", 130, 520, 256, after="add(mul(%t, %z[j]), %z[j])"),
    "symbolic": product_of("f16", "B", 264, 128, after=BIASED),
    "batch": product_of("f16", 140, 256, 64, batch=2),
}


@pytest.mark.parametrize("name", WIDE)
def test_tiles_of_more_than_threads_hold_are_stored_in_parts(name: str) -> None:
    """Right in both interpreters at sizes that leave parts empty and half full, whatever axes lie along them; compiled without a spill."""
    problem, machine, random = WIDE[name], gpu_target("sm_100a"), np.random.default_rng(0)
    match = Tensor().match(problem, machine)
    assert isinstance(match, Match)
    found = [each for each in match.strategy.space(match, machine) if parts_of(each, is_whole=False) > 1]
    assert {parts_of(each, is_whole=False) for each in found} == {4} and all(each["warps"] == 4 for each in found)
    of_swaps = {each["swap"]: each for each in found}
    for sizes in ({"B": 1}, {"B": 150}):
        arrays = drawn(problem, sizes, random)
        expected = run_region(problem.region, arrays, sizes)["y"]
        for schedule in dict.fromkeys((found[0], found[-1], *of_swaps.values())):
            program = match.strategy.tile(match, schedule, machine)
            assert sum(isinstance(s, Let) and isinstance(s.value, Slice) for s in statements(program.launches[0].body)) == 4
            given = {**arrays, "y": np.full_like(expected, np.nan)}
            np.testing.assert_array_equal(run_tiles(program, given, sizes)["y"], expected)
            (kernel,) = print_program(program, problem.symbols, None, 3)
            np.testing.assert_array_equal(interpret(kernel, given, sizes)["y"], expected)
    (built,) = compile_kernels(print_program(match.strategy.tile(match, found[0], machine), problem.symbols, None, 148), machine)
    # Places of odd sizes take registers of their own; a build refuses what spills and takes another schedule.
    assert (not built.resources.spilled or name.startswith("odd")) and built.resources.instructions[machine.matrix_instruction]


def test_what_no_descriptor_serves_is_not_taken_in_turn(cases: dict[str, Any]) -> None:
    for name in ("linear_f16", "convolution", "linear_f32"):
        assert not persistent(cases[name].problem(), gpu_target("sm_100a"))


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("depth", [16, 32, 48, 64, 65, 200])
def test_short_sums_of_bytes_are_compiled_for_the_instruction(depth: int, target: str) -> None:
    """As many terms as a step has are the most that a Hopper accumulator of few digits may take."""
    problem, machine = product_of("f8e4m3", 128, 512, depth), gpu_target(target)
    match = Tensor().match(problem, machine)
    assert isinstance(match, Match)
    schedule = min(match.strategy.space(match, machine), key=lambda s: match.strategy.cost(match, s, machine))
    (built,) = compile_kernels(print_program(match.strategy.tile(match, schedule, machine), problem.symbols), machine)
    assert any(name.startswith(("wgmma", "tcgen05", "mma")) and count for name, count in built.resources.instructions.items())


def test_a_name_that_a_factor_and_the_result_read_is_refused() -> None:
    text = MERGED.replace("  %t =", "  %s = mul(%u[d], f32(2.0)) : f32[d]\n  %t =").replace(
        "cast(%w[h, d, k], f32)", "mul(cast(%w[h, d, k], f32), %s)"
    )
    shared, apart = (
        Problem(parse_region(text.replace("ROWS", "128").replace("%u[d])\n}", f"{end})\n}}")), dims.NO_FACTS, {}) for end in ("%s", "%u[d]")
    )
    found = Tensor().match(shared, gpu_target("sm_100a"))
    assert isinstance(found, Refusal) and found.why == "a factor and what follows the sum both read %s"
    assert isinstance(Tensor().match(apart, gpu_target("sm_100a")), Match)
