"""Rules of casts: chains through a dtype that holds every value of the one before."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...ir.graph import Builder, Module, Op
from ...ir.graph.rewrite import Rule
from ...ir.ops.rounding import holds
from ...ir.types import f32, f64
from ..match import Replacement, is_number, matched, operand, producer

MOST_BITS = 16
"""Of codes that numbers in float32 are rounded back to, whatever their scale."""


class CastToItself(Rule):
    """cast(x) {dtype = the dtype of x} -> x"""

    ops = ("cast",)

    def check(self, op: Op, module: Module) -> str | None:
        return None if operand(op, 0).dtype == op.result.dtype else "the dtypes differ"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return operand(op, 0)


class CastOfCast(Rule):
    """cast(cast(x, wide), dtype) -> cast(x, dtype), where wide holds every value of x"""

    ops = ("cast",)

    def check(self, op: Op, module: Module) -> str | None:
        inner = producer(op.operands[0], "cast")
        if inner is None:
            return "the operand is no cast"
        wide, narrow = inner.result.dtype, operand(inner, 0).dtype
        if not holds(wide, narrow):
            return f"{wide} does not hold every {narrow}"
        # An integer made a float first is out of range where the integer would wrap.
        wraps = wide.is_float and narrow.is_integer and op.result.dtype.is_integer and not holds(op.result.dtype, narrow)
        return "the integer would wrap" if wraps else None

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return g.cast(operand(matched(op.operands[0], "cast"), 0), dtype=op.result.dtype)


class BoolAsNumber(Rule):
    """ne(cast(x), 0) -> x and eq(cast(x), 0) -> logical_not(x), for bool x"""

    ops = ("ne", "eq")

    def check(self, op: Op, module: Module) -> str | None:
        inner = producer(op.operands[0], "cast")
        if inner is None or operand(inner, 0).dtype.kind != "bool":
            return "the first operand is no bool made a number"
        zero = is_number(op.operands[1], 0) or is_number(op.operands[1], 0.0)
        if not zero:
            return "the second operand is not 0"
        return None if op.result.shape == operand(op, 0).shape else "the first operand is broadcast"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        condition = operand(matched(op.operands[0], "cast"), 0)
        return condition if op.name == "ne" else g.logical_not(condition)


class NotOfComparison(Rule):
    """logical_not(eq(x, y)) -> ne(x, y), and the other way round; on integers also lt, le, gt, ge"""

    ops = ("logical_not",)
    opposite: Mapping[str, str] = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}

    def check(self, op: Op, module: Module) -> str | None:
        inner = producer(op.operands[0], *self.opposite)
        if inner is None:
            return "the operand is no comparison"
        ordered = inner.name not in ("eq", "ne") and not operand(inner, 0).dtype.is_integer
        return "NaN is neither below nor above" if ordered else None

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        inner = matched(op.operands[0], *self.opposite)
        return getattr(g, self.opposite[inner.name])(*inner.operands)


class WhereOfKnown(Rule):
    """where(true, x, y) -> x, where(false, x, y) -> y, where(c, x, x) -> x"""

    ops = ("where",)

    def check(self, op: Op, module: Module) -> str | None:
        known = is_number(op.operands[0], True) or is_number(op.operands[0], False)
        return None if known or op.operands[1] is op.operands[2] else "the condition is not known and the choices differ"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        chosen = operand(op, 2 if is_number(op.operands[0], False) else 1)
        return chosen if chosen.shape == op.result.shape else g.broadcast_to(chosen, shape=op.result.shape)


class WhereOfNot(Rule):
    """where(logical_not(c), x, y) -> where(c, y, x)"""

    ops = ("where",)

    def check(self, op: Op, module: Module) -> str | None:
        return None if producer(op.operands[0], "logical_not") is not None else "the condition is no logical_not"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return g.where(operand(matched(op.operands[0], "logical_not"), 0), op.operands[2], op.operands[1])


class CodeOfItself(Rule):
    """quantize(dequantize(c, s, z), s, z) -> c, of codes of at most 16 bits by way of f32, where no scale overflows"""

    ops = ("quantize",)

    def check(self, op: Op, module: Module) -> str | None:
        wide = producer(op.operands[0], "dequantize")
        if wide is None:
            return "the operand is no dequantize"
        code, kept = operand(wide, 0), op.result.dtype
        if code.dtype != kept or not kept.is_integer or kept.bits > MOST_BITS or wide.result.dtype not in (f32, f64):
            return "the codes differ, or floats do not hold them"
        if wide.operands[1:] != op.operands[1:] or any(wide.attrs[name] != op.attrs[name] for name in ("axis", "block")):
            return "the scales differ"
        scale = operand(op, 1).constant
        if scale is None or not scale.available:
            return "the scale is known at run time alone"
        most = np.abs(scale.array.astype(np.float64)) * (2 << kept.bits)
        fits = (most > 0) & (most < np.finfo(operand(op, 1).dtype.compute.numpy).max)
        return None if fits.all() else "a scale is zero, too large or no number"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        # (c - z) s / s is off by a part in 2^23, which rounding to an integer of 16 bits takes away.
        return operand(matched(op.operands[0], "dequantize"), 0)


RULES: tuple[Rule, ...] = (CodeOfItself(), CastToItself(), CastOfCast(), BoolAsNumber(), NotOfComparison(), WhereOfKnown(), WhereOfNot())
