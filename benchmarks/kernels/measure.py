"""`make kernels`: the fixed list compiled for Hopper and Blackwell, judged without a GPU; writes kernels.* in benchmarks/results.

What peers.py found before stands beside it.

python benchmarks/kernels/measure.py                      everything
python benchmarks/kernels/measure.py --only "prefill"     problems whose group or name has the word; nothing is written
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import believe
import compare
import hardware
import machines
import ours
import validate
from chosen import chosen
from counted import row_of
from estimate import FITTED
from machines import MACHINES, Machine
from trips import UnknownTrips

RESULTS = Path(__file__).parents[1] / "results"
MEASURED = (
    "`make gpu` on the one card that was at hand, with the kernels of that day; eager torch calls cuBLAS, cuDNN and FlashAttention. "
    "Above 1 ours was faster. Where estimates of those kernels and their times differ, times are right: ratios beside peers below are "
    "of estimates on both sides, and show how kernels compare as code. No H200 or B200 was ever at hand."
)
COLUMNS = (
    "The slowest kernel of each problem stands for its counts. *bound*: what it waits for most; *share*: of the time, the part that this "
    "resource would need alone; *issue / matrix*: cycles in which instructions are issued, over those of the matrix units; *widths*: "
    "bytes of an access to global memory, and how many such there are; *resident*: programs that a processor holds at a time; *waves*: "
    "rounds of programs that the device runs, in whole devices."
)


def digest() -> str:
    """Of everything that an estimate depends on beside the kernel: the estimator's text, its constants and the reader of machine code."""
    here, reader = Path(__file__).parent, Path(__file__).parents[2] / "codegen" / "sass"
    files = [*(here / name for name in ("estimate.py", "walk.py", "machines.py", "trips.py", "cubins.py")), *sorted(reader.glob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def problem_row(problem: ours.Problem, machine: Machine) -> dict[str, Any]:
    """A problem on a machine: the sum of its launches, and each of them."""
    built = ours.build(problem, machine.architecture)
    row: dict[str, Any] = {"group": problem.group, "problem": problem.name, "machine": machine.name}
    if built.refused is not None:
        return row | {"refused": built.refused}
    try:
        kernels = [row_of(launch, machine) for launch in built.launches]
    except (UnknownTrips, ValueError) as error:
        return row | {"refused": f"not estimated: {error}"}
    slowest = max(kernels, key=lambda each: each["us"])
    return row | {
        "us": round(sum(each["us"] for each in kernels), 2),
        "bound": slowest["bound"],
        "share": slowest["share"],
        "kernels": kernels,
    }


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Problems as a table in markdown: the slowest kernel of each stands for its counts."""
    titles = ("problem", "machine", "us", "bound", "share", "issue / matrix", "instructions per matrix instruction", "widths")
    lines = ["| " + " | ".join((*titles, "registers", "resident", "waves")) + " |"]
    lines.append("|---|---|---|---|---|---|---|---|---|---|---|")
    group = None
    for row in rows:
        if row["group"] != group:
            group = row["group"]
            lines.append(f"| **{group}** | | | | | | | | | | |")
        if "refused" in row:
            lines.append(f"| {row['problem']} | {row['machine']} | - | {row['refused'][:90].replace('|', '/')} | | | | | | | |")
            continue
        kernel = max(row["kernels"], key=lambda each: each["us"])
        shown = [row["problem"], row["machine"], row["us"], row["bound"], row["share"]]
        shown += [kernel[name] for name in ("issue", "per matrix", "global widths", "registers", "resident", "waves")]
        lines.append("| " + " | ".join("-" if each is None else str(each) for each in shown) + " |")
    return "\n".join(lines)


def changed(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> str:
    """Rows of two tables whose times differ; a row is known by its group, its name and its machine."""

    def key(row: dict[str, Any]) -> tuple[str, ...]:
        return row.get("group", "points"), row.get("problem", row.get("point", "")), row["machine"]

    before = {key(row): row["us"] for row in old if "us" in row}
    found = [(row, before.get(key(row))) for row in new if "us" in row]
    lines = [
        f"  {': '.join(key(row)[:2])} ({row['machine']}): {was} -> {row['us']}"
        for row, was in found
        if was is not None and was != row["us"]
    ]
    return "\n".join(lines) or "  no time differs"


def judged(problems: Iterable[ours.Problem]) -> dict[tuple[str, str, str], dict[str, Any]]:
    """What peers.py found for problems, by group, name and machine."""
    import peers

    found = {}
    for problem in problems:
        for machine in MACHINES.values():
            if (path := peers.path_of(problem, machine)).exists():
                row = json.loads(path.read_text(encoding="utf-8"))
                found[problem.group, problem.name, machine.name] = row | {"estimator": digest()}
    return found


def recalled(results: Mapping[str, Any] | None) -> dict[compare.Key, dict[str, Any]]:
    """What peers.py had found for the results: a machine that has not run it keeps their numbers, and which estimator's they are."""
    found: dict[compare.Key, dict[str, Any]] = {}
    for line in () if results is None else results["compared"]:
        title, _, configuration = line.get("configuration", "").partition("; ")
        best = {name: {"us": us, "title": title, "kernels": [{"configuration": configuration}]} for name, us in line["peers"].items()}
        refused = {} if best else {line["reason"]: 1}
        key = line["group"], line["problem"], line["machine"]
        known = {"judged": line["judged"], "whole": line["whole"], "estimator": line.get("estimator", results["digest"] if results else "")}
        found[key] = {**known, "best": best, "refused": refused}
    return found


def rejudged(old: Mapping[str, Any], new: Iterable[Mapping[str, Any]]) -> str:
    """Peers of the results that another estimator judged since, and what both say of them."""

    def key(line: Mapping[str, Any]) -> compare.Key:
        return line["group"], line["problem"], line["machine"]

    before = {key(line): line for line in old["compared"]}
    lines = []
    for line in new:
        was = before.get(key(line))
        if was is None or was.get("estimator", old["digest"]) == line["estimator"]:
            continue
        both = [(name, was["peers"][name], us) for name, us in line["peers"].items() if name in was["peers"]]
        lines += [f"  {': '.join(key(line)[:2])} ({line['machine']}): {name} {first} -> {us}" for name, first, us in both]
    return "\n".join(lines) or "  none was judged again"


def doubts(rows: Iterable[dict[str, Any]]) -> dict[compare.Key, str]:
    """Why estimates of ours are not believed."""
    problems = {(each.group, each.name): each for each in ours.problems()}
    found = {}
    for row in rows:
        problem = problems.get((row["group"], row["problem"]))
        if problem is not None and "us" in row:
            why = believe.doubt(problem, MACHINES[row["machine"]], row["us"], row["kernels"])
            if why is not None:
                found[row["group"], row["problem"], row["machine"]] = why
    return found


def point_rows(compared: Iterable[validate.Compared]) -> list[dict[str, Any]]:
    """The validation points with their estimates, to the last digit."""
    return [
        {
            "point": each.point.name,
            "machine": each.point.machine.name,
            "fit": each.point.fit,
            "measured": each.point.seconds * 1e6,
            "us": each.estimate.seconds * 1e6,
        }
        for each in compared
    ]


def write(results: dict[str, Any], lines: list[dict[str, Any]], verdict: str, points: str) -> None:
    """The results, the page and the picture."""
    rows = results["problems"]
    results |= {"classes": compare.classes(lines), "compared": lines}
    path = RESULTS / "kernels.json"
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    known = [each for name in MACHINES for each in hardware.measured(name)]
    page = "\n\n".join(
        (
            "# Kernels judged without a GPU",
            "Times on this page are estimated from machine code, but for what says *measured*. "
            "[How estimates are made](../../docs/kernels.md), and what they do not show.",
            f"## How far estimates are from what was measured\n\n{verdict.replace(chr(10), '  ' + chr(10))}",
            f"## Measured on a device\n\n{MEASURED}\n\n{hardware.summary(known)}",
            f"![ratios](kernels.svg)\n\n{compare.page(lines, rows, digest())}",
            f"## Published and measured times beside estimates\n\n{points}",
            f"## Problems that were measured\n\n{hardware.table(known, rows)}",
            f"## All problems, estimated\n\n{COLUMNS}\n\n{table(rows)}",
        )
    )
    path.with_suffix(".md").write_text(page + "\n", encoding="utf-8")
    path.with_suffix(".svg").write_text(compare.picture(lines), encoding="utf-8")


def beside() -> int:
    """What peers.py found beside the results as they are, where ours are this estimator's."""
    results = json.loads((RESULTS / "kernels.json").read_text(encoding="utf-8"))
    if results["digest"] != digest():
        print("the estimator changed since the results were written: run without --beside")
        return 1
    lines = compare.compared(results["problems"], recalled(results) | judged(ours.problems()), doubts(results["problems"]))
    print("peers judged again, before and after:", rejudged(results, lines), sep="\n")
    print(compare.page(lines, results["problems"], digest()))
    compared = validate.compare(validate.read_points() + validate.read_measured())
    write(results, lines, validate.verdict(compared), validate.table(compared))
    return 0


def main() -> int:
    """Build, estimate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--beside", action="store_true", help="take ours from the results as they are, and write what peers add to them")
    arguments = parser.parse_args()
    if arguments.beside:
        return beside()
    only = arguments.only
    rows = []
    for problem in chosen(parser, [only], ours.problems(), lambda each: f"{each.group} {each.name}"):
        started = time.monotonic()
        rows += [problem_row(problem, machine) for machine in MACHINES.values()]
        print(f"{problem.group}: {problem.name} ({time.monotonic() - started:.1f} s)", file=sys.stderr, flush=True)
    print(table(rows))
    path = RESULTS / "kernels.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    lines = compare.compared(rows, recalled(old) | judged(ours.problems()), doubts(rows))
    print(compare.page(lines, rows, digest()))
    if only:
        return 0
    compared = validate.compare(validate.read_points() + validate.read_measured())
    new = {"digest": digest(), "fitted": asdict(FITTED), "started": machines.STARTED, "points": point_rows(compared), "problems": rows}
    if old is not None and old["digest"] != new["digest"]:
        print("\nthe estimator changed; points, before and after:", changed(old["points"], new["points"]), sep="\n")
        print("problems, before and after:", changed(old["problems"], rows), sep="\n")
        print("peers judged again, before and after:", rejudged(old, lines), sep="\n")
    write(new, lines, validate.verdict(compared), validate.table(compared))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
