"""Attention in a window of keys on the CPU, one thread: ours beside ONNX Runtime, OpenVINO, eager torch and TorchInductor.

One ONNX file of an `Attention` node whose bool mask is computed from positions, and the same function in torch. Who looks at no
more than the window takes time for rows x window; who looks at everything, for rows x rows.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from children import RESULTS, write_json
from machine_facts import machine_facts
from onnx import TensorProto, helper
from torch.nn import functional

from ourcc.compiler.commands.build import build
from ourcc.compiler.commands.measure import compare
from ourcc.compiler.commands.measure import rows as rows_of
from ourcc.compiler.commands.peers import engine_run, onnxruntime_run, openvino_run, torch_run
from ourcc.compiler.options import build_options

SIZES = ((2048, 256), (4096, 1024), (8192, 256), (8192, 1024))
"""Rows, which are as many as keys, and keys that a row looks at, up to its own."""
HEADS, DEPTH = 8, 64
SIDES = ("ourcc", "onnxruntime", "openvino", "torch", "inductor")


class Windowed(torch.nn.Module):
    """Each row over the last `span` keys up to its own."""

    def __init__(self, span: int) -> None:
        super().__init__()
        self.span = span

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """(1, heads, rows, depth) of each."""
        rows, columns = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=(columns <= rows) & (columns > rows - self.span))


def model(rows: int, span: int) -> onnx.ModelProto:
    """The same as a file: Attention of opset 23."""
    shape = [1, HEADS, rows, DEPTH]
    numbers = {"zero": 0, "one": 1, "rows": rows, "span": span}
    held = [helper.make_tensor(name, TensorProto.INT64, [], [value]) for name, value in numbers.items()]
    held += [helper.make_tensor(name, TensorProto.INT64, [1], [value]) for name, value in (("first", 0), ("second", 1))]
    nodes = [
        helper.make_node("Range", ["zero", "rows", "one"], ["places"]),
        helper.make_node("Unsqueeze", ["places", "second"], ["row"]),
        helper.make_node("Unsqueeze", ["places", "first"], ["column"]),
        helper.make_node("LessOrEqual", ["column", "row"], ["before"]),
        helper.make_node("Sub", ["row", "span"], ["start"]),
        helper.make_node("Greater", ["column", "start"], ["near"]),
        helper.make_node("And", ["before", "near"], ["mask"]),
        helper.make_node("Attention", ["q", "k", "v", "mask"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "qkv"]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "window", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def calls_of(rows: int, span: int, folder: Path, sides: Sequence[str]) -> dict[str, Callable[[], Any]]:
    """A call of each side, on the same numbers."""
    path, given = folder / "window.onnx", drawn(rows)
    onnx.save(model(rows, span), path)
    made: dict[str, Callable[[], Callable[[Any], Any]]] = {
        "ourcc": lambda: engine_run(build(str(path), build_options({"targets": ["native"], "threads": 1}))),
        "onnxruntime": lambda: onnxruntime_run(path, 1),
        "openvino": lambda: openvino_run(path, 1),
        "torch": lambda: torch_run(Windowed(span), False, 1),
        "inductor": lambda: torch_run(Windowed(span), True, 1),
    }
    return {name: partial(made[name](), given) for name in sides}


def drawn(rows: int) -> list[np.ndarray[Any, Any]]:
    """Queries, keys and values."""
    return [np.random.default_rng(n).standard_normal((1, HEADS, rows, DEPTH), np.float32) for n in range(3)]


def measure(rows: int, span: int, rounds: int, sides: Sequence[str] = SIDES) -> dict[str, Any]:
    """Milliseconds of each side, and how far its answer is from float64's."""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        calls = calls_of(rows, span, Path(folder), sides)
        exact = Windowed(span)(*(torch.from_numpy(each).double() for each in drawn(rows))).numpy()
        apart = {name: float(np.abs(np.asarray(call()[0]) - exact).max()) for name, call in calls.items()}
        timings = rows_of(compare(calls, rounds))
    timed = {name: {"minimum": round(least, 2), "median": round(middle, 2)} for name, least, middle, *_ in timings}
    best = min((each["minimum"], name) for name, each in timed.items() if name != "ourcc")
    ours = timed["ourcc"]["minimum"]
    work = 4e-6 * HEADS * DEPTH * sum(min(row + 1, span) for row in range(rows))
    return {"ms": timed, "apart": apart, "best": best[1], "ratio": round(best[0] / ours, 2), "gflops": round(work / ours, 1)}


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds of measuring")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "windows.json", help="file of the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for rows, span in SIZES:
        row = found[f"{rows} x {span}"] = measure(rows, span, options.rounds)
        times = ", ".join(f"{name} {each['minimum']}" for name, each in row["ms"].items())
        beside = f"{row['best']} takes {row['ratio']} times as long"
        print(f"{rows} rows, window {span}: ms {times}; {beside}; {row['gflops']} Gflop/s", flush=True)
    write_json(options.output, {"threads": 1, "heads": HEADS, "depth": DEPTH, "machine": machine_facts(), "windows": found})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
