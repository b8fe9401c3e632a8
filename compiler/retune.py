"""`ourcc tune`: measures schedules for an engine's CPU part on this machine and writes the engine with the better ones.

The engine keeps its program and its constants, so the model is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..autotune.lock import Lock
from ..ir import layout
from ..ir.errors import EngineError, UnsupportedError
from ..ir.graph import Module
from ..ir.parse import parse_module
from ..ir.types import TensorType
from ..runtime.contents import EngineContents
from ..runtime.engine import Engine
from ..runtime.file import read_engine
from ..runtime.weights import Constant
from .built import Built
from .options import BuildOptions, TuneOptions
from .progress import SILENT, Progress
from .report.table import Report, Table
from .target_cpu import compile_cpu, levels_of
from .targets import TARGETS, Target
from .tuning import Tuning

CPU = "cpu"


def tune(options: TuneOptions, progress: Progress = SILENT) -> Report:
    """Measure, choose again, and write the engine; what is not for the CPU stays as it is."""
    progress.stage("read the engine")
    contents = read_engine(options.engine)
    target = _cpu_target(contents)
    build = BuildOptions(targets=(target,), tune=options.budget, environment=options.environment)
    tuning = Tuning(build, progress)
    progress.stage(f"compile for {target.name}")
    built = compile_cpu(module_of(contents), target, build, progress, tuning)
    better = _with_cpu(contents, built, tuning)
    path = options.output or options.engine
    progress.stage(f"saving {path}")
    Engine(better).save(path)
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


def module_of(contents: EngineContents) -> Module:
    """The engine's program with its constants, from the order in which kernels read them back to their own."""
    holders: dict[str, tuple[str, str]] = {}
    for name, target in contents.targets.items():
        for buffer in target.plan.buffers:
            if buffer.storage == "constant":
                holders.setdefault(buffer.key.split(" ", 1)[0], (name, buffer.key))
    names: dict[str, str] = {}
    module = parse_module(contents.graph, _unpacker(contents, holders, names))
    # Values are unpacked when first asked for, and by then the digests have names.
    names |= {value.constant.digest: name for name, value in module.constants.items() if value.constant is not None and name in holders}
    return module


def _unpacker(
    contents: EngineContents, holders: Mapping[str, tuple[str, str]], names: Mapping[str, str]
) -> Callable[[str, TensorType], Any]:
    def array(digest: str, type: TensorType) -> Any:
        name = names.get(digest)
        if name is None:
            raise EngineError(f"engine holds no values of the constant with digest {digest[:16]}", hint="build it again from the model")
        target, key = holders[name]
        held = contents.constant(target, key).array()
        _, space, order = key.partition(" ")
        if not space:
            return held
        shape = tuple(int(str(size)) for size in type.shape)
        return layout.parse(order, tuple(f"d{n}" for n in range(len(shape)))).unpack(held, shape)

    return array


def _with_cpu(contents: EngineContents, built: Built, tuning: Tuning) -> EngineContents:
    targets = {name: built.contents if name == CPU else target for name, target in contents.targets.items()}
    weights: dict[str, Mapping[str, Constant | Any]] = {CPU: built.weights}
    for name, target in contents.targets.items():
        if name != CPU:
            keys = [buffer.key for buffer in target.plan.buffers if buffer.storage == "constant"]
            weights[name] = {key: contents.constant(name, key) for key in keys}
    lock = Lock.parse(tuning.lock_text())
    lock.levels = {**(Lock.parse(contents.lock).levels if contents.lock else {}), **lock.levels}
    old, new = contents.report, tuning.report()
    tuned = {level for _, level in tuning.levels}
    kept = [row for row in old.get("tuning", {}).get("rows", ()) if row["architecture"] not in tuned]
    contract = [row for row in old.get("contract", ()) if row["op"] != "schedules" or row["source"] not in tuned]
    report = {
        **old,
        "contract": [*contract, *tuning.contract()],
        "kernels": {**old.get("kernels", {}), CPU: built.rows},
        "tuning": {"rows": [*kept, *new["rows"]], "problems": {**old.get("tuning", {}).get("problems", {}), **new["problems"]}},
    }
    rest = {"graph": contents.graph, "lock": lock.text(), "report": report, "provenance": contents.provenance}
    return EngineContents.of(targets, weights, **rest)


def _report(contents: EngineContents, tuning: Tuning, path: str) -> Report:
    before = {(row["architecture"], row["kernel"]): row["schedule"] for row in contents.report.get("tuning", {}).get("rows", ())}
    rows = [
        (row["kernel"], row["architecture"], before.get((row["architecture"], row["kernel"])), row["schedule"], row["source"], row["why"])
        for row in tuning.report()["rows"]
    ]
    changed = sum(1 for row in rows if row[2] != row[3])
    measured = sum(decision.tried for level in tuning.levels.values() for decision in level.chooser.decisions.values())
    table = Table("schedules", ("kernel", "architecture", "before", "now", "chosen_by", "why"), tuple(rows))
    return Report({"engine": path, "candidates_measured": measured, "changed": changed}, (table,))
