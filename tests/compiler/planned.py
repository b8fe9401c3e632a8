"""What tests ask of a plan: its answers, by the interpreters of plans and tile programs, as near as the model's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ourcc.compiler.backends.built import pack
from ourcc.ir.graph import Module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.plan.interpret import run_plan
from ourcc.passes.lower.build_plan import Lowered


def check_plan(module: Module, found: Lowered, given: Sequence[np.ndarray[Any, Any]]) -> None:
    """AssertionError with the judge's reason where an answer is wrong."""
    constants = {name: pack(how, module) for name, how in found.plan.constants.items()}
    with np.errstate(all="ignore"):
        got = run_plan(found.plan, found.kernels, constants, given)
        for result, step, exact in zip(got, interpret(module, given), interpret(module, given, wide=True), strict=True):
            verdict = judge(result, step, exact)
            assert verdict.passed, verdict.reason
