"""What `make bench-cpu` shows: tables of times with what they miss of the goals, and bars of the best peer over ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from bench_goals import best, goal_of, missed, ratio, share, verdicts

Row = Mapping[str, Any]
COLOURS = {"f32": "#4466aa", "bf16": "#44aa77", "int8": "#cc7733", "int4": "#995599"}
RATES = {
    "fma_gflops": "f32 {} GFLOP/s",
    "bf16_dot_gflops": "bf16 dot products {} GFLOP/s",
    "bf16_matrix_gflops": "bf16 matrix tiles {} GFLOP/s",
    "int8_dot_gops": "int8 dot products {} Gop/s",
    "int8_matrix_gops": "int8 matrix tiles {} Gop/s",
    "read_gbytes_per_second": "reading {} GB/s",
    "copy_gbytes_per_second": "copying {} GB/s",
}
"""How the rates of `machine_rates` are told; a copied byte counts twice, as read and as written."""


def markdown(results: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The results as Markdown: what they were measured on, the goals, and a table for each precision and number of threads."""
    machine = results["machine"]
    versions = machine["versions"]
    named = ", ".join(f"{name} {versions[name]}" for name in ("torch", "onnxruntime", "openvino", "nncf") if name in versions)
    lines = [
        f"Made by `benchmarks/bench_cpu.py` on {machine['cpu']} ({', '.join(machine['flags'])}); {named}.",
        "Milliseconds: minimum (median) over interleaved rounds in one process; in brackets how far the answer is from",
        "eager's in float32, the largest difference over the largest magnitude. Ratio: the best peer's minimum over our best.",
        *([] if results["layers"] is None else ["", f"**Cut to {results['layers']} layers each.**"]),
        "",
    ]
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["precision"], row["threads"]), []).append(row)
    for threads in sorted({row["threads"] for row in rows}):
        rates = next(row["rates"] for row in rows if row["threads"] == threads)
        lines.append(f"- {_threads(threads)}: {', '.join(RATES[name].format(rate) for name, rate in rates.items())}")
    lines += ["", *_goals(verdicts(rows))]
    for (precision, threads), group in groups.items():
        lines += ["", f"## {precision}, {_threads(threads)}", "", *_table(group)]
    failed = [
        f"- {name} {cell}: {kept['error']}"
        for name, cells in results["models"].items()
        for cell, kept in cells.items()
        if isinstance(kept, Mapping)
    ]
    refused = dict.fromkeys(
        f"- {each['what']}, {row['precision']}, {row['title']}: {each['refused']}"
        for row in rows
        for each in row["contenders"]
        if "refused" in each
    )
    return "\n".join([*lines, *(["", "Not measured:", "", *failed, *refused] if failed or refused else []), ""])


def _threads(count: int) -> str:
    return "one thread" if count == 1 else f"{count} threads"


