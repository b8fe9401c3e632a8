"""Few long rows in parts: how many launches they are, and rows that parts could get wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ourcc.codegen.triton import print_program
from ourcc.codegen.triton.interpret import interpret
from ourcc.ir import dims
from ourcc.ir.graph.reference import judge
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.text import parse_region
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.verify import verify
from ourcc.ir.types import DType, f16, f32, f64, i32, i64
from ourcc.passes.tile.gpu import STRATEGIES
from ourcc.passes.tile.gpu.split_rows import SplitRows
from ourcc.passes.tile.schedule import Match, Problem, matches, seconds

from .conftest import Case

SM_90A = gpu_target("sm_90a")
SIZES = {"B": 3, "S": 1, "U": 1}


def program_of(problem: Any) -> Any:
    match = SplitRows().match(problem, SM_90A)
    assert isinstance(match, Match), match
    return match.strategy.tile(match, next(match.strategy.space(match, SM_90A)), SM_90A)


@pytest.mark.parametrize(
    ("name", "launches"), [("softmax_few", 2), ("softmax_few_f16", 2), ("logsumexp_few", 2), ("layer_norm_long", 2), ("sum_few", 2)]
)
def test_a_fold_with_a_base_comes_with_that(name: str, launches: int, cases: dict[str, Any]) -> None:
    assert len(program_of(cases[name].problem()).launches) == launches


LENGTHS = (36_001, 40_961, 17_001, 50_257, 65_537, 151_937)
"""The last part has one element, or most of them, or some."""


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("op", ["softmax", "logsumexp", "layer_norm", "rms_norm", "sum", "reduce_max"])
def test_rows_that_no_number_of_parts_divides(op: str, length: int, answered: Callable[..., Any]) -> None:
    operands: tuple[Any, ...] = ((f32, (2, length)), *([(f32, (length,))] if "norm" in op else []))
    attrs: dict[str, Any] = {
        "softmax": {"axis": 1},
        "layer_norm": {"axes": (1,), "epsilon": 1e-5},
        "rms_norm": {"axes": (1,), "epsilon": 1e-5},
    }
    case = Case(op, operands, attrs.get(op, {"axes": (1,), "keepdims": True}))
    judged = answered(case)
    match = SplitRows().match(judged.problem, SM_90A)
    assert isinstance(match, Match), match
    for schedule in match.strategy.space(match, SM_90A):
        program = match.strategy.tile(match, schedule, SM_90A)
        verify(program, judged.problem.symbols)
        with np.errstate(all="ignore"):
            verdict = judged.verdict(run(program, judged.given, SIZES, judged.problem.symbols))
        assert verdict.passed, f"{schedule}: {verdict.reason}"


PRINTED = {
    "softmax": Case("softmax", ((f32, (2, 17_001)),), {"axis": 1}),
    "layer_norm": Case("layer_norm", ((f32, (2, 17_001)), (f32, (17_001,))), {"axes": (1,), "epsilon": 1e-5}),
    "argmax": Case("argmax", ((f32, (2, 40_961)),), {"axis": 1}, highest=40),
    "cumsum": Case("cumsum", ((i64, (2, 17_001)),), {"axis": 1, "reverse": True}, highest=40),
}


@pytest.mark.parametrize("name", PRINTED)
def test_printed_kernels_of_uneven_parts_are_right(name: str, answered: Callable[..., Any]) -> None:
    judged = answered(PRINTED[name])
    program, memory = program_of(judged.problem), dict(judged.given)
    for launch, kernel in zip(program.launches, print_program(program, judged.problem.symbols), strict=True):
        for param in launch.params:
            memory.setdefault(param.name, np.zeros([dims.evaluate(extent, SIZES) for extent in param.shape], param.dtype.numpy))
        memory |= interpret(kernel, memory, SIZES)
    verdict = judged.verdict(memory)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_one_element_more_costs_no_more_than_another_part(target: str) -> None:
    """A vocabulary of 50,257 takes about what one of 50,304 takes, and a sum of a million and one about what one of a million takes."""
    machine = gpu_target(target)

    def predicted(op: str, length: int, **attrs: Any) -> float:
        problem = Case(op, ((f32, (1, length)),), attrs).problem()
        return min(
            seconds(match, schedule, machine)
            for match in matches(STRATEGIES, problem, machine)
            for schedule in match.strategy.space(match, machine)
        )

    along: dict[str, Any] = {"axes": (1,)}
    for op, length, attrs in (("softmax", 50_304, {"axis": 1}), ("sum", 2**20, along), ("sum", 2**22, along)):
        assert predicted(op, length - 47, **attrs) < 1.3 * predicted(op, length, **attrs)
        assert predicted(op, length + 1, **attrs) < 1.3 * predicted(op, length, **attrs)


def rows(length: int) -> np.ndarray:
    """Three rows at a time that parts could get wrong: parts of -inf alone, one number far away, infinities, NaN, a mean far from 0."""
    random = np.random.default_rng(3)
    x = random.standard_normal((12, length))
    x[0, : length // 2] = -np.inf
    x[1] = -np.inf
    x[2, 7] = np.inf
    x[3, 7] = np.nan
    x[4] = -np.inf
    x[4, -1] = -1e30
    x[5] *= 1e30
    x[6] = 3.25
    x[7] = x[7] * 1e-3 + 1000
    x[8, : length // 2] += 500
    x[9] = np.where(np.arange(length) < 9, -1e4, 80)
    x[10] *= 1e-30
    x[11] = 0
    return x.astype(np.float32)


@pytest.mark.parametrize("name", ["softmax_few", "logsumexp_few", "layer_norm_long"])
def test_rows_that_parts_could_get_wrong(name: str, cases: dict[str, Any], answered: Callable[..., Any]) -> None:
    case = cases[name]
    problem, (_, (_, length)) = case.problem(), case.operands[0]
    program, judged = program_of(problem), answered(case)
    (first, *others), types = judged.problem.region.inputs, case.types()
    given = rows(length)
    for n in range(0, len(given), 3):
        if name == "layer_norm_long" and n in (0, 3):
            continue  # no variance
        arrays = {first.name: given[n : n + 3], **{o.name: judged.given[o.name] for o in others}}
        wide = {key: array.astype(np.float64) for key, array in arrays.items()}
        region = region_of(OPS[case.op], types, case.attrs)
        exact = region_of(OPS[case.op], [replace(kind, dtype=f64) for kind in types], case.attrs)
        assert region is not None and exact is not None
        with np.errstate(all="ignore"):
            got = run(program, arrays, SIZES, problem.symbols)
            (wanted,), (best,) = run_region(region, arrays).values(), run_region(exact, wide).values()
        (output,) = (operand.name for operand in problem.region.outputs)
        verdict = judge(got[output].reshape(wanted.shape), wanted, best)
        assert verdict.passed, (n, verdict.reason)


GROUPS = (
    "region @r(%x: f32[i 3, j 9, k 4001], %w: f32[j 9]) -> %y: f32[i 3, j 9, k 4001] {\n  axes i: 3, j: 9, k: 4001\n"
    "  %t = sum j, k: %x[i, j, k] : f32[i]\n"
    "  %d = sub(%x[i, j, k], mul(%t, f32(2.7771e-05))) : f32[i, j, k]\n"
    "  %v = sum j, k: mul(%d, %d) : f32[i]\n"
    "  %y[i, j, k] = mul(mul(%d, rsqrt(mul(%v, f32(2.7771e-05)))), %w[j])\n}"
)
CHANNELS = (
    "region @r(%x: f32[i 5, j 3, k 9001]) -> %y: f32[j 3] {\n  axes i: 5, j: 3, k: 9001\n"
    "  %t = sum i, k: %x[i, j, k] : f32[j]\n  %y[j] = %t\n}"
)


@pytest.mark.parametrize("text", [GROUPS, CHANNELS], ids=["groups of channels", "all but channels"])
def test_rows_along_several_axes(text: str) -> None:
    """As in a group norm, whose weights are a channel's, and in the mean of a channel over all images."""
    region = parse_region(text)
    problem = Problem(region, dims.NO_FACTS, {})
    random = np.random.default_rng(5)
    given = {o.name: random.standard_normal(o.type.shape).astype(np.float32) for o in region.inputs}
    match = SplitRows().match(problem, SM_90A)
    assert isinstance(match, Match), match
    wide = parse_region(text.replace("f32", "f64"))
    (expected,) = run_region(region, given).values()
    (exact,) = run_region(wide, {name: array.astype(np.float64) for name, array in given.items()}).values()
    for schedule in match.strategy.space(match, SM_90A):
        program = match.strategy.tile(match, schedule, SM_90A)
        verify(program, problem.symbols)
        verdict = judge(run(program, given, {}, problem.symbols)["y"], expected, exact)
        assert verdict.passed, f"{schedule}: {verdict.reason}"


