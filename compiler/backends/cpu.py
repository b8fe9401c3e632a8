"""From a module to a CPU part of an engine: schedules, C, a shared object, packed weights."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from ...autotune.choose import Chooser
from ...codegen.c.compile import SharedObject, compile_shared
from ...codegen.c.texts import KeptTexts
from ...codegen.c.toolchain import find_compiler
from ...codegen.c.units import ObjectFiles, Unit
from ...codegen.c.weight import check_weight
from ...codegen.host.c import print_plans
from ...ir.errors import is_own
from ...ir.formats import format_of
from ...ir.graph import Module, Op, Value
from ...ir.ops.contraction import MULTIPLYING
from ...ir.target import CPU_LEVELS, CpuLevel, cpu_level, emulated, level_for
from ...ir.tile.program import Launch
from ...ir.workload import Workload
from ...passes.lower.build_plan import Lowered
from ...passes.lower.layout import channels_last, constant_layouts
from ...passes.lower.lower import fuse, lower_printed, print_each
from ...passes.lower.schedule import Choose, Scheduled, Scheduler, cheapest
from ...passes.match import operand
from ...passes.quantize.words import scored_as
from ...passes.regions.narrow_functions import NARROW
from ...passes.tile.cpu import STRATEGIES
from ...passes.tile.cpu.windows_sides import shares_vectors
from ...passes.tile.schedule import Candidate, Problem
from ...runtime.contents import LIBRARY, PartContents
from ...runtime.native import cpu_flags, withheld
from ..options import BuildOptions
from ..progress import Progress
from ..report.kernels import kernel_rows, spent_us
from ..targets.target import NATIVE, CpuTarget, Target
from .built import Built, PackedConstants
from .tuning import Tuning

Begin = Callable[[Unit], object]
"""What is told of the C file of each kernel when it is printed."""


class CpuBackend:
    """Fusion, plans, kernels and layouts of its own for each level."""

    def machines(self, target: Target, module: Module, precision: str | None = None) -> list[CpuLevel]:
        """The levels that the module gains from, best first; what is asked of products the module says."""
        return levels_for(target, module)[::-1]

    def compile(
        self,
        module: Module,
        target: Target,
        machine: CpuLevel,
        options: BuildOptions,
        progress: Progress,
        tuning: Tuning,
        packed: PackedConstants,
    ) -> Built:
        """A shared object for one level."""
        compiler = find_compiler(options.environment.compiler)
        workload = options.workload_for(module.facts)
        jobs, cache = len(os.sched_getaffinity(0)), options.environment.objects
        with ObjectFiles(compiler, machine, jobs=jobs, cache=cache) as objects:
            choose = tuning.for_cpu(target.name, machine, compiler)
            if choose.measures:
                _decide_by_share(choose, module, machine, workload)
            texts = KernelTexts(machine, objects.begin, cache)
            lowered, sources = _lower_printed(module, machine, choose, workload, texts)
            tuning.done(target.name, machine.name, lowered)
            progress.note(f"{len(lowered.kernels)} kernel{'s' * (len(lowered.kernels) != 1)} for {machine.name}")
            compiled = compile_shared(sources, machine, compiler, kernels=list(lowered.kernels), objects=objects)
        files = {LIBRARY: compiled.data, **{name: text.encode() for name, text in sources.items()}}
        operations, moved = nominal_rates(machine)
        rows = kernel_rows(lowered, lambda _: operations, moved, _resources(compiled), workload)
        contents = PartContents(lowered.plans, files, requires=machine.features)
        weights = packed.of(lowered.constants)
        return Built(
            machine.name, target.name, contents, weights, rows, lowered.kept, lowered.decisions, faults=lowered.faults, moved=moved
        )

    def rate(self, unit: Scheduled, machine: CpuLevel) -> None:
        """One rate is measured of a machine: that of floats."""

    def lower(self, module: Module, machine: CpuLevel, workload: Workload | None = None) -> Lowered:
        """Kernels and plans with the schedules of least predicted cost."""
        return lower_cpu(module, machine, cheapest(machine), workload)

    def print(self, lowered: Lowered, machine: CpuLevel) -> Mapping[str, str]:
        """C files by name."""
        return print_cpu(lowered, machine)


def _decide_by_share(choose: Chooser, module: Module, level: CpuLevel, workload: Workload | None) -> None:
    """Measure the problems first that take most of the predicted time, as the choices by predicted cost have it."""
    from ...autotune.problem import problem_id

    asked: dict[str, tuple[Problem, list[Sequence[Candidate]]]] = {}

    def least(problem: Problem, families: Iterator[Sequence[Candidate]]) -> Candidate:
        every = list(families)
        found = cheapest(level)(problem, iter(every))
        asked[problem_id(problem)] = problem, every
        return found

    lowered = lower_cpu(module, level, least, workload)
    operations, moved = nominal_rates(level)
    share = dict.fromkeys(asked, 0.0)
    for row in kernel_rows(lowered, lambda _: operations, moved, None, workload):
        unit = lowered.scheduled.get(row["kernel"])
        id = None if unit is None else problem_id(unit.problem)
        if id in share:
            share[id] += spent_us(row)
            choose.names.setdefault(id, f"{row['kernel']} ({row['source_ops']})")
    choose.decide_ahead(asked[id] for id in sorted(asked, key=lambda id: -share[id]))


def _resources(compiled: SharedObject) -> dict[str, dict[str, object]]:
    """What `inspect` shows of each kernel: registers, spills (those of innermost loops too), instructions."""
    return {
        name: {"registers": code.registers, "spills": code.spills, "inner_spills": code.inner_spills, "instructions": code.mix}
        for name, code in compiled.kernels.items()
    }


def levels_of(target: Target) -> list[CpuLevel]:
    """The instruction-set levels of a target, best last; `native` looks at this machine."""
    return [level_for(cpu_flags()) if name == NATIVE else cpu_level(name) for name in target.machines]


def levels_for(target: Target, module: Module) -> list[CpuLevel]:
    """The levels of a target that a module gains from, best last: one that only has more products is for those who have such."""
    if isinstance(target, CpuTarget) and target.emulates:
        return [emulated(cpu_level(target.emulates), cpu_flags())]
    if target.machines != (NATIVE,):
        return _gaining(levels_of(target), module)
    flags = cpu_flags()
    found = _gaining([level for level in CPU_LEVELS if flags.issuperset(level.features)], module)
    return [level for level in found if withheld(level.features) is None][-1:]


def _gaining(levels: list[CpuLevel], module: Module) -> list[CpuLevel]:
    """The levels without those that have nothing for the module which the one below has not."""
    products = {pair for graph in module.functions.values() for op in graph if op.name in MULTIPLYING for pair in _products(op)}
    # Blocks of codes are unsigned on the right (passes/regions/affine.py), where instructions want them first.
    products |= {("u8", "i8")} & {pair[::-1] for pair in products}
    found = levels[:1]
    for below, level in pairwise(levels):
        more = [instruction for instruction in level.instructions if instruction not in below.instructions]
        if below.march != level.march or any((each.left, each.right) in products for each in more):
            found.append(level)
    return found


def _products(op: Op) -> Iterator[tuple[str, str]]:
    """The dtypes of the factors of an op's products: queries and keys that are codes have the signs that instructions want."""
    left, right = operand(op, 0), operand(op, 1)
    if op.name != "attention":
        yield _multiplied(left), _multiplied(right)
        return
    yield ("u8", "i8") if scored_as(op) else (left.dtype.name, right.dtype.name)
    yield (operand(op, 2).dtype.name,) * 2


