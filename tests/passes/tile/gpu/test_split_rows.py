"""Few long rows in parts: how many launches they are, and rows that parts could get wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ourcc.ir.graph.reference import judge
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS
from ourcc.ir.region.interpret import run_region
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.types import f64
from ourcc.passes.tile.gpu.split_rows import SplitRows
from ourcc.passes.tile.schedule import Match

SM_90A = gpu_target("sm_90a")
SIZES = {"B": 3, "S": 1, "U": 1}


def program_of(problem: Any) -> Any:
    match = SplitRows().match(problem, SM_90A)
    assert isinstance(match, Match), match
    return match.strategy.tile(match, next(match.strategy.space(match, SM_90A)), SM_90A)


@pytest.mark.parametrize(
    ("name", "launches"), [("softmax_few", 2), ("softmax_few_f16", 2), ("logsumexp_few", 2), ("layer_norm_long", 2), ("sum_few", 2)]
)
def test_a_fold_with_a_base_comes_with_that(name: str, launches: int, cases: dict[str, Any]) -> None:
    assert len(program_of(cases[name].problem()).launches) == launches


def rows(length: int) -> np.ndarray:
    """Three rows at a time that parts could get wrong: parts of -inf alone, one number far away, infinities, NaN, a mean far from 0."""
    random = np.random.default_rng(3)
    x = random.standard_normal((12, length))
    x[0, : length // 2] = -np.inf
    x[1] = -np.inf
    x[2, 7] = np.inf
    x[3, 7] = np.nan
    x[4] = -np.inf
    x[4, -1] = -1e30
    x[5] *= 1e30
    x[6] = 3.25
    x[7] = x[7] * 1e-3 + 1000
    x[8, : length // 2] += 500
    x[9] = np.where(np.arange(length) < 9, -1e4, 80)
    x[10] *= 1e-30
    x[11] = 0
    return x.astype(np.float32)


@pytest.mark.parametrize("name", ["softmax_few", "logsumexp_few", "layer_norm_long"])
def test_rows_that_parts_could_get_wrong(name: str, cases: dict[str, Any], answered: Callable[..., Any]) -> None:
    case = cases[name]
    problem, (_, (_, length)) = case.problem(), case.operands[0]
    program, judged = program_of(problem), answered(case)
    (first, *others), types = judged.problem.region.inputs, case.types()
    given = rows(length)
    for n in range(0, len(given), 3):
        if name == "layer_norm_long" and n in (0, 3):
            continue  # no variance
        arrays = {first.name: given[n : n + 3], **{o.name: judged.given[o.name] for o in others}}
        wide = {key: array.astype(np.float64) for key, array in arrays.items()}
        region = region_of(OPS[case.op], types, case.attrs)
        exact = region_of(OPS[case.op], [replace(kind, dtype=f64) for kind in types], case.attrs)
        assert region is not None and exact is not None
        with np.errstate(all="ignore"):
            got = run(program, arrays, SIZES, problem.symbols)
            (wanted,), (best,) = run_region(region, arrays).values(), run_region(exact, wide).values()
        (output,) = (operand.name for operand in problem.region.outputs)
        verdict = judge(got[output].reshape(wanted.shape), wanted, best)
        assert verdict.passed, (n, verdict.reason)
