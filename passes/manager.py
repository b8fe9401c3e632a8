"""The pass manager: runs passes in order and gives every one of them verification, timing, printing, bisection and
a reproducer.
"""

from __future__ import annotations

import difflib
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..ir.errors import CompilerError, InternalError, VerifyError
from ..ir.graph import Module, Value
from ..ir.graph.rewrite import Event
from ..ir.graph.text import assemble, functions_text, module_text
from ..ir.graph.verify import Verifier
from .base import Missed, Pass, PassContext
from .pipeline import pass_text, pipeline_text

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class PassRecord:
    """What one pass did: its spelling, seconds, whether it changed the module, rewrites by rule, and what it has to tell."""

    text: str
    seconds: float
    changed: bool
    rewrites: Counter[str] = field(default_factory=Counter)
    notes: tuple[str, ...] = ()
    missed: tuple[Missed, ...] = ()


@dataclass
class PassManager:
    """Runs `passes` in order.

    `verify` checks the module before the passes, after each that changed it and after the last; `strict` compares each
    pass's answer with the module's text. `print_change` is given a pass's text and a unified diff when the module
    changed. `stop_after` bounds the passes and `rewrite_limit` the rewrites of all passes together (for bisecting).
    `reproducers` is the folder that gets a file on any exception (None: no file).
    """

    passes: Sequence[Pass]
    listeners: tuple[Callable[[Event], None], ...] = ()
    verify: bool = True
    strict: bool = False
    print_change: Callable[[str, str], None] | None = None
    stop_after: int | None = None
    rewrite_limit: int | None = None
    reproducers: Path | None = None

    def run(self, module: Module) -> list[PassRecord]:
        """Run the passes; one record for each that ran."""
        verifier = Verifier()
        if self.verify:
            verifier.verify(module)
        context = PassContext(self.listeners, self.rewrite_limit)
        before = _Snapshot(module, self.reproducers) if self.reproducers is not None else None
        records: list[PassRecord] = []
        steps = self.passes if self.stop_after is None else self.passes[: self.stop_after]
        for number, step in enumerate(steps, 1):
            try:
                records.append(self._run_pass(step, module, context, verifier, is_last=number == len(steps)))
            except Exception as error:
                path = before.write(step, self.passes, error) if before is not None else None
                if isinstance(error, CompilerError) and not isinstance(error, VerifyError):
                    if path is not None:
                        error.add_note(f"reproducer: {path}")
                    raise
                where = f"; reproducer: {path}" if path is not None else ""
                raise InternalError(f"pass {step.name} failed: {error}{where}", path) from error
        return records

    def _run_pass(self, step: Pass, module: Module, context: PassContext, verifier: Verifier, is_last: bool) -> PassRecord:
        shows = self.strict or self.print_change is not None
        text = module_text(module) if shows else ""
        rewrites: Counter[str] = Counter()
        context.listeners = (*self.listeners, lambda event: rewrites.update((event.rule,)))
        step.requires(module)
        start = time.perf_counter()
        changed = step.run(module, context)
        seconds = time.perf_counter() - start
        if self.verify and (changed or is_last):
            verifier.verify(module)
        step.ensures(module)
        if not changed and rewrites:
            raise InternalError(f"pass {step.name} says that nothing changed and made {rewrites.total()} rewrites")
        if shows:
            self._compare(step, text, module_text(module), changed)
        _LOG.debug("%s: %s, %d rewrites, %.1f ms", step.name, "changed" if changed else "unchanged", rewrites.total(), seconds * 1e3)
        notes, context.notes = tuple(context.notes), []
        missed, context.missed = tuple(context.missed), []
        return PassRecord(pass_text(step), seconds, changed, rewrites, notes, missed)

    def _compare(self, step: Pass, before: str, after: str, changed: bool) -> None:
        if self.strict and changed != (before != after):
            found = "the same" if before == after else "another"
            raise InternalError(f"pass {step.name} says changed={changed}, and the module is {found}")
        if self.print_change is not None and before != after:
            lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="", n=2)
            self.print_change(pass_text(step), "\n".join(lines))


class _Snapshot:
    """A module as it was before the passes; constants are named by digest only if it is written."""

    def __init__(self, module: Module, folder: Path) -> None:
        self.folder = folder
        self.module = Module(module.name, module.facts, states=dict(module.states))
        self.constants: dict[str, Value] = dict(module.constants)
        self.functions = functions_text(module)

    def write(self, step: Pass, passes: Sequence[Pass], error: Exception) -> str:
        """Write the reproducer: the pipeline in the first comment, the failure in the second, then the module."""
        head = f"# pipeline: {pipeline_text(passes)}\n# failed in {pass_text(step)}: {type(error).__name__}: {_first_line(error)}\n"
        text = head + assemble(self.module, self.constants, self.functions)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"reproducer-{hashlib.sha256(text.encode()).hexdigest()[:12]}.ir"
        path.write_text(text, encoding="utf-8")
        return str(path)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else ""
