"""Products of small floats by the scales of their blocks: every format that has them, right in both interpreters, on the instruction."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ourcc.codegen.triton import TritonKernel, print_program
from ourcc.codegen.triton.compile import compile_kernels
from ourcc.codegen.triton.interpret import interpret
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import simplify
from ourcc.ir import dims
from ourcc.ir.region.interpret import run_region
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.program import Dot, TileProgram, Unpack, statements, walk
from ourcc.ir.tile.program import Let as TileLet
from ourcc.ir.tile.verify import verify
from ourcc.ir.types import f4e2m1, f8e4m3, f8e8m0, u8
from ourcc.passes.fusion.partition import Fusion
from ourcc.passes.lower.schedule import problem_of
from ourcc.passes.regions.compose import Group
from ourcc.passes.regions.contraction import read_contraction
from ourcc.passes.tile.gpu import why_no_matrix_instruction
from ourcc.passes.tile.gpu.rates import operations_rate
from ourcc.passes.tile.gpu.scaled import BlockScaled, block_scaled
from ourcc.passes.tile.schedule import Match, Problem, Refusal, Schedule

SM_100A = gpu_target("sm_100a")
WORDS = {"mxfp8": (f8e4m3, f8e8m0, 32), "mxfp4": (f4e2m1, f8e8m0, 32), "nvfp4": (f4e2m1, f8e4m3, 16)}


def product_of(quantize: str, rows: int | None, columns: int, depth: int, target: str = "sm_100a", bias: bool = True) -> Problem:
    """The product of a linear layer whose activations are rounded as well; any number of rows up to 512 where none is said."""
    torch.manual_seed(1)
    layer = torch.nn.Linear(depth, columns, dtype=torch.bfloat16, bias=bias).eval()
    sizes = None if rows is not None else ({0: torch.export.Dim("rows", min=2, max=512)},)
    program = torch.export.export(layer, (torch.randn(rows or 37, depth, dtype=torch.bfloat16),), dynamic_shapes=sizes)
    module, options = import_exported(program), build_options({"targets": [target], "quantize": quantize})
    simplify(module, options)
    problems: list[Problem] = []
    for group in Fusion(module, module.main, narrow=True).units(lambda unit: unit):
        assert isinstance(group, Group)
        problems.append(problem_of(group, module.facts, lambda *_: {})[0])
    return next(each for each in problems if not isinstance(read_contraction(each.region), str))


@functools.cache
def posed(quantize: str, rows: int | None, columns: int, depth: int) -> Problem:
    return product_of(quantize, rows, columns, depth)


def drawn(problem: Problem, sizes: dict[str, int], seed: int = 7) -> dict[str, Any]:
    """Codes of every kind, with scales that differ by 2^7."""
    random, given = np.random.default_rng(seed), {}
    for operand in problem.region.inputs:
        shape, dtype = tuple(dims.evaluate(size, sizes) for size in operand.type.shape), operand.type.dtype
        if dtype.is_integer:
            given[operand.name] = random.integers(0 if dtype == u8 else -127, 256 if dtype == u8 else 128, shape).astype(dtype.numpy)
        else:
            numbers = 2.0 ** random.integers(-6, 1, shape) if dtype == f8e8m0 else random.standard_normal(shape)
            given[operand.name] = numbers.astype(np.float32).astype(dtype.numpy)
    return given


def expect_right(problem: Problem, given: dict[str, Any], got: dict[str, Any], sizes: dict[str, int]) -> None:
    """One step of bf16 off at most, where sums of the same numbers in another order round to another side."""
    for name, array in run_region(problem.region, given, sizes).items():
        wanted, found = array.astype(np.float64), got[name].reshape(array.shape).astype(np.float64)
        scale = np.abs(wanted).max()
        assert np.isfinite(wanted).all() and np.all(np.abs(found - wanted) <= 2.0**-7 * np.abs(wanted) + 1e-6 * scale), name
        assert np.mean(found != wanted) < 0.03


def matched(problem: Problem) -> Match[Any]:
    """The strategy, whatever else would be faster."""
    found = block_scaled(problem, SM_100A)
    assert not isinstance(found, str), found
    return Match(BlockScaled(), problem, found)


def schedules(match: Match[Any]) -> list[Schedule]:
    """The cheapest schedules of each size of a tile, as it lies and turned."""
    by_size: dict[tuple[int, int], Schedule] = {}
    for schedule in sorted(match.strategy.space(match, SM_100A), key=lambda each: match.strategy.cost(match, each, SM_100A)):
        by_size.setdefault((schedule["n"], schedule["swap"]), schedule)
    return list(by_size.values())


def by_triton(program: TileProgram, given: dict[str, Any], sizes: dict[str, int], symbols: dims.Facts) -> dict[str, Any]:
    (launch,), (kernel,) = program.launches, print_program(program, symbols)
    memory = {param.name: given.get(param.name) for param in launch.params}
    for param in launch.params:
        if memory[param.name] is None:
            memory[param.name] = np.zeros([dims.evaluate(size, sizes) for size in param.shape], param.dtype.numpy)
    bits = {name: array.view(np.uint8) if array.dtype == f8e8m0.numpy else array for name, array in memory.items() if array is not None}
    return interpret(kernel, bits, sizes, 300.0)


@pytest.mark.parametrize("rows", [1, 5, 64, 200])
@pytest.mark.parametrize("quantize", WORDS)
def test_a_scaled_product_is_right(quantize: str, rows: int) -> None:
    problem = posed(quantize, rows, 144, 256)
    given, match = drawn(problem, {}), matched(problem)
    assert (match.found.left.dtype, match.found.right.scale.dtype, match.found.left.block) == WORDS[quantize]
    found = schedules(match)
    assert {schedule["swap"] for schedule in found} == ({0, 1} if rows < 128 else {0})
    for schedule in found:
        program = match.strategy.tile(match, schedule, SM_100A)
        verify(program, problem.symbols)
        expect_right(problem, given, run(program, given, {}, problem.symbols), {})
    if quantize != "nvfp4":  # Triton's interpreter knows scales of powers of two alone
        expect_right(problem, given, by_triton(match.strategy.tile(match, found[0], SM_100A), given, {}, problem.symbols), {})


@pytest.mark.parametrize("quantize", WORDS)
def test_any_number_of_rows(quantize: str) -> None:
    problem = posed(quantize, None, 64, 128)
    match = matched(problem)
    program = match.strategy.tile(match, schedules(match)[0], SM_100A)
    verify(program, problem.symbols)
    (symbol,) = problem.symbols.ranges
    for rows in (2, 129, 300):
        given = drawn(problem, {symbol: rows}, rows)
        expect_right(problem, given, run(program, given, {symbol: rows}, problem.symbols), {symbol: rows})


@pytest.mark.parametrize("quantize", WORDS)
def test_it_runs_on_the_instruction(quantize: str) -> None:
    kernels: list[TritonKernel] = []
    for rows in (1, 256):
        problem = posed(quantize, rows, 512, 512)
        match = matched(problem)
        schedule = min(match.strategy.space(match, SM_100A), key=lambda each: match.strategy.cost(match, each, SM_100A))
        program = match.strategy.tile(match, schedule, SM_100A)
        dots = [
            part
            for statement in statements(program.launches[0].body)
            if isinstance(statement, TileLet)
            for part in walk(statement.value)
            if isinstance(part, Dot)
        ]
        assert [isinstance(dot.left, Unpack) for dot in dots] == [quantize != "mxfp8"]
        assert why_no_matrix_instruction(problem, schedule, SM_100A) is None
        assert operations_rate(problem, schedule, SM_100A) == pytest.approx(SM_100A.rates["f8e4m3" if quantize == "mxfp8" else "f4"])
        kernels += print_program(program, problem.symbols)
    for built in compile_kernels(kernels, SM_100A):
        assert built.resources.spill_stores == 0
        assert built.resources.instructions["tcgen05"] > 0
        assert "block_scale" in built.ptx


def test_what_is_refused_and_why() -> None:
    problem = posed("mxfp4", 64, 144, 256)
    assert block_scaled(problem, gpu_target("sm_90a")) == "sm_90a has no instruction that multiplies blocks by their scales"
    short = posed("mxfp4", 64, 144, 96)
    assert block_scaled(short, SM_100A) == "a sum of 96 products is no multiple of 128"
    weights = product_of("mxfp4-weight", 64, 144, 256)
    assert "not made of small floats" in str(block_scaled(weights, SM_100A))
    plain = product_of("fp8", 64, 144, 256)
    assert "not made of small floats" in str(block_scaled(plain, SM_100A))
    nothing = replace(
        problem, region=replace(problem.region, axes=tuple(replace(a, extent=0) if a.extent == 64 else a for a in problem.region.axes))
    )
    assert "no elements" in str(block_scaled(nothing, SM_100A))


def test_few_rows_of_bytes_are_multiplied_one_by_one() -> None:
    found = BlockScaled().match(posed("mxfp8", 1, 6144, 4096), SM_100A)
    assert isinstance(found, Refusal) and "scaled beforehand" in found.why
    for quantize, rows in (("mxfp4", 1), ("nvfp4", 1), ("mxfp8", 64), ("nvfp4", 512)):
        assert isinstance(BlockScaled().match(posed(quantize, rows, 6144, 4096), SM_100A), Match), (quantize, rows)
