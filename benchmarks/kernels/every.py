"""`make kernels-all`: every schedule that a strategy offers for the fixed list, built for both architectures in child processes.

A schedule that does not build well is a refusal with its reason: the toolchain fails or hangs, registers spill inside a loop,
shared memory is too small, the cubin wants other threads or arguments than a plan would give. Nothing ends the run.
What is found of a printed kernel is kept under its text and the toolchain: the run goes on where it was cut off, also behind
changes that leave a kernel as it was. First comes one of each kind (schedule, element types and class of sizes), then the others.

python benchmarks/kernels/every.py                              all of it: tens of hours; one line for each schedule that is refused
python benchmarks/kernels/every.py --minutes 60                 as many as that gives time for; the last lines say how many are left
python benchmarks/kernels/every.py --only "rows" --sample 20 --seed 1
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import ours
import torch
from chosen import chosen
from cubins import FOLDER, warps_of

from ourcc.codegen.sass.reading import read_kernel
from ourcc.codegen.triton.compile import CompiledKernel, compile_kernel, disassemble, options
from ourcc.codegen.triton.kernel import TritonKernel
from ourcc.codegen.triton.launch_abi import HIDDEN_POINTERS, variant
from ourcc.codegen.triton.printer import print_launch
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.options import BuildOptions
from ourcc.compiler.pipeline import simplify
from ourcc.compiler.targets.registry import parse_targets
from ourcc.ir.errors import CompilerError
from ourcc.ir.target import GpuTarget, gpu_target
from ourcc.passes.lower.lower import fuse, lower
from ourcc.passes.lower.schedule import Scheduler, cheapest
from ourcc.passes.tile.gpu import STRATEGIES
from ourcc.passes.tile.schedule import Candidate
from ourcc.passes.tile.schedule import Problem as Posed

ARCHITECTURES = ("sm_90a", "sm_100a")
CLASSES = (16, 512)
"""Rows up to which a problem is one of few, and of some."""
DEADLINE = 60.0
"""Seconds after which a compiler that does not answer is ended."""

ENTRY = re.compile(r"\.entry\s+\w+\s*\((.*?)\)", re.DOTALL)


@dataclass(frozen=True)
class Offer:
    """A schedule that a strategy offers for a problem of the list on an architecture."""

    problem: ours.Problem
    architecture: str
    candidate: Candidate
    chosen: bool
    """Whether it is the one of least predicted cost."""

    @property
    def title(self) -> str:
        """Where it stands, in a line."""
        return f"{self.architecture} {self.problem.group}: {self.problem.name}: {self.candidate[1]}"

    @property
    def kind(self) -> tuple[str, ...]:
        """The schedule, the element types and the class of sizes: few rows, some, many."""
        rows = math.prod(self.problem.shapes[0][:-1])
        size = sum(rows > most for most in CLASSES)
        return (self.architecture, str(self.problem.dtype), str(self.problem.quantize), str(size), str(self.candidate[1]))


def offers(problem: ours.Problem, architecture: str) -> list[Offer]:
    """Every schedule that strategies offer for the regions of a problem."""
    machine = gpu_target(architecture)
    asked = BuildOptions(targets=parse_targets([architecture]), quantize=problem.quantize)
    torch.manual_seed(0)
    module = import_exported(torch.export.export(problem.module().eval(), ours.inputs_of(problem)))
    simplify(module, asked)
    found: dict[tuple[str, str], Candidate] = {}
    chosen: set[tuple[str, str]] = set()

    def choose(posed: Posed, families: Iterator[Sequence[Candidate]]) -> Candidate:
        every = [list(family) for family in families]
        for candidate in (each for family in every for each in family):
            found.setdefault((str(posed.region), str(candidate[1])), candidate)
        best = cheapest(machine)(posed, iter(every))
        chosen.add((str(posed.region), str(best[1])))
        return best

    lower(fuse(module, narrow=True), Scheduler(STRATEGIES, machine, choose, lambda region, constants: {}), machine.name)
    return [Offer(problem, architecture, each, key in chosen) for key, each in found.items()]


def refusals(offer: Offer) -> list[str]:
    """Why a schedule's kernels are not good; empty where they are."""
    match, schedule = offer.candidate
    machine = gpu_target(offer.architecture)
    reasons: list[str] = []
    try:
        program = match.program(schedule, machine)
        for number, launch in enumerate(program.launches):
            named = replace(launch, name=f"kernel_{number}")
            reasons += known(print_launch(named, match.problem.symbols, None, machine.processors), machine)
    except CompilerError as error:
        reasons.append(f"{type(error).__name__}: {error}".splitlines()[0][:200])
    except Exception as error:  # noqa: BLE001 - what no one foresaw is a finding of this run, and does not end it
        reasons.append(f"unforeseen {type(error).__name__}: {error}".splitlines()[0][:200])
    return reasons