@pytest.mark.parametrize("dtype", [f32, f16, i32], ids=str)
@pytest.mark.parametrize(("op", "attrs"), [("argmax", {}), ("argmin", {}), ("argmax", {"last": True})])
def test_places_of_extremes_in_parts(op: str, attrs: dict[str, Any], dtype: DType, answered: Callable[..., Any]) -> None:
    """The first place of several that are equal, in whatever part it is."""
    judged = answered(Case(op, ((dtype, (3, 50_257)),), {"axis": 1, "keepdims": False} | attrs, highest=40))
    match = SplitRows().match(judged.problem, SM_90A)
    assert isinstance(match, Match), match
    for schedule in match.strategy.space(match, SM_90A):
        program = match.strategy.tile(match, schedule, SM_90A)
        verify(program, judged.problem.symbols)
        verdict = judged.verdict(run(program, judged.given, SIZES, judged.problem.symbols))
        assert verdict.passed, f"{schedule}: {verdict.reason}"


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_products_of_two_long_vectors_are_summed_in_parts(target: str) -> None:
    """A norm, a dot product: one program for each sum would leave the device idle; where there are many sums it would not."""
    machine = gpu_target(target)

    def taken(batch: int, length: int) -> str:
        text = f"region @r(%x: f32[i {batch}, k {length}]) -> %y: f32[i {batch}] {{\n  axes i: {batch}, k: {length}\n"
        text += "  %t = sum k: mul(%x[i, k], %x[i, k]) : f32[i]\n  %y[i] = %t\n}"
        return next(matches(STRATEGIES, Problem(parse_region(text), dims.NO_FACTS, {}), machine)).strategy.name

    assert taken(1, 1_000_003) == taken(4, 300_001) == "split_rows"
    assert taken(400, 3_001) == "vector"


