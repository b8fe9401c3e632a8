"""Undecoded products: coded factors are replaced by plain ones of the other factor's dtype, and prices of both compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ourcc.ir import dims
from ourcc.ir.region import Load
from ourcc.ir.region.text import parse_region
from ourcc.ir.target import gpu_target
from ourcc.ir.types import bf16
from ourcc.passes.lower.schedule import Scheduler, cheapest
from ourcc.passes.regions.contraction import read_contraction, unwidened
from ourcc.passes.tile.gpu import STRATEGIES
from ourcc.passes.tile.gpu.undecoded import undecoded
from ourcc.passes.tile.schedule import Problem

SM_90A = gpu_target("sm_90a")


def price(problem: Problem) -> float:
    return Scheduler(STRATEGIES, SM_90A, cheapest(SM_90A), lambda region, constants: {}).price(problem)


@pytest.mark.parametrize("words", ["int8-weight", "int4-weight", "nvfp4-weight", "2:4 none", "2:4 int8-weight", "2:4 fp8-weight"])
def test_a_coded_factor_becomes_a_plain_one(words: str, coded: Callable[..., Any]) -> None:
    problem = coded(words, 24, 48, 512).problem
    found = undecoded(problem)
    assert found is not None and found.dtype == bf16
    plain = read_contraction(found.problem.region)
    assert not isinstance(plain, str)
    factors = [unwidened(value) for value in (plain.left, plain.right)]
    assert all(isinstance(factor, Load) and factor.dtype == bf16 for factor in factors)
    constants = [o for o in found.problem.region.inputs if o.name in found.problem.constants]
    sizes = [tuple(o.type.shape) for o in constants if o.type.rank == 2]
    assert sizes in ([(48, 512)], [(512, 48)])
    assert undecoded(found.problem) is None


def test_many_rows_are_longer_with_codes_and_few_are_not(coded: Callable[..., Any]) -> None:
    """Of one row the codes are read, of many they are expanded before."""
    ratios = []
    for rows in (1, 512):
        problem = coded("int4-weight", rows, 2048, 2048).problem
        found = undecoded(problem)
        assert found is not None
        ratios.append(price(problem) / price(found.problem))
    assert ratios[0] < 1 < ratios[1]


def test_what_is_no_product_of_a_coded_weight_is_left() -> None:
    texts = {
        "nothing is coded": "mul(cast(%x[i, k], f32), cast(%w[j, k], f32))",
        "both are computed": "mul(mul(cast(%x[i, k], f32), %s[i]), mul(cast(%w[j, k], f32), %s[j]))",
        "no product": "add(cast(%x[i, k], f32), cast(%w[j, k], f32))",
    }
    for what, value in texts.items():
        region = parse_region(
            "region @r(%x: bf16[i 8, k 64], %w: bf16[j 8, k 64], %s: f32[j 8]) -> %y: f32[i 8, j 8] {\n  axes i: 8, j: 8, k: 64\n"
            f"  %t = sum k: {value} : f32[i, j]\n  %y[i, j] = %t\n}}"
        )
        assert undecoded(Problem(region, dims.NO_FACTS, {}, frozenset({"w", "s"}))) is None, what
