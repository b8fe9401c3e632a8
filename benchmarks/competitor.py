"""What a busy neighbour costs: calls on two threads while another process keeps one of the two cores, beside ONNX Runtime and OpenVINO.

The neighbour is a process that computes for ever on the last core that this one may use; it is stopped and set going from round to
round. It takes half of that core at most, so a call on two threads should take no longer than one on one thread alone: the goal.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zoo
from children import RESULTS, chosen, run_child, write_json
from machine_facts import machine_facts

import ourcc
from ourcc.compiler.commands.build import build
from ourcc.compiler.commands.peers import onnxruntime_run, openvino_run
from ourcc.compiler.options import build_options

MODELS = {"minilm": (1, 128), "resnet50": (1, 0), "bert": (1, 128)}
BUSY = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint('ready', flush=True)\nwhile True: pass"
Run = Callable[[Sequence[np.ndarray[Any, Any]]], object]


@contextmanager
def neighbour() -> Iterator[Callable[[bool], None]]:
    """A process on the last core, stopped; what is given sets it going and stops it."""
    core = max(os.sched_getaffinity(0))
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(core)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        yield lambda busy: process.send_signal(signal.SIGCONT if busy else signal.SIGSTOP)
    finally:
        process.kill()
        process.wait()


def contenders(name: str, size: tuple[int, int], folder: Path) -> tuple[dict[tuple[str, int], Run], list[np.ndarray[Any, Any]]]:
    """Calls by who makes them and on how many threads, and the arrays of one."""
    model = zoo.make(name)
    path = zoo.write_onnx(model, folder / f"{name}.onnx")
    sizes = zoo.sizes_of(model, size)
    arrays = [x.numpy() for x in model.draw(*size, 0)]
    engine = folder / f"{name}.ourcc"
    options = {"targets": ["native"], "shapes": [f"{symbol}={count}" for symbol, count in sizes.items()]}
    build(str(path), build_options(options)).save(str(engine))
    shapes = [array.shape for array in arrays]
    found: dict[tuple[str, int], Run] = {}
    for threads in (1, 2):
        ours = ourcc.load(str(engine), threads=threads)
        found["ourcc", threads] = lambda arrays, ours=ours: ours(*arrays)
        found["ONNX Runtime", threads] = onnxruntime_run(path, threads, sizes)
        found["OpenVINO", threads] = openvino_run(path, threads, "f32", shapes)
    return found, arrays


def measured(calls: dict[tuple[str, int], Run], arrays: list[np.ndarray[Any, Any]], seconds: float) -> list[dict[str, Any]]:
    """Milliseconds of each, alone and beside the neighbour: least and median of calls in interleaved rounds."""
    times: dict[tuple[str, int, bool], list[float]] = {(*key, busy): [] for key in calls for busy in (False, True)}
    with neighbour() as busily:
        for run in calls.values():
            run(arrays)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or min(map(len, times.values())) < 12:
            for busy in (False, True):
                busily(busy)
                # A process that was stopped has a claim to more than its share, which it takes first.
                time.sleep(0.05 if busy else 0.01)
                for key, run in calls.items():
                    for _ in range(4):
                        begun = time.perf_counter()
                        run(arrays)
                        times[(*key, busy)].append(1000 * (time.perf_counter() - begun))
            busily(False)
    rows = []
    for name in dict.fromkeys(name for name, _ in calls):
        row: dict[str, Any] = {"contender": name}
        for threads in (1, 2):
            for busy in (False, True):
                what = f"{threads} thread{'s' * (threads > 1)}, {'beside' if busy else 'alone'}"
                row[what] = {"min": min(times[name, threads, busy]), "median": statistics.median(times[name, threads, busy])}
        row["over one thread alone"] = row["2 threads, beside"]["median"] / row["1 thread, alone"]["median"]
        rows.append(row)
    return rows


def main() -> None:
    """A child for each model, a table, and results/competitor.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="some of %(default)s")
    parser.add_argument("--seconds", type=float, default=30, help="for each model (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "competitor.json")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = chosen(arguments.models, list(MODELS))
    if arguments.child:
        with tempfile.TemporaryDirectory() as folder:
            calls, arrays = contenders(names[0], MODELS[names[0]], Path(folder))
            write_json(arguments.child, {"rows": measured(calls, arrays, arguments.seconds)})
        return
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("this takes two cores, and this process may use one")
    found = {name: run_child(__file__, ["--models", name, "--seconds", str(arguments.seconds)]) for name in names}
    for name, result in found.items():
        for row in result.get("rows", []):
            times = "  ".join(f"{what} {row[what]['median']:.2f}" for what in row if isinstance(row[what], dict))
            print(f"{name:9} {row['contender']:13} {times}  over one thread alone {row['over one thread alone']:.2f}")
        if "error" in result:
            print(f"{name:9} {result['error']}")
    write_json(arguments.output, {"machine": machine_facts(), "models": found})


if __name__ == "__main__":
    main()
