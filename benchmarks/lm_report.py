"""What `make bench-lm` shows: a table for each model and number of threads with what it misses of the goals, loads, and bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import bench_report
from bench_goals import best, ratio
from lm_goals import gained, kinds, load_missed, missed, share

Row = Mapping[str, Any]
COLOURS = {
    **{"smollm2 Q4_1": "#4466aa", "smollm2 Q4_0": "#77aadd", "smollm2 Q5_0": "#334466"},
    **{"1b bf16": "#44aa77", "1b int8": "#cc7733", "1b int4": "#995599"},
}


def name_of(row: Row) -> str:
    """What a row measures, but for its model and threads."""
    if row["what"] == "first token":
        return f"first token behind {row['size']}"
    return f"next token behind {row['size']}" + ("" if row["batch"] == 1 else f", {row['batch']} sequences")


def told(row: Row) -> str:
    """A row as lines: each contender's times."""
    lines = [f"{row['model']} {row['format']}, threads {row['threads']}, {name_of(row)}:"]
    for each in row["contenders"]:
        if "minimum_ms" in each:
            wrong = ", wrong" if each["wrong"] else ""
            times = f"{each['minimum_ms']:10.2f} ms, median {each['median_ms']:10.2f}: {each['tokens_per_second']:8.1f} tokens/s"
            lines.append(f"  {each['what']:18}{times}, agrees {each['agrees']:.0%}{wrong}")
    reached = ratio(row)
    return "\n".join([*lines, *([] if reached is None else [f"  best peer over ours: {reached:.2f}"])])


def markdown(results: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    machine, rows = results["machine"], results["rows"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if name in SAID)
    lines = [
        f"Made by `benchmarks/lm.py` on {machine['cpu']} ({', '.join(machine['flags'])}); {versions}.",
        "Milliseconds: minimum (median) over interleaved rounds in one process, and tokens a second; behind a prompt from the call to the",
        "token, else of a step that makes a token for each sequence. In brackets how often the token behind 16 others is that of our first",
        "contender. Ratio: the best peer's minimum over our best. Shares are of one thread's measured rate: behind a prompt of the",
        "instructions that its products take, else of reading the weights as the file has them and the cache.",
        "",
        *(f"- {name}: {flags}" for name, flags in results["llama.cpp"].items()),
        f"- one thread: {', '.join(bench_report.RATES[name].format(machine[name]) for name in bench_report.RATES if name in machine)}",
        "",
    ]
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((f"{row['model']}, {row['format']}", row["threads"]), []).append(row)
    for (title, threads), group in groups.items():
        lines += [f"## {title}, {'one thread' if threads == 1 else f'{threads} threads'}", "", *_table(group, rows), ""]
    if results["loads"]:
        lines += ["## Loading", "", *_loads(results["loads"]), ""]
    refused = dict.fromkeys(
        f"- {each['what']}, {row['model']}, {row['format']}: {each['refused']}"
        for row in rows
        for each in row["contenders"]
        if "refused" in each
    )
    failed = [f"- {each['model']}, threads {each['threads']}: {each['error']}" for each in results["failed"]]
    return "\n".join([*lines, *(["Not measured:", "", *failed, *refused, ""] if failed or refused else [])])


SAID = ("ourcc", "llama-cpp-python", "xllamacpp", "openvino", "openvino-genai")


def _table(rows: Sequence[Row], all_rows: Sequence[Row]) -> Iterator[str]:
    names = list(dict.fromkeys(each["what"] for row in rows for each in row["contenders"] if "refused" not in each))
    headings = ["", *names, "ratio", "share", "goals"]
    yield "| " + " | ".join(headings) + " |"
    yield "|---|" + "---:|" * (len(headings) - 2) + "---|"
    for row in rows:
        known = {each["what"]: each for each in row["contenders"]}
        fastest = [found["what"] for side in ("ours", "peer") if (found := best(row, side)) is not None]
        shares = [f"{mine['kind']} {part:.0%}" for mine in kinds(row) if (part := share(row, mine)) is not None]
        reached, times = ratio(row), gained(row, all_rows)
        said = [miss.text for miss in missed(row, all_rows)] or ["met"]
        said += [] if times is None else [f"{times:.1f} times one sequence"]
        cells = [name_of(row), *(_cell(known.get(name), name in fastest) for name in names)]
        cells += ["" if reached is None else f"**{reached:.2f}**", ", ".join(shares), "; ".join(dict.fromkeys(said))]
        yield "| " + " | ".join(cells) + " |"


def _cell(found: Row | None, is_fastest: bool) -> str:
    if found is None or "minimum_ms" not in found:
        return ""
    rate = f"{found['tokens_per_second']:.0f}/s"
    text = f"{f'**{rate}**' if is_fastest else rate} {found['minimum_ms']:.2f} ({found['median_ms']:.2f}) [{found['agrees']:.0%}]"
    return f"{text} wrong" if found["wrong"] else text


def _loads(loads: Sequence[Row]) -> Iterator[str]:
    """An engine's file: every byte hashed, as it is loaded first, and verified before."""
    yield "| model | contender | GB | first, hashed, s | again, s | again, s a GB | goal |"
    yield "|---|---|---:|---:|---:|---:|---|"
    for each in loads:
        said = "; ".join(miss.text for miss in load_missed(each)) or "met"
        figures = (each["gbytes"], each["hashed_s"], each["again_s"], each["again_s"] / each["gbytes"])
        yield "| " + " | ".join([each["model"], each["contender"], *(f"{figure:.2f}" for figure in figures), said]) + " |"


def picture(rows: Sequence[Row]) -> str:
    """Bars of the best peer over ours, a panel for each number of threads."""
    bars = [row | {"title": _short(row), "size": str(row["size"]), "precision": f"{row['model']} {row['format']}"} for row in rows]
    return bench_report.picture(bars, COLOURS)


def _short(row: Row) -> str:
    return "prompt" if row["what"] == "first token" else f"next x {row['batch']}"
