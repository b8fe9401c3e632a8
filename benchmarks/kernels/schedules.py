"""Every schedule that strategies offer for the fixed list, timed on the GPU at hand: what the choice by predicted time costs.

python benchmarks/kernels/schedules.py --seconds 240              as many problems as the time allows; writes gpu_schedules_NAME.json
python benchmarks/kernels/schedules.py --only "prefill,decode"    problems whose group or name has one of the words; nothing is written
python benchmarks/kernels/schedules.py --recorded H100            without a GPU: today's choices and predictions beside what was timed

A schedule is built as a user's lock names it. Inputs are drawn once for a problem, the second-level cache is emptied before every
run, and the driver's tracer gives its time; the median of rounds counts.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import hashlib
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any
from unittest import mock

import every
import ours
import torch
from chosen import chosen
from device import RESULTS, at_hand, drawn, error_of, kernels_by_run
from machines import MACHINES

from ourcc.autotune.lock import Lock, LockedLevel
from ourcc.autotune.problem import problem_id
from ourcc.autotune.record import parse_schedule
from ourcc.compiler.backends import cuda
from ourcc.compiler.backends.tuning import producer, triton_identity
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.options import BuildOptions
from ourcc.compiler.pipeline import compile_module
from ourcc.compiler.targets.registry import parse_targets
from ourcc.ir.errors import CompilerError
from ourcc.ir.target import gpu_target
from ourcc.runtime.engine import Engine

ROUNDS = 9
MOST = 48
"""Schedules of a problem that are timed: half of them those of least predicted time, half drawn from the others."""
LAST = ("rows", "steps")
"""Strategies for what no other takes: left out where another offers something."""


@dataclass(frozen=True)
class Timed:
    """A schedule of a problem of the list, by number: its predicted microseconds, and whether it is the one that is chosen."""

    number: int
    id: str
    schedule: str
    predicted: float
    chosen: bool
    order: str
    """What decides in which order its sums are added up: results of equal orders are the same to the bit."""


def offered(number: int, architecture: str, most: int = MOST) -> list[Timed]:
    """What is timed of a problem, the best prediction first; nothing where it has several regions, each with schedules of its own."""
    problem, machine = list(ours.problems())[number], gpu_target(architecture)
    found = every.offers(problem, architecture)
    own = [each for each in found if each.candidate[1].strategy not in LAST] or found
    ids = {problem_id(each.candidate[0].problem) for each in found}
    if len(ids) != 1:
        return []
    (id,) = ids
    rows = []
    for each in own:
        match, schedule = each.candidate
        order = hashlib.sha256(repr(match.strategy.order(match, schedule, machine)).encode()).hexdigest()[:8]
        rows.append(Timed(number, id, str(schedule), 1e6 * match.strategy.cost(match, schedule, machine), each.chosen, order))
    rows.sort(key=lambda each: each.predicted)
    first = most // 2
    drawn = random.Random(number).sample(rows[first:], min(len(rows[first:]), most - first))
    kept = {each.schedule for each in (*rows[:first], *drawn)}
    return [each for each in rows if each.schedule in kept or each.chosen]


def compile_schedule(timed: Timed, architecture: str, folder: str) -> dict[str, Any]:
    """A schedule compiled in a process of its own for aligned buffers: its engine as a file, or why there is none."""
    problem = list(ours.problems())[timed.number]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    level = LockedLevel(triton_identity(), {timed.id: parse_schedule(timed.schedule)})
    name = f"{timed.number}-{abs(hash(timed.schedule))}"
    lock = Path(folder) / f"{name}.lock"
    lock.write_text(Lock(producer(), {architecture: level}).text(), encoding="utf-8")
    module = import_exported(torch.export.export(problem.module().eval(), ours.inputs_of(problem)))
    options = BuildOptions(targets=parse_targets([architecture]), quantize=problem.quantize, locked=lock)
    try:
        # What is timed is given aligned buffers: the kernel for others is not built.
        with mock.patch.object(cuda, "_callers", lambda *_: ()):
            contents = compile_module(module, options)
    except CompilerError as error:
        return {"refused": str(error).splitlines()[0][:200]}
    Engine(contents).save(Path(folder) / f"{name}.ourcc")
    return {"engine": str(Path(folder) / f"{name}.ourcc")}


def microseconds(runs: Mapping[str, Callable[[], Any]], flush: torch.Tensor) -> dict[str, float]:
    """What the driver's tracer gives for the kernels of each run, the median over rounds; every run begins with a cache that holds other
    data. Runs take turns, so that what else the machine does falls on all of them.
    """
    for run in runs.values():
        run()

    def all_rounds() -> None:
        for _ in range(ROUNDS):
            for run in runs.values():
                flush.zero_()
                run()

    found = [sum(each.values()) for each in kernels_by_run(all_rounds, flush)]
    if len(found) != ROUNDS * len(runs):
        raise RuntimeError(f"{len(found)} runs of {ROUNDS * len(runs)} were traced")
    return {name: round(median(found[at :: len(runs)]), 2) for at, name in enumerate(runs)}


def bits_of(found: torch.Tensor) -> int:
    """A sum over all bits and their places: the same for the same bits, and hardly for others."""
    numbers = found.contiguous().view(torch.int16).flatten().long()
    return int((numbers * (torch.arange(len(numbers), device=numbers.device) % 65_521 + 1)).sum())


def measured(
    problem: ours.Problem, engines: Mapping[str, str], flush: torch.Tensor
) -> tuple[dict[str, float], dict[str, dict[str, float | int]]]:
    """Times by schedule, that of eager torch by the empty name; errors and bits."""
    module, inputs, wanted = drawn(problem)
    loaded = {name: Engine.load(path) for name, path in engines.items()}
    given = {name: engine(*inputs) for name, engine in loaded.items()}
    results = {name: {"error": float(f"{error_of(each, wanted):.2e}"), "bits": bits_of(each)} for name, each in given.items()}
    del given
    runs = {name: functools.partial(engine, *inputs) for name, engine in loaded.items()}
    return microseconds({"": lambda: module(*inputs), **runs}, flush), results


def measure(numbers: Iterable[int], architecture: str, seconds: float) -> list[dict[str, Any]]:
    """All schedules of problems in their order, until the time is spent; others are compiled while one is timed."""
    listed, rows = list(ours.problems()), []
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    deadline = time.monotonic() + seconds
    workers = max(1, len(os.sched_getaffinity(0)) - 1)
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        concurrent.futures.ProcessPoolExecutor(workers, spawn) as pool,
        torch.no_grad(),
    ):
        asked = [(number, pool.submit(offered, number, architecture)) for number in numbers]
        waiting = [
            (number, [(timed, pool.submit(compile_schedule, timed, architecture, folder)) for timed in future.result()])
            for number, future in asked
        ]
        for number, futures in waiting:
            if time.monotonic() > deadline:
                print(f"the time is spent before {listed[number].group}: {listed[number].name}")
                break
            found: dict[str, dict[str, Any]] = {}
            for timed, future in futures:
                row = found[timed.schedule] = {"predicted": round(timed.predicted, 2), "chosen": timed.chosen, "order": timed.order}
                try:
                    row |= future.result(max(0.0, deadline - time.monotonic()))
                except Exception as error:  # noqa: BLE001 - what fails is a row of the table; the others are measured
                    row["failed"] = f"{type(error).__name__}: {error}"[:300]
            us, results = measured(listed[number], {name: row.pop("engine") for name, row in found.items() if "engine" in row}, flush)
            schedules = [{"schedule": name, **row} for name, row in found.items()]
            schedules = [each | ({"us": us[name], **results[name]} if (name := each["schedule"]) in us else {}) for each in schedules]
            rows.append({"group": listed[number].group, "problem": listed[number].name, "eager": us[""], "schedules": schedules})
            print(line(rows[-1]), flush=True)
            torch.cuda.empty_cache()
        pool.shutdown(wait=False, cancel_futures=True)
    return rows


def line(row: Mapping[str, Any]) -> str:
    """A problem in a line: the choice, the fastest, and how predictions stand to times."""
    title = f"{row['group'][:12]:12s} {row['problem'][:34]:34s}"
    known = [each for each in row["schedules"] if "us" in each]
    if not known:
        why = [str(each.get("refused") or each.get("failed")) for each in row["schedules"]]
        return f"{title} nothing timed: {(why or ['nothing offered'])[0]}"[:200]
    best = min(known, key=lambda each: each["us"])
    chosen = next((each for each in known if each["chosen"]), None)
    taken = chosen or min(known, key=lambda each: each["predicted"])
    said = f"{'chosen' if chosen else 'the choice was not timed, the next is'} {taken['us']:8.1f} {taken['us'] / best['us']:.2f} of best"
    bits: dict[str, set[int]] = {}
    for each in known:
        if "bits" in each:
            bits.setdefault(each["order"], set()).add(each["bits"])
    differ = [name for name, each in bits.items() if len(each) > 1]
    said += f", {len(differ)} of {len(bits)} orders DIFFER in bits: {' '.join(differ)}" if differ else f", {len(bits)} orders" * bool(bits)
    off = geometric_mean(each["predicted"] / each["us"] for each in known)
    said += f", worst error {max(each['error'] for each in known):.1e}"
    return f"{title} eager {row['eager']:8.1f} best {best['us']:8.1f} {said}, predicted {off:.2f} of {len(known)}, {best['schedule']}"


def again(number: int, row: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """A problem as it was timed, with what is predicted and chosen now that its number in the list is this."""
    now = {each.schedule: each for each in offered(number, architecture, 10_000)}
    kept = [
        each | {"predicted": now[name].predicted, "chosen": now[name].chosen}
        for each in row["schedules"]
        if (name := each["schedule"]) in now
    ]
    return {**row, "schedules": kept}


def main() -> int:
    """Measure, print, write; or only look again at what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="words with commas between them, in the order in which problems are taken")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--recorded", choices=list(MACHINES))
    parser.add_argument("-o", "--output", type=Path, help="where to write, whatever is left out")
    arguments = parser.parse_args()
    listed = list(ours.problems())
    words = arguments.only.split(",")
    taken = chosen(parser, words, enumerate(listed), lambda each: f"{each[1].group} {each[1].name}")
    numbers = dict.fromkeys(n for n, _ in taken)
    if arguments.recorded:
        machine = MACHINES[arguments.recorded]
        known = json.loads((RESULTS / f"gpu_schedules_{machine.name.lower()}.json").read_text(encoding="utf-8"))
        places = {(each.group, each.name): number for number, each in enumerate(listed)}
        for row in known["problems"]:
            number = places.get((row["group"], row["problem"]))
            if number is not None and number in numbers:
                print(line(again(number, row, machine.architecture)), flush=True)
        return 0
    if not torch.cuda.is_available():
        print("no CUDA device on this machine, so nothing was measured")
        return 0
    architecture, machine = at_hand()
    rows = measure(numbers, architecture, arguments.seconds)
    if arguments.output or not arguments.only:
        said = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton_identity(), "problems": rows}
        path = arguments.output or RESULTS / f"gpu_schedules_{machine.name.lower()}.json"
        path.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
