"""The rate of a kernel's operations: that of the format it multiplies in, on each board as its maker says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ourcc.ir.target import GPU_BOARDS, gpu_target
from ourcc.ir.types import DTYPES, DType, bf16, f32, f64, i64
from ourcc.passes.tile.gpu import STRATEGIES
from ourcc.passes.tile.gpu.rates import operations_rate
from ourcc.passes.tile.gpu.shape import memory_seconds, traffic
from ourcc.passes.tile.schedule import matches

from .conftest import Case, linear


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


def test_float32_in_tf32_is_predicted_as_one_product(cases: dict[str, Any]) -> None:
    """A large product takes less than half the time in the same tiles, of which then the cache decides."""
    case = linear(f32, 4096, 4096, 4096)
    problem = case.problem()
    costs = []
    for in_tf32 in (False, True):
        machine = replace(gpu_target("sm_90a"), in_tf32=in_tf32)
        match = next(each for each in matches(STRATEGIES, problem, machine) if each.strategy.name == "tensor")
        costs.append(match.strategy.cost(match, next(iter(match.strategy.space(match, machine))), machine))
    assert 2 < costs[0] / costs[1] < 3


def test_what_is_taken_from_a_table_is_what_moves(cases: dict[str, Any]) -> None:
    """Of a table of a gigabyte 8,192 rows of 8 KiB are read and written, not all of it: 128 MiB and the indices."""
    case = Case("take", ((bf16, (131_072, 4096)), (i64, (8192,))), {"axis": 0})
    assert traffic(case.problem()) == pytest.approx(2 * 2 * 8192 * 4096, rel=0.01)
    plain = linear(bf16, 64, 128, 256)
    assert traffic(plain.problem()) == 2 * (64 * 256 + 256 * 128 + 64 * 128)


def test_what_is_no_product_goes_by_plain_arithmetic(cases: dict[str, Any]) -> None:
    for name in ("softmax", "layer_norm", "add_broadcast", "one_row_f32", "attention_one_row"):
        assert rate(cases[name], "sm_90a") == 67e12, name
    assert rate(of(cases["softmax"], f64), "b200") == 37e12


def test_attention_has_two_products(cases: dict[str, Any]) -> None:
    assert rate(cases["attention_causal_groups"], "sm_90a") == pytest.approx(989e12)
    assert rate(cases["attention"], "sm_90a") == pytest.approx(494e12 / 3)


def test_few_rows_wait_for_what_is_on_its_way() -> None:
    """Eight rows read a matrix: with little on its way latency decides, in proportion; with much the memory's rate; with few rows of
    weights a program, fewer processors ask.
    """
    problem, h100 = linear(bf16, 8, 4096, 16384, transpose_b=True).problem(), gpu_target("h100")
    match = next(each for each in matches(STRATEGIES, problem, h100) if each.strategy.name == "tensor")

    def cost(**wanted: int) -> float:
        found = (s for s in match.strategy.space(match, h100) if wanted.items() <= dict(s.parameters).items())
        return match.strategy.cost(match, next(found), h100)

    small = {"m": 64, "n": 16, "warps": 4, "swap": 1}
    two, three = cost(**small, k=64, stages=2), cost(**small, k=64, stages=3)
    assert two == pytest.approx(16384 / 64 * 2 * h100.latency, rel=0.05)
    assert two / three == pytest.approx(2, rel=0.05)
    floor = traffic(problem) / h100.memory_rate
    assert floor < cost(**small, k=128, stages=6) < 1.5 * floor
    assert cost(**small, k=128, stages=6) < cost(**{**small, "m": 128}, k=128, stages=6)


def test_the_cache_has_a_rate_of_its_own() -> None:
    """Once it was reckoned as memory four times as fast, and H200's as faster than H100's, which has the same."""
    h100, h200 = gpu_target("h100"), gpu_target("h200")
    small, large = 10 * 2**20, 10**9
    assert memory_seconds(small, 1000, h100) == memory_seconds(small, 1000, h200) == pytest.approx(small / (5120 * 1.98e9))
    assert memory_seconds(large, 1000, h100) == pytest.approx(large / 3.35e12)
    assert all(machine.cache_rate > machine.memory_rate for machine in GPU_BOARDS.values())
