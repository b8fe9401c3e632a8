"""Running values of loops: where each begins, which long sums carry their roundings along, what a running fold gives."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.dims import Facts
from ourcc.ir.region import SCANS, Load, Scan
from ourcc.ir.region.text import parse_region
from ourcc.ir.summation import LONG
from ourcc.ir.target import AVX512, gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.program import Launch, TileProgram
from ourcc.ir.types import DType, boolean, f16, f32, i8, i32, u8
from ourcc.passes.tile import cpu, gpu
from ourcc.passes.tile.folds import COMBINE, identity, is_compensated, open_total, running_fold
from ourcc.passes.tile.lower import Block, parameters
from ourcc.passes.tile.schedule import Problem, matches

FOLD = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "bit_or": np.logical_or, "bit_and": np.logical_and}


NUMBERS = (f32, f16, i8, i32, u8)
PAIRS = [(kind, dtype) for kind in COMBINE for dtype in ((boolean,) if kind in ("any", "all") else NUMBERS)]


@pytest.mark.parametrize(("kind", "dtype"), PAIRS, ids=str)
def test_a_fold_that_begins_at_its_identity_changes_nothing(kind: str, dtype: DType) -> None:
    values = np.array([0, 1] if dtype == boolean else [0, 1, 2, 100]).astype(dtype.numpy)
    start = np.array(identity(kind, dtype)).astype(dtype.numpy)
    assert (FOLD[COMBINE[kind]](start, values) == values).all()


@pytest.mark.parametrize(
    ("kind", "dtype", "extents", "expected"),
    [
        ("sum", f32, (LONG,), False),
        ("sum", f32, (LONG + 1,), True),
        ("sum", f32, (LONG // 2, 3), True),
        ("sum", f32, (dims.symbol("N"),), False),
        ("sum", f32, (dims.symbol("U"),), True),
        ("sum", i32, (LONG + 1,), False),
        ("max", f32, (LONG + 1,), False),
    ],
)
def test_long_float_sums_alone_carry_their_roundings(kind: str, dtype: DType, extents: tuple[dims.Dim, ...], expected: bool) -> None:
    facts = Facts().with_range("N", 1, LONG).with_range("U", 1, None)
    assert is_compensated(kind, dtype, extents, facts) is expected
    block = Block(Problem(parse_region(text("cumsum", "", 4)), facts, {}))
    total = open_total(block, "t", kind, dtype, (), extents)
    assert (total.lost is not None) is expected
    assert len(total.carries) == 1 + expected


def text(kind: str, flags: str, size: int) -> str:
    return f"""region @region(%x0: f32[{size}]) -> %y0: f32[{size}] {{
  axes i: {size}
  %t0 = {kind} i{flags}: %x0[i] : f32[i]
  %y0[i] = %t0
}}
"""


@pytest.mark.parametrize(("kind", "exclusive", "reverse"), list(itertools.product(SCANS, (False, True), (False, True))))
def test_a_running_fold_gives_the_value_at_each_place(kind: str, exclusive: bool, reverse: bool) -> None:
    problem = Problem(parse_region(text("cumsum", "", 7)), Facts(), {})
    block = Block(problem)
    i = dims.symbol("i")
    scan = Scan("t0", ("i",), kind, "i", Load("x0", (i,), f32), f32, exclusive, reverse)
    with running_fold(block, scan, ()) as take:
        take(block.lower(scan.value))
        block.store("y0", (block.index["i"],), block.readers["t0"](block))
    x = np.array([3, -1, 4, 1, -5, 9, 2], np.float32)
    launch = Launch("scan", parameters(problem), (), tuple(block.body))
    got = run(TileProgram("scan", (launch,)), {"x0": x}, {})["y0"]
    fold = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}[kind]
    values = x[::-1] if reverse else x
    start = {"cumsum": 0, "cumprod": 1, "cummax": -np.inf, "cummin": np.inf}[kind]
    expected = fold.accumulate(np.array([start, *values], np.float32))
    expected = expected[:-1] if exclusive else expected[1:]
    np.testing.assert_array_equal(got, expected[::-1] if reverse else expected)


EXTREMES = ("argmax", "argmin", "argmax_last", "argmin_last")
HARD = {
    f32: [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0],
    i32: [np.iinfo(np.int32).min, np.iinfo(np.int32).max, 0, 1],
    u8: [0, 255, 7],
    boolean: [False, True],
}


def place_of(kind: str, values: np.ndarray) -> int:
    """The place of an extreme: of NaN if there is one, of the first or the last of equal ones."""
    best = (np.max if kind.startswith("argmax") else np.min)(values)
    places = np.flatnonzero(np.isnan(values) if values.dtype.kind == "f" and np.isnan(best) else values == best)
    return int(places[-1 if kind.endswith("_last") else 0])


@pytest.mark.parametrize("kind", EXTREMES)
@pytest.mark.parametrize("dtype", HARD, ids=str)
@pytest.mark.parametrize(("strategies", "target"), [(cpu.STRATEGIES, AVX512), (gpu.STRATEGIES, gpu_target("sm_90a"))], ids=["cpu", "gpu"])
def test_both_families_find_the_same_place(kind: str, dtype: DType, strategies: Any, target: Any) -> None:
    draw = np.random.default_rng(0)
    # A GPU walks an axis without a bound in tiles of so many elements that a shorter one shows one tile alone.
    long = 2500 if strategies is gpu.STRATEGIES else 40
    for width, size, along in ((5, "5", "j"), (70, "70", "j"), (long, "U", "j"), (9, "9", "i")):
        region = parse_region(
            f"region @region(%x0: {dtype}[i 12, j {size}]) -> %y0: i64[{'i 12' if along == 'j' else f'j {size}'}] {{\n"
            f"  axes i: 12, j: {size}\n  %t0 = {kind} {along}: %x0[i, j] : i64[{'i' if along == 'j' else 'j'}]\n"
            f"  %y0[{'i' if along == 'j' else 'j'}] = %t0\n}}\n"
        )
        # Rows of one value each come first, then few values many times, so that ties and NaN are everywhere.
        choices = np.array(HARD[dtype]).astype(dtype.numpy)
        x = draw.choice(choices, (12, width))
        same = np.arange(min(len(choices), 12 if along == "j" else width))
        if along == "j":
            x[same] = choices[same, None]
        else:
            x[:, same] = choices[None, same]
        expected = [place_of(kind, row) for row in (x if along == "j" else x.T)]
        problem = Problem(region, Facts().with_range("U", 1, None), {})
        found = 0
        for match in matches(strategies, problem, target):
            for schedule in itertools.islice(match.strategy.space(match, target), 6):
                program = match.strategy.tile(match, schedule, target)
                assert run(program, {"x0": x}, {"U": width})["y0"].tolist() == expected, (match.strategy.name, schedule)
                found += 1
        assert found
