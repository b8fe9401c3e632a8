"""Products with weights in every format that `--quantize` names, one thread: times of few and of many rows, beside f32.

One linear layer whose weights are larger than the last cache of most machines. All engines of a row count take turns in
interleaved rounds; bytes are those that are stored. Up to 16 rows the time is held against what the machine reads and multiplies.
`2:4.NAME` is a format of weights that are pruned 2:4. Beside them stands the format that docs/howto/add-a-format.md declares, which
nothing in the tree knows: `added`.
"""

from __future__ import annotations

import argparse
import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench_goals import product_missed
from children import RESULTS, chosen, write_json
from machine_facts import machine_facts

ROWS = (1, 4, 16, 128)
SHOWN = Path(__file__).parents[1] / "tests" / "ir" / "formats" / "shown.py"
ADDED, SPARSE = "added", "2:4."
FLOAT = "f32"


def module(depth: int, width: int) -> Any:
    """x @ w.T for any number of rows."""
    from ourcc.ir.graph import Builder, Graph, Module
    from ourcc.ir.types import TensorType, f32

    made = Module("linear")
    graph = made.functions["main"] = Graph("main")
    x = graph.add_input("x", TensorType(f32, (made.declare("M", 1, max(ROWS)), depth)))
    values = np.random.default_rng(0).standard_normal((width, depth)).astype(np.float32) / np.float32(np.sqrt(depth))
    graph.set_outputs([Builder(made, graph).matmul(x, made.add_constant("w", values), transpose_b=True)])
    return made


def added(depth: int, width: int, options: Any) -> Any:
    """The contents of an engine with the weight in the format of the page."""
    from ourcc.compiler.pipeline import compile_module
    from ourcc.ir.formats import FORMATS
    from ourcc.passes.manager import PassManager
    from ourcc.passes.pipeline import parse_pipeline

    spec = importlib.util.spec_from_file_location("shown", SHOWN)
    assert spec is not None and spec.loader is not None
    shown = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shown)
    FORMATS[shown.FIVE.name] = shown.FIVE
    made = module(depth, width)
    PassManager(parse_pipeline(f"encode_weights{{format={shown.FIVE.name}}}, eliminate_dead_code"), strict=True).run(made)
    return compile_module(made, options)


def main() -> None:
    """Every format at every number of rows."""
    from ourcc.compiler.commands.measure import compare
    from ourcc.compiler.options import build_options
    from ourcc.compiler.pipeline import compile_module
    from ourcc.passes.quantize import QUANTIZATIONS
    from ourcc.runtime.engine import Engine

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=8448)
    parser.add_argument("--width", type=int, default=12288)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--formats", default="", help="which ones, separated by commas")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "weights.json")
    given = parser.parse_args()
    engines, stored = {}, {}
    names = [name for name, each in QUANTIZATIONS.items() if each.format is not None]
    sparse = [SPARSE + name for name in (FLOAT, *names)]
    for name in (FLOAT, *(chosen(given.formats, [*names, ADDED, *sparse]) or (*names, ADDED))):
        kept, sparsity = name.removeprefix(SPARSE), "2:4" if name in sparse else None
        asked = {"quantize": kept if kept in names else None, "sparsity": sparsity}
        options = build_options({"targets": ["native"], "threads": 1, **asked})
        shape = given.depth, given.width
        contents = added(*shape, options) if name == ADDED else compile_module(module(*shape), options)
        engines[name] = Engine(contents, threads=1)
        stored[name] = sum(constant.data.size for file in contents.weights.values() for constant in file.values())
        print(f"{name} built", flush=True)
    rows, facts = [], machine_facts()
    for count in ROWS:
        x = np.random.default_rng(1).standard_normal((count, given.depth)).astype(np.float32)
        timings = compare({name: partial(engine, x) for name, engine in engines.items()}, given.rounds)
        usual = next(t.minimum for t in timings if t.name == FLOAT)
        for timing in timings:
            rate = stored[timing.name] / timing.minimum / 1e9
            row = {"format": timing.name, "rows": count, "minimum_ms": timing.minimum * 1e3, "median_ms": timing.median * 1e3}
            row |= {"bytes": stored[timing.name], "times_as_fast_as_f32": usual / timing.minimum}
            misses = [miss.text for miss in product_missed(timing.name, row, 2 * count * given.depth * given.width, facts)]
            rows.append(row | {"missed": misses})
            print(
                f"{timing.name:18} M={count:<4} {timing.minimum * 1e3:8.3f} ms, {usual / timing.minimum:5.2f} times as fast as f32, "
                f"{rate:5.1f} GB/s of stored bytes{''.join(f'; missed: {miss}' for miss in misses)}",
                flush=True,
            )
    write_json(given.output, {"machine": facts, "depth": given.depth, "width": given.width, "rows": rows})


if __name__ == "__main__":
    main()
