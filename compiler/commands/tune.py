"""`ourcc tune`: measures schedules for an engine's CPU parts on this machine and writes the engine with the better ones."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...autotune.store import RecordStore, open_store
from ...ir.errors import UnsupportedError
from ...ir.target import EMULATED, CpuLevel, cpu_level
from ...runtime.contents import CPU, EngineContents
from ...runtime.file import write_engine
from ...runtime.native import cpu_flags, why_not
from ..backends.built import PackedConstants
from ..backends.cpu import CpuBackend
from ..backends.reopen import exchange, module_of
from ..backends.tuning import Tuning
from ..engines.outputs import check_places, keep_signature
from ..engines.recorded import recorded_targets, recorded_workload
from ..engines.trust import open_contents
from ..options import BuildOptions, TuneOptions
from ..progress import SILENT, Progress
from ..report.table import Report, Table
from ..targets.registry import parse_target


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
    packed, built = PackedConstants(module), []
    for level in levels:
        progress.stage(f"compile for {level.name}")
        built.append(CpuBackend().compile(module, parse_target(asked[level.name]), level, build, progress, tuning, packed))
    better = exchange(contents, built, tuning)
    path = options.output or options.engine
    progress.stage(f"saving {path}")
    write_engine(path, better, signing_key=options.trust.signing_key)
    return _report(contents, tuning, str(path), open_store(options.environment.stores[0]))


def _levels(contents: EngineContents) -> list[CpuLevel]:
    """The levels of the engine's parts that run here; an error if there is none."""
    names = contents.named(CPU)
    if not names:
        held = ", ".join(contents.parts)
        raise UnsupportedError(f"tuning measures cpu kernels: got an engine for {held}", hint="build it with --target cpu as well")
    reasons = {
        name: "it is emulated, and its times say nothing"
        if name.endswith(EMULATED)
        else why_not(contents.parts[name], platform.machine(), cpu_flags())
        for name in names
    }
    found = [cpu_level(name) for name in names if reasons[name] is None]
    if not found:
        note = "\n".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise UnsupportedError("the engine was built for another machine", note=note, hint="build it here, with --tune")
    return found


def _report(contents: EngineContents, tuning: Tuning, path: str, store: RecordStore) -> Report:
    before = {(row["architecture"], row["kernel"]): row["schedule"] for row in contents.report.get("tuning", {}).get("rows", ())}
    rows = [
        (row["kernel"], row["architecture"], old, row["schedule"], _gain(store, row, old), row["source"], row["why"])
        for row in tuning.report()["rows"]
        for old in (before.get((row["architecture"], row["kernel"])),)
    ]
    changed = sum(1 for row in rows if row[2] != row[3])
    measured = sum(decision.tried for level in tuning.levels.values() for decision in level.chooser.decisions.values())
    columns = ("kernel", "architecture", "before", "now", "gain", "chosen_by", "why")
    notes = ("gain: the measured time of the schedule before over that of the one now, where both were measured",)
    below = ("before", "now", "why")
    table = Table("schedules", columns, tuple(rows), notes, tuple(name for name in columns if name not in below), below, ("kernel",))
    if changed < len(rows):
        kept = f"{len(rows) - changed} kernels keep their schedules; --wide and --json have them"
        table = replace(table, folded=replace(table, rows=tuple(row for row in rows if row[2] != row[3]), notes=(*notes, kept)))
    return Report({"engine": path, "candidates_measured": measured, "changed": changed}, (table,))


def _gain(store: RecordStore, row: Mapping[str, Any], old: str | None) -> float | None:
    """How many times as fast the new schedule is as the old one, by the medians of their measurements."""
    record = store.get(row["record"]) if row["record"] is not None else None
    times = {str(trial.schedule): trial.times for trial in (record.trials if record is not None else ())}
    earlier, now = times.get(old or ""), times.get(row["schedule"])
    return round(statistics.median(earlier) / max(statistics.median(now), 1), 2) if earlier and now else None
