"""Steps of coded factors in parts: what is loaded how often, and which factors have no parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ourcc.ir import dims
from ourcc.ir.region.text import parse_region
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.program import For, Join, Let, Load, Rename, walk
from ourcc.passes.tile.gpu.parted import FIELDS
from ourcc.passes.tile.gpu.tensor import Tensor
from ourcc.passes.tile.schedule import Match, Problem

SM_90A = gpu_target("sm_90a")


def steps(problem: Any) -> tuple[list[Any], dict[str, int]]:
    """The parts of values in the loop over k, and the extents of tile axes that are declared there."""
    match = Tensor().match(problem, SM_90A)
    assert isinstance(match, Match)
    schedule = next(s for s in match.strategy.space(match, SM_90A) if s["k"] == 64 and not s["decoded"])
    (launch,) = match.strategy.tile(match, schedule, SM_90A).launches
    (loop,) = (statement for statement in launch.body if isinstance(statement, For))
    values = [part for statement in loop.body if isinstance(statement, Let) for part in walk(statement.value)]
    return values, {statement.name: statement.extent for statement in loop.body if hasattr(statement, "extent")}


@pytest.mark.parametrize(
    ("words", "joins", "extents"), [("int4-weight", 1, [2, 2, 16]), ("int2-weight", 3, [2, 2, 2, 8]), ("mxfp8-weight", 0, [2, 32])]
)
def test_bytes_and_scales_are_loaded_once(words: str, joins: int, extents: list[int], coded: Callable[..., Any]) -> None:
    values, axes = steps(coded(words, 64, 64, 256).problem)
    assert sum(isinstance(value, Join) for value in values) == joins <= FIELDS
    assert sorted(axes.values()) == extents
    (merged,) = (value for value in values if isinstance(value, Rename))
    assert set(merged.before) == set(axes) and len(merged.after) == 1
    loads = {value for value in values if isinstance(value, Load)}
    assert len(loads) == 3
    # A scale's tile has no lane for each code.
    assert min(len(load.type.axes) for load in loads) == 2


def test_a_scale_of_more_than_a_step_is_one_number_in_it(coded: Callable[..., Any]) -> None:
    values, _ = steps(coded("fp8-block-weight", 64, 64, 256).problem)
    loads = {value for value in values if isinstance(value, Load)}
    assert sorted(len(load.type.axes) for load in loads) == [0, 2, 2]


def test_codes_without_groups_have_no_parts(coded: Callable[..., Any]) -> None:
    values, axes = steps(coded("int8-weight", 64, 64, 256).problem)
    assert not axes and not any(isinstance(value, Rename) for value in values)


def test_what_is_only_loaded_has_no_parts() -> None:
    text = """region @r(%x: bf16[i 64, h 8, d 32], %w: bf16[j 64, k 256]) -> %y: f32[i 64, j 64] {
  axes i: 64, j: 64, k: 256
  %t = sum k: mul(cast(%x[i, k // 32, k % 32], f32), cast(%w[j, k], f32)) : f32[i, j]
  %y[i, j] = %t
}"""
    values, axes = steps(Problem(parse_region(text), dims.NO_FACTS, {}))
    assert not axes and not any(isinstance(value, Rename) for value in values)
