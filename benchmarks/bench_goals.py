"""What `make bench-cpu` shall show (issue 9): ratios over the best peer and shares of the machine's rate, held against goals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]

FASTER_THAN_OWN = ("bert", "minilm")
"""Models whose int8 shall be OWN times as fast as our own float32."""
OWN = 2.5


@dataclass(frozen=True)
class Goal:
    """How many times as fast as the best peer: in the geometric mean, or `each` row; a row that reaches `share` of the rate is fine too."""

    ratio: float
    each: bool = False
    floor: float | None = None
    share: float | None = None
    share_depthwise: float | None = None

    def share_for(self, row: Row) -> float | None:
        """The share of the rate that is enough; models with depthwise convolutions have their own."""
        return self.share_depthwise if row["depthwise"] and self.share_depthwise is not None else self.share


def goal_of(precision: str, rates: Mapping[str, float]) -> Goal | None:
    """The goal on a machine of such rates; None where there is none."""
    if precision == "f32":
        return Goal(1.15, each=True, floor=1.0, share=0.90, share_depthwise=0.85)
    if precision == "bf16" and "bf16_matrix_gflops" in rates:
        return Goal(2.0, floor=1.3)
    if precision == "bf16" and "bf16_dot_gflops" in rates:
        return Goal(1.1, share=0.90)
    if precision == "int8":
        return Goal(1.5 if "int8_matrix_gops" in rates else 1.15)
    return None


RATES = {
    "f32": ("fma_gflops",),
    "bf16": ("bf16_matrix_gflops", "bf16_dot_gflops", "fma_gflops"),
    "int8": ("int8_matrix_gops", "int8_dot_gops", "fma_gflops"),
}
"""Whose share is told: the first that the machine has."""


def best(row: Row, side: str) -> Mapping[str, Any] | None:
    """The contender of a side that takes least, of those that ran and answered right."""
    ran = [each for each in row["contenders"] if each["side"] == side and "refused" not in each and not each["wrong"]]
    return min(ran, key=lambda each: each["minimum_ms"], default=None)


def ratio(row: Row, over: str = "peer") -> float | None:
    """How many times as long as our best the best of another side takes; None where one of them is missing."""
    mine, theirs = best(row, "ours"), best(row, over)
    return None if mine is None or theirs is None else float(theirs["minimum_ms"] / mine["minimum_ms"])


def share(row: Row) -> float | None:
    """Our best as a share of the machine's rate in the row's precision."""
    mine = best(row, "ours")
    rate = next((row["rates"][name] for name in RATES.get(row["precision"], ()) if name in row["rates"]), None)
    return None if mine is None or rate is None else float(row["gflop"] / (mine["minimum_ms"] * 1e-3) / rate)


@dataclass(frozen=True)
class Miss:
    """What a row misses, `ratio`, `floor`, `own` or `answer`, and by how much."""

    kind: str
    text: str


def missed(row: Row) -> list[Miss]:
    """What a row misses of its goal; nothing where it has none or reaches it."""
    goal = goal_of(row["precision"], row["rates"])
    if goal is None:
        return []
    reached, part, own, excuse = ratio(row), share(row), ratio(row, "reference"), goal.share_for(row)
    if reached is None:
        return [Miss("answer", "there is no right answer of ours, or of no peer")]
    found = []
    if reached < goal.ratio and (excuse is None or part is None or part < excuse):
        other = "" if excuse is None or part is None else f" and {part:.0%} of {excuse:.0%}"
        found.append(Miss("ratio", f"{reached:.2f} of {goal.ratio:.2f}{other}"))
    if goal.floor is not None and reached < goal.floor:
        found.append(Miss("floor", f"below {goal.floor:.2f}"))
    if row["precision"] == "int8" and row["model"] in FASTER_THAN_OWN and own is not None and own < OWN:
        found.append(Miss("own", f"{own:.2f} of {OWN:.2f} times our f32"))
    return found


def verdicts(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """For each precision and number of threads: the geometric mean over its rows, the least, whether the goal is met, what is missed."""
    grouped: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row["precision"], row["threads"]), []).append(row)
    return [_verdict(precision, threads, group) for (precision, threads), group in grouped.items()]


def _verdict(precision: str, threads: int, rows: Sequence[Row]) -> dict[str, Any]:
    goal = goal_of(precision, rows[0]["rates"])
    ratios = [found for row in rows if (found := ratio(row)) is not None]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
    found = {
        "precision": precision,
        "threads": threads,
        "rows": len(rows),
        "compared": len(ratios),
        "geometric_mean": None if mean is None else round(mean, 3),
        "least": round(min(ratios), 3) if ratios else None,
    }
    if goal is None:
        return found
    by_row = {f"{row['title']}, {row['size']}": missed(row) for row in rows}
    excused = {"ratio"} if mean is not None and mean >= goal.ratio and not goal.each else set()
    is_met = all(miss.kind in excused for misses in by_row.values() for miss in misses)
    told = {name: [miss.text for miss in misses] for name, misses in by_row.items() if misses}
    return found | {"goal": goal.ratio, "floor": goal.floor, "is_met": is_met, "missed": told}


OVER_F32 = {"int4-a8": 6.0, "int4-weight": 3.5}
"""How many times as fast as f32 one row shall be whose weights are larger than the last cache."""
FEW = 16
"""Rows up to which a product waits for its weights."""


def product_missed(format: str, row: Row, operations: float, rates: Mapping[str, float]) -> list[Miss]:
    """What a product of few rows with stored weights misses: `bytes` in `minimum_ms`, against what the machine reads and multiplies."""
    if row["rows"] > FEW:
        return []
    milliseconds = row["bytes"] / rates["read_gbytes_per_second"] / 0.85 * 1e-6
    if row["rows"] > 1:
        kind = "int8" if format == "int8" or format.endswith("a8") else "f32"
        rate = next(rates[name] for name in RATES[kind] if name in rates)
        milliseconds = max(milliseconds, operations / rate / 0.5 * 1e-6)
    found = []
    if row["minimum_ms"] > milliseconds:
        found.append(Miss("bound", f"{milliseconds / row['minimum_ms']:.2f} of what the machine allows"))
    if row["rows"] == 1 and row["times_as_fast_as_f32"] < OVER_F32.get(format, 0.0):
        found.append(Miss("own", f"{row['times_as_fast_as_f32']:.2f} of {OVER_F32[format]:.2f} times f32"))
    return found
