"""Products of 8-bit factors with scales along the sum: every format that has them, right in both interpreters, on the instruction."""

from __future__ import annotations

import functools
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
from ourcc.ir.region.interpret import run_region
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.program import Dot, TileProgram, statements, walk
from ourcc.ir.tile.program import Let as TileLet
from ourcc.ir.tile.verify import verify
from ourcc.ir.types import u8
from ourcc.passes.fusion.partition import Fusion
from ourcc.passes.lower.schedule import problem_of
from ourcc.passes.regions.compose import Group
from ourcc.passes.regions.contraction import read_contraction
from ourcc.passes.tile.gpu import STRATEGIES, why_no_matrix_instruction
from ourcc.passes.tile.gpu.blocked import Blocked, BlockProduct, block_product
from ourcc.passes.tile.gpu.rates import operations_rate
from ourcc.passes.tile.schedule import Match, Problem, Refusal, matches

SM_90A = gpu_target("sm_90a")
WORDS = {"fp8-block": ("f8e4m3", 128), "mxfp8": ("f8e4m3", 32), "int4-a8": ("i8", 32), "mxfp6-a8": ("i8", 32), "mxfp4": ("i8", 32)}


@functools.cache
def posed(quantize: str, rows: int, columns: int, depth: int) -> tuple[Problem, dict[str, Any]]:
    """The product of a linear layer whose activations are rounded as well, with drawn factors and scales."""
    torch.manual_seed(1)
    layer = torch.nn.Linear(depth, columns, dtype=torch.bfloat16).eval()
    program = torch.export.export(layer, (torch.randn(rows, depth, dtype=torch.bfloat16),))
    module, options = import_exported(program), build_options({"targets": ["sm_90a"], "quantize": quantize})
    simplify(module, options)
    problems: list[Problem] = []
    for group in Fusion(module, module.main, narrow=True).units(lambda unit: unit):
        assert isinstance(group, Group)
        problems.append(problem_of(group, module.facts, lambda *_: {})[0])
    problem = next(each for each in problems if not isinstance(read_contraction(each.region), str))
    random, given = np.random.default_rng(7), {}
    for operand in problem.region.inputs:
        shape, dtype = tuple(int(size) for size in operand.type.shape), operand.type.dtype
        if dtype.is_integer:
            given[operand.name] = random.integers(0 if dtype == u8 else -127, 256 if dtype == u8 else 128, shape).astype(dtype.numpy)
        else:
            numbers = 2.0 ** random.integers(-6, 1, shape) if dtype.name == "f8e8m0" else random.standard_normal(shape)
            given[operand.name] = numbers.astype(np.float32).astype(dtype.numpy)
    return problem, given


def expect_right(problem: Problem, given: dict[str, Any], got: dict[str, Any]) -> None:
    """One step of bf16 off at most, where sums of the same numbers in another order round to another side."""
    expected = run_region(problem.region, given, {})
    for name, array in expected.items():
        wanted, found = array.astype(np.float64), got[name].reshape(array.shape).astype(np.float64)
        scale = np.abs(wanted).max()
        assert np.isfinite(wanted).all() and np.all(np.abs(found - wanted) <= 2.0**-7 * np.abs(wanted) + 1e-6 * scale), name
        assert np.mean(found != wanted) < 0.02


