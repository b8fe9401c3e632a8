"""What an op is by itself: its kind by its region, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.types import TensorType, f32
from ourcc.passes.regions.facts import OpFacts, describe

MADE: dict[str, tuple[str, Callable[[Builder, Value], Any]]] = {
    "transpose": ("movement", lambda b, x: b.transpose(x, permutation=(1, 0))),
    "relu": ("map", lambda b, x: b.relu(x)),
    "exp": ("map", lambda b, x: b.exp(x)),
    "sum": ("reduce", lambda b, x: b.sum(x, axes=(1,))),
    "matmul": ("contract", lambda b, x: b.matmul(x, np.ones((8, 3), np.float32))),
    "cumsum": ("scan", lambda b, x: b.cumsum(x, axis=1)),
}


def facts_of(make: Callable[[Builder, Value], Any]) -> OpFacts:
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    made = make(Builder(module, graph), graph.add_input("x", TensorType(f32, (4, 8))))
    return describe(made.op, module.facts)


@pytest.mark.parametrize("name", MADE)
def test_the_kind_of_an_op(name: str) -> None:
    kind, make = MADE[name]
    found = facts_of(make)
    assert found.kind == kind and found.sums == (kind in ("contract", "reduce"))
    assert (found.moves is not None) == (kind == "movement") and found.is_plain == (kind in ("map", "movement"))
    assert found.writes_plainly and found.is_expensive == (name == "exp")


def test_rows_and_strides() -> None:
    assert facts_of(MADE["sum"][1]).rows == 4 and facts_of(MADE["relu"][1]).rows is None
    assert facts_of(MADE["transpose"][1]).is_strided
    assert not facts_of(lambda b, x: b.slice(x, starts=(0, 2), sizes=(4, 4), steps=(1, 1))).is_strided
