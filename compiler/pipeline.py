"""The pipeline, top to bottom: a graph module in, an engine's contents out. Read this file first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from ..ir.errors import CompilerError, InternalError, Source, UsageError
from ..ir.graph import Module
from ..ir.graph.text import module_text
from ..ir.plan import Plan
from ..ir.workload import Workload
from ..passes.base import Missed
from ..passes.lower.build_plan import Lowered
from ..passes.manager import PassManager
from ..passes.pipeline import parse_pipeline
from ..passes.quantize import QUANTIZATIONS
from ..passes.quantize.words import HALVES
from ..runtime.contents import Contract, EngineContents
from .backends.backend import backend_of
from .backends.built import Built, PackedConstants, faults_of
from .backends.reopen import exchange, module_of
from .backends.tuning import Tuning
from .contract import (
    BUILT,
    Remedies,
    SourceOp,
    contract_again,
    contract_of,
    enforce,
    enforce_early,
    refuse_unknown,
    refuse_unsupported,
    saves_memory_alone,
    slower_decoded,
    source_ops,
    stored_by_all,
    stored_for_all,
    unchecked_in_vain,
    unmet,
    untaken,
    widened_again,
)
from .engines.recorded import CHANGES, IN_TF32, kept_precision, recorded_changes, recorded_targets, recorded_workload, simplified_for
from .options import BuildOptions
from .progress import SILENT, Progress
from .report.kernels import spent_us
from .targets.target import LANGUAGES, Target

GRAPH_PIPELINE = (
    "fold_constants, canonicalize, eliminate_common_subexpressions, eliminate_dead_code, "
    # Recognitions see the program as exporters spell it, once shape arithmetic is gone.
    "recognize_softmax, recognize_attention, recognize_causal, recognize_gelu, recognize_normalization, "
    # What is left is made of fewer kinds of op, each as small as it can be.
    "absorb_scales, fold_batch_norm, merge_transposes, unflatten_products, sink_broadcasts, sink_casts, decompose, "
    "canonicalize, unflatten_norms, recognize_coded_weights, "
    # Tidy up after all of them.
    "canonicalize, fold_constants, trim_constants, fold_constants, eliminate_common_subexpressions, eliminate_dead_code"
)
# What changes weights comes behind it, when they are constants; they are pruned before they are rounded.
SPARSITY_PASSES = {"2:4": "sparsify_two_four"}


class Simplified(NamedTuple):
    """What simplifying a module has to tell: the patterns that were nearly recognised, and what passes say."""

    missed: tuple[Missed, ...]
    notes: tuple[str, ...] = ()


def compile_module(module: Module, options: BuildOptions, progress: Progress = SILENT) -> EngineContents:
    """Compile a module for every target of the options."""
    asked = source_ops(module)
    refuse_unsupported(options, asked)
    refuse_unknown(asked, options.require)
    brought = module.constant_bytes
    options.workload_for(module.facts)  # an error now, not after the passes
    idle = (*unchecked_in_vain(module, options), *untaken(module, options), *stored_for_all(options))
    return compile_simplified(module, asked, simplify(module, options, progress), options, progress, brought, idle=idle)


def compile_simplified(
    module: Module,
    asked: Mapping[Source, SourceOp],
    simplified: Simplified,
    options: BuildOptions,
    progress: Progress = SILENT,
    brought: int | None = None,
    remedies: Remedies = BUILT,
    idle: Sequence[str] = (),
) -> EngineContents:
    """Compile a simplified module for every target of the options.

    `asked` are its source ops as they were before, `brought` the bytes of its constants then, if they are the model's weights;
    `remedies` are told with a promise that does not hold, `idle` are the options known to change nothing.
    """
    options = options.reckoned(module)
    if options.require:
        enforce_early(contract_of(asked, module, options), options.require, remedies)
    tuning = Tuning(options, progress)
    parts = list(compile_parts(module, options, progress, tuning))
    plans, in_tf32 = [plan for part in parts for plan in part.contents.plans.values()], sorted(set().union(*(p.in_tf32 for p in parts)))
    contract = contract_of(asked, module, options, plans, in_tf32)
    notes = [*idle, *unmet(contract, options), *widened_again(contract, [part.name for part in parts], options)]
    if brought is not None:
        notes += saves_memory_alone(options, *_reading(parts, max(0, brought - module.constant_bytes)))
    notes += slower_decoded(contract, options, [(part.name, *part.decoding) for part in parts if part.decoding is not None])
    for note in notes:
        progress.note(note)
    notes += [*simplified.notes, *faults_of(parts)]
    report = {
        "contract": [*contract.to_json(), *tuning.contract()],
        "kernels": {part.name: part.rows for part in parts},
        "kept": {part.name: part.kept_rows() for part in parts},
        "fusion": {part.name: part.fusion_rows() for part in parts},
        "missed": [dict(vars(row)) for row in simplified.missed],
        "tuning": tuning.report(),
        **({"notes": notes} if notes else {}),
        **({IN_TF32: in_tf32} if in_tf32 else {}),
        **({} if brought is None else {"model_bytes": brought}),
    }
    rest = {"graph": module_text(module), "lock": tuning.lock_text(), "report": report, "provenance": _provenance(options, parts)}
    rest["assets"] = module.assets
    contents = EngineContents.of({part.name: part.contents for part in parts}, {part.name: part.weights for part in parts}, **rest)
    enforce(contract, options.require, names_of(options, contents), remedies)
    return contents


def _reading(parts: Sequence[Built], saved: int) -> tuple[dict[str, float], dict[str, float]]:
    """How long each part would take to read bytes once a function, and what is predicted of it in all, in seconds."""
    read = {part.name: saved * len(part.contents.plans) / part.moved for part in parts if part.moved}
    return read, {part.name: sum(spent_us(row) for row in part.rows if row["kind"] == "kernel") / 1e6 for part in parts}


def compile_again(contents: EngineContents, options: BuildOptions, progress: Progress = SILENT) -> EngineContents:
    """An engine's program compiled for the targets of the options; its other targets stay."""
    if options.workload is None:
        options = replace(options, workload=recorded_workload(contents))
    # What was asked of products is in the program, but for what an instruction rounds on its way in.
    options = replace(options, precision=kept_precision(contents))
    module, tuning = module_of(contents), Tuning(options, progress)
    parts = list(compile_parts(module, options, progress, tuning))
    made = exchange(contents, parts, tuning)
    if options.precision is not None:
        made = replace(made, report=_report_again(made, module, parts))
    return replace(made, provenance=_provenance(options, parts, contents))


