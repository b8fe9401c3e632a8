"""Kernels of the fixed list on the GPU at hand: their times as the driver's tracer gives them, beside their estimates and torch's.

python benchmarks/kernels/device.py                     everything; writes benchmarks/results/gpu_NAME.json, as `make gpu` does
python benchmarks/kernels/device.py --only "prefill"    problems whose group or name has the word; nothing is written

Problems are compiled by all cores first; then each runs alone, inputs fresh, the second-level cache emptied before every run.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import copy
import functools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import ours
import torch
from chosen import chosen
from counted import row_of
from machines import H100, MACHINES, Machine

from ourcc.ir.errors import CompilerError
from ourcc.runtime.engine import Engine

RESULTS = Path(__file__).parents[1] / "results"
ROUNDS = 12
COMPARED = ("estimate", "eager", "inductor")
FUSED = ("rows", "elementwise", "pooling and depthwise", "data movement")
"""Groups in which Inductor makes kernels of its own; elsewhere it calls the libraries that eager calls."""


def compile_problem(number: int, architecture: str, machine: Machine, folder: str) -> dict[str, Any]:
    """A problem compiled in a process of its own: its engine as a file, its launches estimated, or why there is none."""
    problem = list(ours.problems())[number]
    torch.set_num_threads(1)
    started = time.monotonic()
    try:
        contents = ours.contents_of(problem, architecture)
    except CompilerError as error:
        return {"refused": str(error).splitlines()[0]}
    path = Path(folder) / f"{number}.ourcc"
    Engine(contents).save(path)
    row: dict[str, Any] = {"engine": str(path), "build": round(time.monotonic() - started, 2)}
    try:
        row["kernels"] = [row_of(launch, machine) for launch in ours.launches_of(contents, architecture)]
    except Exception as error:  # noqa: BLE001 - an estimate that fails is told; the kernel is measured all the same
        row["not estimated"] = f"{type(error).__name__}: {error}"
    return row


def inputs_of(problem: ours.Problem) -> list[torch.Tensor]:
    """Fresh inputs: normal numbers, or rows of a table."""
    if problem.group == "data movement" and len(problem.shapes) == 2:
        rows = torch.randint(0, problem.shapes[1][0], problem.shapes[0], device="cuda")
        return [rows, torch.randn(problem.shapes[1], device="cuda", dtype=problem.dtype)]
    return [torch.randn(shape, device="cuda", dtype=problem.dtype) for shape in problem.shapes]


def traced(run: Callable[[], Any]) -> list[Any]:
    """What the device did in a run, in order."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return sorted(events, key=lambda each: each.time_range.start)


def kernels_by_run(all_runs: Callable[[], Any], flush: torch.Tensor) -> list[dict[str, float]]:
    """Microseconds of each kernel of every run; a run begins with a cache that holds other data, as the largest buffer was filled."""
    (marker,) = traced(flush.zero_)
    found: list[dict[str, float]] = []
    for event in traced(all_runs):
        if event.name == marker.name and event.time_range.elapsed_us() > marker.time_range.elapsed_us() / 2:
            found.append({})
        elif found:
            found[-1][event.name] = found[-1].get(event.name, 0.0) + event.time_range.elapsed_us()
    return found


def times(run: Callable[[], Any], flush: torch.Tensor) -> dict[str, float]:
    """Microseconds of each kernel of a run, the median over rounds."""

    def all_rounds() -> None:
        for _ in range(ROUNDS):
            flush.zero_()
            run()

    for _ in range(3):
        run()
    rounds = kernels_by_run(all_rounds, flush)
    if len(rounds) != ROUNDS or not rounds[-1]:
        raise RuntimeError(f"{len(rounds)} rounds of {ROUNDS} were traced")
    return {name: round(median(each.get(name, 0.0) for each in rounds), 2) for name in rounds[-1]}


