"""Products of drawn shapes in float32, bf16 and int8 on one thread: the share of the machine's rate that each reaches.

Rows, terms and columns are drawn up to 4096, alike in their logarithms, for every second shape from where a goal is set; the right
factor is a constant, which is packed when building, or a value. A shape is one program of three products, each launch is timed in
every round and the least time counts. What a results file holds is not measured again, so that a run may be cut off and go on.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from children import RESULTS, read_json, write_json
from machine_facts import best_rates, machine_facts
from machine_rates import measured_rates

from ourcc.compiler.commands.profile import Profile, profile
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.compiler.progress import SILENT
from ourcc.ir.errors import Source
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.types import DType, TensorType, bf16, f32, i8, u8
from ourcc.runtime.engine import Engine

Array = np.ndarray[Any, Any]
SEED, COUNT, LARGEST = 9, 200, 4096
GOAL, GOAL_IN_TILES = 0.88, 0.55
"""The share of the rate that products of at least so many rows, terms and columns shall reach."""
LEAST_ROWS, LEAST = 64, 256
SECONDS = 0.25
"""How long one shape is measured, about: from FEWEST to MOST rounds."""
FEWEST, MOST = 3, 200


@dataclass(frozen=True)
class Kind:
    """What factors are made of, the rates that they are held against, of vectors and of tiles, and the colour of the picture's points."""

    left: DType
    right: DType
    vectors: str
    tiles: str
    colour: str

    def rate(self, rates: Mapping[str, float]) -> str:
        """The name of the rate of what this machine multiplies with: tiles where it has them."""
        return self.tiles if self.tiles in rates else self.vectors

    def goal(self, rates: Mapping[str, float]) -> float:
        """The share of it that large products shall reach."""
        return GOAL_IN_TILES if self.rate(rates) == self.tiles else GOAL


KINDS = {
    "f32": Kind(f32, f32, "fma_gflops", "", "#3b6ea5"),
    "bf16": Kind(bf16, bf16, "bf16_dot_gflops", "bf16_matrix_gflops", "#c0632f"),
    "int8": Kind(u8, i8, "int8_dot_gops", "int8_matrix_gops", "#3f8f55"),
}


@dataclass(frozen=True)
class Shape:
    """Rows, contracted terms and columns of a product, and whether the right factor is known when building."""

    rows: int
    terms: int
    columns: int
    constant: bool

    @property
    def operations(self) -> int:
        return 2 * self.rows * self.terms * self.columns

    @property
    def has_goal(self) -> bool:
        """Whether it is large enough to reach the machine's rate."""
        return self.rows >= LEAST_ROWS and min(self.terms, self.columns) >= LEAST

    def __str__(self) -> str:
        return f"{self.rows}x{self.terms}x{self.columns}{'' if self.constant else ' of values'}"


def shapes(count: int = COUNT, seed: int = SEED) -> list[Shape]:
    """Shapes that are the same in every run; the first ones of a longer list are those of a shorter one."""
    draw, found = np.random.default_rng(seed), list[Shape]()
    while len(found) < count:
        least = (LEAST_ROWS, LEAST, LEAST) if len(found) % 2 else (1, 1, 1)
        sizes = [round(math.exp(draw.uniform(math.log(low), math.log(LARGEST)))) for low in least]
        shape = Shape(*sizes, constant=bool(draw.random() < 0.5))
        if shape not in found:
            found.append(shape)
    return found


def program(shape: Shape, kinds: Sequence[str], seed: int = 0) -> tuple[Module, list[Array], dict[str, tuple[Array, Array]]]:
    """A product of each kind, the inputs, and the factors by kind."""
    module, draw = Module("products"), np.random.default_rng(seed)
    graph = module.functions["main"] = Graph("main")
    builder, inputs, factors, outputs = Builder(module, graph), list[Array](), dict[str, tuple[Array, Array]](), []
    for name in kinds:
        kind = KINDS[name]
        builder.source = Source(name)
        left, right = drawn(draw, (shape.rows, shape.terms), kind.left), drawn(draw, (shape.terms, shape.columns), kind.right)
        x = graph.add_input(f"{name}_x", TensorType(kind.left, left.shape))
        inputs.append(left)
        if shape.constant:
            w = module.add_constant(f"{name}_w", right)
        else:
            w = graph.add_input(f"{name}_w", TensorType(kind.right, right.shape))
            inputs.append(right)
        factors[name] = left, right
        outputs.append(builder.matmul(x, w, wide=kind.left == bf16))
    graph.set_outputs(outputs, list(kinds))
    return module, inputs, factors


