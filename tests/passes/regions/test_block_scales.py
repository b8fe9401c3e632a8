"""Block scales: which factors are small floats by scales of their blocks, where their bytes and scales stand, and what is none."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.region import Region
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.text import parse_region
from ourcc.ir.types import f4e2m1, f8e4m3, f8e5m2, f8e8m0
from ourcc.passes.regions.block_scales import BLOCK, PLACE, ScaledProduct, scaled_product, with_row
from ourcc.passes.regions.contraction import read_contraction


def pair(operand: str, run: int, shift: str | None = None) -> str:
    """The number of e2m1, doubled, that stands in a byte with the one half a run further on."""
    half = run // 2
    amount = shift or f"4*(((k % {run})) // {half})"
    code = f"cast(bit_and(shift_right({operand}[r, {half}*(k // {run}) + (k % {half})], index({amount}, u8)), u8(15)), i32)"
    part, power = f"bit_and({code}, i32(1))", f"bit_and(shift_right({code}, i32(1)), i32(3))"
    size = f"where(eq({power}, i32(0)), {part}, shift_left(add({part}, i32(2)), sub({power}, i32(1))))"
    return f"cast(where(eq(bit_and({code}, i32(8)), i32(0)), {size}, neg({size})), f32)"


def factor(codes: str, scales: str, row: str, *, size: int, half: str = "f32(0.5)") -> str:
    doubled = f"mul(cast({scales}[r, (k // {size})], f32), {half})" if "shift_right" in codes else f"cast({scales}[r, (k // {size})], f32)"
    return f"mul({codes}, {doubled})".replace("[r,", f"[{row},")


def posed(left: str, right: str, types: tuple[str, str, str, str]) -> Region:
    a, s, b, t = types
    head = f"region @r(%a: {a}, %s: {s}, %b: {b}, %t: {t}) -> %y: f32[i 3, j 5] {{\n  axes i: 3, j: 5, k: 64\n"
    return parse_region(f"{head}  %sum = sum k: mul({left}, {right}) : f32[i, j]\n  %y[i, j] = %sum\n}}")


BYTES = "cast({}[r, k], f32)"
MX = ("f8e4m3[i 3, k 64]", "f8e8m0[i 3, 2]", "f8e4m3[j 5, k 64]", "f8e8m0[j 5, 2]")
PAIRS = ("u8[i 3, 32]", "f8e8m0[i 3, 2]", "u8[j 5, 32]", "f8e8m0[j 5, 2]")
NV = ("u8[i 3, 32]", "f8e4m3[i 3, 4]", "u8[j 5, 32]", "f8e4m3[j 5, 4]")


def read(region: Region) -> ScaledProduct | str:
    found = read_contraction(region)
    assert not isinstance(found, str), found
    return scaled_product(region, found)


@pytest.mark.parametrize(
    ("types", "run", "size", "expected"),
    [(MX, 1, 32, (f8e4m3, f8e8m0)), (PAIRS, 32, 32, (f4e2m1, f8e8m0)), (PAIRS, 16, 32, (f4e2m1, f8e8m0)), (NV, 16, 16, (f4e2m1, f8e4m3))],
)
def test_factors_are_read(types: tuple[str, str, str, str], run: int, size: int, expected: tuple[object, object]) -> None:
    codes = (BYTES.format("%a"), BYTES.format("%b")) if run == 1 else (pair("%a", run), pair("%b", run))
    found = read(posed(factor(codes[0], "%s", "i", size=size), factor(codes[1], "%t", "j", size=size), types))
    assert isinstance(found, ScaledProduct), found
    for side, name, row in ((found.left, "a", "i"), (found.right, "b", "j")):
        assert (side.dtype, side.scale.dtype, side.run, side.block, side.codes.operand) == (*expected, run, size, name)
        assert side.scale.subscripts == (dims.symbol(row), dims.symbol(BLOCK))
        # Every byte is read once, in the order of memory.
        places = [dims.evaluate(side.codes.subscripts[1], {PLACE: place}) for place in range(64 if run == 1 else 32)]
        assert places == list(range(len(places)))


def test_other_floats_of_eight_bits() -> None:
    types = tuple(each.replace("f8e4m3", "f8e5m2") for each in MX)
    found = read(posed(factor(BYTES.format("%a"), "%s", "i", size=32), factor(BYTES.format("%b"), "%t", "j", size=32), types))  # type: ignore[arg-type]
    assert isinstance(found, ScaledProduct) and found.left.dtype == f8e5m2


LEFT, RIGHT = factor(pair("%a", 32), "%s", "i", size=32), factor(pair("%b", 32), "%t", "j", size=32)


@pytest.mark.parametrize(
    ("left", "right", "types", "why"),
    [
        (LEFT, factor(pair("%b", 16), "%t", "j", size=32), PAIRS, "the other f4e2m1"),
        (LEFT, factor(pair("%b", 32), "%t", "j", size=32, half="f32(0.25)"), PAIRS, "multiplied by 0.5 as well"),
        (factor(pair("%a", 32), "%s", "i", size=16), RIGHT, ("u8[i 3, 32]", "f8e8m0[i 3, 4]", *PAIRS[2:]), "not made of small floats"),
        (factor(pair("%a", 32, "4*((k % 2))"), "%s", "i", size=32), RIGHT, PAIRS, "not made of small floats"),
        (factor(pair("%a", 32, "0"), "%s", "i", size=32), RIGHT, PAIRS, "not made of small floats"),
        (
            factor(BYTES.format("%a"), "%s", "i", size=32),
            RIGHT,
            (*MX[:2], *PAIRS[2:]),
            "one factor is f8e4m3 with f8e8m0, the other f4e2m1",
        ),
        ("cast(%a[i, k], f32)", factor(BYTES.format("%b"), "%t", "j", size=32), MX, "not made of small floats"),
        (
            factor("cast(%a[r, k], f32)", "%s", "i", size=32),
            factor(BYTES.format("%b"), "%t", "j", size=32),
            ("f16[i 3, k 64]", *MX[1:]),
            "not made of small floats",
        ),
        (
            "mul(cast(%a[i, k], f32), cast(%s[i, k], f32))",
            factor(BYTES.format("%b"), "%t", "j", size=32),
            (MX[0], "f8e8m0[i 3, k 64]", *MX[2:]),
            "not made of small floats",
        ),
    ],
)
def test_what_is_none(left: str, right: str, types: tuple[str, str, str, str], why: str) -> None:
    assert why in str(read(posed(left, right, types)))


def test_a_row_is_added() -> None:
    text = """region @r(%x: f8e4m3[2, 32], %s: f8e8m0[2], %w: f8e4m3[j 5, k 64], %t: f8e8m0[j 5, 2], %b: f32[j 5]) -> %y: f32[j 5] {
      axes j: 5, k: 64
      %sum = sum k: mul({left}, mul(cast(%w[j, k], f32), cast(%t[j, (k // 32)], f32))) : f32[j]
      %shifted = add(%sum, %b[j]) : f32[j]
      %y[j] = %shifted
    }"""
    region = parse_region(text.replace("{left}", "mul(cast(%x[(k // 32), (k % 32)], f32), cast(%s[(k // 32)], f32))"))
    found = read_contraction(region)
    assert not isinstance(found, str) and found.rows == ()
    after = with_row(region, found)
    again = read_contraction(after)
    assert not isinstance(again, str) and [after.axis(name).extent for name in again.rows] == [1]
    assert isinstance(scaled_product(after, again), ScaledProduct)
    assert (after.inputs, after.outputs) == (region.inputs, region.outputs)
    random = np.random.default_rng(0)
    arrays = {o.name: random.standard_normal([dims.number(n) for n in o.type.shape]).astype(np.float32) for o in region.inputs}
    arrays = {
        o.name: (np.abs(arrays[o.name]) if o.type.dtype == f8e8m0 else arrays[o.name]).astype(o.type.dtype.numpy) for o in region.inputs
    }
    np.testing.assert_array_equal(run_region(after, arrays)["y"], run_region(region, arrays)["y"])
