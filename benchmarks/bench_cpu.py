"""Models on the CPU beside their best peers: float32, bf16, int8 and weights in int4, on one and on two threads.

Each model has a process of its own, in which for each precision, size and number of threads all contenders take turns in
interleaved rounds: minimum and median. All are told the size before. Each answer is compared with eager's in float32 before
anything is timed, and how far it is away stands beside its times: the largest difference over the largest magnitude. An answer
that is further from eager than half its length, or not finite, is wrong, and its contender is no peer. Ours in float32 and bf16
are judged besides. Rates of the machine are measured beside each row. What was measured already on the same machine with the
same versions is kept, unless --again says otherwise; where a process failed, it is tried again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench_goals import verdicts
from bench_report import markdown, picture
from children import RESULTS, chosen, run_child, write_json
from machine_facts import best_rates, machine_facts

SIZES: dict[str, list[tuple[int, int]]] = {
    "minilm": [(1, 128), (8, 64)],
    "bert": [(1, 128)],
    "resnet50": [(1, 1)],
    "vit": [(1, 1)],
    "convnext": [(1, 1)],
    "gpt2": [(1, 128)],
    "llama110m": [(1, 128)],
    "whisper": [(1, 1)],
}
PRECISIONS = ("f32", "bf16", "int8", "int4")
PEERS = ("eager", "Inductor", "ONNX Runtime", "OpenVINO")
NOT_MEASURED = {("resnet50", "int4"): "it holds one product, all else are convolutions"}
LEAST_ROUNDS = 5
PAUSE = 0.005
"""Seconds of rest before a sample of several threads: those of the contender before wait awake for a few milliseconds."""
WRONG = 0.5
"""An answer that is further from eager's, in shares of its length, says more of the error than of the model."""


def measure(name: str, cells: Sequence[tuple[str, int]], given: argparse.Namespace) -> None:
    """One model: its cells (precision and threads) one after the other, each written as soon as it is done."""
    import zoo
    from bench_files import Files

    model = zoo.make(name, given.layers)
    wide = zoo.wide_copy(model)
    seconds = given.seconds_per_model / (len(SIZES[name]) * len(given.precisions.split(",")) * len(given.threads.split(",")))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = Files(model, name, SIZES[name][0], Path(folder))
        for precision, threads in cells:
            rows = [_row(name, model, wide, files, size, precision, threads, seconds, given) for size in SIZES[name]]
            found[f"{precision}/{threads}"] = rows
            write_json(given.child, found)


