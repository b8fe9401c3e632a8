"""`ourcc tune`: measures schedules for an engine's CPU part on this machine and writes the engine with the better ones."""

from __future__ import annotations

from ..ir.errors import UnsupportedError
from ..runtime.contents import EngineContents
from ..runtime.file import write_engine
from .options import BuildOptions, TuneOptions
from .outputs import check_places, keep_signature
from .progress import SILENT, Progress
from .recorded import recorded_workload
from .reopen import exchange, module_of
from .report.table import Report, Table
from .target_cpu import compile_cpu, levels_of
from .targets import TARGETS, Target
from .trust import open_contents
from .tuning import Tuning

CPU = "cpu"


def tune(options: TuneOptions, progress: Progress = SILENT) -> Report:
    """Measure, choose again, and write the engine; what is not for the CPU stays as it is."""
    check_places({"-o": options.output}, {"ENGINE": options.engine} if options.output else {}, options.trust)
    keep_signature(options.output or options.engine, options.trust)
    progress.stage("read the engine")
    contents = open_contents(options.engine, options.environment.directory, options.trust, progress)
    target = _cpu_target(contents)
    workload = recorded_workload(contents)
    build = BuildOptions(targets=(target,), workload=workload, tune=options.budget, environment=options.environment)
    tuning = Tuning(build, progress)
    progress.stage(f"compile for {target.name}")
    built = compile_cpu(module_of(contents), target, build, progress, tuning)
    better = exchange(contents, [built], tuning)
    path = options.output or options.engine
    progress.stage(f"saving {path}")
    write_engine(path, better, signing_key=options.trust.signing_key)
    return _report(contents, tuning, str(path))


def _cpu_target(contents: EngineContents) -> Target:
    """The target that the engine's CPU part was built for; an error if this machine would make another part."""
    names = [str(name) for name in contents.provenance.get("targets", ())]
    target = next((TARGETS[name] for name in names if name in TARGETS and TARGETS[name].family == "cpu"), None)
    if CPU not in contents.targets or target is None:
        held = ", ".join(contents.targets)
        raise UnsupportedError(f"tuning measures cpu kernels: got an engine for {held}", hint="build it with --target cpu as well")
    theirs = {library.file for library in contents.targets[CPU].libraries}
    ours = {f"{level.name}.so" for level in levels_of(target)}
    if theirs != ours:
        got, expected = ", ".join(sorted(theirs)), ", ".join(sorted(ours))
        raise UnsupportedError(
            f"the engine was built for another machine: got {got}, expected {expected}", hint="build it here, with --tune"
        )
    return target


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
