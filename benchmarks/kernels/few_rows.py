"""Few rows by plain, coded and sparse weights: which strategy is taken, by our prices and by the estimator.

python benchmarks/kernels/few_rows.py                    the list on H100 and B200; nothing is written
python benchmarks/kernels/few_rows.py --only "int4"      those whose title has the word

Of each strategy that has a schedule the cheapest one is compiled, whether it takes the problem or not. Shown are its price and its
estimate, of all launches; a star is at the strategy that is chosen.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import Any

import torch
from chosen import chosen
from waves import estimated, problems_of, taken

from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import simplify
from ourcc.ir.target import GPU_BOARDS, GpuTarget
from ourcc.passes.tile.gpu.split_k import SplitK
from ourcc.passes.tile.gpu.tensor import Tensor
from ourcc.passes.tile.gpu.vector import Vector
from ourcc.passes.tile.schedule import Match, Problem, seconds

FORMATS: dict[str, dict[str, str]] = {
    "bf16": {},
    "int8": {"quantize": "int8-weight"},
    "int4": {"quantize": "int4-weight-g128"},
    "nvfp4": {"quantize": "nvfp4-weight"},
    "2:4": {"sparsity": "2:4"},
    "2:4 int8": {"quantize": "int8-weight", "sparsity": "2:4"},
}
ROWS = (1, 2, 3, 5, 8)
COLUMNS, DEPTH = 6144, 4096
"""q, k and v of a layer of Llama-3-8B."""


@dataclass(frozen=True)
class Judged:
    """The cheapest schedule of a strategy by its price and by its machine code, in microseconds."""

    price: float
    estimate: float


def posed(words: str, rows: int, target: GpuTarget, columns: int = COLUMNS, depth: int = DEPTH) -> Problem:
    """The product of so many rows in bf16 with a weight in a format."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(depth, columns, bias=False, dtype=torch.bfloat16).eval()
    graph = import_exported(torch.export.export(layer, (torch.zeros(rows, depth, dtype=torch.bfloat16),)))
    simplify(graph, build_options({"targets": [target.name], **FORMATS[words]}))
    return problems_of(graph, target)[-1]


def judged(problem: Problem, target: GpuTarget) -> dict[str, Judged]:
    """The schedule of the least price of each strategy that has any; of `vector` also where it does not take the problem."""
    found: dict[str, Judged] = {}
    tensor, vector = Tensor().match(problem, target), Vector().read(problem)
    named: list[Match[Any]] = [tensor, Match(SplitK(), problem, tensor.found)] if isinstance(tensor, Match) else []
    named += [vector] if isinstance(vector, Match) else []
    for match in named:
        offered = [(seconds(match, each, target), each) for each in match.strategy.space(match, target)]
        if offered:
            price, schedule = min(offered, key=lambda each: each[0])
            found[match.strategy.name] = Judged(1e6 * price, estimated(match, schedule, target))
    return found


def line(words: str, rows: int, target: GpuTarget) -> str:
    """A product in a line."""
    problem = posed(words, rows, target)
    chosen = taken(problem, target)
    parts = [f"{'*' if name == chosen else ''}{name} {e.price:.1f} / {e.estimate:.1f}" for name, e in judged(problem, target).items()]
    return f"{target.board} {words} {rows}: {', '.join(parts)}; taken: {chosen}"


def main() -> int:
    """Judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    only = parser.parse_args().only
    listed = [(words, rows, target) for target in (GPU_BOARDS["h100"], GPU_BOARDS["b200"]) for words in FORMATS for rows in ROWS]
    for words, rows, target in chosen(parser, [only], listed, lambda each: f"{each[2].board} {each[0]} {each[1]}"):
        print(line(words, rows, target), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
