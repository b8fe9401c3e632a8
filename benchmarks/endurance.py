"""Endurance: loads, recompilations, calls, tokens, sessions, threads, forks and kill -9; what each leaves behind of memory, mappings and
files.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from children import run_child, write_json
from machine_facts import machine_facts

RESULTS = Path(__file__).resolve().parent / "results"
X = np.linspace(-1, 1, 4 * 256, dtype=np.float32).reshape(4, 256)
ALLOWED = {"rss_kib": 24 << 10, "mappings": 16, "descriptors": 0, "threads": 0}
"""What may be more afterwards, however often it is done: heaps grow in steps, and caches with a limit fill."""

Row = dict[str, Any]


def state() -> dict[str, int]:
    """What this process holds now."""
    gc.collect()
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        mappings = sum(1 for _ in maps)
    with open("/proc/self/statm", encoding="ascii") as pages:
        resident = int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    return {
        **{"rss_kib": resident, "mappings": mappings},
        **{"descriptors": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task"))},
    }


def model(scale: float = 1.0, width: int = 2048) -> Any:
    """A layer of 2 MB, so that its weights are mapped."""
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(0).standard_normal((256, width)).astype(np.float32) * np.float32(scale)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", size]) for name, size in (("x", 256), ("y", width)))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def build(scale: float = 1.0, width: int = 2048) -> Any:
    """The engine of it."""
    import ourcc

    return ourcc.build(model(scale, width), tune="off", targets=["native"])


def repeated(count: int, step: Callable[[int], None]) -> Row:
    """A step many times over; what was taken before a twentieth of them is warming up."""
    warm = max(2, min(count // 20, 500))
    for number in range(warm):
        step(number)
    before = state()
    for number in range(warm, count):
        step(number)
    return compared(count, before, state())


def compared(count: int, before: dict[str, int], after: dict[str, int], wrong: int = 0, more_mappings: int = 0) -> Row:
    """One row with its verdict."""
    allowance = {**ALLOWED, "mappings": ALLOWED["mappings"] + more_mappings}
    grown = [name for name, allowed in allowance.items() if after[name] - before[name] > allowed]
    faults = ([f"{wrong} wrong"] if wrong else []) + [f"more {name}" for name in grown]
    return {"count": count, "before": before, "after": after, "verdict": "; ".join(faults) or "flat"}


# --- in one process ---------------------------------------------------------------------------------------------------


def loads(count: int, folder: Path) -> Row:
    """Load, call once, drop."""
    import ourcc

    build().save(folder / "m.ourcc")
    want = ourcc.load(folder / "m.ourcc")(X)

    def step(number: int) -> None:
        if not np.array_equal(ourcc.load(folder / "m.ourcc")(X), want):
            raise SystemExit("another answer")

    return repeated(count, step)


def calls(count: int, folder: Path) -> Row:
    """Calls of one engine, of changing sizes."""
    engine = build(width=16)
    inputs = [np.ascontiguousarray(X[: 1 + n % 4]) for n in range(4)]
    return repeated(count, lambda number: _call(engine, inputs[number % 4]))


def _call(engine: Any, x: Any) -> None:
    engine(x)


def builds(count: int, folder: Path) -> Row:
    """Another program each time, built and called."""
    return repeated(count, lambda number: _call(build(width=16 + number % 97), X))


def recompilations(count: int, folder: Path) -> Row:
    """torch.compile of another function each time."""
    import torch

    x = torch.from_numpy(X)

    def step(number: int) -> None:
        torch._dynamo.reset()
        function = torch.compile(lambda value: (value * (1.0 + number)).relu().sum(1), backend="ourcc")
        with torch.no_grad():
            function(x)

    return repeated(count, step)


def tokens(count: int, folder: Path) -> Row:
    """Tokens of a language model, in answers of a hundred that are taken whole, drawn and greedy, with guesses and without."""
    model = language_model(folder)
    return repeated(count // 100, lambda number: answered(model, number, 100))


def sessions(count: int, folder: Path) -> Row:
    """Sequences of a language model that are begun, answered in part, forked, continued and dropped."""
    from ourcc.runtime.language.writing import Told

    model = language_model(folder)

    def step(number: int) -> None:
        sequence = model.sequence()
        next(iter(model.follow(sequence, [2 + number % 500, 7, 9], Told(), max_tokens=4, ignore_end=True)))
        for _ in model.follow(sequence.fork(), [11, 12], Told(), max_tokens=3, ignore_end=True):
            pass

    return repeated(count, step)


def language_model(folder: Path) -> Any:
    """A small one of drawn weights, as an engine that was saved and loaded."""
    from lm_models import KINDS, Shape, seeded

    import ourcc

    shape = Shape(width=64, inner=128, layers=2, heads=4, groups=2, vocabulary=512, context=512)
    ourcc.build(seeded(folder / "m.gguf", shape, KINDS.Q8_0), quantize="a8", tune="off", targets=["native"]).save(folder / "m.ourcc")
    return ourcc.load(folder / "m.ourcc")


def answered(model: Any, number: int, count: int) -> None:
    """An answer of so many tokens."""
    drawn = {"temperature": 1.0, "seed": number, "top_p": 0.9} if number % 2 else {}
    answer = model.generate([5 + number % 400, 7, 9], max_tokens=count, ignore_end=True, speculate=number % 3, **drawn)
    for _ in answer:
        pass
    if len(answer.told.made) != count:
        raise SystemExit("fewer tokens than were asked for")


def threads(count: int, folder: Path) -> Row:
    """Eight threads call and load and replace what the others call; children are forked in between and call as well."""
    import ourcc

    build().save(folder / "m.ourcc")
    current = [ourcc.load(folder / "m.ourcc")]
    want = current[0](X)
    wrong: list[str] = []
    left = [count]

    def work(number: int) -> None:
        while left[0] > 0:
            left[0] -= 1
            if number % 2 and left[0] % 8 == 0:
                current[0] = ourcc.load(folder / "m.ourcc")
            if not np.array_equal(current[0](X), want):
                wrong.append("answer")

    def round_of_threads() -> None:
        workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            child = os.fork()
            if child == 0:
                os._exit(0 if np.array_equal(current[0](X), want) else 1)
            if os.waitpid(child, 0)[1]:
                wrong.append("child")
            time.sleep(0.02)

    total, left[0] = count, max(8, count // 10)
    round_of_threads()
    before = state()
    left[0] = total
    round_of_threads()
    # The C library keeps a heap for each thread, eight at most for each core, and the stacks of threads that ended.
    return compared(total, before, state(), len(wrong), more_mappings=48)


# --- killed -----------------------------------------------------------------------------------------------------------

VICTIM = """
import sys
sys.path.insert(0, sys.argv[1])
import endurance
endurance.write_forever(sys.argv[2], sys.argv[3])
"""
VICTIMS = ("save", "build", "store", "tune")


def write_forever(kind: str, place: str) -> None:
    """What is killed: a writer of engines, or of records."""
    from ourcc.compiler.cli.main import run

    folder = Path(place)
    number = 0
    if kind == "save":
        engines = [build(scale) for scale in (1.0, 2.0)]
        print("ready", flush=True)
        while True:
            number += 1
            engines[number % 2].save(folder / "m.ourcc")
    if kind == "store":
        from ourcc.autotune.store import open_store

        store = open_store(str(folder / "records"))
        print("ready", flush=True)
        while True:
            number += 1
            store.put(record(number))
    command = {
        "build": ["build", str(folder / "model.onnx"), "-o", str(folder / "m.ourcc"), "--report", str(folder / "report.html")],
        "tune": ["tune", str(folder / "m.ourcc"), "--budget", "2"],
    }[kind]
    print("ready", flush=True)
    while True:
        run(command)


def record(number: int) -> Any:
    """A record with a sample of this number."""
    from ourcc.autotune.record import Record, Sample, Trial
    from ourcc.passes.tile.schedule import Schedule

    problem = {"region": "", "symbols": {}, "layouts": {}, "constants": [], "bucket": {}}
    environment = {"architecture": "a", "device": "d", "features": [], "compiler": "c", "producer": "p", "policy": {}}
    return Record(problem, environment, (Trial(Schedule("nest", (("n", number % 50),)), (Sample(f"{number:016x}", (1000,)),)),))


def kills(count: int, folder: Path) -> Row:
    """Writers are killed at random moments; engines, records and reports are whole after each."""
    import onnx

    draw, faults = random.Random(0), list[str]()
    onnx.save(model(), folder / "model.onnx")
    right = [build(scale) for scale in (1.0, 2.0)]
    answers = [engine(X) for engine in right]
    right[0].save(folder / "m.ourcc")
    environment = {**os.environ, "OURCC_CACHE_DIR": str(folder / "cache")}
    faults += damage(folder, answers)
    before = state()
    for number in range(count):
        kind = VICTIMS[number % len(VICTIMS)]
        command = [sys.executable, "-c", VICTIM, str(Path(__file__).parent), kind, str(folder)]
        victim = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
        if victim.stdout is not None:
            victim.stdout.readline()
        time.sleep(draw.uniform(0.0, 0.3 if kind in ("save", "store") else 3.0))
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        faults += [f"{kind} {number}: {fault}" for fault in damage(folder, answers)]
    for fault in faults:
        print(f"  {fault}")
    return compared(count, before, state(), len(faults))


def damage(folder: Path, answers: list[Any]) -> Iterator[str]:
    """What is neither as it was nor as it was to be."""
    import ourcc
    from ourcc.autotune.store import open_store

    try:
        answer = ourcc.load(folder / "m.ourcc")(X)
        if not any(np.allclose(answer, right, rtol=1e-3, atol=1e-3) for right in answers):
            yield "the engine gives another answer"
    except ourcc.CompilerError as error:
        yield f"the engine is damaged: {error}"
    for place in (folder / "records", folder / "cache" / "records"):
        yield from (f"record {id[:16]}: {why.message}" for id, _, why in open_store(str(place)).damaged())
    for journal in (folder / "cache").glob("*.json"):
        json.loads(journal.read_text(encoding="utf-8"))
    for report in folder.glob("report.html"):
        if not report.read_text(encoding="utf-8").rstrip().endswith("</html>"):
            yield "the report is cut off"


# --- the whole --------------------------------------------------------------------------------------------------------

TASKS: dict[str, Callable[[int, Path], Row]] = {
    "loads": loads,
    "calls": calls,
    "builds": builds,
    "recompilations": recompilations,
    "tokens": tokens,
    "sessions": sessions,
    "threads": threads,
    "kills": kills,
}


@contextmanager
def own_cache() -> Iterator[Path]:
    """A folder to work in, and a cache in it."""
    with tempfile.TemporaryDirectory() as name:
        os.environ["OURCC_CACHE_DIR"] = str(Path(name) / "cache")
        yield Path(name)


def show(rows: dict[str, Row]) -> None:
    """The table."""
    print(f"\n{'what':16}{'count':>10}{'rss MiB':>16}{'mappings':>14}{'files':>10}{'threads':>10}  verdict")
    for name, row in rows.items():
        if "error" in row:
            print(f"{name:16}{'':60}  {row['error']}")
            continue
        before, after = row["before"], row["after"]
        cells = [f"{before['rss_kib'] / 1024:.0f} -> {after['rss_kib'] / 1024:.0f}"]
        cells += [f"{before[key]} -> {after[key]}" for key in ("mappings", "descriptors", "threads")]
        print(f"{name:16}{row['count']:>10}{cells[0]:>16}{cells[1]:>14}{cells[2]:>10}{cells[3]:>10}  {row['verdict']}")


def main() -> int:
    """Run the tasks, one process each; status 1 unless all are flat and whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loads", type=int, default=20_000)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--builds", type=int, default=1_000)
    parser.add_argument("--recompilations", type=int, default=1_000)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--sessions", type=int, default=2_000)
    parser.add_argument("--threads", type=int, default=20_000, help="calls of eight threads together")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--child", type=Path)
    parser.add_argument("--task", choices=list(TASKS))
    options = parser.parse_args()
    if options.child is not None:
        with own_cache() as folder:
            write_json(options.child, TASKS[options.task](getattr(options, options.task), folder))
        return 0
    rows: dict[str, Row] = {}
    for name in TASKS:
        count = getattr(options, name)
        if count:
            print(f"{name}: {count} ...", flush=True)
            rows[name] = run_child(__file__, ["--task", name, f"--{name}", str(count)])
    show(rows)
    write_json(options.output / "endurance.json", {"machine": machine_facts(), "allowed": ALLOWED, "rows": rows})
    return 0 if all(row.get("verdict") == "flat" for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
