"""What `make bench-lm` shall show (issue 10): ratios over the best peer and shares of the machine's rates, held against goals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bench_goals import RATES, Miss, best, ratio

Row = Mapping[str, Any]

OVER_PEER = {"first token": 1.3, "next token": 2.0}
"""Times the best peer: behind a prompt of PROMPT tokens, and SmolLM2's tokens one by one on one thread. Nobody is faster anywhere."""
PROMPT, PRODUCTS = 512, 0.80
"""Behind so many tokens: the share of what the model's products alone cost at the measured rate."""
READ = {("smollm2", "a8"): 0.60, ("smollm2", "exact"): 0.40, ("1b", "a8"): 0.80, ("1b", "exact"): 0.80, ("1b", "bf16"): 0.80}
"""The share of the read rate that one token at a time reaches on one thread, by model and kind of ours."""
BATCH, TIMES = 16, {"bf16": 5.5, "int8": 5.5, "int4": 3.3}
"""Tokens a second of so many sequences over those of one, by the format of a model larger than any cache."""
LOAD = 0.2
"""Seconds for each GB of a file that was verified before."""
KIND_RATE = {"exact": "f32", "a8": "int8", "a8 bf16": "int8", "bf16": "bf16"}


def kinds(row: Row) -> list[Mapping[str, Any]]:
    """Ours that ran and answered right."""
    return [each for each in row["contenders"] if each["side"] == "ours" and "refused" not in each and not each["wrong"]]


def share(row: Row, mine: Mapping[str, Any]) -> float | None:
    """Of the rate that bounds the row: products behind a prompt, bytes behind each next token; one thread's alone."""
    if row["threads"] != 1:
        return None
    seconds = mine["minimum_ms"] * 1e-3
    if row["what"] == "next token":
        return float(mine["needed_bytes"] / seconds / (row["rates"]["read_gbytes_per_second"] * 1e9))
    name = next((name for name in RATES[KIND_RATE[mine["kind"]]] if name in row["rates"]), None)
    return None if name is None else float(row["operations"] / seconds / (row["rates"][name] * 1e9))


def missed(row: Row, rows: Iterable[Row] = ()) -> list[Miss]:
    """What a row misses of its goals; `rows` are all, among which that of one sequence is."""
    reached, found = ratio(row), []
    if not kinds(row):
        return [Miss("answer", "there is no right answer of ours")]
    if reached is not None:
        goal = goal_of(row)
        if reached < goal:
            found.append(Miss("floor" if goal == 1 else "ratio", f"{reached:.2f} of {goal:.2f}"))
    for mine in kinds(row):
        least, part = share_goal(row, mine["kind"]), share(row, mine)
        if least is not None and part is not None and part < least:
            found.append(Miss("share", f"{mine['kind']} {part:.0%} of {least:.0%}"))
    times, goal = gained(row, rows), TIMES.get(row["format"])
    if times is not None and goal is not None and times < goal:
        found.append(Miss("batch", f"{times:.1f} of {goal:.1f} times one sequence"))
    return found


def goal_of(row: Row) -> float:
    """How many times as fast as the best peer ours shall be."""
    if row["what"] == "first token":
        return OVER_PEER["first token"] if row["size"] == PROMPT else 1.0
    return OVER_PEER["next token"] if (row["model"], row["batch"], row["threads"]) == ("smollm2", 1, 1) else 1.0


def share_goal(row: Row, kind: str) -> float | None:
    """The share that is enough; None where there is no goal."""
    if row["what"] == "first token":
        return PRODUCTS if row["size"] == PROMPT else None
    return READ.get((row["model"], kind)) if row["batch"] == 1 else None


def gained(row: Row, rows: Iterable[Row]) -> float | None:
    """How many times as many tokens a second our best makes as it makes for one sequence; None but for BATCH sequences on one thread."""
    if (row["what"], row["batch"], row["threads"]) != ("next token", BATCH, 1):
        return None
    same = ("model", "format", "what", "size", "threads")
    one = next((each for each in rows if each["batch"] == 1 and all(each[name] == row[name] for name in same)), None)
    mine, alone = best(row, "ours"), None if one is None else best(one, "ours")
    return None if mine is None or alone is None else float(mine["tokens_per_second"] / alone["tokens_per_second"])


def load_missed(load: Mapping[str, Any]) -> list[Miss]:
    """What the loading of a verified file misses."""
    allowed = LOAD * load["gbytes"]
    return [Miss("load", f"{load['again_s']:.2f} s of {allowed:.2f}")] if load["again_s"] > allowed else []