def _goals(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A row for each precision and number of threads."""
    yield "| precision | threads | rows | geometric mean | least | goal | floor | |"
    yield "|---|---:|---:|---:|---:|---:|---:|---|"
    for each in found:
        state = "no goal" if "goal" not in each else "met" if each["is_met"] else f"missed by {len(each['missed'])} of {each['rows']}"
        figures = (each["geometric_mean"], each["least"], each.get("goal"), each.get("floor"))
        cells = [
            each["precision"],
            each["threads"],
            each["rows"],
            *("" if figure is None else f"{figure:.2f}" for figure in figures),
            state,
        ]
        yield "| " + " | ".join(map(str, cells)) + " |"


def _table(rows: Sequence[Row]) -> Iterator[str]:
    """The rows of one precision and number of threads."""
    names = list(dict.fromkeys(each["what"] for row in rows for each in row["contenders"]))
    headings = ["model", "size", *names, "ratio", "share of rate", "two of the same apart", "goal"]
    yield "| " + " | ".join(headings) + " |"
    yield "|---|---|" + "---:|" * (len(headings) - 3) + "---|"
    for row in rows:
        known = {each["what"]: each for each in row["contenders"]}
        fastest = [found["what"] for side in ("ours", "peer") if (found := best(row, side)) is not None]
        cells = [row["title"], row["size"], *(_cell(known.get(name), name in fastest) for name in names)]
        reached, part = ratio(row), share(row)
        cells += ["" if reached is None else f"**{reached:.2f}**", "" if part is None else f"{part:.0%}"]
        has_goal = goal_of(row["precision"], row["rates"]) is not None
        cells += [f"{row['two_of_the_same_apart']:.1%}", "; ".join(miss.text for miss in missed(row)) or ("met" if has_goal else "")]
        yield "| " + " | ".join(cells) + " |"


def _cell(found: Mapping[str, Any] | None, is_fastest: bool) -> str:
    if found is None:
        return ""
    if "refused" in found:
        return "refused"
    least = f"{found['minimum_ms']:.2f}"
    text = f"{f'**{least}**' if is_fastest else least} ({found['median_ms']:.2f}) [{found['largest']:.0e}]"
    return f"{text} wrong" if found["wrong"] else text


BAR, GAP, LEFT, TOP, HEIGHT = 15, 14, 44, 30, 190
"""Widths and heights of the picture, in its own units."""


def picture(rows: Sequence[Row], colours: Mapping[str, str] = COLOURS) -> str:
    """Bars of the best peer over ours, a panel for each number of threads and a colour for each precision; above the line at 1 ours is
    faster.
    """
    panels = sorted({row["threads"] for row in rows})
    groups = {threads: _bars([row for row in rows if row["threads"] == threads]) for threads in panels}
    widest = max((sum(len(bars) * BAR + GAP for bars in each.values()) for each in groups.values()), default=0)
    legend = sum(map(_legend_width, colours))
    width, panel = max(LEFT + widest + 90, 260 + legend), TOP + HEIGHT + 80
    top = max([1.5, *(ratio for each in groups.values() for bars in each.values() for _, ratio in bars)])
    size = f"0 0 {width} {panel * max(len(panels), 1)}"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" font-family="sans-serif" font-size="12">']
    for number, threads in enumerate(panels):
        parts += _panel(groups[threads], threads, number * panel, width, top, colours)
    return "\n".join([*parts, "</svg>", ""])


def _bars(rows: Sequence[Row]) -> dict[str, list[tuple[str, float]]]:
    """By model and size: the precisions and their ratios."""
    found: dict[str, list[tuple[str, float]]] = {}
    for row in rows:
        if (reached := ratio(row)) is not None:
            found.setdefault(f"{row['title'].split(',')[0]}, {row['size']}", []).append((row["precision"], reached))
    return found


def _legend_width(name: str) -> int:
    return 40 if len(name) <= 4 else 7 * len(name) + 10


def _panel(
    groups: Mapping[str, Sequence[tuple[str, float]]], threads: int, offset: int, width: int, top: float, colours: Mapping[str, str]
) -> Iterator[str]:
    base = offset + TOP + HEIGHT
    yield f'<text x="{LEFT}" y="{offset + 16}" fill="#334">best peer over ours, {_threads(threads)}</text>'
    place = width - sum(map(_legend_width, colours))
    for precision, colour in colours.items():
        yield f'<text x="{place}" y="{offset + 16}" fill="{colour}">{precision}</text>'
        place += _legend_width(precision)
    step = 0.5 if top <= 4 else 1 if top <= 8 else 5
    for mark in [step * n for n in range(int(top / step) + 1)]:
        y = base - HEIGHT * mark / top
        colour = "#556" if mark == 1 else "#e6e8ee"
        yield f'<line x1="{LEFT}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#556">{mark:g}</text>'
    x = LEFT + GAP // 2
    for name, bars in groups.items():
        yield f'<text x="{x}" y="{base + 14}" fill="#334" font-size="10" transform="rotate(20 {x} {base + 14})">{escape(name)}</text>'
        for precision, reached in bars:
            height = HEIGHT * reached / top
            box = f'x="{x}" y="{base - height:.1f}" width="{BAR - 2}" height="{height:.1f}"'
            yield f'<rect {box} fill="{colours[precision]}"><title>{escape(name)}, {precision}: {reached:.2f}</title></rect>'
            x += BAR
        x += GAP
