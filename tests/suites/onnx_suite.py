"""ONNX's own backend suite through `ourcc.compiler.onnx_backend`: passed, unsupported with reasons, wrong.

Cases run in child processes, each under a deadline; a crash costs one case. Exit status 1 if anything is wrong. In
places the suite compares closer than its own expected floats are rounded: such a result is not wrong (and not passed)
where it is proven to be nearer to the exact answer than what the suite expects; these cases are listed by name.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from typing import Any

DEADLINE = 60.0
LOAD_DEADLINE = 120.0

# Cases whose expected result cannot be reproduced by any implementation, or that are no inference.
SORTED_OUT = (
    (re.compile(r"^test_bernoulli"), "random numbers without a defined generator"),
    (re.compile(r"^test_training_dropout(?!.*zero_ratio)"), "random numbers without a defined generator"),
    (re.compile(r"^test_(gradient|adagrad|adam|momentum|nesterov_momentum)"), "training"),
)


def sorted_out(name: str) -> str | None:
    """Why a case does not count, or None."""
    return next((reason for pattern, reason in SORTED_OUT if pattern.match(name)), None)


# --- the child --------------------------------------------------------------------------------------------------------


def work(reference: bool) -> None:
    """Read case names from standard input; answer each with one line of JSON."""
    warnings.simplefilter("ignore")
    from onnx.backend.test import BackendTest
    from onnx.backend.test.loader import load_model_tests

    from ourcc.compiler import onnx_backend
    from ourcc.compiler.onnx_backend import Backend

    if reference:
        onnx_backend.compile_module = onnx_backend.interpret_module
    cases = {case.name: case for case in load_model_tests(kind="node")}
    items = {name: item.func for group in BackendTest(Backend, __name__)._test_items.values() for name, item in group.items()}
    print(json.dumps(sorted(name for name in items if name.endswith("_cpu"))), flush=True)
    for line in sys.stdin:
        name = line.strip()
        print(json.dumps(run_case(items[name], cases.get(name.removesuffix("_cpu")))), flush=True)


def run_case(function: Any, case: Any) -> dict[str, str]:
    """One case's outcome and its reason; `case` is its data where they are at hand."""
    from ourcc.compiler.importers.onnx.context import UnsupportedModelError
    from ourcc.ir.errors import UnsupportedError

    try:
        function(None)
    except UnsupportedModelError as error:
        problem = error.problems[0]
        return {"outcome": "unsupported", "reason": f"{problem.op_type}: {problem.reason}", "kind": problem.op_type}
    except UnsupportedError as error:
        return {"outcome": "unsupported", "reason": error.message, "kind": "model"}
    except AssertionError as error:
        if case is not None and nearer_than_expected(case):
            return {"outcome": "nearer", "reason": "the suite's expected result is further from the exact one"}
        return {"outcome": "wrong", "reason": " ".join(str(error).split())[:300]}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this case's result
        return {"outcome": "wrong", "reason": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    return {"outcome": "passed", "reason": ""}


def nearer_than_expected(case: Any) -> bool:
    """Whether every float that the suite refuses is at least as near to the float64 reference as the expected one."""
    import numpy as np

    from ourcc.compiler.onnx_backend import Backend
    from ourcc.ir.graph.reference import interpret

    prepared = Backend.prepare(case.model)
    for inputs, expected in case.data_sets:
        arrays = [np.asarray(value) for value in inputs]
        results = prepared.run(arrays)
        key, free = prepared.bind(arrays)
        for got, wide, want in zip(results, interpret(prepared.modules[key], free, wide=True), expected, strict=True):
            if got.dtype != want.dtype or got.shape != want.shape:
                return False
            if got.dtype.name not in ("float16", "bfloat16", "float32"):
                return False
            ours, theirs = got.astype(np.float64), want.astype(np.float64)
            refused = ~np.isclose(ours, theirs, rtol=case.rtol, atol=case.atol, equal_nan=True)
            if not (np.abs(ours - wide) <= np.abs(theirs - wide))[refused].all():
                return False
    return True


# --- the parent -------------------------------------------------------------------------------------------------------


class Child:
    """One child process, started again after a crash or a deadline."""

    def __init__(self, flags: list[str]) -> None:
        self.flags = flags
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-W", "ignore", __file__, "--work", *self.flags]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, args=(self.process, self.lines), daemon=True).start()
        self.names: list[str] = json.loads(self.lines.get(timeout=LOAD_DEADLINE))

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put("")

    def run(self, name: str) -> dict[str, str]:
        if self.process.stdin is None:
            raise RuntimeError("the child has no standard input")
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        try:
            line = self.lines.get(timeout=DEADLINE)
        except queue.Empty:
            line, reason = "", f"took longer than {DEADLINE:.0f} s"
        else:
            reason = "the process died"
        if line:
            answer: dict[str, str] = json.loads(line)
            return answer
        self.stop()
        self.start()
        return {"outcome": "wrong", "reason": reason}

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--match", default="", help="only cases whose name this pattern finds")
    parser.add_argument("--reference", action="store_true", help="run imports in the reference interpreter: tests the importer alone")
    parser.add_argument("--json", metavar="FILE", help="write every case's outcome")
    parser.add_argument("--least", type=int, default=0, help="fail below this number of passed cases")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    if options.work:
        work(options.reference)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ONNX_HOME"], os.environ["ONNX_MODELS"] = folder, folder
        start = time.monotonic()
        outcomes = run_all(options.match, options.processes, ["--reference"] if options.reference else [])
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(outcomes, file, indent=1, sort_keys=True)
    return report(outcomes, time.monotonic() - start, options.least)


def run_all(pattern: str, processes: int, flags: list[str]) -> dict[str, dict[str, str]]:
    """Every case's outcome."""
    children = [Child(flags) for _ in range(processes)]
    names = [name for name in children[0].names if re.search(pattern, name)]
    outcomes: dict[str, dict[str, str]] = {}
    todo: queue.Queue[str] = queue.Queue()
    for name in names:
        reason = sorted_out(name)
        if reason is None:
            todo.put(name)
        else:
            outcomes[name] = {"outcome": "sorted out", "reason": reason}

    def consume(child: Child) -> None:
        while True:
            try:
                name = todo.get_nowait()
            except queue.Empty:
                return
            outcomes[name] = child.run(name)
            if sys.stderr.isatty():
                print(f"\r{len(outcomes)} of {len(names)} cases", end="", file=sys.stderr, flush=True)

    threads = [threading.Thread(target=consume, args=(child,)) for child in children]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for child in children:
        child.stop()
    return outcomes


def report(outcomes: dict[str, dict[str, str]], seconds: float, least: int) -> int:
    """Print the table; the exit status."""
    groups: dict[str, list[str]] = collections.defaultdict(list)
    for name in sorted(outcomes):
        groups[outcomes[name]["outcome"]].append(name)
    for outcome in ("sorted out", "nearer", "unsupported"):
        counts = collections.Counter(re.sub(r"'[^']*'|\(computed.*", "...", outcomes[name]["reason"]) for name in groups[outcome])
        print(f"{outcome}:")
        for reason, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
            print(f"  {count:5d}  {reason[:150]}")
    for outcome in ("nearer", "wrong"):
        for name in groups[outcome]:
            print(f"{outcome}: {name}: {outcomes[name]['reason']}")
    counts = {outcome: len(groups[outcome]) for outcome in ("passed", "unsupported", "nearer", "sorted out", "wrong")}
    print(f"{len(outcomes)} cases: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) + f" ({seconds:.0f} s)")
    return 1 if groups["wrong"] or counts["passed"] < least else 0


if __name__ == "__main__":
    sys.exit(main())
