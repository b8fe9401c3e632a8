"""Ours beside the best of the peers: ratios of estimated times by class, the goals, published rates, and the picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log2
from statistics import geometric_mean
from types import MappingProxyType
from typing import Any

import hardware

GOAL, LEAST = 1.0, 0.85
"""The mean that each class should have, and what no problem should be below; peer's time over ours."""

PUBLISHED = (
    ("square products", "bf16 4096", "H100", "cuBLAS at 8192 x 8192 x 4096", 515.0, 2 * 4096.0**3),
    ("square products", "bf16 8192", "H100", "cuBLAS at 8192 x 8192 x 8192", 614.0, 2 * 8192.0**3),
    ("attention prefill", "D 128, 1 x 32 x 4096", "H100", "FlashAttention 3, D 128, 4096 keys", 590.0, 4 * 32 * 4096.0**2 * 128),
    ("attention prefill", "D 128, 1 x 32 x 4096, causal", "H100", "FlashAttention 3, D 128, 4096 keys", 590.0, 2 * 32 * 4096.0**2 * 128),
)
"""Group, problem, machine, whose rate it is, TFLOP/s and operations of the problem (tritonbench issue 894; the paper's figures)."""

STRANGE = 5.0
"""A peer that takes so many times as long has no kernel that was made for the problem: that is no comparison."""

LONGEST = 120
"""Characters of a peer's configuration that are shown."""

COLOURS = {"H100": "#3b6ea5", "H200": "#7a9cc4", "B200": "#c0632f"}
WIDTH, LEFT, LINE = 760, 230, 22


Key = tuple[str, str, str]
"""Group, problem, machine."""


