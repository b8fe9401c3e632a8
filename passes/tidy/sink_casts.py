"""Casts and codes to where fewer or narrower elements move: widening ones down, narrowing ones up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...ir import dims
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Rule
from ...ir.types import DType
from ..base import RulePass
from ..match import Replacement, matched, operand, producer, uniform
from .fold_constants import GATHERS

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
    """move(cast(x, wide)) -> cast(move(x), wide), for reshape, transpose, slice, max_pool and gathers; so with dequantize by one scale"""

    ops = (*SAME_ELEMENTS, "slice", "max_pool", *sorted(GATHERS))

    def check(self, op: Op, module: Module) -> str | None:
        wide = producer(op.operands[0], "cast", "dequantize")
        if wide is None or not _is_alike(wide):
            return "the operand is no cast"
        if operand(wide, 0).dtype.bits >= wide.result.dtype.bits:
            return "the cast does not widen"
        if op.name == "max_pool" and not (_keeps_order(wide) and _is_of_elements(op)):
            return "the largest need not become the largest"
        if op.name in GATHERS:
            # Of a table few rows are read, whoever reads the whole. Without any element they are zeros, which as codes may be others.
            return None if wide.name == "cast" or _has_elements(operand(wide, 0)) else "the table may have no elements"
        # Codes are a quarter as wide, and what reads them may be an integer product: parts of them each take their own.
        moved = wide.name == "dequantize" and all(user.name in self.ops for user in wide.result.uses)
        return None if moved or sum(wide.result.uses.values()) == 1 else "the cast has other users"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        wide = matched(op.operands[0], "cast", "dequantize")
        return _of(wide, g.build(op.definition, (operand(wide, 0), *op.operands[1:]), op.attrs)[0], g)


class HoistNarrowing(Rule):
    """cast(move(x), narrow) -> move(cast(x, narrow)), for reshape, transpose, broadcast_to; for slice where all that is read of x is;
    so with quantize by one scale; for max_pool of floats"""

    ops = ("cast", "quantize")
    moves = (*SAME_ELEMENTS, "broadcast_to", "slice", "max_pool")

    def check(self, op: Op, module: Module) -> str | None:
        move = producer(op.operands[0], *self.moves)
        if move is None:
            return "the operand is no movement"
        if operand(op, 0).dtype.bits <= op.result.dtype.bits:
            return "the cast does not narrow"
        if not _is_alike(op):
            return "scales vary along an axis"
        if move.name == "slice":
            reads = op.name == "cast" and _is_read_as(operand(move, 0), op.result.dtype)
            return None if reads else "something else is read of the whole"
        if move.name == "max_pool" and not (op.name == "cast" and op.result.dtype.is_float and _is_of_elements(move)):
            return "the largest need not become the largest"
        return None if sum(move.result.uses.values()) == 1 else "the movement has other users"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        move = matched(op.operands[0], *self.moves)
        return g.build(move.definition, (_of(op, operand(move, 0), g),), move.attrs)


def _is_alike(op: Op) -> bool:
    """Whether an op does the same to every element: a cast, or codes with one scale and one zero point."""
    return all(value is None or value.type.elements == 1 for value in op.operands[1:]) and not op.attrs.get("block", 0)


def _keeps_order(op: Op) -> bool:
    """Whether a widening conversion that is the same for all elements makes none larger than what was larger."""
    if op.name == "cast":
        return True
    scale = uniform(op.operands[1])
    return scale is not None and 0 < scale < math.inf


def _is_of_elements(pool: Op) -> bool:
    """Whether each window of a pool has an element: there is none that is padding alone."""
    amounts = (*pool.attrs["before"], *pool.attrs["after"])
    holes = any(step != 1 for step in pool.attrs["dilations"])
    inside = all(dims.at_most(amount, size - 1) is True for amount, size in zip(amounts, (*pool.attrs["window"],) * 2, strict=True))
    return inside and not holes and _has_elements(operand(pool, 0))


def _has_elements(value: Value) -> bool:
    """Whether no size of a value can be 0."""
    return all(dims.at_most(1, size) is True for size in value.shape)


def _of(op: Op, value: Value, g: Builder) -> Value:
    """The same conversion of another value."""
    attrs = op.attrs if op.name == "cast" else {**op.attrs, "axis": None}
    return g.build(op.definition, (value, *op.operands[1:]), attrs)[0]


def _is_read_as(whole: Value, dtype: DType) -> bool:
    """Whether a value that is computed here is read by casts to one type alone, whole or in slices."""
    readers = [reader for user in whole.uses for reader in (user.result.uses if user.name == "slice" else (user,))]
    return whole.op is not None and all(reader.name == "cast" and reader.result.dtype == dtype for reader in readers)
