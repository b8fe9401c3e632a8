"""What users of `torch.compile` are told while it runs: builds that take long, graphs that are left to torch, faults of ours."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import threading
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...autotune.lock import LockError
from ...ir.dims import Facts
from ...ir.errors import CompilerError, ContractError, InputError, ToolchainError, UnsupportedError, UsageError
from ...ir.workload import Workload
from ..importers.torch.imported import Fallback
from ..options import BuildOptions

LOG = logging.getLogger("ourcc.backend")
LONG = 10.0
"""Seconds after which a build says that it takes long."""

_ASKED = (UsageError, ContractError, ToolchainError, LockError, OSError, MemoryError)
"""What the user, or nobody but the machine, can change: never answered by torch instead."""


class CompilerFault(RuntimeWarning):
    """A fault of the compiler: the answer is right, torch gave it, and the compiler should be mended."""


def may_leave(error: Exception, options: BuildOptions) -> bool:
    """Whether torch may run a graph in spite of an error: not where its cause is the user's, or no fallback is allowed."""
    if isinstance(error, UnsupportedError):
        return True  # the contract says no where it must
    return not isinstance(error, _ASKED) and not any(requirement.subject == "no-fallback" for requirement in options.require)


def tell_left(error: Exception, graph_module: Any, options: BuildOptions) -> str:
    """Say that torch runs a graph, loudly where the fault is ours; gives the reason."""
    count = sum(node.op == "call_function" for node in graph_module.graph.nodes)
    if isinstance(error, UnsupportedError):
        LOG.warning("ourcc: a graph of %d ops is left to torch: %s", count, error.message)
        return error.message
    path = getattr(error, "reproducer", None) or reproducer(error, graph_module, options.environment.directory / "reproducers")
    reason = error.message if isinstance(error, CompilerError) else f"{type(error).__name__}: {error}"
    warnings.warn(
        f"a fault of ourcc: a graph of {count} ops is left to torch, whose answers are right: {reason}; please report {path}",
        CompilerFault,
        stacklevel=2,
    )
    return f"a fault of the compiler: {reason}"


_TOLD = set[tuple[str, str]]()


def tell_calls(fallbacks: Sequence[Fallback]) -> None:
    """Say which ops torch runs, outside of kernels, and why: of each reason once in a process."""
    fresh = dict.fromkeys((each.operator, each.why) for each in fallbacks if (each.operator, each.why) not in _TOLD)
    _TOLD.update(fresh)
    if fresh:
        reasons = "; ".join(f"{operator}: {why.removeprefix(operator).lstrip(': ')}" for operator, why in fresh)
        LOG.warning("ourcc: torch runs ops outside of kernels, and ourcc.explain says where: %s", reasons)


_NOTED = set[str]()


def tell_notes(notes: Iterable[str]) -> None:
    """Say what became of requests, each thing once in a process, however many graphs there are."""
    for note in notes:
        if note not in _NOTED:
            _NOTED.add(note)
            LOG.warning("ourcc: %s", note)


def tell_workload(workload: Workload | None, facts: Facts) -> None:
    """Say that a graph has none of the symbols that a workload names: it is another graph's, or a wrong name."""
    named = dict.fromkeys(name for point in (workload.points if workload else ()) for name, _ in point.sizes)
    if named and not any(name in facts.ranges for name in named):
        fixed = "its sizes are fixed (torch.compile(dynamic=True) lets them vary)"
        known = f"its symbols are {', '.join(facts.ranges)}" if facts.ranges else fixed
        LOG.warning("ourcc: the workload names %s, which a graph does not have: %s", ", ".join(named), known)


def tell_refused(error: CompilerError, is_for_good: bool) -> str:
    """Say that an engine refused a call which torch then answered."""
    calls = "this call and all that follow are" if is_for_good else "a call is"
    LOG.log(logging.INFO if isinstance(error, InputError) else logging.WARNING, "ourcc: %s left to torch: %s", calls, error.message)
    return error.message


def names_of(graph_module: Any) -> tuple[str, ...]:
    """What the user calls the inputs of a graph of dynamo, as far as it knows: `ids` for L['ids']."""
    found = []
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            source = getattr(node, "_dynamo_source", None)
            name = getattr(source, "name", "")
            text = str(name() if callable(name) else name)
            match = re.fullmatch(r"L\['(\w+)'\](.*)", text)
            found.append(f"{match[1]}{match[2]}" if match else text or str(node.name))
    return tuple(found)


def in_users_words(error: CompilerError, graph_module: Any, names: Sequence[str]) -> None:
    """Name the inputs of a graph of AOTAutograd as the user does, and the options as torch.compile takes them."""
    inputs = [node.name for node in graph_module.graph.nodes if node.op == "placeholder"]
    if len(inputs) == len(names):
        known = dict(zip(inputs, names, strict=True))
        error.message = re.sub(r"input '(\w+)'", lambda found: f"input {known.get(found[1], found[1])!r}", error.message)
        error.args = (error.message,)
    if error.hint is not None and "unchecked_indices" in error.hint:
        error.hint = 'torch.compile(options={"unchecked_indices": True}) leaves such an index undefined, and checks none'


def reproducer(error: Exception, graph_module: Any, folder: Path) -> str:
    """Write a graph and how its compilation failed to a file."""
    trace = "".join(traceback.format_exception(error))
    head = "".join(f"# {line}\n" for line in trace.splitlines())
    text = head + str(graph_module.print_readable(print_output=False))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"graph-{hashlib.sha256(text.encode()).hexdigest()[:12]}.py"
    path.write_text(text, encoding="utf-8")
    return str(path)


@contextlib.contextmanager
def long_build(graph_module: Any, seconds: float = LONG) -> Iterator[None]:
    """Log a build that takes longer than some seconds, and how long it took in the end."""
    count = sum(node.op == "call_function" for node in graph_module.graph.nodes)
    timer = threading.Timer(seconds, LOG.warning, ("ourcc: compiling a graph of %d ops takes longer than %g s", count, seconds))
    timer.daemon = True
    timer.start()
    start = time.monotonic()
    try:
        yield
    finally:
        timer.cancel()
        spent = time.monotonic() - start
        LOG.log(logging.WARNING if spent > seconds else logging.INFO, "ourcc: compiling a graph of %d ops took %.1f s", count, spent)
