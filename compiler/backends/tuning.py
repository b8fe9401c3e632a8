"""Tuning a build: which stores, lock and machine its choices come from, and what the engine says of them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from ...autotune.choose import SHORTLIST, Chooser, Shelves
from ...autotune.lock import Lock, LockedLevel
from ...autotune.measure import Measurer, Policy
from ...autotune.record import Data
from ...autotune.store import RecordStore, open_store
from ...codegen.c.toolchain import Compiler
from ...ir.errors import EngineError, UsageError
from ...ir.target import CpuLevel, GpuTarget
from ...passes.lower.build_plan import Lowered
from ...runtime.contents import ContractRow, EngineContents
from ...runtime.native import cpu_flags
from ...runtime.replace import replace_file
from ..engines.trust import NOBODY_ASKED, Trust, open_contents
from ..environment import Environment as Variables
from ..options import BuildOptions
from ..progress import SILENT, Progress
from ..targets.machine import read_cpu

JOURNAL = "last_build.json"


def producer() -> str:
    """This compiler, as records and locks name it."""
    from ... import __version__

    return f"ourcc {__version__}"


def cpu_environment(level: CpuLevel, compiler: Compiler, policy: Policy | None = None) -> Data:
    """What times on this machine depend on, beside the problem."""
    cpu = read_cpu()
    return {
        "architecture": level.name,
        "device": cpu.model,
        "features": list(cpu.notable),
        "compiler": compiler.identity,
        "producer": producer(),
        "policy": (policy or Policy()).to_json(),
    }


def triton_identity() -> str:
    """The compiler of GPU kernels, as a lock names it."""
    try:
        return f"triton {metadata.version('triton')}"
    except metadata.PackageNotFoundError:
        return "triton"


@dataclass
class _Level:
    """One instruction-set level or GPU architecture that was built."""

    compiler: str
    chooser: Chooser
    kernels: dict[str, str] = field(default_factory=dict)  # kernel name -> problem id


@dataclass
class Tuning:
    """The choices of one build: hands out a chooser for each level, then tells what they chose."""

    options: BuildOptions
    progress: Progress = SILENT
    levels: dict[tuple[str, str], _Level] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tune = self.options.tune
        given = self.options
        self.lock = read_lock(given.locked, given.environment, given.trust) if given.locked is not None else None
        self.deadline = time.monotonic() + tune.seconds if tune.mode == "budget" else None
        self.count = {"count": tune.count, "budget": SHORTLIST}.get(tune.mode, 0)
        wanted = tune.mode != "off" and self.lock is None
        # A store that nobody named is made when there is something to keep.
        is_named = bool(given.environment.cache)
        self.shelves = Shelves(_stores(self.options), self.progress.note).checked(is_named) if wanted else None

    def for_cpu(self, target: str, level: CpuLevel, compiler: Compiler) -> Chooser:
        """The chooser of an instruction-set level."""
        chooser = Chooser(level, locked=self._locked(level.name, compiler.identity), note=self.progress.note)
        if self.shelves is not None:
            chooser.environment, chooser.shelves = cpu_environment(level, compiler), self.shelves
            chooser.count, chooser.deadline = self.count, self.deadline
            if self.count and cpu_flags().issuperset(level.features):
                chooser.measurer = Measurer(level, compiler, cache=self.options.environment.objects)
        self.levels[target, level.name] = _Level(compiler.identity, chooser)
        return chooser

    def for_gpu(self, target: str, device: GpuTarget) -> Chooser:
        """The chooser of a GPU architecture: the lock or predicted cost, nothing is measured."""
        identity = triton_identity()
        chooser = Chooser(device, locked=self._locked(device.name, identity), note=self.progress.note)
        if self.count:
            chooser.unmeasured = "measuring is for cpu targets: least predicted cost"
            self.progress.note(f"schedules for {device.name} are chosen by predicted cost: measuring is for cpu targets")
        self.levels[target, device.name] = _Level(identity, chooser)
        return chooser

    def _locked(self, architecture: str, compiler: str) -> LockedLevel | None:
        return None if self.lock is None else self.lock.level(architecture, compiler, producer())

    def done(self, target: str, architecture: str, lowered: Lowered) -> None:
        """The level's kernels are known: remember whose problem each one computes."""
        from ...autotune.problem import problem_id

        level = self.levels[target, architecture]
        level.kernels = {name: problem_id(unit.problem) for name, unit in lowered.scheduled.items()}
        if self.shelves is not None and level.chooser.environment is not None:
            self.progress.note(f"{architecture}: {_summary(level.chooser)}")

    # --- what the engine says ---

    def lock_text(self) -> str:
        """`ourcc.lock` of this build."""
        lock = Lock(producer())
        for (_, name), level in self.levels.items():
            # Two targets may share a level; a problem has one choice there.
            choices = lock.levels.setdefault(name, LockedLevel(level.compiler)).choices
            choices |= {id: decision.schedule for id, decision in level.chooser.decisions.items()}
        return lock.text()

    def report(self) -> dict[str, Any]:
        """Rows by kernel, and the problems that they name."""
        rows, problems = [], {}
        for (target, name), level in self.levels.items():
            for kernel, id in level.kernels.items():
                decision = level.chooser.decisions[id]
                problems[id] = decision.data
                rows.append(
                    {
                        "target": target,
                        "architecture": name,
                        "kernel": kernel,
                        "problem": id,
                        "schedule": str(decision.schedule),
                        "source": decision.source,
                        "why": decision.why,
                        "record": decision.record,
                        "measured": decision.tried,
                        "ties": decision.ties,
                    }
                )
        return {"rows": rows, "problems": problems}

    def contract(self) -> list[dict[str, str]]:
        """One row a level, where measuring or a lock was asked for or records were used."""
        rows = []
        for (_, name), level in self.levels.items():
            decisions = level.chooser.decisions.values()
            if self.options.tune.mode in ("count", "budget") or self.lock is not None or any(d.source == "record" for d in decisions):
                requested = "locked" if self.lock is not None else f"tune {self.options.tune}"
                why = "; ".join(dict.fromkeys(d.why for d in decisions if d.source == "cost"))
                rows.append(vars(ContractRow(name, "schedules", requested, _summary(level.chooser), why)))
        return [dict(row) for row in rows]


