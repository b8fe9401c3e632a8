"""What a GPU measured of schedules: the record, today's choices beside it, and how results and lines are made."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from .scripts import BENCHMARKS, KERNELS, script

device, schedules, ours = script("device", KERNELS), script("schedules", KERNELS), script("ours", KERNELS)

RECORDED = json.loads((BENCHMARKS / "results" / "gpu_schedules_h100.json").read_text(encoding="utf-8"))
IN_CHUNKS = ("Llama-3-70B products", "down")
"""Sums of 28,672 terms were added up in chunks when they were timed; one accumulator takes them now, by another kernel."""
PRODUCTS = [
    row
    for row in RECORDED["problems"]
    if "products" in row["group"]
    and " 1 tokens" not in row["problem"]
    and not (row["group"] == IN_CHUNKS[0] and row["problem"].startswith(IN_CHUNKS[1]))
]
WORSE = 1.1


def test_the_record_is_whole() -> None:
    """Every schedule was timed or refused with a reason, none is wrong, and equal orders gave equal bits."""
    assert "H100" in RECORDED["device"] and len(RECORDED["problems"]) >= 60
    for row in RECORDED["problems"]:
        assert row["clock"] in ("events", "tracer") and row["eager"] > 0
        known = [each for each in row["schedules"] if "us" in each]
        assert known and all("us" in each or "refused" in each or "failed" in each for each in row["schedules"])
        # Weights in int4 are compared with those that are not.
        assert all(each["error"] <= (0.07 if "int4" in row["problem"] else 0.005) for each in known)
        bits: dict[str, set[int]] = {}
        for each in known:
            if row["clock"] == "tracer":
                bits.setdefault(each["order"], set()).add(each["bits"])
        assert all(len(found) == 1 for found in bits.values()), row["problem"]


@pytest.mark.parametrize("row", random.Random(2).sample(PRODUCTS, 5), ids=lambda row: f"{row['group']}, {row['problem']}")
def test_products_are_chosen_nearly_as_well_as_timing_would(row: dict[str, Any]) -> None:
    """A change of prices or of what is offered is held against times that were taken: the choice, or the next of those timed."""
    places = {(each.group, each.name): number for number, each in enumerate(ours.problems())}
    now = schedules.again(places[row["group"], row["problem"]], row, "sm_90a")["schedules"]
    known = [each for each in now if "us" in each]
    assert len(known) >= 3
    taken = next((each for each in known if each["chosen"]), min(known, key=lambda each: each["predicted"]))
    assert taken["us"] <= WORSE * min(each["us"] for each in known), taken["schedule"]


def test_bits_are_told_apart() -> None:
    one = torch.randn(7, 33, dtype=torch.bfloat16)
    other = one.clone()
    assert schedules.bits_of(one) == schedules.bits_of(other.t().contiguous().t())
    other[3, 4], other[3, 5] = one[3, 5].clone(), one[3, 4].clone()
    assert schedules.bits_of(one) != schedules.bits_of(other)
    assert schedules.bits_of(torch.tensor([0.0])) != schedules.bits_of(torch.tensor([-0.0]))


def test_lines_say_what_was_timed() -> None:
    def row(*found: dict[str, Any]) -> str:
        return schedules.line({"group": "g", "problem": "p", "eager": 3.0, "schedules": list(found)})

    a = {"schedule": "a", "predicted": 2.0, "chosen": True, "order": "x", "us": 4.0, "error": 0.0, "bits": 1}
    b = {"schedule": "b", "predicted": 8.0, "chosen": False, "order": "x", "us": 2.0, "error": 1e-3, "bits": 1}
    assert "chosen      4.0 2.00 of best, 1 orders, worst error 1.0e-03, predicted 1.41 of 2, b" in row(a, b)
    assert "DIFFER in bits: x" in row(a, b | {"bits": 2})
    assert "the choice was not timed, the next is      2.0" in row(a | {"us": 9.0, "predicted": 9.0, "chosen": False}, b)
    assert "nothing timed: it spills" in row({"schedule": "a", "predicted": 2.0, "chosen": True, "order": "x", "refused": "it spills"})


def test_a_run_begins_where_the_largest_buffer_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what the tracer tells, a filling of a smaller buffer is a kernel of the run."""

    def event(name: str, microseconds: float) -> Any:
        return SimpleNamespace(name=name, time_range=SimpleNamespace(elapsed_us=lambda: microseconds))

    traces = iter(
        ([event("fill", 100.0)], [event("late", 9.0), event("fill", 90.0), event("a", 2.0), event("fill", 3.0), event("a", 4.0)] * 2)
    )
    monkeypatch.setattr(device, "traced", lambda run: next(traces))
    runs = device.kernels_by_run(lambda: None, torch.empty(1))
    assert runs == [{"a": 6.0, "fill": 3.0, "late": 9.0}, {"a": 6.0, "fill": 3.0}]