def _row(
    name: str, model: Any, wide: Any, files: Any, size: tuple[int, int], precision: str, threads: int, seconds: float, given: Any
) -> dict[str, Any]:
    """All contenders at one size: made, compared with eager, timed."""
    import zoo
    from bench_contenders import CONTENDERS, Setting
    from machine_rates import measured_rates

    from ourcc.compiler.commands.measure import compare

    inputs = model.draw(*size, 0)
    setting = Setting(files, [x.numpy() for x in inputs], zoo.sizes_of(model, size), threads)
    told = partial(_say, f"{name:9s} {precision} {zoo.size_text(model, size)} threads {threads}:")
    eager, exact = zoo.answers(model.module, inputs), zoo.answers(wide, inputs)
    calls: dict[str, Callable[[], object]] = {}
    contenders: dict[str, dict[str, Any]] = {}
    peers = given.peers.split(",")
    for contender in CONTENDERS[precision]:
        if contender.side == "peer" and not contender.name.startswith(tuple(peers)):
            continue
        row = contenders[contender.name] = {"what": contender.name, "side": contender.side}
        start = time.perf_counter()
        try:
            run = contender.make(setting)
            answer = run(setting.arrays)[0].astype(eager.dtype)
        except Exception as error:  # noqa: BLE001 - what a contender cannot do is its result
            row["refused"] = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"
            told(f"{contender.name} refuses: {row['refused']}")
            if contender.side != "peer":
                traceback.print_exc()
            continue
        row |= {"seconds_to_first_answer": round(time.perf_counter() - start, 2), **_apart(answer, eager)}
        if contender.side == "ours" and precision in ("f32", "bf16"):
            row |= _judged(model, inputs, answer, eager, exact, precision)
        calls[contender.name] = partial(run, setting.arrays)
    first = next(iter(calls), None)
    if first is None:
        raise SystemExit(f"{name} {precision}: nothing runs")
    calls[AGAIN] = calls[first]
    # A short call is repeated until a sample takes 20 ms.
    count = max(
        min(given.rounds, LEAST_ROUNDS), min(given.rounds, int(seconds / sum(max(_seconds(call), 0.02) for call in calls.values())))
    )
    rates = measured_rates(threads)
    timings = {timing.name: timing for timing in compare(calls, count, pause=PAUSE if threads > 1 else 0.0)}
    again = timings.pop(AGAIN)
    for what, timing in timings.items():
        contenders[what] |= {"minimum_ms": round(timing.minimum * 1e3, 4), "median_ms": round(timing.median * 1e3, 4)}
        contenders[what]["samples_ms"] = [round(sample * 1e3, 4) for sample in timing.samples]
        told(f"{what:20s} {timing.minimum * 1e3:9.2f} ms, median {timing.median * 1e3:9.2f} ms, apart {contenders[what]['largest']:.1e}")
    return {
        **{"model": name, "title": zoo.TITLES[name], "size": zoo.size_text(model, size), "precision": precision, "threads": threads},
        **{"depthwise": zoo.is_depthwise(model), "gflop": round(zoo.operations(model, inputs) / 1e9, 3), "rounds": count, "rates": rates},
        "two_of_the_same_apart": round(abs(again.minimum / timings[first].minimum - 1), 4),
        "contenders": list(contenders.values()),
    }


AGAIN = "again"
"""The first contender once more: how far apart two runs of the same are on this machine."""


def _seconds(call: Callable[[], object]) -> float:
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _apart(answer: Any, eager: Any) -> dict[str, Any]:
    """How far an answer is from eager's: by its worst element, by all, and whether it is wrong."""
    import numpy as np

    if answer.shape != eager.shape:
        raise ValueError(f"the answer has shape {answer.shape}, expected {eager.shape}")
    largest = float(np.abs(answer - eager).max() / np.abs(eager).max())
    whole = float(np.linalg.norm(answer - eager) / np.linalg.norm(eager))
    return {"largest": float(f"{largest:.3g}"), "relative": float(f"{whole:.3g}"), "wrong": not whole < WRONG}


def _judged(model: Any, inputs: Any, answer: Any, eager: Any, exact: Any, precision: str) -> dict[str, Any]:
    """The judge's word on ours, with eager in the same type standing in for stepwise."""
    import copy

    import zoo

    from ourcc.ir.graph.reference import DIGITS, judge

    stepwise = eager
    if precision == "bf16":
        stepwise = zoo.answers(copy.deepcopy(model.module).bfloat16(), inputs)
    verdict = judge(answer, stepwise, exact, factor=4, floor=4, digits=DIGITS[precision])
    return {"judged": verdict.reason, "error": verdict.error, "allowed": verdict.allowed, "wrong": not verdict.passed}


def _say(*words: str) -> None:
    print(*words, flush=True)


def outstanding(kept: dict[str, Any], name: str, given: argparse.Namespace) -> list[tuple[str, int]]:
    """The cells of a model that are not measured yet, or failed."""
    wanted = [(precision, int(threads)) for precision in given.precisions.split(",") for threads in given.threads.split(",")]
    wanted = [cell for cell in wanted if (name, cell[0]) not in NOT_MEASURED]
    return [cell for cell in wanted if not isinstance(kept.get(f"{cell[0]}/{cell[1]}"), list)]


