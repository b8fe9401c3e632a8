"""What `make gpu` measured on devices, by class and by problem, beside what is estimated now and beside eager torch's kernels."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class Measured:
    """Microseconds of a problem's kernels on a device, ours and eager torch's, and what was estimated of the same kernels."""

    group: str
    problem: str
    machine: str
    ours: float
    eager: float
    estimated: float


def measured(machine: str) -> list[Measured]:
    """What is recorded of a machine; nothing if it was never at hand."""
    path = RESULTS / f"gpu_{machine.lower()}.json"
    if not path.exists():
        return []
    rows = json.loads(path.read_text(encoding="utf-8"))["problems"]
    return [
        Measured(
            each["group"],
            each["problem"],
            machine,
            sum(each["ours"].values()),
            sum(each["eager"].values()),
            sum(kernel["us"] for kernel in each["kernels"]),
        )
        for each in rows
        if each.get("ours") and each.get("eager")
    ]


def summary(known: Iterable[Measured]) -> str:
    """Classes: eager torch's time over ours, both measured, and how far estimates of the same kernels were from it."""
    known = list(known)
    lines = [
        "| class | machine | problems | eager over ours: mean | least | at | estimated over measured |",
        "|---|---|---|---|---|---|---|",
    ]
    for group, machine in dict.fromkeys((each.group, each.machine) for each in known):
        inside = [each for each in known if (each.group, each.machine) == (group, machine)]
        worst = min(inside, key=lambda each: each.eager / each.ours)
        off = sorted(each.estimated / each.ours for each in inside)
        mean = geometric_mean(each.eager / each.ours for each in inside)
        shown = (
            group,
            machine,
            len(inside),
            f"{mean:.2f}",
            f"{worst.eager / worst.ours:.2f}",
            worst.problem,
            f"{off[0]:.2f} to {off[-1]:.2f}",
        )
        lines.append("| " + " | ".join(map(str, shown)) + " |")
    return "\n".join(lines)


def table(known: Iterable[Measured], rows: Iterable[Mapping[str, Any]]) -> str:
    """Problems: what is estimated of today's kernels beside what was measured of the kernels of that day."""
    now = {(row["group"], row["problem"], row["machine"]): row["us"] for row in rows if "us" in row}
    lines = [
        "| problem | machine | estimated now, us | measured then, us | eager then, us | eager over ours |",
        "|---|---|---|---|---|---|",
    ]
    for each in known:
        us = now.get((each.group, each.problem, each.machine), "-")
        shown = (each.machine, us, f"{each.ours:.1f}", f"{each.eager:.1f}", f"{each.eager / each.ours:.2f}")
        lines.append(f"| {each.group}: {each.problem} | " + " | ".join(map(str, shown)) + " |")
    return "\n".join(lines)