def error_of(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The relative error in the Euclidean norm; what is not a number stays one."""
    return float((found.float() - wanted).norm() / wanted.norm())


def drawn(problem: ours.Problem) -> tuple[torch.nn.Module, list[torch.Tensor], torch.Tensor]:
    """The module on the device, fresh inputs, and what it gives of them in float32."""
    # Random weights of a module are the engine's own: it was exported with the same seed.
    torch.manual_seed(0)
    module = problem.module().eval().cuda()
    inputs = inputs_of(problem)
    with torch.no_grad():
        wanted = copy.deepcopy(module).float()(*(each.float() if each.is_floating_point() else each for each in inputs))
    return module, inputs, wanted


def measured(problem: ours.Problem, built: Mapping[str, Any], flush: torch.Tensor) -> dict[str, Any]:
    """A problem on the device: ours, torch's eager kernels, and Inductor's where it makes some."""
    module, inputs, wanted = drawn(problem)
    row: dict[str, Any] = {}
    with torch.no_grad():
        engine = Engine.load(built["engine"])
        peers: dict[str, Callable[[], torch.Tensor]] = {"eager": lambda: module(*inputs)}
        if problem.group in FUSED:
            # Problems share the code of their modules: after a few of them it would be called as it is.
            torch.compiler.reset()
            peers["inductor"] = functools.partial(torch.compile(module, dynamic=False), *inputs)
        row["error"] = error_of(engine(*inputs), wanted)
        row["ours"] = times(lambda: engine(*inputs), flush)
        for name, run in peers.items():
            row[f"{name} error"] = error_of(run(), wanted)
            row[name] = times(run, flush)
    return row


def at_hand() -> tuple[str, Machine]:
    """The architecture of the device and what is known of it; torch's own float32 is no tf32 from here on."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    architecture = {9: "sm_90a", 10: "sm_100a"}[torch.cuda.get_device_capability()[0]]
    return architecture, next((each for each in MACHINES.values() if each.name in torch.cuda.get_device_name()), H100)


def main() -> int:
    """Compile, run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    only = parser.parse_args().only
    listed = chosen(parser, [only], enumerate(ours.problems()), lambda each: f"{each[1].group} {each[1].name}")
    if not torch.cuda.is_available():
        print("no CUDA device on this machine, so nothing was measured")
        return 0
    architecture, machine = at_hand()
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    rows: list[dict[str, Any]] = []
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ProcessPoolExecutor(len(os.sched_getaffinity(0)), spawn) as pool:
        waiting = [pool.submit(compile_problem, n, architecture, machine, folder) for n, _ in listed]
        concurrent.futures.wait(waiting)
        for (_, problem), future in zip(listed, waiting, strict=True):
            row: dict[str, Any] = {"group": problem.group, "problem": problem.name}
            try:
                built = future.result()
                row |= {name: value for name, value in built.items() if name != "engine"}
                if "engine" in built:
                    row |= measured(problem, built, flush)
            except Exception as error:  # noqa: BLE001 - what fails is a row of the table; the others are measured
                row["failed"] = f"{type(error).__name__}: {error}"[:600]
            torch.cuda.empty_cache()
            rows.append(row)
            print(line(row), flush=True)
    print(summary(rows))
    if not only:
        said = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "problems": rows}
        path = RESULTS / f"gpu_{machine.name.lower()}.json"
        path.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return int(any("failed" in row for row in rows))


def total(row: Mapping[str, Any], name: str) -> float:
    """Microseconds of a problem: of our kernels, of a peer's, or of our kernels' estimates; 0 where there are none."""
    return sum(each["us"] for each in row.get("kernels", ())) if name == "estimate" else sum(row.get(name, {}).values())


def line(row: Mapping[str, Any]) -> str:
    """A problem in a line: measured, estimated, peers over ours, errors."""
    title = f"{row['group'][:12]:12s} {row['problem'][:34]:34s}"
    if "ours" not in row:
        return f"{title} {row.get('refused') or row.get('failed')}"[:200]
    own = total(row, "ours")
    shown = [f"{name} {total(row, name) / own:.2f}" for name in COMPARED if total(row, name)]
    return " ".join((title, f"{own:9.1f} us", *shown, f"error {row['error']:.1e} / {row['eager error']:.1e}"))


def summary(rows: list[dict[str, Any]]) -> str:
    """Per group: the geometric mean of each peer's time over ours, and of estimate over measurement."""
    lines = []
    for group in dict.fromkeys(row["group"] for row in rows):
        inside = [row for row in rows if row["group"] == group and "ours" in row]
        parts = [f"{group}: {len(inside)} measured"]
        for name in COMPARED:
            ratios = [total(row, name) / total(row, "ours") for row in inside if total(row, name)]
            if ratios:
                parts.append(f"{name} over ours {geometric_mean(ratios):.2f} (least {min(ratios):.2f})")
        lines.append(", ".join(parts))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
