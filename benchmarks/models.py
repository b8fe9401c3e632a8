"""Six whole models by both roads, an ONNX file and torch.compile: built, judged at many sizes, one process each."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from children import chosen, run_child, write_json
from machine_facts import machine_facts

RESULTS = Path(__file__).resolve().parent / "results"
MODELS = ("bert", "gpt2", "llama", "minilm", "resnet50", "vit")
ROADS = ("onnx", "torch")
TEXT_SIZES = [(1, 1), (1, 2), (2, 1), (3, 7), (1, 15), (1, 16), (1, 17), (4, 31), (2, 64), (1, 128), (1, 511), (1, 512)]
IMAGE_SIZES = [(1, 1), (2, 1), (3, 1), (5, 1)]
SEEDS = 8
ROWS_FOR_ALL_SEEDS = 256
"""A size of more rows than this is drawn twice: eight times would take minutes for the largest models."""


def check(name: str, road: str, layers: int | None) -> dict[str, Any]:
    """One model by one road: how long it took to build, and the verdict at each size."""
    import torch
    import zoo

    torch.set_num_threads(1)
    model = zoo.make(name, layers)
    result: dict[str, Any] = {"title": zoo.TITLES[name], "road": road}
    run = _onnx(name, model, result) if road == "onnx" else _torch(model, result)
    wide = zoo.wide_copy(model)
    result["sizes"] = []
    for size in TEXT_SIZES if zoo.is_text(model) else IMAGE_SIZES:
        seeds = SEEDS if size[0] * size[1] < ROWS_FOR_ALL_SEEDS else 2
        verdict = zoo.judged(model, wide, run, size, seeds)
        text = zoo.size_text(model, size)
        print(f"{name:9s} {road:6s} {text}: {verdict.reason} (error {verdict.error:.2e}, allowed {verdict.allowed:.2e})", flush=True)
        row = {"size": text, "seeds": seeds, "passed": verdict.passed, "error": verdict.error, "allowed": verdict.allowed}
        result["sizes"].append(row if verdict.passed else row | {"reason": verdict.reason})
    if road == "torch":
        result |= _graphs()
    result["passed"] = all(row["passed"] for row in result["sizes"])
    return result


def _onnx(name: str, model: Any, result: dict[str, Any]) -> Any:
    """The engine of the model's ONNX file."""
    import zoo

    from ourcc.compiler.commands.build import build
    from ourcc.compiler.options import build_options
    from ourcc.ir.plan import Launch

    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        path = zoo.write_onnx(model, Path(folder) / f"{name}.onnx")
        result["export_seconds"] = round(time.perf_counter() - start, 2)
        start = time.perf_counter()
        engine = build(str(path), build_options({"targets": ["native"], "shapes": zoo.shapes_of(model), "threads": 1}))
        result["build_seconds"] = round(time.perf_counter() - start, 2)
    (parts,) = engine.contents.parts.values()
    (rows,) = engine.contents.report["kernels"].values()
    result["kernels"] = len(rows)
    result["launches"] = sum(isinstance(step, Launch) for step in parts.plan.steps)
    result["other_steps"] = len(parts.plan.steps) - result["launches"]
    print(f"{name:9s} onnx   built in {result['build_seconds']} s, {len(rows)} kernels", flush=True)
    return lambda arrays: [engine(*arrays)]


def _torch(model: Any, result: dict[str, Any]) -> Any:
    """The model through torch.compile, found by the backend's name alone; time spent compiling is added up."""
    import torch

    compiled = torch.compile(model.module, backend="ourcc", dynamic=True)
    result["compile_seconds"] = 0.0

    def run(arrays: Sequence[Any]) -> list[Any]:
        before, start = _graphs()["graphs"], time.perf_counter()
        with torch.no_grad():
            answer = compiled(*(torch.from_numpy(array) for array in arrays)).numpy()
        if _graphs()["graphs"] != before:
            result["compile_seconds"] = round(result["compile_seconds"] + time.perf_counter() - start, 2)
        return [answer]

    return run


def _graphs() -> dict[str, int]:
    """How many graphs torch has made, and how often it had to leave one."""
    from torch._dynamo.utils import counters

    return {"graphs": counters["stats"]["unique_graphs"], "graph_breaks": sum(counters["graph_break"].values())}


def _line(name: str, road: str, result: dict[str, Any]) -> str:
    """What the summary says of one run."""
    if "error" in result:
        return f"{name:9s} {road:6s} {result['error']}"
    wrong = [row["size"] for row in result["sizes"] if not row["passed"]]
    state = f"wrong at {'; '.join(wrong)}" if wrong else f"right at {len(result['sizes'])} sizes"
    how = f"built in {result['build_seconds']} s" if road == "onnx" else f"{result['graphs']} graphs in {result['compile_seconds']} s"
    return f"{name:9s} {road:6s} {state}, {how}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="which ones, separated by commas")
    parser.add_argument("--roads", default=",".join(ROADS), help="onnx, torch, or both separated by a comma")
    parser.add_argument("--layers", type=int, help="so many layers instead of all: to try the script out")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names, roads = chosen(options.models, MODELS), chosen(options.roads, ROADS)
    if options.child is not None:
        write_json(options.child, check(names[0], roads[0], options.layers))
        return 0
    start = time.perf_counter()
    facts = machine_facts()
    cut = [] if options.layers is None else ["--layers", str(options.layers)]
    found = {name: {road: run_child(__file__, ["--models", name, "--roads", road, *cut]) for road in roads} for name in names}
    results = {"command": "make models", "layers": options.layers, "machine": facts, "seconds": round(time.perf_counter() - start)}
    write_json(options.output / "models.json", results | {"models": found})
    print()
    for name, by_road in found.items():
        for road, result in by_road.items():
            print(_line(name, road, result))
    return 0 if all(result.get("passed", False) for by_road in found.values() for result in by_road.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
