"""What importers build alike is left out where it would change nothing, and is one op where it would."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ourcc.compiler.importers import moves
from ourcc.ir import dims
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.types import TensorType, f16, f32

B = dims.symbol("B")
Move = Callable[[Builder, Value], Value]

CASES: list[tuple[str, Move, Move]] = [
    ("cast", lambda b, x: moves.cast(b, x, f32), lambda b, x: moves.cast(b, x, f16)),
    ("reshape", lambda b, x: moves.reshape(b, x, [B, 2, 3]), lambda b, x: moves.reshape(b, x, [B, 6])),
    ("broadcast_to", lambda b, x: moves.broadcast(b, x, (B, 2, 3)), lambda b, x: moves.broadcast(b, x, (4, B, 2, 3))),
    ("transpose", lambda b, x: moves.transpose(b, x, [0, 1, 2]), lambda b, x: moves.transpose(b, x, [1, 0, 2])),
    ("slice", lambda b, x: moves.slice_axis(b, x, 2, 0, 3), lambda b, x: moves.slice_axis(b, x, 2, 1, 2)),
    ("slice", lambda b, x: moves.slice_axis(b, x, 0, 0, B), lambda b, x: moves.slice_axis(b, x, 2, 2, 3, -1)),
]


@pytest.mark.parametrize(("op", "nothing", "something"), CASES, ids=[case[0] for case in CASES])
def test_what_moves_nothing_is_left_out(op: str, nothing: Move, something: Move) -> None:
    module, graph = Module("m"), Graph("main")
    module.functions["main"] = graph
    module.declare("B", 1, 8)
    x = graph.add_input("x", TensorType(f32, (B, 2, 3)))
    b = Builder(module, graph)
    assert nothing(b, x) is x and graph.last is None
    made = something(b, x)
    assert made is not x and [each.name for each in graph] == [op]
