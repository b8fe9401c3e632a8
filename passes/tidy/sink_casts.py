"""Casts to where fewer or narrower elements move: widening ones down, narrowing ones up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Rule
from ...ir.types import DType
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
        return (SinkWidening(), HoistNarrowing())


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
    """cast(move(x), narrow) -> move(cast(x, narrow)), for reshape, transpose, broadcast_to; for slice where all that is read of x is"""

    ops = ("cast",)
    moves = (*SAME_ELEMENTS, "broadcast_to", "slice")

    def check(self, op: Op, module: Module) -> str | None:
        move = producer(op.operands[0], *self.moves)
        if move is None:
            return "the operand is no movement"
        if operand(op, 0).dtype.bits <= op.result.dtype.bits:
            return "the cast does not narrow"
        if move.name == "slice":
            return None if _is_read_as(operand(move, 0), op.result.dtype) else "something else is read of the whole"
        return None if sum(move.result.uses.values()) == 1 else "the movement has other users"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        move = matched(op.operands[0], *self.moves)
        narrowed = g.cast(operand(move, 0), dtype=op.result.dtype)
        return g.build(move.definition, (narrowed,), move.attrs)


def _is_read_as(whole: Value, dtype: DType) -> bool:
    """Whether a value that is computed here is read by casts to one type alone, whole or in slices."""
    readers = [reader for user in whole.uses for reader in (user.result.uses if user.name == "slice" else (user,))]
    return whole.op is not None and all(reader.name == "cast" and reader.result.dtype == dtype for reader in readers)
