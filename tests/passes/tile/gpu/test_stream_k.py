"""Shares of steps: every step of every tile once and in order, right in both interpreters, the same bits, compiled, taken where it pays."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import ourcc
from ourcc.codegen.triton import print_program
from ourcc.codegen.triton.compile import compile_kernels
from ourcc.codegen.triton.interpret import interpret
from ourcc.codegen.triton.launch_abi import HIDDEN_POINTERS, variant
from ourcc.ir import dims
from ourcc.ir.plan import Launch
from ourcc.ir.target import GPU_BOARDS, GpuTarget, gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.program import TileProgram
from ourcc.ir.tile.verify import verify
from ourcc.passes.tile.gpu import STRATEGIES, why_no_matrix_instruction
from ourcc.passes.tile.gpu.parts import WORTH, fastest
from ourcc.passes.tile.gpu.rates import operations_rate
from ourcc.passes.tile.gpu.split_k import SplitK
from ourcc.passes.tile.gpu.stream_k import Deal, StreamK, deal_of
from ourcc.passes.tile.gpu.tensor import Tensor
from ourcc.passes.tile.schedule import Match, Problem, Refusal, Schedule, matches

from .conftest import SIZES, product_of

Array = np.ndarray[Any, Any]

HOPPER, BLACKWELL = (replace(gpu_target(name), processors=4) for name in ("sm_90a", "sm_100a"))
"""Of four processors, so that a few tiles are more than a wave."""
BIASED = "max(add(cast(%t, f32), %z[j]), f32(0.0))"
DTYPE_NAMES = ("bf16", "f16", "f32", "f8e4m3", "i8")


def matched(problem: Problem, target: GpuTarget) -> Match[Any]:
    """As it would be computed, whether that pays or not."""
    whole = Tensor().match(problem, target)
    assert isinstance(whole, Match), whole
    return Match(StreamK(), problem, whole.found)


def drawn(problem: Problem, seed: int) -> tuple[dict[str, Array], Array]:
    """Whole numbers whose sums no format rounds, and the product, biased and cut off where the region says so."""
    generator = np.random.default_rng(seed)
    whole = {o.name: generator.integers(-4, 5, o.type.shape) for o in problem.region.inputs}
    given = {o.name: whole[o.name].astype(np.float32).astype(o.type.dtype.numpy) for o in problem.region.inputs}
    expected = np.matmul(whole["x"], np.swapaxes(whole["w"], -1, -2))
    return given, np.maximum(expected + whole["z"], 0) if "max" in str(problem.region) else expected


def by_triton(program: TileProgram, problem: Problem, given: dict[str, Array]) -> Array:
    """The result of Triton's interpreter; what nobody wrote is NaN."""
    memory = dict(given)
    for launch, kernel in zip(program.launches, print_program(program, problem.symbols), strict=True):
        for param in launch.params:
            shape = tuple(int(size) for size in param.shape)
            memory.setdefault(param.name, np.full(shape, 0 if param.dtype.is_integer else np.nan, param.dtype.numpy))
        memory |= interpret(kernel, memory, {}, 200.0)
    return memory["y"]


# --- shares -----------------------------------------------------------------------------------------------------------


def test_shares_are_even_and_pieces_meet() -> None:
    """Along all steps that are left: a share of each program, at most two pieces, and each tile's pieces in the order of its sum."""
    draw = random.Random(3)
    for _ in range(300):
        deal = Deal(draw.randint(2, 300), draw.randint(1, 900), draw.randint(1, 130))
        if deal.left * deal.steps < deal.programs:
            continue
        assert deal.whole + deal.left == deal.tiles and 0 <= deal.left < deal.programs
        found: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        begins = [deal.begin(program) for program in range(deal.programs + 1)]
        assert begins[0] == 0 and begins[-1] == deal.left * deal.steps
        for program, (begin, end) in enumerate(pairwise(begins)):
            assert deal.share - 1 <= end - begin <= deal.share
            first, last = begin // deal.steps, (end - 1) // deal.steps
            assert last - first <= 1
            found[first].append((program, begin % deal.steps, min(end - first * deal.steps, deal.steps)))
            if last > first:
                found[last].append((program, 0, (end - 1) % deal.steps + 1))
        places = [program + tile for tile, pieces in found.items() for program, _, _ in pieces]
        assert len(set(places)) == len(places) and set(places) <= set(range(deal.pieces))
        for tile, pieces in found.items():
            programs = [program for program, _, _ in pieces]
            ends = [deal.program_at(tile * deal.steps + step) for step in (0, deal.steps - 1)]
            assert programs == list(range(ends[0], ends[1] + 1))
            assert [low for _, low, _ in pieces] == [0, *(high for _, _, high in pieces[:-1])] and pieces[-1][2] == deal.steps
        assert sorted(found) == list(range(deal.left))


