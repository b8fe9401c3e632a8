"""`ourcc tune`: measures schedules for an engine's CPU parts on this machine and writes the engine with the better ones."""

from __future__ import annotations

import platform

from ..ir.errors import UnsupportedError
from ..ir.target import CpuLevel, cpu_level
from ..runtime.contents import CPU, EngineContents
from ..runtime.file import write_engine
from ..runtime.native import cpu_flags, why_not
from .built import Packed
from .options import BuildOptions, TuneOptions
from .outputs import check_places, keep_signature
from .progress import SILENT, Progress
from .recorded import recorded_targets, recorded_workload
from .reopen import exchange, module_of
from .report.table import Report, Table
from .target_cpu import compile_cpu
from .targets import parse_target
from .trust import open_contents
from .tuning import Tuning


def tune(options: TuneOptions, progress: Progress = SILENT) -> Report:
    """Measure, choose again, and write the engine; parts that this machine cannot measure stay as they are."""
    check_places({"-o": options.output}, {"ENGINE": options.engine} if options.output else {}, options.trust)
    keep_signature(options.output or options.engine, options.trust)
    progress.stage("read the engine")
    contents = open_contents(options.engine, options.environment.directory, options.trust, progress)
    levels, asked = _levels(contents), recorded_targets(contents)
    workload = recorded_workload(contents)
    build = BuildOptions(workload=workload, tune=options.budget, environment=options.environment)
    module, tuning = module_of(contents), Tuning(build, progress)
    packed, built = Packed(module), []
    for level in levels:
        progress.stage(f"compile for {level.name}")
        built.append(compile_cpu(module, parse_target(asked[level.name]), level, build, progress, tuning, packed))
    better = exchange(contents, built, tuning)
    path = options.output or options.engine
    progress.stage(f"saving {path}")
    write_engine(path, better, signing_key=options.trust.signing_key)
    return _report(contents, tuning, str(path))


def _levels(contents: EngineContents) -> list[CpuLevel]:
    """The levels of the engine's parts that run here; an error if there is none."""
    names = contents.named(CPU)
    if not names:
        held = ", ".join(contents.parts)
        raise UnsupportedError(f"tuning measures cpu kernels: got an engine for {held}", hint="build it with --target cpu as well")
    reasons = {name: why_not(contents.parts[name], platform.machine(), cpu_flags()) for name in names}
    found = [cpu_level(name) for name in names if reasons[name] is None]
    if not found:
        note = "\n".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise UnsupportedError("the engine was built for another machine", note=note, hint="build it here, with --tune")
    return found


def _report(contents: EngineContents, tuning: Tuning, path: str) -> Report:
    before = {(row["architecture"], row["kernel"]): row["schedule"] for row in contents.report.get("tuning", {}).get("rows", ())}
    rows = [
        (row["kernel"], row["architecture"], before.get((row["architecture"], row["kernel"])), row["schedule"], row["source"], row["why"])
        for row in tuning.report()["rows"]
    ]
    changed = sum(1 for row in rows if row[2] != row[3])
    measured = sum(decision.tried for level in tuning.levels.values() for decision in level.chooser.decisions.values())
    table = Table(
        "schedules", ("kernel", "architecture", "before", "now", "chosen_by", "why"), tuple(rows), (), ("kernel", "now", "chosen_by", "why")
    )
    return Report({"engine": path, "candidates_measured": measured, "changed": changed}, (table,))