def drawn(draw: np.random.Generator, size: tuple[int, int], dtype: DType) -> Array:
    """Factors: small codes or normal numbers."""
    if dtype.is_integer:
        return draw.integers(0 if dtype == u8 else -64, 128 if dtype == u8 else 64, size, dtype.numpy)
    return draw.standard_normal(size, np.float32).astype(dtype.numpy)


def is_right(answer: Array, left: Array, right: Array) -> bool:
    """Whether the first and the last row are what the factors give, as far as sums in float32 go."""
    for row in (0, -1):
        one, all_columns = left[row].astype(np.float64), right.astype(np.float64)
        error = np.abs(answer[row].astype(np.float64) - one @ all_columns)
        if np.any(error > 1e-5 * (np.abs(one) @ np.abs(all_columns)) + 1e-30):
            return False
    return True


def measure(shape: Shape, kinds: Sequence[str]) -> dict[str, Any]:
    """Least seconds of each kind's launches, how they are computed, and whether the answers are right."""
    module, inputs, factors = program(shape, kinds)
    engine = Engine(compile_module(module, build_options({"target": "native", "tune": "off"})), threads=1)
    start = time.perf_counter()
    answers = engine(*inputs)
    rounds = max(FEWEST, min(MOST, int(SECONDS / max(time.perf_counter() - start, 1e-6))))
    listed = list(answers) if isinstance(answers, (tuple, list)) else [answers]
    launches = profile(engine, "main", inputs, 1, rounds, SILENT).profiles
    return {
        name: {**of_kind(launches, name), "wrong": not is_right(np.asarray(answer), *factors[name])}
        for name, answer in zip(kinds, listed, strict=True)
    }


def of_kind(launches: Sequence[Profile], name: str) -> dict[str, Any]:
    """The seconds of the launches that compute a kind's product, the packing of its factors included."""
    own = [each for each in launches if name in each.launch.sources]
    return {"seconds": sum(each.minimum for each in own), "schedules": [str(each.row.get("strategy", "")) for each in own]}


# --- what is said of it -------------------------------------------------------------------------------------------------


def share(shape: Shape, seconds: float, kind: str, rates: Mapping[str, float]) -> float:
    """The part of the machine's rate that a product runs at."""
    return shape.operations / seconds / (rates[KINDS[kind].rate(rates)] * 1e9)


def points(rows: Sequence[Mapping[str, Any]], rates: Mapping[str, float]) -> Iterator[tuple[Shape, str, float]]:
    """Each shape with each kind that was measured, and its share."""
    for row in rows:
        shape = Shape(**row["shape"])
        for kind in (kind for kind in KINDS if kind in row):
            yield shape, kind, share(shape, row[kind]["seconds"], kind, rates)


