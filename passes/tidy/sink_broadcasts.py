"""Sinking of broadcasts: what is computed for every copy of a value is computed once, before it is copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ir import dims
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ...ir.ops.table import OPS, broadcast
from ..base import RulePass
from ..match import Replacement, operand, producer


@dataclass(frozen=True)
class SinkBroadcasts(RulePass):
    """Let pointwise ops run before a broadcast.

    Before: %b = broadcast_to(%x) : f32[B, 1, S, S]   %y = sub(%c, %b) : f32[B, 1, S, S]
    After:  %s = sub(%c, %x) : f32[B, 1, 1, S]        %y = broadcast_to(%s) : f32[B, 1, S, S]
    """

    numerics: ClassVar[Numerics] = "EXACT"

    def rules(self) -> Sequence[Rule]:
        """One rule."""
        return (BroadcastAfterPointwise(),)


def _small(value: Value | None) -> Value | None:
    """The operand of a broadcast, else the value itself."""
    op = producer(value, "broadcast_to")
    return value if op is None else operand(op, 0)


class BroadcastAfterPointwise(Rule):
    """f(broadcast_to(x), y) -> broadcast_to(f(x, y)), where f(x, y) has fewer elements"""

    ops = tuple(name for name, definition in OPS.items() if definition.kind == "pointwise")
    numerics: ClassVar[Numerics] = "EXACT"

    def check(self, op: Op, module: Module) -> str | None:
        small = [_small(value) for value in op.operands]
        if all(a is b for a, b in zip(small, op.operands, strict=True)):
            return "no operand is broadcast"
        shape = broadcast(op.name, *(value.shape for value in small if value is not None))
        if dims.equal(dims.product(shape), op.result.type.elements) is True:
            return "the other operands have every element of the result"
        return None

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        (value,) = g.build(op.definition, [_small(value) for value in op.operands], op.attrs)
        return g.broadcast_to(value, shape=op.result.shape)
