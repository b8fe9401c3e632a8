"""What a pass is: a frozen dataclass whose fields are its options, and the context that it runs in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ..ir.graph import Graph, Module
from ..ir.graph.rewrite import Event, Numerics, Rewriter, Rule, apply_rules


@dataclass(frozen=True)
class Missed:
    """A pattern that was not recognised although its anchor is there: the value that would end it, and what is missing."""

    pattern: str
    value: str
    source: str
    why: str

    def __str__(self) -> str:
        return f"{self.pattern}: {self.why}"


@dataclass
class PassContext:
    """What a pass may ask while it runs: who listens to changes, whether one pays, how many are still allowed.

    `remaining` counts rewrites down (None: no bound); a bisection sets it, and a pass that has none left stops. `notes`
    are what a pass has to tell the user, `missed` the patterns that it nearly recognised.
    """

    listeners: tuple[Callable[[Event], None], ...] = ()
    remaining: int | None = None
    notes: list[str] = field(default_factory=list)
    missed: list[Missed] = field(default_factory=list)

    def rewriter(self, module: Module, graph: Graph, rule: str) -> Rewriter:
        """A rewriter of one graph whose changes the listeners see."""
        return Rewriter(module, graph, rule, self.listeners)

    def spend(self) -> bool:
        """Whether one more rewrite is allowed; counts it."""
        if self.remaining is None:
            return True
        if self.remaining <= 0:
            return False
        self.remaining -= 1
        return True

    def apply(self, module: Module, rules: Sequence[Rule]) -> bool:
        """Apply rules to every function until none fires; says whether one fired."""
        total = 0
        for graph in module.functions.values():
            fired = apply_rules(module, graph, rules, self.listeners, self.remaining)
            total += fired
            self.remaining = None if self.remaining is None else self.remaining - fired
        return total > 0


@dataclass(frozen=True)
class Pass:
    """One thing that may be done to a module; `numerics` says how much its result may differ."""

    name: ClassVar[str] = "pass"
    numerics: ClassVar[Numerics] = "EXACT"

    def __init_subclass__(cls) -> None:
        # The registry, the pipeline text and the file all use this one spelling.
        cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def check(self) -> None:
        """Raise UsageError for an option whose value says nothing."""

    def requires(self, module: Module) -> None:
        """Raise a CompilerError if the module is not what the pass expects: the caller's fault."""

    def run(self, module: Module, context: PassContext) -> bool:
        """Do it; says whether anything changed."""
        raise NotImplementedError

    def ensures(self, module: Module) -> None:
        """Raise an InternalError if the module is not what the pass promises: the pass's fault."""


@dataclass(frozen=True)
class RulePass(Pass):
    """A pass that is a list of rules, applied until none fires."""

    def rules(self) -> Sequence[Rule]:
        """The rules, those tried first in front."""
        raise NotImplementedError

    def run(self, module: Module, context: PassContext) -> bool:
        """Apply the rules, and say what they nearly recognised."""
        rules = self.rules()
        changed = context.apply(module, rules)
        context.missed += missed(module, rules)
        return changed


def missed(module: Module, rules: Sequence[Rule]) -> Iterator[Missed]:
    """What rules that recognise a pattern have against the ops that nearly end one."""
    for rule in (rule for rule in rules if rule.pattern is not None):
        for op in (op for graph in module.functions.values() for op in graph if op.name in rule.ops and rule.is_near(op, module)):
            why = rule.check(op, module)
            if why is not None and rule.pattern is not None:
                yield Missed(rule.pattern, op.result.name, str(op.result.source or ""), why)