def verdicts(rows: Sequence[Mapping[str, Any]], rates: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """For each kind how many of the shapes with a goal reach it, the least share and the geometric mean, and the worst."""
    found: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        held = sorted((part, str(shape)) for shape, of, part in points(rows, rates) if of == kind and shape.has_goal)
        if held:
            mean = math.exp(sum(math.log(part) for part, _ in held) / len(held))
            found[kind] = {
                "rate": KINDS[kind].rate(rates),
                "goal": KINDS[kind].goal(rates),
                "shapes": len(held),
                "reached": sum(part >= KINDS[kind].goal(rates) for part, _ in held),
                "least": round(held[0][0], 3),
                "mean": round(mean, 3),
                "worst": [f"{name}: {part:.2f}" for part, name in held[:10]],
            }
    return found


WIDTH, HEIGHT, LEFT, TOP = 640, 300, 44, 34
"""Sizes of the picture, in its own units."""


def picture(rows: Sequence[Mapping[str, Any]], rates: Mapping[str, float]) -> str:
    """Operations against the share of the rate, a point for each product; pale ones have no goal."""
    found = list(points(rows, rates))
    least, most = 0.0, math.ceil(math.log10(2 * LARGEST**3))
    top = max([1.0, *(part for _, _, part in found)]) * 1.05

    def place(operations: float, part: float) -> tuple[float, float]:
        across = (math.log10(operations) - least) / (most - least)
        return LEFT + across * (WIDTH - LEFT - 14), TOP + HEIGHT * (1 - part / top)

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {TOP + HEIGHT + 40}" font-family="sans-serif" font-size="12">']
    lines += [f'<text x="{LEFT}" y="18" fill="#334">share of the measured rate by operations, one thread</text>']
    for number, (kind, made) in enumerate(KINDS.items()):
        lines.append(f'<text x="{WIDTH - 150 + 46 * number}" y="18" fill="{made.colour}">{kind}</text>')
    goals = {kind.goal(rates) for kind in KINDS.values()}
    for mark in sorted({0.0, 0.25, 0.75, 1.0, *(goals | {0.5} if GOAL_IN_TILES not in goals else goals)}):
        _, y = place(1, mark)
        colour = "#556" if mark in goals else "#e6e8ee"
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - 14}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#556">{mark:g}</text>')
    for power in range(0, most + 1, 2):
        x, y = place(10.0**power, 0)
        lines.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle" fill="#556">1e{power}</text>')
    for shape, kind, part in found:
        x, y = place(shape.operations, part)
        named = f"<title>{escape(f'{shape}, {kind}: {part:.2f}')}</title>"
        pale = 0.9 if shape.has_goal else 0.25
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{KINDS[kind].colour}" fill-opacity="{pale}">{named}</circle>')
    return "\n".join([*lines, "</svg>", ""])


def report(output: Path, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], rates: Mapping[str, float]) -> None:
    """Write the results and their picture."""
    told = {"threads": 1, "machine": facts, "rates": rates, "verdicts": verdicts(rows, rates), "rows": list(rows)}
    write_json(output, told)
    output.with_suffix(".svg").write_text(picture(rows, rates), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=COUNT, help="shapes to draw")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long, with what is measured")
    parser.add_argument("--again", action="store_true", help="measure what the results hold, too")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "products.json", help="the results; a picture goes beside")
    options = parser.parse_args()
    facts, began = machine_facts(), time.monotonic()
    held = {} if options.again else read_json(options.output)
    rows = list(held.get("rows", ())) if held.get("machine", {}).get("cpu") == facts["cpu"] else []
    rates = best_rates([measured_rates(), *([held["rates"]] if rows else [])])
    kinds, known = [name for name, kind in KINDS.items() if kind.rate(rates) in rates], {Shape(**row["shape"]) for row in rows}
    for shape in (shape for shape in shapes(options.count) if shape not in known):
        if time.monotonic() - began > options.seconds:
            break
        rows.append({"shape": asdict(shape), **measure(shape, kinds)})
        _tell(rows[-1], rates)
        if len(rows) % 20 == 0:
            rates = best_rates([rates, measured_rates()])
            report(options.output, rows, facts, rates)
    rates = best_rates([rates, measured_rates()])
    report(options.output, rows, facts, rates)
    for kind, found in verdicts(rows, rates).items():
        goal = f"{found['reached']} of {found['shapes']} reach {found['goal']:.0%} of {found['rate']}"
        print(f"{kind}: {goal}; least {found['least']}, mean {found['mean']}", flush=True)
    return 1 if any(row[kind]["wrong"] for row in rows for kind in KINDS if kind in row) else 0


def _tell(row: Mapping[str, Any], rates: Mapping[str, float]) -> None:
    shape = Shape(**row["shape"])
    texts = [
        f"{kind} {share(shape, row[kind]['seconds'], kind, rates):.2f}{' wrong' * row[kind]['wrong']}" for kind in KINDS if kind in row
    ]
    print(f"{shape!s:30s} {'  '.join(texts)}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