# --- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tiles", [1, 3, 5, 7, 9, 14])
def test_any_number_of_tiles_is_right(tiles: int) -> None:
    """Fewer than programs, one more than a wave or than two, one less than two; no size is a multiple of a tile or of a step."""
    draw = random.Random(tiles)
    rows, columns, depth = 128 - draw.randint(1, 63), 128 * tiles - draw.randint(1, 63), 64 * 18 - 8 * draw.randint(1, 7)
    problem = product_of("f16", rows, columns, depth, after=BIASED)
    given, expected = drawn(problem, tiles)
    match = matched(problem, BLACKWELL)
    kinds = [s for s in match.strategy.space(match, BLACKWELL) if (s["m"], s["n"], s["programs"]) == (128, 128, 4)]
    stays = [s for s in kinds if "persistent" in str(s)]
    assert stays and len(stays) < len(kinds)
    for schedule in (stays[0], next(s for s in kinds if s not in stays)):
        deal = deal_of(match, schedule)
        assert (deal.tiles, deal.waves, deal.left) == (tiles, tiles // 4, tiles % 4)
        program = match.strategy.tile(match, schedule, BLACKWELL)
        verify(program, problem.symbols)
        np.testing.assert_array_equal(run(program, given, {}, problem.symbols)["y"], expected)


@pytest.mark.parametrize("seed", range(6))
def test_drawn_products_are_right(seed: int) -> None:
    draw = random.Random(seed)
    sizes = (draw.choice((9, 33, 70, 130, 200)), draw.choice((40, 72, 264)), draw.choice((320, 456, 1000)), draw.choice((None, 3)))
    dtype = draw.choice(DTYPE_NAMES)
    problem = product_of(dtype, *sizes, after=BIASED if dtype == "i8" else draw.choice(("%t", BIASED)))
    given, expected = drawn(problem, seed)
    for target in (HOPPER, BLACKWELL):
        match = matched(problem, target)
        schedules = list(match.strategy.space(match, target))
        for schedule in draw.sample(schedules, min(3, len(schedules))):
            program = match.strategy.tile(match, schedule, target)
            verify(program, problem.symbols)
            np.testing.assert_array_equal(run(program, given, {}, problem.symbols)["y"], expected, str(schedule))


def test_groups_of_rows_that_are_not_full_are_right() -> None:
    """Eleven rows of tiles are a group of eight and one of three."""
    problem = product_of("bf16", 64 * 11 - 5, 56, 512)
    given, expected = drawn(problem, 0)
    match = matched(problem, HOPPER)
    schedule = next(s for s in match.strategy.space(match, HOPPER) if (s["m"], s["n"]) == (64, 16))
    assert deal_of(match, schedule).tiles == 44
    np.testing.assert_array_equal(run(match.strategy.tile(match, schedule, HOPPER), given, {}, problem.symbols)["y"], expected)


def test_convolutions_are_right(cases: dict[str, Any], answered: Callable[..., Any]) -> None:
    judged = answered(cases["convolution_channels"])
    match = matched(judged.problem, HOPPER)
    for schedule in list(match.strategy.space(match, HOPPER))[::9]:
        verdict = judged.verdict(run(match.strategy.tile(match, schedule, HOPPER), judged.given, SIZES, judged.problem.symbols))
        assert verdict.passed, verdict.reason


@pytest.mark.parametrize("words", ["int8-weight", "int4-weight", "fp8-weight"])
def test_coded_weights_are_right(words: str, coded: Callable[..., Any]) -> None:
    case = coded(words, 16, 200, 512)
    match = matched(case.problem, HOPPER)
    program = match.strategy.tile(match, next(match.strategy.space(match, HOPPER)), HOPPER)
    verify(program, case.problem.symbols)
    verdict = case.verdict(run(program, case.given, {}, case.problem.symbols))
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize(
    ("target", "sizes", "after"),
    [
        (HOPPER, ("f16", 70, 264, 320), BIASED),
        (HOPPER, ("f32", 70, 136, 320), "%t"),
        (BLACKWELL, ("i8", 130, 264, 640), BIASED),
        (BLACKWELL, ("f8e4m3", 70, 200, 640), "%t"),
        (BLACKWELL, ("bf16", 33, 72, 512, 3), BIASED),
    ],
)
def test_triton_agrees(target: GpuTarget, sizes: tuple[Any, ...], after: str) -> None:
    problem = product_of(*sizes, after=after)
    given, expected = drawn(problem, 1)
    match = matched(problem, target)
    schedules = list(match.strategy.space(match, target))
    for schedule in (schedules[0], schedules[-1]):
        program = match.strategy.tile(match, schedule, target)
        np.testing.assert_array_equal(by_triton(program, problem, given), expected, str(schedule))


# --- orders -----------------------------------------------------------------------------------------------------------


def test_schedules_of_one_order_give_equal_bits() -> None:
    """Warps, stages, and whether tiles are read by descriptor change no bit; where pieces end does."""
    problem = product_of("f16", 120, 264, 1016)
    generator = np.random.default_rng(2)
    given = {o.name: generator.standard_normal(o.type.shape).astype(o.type.dtype.numpy) for o in problem.region.inputs}
    match = matched(problem, BLACKWELL)
    bits: dict[Any, list[bytes]] = defaultdict(list)
    schedules = [s for s in match.strategy.space(match, BLACKWELL) if s["n"] >= 64]
    for schedule in schedules:
        got = run(match.strategy.tile(match, schedule, BLACKWELL), given, {}, problem.symbols)["y"]
        bits[match.strategy.order(match, schedule, BLACKWELL)].append(got.tobytes())
        np.testing.assert_allclose(got, given["x"].astype(np.float64) @ given["w"].astype(np.float64).T, rtol=1e-4, atol=1e-3)
    assert len(schedules) > len(bits) and all(len(set(each)) == 1 for each in bits.values())
    assert len({each[0] for each in bits.values()}) > 1
    names = {(s["m"], s["n"], s["k"], s["programs"], s["swap"]) for s in schedules}
    assert len(names) == len(bits)


def test_every_run_gives_the_same_bits() -> None:
    problem = product_of("bf16", 33, 136, 512)
    generator = np.random.default_rng(4)
    given = {o.name: generator.standard_normal(o.type.shape).astype(np.float32).astype(o.type.dtype.numpy) for o in problem.region.inputs}
    match = matched(problem, HOPPER)
    program = match.strategy.tile(match, next(match.strategy.space(match, HOPPER)), HOPPER)
    assert len({by_triton(program, problem, given).tobytes() for _ in range(3)}) == 1
    assert not any(launch.counters for launch in program.launches) and "atomic" not in str(print_program(program, problem.symbols))


def test_it_adds_up_in_another_order_than_whole_tiles() -> None:
    problem = product_of("f16", 120, 264, 1016)
    match = matched(problem, HOPPER)
    whole = Match(Tensor(), problem, match.found)
    tensor = {whole.strategy.order(whole, schedule, HOPPER) for schedule in whole.strategy.space(whole, HOPPER)}
    assert not tensor & {match.strategy.order(match, schedule, HOPPER) for schedule in match.strategy.space(match, HOPPER)}


# --- kernels ----------------------------------------------------------------------------------------------------------


def cheapest_of(match: Match[Any], target: GpuTarget) -> Schedule:
    return min(match.strategy.space(match, target), key=lambda schedule: match.strategy.cost(match, schedule, target))


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_kernels_are_compiled(dtype: str, target: str) -> None:
    machine, problem = gpu_target(target), product_of(dtype, 1024, 5120, 5120, after=BIASED)
    match = matched(problem, machine)
    schedule = cheapest_of(match, machine)
    program = match.strategy.tile(match, schedule, machine)
    kernels = compile_kernels(print_program(program, problem.symbols, None, machine.processors), machine, is_read=False)
    for launch, kernel in zip(program.launches, kernels, strict=True):
        assert kernel.resources.spilled == 0 and kernel.resources.shared <= machine.shared_memory, schedule
        planned = variant(kernel)
        assert planned.warps == launch.hint("warps", 4) and len(planned.arguments) == len(launch.params)
        assert kernel.ptx.split(".entry", 1)[1].split(")", 1)[0].count(".param") == len(planned.arguments) + HIDDEN_POINTERS
    assert kernels[0].resources.instructions.get(machine.matrix_instruction, 0) > 0, kernels[0].resources.instructions
    assert "mma.sync" not in kernels[0].resources.instructions
    assert why_no_matrix_instruction(problem, schedule, machine) is None
    assert operations_rate(problem, schedule, machine) == pytest.approx(
        machine.rates[dtype] if dtype != "f32" else machine.rates["tf32"] / 3
    )


class Product(torch.nn.Module):
    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(torch.nn.functional.linear(x, w))


def test_an_engine_has_two_launches_and_the_pieces_between() -> None:
    inputs = torch.zeros((1024, 5120), dtype=torch.bfloat16), torch.zeros((5120, 5120), dtype=torch.bfloat16)
    contents = ourcc.build(torch.export.export(Product(), inputs), targets=["h100"], tune="off").contents
    ((products, sums),) = contents.report["kernels"].values()
    assert products["strategy"] == sums["strategy"] and products["strategy"].startswith("stream_k{m=128, n=256")
    (part,) = contents.parts.values()
    (plan,) = part.plans.values()
    first, second = (step for step in plan.steps if isinstance(step, Launch))
    pieces = set(first.writes) & set(second.reads) - set(second.writes)
    types = {buffer.name: buffer.type for buffer in plan.buffers}
    assert [types[name].shape for name in pieces] == [(132 + 160 - 132 - 1, 128, 256)]
    # What the second launch does not write of the result stays as the first has it.
    assert set(second.writes) <= set(first.writes) & set(second.reads)


# --- choice -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("board", "sizes", "chosen"),
    [
        ("h100", (1024, 5120, 5120), "stream_k"),
        ("b200", (2304, 2304, 9216), "stream_k"),
        ("h100", (1536, 5120, 8192), "tensor"),
        ("h100", (4096, 4096, 4096), "tensor"),
        ("h100", (64, 64, 16384), "split_k"),
    ],
)
def test_it_is_chosen_where_it_is_predicted_to_pay(board: str, sizes: tuple[int, int, int], chosen: str) -> None:
    target, problem = GPU_BOARDS[board], product_of("bf16", *sizes)
    assert next(matches(STRATEGIES, problem, target)).strategy.name == chosen
    other = next(matches((SplitK(), Tensor()), problem, target))
    assert (fastest(matched(problem, target), target) <= WORTH * fastest(other, target)) == (chosen == "stream_k")


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (replace(product_of("bf16", "B", 5120, 5120), symbols=dims.NO_FACTS.with_range("B", 1, 4096)), "not known when building"),
        (product_of("bf16", 1024, 5120, 40_000), "added up in chunks"),
        (product_of("bf16", 1536, 5120, 8192), "whole tiles take"),
        (product_of("bf16", 128, 256, 16384), "equal parts of the sum take"),
        (product_of("bf16", 128, 128 * 132, 32), "too few steps are left"),
        (product_of("bf16", 64, 5120, 4), "there are at most 4 contracted elements"),
    ],
)
def test_refusals_say_why(problem: Problem, why: str) -> None:
    found = StreamK().match(problem, GPU_BOARDS["h100"])
    assert isinstance(found, Refusal) and why in found.why, found
