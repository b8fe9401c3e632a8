"""The choice that is made without measuring beside the fastest of all candidates, one thread: what the price of a schedule is worth.

Each problem's candidates are timed side by side in a child process, in rounds; the least time of each counts. With
`--recorded` nothing is timed: the times of the results file are held against what is predicted now.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from children import RESULTS, chosen, write_json
from machine_facts import machine_facts
from problems import cases, problem_of_case

from ourcc.autotune.measure import Measurer, Policy
from ourcc.codegen.c.toolchain import find_compiler
from ourcc.compiler.options import environment
from ourcc.ir.target import CpuLevel, cpu_level, level_for
from ourcc.passes.lower.schedule import cheapest
from ourcc.passes.tile.schedule import seconds
from ourcc.runtime.native import cpu_flags

FILE = RESULTS / "cost.json"
POLICY = Policy(rounds=15, drop=10)


def measure(name: str, level: CpuLevel, known: Mapping[str, int]) -> dict[str, int]:
    """Least picoseconds of each schedule of a problem, by its name; of `known` ones the lesser of both."""
    problem, families = problem_of_case(cases()[name], level, cheapest(level))
    candidates = [candidate for family in families for candidate in family]
    settings = environment()
    measurer = Measurer(level, find_compiler(settings.compiler), POLICY, deadline=60, cache=settings.objects)
    found = {}
    for trial in measurer.measure(problem, candidates):
        for failure in trial.failures:
            print(f"{name}: {trial.schedule} failed: {failure.reason}", flush=True)
        if trial.times:
            found[str(trial.schedule)] = min(trial.times[0], known.get(str(trial.schedule), trial.times[0]))
    return found


def predicted(name: str, level: CpuLevel) -> tuple[str, float]:
    """The schedule that is chosen without measuring, and its predicted seconds."""
    problem, families = problem_of_case(cases()[name], level, cheapest(level))
    choice = cheapest(level)(problem, iter(families))
    return str(choice[1]), seconds(*choice, level)


def report(times: Mapping[str, Mapping[str, int]], level: CpuLevel) -> dict[str, Any]:
    """How much longer each choice takes than the fastest candidate, and how far its time is from the prediction."""
    rows = {}
    for name, measured in times.items():
        pick, cost = predicted(name, level)
        if pick not in measured:
            print(f"{name}: {pick} was not measured", flush=True)
            continue
        best = min(measured, key=lambda schedule: measured[schedule])
        rows[name] = {
            "choice": pick,
            "fastest": best,
            "over_fastest": round(measured[pick] / measured[best], 3),
            "microseconds": round(measured[pick] / 1e6, 2),
            "predicted_microseconds": round(cost * 1e6, 2),
        }
    over = sorted(row["over_fastest"] for row in rows.values())
    summary = {"problems": len(over), "median": statistics.median(over), "p90": over[int(0.9 * len(over))], "worst": over[-1]}
    return {"summary": {**summary, "within_a_tenth": sum(each <= 1.1 for each in over)}, "choices": rows}


def main() -> None:
    """Measure, or take what was measured, and write both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", default="", help="which ones, separated by commas")
    parser.add_argument("--recorded", action="store_true", help="time nothing")
    parser.add_argument("--output", type=Path, default=FILE, help="file of the results")
    options = parser.parse_args()
    before = json.loads(options.output.read_text(encoding="utf-8")) if options.output.exists() else {}
    times: dict[str, dict[str, int]] = before.get("picoseconds", {})
    level = cpu_level(before["level"]) if options.recorded else level_for(cpu_flags())
    facts = before["machine"] if options.recorded else machine_facts()
    for name in () if options.recorded else chosen(options.problems, list(cases())) or cases():
        times[name] = measure(name, level, times.get(name, {}))
        best = min(times[name].values(), default=0)
        print(f"{name}: {len(times[name])} candidates, {best / 1e6:.2f} us", flush=True)
        write_json(options.output, {"machine": facts, "level": level.name, "threads": 1, "picoseconds": times})
    found = report({name: times[name] for name in cases() if times.get(name)}, level)
    for name, row in sorted(found["choices"].items(), key=lambda item: item[1]["over_fastest"]):
        line = f"{row['microseconds']:10.2f} us, {row['predicted_microseconds']:10.2f} predicted"
        print(f"{row['over_fastest']:6.3f} {line}: {name}: {row['choice']}")
    print(found["summary"])
    write_json(options.output, {"machine": facts, "level": level.name, "threads": 1, **found, "picoseconds": times})


if __name__ == "__main__":
    main()
