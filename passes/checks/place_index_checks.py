"""Checks of indices, places and divisors: those that cannot fail go, the others become steps of the plan.

What only data say needs a small reduction first; a place is a number that the host knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ir import dims
from ...ir.dims import Dim
from ...ir.errors import InternalError
from ...ir.graph import Builder, Graph, Module, Op, Value
from ...ir.graph.rewrite import Rule
from ..base import Pass, PassContext, RulePass
from ..match import Replacement, operand
from .index_range import Bounds, bounds_of

CHECKS = ("check_index", "check_place", "check_divisor")
MOVES = frozenset({"cast", "reshape", "transpose", "broadcast_to", "slice", *CHECKS})
Key = tuple[Value | Dim, Dim | None, bool]
"""What is checked against which size, and whether it counts from the end too."""


@dataclass(frozen=True)
class DropIndexChecks(RulePass):
    """Drop every check of indices: what one out of range gives is then undefined, within the operand's memory.

    Checks of places stay: they cost nothing, and kernels that write at a place rely on them.

    Before: %i = check_index(%ids) {size = 30522}   %y = take(@words, %i) {axis = 0}
    After:  %y = take(@words, %ids) {axis = 0}
    """

    def rules(self) -> Sequence[Rule]:
        """The one rule."""
        return (CheckOf(),)


class CheckOf(Rule):
    """check_index(i) -> i"""

    ops: ClassVar[tuple[str, ...]] = ("check_index",)

    def check(self, op: Op, module: Module) -> str | None:
        """Always."""
        return None

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return operand(op, 0)


class CheckOfKnown(CheckOf):
    """A check's operand, where its indices or its place are known to lie in range, or its divisor is known not to be 0"""

    ops: ClassVar[tuple[str, ...]] = CHECKS

    def check(self, op: Op, module: Module) -> str | None:
        if op.name == "check_place":
            place, size = op.attrs["place"], _size(op)
            known = Bounds(place, place).within(-size if op.attrs["negative"] else 0, size - 1, module.facts)
            return None if known else "the axis is not known to have that place"
        found = bounds_of(op.operands[0], module.facts)
        if op.name == "check_divisor":
            above = found.low is not None and dims.at_most(1, found.low, module.facts) is True
            below = found.high is not None and dims.at_most(found.high, -1, module.facts) is True
            return None if above or below else "a divisor may be 0"
        size = op.attrs["size"]
        inside = found.within(-size if op.attrs["negative"] else 0, size - 1, module.facts)
        return None if inside else "the indices are not known to lie in range"


@dataclass(frozen=True)
class PlaceIndexChecks(Pass):
    """Turn checks into what a plan can run; equal ones into one.

    Before: %i = check_index(%ids) {size = 30522}   %y = take(@words, %i) {axis = 0}
    After:  %w = worst_index(%ids) {size = 30522}   refuse_index(%w) {size = 30522, subject = "input 'ids'"}
            %y = take(@words, %ids) {axis = 0}

    Before: %p = check_place(%x) {axis = 0, place = N}
    After:  refuse_place() {place = N, size = 11, subject = "axis 0 of input 'x'"}
    """

    def run(self, module: Module, context: PassContext) -> bool:
        """Drop what is known, then place the rest."""
        changed = context.apply(module, (CheckOfKnown(),))
        for graph in module.functions.values():
            changed |= _place(module, graph, context)
        return changed

    def ensures(self, module: Module) -> None:
        """No check is left in the flow of data, where no kernel could refuse."""
        left = [op for graph in module.functions.values() for op in graph if op.name in CHECKS]
        if left:
            raise InternalError(f"{left[0]!r} is left of the checks")


def _place(module: Module, graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(module, graph, PlaceIndexChecks.name)
    placed: set[Key] = set()
    for op in list(graph):
        if op.name not in CHECKS:
            continue
        g = rewriter.builder(op)
        checked, negative = operand(op, 0), op.attrs.get("negative", False)
        key: Key = checked, op.attrs.get("size"), negative
        if op.name == "check_place":
            key = op.attrs["place"], _size(op), negative
        if key not in placed:
            placed.add(key)
            _refuse(g, op, key, _subject(checked, graph))
        rewriter.replace(op, (checked,))
    return rewriter.changes > 0


def _refuse(g: Builder, op: Op, key: Key, subject: str) -> None:
    what, size, negative = key
    if op.name == "check_place":
        subject = f"{_axis(operand(op, 0), op.attrs['axis'])} of {subject}"
        g.refuse_place(place=what, size=size, negative=negative, subject=subject)
        return
    worst = g.worst_divisor(what) if size is None else g.worst_index(what, size=size, negative=negative)
    g.refuse_index(worst, size=size, negative=negative, subject=subject)


def _size(op: Op) -> Dim:
    """How many places the axis of a `check_place` has, with `counted` the number of counts."""
    size: Dim = operand(op, 0).shape[op.attrs["axis"]] + int(op.attrs["counted"])
    return size


def _axis(x: Value, axis: int) -> str:
    """Which axis of what `_subject` names: its number where nothing has moved it, else its size."""
    moved = x.op is not None and x.op.name in MOVES
    return f"an axis of size {x.shape[axis]}" if moved else f"axis {axis}"


def _subject(indices: Value, graph: Graph) -> str:
    """What the indices are, as an error says it."""
    while indices.op is not None and indices.op.name in MOVES:
        indices = operand(indices.op, 0)
    if indices.op is None and indices.constant is None:
        return f"input {indices.name!r}"
    return f"constant {indices.name!r}" if indices.constant is not None else f"computed value {indices.name!r}"
