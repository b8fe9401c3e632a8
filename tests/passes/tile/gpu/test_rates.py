"""The rate of a kernel's operations: that of the format it multiplies in, on each board as its maker says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ourcc.ir.target import gpu_target
from ourcc.ir.types import DTYPES, DType, f64
from ourcc.passes.tile.gpu import STRATEGIES
from ourcc.passes.tile.gpu.rates import operations_rate
from ourcc.passes.tile.schedule import matches


def rate(case: Any, target: str, strategy: str | None = None, in_tf32: bool = False) -> float:
    machine, problem = replace(gpu_target(target), in_tf32=in_tf32), case.problem()
    match = next(each for each in matches(STRATEGIES, problem, machine) if strategy in (None, each.strategy.name))
    return operations_rate(problem, next(iter(match.strategy.space(match, machine))), machine)


def of(case: Any, dtype: DType) -> Any:
    return replace(case, operands=tuple((dtype, shape) for _, shape in case.operands))


@pytest.mark.parametrize(
    ("dtype", "hopper", "blackwell"),
    [
        ("bf16", 989e12, 2250e12),
        ("f16", 989e12, 2250e12),
        ("i8", 1979e12, 4500e12),
        ("f32", 494e12 / 3, 1125e12 / 3),
        ("f64", 67e12, 37e12),
    ],
)
def test_products_go_at_the_rate_of_their_format(dtype: str, hopper: float, blackwell: float, cases: dict[str, Any]) -> None:
    case = of(cases["linear_i8" if dtype == "i8" else "linear_f16"], DTYPES[dtype])
    found = [rate(case, target, "tensor") for target in ("sm_90a", "h100", "b200")]
    assert found == pytest.approx([hopper, hopper, blackwell])


def test_float32_in_tf32_is_one_product(cases: dict[str, Any]) -> None:
    assert rate(cases["linear_f32"], "sm_90a", in_tf32=True) == pytest.approx(494e12)
    assert rate(cases["linear_bf16"], "sm_90a", in_tf32=True) == pytest.approx(989e12)


def test_what_is_no_product_goes_by_plain_arithmetic(cases: dict[str, Any]) -> None:
    for name in ("softmax", "layer_norm", "add_broadcast", "one_row_f32", "attention_one_row"):
        assert rate(cases[name], "sm_90a") == 67e12, name
    assert rate(of(cases["softmax"], f64), "b200") == 37e12


def test_attention_has_two_products(cases: dict[str, Any]) -> None:
    assert rate(cases["attention_causal_groups"], "sm_90a") == pytest.approx(989e12)
    assert rate(cases["attention"], "sm_90a") == pytest.approx(494e12 / 3)