def _report_again(contents: EngineContents, module: Module, parts: Sequence[Built]) -> dict[str, Any]:
    """The report of an engine with these parts new, whose kernels round factors as its program does not say."""
    in_tf32 = sorted({*contents.report.get(IN_TF32, ()), *(source for part in parts for source in part.in_tf32)})
    has_tf32 = {not part.is_level for part in contents.parts.values()}
    rows = contract_again(Contract.from_json(contents.report.get("contract", [])), module, in_tf32, has_tf32)
    return {**contents.report, "contract": rows.to_json(), **({IN_TF32: in_tf32} if in_tf32 else {})}


def simplify(module: Module, options: BuildOptions, progress: Progress = SILENT) -> Simplified:
    """Graph to graph: fold, recognise, decompose, make weights small.

    A failure leaves a reproducer in the build cache.
    """
    unchecked = ["drop_index_checks"] if options.unchecked_indices else []
    steps = [*unchecked, GRAPH_PIPELINE, *weight_passes(options), joining_passes(options), *precision_passes(options)]
    passes = parse_pipeline(", ".join([*steps, product_passes(options), "place_index_checks"]))
    progress.stage("simplify", len(passes))
    records = PassManager(passes, reproducers=options.environment.directory / "reproducers").run(module)
    notes = tuple(note for record in records for note in record.notes)
    for note in notes:
        progress.note(note)
    return Simplified(tuple(missed for record in records for missed in record.missed), notes)


def joining_passes(options: BuildOptions) -> str:
    """What makes one product of several, now that every reader is known and weights lie as they are stored."""
    limits = [target.most_joined for target in options.targets if target.most_joined is not None]
    is_limited = len(limits) == len(options.targets)
    return f"join_products{f'{{limit={min(limits)}}}' if is_limited else ''}, eliminate_dead_code"


def precision_passes(options: BuildOptions) -> list[str]:
    """What makes the factors of products as narrow as the options ask, and stores them so."""
    dtype = HALVES.get(options.precision or "")
    tidy = "sink_casts, canonicalize, fold_constants, eliminate_common_subexpressions, eliminate_dead_code"
    values = ["narrow_values"] if dtype == "bf16" else []
    return [] if dtype is None else [f"narrow_products{{dtype={dtype}}}, {tidy}", *values]


def product_passes(options: BuildOptions) -> str:
    """What makes products of codes integer ones, with such codes on the left as all targets take, and functions of codes tables."""
    codes = min(target.codes for target in options.targets)
    padded = "pad_terms, merge_windows, " if all(target.multiplies_in_groups for target in options.targets) else ""
    tabulated = "tabulate_codes, " if all(target.looks_up_codes for target in options.targets) else ""
    tidy = "fold_constants, eliminate_common_subexpressions, eliminate_dead_code"
    return f"integer_products{{codes={codes}}}, pack_codes, {padded}{tabulated}fold_constants, fold_code_scales, {tidy}"