def measured(name: str, kept: dict[str, Any], given: argparse.Namespace, save: Callable[[], None]) -> None:
    """Measure what is outstanding of a model; a cell whose process ends is marked, and a new process takes the rest."""
    failed: set[tuple[str, int]] = set()
    while cells := [cell for cell in outstanding(kept, name, given) if cell not in failed]:
        words = [f"{precision}/{threads}" for precision, threads in cells]
        options = ["--models", name, "--cells", ",".join(words), "--rounds", str(given.rounds), "--peers", given.peers]
        options += ["--precisions", given.precisions, "--threads", given.threads, "--seconds-per-model", str(given.seconds_per_model)]
        found = run_child(__file__, [*options, *([] if given.layers is None else ["--layers", str(given.layers)])])
        error = found.pop("error", None)
        kept |= found
        left = [cell for cell, word in zip(cells, words, strict=True) if word not in found]
        if error is not None and left:
            failed.add(left[0])
            kept[f"{left[0][0]}/{left[0][1]}"] = {"error": error}
        save()


def earlier(path: Path, facts: dict[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """The models that a file holds already; SystemExit where they are of another machine, other versions or other layers."""
    if not path.exists():
        return {}
    held: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    then = {"layers": held["layers"], **{what: held["machine"][what] for what in SAME}}
    now = {"layers": given.layers, **{what: facts[what] for what in SAME}}
    if differs := [f"{what} {then[what]}, now {now[what]}" for what in now if then[what] != now[what]]:
        raise SystemExit(f"{path} was measured with {'; '.join(differs)}: remove it, or name another file with -o")
    models: dict[str, Any] = held["models"]
    return models


SAME = ("cpu", "processors", "compiler", "versions")
"""Facts of the machine without which times are not of one table."""


def rows_of(models: dict[str, Any]) -> list[dict[str, Any]]:
    """Every row that was measured, by precision, threads and model; rates are the best that were measured on so many threads."""
    rows = [row for name in SIZES for cell in models.get(name, {}).values() if isinstance(cell, list) for row in cell]
    rates = {threads: best_rates(row["rates"] for row in rows if row["threads"] == threads) for threads in {row["threads"] for row in rows}}
    told = [row | {"rates": rates[row["threads"]]} for row in rows]
    return sorted(told, key=lambda row: (PRECISIONS.index(row["precision"]), row["threads"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(SIZES), help="which ones, separated by commas")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="some of f32, bf16, int8, int4")
    parser.add_argument("--threads", default="1,2", help="numbers of threads")
    parser.add_argument("--peers", default=",".join(PEERS), help="whom to compare with")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of measuring; fewer where one takes long")
    parser.add_argument("--seconds-per-model", type=float, default=240.0, help="seconds of measuring that a model is given, at five rounds")
    parser.add_argument("--layers", type=int, help="so many layers instead of all: to try the script out")
    parser.add_argument("--again", action="store_true", help="measure the models that were measured already, too")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "bench_cpu.json", help="file; a table and a picture go beside it")
    parser.add_argument("--cells", help=argparse.SUPPRESS)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = chosen(given.models, list(SIZES))
    chosen(given.precisions, PRECISIONS)
    chosen(given.peers, PEERS)
    if given.child is not None:
        cells = [cell.split("/") for cell in given.cells.split(",")]
        measure(names[0], [(precision, int(threads)) for precision, threads in cells], given)
        return 0
    facts = machine_facts()
    _say(f"{facts['cpu']}, one thread: " + ", ".join(f"{name} {rate}" for name, rate in facts.items() if isinstance(rate, float)))
    models = earlier(given.output, facts, given)

    def save() -> dict[str, Any]:
        rows = rows_of(models)
        results = {"layers": given.layers, "machine": facts, "verdicts": verdicts(rows), "models": models}
        write_json(given.output, results)
        given.output.with_suffix(".md").write_text(markdown(results, rows), encoding="utf-8")
        given.output.with_suffix(".svg").write_text(picture(rows), encoding="utf-8")
        return results

    for name in names:
        if given.again:
            models.pop(name, None)
        measured(name, models.setdefault(name, {}), given, save)
    save()
    print(f"\n{given.output.with_suffix('.md').read_text(encoding='utf-8')}")
    broken = [cell for kept in models.values() for cell in kept.values() if not isinstance(cell, list)]
    wrong = [each for row in rows_of(models) for each in row["contenders"] if each["side"] == "ours" and each.get("wrong", True)]
    return 1 if broken or wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