def _multiplied(value: Value) -> str:
    """The dtype in which a factor is multiplied: that of the codes which it is made of, if they are integers of 8 bits."""
    made = value.op
    if made is not None and made.name == "dequantize" and made.attrs["block"] and made.operands[0] is not None:
        return made.operands[0].dtype.name
    format = format_of(made.attrs["format"]) if made is not None and made.name == "decode" else None
    return "u8" if format is not None and format.plain is None and format.has_bytes else value.dtype.name


def lower_cpu(module: Module, level: CpuLevel, choose: Choose, workload: Workload | None = None) -> Lowered:
    """Graph to regions, regions to tile programs, both to a plan."""
    return _lower_printed(module, level, choose, workload, KernelTexts(level))[0]


def _lower_printed(
    module: Module, level: CpuLevel, choose: Choose, workload: Workload | None, texts: KernelTexts
) -> tuple[Lowered, Mapping[str, str]]:
    scheduler = Scheduler(
        STRATEGIES,
        level,
        choose,
        functools.partial(constant_layouts, pairs=level.pairs),
        workload,
        texts.ahead if texts.begin is not None else None,
    )
    return lower_printed(fuse(module, channels_last, workload, short=NARROW, shared=shares_vectors), scheduler, level.name, texts.of)


class KernelTexts:
    """The C files of kernels, each printed once: as soon as it is scheduled, so that its compiler works beside what follows."""

    def __init__(self, level: CpuLevel, begin: Begin | None = None, cache: Path | None = None) -> None:
        self.level = level
        self.begin = begin
        self._kept = KeptTexts(level, cache)
        self._known: dict[int, tuple[Launch, str]] = {}

    def ahead(self, scheduled: Scheduled) -> None:
        """Print the kernels of a choice; a failure is told when the text is asked for."""
        for launch in scheduled.program.launches:
            try:
                self._text(scheduled, launch)
            except Exception as failure:
                if not is_own(failure):
                    raise

    def of(self, lowered: Lowered) -> Mapping[str, str]:
        """C files by name: one for each kernel, with no more than it uses, and those of the plan."""
        texts = print_each(lowered, lambda name, launch: self._text(lowered.scheduled[name], launch))
        return {**{f"{name}.c": text for name, text in texts.items()}, **print_plans(lowered.plans)}

    def _text(self, scheduled: Scheduled, launch: Launch) -> str:
        """The file of a kernel. UnsupportedError if it would take the compiler long and its group can be made smaller."""
        if id(launch) not in self._known:
            symbols = scheduled.problem.symbols
            printed = self._kept.of(launch, tuple(symbols.ranges), symbols)
            if len(scheduled.group.ops) > 1:
                check_weight(printed.weight)
            # With the launch, as nothing else may get its number while it is known by it.
            self._known[id(launch)] = launch, printed.text
            if self.begin is not None:
                self.begin(Unit.of_kernel("kernel.c", printed.text))
        return self._known[id(launch)][1]


def print_cpu(lowered: Lowered, level: CpuLevel) -> Mapping[str, str]:
    """C files by name."""
    return KernelTexts(level).of(lowered)


def nominal_rates(level: CpuLevel) -> tuple[float, float]:
    """Operations and bytes a second that one core of a level is reckoned with: two multiply-adds at 3 GHz, 20 GB/s."""
    return 2 * 2 * level.lanes * 3e9, 20e9


__all__ = ["CpuBackend", "KernelTexts", "levels_for", "levels_of", "lower_cpu", "nominal_rates", "print_cpu"]