def known(kernel: TritonKernel, machine: GpuTarget) -> list[str]:
    """What is wrong with a kernel. What was built is not built again."""
    path = FOLDER / "every" / f"{digest_of(kernel, machine)}.json"
    if path.exists():
        kept: list[str] = json.loads(path.read_text(encoding="utf-8"))
        return kept
    try:
        found = faults(compile_kernel(kernel, machine, DEADLINE), machine)
    except CompilerError as error:
        found = [f"{type(error).__name__}: {error}".splitlines()[0][:200]]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found), encoding="utf-8")
    return found


def digest_of(kernel: TritonKernel, machine: GpuTarget) -> str:
    """Of a kernel's text and of what judges it."""
    import triton

    names = (kernel, options(kernel, machine), machine.name, triton.__version__, Path(__file__).read_text(encoding="utf-8"))
    return hashlib.sha256(repr(names).encode()).hexdigest()


def faults(compiled: CompiledKernel, machine: GpuTarget) -> list[str]:
    """What is wrong with a kernel that was built."""
    found = []
    reading = read_kernel(disassemble(compiled.cubin, compiled.kernel.name))
    inside = sum(reading.loop_counts(n).local_loads + reading.loop_counts(n).local_stores for n in range(len(reading.flow.loops)))
    if inside:
        found.append(f"{inside} spills in loops")
    if compiled.resources.shared > machine.shared_memory:
        found.append(f"{compiled.resources.shared} bytes of shared memory")
    planned = variant(compiled)
    if (warps := warps_of(compiled.ptx)) != planned.warps:
        found.append(f"the cubin has {warps} warps, a plan launches {planned.warps}")
    wanted = _arguments(compiled.ptx)
    given = len(planned.arguments) + len(planned.scalars) + HIDDEN_POINTERS
    if wanted != given:
        found.append(f"the cubin takes {wanted} arguments, a plan gives {given}")
    return found


def _arguments(ptx: str) -> int:
    """How many arguments the kernel of a PTX takes."""
    found = ENTRY.search(ptx)
    return found[1].count(".param") if found else -1


def drawn(problems: Sequence[ours.Problem], seed: int, count: int) -> list[Offer]:
    """A sample of offers: problems and architectures first, then one schedule of each."""
    generator = random.Random(seed)
    places = [(problem, architecture) for problem in problems for architecture in ARCHITECTURES]
    return [generator.choice(offers(*place)) for place in generator.sample(places, min(count, len(places)))]


def summary(results: Sequence[tuple[Offer, list[str]]]) -> str:
    """Per strategy how many schedules were built and how many are refused, and the reasons by number."""
    lines = []
    for strategy in sorted({offer.candidate[1].strategy for offer, _ in results}):
        inside = [reasons for offer, reasons in results if offer.candidate[1].strategy == strategy]
        lines.append(f"{strategy}: {len(inside)} built, {sum(map(bool, inside))} refused")
        counted = Counter(re.sub(r"[0-9]+", "N", reason)[:120] for reasons in inside for reason in reasons)
        lines += [f"    {times} x {reason}" for reason, times in counted.most_common(6)]
    return "\n".join(lines)


def in_turn(problems: Sequence[ours.Problem], seed: int) -> list[Offer]:
    """All that is offered in a drawn order: the first of each kind before the others."""
    generator = random.Random(seed)
    every = [offer for problem in problems for architecture in ARCHITECTURES for offer in offers(problem, architecture)]
    generator.shuffle(every)
    firsts = {offer.kind: offer for offer in reversed(every)}
    return [*firsts.values(), *(offer for offer in every if firsts[offer.kind] is not offer)]


def main() -> int:
    """Build all that is offered, or a sample; print what is refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="problems whose group and name hold these words")
    parser.add_argument("--sample", type=int, help="one schedule of each of so many problems, drawn with the seed")
    parser.add_argument("--seed", type=int, default=1, help="of the order, and of the sample")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no further schedule after so long")
    arguments = parser.parse_args()
    begun = time.monotonic()
    listed = chosen(parser, [arguments.only], ours.problems(), lambda each: f"{each.group} {each.name}")
    every = drawn(listed, arguments.seed, arguments.sample) if arguments.sample else in_turn(listed, arguments.seed)
    kinds = len({offer.kind for offer in every})
    print(f"{len(every)} schedules of {kinds} kinds", flush=True)
    results: list[tuple[Offer, list[str]]] = []
    for offer in every:
        if time.monotonic() - begun > 60 * arguments.minutes:
            break
        reasons = refusals(offer)
        results.append((offer, reasons))
        if reasons:
            print(f"refused: {offer.title}: {'; '.join(reasons)}", flush=True)
        if len(results) % 100 == 0:
            print(f"  {len(results)} of {len(every)}, {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    print(summary(results))
    seen = len({offer.kind for offer, _ in results})
    print(f"{len(results)} of {len(every)} schedules, {seen} of {kinds} kinds; chosen ones: {sum(offer.chosen for offer, _ in results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
