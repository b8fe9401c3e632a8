"""The sizes that schedules are chosen for where nothing is said: those of the graph's symbols, whatever a kernel calls them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from ourcc.compiler.backends.cpu import lower_cpu
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.target import AVX512
from ourcc.passes.lower.schedule import cheapest
from ourcc.passes.tile.schedule import Candidate, Problem


@pytest.mark.parametrize(("shape", "sizes", "points"), [("B, S", (1, 128), 0), ("S, B", (128, 1), 1)])
def test_a_sequence_is_long_wherever_it_stands(shape: str, sizes: tuple[int, int], points: int) -> None:
    text = f"""
module @m symbols {{ B in 1..32, S in 1..512 }} {{
  func @main(%x: f32[{shape}, 3], %y: f32[{shape}, 1]) -> f32[{shape}, 3] {{
    %z = add(%x, %y) : f32[{shape}, 3]
    %r = softmax(%z) {{axis = 0}} : f32[{shape}, 3]
    return %r
  }}
}}
"""
    met: list[Problem] = []

    def choose(problem: Problem, families: Iterator[Sequence[Candidate]]) -> Candidate:
        met.append(problem)
        return cheapest(AVX512)(problem, families)

    lower_cpu(parse_module(text), AVX512, choose)
    (problem,) = met
    assert tuple(problem.sizes.values()) == sizes
    # Where the kernel's own symbols have these sizes anyway, it is shared with other graphs.
    assert len(problem.points) == points