def _stores(options: BuildOptions) -> list[RecordStore]:
    """The stores in use: the first is the user's own, the others must be signed where keys are trusted."""
    local, *others = options.environment.stores
    return [open_store(local), *(open_store(url, options.trust.believed) for url in others)]


def _summary(chooser: Chooser) -> str:
    """How the choices of a level were made, in a few words."""
    counts: dict[str, int] = {}
    for decision in chooser.decisions.values():
        counts[decision.source] = counts.get(decision.source, 0) + 1
    words = {"measured": "measured now", "record": "from records", "locked": "from the lock", "cost": "by predicted cost"}
    tried = sum(decision.tried for decision in chooser.decisions.values())
    parts = [f"{counts[source]} {text}" for source, text in words.items() if source in counts]
    if "measured" in counts:
        parts.append(f"{tried} candidates timed")
    elif "locked" not in counts:
        parts.append("nothing measured")
    return f"{len(chooser.decisions)} problems: {', '.join(parts)}"


def read_lock(path: Path, variables: Variables, trust: Trust = NOBODY_ASKED) -> Lock:
    """A lock from its file, or from the engine that holds one; with trusted keys from an engine that is signed."""
    with path.open("rb") as stream:
        is_engine = stream.read(2) == b"PK"
    if not is_engine and trust.keys is not None:
        hint = "an ourcc.lock alone carries no signature: name the signed engine that holds it"
        raise EngineError(f"lock {str(path)!r} is not signed, expected a signature by a trusted key", hint=hint)
    if not is_engine:
        try:
            return Lock.parse(path.read_text(encoding="utf-8"), f"lock {str(path)!r}")
        except UnicodeDecodeError as error:
            raise UsageError(f"{str(path)!r} is neither an ourcc.lock nor an engine") from error
    text = open_contents(path, variables.directory, trust).lock
    if not text:
        raise EngineError(f"engine {str(path)!r} holds no lock", hint="build it again with this version of ourcc")
    return Lock.parse(text, f"the lock of {str(path)!r}")


# --- the latest build -------------------------------------------------------------------------------------------------


def write_journal(contents: EngineContents, variables: Variables, progress: Progress = SILENT) -> None:
    """Keep what the latest build chose, for `ourcc cache why`; a cache folder that cannot be written is only noted."""
    text = json.dumps(contents.report.get("tuning", {}), sort_keys=True)
    folder = variables.directory
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / JOURNAL, [text.encode()])
    except OSError as error:
        progress.note(f"the build cache cannot be written: {error.strerror or error}")


def read_journal(variables: Variables) -> Mapping[str, Any]:
    """What the latest build chose; UsageError if there was none."""
    try:
        data = json.loads((variables.directory / JOURNAL).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError("no build is remembered here", hint="name the engine as well: ourcc cache why m.ourcc:kernel_0") from error
    return data if isinstance(data, dict) else {}


__all__ = ["Tuning", "cpu_environment", "producer", "read_journal", "read_lock", "write_journal"]