def compared(
    rows: Iterable[Mapping[str, Any]], judged: Mapping[Key, Mapping[str, Any]], doubts: Mapping[Key, str] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Problems that a peer has kernels for, or the reason why there is no ratio.

    `doubts` says why an estimate of ours is not believed; peers' that are not are left out before.
    """
    found = []
    for row in rows:
        key = (row["group"], row["problem"], row["machine"])
        peers = judged.get(key)
        if peers is None:
            continue
        line: dict[str, Any] = dict(zip(("group", "problem", "machine"), key, strict=True))
        line |= {"estimator": peers.get("estimator", ""), "judged": peers["judged"], "whole": peers["whole"]}
        line |= {"peers": {name: each["us"] for name, each in peers["best"].items()}}
        if not peers["best"]:
            reasons = peers["refused"] or {"no peer has a kernel for it": 1}
            found.append(line | {"reason": "; ".join(reasons)[:200]})
        elif "us" not in row:
            found.append(line | {"reason": f"ours: {row['refused']}"})
        else:
            if (doubted := doubts.get(key)) is not None:
                found.append(line | {"reason": f"ours: {doubted}"})
                continue
            name = min(peers["best"], key=lambda each: peers["best"][each]["us"])
            best = peers["best"][name]
            if best["us"] > STRANGE * row["us"]:
                found.append(line | {"reason": f"{name} takes {best['us']} us, ours {row['us']}: it has no kernel made for this"})
                continue
            configuration = ", ".join(each["configuration"] for each in best["kernels"])
            found.append(
                line
                | {"us": row["us"], "peer": name, "peer us": best["us"], "ratio": round(best["us"] / row["us"], 3)}
                | {"ours bound": row["bound"], "configuration": f"{best['title']}; {configuration}"[:240]}
            )
    return found


def classes(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean and least ratio of each class on each machine, and by how much a goal is missed."""
    found = []
    for group, machine in dict.fromkeys((line["group"], line["machine"]) for line in lines):
        inside = [line for line in lines if (line["group"], line["machine"]) == (group, machine) and "ratio" in line]
        if not inside:
            continue
        mean = geometric_mean(line["ratio"] for line in inside)
        worst = min(inside, key=lambda line: line["ratio"])
        below = sum(line["ratio"] < LEAST for line in inside)
        found.append(
            {"group": group, "machine": machine, "problems": len(inside), "mean": round(mean, 3), "least": worst["ratio"]}
            | {"worst": worst["problem"], "below": below, "whole": all(line["whole"] for line in inside)}
            | {"mean missed by": max(0.0, round(GOAL - mean, 3)), "least missed by": max(0.0, round(LEAST - worst["ratio"], 3))}
        )
    return found


def page(lines: Sequence[Mapping[str, Any]], rows: Iterable[Mapping[str, Any]], estimator: str = "") -> str:
    """The part of the page that compares; peers that another estimator than this one judged have a star."""
    stale = [line for line in lines if line.get("estimator", "") != estimator]
    parts = [
        "## Beside peers",
        "Estimated time of the best peer over ours, by the same estimator: above 1 ours is faster. Peers are compiled by the same "
        "assembler, with pointers aligned to 16 bytes and Triton's fused multiplications and additions (ours may not fuse): Inductor's "
        "templates and fusions, Liger, conch (vLLM's paged attention), and for prefill the tutorial's attention as our own text has "
        "it, over its tiles. A search that is cut short (*part*) has judged the likeliest configurations only: its ratio may be too "
        "good for us. Estimates that miss work (less than a problem needs) are no part of a mean.",
        f"Goals: a mean of {GOAL} in each class, no problem below {LEAST}. "
        f"Of {len(lines)} problems {len(stale)} have peers that the estimator before this one judged (*).",
        "| class | machine | problems | mean | least | at | goal of the mean | goal of the least | search |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    text = "\n\n".join(parts[:3]) + "\n\n" + "\n".join(parts[3:])
    for each in classes(lines):
        mean, least = (f"missed by {each[name]}" if each[name] else "met" for name in ("mean missed by", "least missed by"))
        shown = (each["group"], each["machine"], each["problems"], each["mean"], each["least"], each["worst"], mean, least)
        text += "\n| " + " | ".join(map(str, shown)) + f" | {'whole' if each['whole'] else 'part'} |"
    text += "\n\n| problem | machine | ours us | bound | best peer | us | ratio | its configuration |\n|---|---|---|---|---|---|---|---|"
    for line in lines:
        star = " *" if line.get("estimator", "") != estimator else ""
        title = f"{line['group']}: {line['problem']}{star} | {line['machine']}"
        if "reason" in line:
            text += f"\n| {title} | - | {line['reason'].replace('|', '/')} | | | | |"
            continue
        shown = (line["us"], line["ours bound"], line["peer"], line["peer us"], line["ratio"], _plain(_shortened(line["configuration"])))
        text += f"\n| {title} | " + " | ".join(map(str, shown)) + " |"
    said = (
        "## Beside published rates\n\nOther cards, clocks and, of products, shapes; cards that draw more than they may run slower than "
        "their clock, which estimates know only of the kernels that they were fitted to: what was measured counts."
    )
    return f"{text}\n\n{said}\n\n{shares(rows)}"


def _shortened(text: str) -> str:
    """A list of settings up to the last whole one for which there is room."""
    return text if len(text) < LONGEST else text[:LONGEST].rpartition(", ")[0] + ", ..."


def _plain(text: str) -> str:
    return text.replace("|", "/").replace("'", "")


def shares(rows: Iterable[Mapping[str, Any]]) -> str:
    """Ours as a share of published rates of vendors' kernels, estimated and as it was measured."""
    times = {(row["group"], row["problem"], row["machine"]): row["us"] for row in rows if "us" in row}
    seen = {(each.group, each.problem, each.machine): each.ours for name in COLOURS for each in hardware.measured(name)}
    titles = ("problem", "published", "TFLOP/s", "ours, estimated now", "share", "ours, measured then", "share")
    lines = ["| " + " | ".join(titles) + " |", "|---|---|---|---|---|---|---|"]
    for group, problem, machine, whose, rate, operations in PUBLISHED:
        key = group, problem, machine
        if key in times:
            both = [operations / us / 1e6 for us in (times[key], seen.get(key)) if us is not None]
            shown = " | ".join(f"{own:.0f} | {own / rate:.2f}" for own in both) + " | - | -" * (2 - len(both))
            lines.append(f"| {group}: {problem} ({machine}) | {whose} | {rate:.0f} | {shown} |")
    return "\n".join(lines)


def picture(lines: Sequence[Mapping[str, Any]]) -> str:
    """A row for each class, a dot for each problem at the ratio, on a logarithmic scale; a bar at the mean."""
    groups = list(dict.fromkeys(line["group"] for line in lines if "ratio" in line))
    height = 60 + LINE * len(groups)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">']
    parts.append('<text x="8" y="18" fill="#334">best peer\'s estimated time over ours; right of 1 ours is faster</text>')
    for at, (name, colour) in enumerate(COLOURS.items()):
        parts.append(f'<text x="{560 + 60 * at}" y="18" fill="{colour}">{name}</text>')
    for mark in (0.25, 0.5, LEAST, 1.0, 2.0, 4.0):
        x, dark = _across(mark), mark in (LEAST, GOAL)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="30" y2="{height - 24}" stroke="{"#556" if dark else "#e6e8ee"}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle" fill="#556">{mark:g}</text>')
    means = {(each["group"], each["machine"]): each["mean"] for each in classes(lines)}
    for at, group in enumerate(groups):
        y = 44 + LINE * at
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end" fill="#334">{group}</text>')
        for line in lines:
            if line["group"] == group and "ratio" in line:
                colour = COLOURS[line["machine"]]
                parts.append(f'<circle cx="{_across(line["ratio"]):.1f}" cy="{y}" r="3" fill="{colour}" fill-opacity="0.6"/>')
        for machine, colour in COLOURS.items():
            if (group, machine) in means:
                x = _across(means[group, machine])
                parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 8}" y2="{y + 8}" stroke="{colour}" stroke-width="3"/>')
    return "\n".join([*parts, "</svg>", ""])


def _across(ratio: float) -> float:
    """Where a ratio stands; what is beyond an eighth or eight stands at the edge."""
    share = (log2(min(max(ratio, 1 / 8), 8.0)) + 3) / 6
    return LEFT + share * (WIDTH - LEFT - 16)
