"""The rewriter: the only way in which a pass changes a graph, the rules it applies, and the events it emits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ..errors import InternalError, Source
from .dead import bound_by, is_linked
from .graph import Builder, Graph, Module, Op, Value

Numerics = Literal["EXACT", "REASSOCIATES", "LOSSY"]


@dataclass(frozen=True)
class Event:
    """One change: which rule or pass, what it did (insert, replace, erase), to what, from which source."""

    rule: str
    action: str
    before: str
    after: str
    source: Source | None


class Rewriter:
    """Changes one graph; every change is an `Event` for the listeners."""

    def __init__(self, module: Module, graph: Graph, rule: str, listeners: Sequence[Callable[[Event], None]] = ()) -> None:
        self.module = module
        self.graph = graph
        self.rule = rule
        self.listeners = tuple(listeners)
        self.changes = 0
        self.touched: deque[Op] = deque()

    def builder(self, before: Op | None, source: Source | None = None) -> Builder:
        """A builder that inserts in front of `before`, with its source."""
        return Builder(self.module, self.graph, before, source if source is not None else before.source if before is not None else None)

    def replace(self, op: Op, values: Sequence[Value]) -> None:
        """Let users of the op's results read `values` instead, and erase the op."""
        before = repr(op)
        for old, new in zip(op.results, values, strict=True):
            self.touched.extend(old.uses)
            if new.op is not None:
                self.touched.append(new.op)
            if new.source is None or new.source == op.source:
                new.source = old.source
            self.graph.replace_uses(old, new)
        self.graph.remove(op)
        self._emit("replace", before, ", ".join(repr(value) for value in values), op.source)

    def erase(self, op: Op) -> None:
        """Remove an op whose results nobody reads."""
        producers = [value.op for value in op.operands if value is not None and value.op is not None]
        self.graph.remove(op)
        self.touched.extend(producers)
        self._emit("erase", repr(op), "", op.source)

    def set_operand(self, op: Op, position: int, value: Value | None) -> None:
        """Replace one operand."""
        before = repr(op.operands[position])
        self.graph.set_operand(op, position, value)
        self.touched.append(op)
        self._emit("operand", before, repr(value), op.source)

    def rename(self, value: Value, name: str) -> None:
        """Give a value another name."""
        before = repr(value)
        value.name = self.graph.unique(name)
        self._emit("rename", before, repr(value), value.source)

    def _emit(self, action: str, before: str, after: str, source: Source | None) -> None:
        self.changes += 1
        event = Event(self.rule, action, before, after, source)
        for listener in self.listeners:
            listener(event)


class Rule:
    """One rewrite of ops named in `ops`; the class docstring's first line is its equation.

    `check` returns why it does not apply, or None; `rewrite` builds the replacement values with the builder. A rule that
    recognises a `pattern` says by `is_near` of which ops it is worth telling why they do not end one.
    """

    ops: ClassVar[tuple[str, ...]] = ()
    numerics: ClassVar[Numerics] = "EXACT"
    pattern: ClassVar[str | None] = None

    @property
    def name(self) -> str:
        return type(self).__name__

    def check(self, op: Op, module: Module) -> str | None:
        """Why the rule does not apply to `op`, or None if it does."""
        raise NotImplementedError

    def is_near(self, op: Op, module: Module) -> bool:
        """Whether `op` ends what looks like the rule's pattern."""
        return False

    def rewrite(self, op: Op, g: Builder) -> Value | Sequence[Value]:
        """The values that replace the op's results, built with `g`."""
        raise NotImplementedError


def apply_rules(
    module: Module, graph: Graph, rules: Sequence[Rule], listeners: Sequence[Callable[[Event], None]] = (), limit: int | None = None
) -> int:
    """Apply rules until none fires; returns the number of firings. Not converging is an InternalError naming rules.

    `limit` stops after so many firings (for bisecting).
    """
    by_op: dict[str, list[Rule]] = {}
    for rule in rules:
        for name in rule.ops:
            by_op.setdefault(name, []).append(rule)
    pending = deque(graph)
    waiting = set(pending)
    fired, last = 0, deque[str](maxlen=6)
    bound = 64 * (len(pending) + 16)
    while pending:
        op = pending.popleft()
        waiting.discard(op)
        if not is_linked(graph, op):
            continue
        for rule in by_op.get(op.name, ()):
            if rule.check(op, module) is not None:
                continue
            if limit is not None and fired >= limit:
                return fired
            rewriter = Rewriter(module, graph, rule.name, listeners)
            first = op.previous
            values = rule.rewrite(op, rewriter.builder(op))
            new = _between(graph, first, op)
            take_names(op, values := (values,) if isinstance(values, Value) else tuple(values), new)
            operands = op.operands
            rewriter.replace(op, values)
            _erase_unread(rewriter, operands)
            for other in (*new, *rewriter.touched):
                if other not in waiting:
                    waiting.add(other)
                    pending.append(other)
            fired += 1
            last.append(rule.name)
            if fired > bound:
                raise InternalError(f"rules do not converge: {', '.join(dict.fromkeys(last))} undo each other")
            break
    return fired


def take_names(op: Op, values: Sequence[Value], new: Sequence[Op]) -> None:
    """Let the values built in place of an op's results keep their names, which come from the user's model."""
    built = set(new)
    for old, value in zip(op.results, values, strict=True):
        if value.op in built:
            old.name, value.name = value.name, old.name


def _erase_unread(rewriter: Rewriter, values: Sequence[Value | None]) -> None:
    """Erase the ops behind `values` that nobody reads any more, so that later rules see true numbers of uses.

    What gives a symbol a value stays: whether anything needs that, only a walk over the whole graph tells.
    """
    pending = [value.op for value in values if value is not None and value.op is not None]
    while pending:
        op = pending.pop()
        dead = op.definition.is_pure and not bound_by(op) and not any(result.uses for result in op.results)
        if not dead or not is_linked(rewriter.graph, op) or any(output.op is op for output in rewriter.graph.outputs):
            continue
        pending += [value.op for value in op.operands if value is not None and value.op is not None]
        rewriter.erase(op)


def _between(graph: Graph, first: Op | None, last: Op) -> list[Op]:
    """The ops after `first` (None: from the start) and before `last`."""
    op = graph.first if first is None else first.next
    found: list[Op] = []
    while op is not None and op is not last:
        found.append(op)
        op = op.next
    return found


__all__: list[Any] = ["Event", "Numerics", "Rewriter", "Rule", "apply_rules", "take_names"]
