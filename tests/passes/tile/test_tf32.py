"""Products of float32 as one product of tf32: every dot of a program that takes three, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ourcc.ir.tile.parse import parse
from ourcc.ir.tile.program import Dot, Full, If, Let, TileApply, TileType, statements, walk
from ourcc.ir.tile.text import text
from ourcc.ir.types import boolean, f32
from ourcc.passes.tile.tf32 import in_tf32, multiplies_in_tf32

PROGRAMS = Path(__file__).parents[2] / "ir" / "tile" / "programs"


def test_a_dot_in_a_loop_is_one_product() -> None:
    before = parse((PROGRAMS / "split_k.tile").read_text())
    after = in_tf32(before)
    assert text(after) == text(before).replace("precision = tf32x3", "precision = tf32") != text(before)
    assert [multiplies_in_tf32(launch) for launch in after.launches] == [True, False]
    assert not any(multiplies_in_tf32(launch) for launch in before.launches)
    assert in_tf32(after) == after


def test_a_dot_inside_a_value_and_a_condition_is_found_and_exact_ones_stay() -> None:
    program = parse((PROGRAMS / "split_k.tile").read_text())
    lets = (s.value for s in statements(program.launches[0].body) if isinstance(s, Let))
    dot = next(value for value in lets if isinstance(value, Dot))
    exact = replace(dot, precision="exact", left_scale=Full(2.0, dot.type))
    inner = If(Full(True, TileType(boolean, ())), (Let("sum", TileApply("add", (dot, exact), f32, type=dot.type)),))
    nested = replace(program, launches=(replace(program.launches[0], body=(inner,)),))
    (launch,) = in_tf32(nested).launches
    (held,) = (s.value for s in statements(launch.body) if isinstance(s, Let))
    assert [part.precision for part in walk(held) if isinstance(part, Dot)] == ["tf32", "exact"] and multiplies_in_tf32(launch)
    assert isinstance(held, TileApply) and held.args[1] == exact


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.tile")), ids=lambda path: path.stem)
def test_what_multiplies_nothing_is_left(path: Path) -> None:
    program = parse(path.read_text())
    if "tf32x3" not in text(program):
        assert in_tf32(program) == program
