"""Absorbing of scales: factors on queries and keys become attention's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ..base import RulePass
from ..match import Replacement

MOVES = ("reshape", "transpose", "broadcast_to")


@dataclass(frozen=True)
class AbsorbScales(RulePass):
    """Multiply a constant factor of q or k into attention's scale.

    Before: %s = mul(%q, 0.5)   %y = attention(%s, %k, %v) {scale = 1.0}
    After:  %y = attention(%q, %k, %v) {scale = 0.5}

    The factor is rounded at another place.
    """

    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def rules(self) -> Sequence[Rule]:
        """One rule."""
        return (ScaledOperand(),)


def _scaled(value: Value | None) -> tuple[list[Op], Value, float] | None:
    """(movements, x, c) if `value` is movements of x * c, where nobody else reads what lies between."""
    moves: list[Op] = []
    while value is not None and value.op is not None and len(value.uses) == 1:
        op = value.op
        if op.name == "mul":
            for scale, other in (op.operands, op.operands[::-1]):
                if scale is None or other is None or scale.constant is None or other.type != op.result.type:
                    continue
                array = scale.constant.array
                if array.size == 1 and scale.dtype.is_float:
                    return moves, other, float(array.reshape(-1)[0])
            return None
        if op.name not in MOVES:
            return None
        moves.append(op)
        value = op.operands[0]
    return None


class ScaledOperand(Rule):
    """attention(mul(q, c), k, v) {scale = s} -> attention(q, k, v) {scale = s * c}, and so for k"""

    ops = ("attention",)
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        return None if any(_scaled(value) is not None for value in op.operands[:2]) else "neither q nor k is scaled"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        operands, scale = list(op.operands), float(op.attrs["scale"])
        for place in (0, 1):
            found = _scaled(operands[place])
            if found is None:
                continue
            moves, value, factor = found
            scale *= factor
            for move in reversed(moves):
                (value,) = g.build(move.definition, [value], move.attrs)
            operands[place] = value
        return g.build(op.definition, operands, {**op.attrs, "scale": scale})[0]
