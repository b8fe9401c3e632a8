"""The pipeline, top to bottom: a graph module in, an engine's contents out. Read this file first."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..codegen.c.compile import Compiler, compile_shared, find_compiler
from ..codegen.c.printer import SourceFile
from ..codegen.host.c import print_plan
from ..ir.errors import UnsupportedError
from ..ir.graph import Module
from ..ir.plan import to_json
from ..ir.target import CpuLevel, cpu_level, level_for
from ..ir.text import module_text
from ..passes.build_plan import Lowered, PackedConstant, build_plan
from ..passes.fuse import HostOp, partition
from ..passes.layout import channels_last, constant_layouts
from ..passes.manager import PassManager
from ..passes.pipeline import parse_pipeline
from ..passes.schedule import Choose, Scheduler, cheapest
from ..passes.tile.cpu import STRATEGIES
from ..runtime.contents import EngineContents, Library, TargetContents
from ..runtime.native import cpu_flags
from .options import BuildOptions
from .progress import SILENT, Progress
from .report.kernels import kernel_rows
from .targets import Target

GRAPH_PIPELINE = (
    "fold_constants, canonicalize, eliminate_common_subexpressions, eliminate_dead_code, "
    # Recognitions see the program as exporters spell it, once shape arithmetic is gone.
    "recognize_attention, recognize_gelu, recognize_normalization, "
    # What is left is made of fewer kinds of op, each as small as it can be.
    "absorb_scales, fold_batch_norm, merge_transposes, sink_broadcasts, decompose, "
    # Tidy up after all of them.
    "canonicalize, fold_constants, eliminate_common_subexpressions, eliminate_dead_code"
)


@dataclass
class Built:
    """One target's part of an engine, and what reports and `inspect` say about its kernels."""

    contents: TargetContents
    weights: dict[str, np.ndarray[Any, Any]]
    lowered: Lowered
    rows: list[dict[str, Any]] = field(default_factory=list)


def compile_module(module: Module, options: BuildOptions, progress: Progress = SILENT) -> EngineContents:
    """Compile a module for every target of the options."""
    simplify(module, options, progress)
    targets: dict[str, TargetContents] = {}
    weights: dict[str, Mapping[str, Any]] = {}
    kernels: dict[str, Any] = {}
    for target in options.targets:
        progress.stage(f"compile for {target.name}")
        built = compile_target(module, target, options, progress)
        name = built.contents.plan.target
        targets[name], weights[name], kernels[name] = built.contents, built.weights, built.rows
    report = {"contract": [], "kernels": kernels}
    return EngineContents.of(targets, weights, graph=module_text(module), report=report, provenance=_provenance(options))


def simplify(module: Module, options: BuildOptions, progress: Progress = SILENT, reproducers: Path | None = None) -> None:
    """Graph to graph: fold, recognise, decompose."""
    passes = parse_pipeline(GRAPH_PIPELINE)
    progress.stage("simplify", len(passes))
    PassManager(passes, reproducers=reproducers).run(module)


def compile_target(module: Module, target: Target, options: BuildOptions, progress: Progress) -> Built:
    """Graph to kernels to machine code, for one target."""
    if target.family == "cpu":
        return compile_cpu(module, target, options, progress)
    raise UnsupportedError(f"target {target.name} is not supported yet", hint="build with --target cpu")


def compile_cpu(module: Module, target: Target, options: BuildOptions, progress: Progress) -> Built:
    """One shared object for each instruction-set level of the target; all share one plan of buffers and weights."""
    compiler = find_compiler(options.environment.compiler)
    levels = [level_for(cpu_flags()) if name == "native" else cpu_level(name) for name in target.levels]
    libraries: list[Library] = []
    files: dict[str, bytes] = {}
    built: Built | None = None
    for level in sorted(levels, key=lambda item: -item.vector_bits):
        lowered = lower(module, level, cheapest(level), progress)
        sources = print_cpu(lowered, level)
        progress.note(f"{len(lowered.kernels)} kernels for {level.name}")
        files |= {
            f"{level.name}.so": _compile(sources, level, compiler),
            **{f"{level.name}/{name}": text.encode() for name, text in sources.items()},
        }
        libraries.append(Library(f"{level.name}.so", requires=level.features))
        if built is None:
            weights = {key: pack(constant) for key, constant in lowered.constants.items()}
            built = Built(TargetContents(lowered.plan), weights, lowered, kernel_rows(lowered, *nominal_rates(level)))
    if built is None:
        raise UnsupportedError(f"target {target.name} names no instruction-set level")
    built.contents = TargetContents(built.lowered.plan, files, tuple(libraries))
    return built


def lower(module: Module, level: CpuLevel, choose: Choose, progress: Progress = SILENT) -> Lowered:
    """Graph to regions, regions to tile programs, both to a plan."""
    units = partition(module, module.main, channels_last(module.main))
    scheduler = Scheduler(STRATEGIES, level, choose, constant_layouts)
    scheduled = [unit if isinstance(unit, HostOp) else scheduler.schedule(unit, module.facts) for unit in units]
    return build_plan(module, module.main, scheduled, "cpu")


def print_cpu(lowered: Lowered, level: CpuLevel) -> dict[str, str]:
    """C files by name: kernels spread over a few files (they compile in parallel), and the plan."""
    names = list(lowered.kernels)
    count = max(1, min(4, len(names) // 4))
    sources = {}
    for n in range(count):
        file = SourceFile(level)
        for name in names[n::count]:
            file.add(lowered.kernels[name], name, tuple(lowered.plan.symbols.ranges), lowered.plan.symbols)
        sources[f"kernels_{n}.c"] = file.text()
    sources["plan.c"] = print_plan(lowered.plan, names)
    return sources


def pack(constant: PackedConstant) -> np.ndarray[Any, Any]:
    """A constant's bytes as the plan wants them."""
    array = constant.value.constant.array if constant.value.constant is not None else np.empty(0)
    return array if constant.layout is None else constant.layout.pack(array)


def _compile(sources: Mapping[str, str], level: CpuLevel, compiler: Compiler) -> bytes:
    return compile_shared(sources, level, compiler).data


def nominal_rates(level: CpuLevel) -> tuple[float, float]:
    """Operations and bytes a second that one core of the level is reckoned with: two multiply-adds at 3 GHz, 20 GB/s."""
    return 2 * 2 * level.lanes * 3e9, 20e9


def stage_text(module: Module, options: BuildOptions, stage: str) -> str:
    """The program at a stage after `simplify`, for the first CPU target: regions, tiles or plan."""
    from ..ir.region_text import region_text
    from ..ir.tile.text import text as tile_text

    level = level_for(cpu_flags())
    lowered = lower(module, level, cheapest(level))
    if stage == "plan":
        return json.dumps(to_json(lowered.plan), indent=1)
    units = lowered.scheduled.items()
    return "\n\n".join(f"# {name}\n{region_text(u.problem.region) if stage == 'regions' else tile_text(u.program)}" for name, u in units)


def _provenance(options: BuildOptions) -> dict[str, Any]:
    from .. import __version__

    return {"producer": f"ourcc {__version__}", "targets": [target.name for target in options.targets]}


__all__: Sequence[str] = ("GRAPH_PIPELINE", "Built", "Callable", "compile_module", "compile_target", "lower", "print_cpu", "simplify")
