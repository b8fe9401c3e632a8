"""How import, passes and planning grow with the model: generated graphs of 1,000 to 50,000 nodes, no kernel compiled.

Four families: equal layers (each a product, a norm and a pointwise tail), a chain of pointwise and shape ops, wide
sums (many branches that meet), and drawn pieces none of which is like another. One process for each size; seconds, bytes and
distinct kernels go to results/scale.json and a picture of seconds over nodes. `--whole` builds engines with an empty cache instead,
compilation included, to results/scale_builds.json.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from children import RESULTS, chosen, run_child, write_json
from machine_facts import machine_facts

WIDTH = 64
SIZES = (1000, 2000, 5000, 10_000, 20_000, 50_000)
STAGES = ("import", "passes", "plan")
COLOURS = {"layers": "#3b6fb6", "chain": "#b6543b", "wide": "#4c9a5b", "varied": "#8a5bb6"}


def layers(count: int) -> tuple[list[Any], dict[str, Any]]:
    """Transformer-like layers of 10 nodes each; all have one shape, and weights of their own."""
    from onnx import helper

    random = np.random.default_rng(0)
    nodes, constants, x = [], {"one": np.float32(1), "axes": np.array([-1])}, "x"
    for layer in range(max(count // 10, 1)):
        name = f"l{layer}_"
        constants[f"{name}w"] = random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8
        constants[f"{name}b"] = random.standard_normal(WIDTH).astype(np.float32)
        steps = (
            ("MatMul", (x, f"{name}w"), {}),
            ("Add", (f"{name}0", f"{name}b"), {}),
            ("Relu", (f"{name}1",), {}),
            ("ReduceMean", (f"{name}2",), {"axes": [-1]}),
            ("Sub", (f"{name}2", f"{name}3"), {}),
            ("Mul", (f"{name}4", f"{name}4"), {}),
            ("ReduceMean", (f"{name}5",), {"axes": [-1]}),
            ("Add", (f"{name}6", "one"), {}),
            ("Div", (f"{name}4", f"{name}7"), {}),
            ("Add", (f"{name}8", x), {}),
        )
        nodes += [helper.make_node(op, inputs, [f"{name}{n}"], **attrs) for n, (op, inputs, attrs) in enumerate(steps)]
        x = f"{name}9"
    return [*nodes, helper.make_node("Identity", [x], ["y"])], constants


def chain(count: int) -> tuple[list[Any], dict[str, Any]]:
    """One after the other: pointwise ops and transposes."""
    from onnx import helper

    nodes, x = [], "x"
    for n in range(count):
        op, attrs = (("Tanh", {}), ("Neg", {}), ("Add", {}), ("Transpose", {"perm": [1, 0]}))[n % 4]
        inputs = [x, "one"] if op == "Add" else [x]
        nodes.append(helper.make_node(op, inputs, [f"v{n}"], **attrs))
        x = f"v{n}"
    return [*nodes, helper.make_node("Identity", [x], ["y"])], {"one": np.float32(1)}


def wide(count: int) -> tuple[list[Any], dict[str, Any]]:
    """Branches of two nodes that are all added up, pairs first."""
    from onnx import helper

    leaves = [f"leaf{n}" for n in range(max(count // 3, 2))]
    nodes, constants = [], {}
    for n, leaf in enumerate(leaves):
        constants[f"c{n}"] = np.float32((n + 1) / len(leaves))
        nodes += [helper.make_node("Mul", ["x", f"c{n}"], [f"m{n}"]), helper.make_node("Sin", [f"m{n}"], [leaf])]
    made = 0
    while len(leaves) > 1:
        pairs = list(zip(leaves[::2], leaves[1::2], strict=False))
        names = [f"s{made + n}" for n in range(len(pairs))]
        nodes += [helper.make_node("Add", pair, [name]) for pair, name in zip(pairs, names, strict=True)]
        made += len(pairs)
        leaves = [*names, *leaves[2 * len(pairs) :]]
    return [*nodes, helper.make_node("Identity", [leaves[0]], ["y"])], constants


POINTWISE = ("Tanh", "Neg", "Abs", "Sigmoid", "Relu", "Sin", "Erf", "Floor", "Softplus", "Atan")


def varied(count: int) -> tuple[list[Any], dict[str, Any]]:
    """Pieces of 20 to 60 drawn nodes, pointwise ones of one and of two earlier values; each ends in a norm or a product of its own."""
    from onnx import helper

    draw, random = Random(0), np.random.default_rng(0)
    nodes: list[Any] = []
    constants: dict[str, Any] = {"axes": np.array([-1])}
    x = "x"

    def add(op: str, *inputs: str, **attrs: Any) -> str:
        nodes.append(helper.make_node(op, list(inputs), [f"v{len(nodes)}"], **attrs))
        return f"v{len(nodes) - 1}"

    while len(nodes) < count:
        piece = [x]
        for _ in range(draw.randrange(20, 60)):
            first = draw.choice(piece[-4:])
            if draw.random() < 0.4:
                piece.append(add(draw.choice(("Add", "Sub", "Mul", "Max")), first, draw.choice(piece)))
            else:
                piece.append(add(draw.choice(POINTWISE), first))
        if draw.random() < 0.5:
            constants[f"w{len(nodes)}"] = random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8
            x = add("MatMul", piece[-1], f"w{len(nodes)}")
        else:
            x = add("Sub", piece[-1], add("ReduceMean", piece[-1], axes=[-1]))
    return [*nodes, helper.make_node("Identity", [x], ["y"])], constants


FAMILIES: Mapping[str, Callable[[int], tuple[list[Any], dict[str, Any]]]] = {
    "layers": layers,
    "chain": chain,
    "wide": wide,
    "varied": varied,
}


def proto(family: str, count: int) -> Any:
    """The model."""
    from onnx import TensorProto, helper, numpy_helper

    nodes, constants = FAMILIES[family](count)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [WIDTH, WIDTH]) for name in ("x", "y")]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, family, ports[:1], ports[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measure(family: str, count: int) -> dict[str, Any]:
    """Seconds of each stage, the most memory of this process, and what the plan holds."""
    from ourcc.compiler.importers.onnx import import_onnx
    from ourcc.compiler.options import build_options
    from ourcc.compiler.pipeline import lower, simplify
    from ourcc.compiler.targets.registry import TARGETS

    model = proto(family, count)
    times = [time.perf_counter()]
    module = import_onnx(model)
    times.append(time.perf_counter())
    simplify(module, build_options({}))
    times.append(time.perf_counter())
    lowered = lower(module, TARGETS["native"])
    times.append(time.perf_counter())
    seconds = dict(zip(STAGES, (round(b - a, 3) for a, b in itertools.pairwise(times)), strict=True))
    return {
        "family": family,
        "nodes": len(model.graph.node),
        "seconds": {**seconds, "all": round(times[-1] - times[0], 3)},
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "launches": sum(1 for _ in lowered.launches),
        "kernels": len(lowered.kernels),
    }


def build(family: str, count: int) -> dict[str, Any]:
    """Seconds of a whole build for this machine with an empty cache, and the bytes of its code."""
    import ourcc

    model = proto(family, count)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OURCC_CACHE_DIR"] = folder
        start = time.perf_counter()
        engine = ourcc.build(model, targets=["native"])
        seconds = time.perf_counter() - start
    part = engine.contents.best
    return {
        "family": family,
        "nodes": len(model.graph.node),
        "seconds": round(seconds, 3),
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "kernels": sum(name.startswith("kernel_") for name in part.files),
        "code_bytes": len(part.files["engine.so"]),
    }


def picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """Seconds over nodes, both logarithmic, a line for each family; the grey one is linear."""
    import math

    width, height, left, bottom = 560, 340, 60, 40
    low, high = 0.1, max(row["seconds"]["all"] for row in rows) * 2

    def place(nodes: float, seconds: float) -> tuple[float, float]:
        x = left + (width - left - 20) * math.log(nodes / 1000) / math.log(60)
        return x, height - bottom - (height - bottom - 20) * math.log(max(seconds, low) / low) / math.log(high / low)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">']
    for nodes in SIZES:
        x, y = place(nodes, low)
        parts.append(f'<text x="{x:.0f}" y="{y + 18:.0f}" text-anchor="middle" fill="#556">{nodes:,}</text>')
    for seconds in (0.1, 1, 10, 100):
        if seconds <= high:
            x, y = place(1000, seconds)
            parts.append(f'<text x="{x - 8:.0f}" y="{y + 4:.0f}" text-anchor="end" fill="#556">{seconds:g} s</text>')
            parts.append(f'<line x1="{x:.0f}" x2="{width - 20}" y1="{y:.0f}" y2="{y:.0f}" stroke="#e6e8ee"/>')
    rate = min(row["seconds"]["all"] / row["nodes"] for row in rows)
    ends = [place(nodes, rate * nodes) for nodes in (SIZES[0], SIZES[-1])]
    parts.append(f'<polyline points="{_points(ends)}" fill="none" stroke="#bbc" stroke-dasharray="4 4"/>')
    for number, (family, colour) in enumerate(COLOURS.items()):
        line = [place(row["nodes"], row["seconds"]["all"]) for row in rows if row["family"] == family]
        parts.append(f'<polyline points="{_points(line)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{left + 10}" y="{24 + 16 * number}" fill="{colour}">{family}</text>')
    parts.append(f'<text x="{width - 20}" y="{height - 6}" text-anchor="end" fill="#556">nodes; dashed: linear</text>')
    return "\n".join([*parts, "</svg>", ""])


def _points(line: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in line)


def main() -> None:
    """Each family at each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(FAMILIES), help="families, separated by commas")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of nodes, separated by commas")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--whole", action="store_true", help="build engines with an empty cache, compilation included")
    parser.add_argument("-o", "--output", type=Path, help="default: results/scale.json, with --whole results/scale_builds.json")
    options = parser.parse_args()
    if options.child is not None:
        write_json(options.child, (build if options.whole else measure)(options.only, int(options.sizes)))
        return
    output = options.output or RESULTS / ("scale_builds.json" if options.whole else "scale.json")
    rows = []
    for family in chosen(options.only, list(FAMILIES)):
        for count in map(int, options.sizes.split(",")):
            row = run_child(__file__, ["--only", family, "--sizes", str(count), *(["--whole"] if options.whole else [])])
            rows.append(row)
            print(f"{family:7} {count:6} nodes: {row}", flush=True)
    write_json(output, {"machine": machine_facts(), "rows": rows})
    if not options.whole:
        output.with_suffix(".svg").write_text(picture(rows))


if __name__ == "__main__":
    main()