@pytest.mark.parametrize("length", [16_641, 32_768, 50_257])
@pytest.mark.parametrize(("exclusive", "reverse"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("op", "dtype"), [("cumsum", f32), ("cumsum", i64), ("cummax", f32), ("cumprod", f32)])
def test_running_folds_in_parts(op: str, dtype: DType, exclusive: bool, reverse: bool, length: int) -> None:
    words = " exclusive" * exclusive + " reverse" * reverse
    text = (
        f"region @r(%x: {dtype}[i 2, j {length}]) -> %y: {dtype}[i 2, j {length}] {{\n  axes i: 2, j: {length}\n"
        f"  %s = {op} j{words}: %x[i, j] : {dtype}[i, j]\n  %y[i, j] = add(%s, %x[i, j])\n}}"
    )
    region = parse_region(text)
    random = np.random.default_rng(length)
    x = random.integers(-9, 9, (2, length))  # whole numbers: every order of sums gives the same
    x = 2.0 ** np.where(random.random((2, length)) < 0.01, np.sign(x), 0) if op == "cumprod" else x
    given = {"x": x.astype(dtype.numpy)}
    problem = Problem(region, dims.NO_FACTS, {})
    match = SplitRows().match(problem, SM_90A)
    assert isinstance(match, Match), match
    (expected,) = run_region(region, given).values()
    wide = parse_region(text.replace("f32", "f64"))
    (exact,) = run_region(wide, {"x": given["x"].astype(np.float64) if dtype.is_float else given["x"]}).values()
    for schedule in match.strategy.space(match, SM_90A):
        program = match.strategy.tile(match, schedule, SM_90A)
        verify(program, problem.symbols)
        verdict = judge(run(program, given, {}, problem.symbols)["y"], expected, exact)
        assert verdict.passed, f"{schedule}: {verdict.reason}"


def test_results_of_whole_rows_are_written_once(cases: dict[str, Any]) -> None:
    """The launch that adds up what parts gave has a program for each row, not for each part, where nothing varies along rows."""
    *_, last = program_of(cases["sum_few"].problem()).launches
    assert [axis.high for axis in last.grid] == [2]
    *_, last = program_of(cases["softmax_few"].problem()).launches
    assert len(last.grid) == 2
