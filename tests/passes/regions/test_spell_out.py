"""Functions spelled out: the same bytes as the primitive, on all numbers that matter, wherever they stand in a region."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.expression import Apply
from ourcc.ir.region import walk
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.text import parse_region
from ourcc.ir.scalar import evaluate
from ourcc.ir.target import gpu_target
from ourcc.ir.types import f4e2m1
from ourcc.passes.regions.spell_out import INSTRUCTIONS, spell_out

STORED = """region @r(%x: f32[i 4096], %z: f32[i 4096]) -> %y: u8[i 4096] {
  axes i: 4096
  %y[i] = e2m1x2(%x[i], %z[i])
}"""
FOLDED = """region @r(%x: f32[i 64, j 64], %z: f32[i 64]) -> %y: u8[i 64] {
  axes i: 64, j: 64
  %t = max j: e2m1x2(%x[i, j], cast(e2m1x2(%z[i], %x[i, j]), f32)) : u8[i]
  %y[i] = bit_xor(%t, e2m1x2(%z[i], %z[i]))
}"""


def numbers(seed: int, count: int) -> np.ndarray:
    """Quarters and their neighbours, zeros, infinities, NaN of both signs, and drawn ones of any size."""
    random = np.random.default_rng(seed)
    quarters = np.arange(-32, 33, dtype=np.float32) / 4
    near = [np.nextafter(quarters, np.float32(side)) for side in (-9, 9)]
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 2.0**-126, 3e38, -3e38], np.float32)
    wide = random.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    usual = (random.standard_normal(count) * 3).astype(np.float32)
    drawn = np.where(random.random(count) < 0.5, wide, usual)
    return random.permutation(np.concatenate([quarters, *near, special, -special, drawn])[:count]).astype(np.float32)


def test_bytes_are_those_of_the_primitive() -> None:
    region = parse_region(STORED)
    after = spell_out(region)
    assert not any(isinstance(part, Apply) and part.primitive in INSTRUCTIONS for s in after.body for part in walk(s.value))
    for seed in range(4):
        x, z = numbers(seed, 4096), numbers(seed + 9, 4096)
        found = run_region(after, {"x": x, "z": z})["y"]
        np.testing.assert_array_equal(found, evaluate("e2m1x2", x, z))


def test_folds_and_functions_of_functions() -> None:
    region = parse_region(FOLDED)
    arrays = {"x": numbers(1, 4096).reshape(64, 64), "z": numbers(2, 64)}
    np.testing.assert_array_equal(run_region(spell_out(region), arrays)["y"], run_region(region, arrays)["y"])


@pytest.mark.parametrize(("target", "known"), [("sm_90a", False), ("sm_100a", True)])
def test_a_target_with_the_instruction_keeps_it(target: str, known: bool) -> None:
    region = parse_region(STORED)
    assert (spell_out(region, gpu_target(target).instructions) == region) is known


def test_the_primitive_is_the_format_itself() -> None:
    x, z = numbers(3, 4096), numbers(4, 4096)
    with np.errstate(over="ignore"):
        low, high = (np.clip(np.where(np.isnan(each), 6, each), -6, 6).astype(f4e2m1.numpy).view(np.uint8) for each in (x, z))
    np.testing.assert_array_equal(evaluate("e2m1x2", x, z), low | high << 4)
