"""Tiles that others tuned on GPUs beside what is offered and chosen here: products of fp8 with scales in blocks of 128.

python benchmarks/kernels/tuned.py             those of 8 rows or more; writes benchmarks/results/tuned.json
python benchmarks/kernels/tuned.py --rows 512  those of so many rows; nothing is written

Shapes and numbers are those of vLLM's published files (tiles.json). Both schedules are compiled here from our own text and judged by the
estimator of `make kernels`; a tile whose rows the widest instruction does not take is not offered, and says so.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import ours
import torch
from counted import row_of
from estimate import Launch
from machines import MACHINES

from ourcc.codegen.triton.compile import compile_kernel
from ourcc.codegen.triton.launch_abi import variant
from ourcc.codegen.triton.printer import print_launch
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.options import BuildOptions
from ourcc.compiler.pipeline import simplify
from ourcc.compiler.targets.registry import parse_targets
from ourcc.ir import dims
from ourcc.ir.target import GPU_BOARDS, GpuTarget, gpu_target
from ourcc.passes.lower.lower import fuse, lower
from ourcc.passes.lower.schedule import Scheduler, cheapest
from ourcc.passes.tile.gpu import STRATEGIES
from ourcc.passes.tile.gpu.blocked import Blocked, BlockProduct, block_product
from ourcc.passes.tile.schedule import Candidate, Match, Problem, Schedule

TILES = Path(__file__).with_name("tiles.json")
RESULTS = Path(__file__).parents[1] / "results"
FEWEST = 8
"""Rows below which products go by other kernels."""


@dataclass(frozen=True)
class Tuned:
    """What was published for a product: its sizes and machine, and the tile that was the fastest there."""

    machine: str
    rows: int
    columns: int
    depth: int
    tile: tuple[int, int, int, int, int]
    """Rows and columns of a tile, elements of a step, warps, stages."""

    @property
    def schedule(self) -> Schedule:
        """The tile as a schedule of ours."""
        m, n, k, warps, stages = self.tile
        return Schedule("blocked", (("m", m), ("n", n), ("k", k), ("warps", warps), ("stages", stages), ("swap", 0)))


def tuned() -> Iterator[Tuned]:
    """All that was published."""
    for product in json.loads(TILES.read_text(encoding="utf-8"))["products"]:
        for rows, m, n, k, _, warps, stages in product["tuned"]:
            yield Tuned(product["machine"], rows, product["columns"], product["depth"], (m, n, k, warps, stages))


def posed(wanted: Tuned) -> Problem:
    """The product of a linear layer whose activations are rounded to fp8 in blocks."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(wanted.depth, wanted.columns, bias=False, dtype=torch.bfloat16).eval()
    module = import_exported(torch.export.export(layer, (torch.zeros(wanted.rows, wanted.depth, dtype=torch.bfloat16),)))
    simplify(module, BuildOptions(targets=parse_targets(["sm_90a"]), quantize="fp8-block"))
    found: list[Problem] = []

    def choose(problem: Problem, families: Iterator[Sequence[Candidate]]) -> Candidate:
        if isinstance(block_product(problem), BlockProduct):
            found.append(problem)
        return cheapest(machine)(problem, families)

    machine = gpu_target("sm_90a")
    lower(fuse(module, narrow=True), Scheduler(STRATEGIES, machine, choose, lambda region, constants: {}), machine.name)
    return found[0]


def estimated(match: Match[Any], schedule: Schedule, target: GpuTarget, machine: str) -> float:
    """Microseconds of a schedule, by its machine code."""
    (launch,) = match.strategy.tile(match, schedule, target).launches
    kernel = print_launch(replace(launch, name="kernel"), match.problem.symbols, None, target.processors)
    built = compile_kernel(kernel, target, 120.0)
    cubin = ours.cubin_of("kernel", built.cubin, built.ptx, kernel.source, built.resources.shared)
    grid = tuple(int(dims.substitute(size, {})) if not isinstance(size, int) else size for size in variant(built).grid)
    types = (*match.problem.region.inputs, *match.problem.region.outputs)
    unique = float(sum(int(dims.product(o.type.shape)) * o.type.dtype.bits / 8 for o in types))
    return float(row_of(Launch(cubin, grid, unique), MACHINES[machine])["us"])


def judged(wanted: Tuned) -> dict[str, Any]:
    """A published tile beside our choice."""
    target, problem = GPU_BOARDS[wanted.machine.lower()], posed(wanted)
    found = block_product(problem)
    assert isinstance(found, BlockProduct)
    match = Match(Blocked(), problem, found)
    offered = list(match.strategy.space(match, target))
    chosen = min(offered, key=lambda schedule: match.strategy.cost(match, schedule, target))
    row: dict[str, Any] = {"machine": wanted.machine, "rows": wanted.rows, "columns": wanted.columns, "depth": wanted.depth}
    row |= {"published": str(wanted.schedule), "offered": wanted.schedule in offered, "chosen": str(chosen)}
    row["chosen us"] = estimated(match, chosen, target, wanted.machine)
    if row["offered"]:
        row["published us"] = estimated(match, wanted.schedule, target, wanted.machine)
    return row


def line(row: dict[str, Any]) -> str:
    """A product in a line."""
    title = f"{row['machine']} {row['rows']:5d} x {row['columns']} x {row['depth']}"
    beside = f"{row['published us']:.1f} us, {row['published us'] / row['chosen us']:.2f} of ours" if row["offered"] else "not offered"
    return f"{title}: published {row['published'][7:]} {beside}; ours {row['chosen'][7:]} {row['chosen us']:.1f} us"


def main() -> int:
    """Judge, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int)
    only = parser.parse_args().rows
    listed = [wanted for wanted in tuned() if wanted.rows >= FEWEST]
    counts = sorted({wanted.rows for wanted in listed})
    if only is not None and only not in counts:
        parser.exit(2, f"{parser.prog}: error: --rows {only}: expected one of {', '.join(map(str, counts))}\n")
    rows = []
    for wanted in listed:
        if only in (None, wanted.rows):
            rows.append(judged(wanted))
            print(line(rows[-1]), flush=True)
    known = [row["published us"] / row["chosen us"] for row in rows if row["offered"]]
    if known:
        print(f"{len(known)} of {len(rows)} are offered: published over ours {geometric_mean(known):.3f}, least {min(known):.3f}")
    if only is None:
        text = ",\n".join(json.dumps(row) for row in rows)
        (RESULTS / "tuned.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