def matched(problem: Any) -> Match[Any]:
    """As it would be computed, whether that pays or not."""
    found = block_product(problem)
    assert isinstance(found, BlockProduct), found
    return Match(Blocked(), problem, found)


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("rows", [8, 70])
def test_blocks_are_right_in_every_schedule(words: str, rows: int) -> None:
    problem, given = posed(words, rows, 48, 256)
    match = matched(problem)
    assert (match.found.matched.operands.dtype.name, match.found.size) == WORDS[words]
    schedules = list(match.strategy.space(match, SM_90A))
    found: dict[Any, set[bytes]] = {}
    for schedule in schedules[:: max(1, len(schedules) // 6)]:
        program = match.strategy.tile(match, schedule, SM_90A)
        verify(program, problem.symbols)
        got = run(program, given, {}, problem.symbols)
        expect_right(problem, given, got)
        order = match.strategy.order(match, schedule, SM_90A)
        found.setdefault(order, set()).add(b"".join(got[o.name].tobytes() for o in problem.region.outputs))
    assert all(len(bits) == 1 for bits in found.values())


def expect_right_in_triton(problem: Problem, given: dict[str, Any], program: TileProgram) -> TritonKernel:
    """The kernel that a program is printed as, after Triton's interpreter has run it."""
    (launch,), (kernel,) = program.launches, print_program(program)
    memory = dict(given)
    for param in launch.params:
        memory.setdefault(param.name, np.zeros([int(size) for size in param.shape], param.dtype.numpy))
    expect_right(problem, given, interpret(kernel, {param.name: memory[param.name] for param in launch.params}, {}, 200.0))
    return kernel


@pytest.mark.parametrize("words", WORDS)
def test_triton_agrees(words: str) -> None:
    problem, given = posed(words, 24, 48, 256)
    match = matched(problem)
    schedule = min(match.strategy.space(match, SM_90A), key=lambda s: match.strategy.cost(match, s, SM_90A))
    program = match.strategy.tile(match, schedule, SM_90A)
    expect_right_in_triton(problem, given, program)


@pytest.mark.parametrize("words", WORDS)
def test_it_is_chosen_where_it_pays(words: str) -> None:
    """Many rows are; few of them are read by more programs otherwise; small blocks are not worth bringing from tensor memory."""
    many, few = posed(words, 512, 4096, 4096)[0], posed(words, 16, 64, 4096)[0]
    # All numbers of MXFP4 and MXFP8 by their scales that are normal in float32 are numbers of bf16.
    assert next(matches(STRATEGIES, many, SM_90A)).strategy.name == ("tensor" if words in ("mxfp4", "mxfp8") else "blocked")
    refused = Blocked().match(few, SM_90A)
    assert isinstance(refused, Refusal) and "scaled beforehand" in refused.why
    on_blackwell = next(matches(STRATEGIES, many, gpu_target("sm_100a"))).strategy.name
    assert (on_blackwell == "blocked") == (WORDS[words][1] == 128)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("words", WORDS)
def test_blocks_are_multiplied_by_the_instruction(words: str, target: str) -> None:
    machine, (problem, _) = gpu_target(target), posed(words, 128, 128, 512)
    match = matched(problem)
    schedule = min(match.strategy.space(match, machine), key=lambda s: match.strategy.cost(match, s, machine))
    program = match.strategy.tile(match, schedule, machine)
    (dot,) = (p for s in statements(program.launches[0].body) if isinstance(s, TileLet) for p in walk(s.value) if isinstance(p, Dot))
    assert dot.left.type.dtype.name == WORDS[words][0]
    (kernel,) = compile_kernels(print_program(program, problem.symbols), machine, is_read=False)
    assert kernel.resources.instructions.get(machine.matrix_instruction, 0) > 0, kernel.resources.instructions
    assert kernel.resources.spilled == 0 and why_no_matrix_instruction(problem, schedule, machine) is None
    assert operations_rate(problem, schedule, machine) == pytest.approx(machine.rates[WORDS[words][0]])


@pytest.mark.parametrize(
    ("words", "rows", "why"),
    [("fp8", 24, "change along the sum"), ("nvfp4", 24, "elements"), ("fp8-block", 1, "rows"), ("int4-weight", 24, "change along the sum")],
)
def test_what_has_no_blocks_says_why(words: str, rows: int, why: str) -> None:
    found = Blocked().match(posed(words, rows, 48, 256)[0], SM_90A)
    assert isinstance(found, Refusal) and why in found.why, found


def test_columns_may_leave_a_tile_that_reads_one_scale() -> None:
    """A tile of 128 columns has one scale a block, though some of its columns are outside; it once was printed with a mask wider than
    its pointer.
    """
    problem, given = posed("fp8-block", 70, 200, 256)
    match = matched(problem)
    schedule = next(s for s in match.strategy.space(match, SM_90A) if s["n"] == 128)
    program = match.strategy.tile(match, schedule, SM_90A)
    kernel = expect_right_in_triton(problem, given, program)
    compile_kernels([kernel], SM_90A, is_read=False)
