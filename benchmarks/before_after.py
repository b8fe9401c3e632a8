"""This tree beside another checkout of it: both build the six models, and their engines are timed in one process, one thread.

In interleaved rounds. Each of the two has a second engine, so that the table says how far apart two runs of the same are.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from bench import RESULTS, SIZES
from children import chosen, run_child, write_json
from machine_facts import machine_facts

OTHER = "ourcc_before"


def import_other(checkout: Path) -> None:
    """Make another checkout's package importable under a name of its own; all its imports are relative."""
    folder = Path(tempfile.mkdtemp(prefix="before-after-"))
    (folder / OTHER).symlink_to(checkout.resolve(), target_is_directory=True)
    sys.path.insert(0, str(folder))
    os.environ["OURCC_CACHE_DIR"] = str(folder / "cache")


def measure(name: str, checkout: Path, layers: int | None, rounds: int) -> dict[str, Any]:
    """One model at its sizes."""
    import torch
    import zoo

    from ourcc.compiler.measure import compare

    torch.set_num_threads(1)
    import_other(checkout)
    model = zoo.make(name, layers)
    engines: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = zoo.write_onnx(model, Path(folder, f"{name}.onnx"))
        for package, label in ((OTHER, "before"), ("ourcc", "after")):
            options = importlib.import_module(f"{package}.compiler.options")
            driver = importlib.import_module(f"{package}.compiler.driver")
            asked = options.build_options({"targets": ["native"], "shapes": zoo.shapes_of(model), "threads": 1})
            for again in ("", " again"):
                engines[label + again] = driver.build(str(path), asked)
    found = []
    for size in SIZES[name]:
        arrays = [x.numpy() for x in model.draw(*size, 0)]
        timings = compare({label: partial(engine, *arrays) for label, engine in engines.items()}, rounds)
        row = {timing.name: {"minimum_ms": timing.minimum * 1e3, "median_ms": timing.median * 1e3} for timing in timings}
        found.append({"size": zoo.size_text(model, size), "times": row})
        least = {label: min(row[label]["minimum_ms"], row[f"{label} again"]["minimum_ms"]) for label in ("before", "after")}
        spread = max(abs(row[label]["minimum_ms"] / row[f"{label} again"]["minimum_ms"] - 1) for label in ("before", "after"))
        print(
            f"{name:9} {found[-1]['size']:12} before {least['before']:8.2f} ms, after {least['after']:8.2f} ms, "
            f"{least['before'] / least['after']:.2f} times as fast; two runs of the same differ by {spread:.1%}",
            flush=True,
        )
    return {"sizes": found}


def main() -> None:
    """Each model in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="folder of the other checkout")
    parser.add_argument("--models", default=",".join(SIZES), help="which ones, separated by commas")
    parser.add_argument("--layers", type=int, help="so many layers instead of all: to try the script out")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "before_after.json")
    options = parser.parse_args()
    names = chosen(options.models, list(SIZES))
    if options.child is not None:
        write_json(options.child, measure(names[0], options.before, options.layers, options.rounds))
        return
    passed_on = ["--before", str(options.before), "--rounds", str(options.rounds)]
    passed_on += [] if options.layers is None else ["--layers", str(options.layers)]
    models = {name: run_child(__file__, ["--models", name, *passed_on]) for name in names}
    write_json(options.output, {"machine": machine_facts(), "models": models})


if __name__ == "__main__":
    main()
