"""Rows of kernels for GPUs: rooflines at the rate of each format, predictions as they are, a board's own figures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ourcc
from ourcc.compiler.backends import cuda
from ourcc.compiler.report.kernels import bound_of, kernel_table
from ourcc.ir.dims import NO_FACTS
from ourcc.ir.region.cost import Cost
from ourcc.ir.workload import default_workload
from ourcc.passes.tile.gpu.shape import LAUNCH_SECONDS

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
    assert (parts["share"], sums["share"], sums["time_in"]) == (1, None, parts["kernel"]) and parts["predicted_us"] < 80
    assert parts["megaflop"] == pytest.approx(2 * 64 * 64 * 16384 / 1e6, rel=0.01) and sums["megaflop"] is sums["roofline"] is None
    # The first reads both factors and writes sums of so many parts, which the second reads.
    parted = int(parts["strategy"].partition("splits=")[2].partition(",")[0]) * 64 * 64 * 4
    assert parts["megabytes"] == pytest.approx((2 * 2 * 64 * 16384 + parted) / 1e6, abs=1e-3)
    assert sums["megabytes"] == pytest.approx((parted + 2 * 64 * 64) / 1e6, abs=1e-3)
    table = kernel_table("h100", rows, NOTHING)
    shown = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert shown[1]["predicted_us"] == f"in {parts['kernel']}" and shown[0]["predicted_us"] == parts["predicted_us"]
    assert [row["predicted_us"] for row in table.to_data()] == [parts["predicted_us"], None]
    assert table.to_data()[1]["time_in"] == parts["kernel"]
    assert f"one call: {parts['predicted_us']:.5g} us predicted" in table.notes


class Put(nn.Module):
    """Rows of a state that are written by their places, as a cache is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(4096, 256))

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        self.held.index_copy_(0, places, x)
        return self.held[:8] + 1


@pytest.mark.parametrize("rows", [1, 4])
def test_a_launch_that_changes_a_state_takes_no_less_than_a_launch(rows: int) -> None:
    """What is left of a copy that nobody makes moves few bytes; it is started like all others."""
    exported = torch.export.export(Put(), (torch.zeros(rows, 256), torch.arange(rows)))
    (found,) = ourcc.build(exported, targets=["h100"], tune="off").contents.report["kernels"].values()
    launched = [row for row in found if row["kind"] == "kernel" and row["calls"]]
    assert launched and all(row["time_in"] or row["predicted_us"] >= 1e6 * LAUNCH_SECONDS for row in launched)
    (put,) = (row for row in launched if row["source_ops"] == "put")
    assert put["strategy"].startswith("steps") and put["bound"] == "launch" and put["predicted_us"] < 3.2


@pytest.mark.parametrize(
    ("size", "dtype", "bound"), [(8192, torch.float32, "memory"), (4096, torch.bfloat16, "math"), (8, torch.bfloat16, "launch")]
)
def test_what_bounds_a_kernel(size: int, dtype: torch.dtype, bound: str) -> None:
    found = row(Sum() if bound == "memory" else Product(), "h100", (size, size), dtype)
    assert found["bound"] == bound and found["time_in"] is None


def test_what_neither_starting_nor_rates_explain_is_said_so() -> None:
    """Few tiles with long sums wait for their steps: memory and the instruction could do it in a fraction of the prediction."""
    small, rates = Cost(1e6, 1e6), (1e12, 1e12)
    assert bound_of(small, rates, 1e-5, 3e-6) == "other" and bound_of(small, rates, 1e-5, 4.5e-6) == "launch"
    assert bound_of(Cost(4e6, 5e6), rates, 1e-5, 0.0) == "memory" and bound_of(Cost(5e6, 4e6), rates, 1e-5, 0.0) == "math"


def test_of_steps_of_the_host_no_time_is_told() -> None:
    class Sorted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sort(x)[0] + 1

    exported = torch.export.export(Sorted(), (torch.ones(2, 2000),))
    for target in ("h100", "native"):
        (found,) = ourcc.build(exported, targets=[target], tune="off").contents.report["kernels"].values()
        (host,) = (row for row in found if row["kind"] == "host")
        assert host["kernel"] == "sort" and host["predicted_us"] is host["share"] is host["bound"] is None and host["megabytes"] > 0
        assert sum(row["share"] or 0 for row in found) == pytest.approx(1, abs=0.01)
