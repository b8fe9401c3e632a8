"""Six models, one thread: the engine beside eager, eager once more, Inductor with freezing, and ONNX Runtime.

Each model has a process of its own, in which all are timed in interleaved rounds. The engine's answer is judged before
anything is timed. The second eager run shows how far apart two runs of the same thing are on this machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench_table import is_slower, markdown
from children import chosen, run_child, write_json
from machine_facts import best_rates, machine_facts, rates

RESULTS = Path(__file__).resolve().parent / "results"
SIZES: dict[str, list[tuple[int, int]]] = {
    "minilm": [(1, 128), (8, 128)],
    "bert": [(1, 128), (8, 128)],
    "gpt2": [(1, 128)],
    "llama": [(1, 128)],
    "resnet50": [(1, 1)],
    "vit": [(1, 1)],
}
LEAST_ROUNDS = 5
SECONDS = 40.0
"""A size is given so long at most, unless that were fewer than LEAST_ROUNDS rounds."""


def measure_model(name: str, layers: int | None, rounds: int, least: int = LEAST_ROUNDS) -> dict[str, Any]:
    """Everything about one model: built, checked, timed at its sizes."""
    import torch
    import zoo

    from ourcc.compiler.commands.build import build
    from ourcc.compiler.commands.peers import make_peer
    from ourcc.compiler.options import build_options

    torch.set_num_threads(1)
    model = zoo.make(name, layers)
    with tempfile.TemporaryDirectory() as folder:
        path = zoo.write_onnx(model, Path(folder) / f"{name}.onnx")
        _say(name, "exported")
        start = time.perf_counter()
        engine = build(str(path), build_options({"targets": ["native"], "shapes": zoo.shapes_of(model), "threads": 1}))
        seconds = time.perf_counter() - start
        _say(name, f"engine built in {seconds:.1f} s")
        runtime = make_peer("onnxruntime", path)

    def run_engine(arrays: Sequence[zoo.Array]) -> list[zoo.Array]:
        return [engine(*arrays)]

    sizes = []
    for size in SIZES[name]:
        verdict = zoo.judged(model, zoo.wide_copy(model), run_engine, size, seeds=1)
        _say(name, f"{zoo.size_text(model, size)}: answer {verdict.reason} (error {verdict.error:.2e}, allowed {verdict.allowed:.2e})")
        if not verdict.passed:
            return {"title": zoo.TITLES[name], "error": f"wrong answer at {zoo.size_text(model, size)}: {verdict.reason}"}
        measured = _measure_size(name, model, size, {"ourcc": run_engine, "onnxruntime": runtime}, rounds, least)
        sizes.append(measured | {"error": verdict.error, "allowed": verdict.allowed})
    return {"title": zoo.TITLES[name], "build_seconds": round(seconds, 2), "sizes": sizes}


def _measure_size(name: str, model: Any, size: tuple[int, int], given: dict[str, Any], rounds: int, least: int) -> dict[str, Any]:
    """The times of all candidates at one size."""
    import torch
    import zoo

    from ourcc.compiler.commands.measure import compare, rows
    from ourcc.compiler.commands.peers import torch_run

    inputs = model.draw(*size, 0)
    arrays = [x.numpy() for x in inputs]
    # Inductor compiles this size alone: what it learned of another one would make it compile for all.
    torch._dynamo.reset()
    eager = torch_run(model.module, False, 1)
    inductor = torch_run(model.module, True, 1)
    start = time.perf_counter()
    inductor(arrays)
    compile_seconds = time.perf_counter() - start
    _say(name, f"{zoo.size_text(model, size)}: Inductor compiled in {compile_seconds:.1f} s")
    runs = {"ourcc": given["ourcc"], "eager": eager, "eager again": eager, "inductor": inductor, "onnxruntime": given["onnxruntime"]}
    calls: dict[str, Callable[[], object]] = {what: partial(run, arrays) for what, run in runs.items()}
    count = min(rounds, max(least, int(SECONDS / _round_seconds(calls))))
    timings = compare(calls, count)
    table = rows(timings)
    for what, minimum, median, ratio in table:
        _say(name, f"{zoo.size_text(model, size)}: {what:12s} {minimum:9.2f} ms, median {median:9.2f} ms, {ratio:5.2f} x ourcc")
    return {
        "size": zoo.size_text(model, size),
        "machine": rates(),
        "rounds": count,
        "gflop": round(_operations(model, inputs) / 1e9, 3),
        "inductor_compile_seconds": round(compile_seconds, 1),
        "times": [{"what": what, "minimum_ms": low, "median_ms": middle, "ratio": ratio} for what, low, middle, ratio in table],
        "samples_ms": {timing.name: [round(sample * 1e3, 4) for sample in timing.samples] for timing in timings},
    }


def _round_seconds(calls: dict[str, Callable[[], object]]) -> float:
    total = 0.0
    for call in calls.values():
        call()
        start = time.perf_counter()
        call()
        # A short call is repeated until a sample takes 20 ms.
        total += max(time.perf_counter() - start, 0.02)
    return total


def _operations(model: Any, inputs: Sequence[Any]) -> int:
    """Multiplications and additions of products, convolutions and attention, as torch counts them."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.module(*inputs)
    return int(counter.get_total_flops())


def _say(name: str, text: str) -> None:
    print(f"{name:9s} {text}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(SIZES), help="which ones, separated by commas")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of measuring; fewer where one takes long")
    parser.add_argument("--layers", type=int, help="so many layers instead of all: to try the script out")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = chosen(options.models, list(SIZES))
    if options.child is not None:
        write_json(options.child, measure_model(names[0], options.layers, options.rounds, min(options.rounds, LEAST_ROUNDS)))
        return 0
    start = time.perf_counter()
    facts = machine_facts()
    print(f"{facts['cpu']}: {facts['fma_gflops']} GFLOP/s, {facts['read_gbytes_per_second']} GB/s on one thread", flush=True)
    passed_on = ["--rounds", str(options.rounds), *([] if options.layers is None else ["--layers", str(options.layers)])]
    found = {name: run_child(__file__, ["--models", name, *passed_on]) for name in names}
    sizes = [size for result in found.values() for size in result.get("sizes", ())]
    facts |= best_rates([{name: facts[name] for name in ("fma_gflops", "read_gbytes_per_second")}, *(size["machine"] for size in sizes)])
    results = {
        "command": "make bench",
        "layers": options.layers,
        "threads": 1,
        "machine": facts,
        "seconds": round(time.perf_counter() - start),
        "models": found,
    }
    text = markdown(results)
    write_json(options.output / "cpu_bench.json", results)
    (options.output / "cpu_bench.md").write_text(text, encoding="utf-8")
    print(f"\n{text}")
    return 1 if any("error" in result for result in found.values()) or any(map(is_slower, sizes)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
