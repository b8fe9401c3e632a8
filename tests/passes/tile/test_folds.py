"""Running values of loops: where each begins, which long sums carry their roundings along, what a running fold gives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.dims import Facts
from ourcc.ir.region import SCANS, Load, Scan
from ourcc.ir.region.text import parse_region
from ourcc.ir.summation import LONG
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.program import Launch, TileProgram
from ourcc.ir.types import DType, boolean, f16, f32, i8, i32, u8
from ourcc.passes.tile.folds import COMBINE, identity, is_compensated, open_total, running_fold
from ourcc.passes.tile.lower import Block, parameters
from ourcc.passes.tile.schedule import Problem

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
