"""Casts to where fewer or narrower elements move: widening ones down, narrowing ones up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.graph import Builder, Module, Op
from ...ir.graph.rewrite import Rule
from ..base import RulePass
from ..match import Replacement, matched, operand, producer

# A broadcast repeats elements and a slice drops some: a cast belongs before the one and after the other.
SAME_ELEMENTS = ("reshape", "transpose")


@dataclass(frozen=True)
class SinkCasts(RulePass):
    """Move the narrow form: a widening cast goes below the movement after it, a narrowing one above.

    Before: %a = cast(%x) {dtype = f32}   %y = transpose(%a) {permutation = [1, 0]}
    After:  %a = transpose(%x) {permutation = [1, 0]}   %y = cast(%a) {dtype = f32}
    """

    def rules(self) -> Sequence[Rule]:
        """Down and up; no cast is both."""
        return (SinkWidening(), HoistNarrowing(), HoistOfParts())


class SinkWidening(Rule):
    """move(cast(x, wide)) -> cast(move(x), wide), for reshape, transpose, slice"""

    ops = (*SAME_ELEMENTS, "slice")

    def check(self, op: Op, module: Module) -> str | None:
        cast = producer(op.operands[0], "cast")
        if cast is None:
            return "the operand is no cast"
        if operand(cast, 0).dtype.bits >= cast.result.dtype.bits:
            return "the cast does not widen"
        return None if sum(cast.result.uses.values()) == 1 else "the cast has other users"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        moved = g.build(op.definition, (operand(matched(op.operands[0], "cast"), 0),), op.attrs)
        return g.cast(moved[0], dtype=op.result.dtype)


class HoistNarrowing(Rule):
    """cast(move(x), narrow) -> move(cast(x, narrow)), for reshape, transpose, broadcast_to"""

    ops = ("cast",)

    def check(self, op: Op, module: Module) -> str | None:
        move = producer(op.operands[0], *SAME_ELEMENTS, "broadcast_to")
        if move is None:
            return "the operand is no movement"
        if operand(op, 0).dtype.bits <= op.result.dtype.bits:
            return "the cast does not narrow"
        return None if sum(move.result.uses.values()) == 1 else "the movement has other users"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        move = matched(op.operands[0], *SAME_ELEMENTS, "broadcast_to")
        narrowed = g.cast(operand(move, 0), dtype=op.result.dtype)
        return g.build(move.definition, (narrowed,), move.attrs)


class HoistOfParts(Rule):
    """cast(slice(x), narrow) -> slice(cast(x, narrow)), where nothing else is read of x than what such casts read"""

    ops = ("cast",)

    def check(self, op: Op, module: Module) -> str | None:
        part = producer(op.operands[0], "slice")
        if part is None:
            return "the operand is no slice"
        if operand(op, 0).dtype.bits <= op.result.dtype.bits:
            return "the cast does not narrow"
        whole = operand(part, 0)
        if whole.op is None:
            return "the whole is not computed here"
        readers = [reader for user in whole.uses for reader in (user.result.uses if user.name == "slice" else (user,))]
        same = all(reader.name == "cast" and reader.result.dtype == op.result.dtype for reader in readers)
        return None if same and readers else "something else is read of the whole"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        part = matched(op.operands[0], "slice")
        narrowed = g.cast(operand(part, 0), dtype=op.result.dtype)
        return g.build(part.definition, (narrowed,), part.attrs)
