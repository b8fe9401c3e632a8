"""Products whose tiles fill no whole waves: whole tiles, equal parts of sums, and shares of steps, by our prices and by the estimator.

python benchmarks/kernels/waves.py                    the list on H100 and B200; nothing is written
python benchmarks/kernels/waves.py --only "1536 x"    those whose title has the word

Of each strategy that has a schedule the cheapest ones of its three cheapest tiles are compiled, whether it takes the problem or not. Shown
are the price of the cheapest, its estimate, and the least estimate of the three; a star is at the strategy that is chosen.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ours
import torch
from chosen import chosen
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
from ourcc.ir.graph import Module
from ourcc.ir.target import GPU_BOARDS, GpuTarget
from ourcc.passes.lower.lower import fuse, lower
from ourcc.passes.lower.schedule import Scheduler, cheapest
from ourcc.passes.tile.gpu import STRATEGIES
from ourcc.passes.tile.gpu.split_k import SplitK
from ourcc.passes.tile.gpu.stream_k import StreamK
from ourcc.passes.tile.gpu.tensor import Tensor
from ourcc.passes.tile.schedule import Candidate, Match, Problem, Schedule, matches, seconds

SIZES = (
    *((1536, 5120, 8192), (2048, 6144, 4096), (4096, 4608, 3072), (1024, 5120, 5120), (1280, 4096, 16384), (1536, 3072, 12288)),
    *((640, 7168, 4096), (2304, 2304, 9216), (768, 6144, 6144), (1152, 4608, 18432), (2560, 2560, 2560), (896, 4864, 4864)),
    (2176, 4096, 8192),
)
"""Rows, columns and terms that nobody tuned tiles for."""


TILES = 3
"""Tiles of a strategy of which the cheapest schedule is compiled."""


@dataclass(frozen=True)
class Judged:
    """A schedule by its price and by its machine code, in microseconds; `least` by machine code among those of other tiles."""

    schedule: Schedule
    price: float
    estimate: float
    least: float


def posed(sizes: tuple[int, int, int], target: GpuTarget) -> Problem:
    """The product in bf16 of so many rows with a weight."""
    rows, columns, depth = sizes
    module = ours.Function(torch.nn.functional.linear).eval()
    inputs = (torch.zeros(rows, depth, dtype=torch.bfloat16), torch.zeros(columns, depth, dtype=torch.bfloat16))
    graph = import_exported(torch.export.export(module, inputs))
    simplify(graph, BuildOptions(targets=parse_targets([target.name])))
    return problems_of(graph, target)[0]


def problems_of(graph: Module, target: GpuTarget) -> list[Problem]:
    """What is to be scheduled of a simplified graph, in order."""
    found: list[Problem] = []

    def choose(problem: Problem, families: Iterator[Sequence[Candidate]]) -> Candidate:
        found.append(problem)
        return cheapest(target)(problem, families)

    lower(fuse(graph, narrow=True), Scheduler(STRATEGIES, target, choose, lambda region, constants: {}), target.name)
    return found


def estimated(match: Match[Any], schedule: Schedule, target: GpuTarget) -> float:
    """Microseconds of all launches of a schedule, by their machine code."""
    total = 0.0
    for number, launch in enumerate(match.strategy.tile(match, schedule, target).launches):
        kernel = print_launch(replace(launch, name=f"kernel_{number}"), match.problem.symbols, None, target.processors)
        built = compile_kernel(kernel, target, 120.0)
        cubin = ours.cubin_of(kernel.name, built.cubin, built.ptx, kernel.source, built.resources.shared)
        grid = tuple(int(dims.substitute(size, {})) if not isinstance(size, int) else size for size in variant(built).grid)
        unique = float(sum(int(dims.product(param.shape)) * param.dtype.bits / 8 for param in launch.params))
        total += float(row_of(Launch(cubin, grid, unique), MACHINES[target.board])["us"])
    return total


def judged(problem: Problem, target: GpuTarget) -> dict[str, Judged]:
    """The schedule of the least price of each strategy that has any."""
    whole = Tensor().match(problem, target)
    assert isinstance(whole, Match)
    found = {}
    for strategy in (Tensor(), SplitK(), StreamK()):
        match = Match(strategy, problem, whole.found)
        offered = sorted(((seconds(match, each, target), each) for each in strategy.space(match, target)), key=lambda each: each[0])
        cheapest_of = {(schedule["m"], schedule["n"]): schedule for _, schedule in reversed(offered)}
        tiles = list(dict.fromkeys((schedule["m"], schedule["n"]) for _, schedule in offered))[:TILES]
        if offered:
            estimates = [estimated(match, cheapest_of[tile], target) for tile in tiles]
            found[strategy.name] = Judged(offered[0][1], 1e6 * offered[0][0], estimates[0], min(estimates))
    return found


def taken(problem: Problem, target: GpuTarget) -> str:
    """The strategy that takes a product."""
    return next(matches(STRATEGIES, problem, target)).strategy.name


def line(sizes: tuple[int, int, int], target: GpuTarget) -> str:
    """A product in a line."""
    problem = posed(sizes, target)
    chosen = taken(problem, target)
    rows = judged(problem, target)
    best = min(rows, key=lambda name: rows[name].least)
    parts = [
        f"{'*' if name == chosen else ''}{name} {each.price:.1f} / {each.estimate:.1f} / {each.least:.1f}" for name, each in rows.items()
    ]
    shown = "\n".join(f"      {each.schedule}" for each in rows.values())
    return f"{target.board} {' x '.join(map(str, sizes))}: {', '.join(parts)}; least by machine code: {best}\n{shown}"


def main() -> int:
    """Judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    only = parser.parse_args().only
    listed = [(sizes, target) for target in (GPU_BOARDS["h100"], GPU_BOARDS["b200"]) for sizes in SIZES]
    for sizes, target in chosen(parser, [only], listed, lambda each: f"{each[1].board} {' x '.join(map(str, each[0]))}"):
        print(line(sizes, target), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
