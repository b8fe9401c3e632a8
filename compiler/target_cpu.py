"""From a module to the CPU part of an engine: schedules, C, shared objects, packed weights."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial

from ..codegen.c.compile import SharedObject, compile_shared, find_compiler
from ..codegen.c.printer import SourceFile
from ..codegen.host.c import print_plans
from ..ir.errors import InternalError
from ..ir.graph import Module
from ..ir.target import CpuLevel, cpu_level, level_for
from ..ir.workload import Workload
from ..passes.build_plan import Lowered
from ..passes.layout import channels_last, constant_layouts
from ..passes.lower import fuse, kept, lower_printed, printing
from ..passes.schedule import Choose, Scheduler
from ..passes.tile.cpu import STRATEGIES
from ..runtime.contents import Library, TargetContents
from ..runtime.native import cpu_flags
from .built import Built, pack
from .options import BuildOptions
from .progress import Progress
from .report.kernels import kernel_rows
from .targets import Target
from .tuning import Tuning


def compile_cpu(module: Module, target: Target, options: BuildOptions, progress: Progress, tuning: Tuning | None = None) -> Built:
    """One shared object for each instruction-set level of the target; all share one plan of buffers and weights."""
    compiler = find_compiler(options.environment.compiler)
    tuning = tuning or Tuning(options, progress)
    libraries: list[Library] = []
    files: dict[str, bytes] = {}
    best: tuple[Lowered, CpuLevel, SharedObject] | None = None
    levels = sorted(levels_of(target), key=lambda item: -item.vector_bits)
    workload = options.workload_for(module.facts)
    jobs, cache = len(os.sched_getaffinity(0)), options.environment.directory / "objects"
    choosers = [tuning.for_cpu(target.name, level, compiler) for level in levels]
    for level, (lowered, sources) in zip(levels, _lower_levels(module, levels, choosers, workload), strict=True):
        tuning.done(target.name, level.name, lowered)
        progress.note(f"{len(lowered.kernels)} kernels for {level.name}")
        compiled = compile_shared(sources, level, compiler, jobs=jobs, kernels=list(lowered.kernels), cache=cache)
        files[f"{level.name}.so"] = compiled.data
        files |= {f"{level.name}/{name}": text.encode() for name, text in sources.items()}
        libraries.append(Library(f"{level.name}.so", requires=level.features))
        best = best or (lowered, level, compiled)
        if _memory(lowered) != _memory(best[0]):
            raise InternalError(f"the plans of {level.name} and {best[1].name} do not use the same buffers")
    if best is None:
        raise ValueError(f"target {target.name} names no instruction-set level")
    lowered, level, compiled = best
    weights = {key: pack(held, module) for key, held in lowered.constants.items()}
    rows = kernel_rows(lowered, *nominal_rates(level), _resources(compiled), workload)
    return Built(TargetContents(lowered.plans, files, tuple(libraries)), weights, rows, lowered.kept)


def _resources(compiled: SharedObject) -> dict[str, dict[str, object]]:
    """What `inspect` shows of each kernel: registers, spills, instructions."""
    return {name: {"registers": code.registers, "spills": code.spills, "instructions": code.mix} for name, code in compiled.kernels.items()}


def _memory(lowered: Lowered) -> tuple[object, ...]:
    """What all levels must agree on: they share one manifest of buffers, constants among them, and slots."""
    return tuple((plan.buffers, plan.slots) for plan in lowered.plans.values())


def levels_of(target: Target) -> list[CpuLevel]:
    """The instruction-set levels of a target; `native` looks at this machine."""
    return [level_for(cpu_flags()) if name == "native" else cpu_level(name) for name in target.levels]


def lower_cpu(module: Module, level: CpuLevel, choose: Choose, workload: Workload | None = None) -> Lowered:
    """Graph to regions, regions to tile programs, both to a plan."""
    scheduler = _scheduler(level, choose, workload)
    return lower_printed(fuse(module, channels_last), scheduler, "cpu", partial(print_cpu, level=level))[0]


def _scheduler(level: CpuLevel, choose: Choose, workload: Workload | None) -> Scheduler:
    return Scheduler(STRATEGIES, level, choose, constant_layouts, workload)


def _lower_levels(
    module: Module, levels: Sequence[CpuLevel], choosers: Sequence[Choose], workload: Workload | None
) -> list[tuple[Lowered, Mapping[str, str]]]:
    """The plan and the C files of each level; what one of them has to keep in memory the others keep as well."""
    fusions = fuse(module, channels_last)
    schedulers = [_scheduler(level, choose, workload) for level, choose in zip(levels, choosers, strict=True)]
    while True:
        made = [lower_printed(fusions, s, "cpu", partial(print_cpu, level=level)) for s, level in zip(schedulers, levels, strict=True)]
        if all(lowered.kept == kept(fusions) for lowered, _ in made):
            return made


def print_cpu(lowered: Lowered, level: CpuLevel) -> Mapping[str, str]:
    """C files by name: one for each kernel, with no more than it uses, and those of the plan."""
    sources = {}
    for name, launch in lowered.kernels.items():
        file = SourceFile(level)
        with printing(name):
            symbols = lowered.scheduled[name].problem.symbols
            file.add(launch, name, tuple(symbols.ranges), symbols)
        sources[f"{name}.c"] = file.text()
    return {**sources, **print_plans(lowered.plans)}


def nominal_rates(level: CpuLevel) -> tuple[float, float]:
    """Operations and bytes a second that one core of a level is reckoned with: two multiply-adds at 3 GHz, 20 GB/s."""
    return 2 * 2 * level.lanes * 3e9, 20e9


__all__ = ["compile_cpu", "levels_of", "lower_cpu", "nominal_rates", "print_cpu"]
