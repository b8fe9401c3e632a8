"""What torch runs outside of the graphs that it hands to a backend: why graphs end before their function does, and the ops there."""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...runtime.contents import Contract, ContractRow
from ..contract import FALLBACK
from ..importers.torch.nodes import user_line

STEP, JUMP = "step_unsupported", "generic_jump"
"""Torch's words for a function whose rest it leaves to Python, and for a condition: why is told to its counters alone."""
LEFT_REST = "torch compiles the function up to here, and its rest runs in eager"
CONDITION = "a condition on a tensor's values"

_SKIPPED = "unimplemented"
_KINDS = ("graph_break", _SKIPPED)
"""Torch's counters of breaks behind which a function goes on, and of those behind which it does not, or of which there is no graph."""


@dataclass(frozen=True)
class Break:
    """Why a graph ended before its function did, and the line; None where torch leaves a whole function to Python."""

    reason: str
    where: str | None


def break_of(graph_module: Any) -> Break | None:
    """Why torch ended a graph, unless its function ended too."""
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return None
    place = user_line([(frame.filename, frame.lineno) for frame in reason.user_stack])
    where = None if place is None else f"{place[0]}:{place[1]}"
    if reason.reason.startswith((STEP, JUMP)):
        return Break(LEFT_REST if reason.reason.startswith(STEP) else CONDITION, where)
    return Break(in_words(reason.reason), where)


def in_words(reason: str) -> str:
    """Torch's reason in one line: its title, and the settings that it names."""
    title, *rest = reason.splitlines()
    settings = dict.fromkeys(setting for line in rest for setting in _SETTING.findall(line))
    return "; ".join([title, *(f"torch offers {re.sub(' *= *', ' = ', setting)}" for setting in settings)])


_SETTING = re.compile(r"torch\._dynamo\.config\.\w+ ?= ?\w+")


def broken_contract(found: Break) -> Contract:
    """The contract of what follows a graph that ended early: torch runs it, and may run any op there."""
    why = f"{found.reason}; only graphs are compiled (torch.compile(fullgraph=True) refuses what is more than one)"
    return Contract((ContractRow(found.where or "a function", "graph break", "compiled", "left to torch", why, runs=FALLBACK),))


@dataclass
class Breaks:
    """The graph breaks of one call, as graphs come and as torch's counters tell."""

    found: list[Break] = field(default_factory=list)
    known: dict[str, Counter[str]] = field(default_factory=lambda: {kind: _counted(kind) for kind in _KINDS})

    def note(self, graph_module: Any) -> None:
        """Look at one graph that torch hands over."""
        ended = break_of(graph_module)
        if ended is not None and ended.reason in (LEFT_REST, CONDITION):
            # Torch has just counted why, which for a condition says no more.
            news = self._news(_SKIPPED)
            ended = Break("; ".join([*news[-1:], LEFT_REST]), ended.where) if ended.reason == LEFT_REST else ended
        self.found += [] if ended is None else [ended]

    def finish(self) -> list[Break]:
        """All breaks, those too of functions of which torch made no graph."""
        told = {each.reason for each in self.found}
        words = dict.fromkeys(reason for kind in _KINDS for reason in self._news(kind))
        self.found += [Break(reason, None) for reason in words if reason not in told]
        return self.found

    def _news(self, kind: str) -> list[str]:
        """What torch counted since this was last asked, in words."""
        before, self.known[kind] = self.known[kind], _counted(kind)
        return [in_words(reason) for reason in self.known[kind] - before]


def _counted(kind: str) -> Counter[str]:
    """How often torch met each reason in this process."""
    from torch._dynamo.utils import counters

    return Counter(counters[kind])


class EagerOps:
    """The ops that torch ran outside of compiled graphs while it was watched, by line: those that compute, and no views."""

    def __init__(self) -> None:
        self.by_line: dict[str, Counter[str]] = {}
        self._is_paused = False

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(sum(ops.values()) for ops in self.by_line.values())

    def lines(self) -> Iterable[tuple[str, int, str]]:
        """(line, how many ops, which) in the order of the call."""
        return [(line, sum(ops.values()), ", ".join(ops)) for line, ops in self.by_line.items()]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What runs inside is a graph's."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    @contextmanager
    def watched(self) -> Iterator[None]:
        """What runs inside is looked at; torch compiles as it would unseen."""
        from torch.utils._python_dispatch import TorchDispatchMode

        seen = self

        class Watching(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
            supports_higher_order_operators = True

            @classmethod
            def ignore_compile_internals(cls) -> bool:
                return True

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                seen._see(func)
                return func(*args, **(kwargs or {}))

        with Watching():
            yield

    def _see(self, func: Any) -> None:
        if self._is_paused or getattr(func, "is_view", False):
            return
        frames = [(frame.f_code.co_filename, number) for frame, number in traceback.walk_stack(None)]
        place = user_line([frame for frame in reversed(frames) if frame[0] != __file__])
        ops = self.by_line.setdefault("-" if place is None else f"{place[0]}:{place[1]}", Counter())
        ops[str(getattr(func, "overloadpacket", func))] += 1
