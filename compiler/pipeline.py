"""The pipeline, top to bottom: a graph module in, an engine's contents out. Read this file first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..ir.graph import Module
from ..ir.plan import to_json
from ..ir.text import module_text
from ..passes.manager import PassManager
from ..passes.pipeline import parse_pipeline
from ..passes.schedule import cheapest
from ..runtime.contents import EngineContents, TargetContents
from .built import Built
from .options import BuildOptions
from .progress import SILENT, Progress
from .target_cpu import compile_cpu, levels_of, lower_cpu
from .targets import TARGETS, Target

GRAPH_PIPELINE = (
    "fold_constants, canonicalize, eliminate_common_subexpressions, eliminate_dead_code, "
    # Recognitions see the program as exporters spell it, once shape arithmetic is gone.
    "recognize_attention, recognize_causal, recognize_gelu, recognize_normalization, "
    # What is left is made of fewer kinds of op, each as small as it can be.
    "absorb_scales, fold_batch_norm, merge_transposes, unflatten_products, sink_broadcasts, sink_casts, decompose, "
    # Tidy up after all of them.
    "canonicalize, fold_constants, eliminate_common_subexpressions, eliminate_dead_code"
)


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


def compile_target(module: Module, target: Target, options: BuildOptions, progress: Progress = SILENT) -> Built:
    """Graph to kernels to machine code, for one target."""
    if target.family == "cpu":
        return compile_cpu(module, target, options, progress)
    # Triton is a heavy import that a CPU build does without.
    from .target_cuda import compile_cuda

    return compile_cuda(module, target, options, progress)


def stage_text(module: Module, options: BuildOptions, stage: str) -> str:
    """The program at a stage after `simplify`, for the first CPU target: regions, tiles or plan."""
    from ..ir.region_text import print_region
    from ..ir.tile.text import text as tile_text

    level = next(iter(levels_of(TARGETS["native"])))
    lowered = lower_cpu(module, level, cheapest(level))
    if stage == "plan":
        return json.dumps(to_json(lowered.plan), indent=1)
    units = lowered.scheduled.items()
    return "\n\n".join(f"# {name}\n{print_region(u.problem.region) if stage == 'regions' else tile_text(u.program)}" for name, u in units)


def _provenance(options: BuildOptions) -> dict[str, Any]:
    from .. import __version__

    return {"producer": f"ourcc {__version__}", "targets": [target.name for target in options.targets]}
