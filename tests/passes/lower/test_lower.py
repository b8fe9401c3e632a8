"""Lowering checks the plan that it made: one that is wrong is the compiler's own fault, and never leaves it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ourcc.compiler.pipeline import lower
from ourcc.compiler.targets.registry import TARGETS
from ourcc.ir.errors import InternalError
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.scan import parse_type
from ourcc.passes.lower import lower as lowering


def products() -> Module:
    module = Module("m")
    graph = Graph("main")
    module.functions["main"] = graph
    builder = Builder(module, graph)
    weight = module.add_constant("w", np.eye(8, dtype=np.float32))
    x = graph.add_input("x", parse_type("f32[3, 8]"))
    graph.set_outputs([builder.matmul(builder.matmul(x, weight), weight)])
    return module


@pytest.mark.parametrize("target", ["native", "sm_90a"])
def test_a_wrong_plan_is_an_internal_error(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build = lowering.build_plan

    def forgetful(*arguments: Any) -> Any:
        made = build(*arguments)
        return replace(made, steps=made.steps[1:])

    lower(products(), TARGETS[target])
    monkeypatch.setattr(lowering, "build_plan", forgetful)
    with pytest.raises(
        InternalError, match=r"plan of main for [\w-]+ is wrong: step 0 .launch kernel_0.: buffer b\d is read, and has not been written"
    ):
        lower(products(), TARGETS[target])
