"""Rows of kernels for GPUs: rooflines at the rate of each format, predictions as they are, a board's own figures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ourcc
from ourcc.compiler.backends import cuda
from ourcc.compiler.report.kernels import kernel_table
from ourcc.ir.dims import NO_FACTS
from ourcc.ir.workload import default_workload

NOTHING = default_workload(NO_FACTS)


class Product(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y


class Sum(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def row(module: nn.Module, target: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Any:
    exported = torch.export.export(module, (torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)))
    contents = ourcc.build(exported, targets=[target], tune="off").contents
    (rows,) = contents.report["kernels"].values()
    (found,) = rows
    assert list(contents.parts) == ["sm_90a" if target in ("h100", "h200") else "sm_100a"]
    return found


@pytest.mark.parametrize(("dtype", "seconds"), [(torch.bfloat16, 2 * 1024**3 / 989e12), (torch.float32, 2 * 1024**3 * 3 / 494e12)])
def test_the_roofline_is_that_of_the_format(dtype: torch.dtype, seconds: float) -> None:
    """Before, both were held against tf32: bf16 seemed twice as near to its roofline, and its prediction could not be shorter."""
    found = row(Product(), "h200", (1024, 1024), dtype)
    assert found["roofline"] == pytest.approx(1e6 * seconds / found["predicted_us"], rel=0.02)


def test_a_board_has_predictions_of_its_own() -> None:
    """256 MiB are brought and half as much is written: memory takes 1.43 times as long on H100 as on H200."""
    times = {board: row(Sum(), board, (8192, 4096))["predicted_us"] for board in ("h100", "h200", "b200")}
    assert times["h100"] > 3 * 4 * 8192 * 4096 / 3.35e6 > times["h200"]
    assert 1.3 < times["h100"] / times["h200"] < 4.8 / 3.35 and 1.3 < times["h200"] / times["b200"] < 8 / 4.8


def test_predictions_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strategy's prediction below what memory allows is no longer raised to it: the row says so."""
    schedule = cuda.Scheduler._scheduled

    def hurried(self: Any, *arguments: Any) -> Any:
        made = schedule(self, *arguments)
        return cuda.replace(made, cost=made.cost / 100)

    usual = row(Sum(), "h200", (8192, 4096))
    monkeypatch.setattr(cuda.Scheduler, "_scheduled", hurried)
    found = row(Sum(), "h200", (8192, 4096))
    assert found["predicted_us"] == pytest.approx(usual["predicted_us"] / 100, rel=0.01) and found["roofline"] > 50
    assert any("a roofline above 1" in note for note in kernel_table("h200", [found], NOTHING).notes)
    assert not any("a roofline above 1" in note for note in kernel_table("h200", [usual], NOTHING).notes)


def test_launches_of_one_program_have_its_time_once() -> None:
    """A product in parts and the launch that adds them up: together they are predicted to take what the schedule does."""
    inputs = torch.zeros((64, 16384), dtype=torch.bfloat16), torch.zeros((16384, 64), dtype=torch.bfloat16)
    (rows,) = ourcc.build(torch.export.export(Product(), inputs), targets=["h100"], tune="off").contents.report["kernels"].values()
    parts, sums = rows
    assert parts["strategy"] == sums["strategy"] and parts["strategy"].startswith("split_k")
    assert parts["share"] == sums["share"] == 0.5 and parts["predicted_us"] < 40
    assert 2 * parts["megaflop"] == pytest.approx(2 * 64 * 64 * 16384 / 1e6, rel=0.01)