def weight_passes(options: BuildOptions) -> list[str]:
    """The passes that prune and quantize weights as the options ask."""
    found = [] if options.sparsity is None else [SPARSITY_PASSES[options.sparsity]]
    found += [] if options.quantize is None else QUANTIZATIONS[options.quantize].steps(stored_by_all(options))
    return [*found, "eliminate_dead_code"] if found else []


def compile_parts(module: Module, options: BuildOptions, progress: Progress, tuning: Tuning) -> Iterator[Built]:
    """Graph to kernels to machine code: a part for each level and GPU that the targets name, the best of a target first."""
    packed, done = PackedConstants(module), set[str]()
    for target in options.targets:
        progress.stage(f"compile for {target.name}")
        backend = backend_of(target)
        for machine in backend.machines(target, module, options.precision):
            if machine.name not in done:  # `cpu` and `native` may mean one level
                done.add(machine.name)
                with _compiling_for(machine.name):
                    built = backend.compile(module, target, machine, options, progress, tuning, packed)
                for note in faults_of([built]):
                    progress.note(note)
                yield built


@contextmanager
def _compiling_for(name: str) -> Iterator[None]:
    """What fails inside is this part's error."""
    try:
        yield
    except CompilerError as error:
        error.note = "\n".join(filter(None, (error.note, f"while compiling for {name}")))
        raise
    except InternalError as error:
        raise InternalError(f"{error}, while compiling for {name}", error.reproducer) from error


def stage_text(module: Module, options: BuildOptions, stage: str) -> str:
    """The program at a stage after `simplify`, for the (best level of the) first target: regions, tiles, plan or its language."""
    from ..ir.region.text import print_region
    from ..ir.tile.text import text as tile_text

    target = options.targets[0]
    if stage in LANGUAGES and stage != target.language:
        raise UsageError(f"stage {stage}: the kernels of {target.name} are {target.language}", hint=f"--ir {target.language}")
    lowered = lower(module, target, options.reckoned(module).workload_for(module.facts), options.precision)
    if stage == "plan":
        return plans_text(lowered.plans)
    if stage in LANGUAGES:
        backend = backend_of(target)
        return sources_text(backend.print(lowered, backend.machines(target, module, options.precision)[0]))
    parts = []
    # A class of sizes has a program of its own, and computes what all sizes do.
    for _, units in groupby(lowered.scheduled.items(), key=lambda item: id(item[1].problem.region if stage == "regions" else item[1])):
        named = list(units)
        heads = [f"# {name}: {unit.schedule}{'' if unit.when is None else f' for {unit.when}'}\n" for name, unit in named]
        unit = named[0][1]
        parts.append("".join(heads) + (print_region(unit.problem.region) if stage == "regions" else tile_text(unit.program)))
    return "\n".join(parts)


def plans_text(plans: Mapping[str, Plan]) -> str:
    """Plans of functions, each below its function's name where there are several."""
    from ..ir.plan.text import print_plan

    return "\n".join(f"# {name}\n{print_plan(plan)}" if len(plans) > 1 else print_plan(plan) for name, plan in plans.items())


def sources_text(sources: Mapping[str, str]) -> str:
    """Files of kernels, each below its name."""
    return "\n".join(f"{'#' if name.endswith('.py') else '//'} {name}\n{text}" for name, text in sources.items())


def lower(module: Module, target: Target, workload: Workload | None = None, precision: str | None = None) -> Lowered:
    """A simplified module as kernels and a plan for a target, by the cost model's schedules; nothing is compiled."""
    backend = backend_of(target)
    return backend.lower(module, backend.machines(target, module, precision)[0], workload)


def names_of(options: BuildOptions, contents: EngineContents) -> tuple[str, ...]:
    """Every name by which somebody may require what an engine was built for."""
    return tuple(dict.fromkeys([*(target.name for target in options.targets), *contents.targets, *contents.parts]))


def _provenance(options: BuildOptions, parts: Sequence[Built], before: EngineContents | None = None) -> dict[str, Any]:
    """Who made an engine, and for which target each of its parts; `before` is the engine of which the other parts are."""
    from .. import __version__

    asked = {**({} if before is None else recorded_targets(before)), **{part.name: part.target for part in parts}}
    targets = dict.fromkeys([*asked.values(), *(target.name for target in options.targets)])
    given = {} if options.workload is None else {"workload": [str(point) for point in options.workload.points]}
    own = {name: getattr(options, name) for name in CHANGES if getattr(options, name) is not None}
    changes = own if before is None else recorded_changes(before)
    said = {} if changes is None else {"changes": changes}
    program = [target.name for target in options.targets] if before is None else simplified_for(before)
    return {"producer": f"ourcc {__version__}", "targets": list(targets), "parts": asked, "program": program, **said, **given}
