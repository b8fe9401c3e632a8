"""Norms of flattened groups: they are taken over the dimensions as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ir.dims import Dim
from ...ir.errors import InternalError
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ..base import RulePass
from ..match import Replacement, matched, operand, producer


@dataclass(frozen=True)
class UnflattenNorms(RulePass):
    """Normalise over several dimensions what a reshape joins for it, as group norms are exported: memory may have another order.

    Before: %r = reshape(%x : f32[N, 64, 7, 7]) : f32[N, 2, 1568]   %n = layer_norm(%r) {axes = [2]}
    After:  %s = reshape(%x) : f32[N, 2, 32, 7, 7]   %n = layer_norm(%s) {axes = [2, 3, 4]}   %r = reshape(%n) : f32[N, 2, 1568]

    The terms are the same, a target may sum them in another order.
    """

    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def rules(self) -> Sequence[Rule]:
        """One: behind it no reshape joins what is normalised."""
        return (NormOfJoined(),)


class NormOfJoined(Rule):
    """layer_norm(reshape(x)) over one axis -> reshape(layer_norm(x) over those that the reshape joins), and so for rms_norm"""

    ops = ("layer_norm", "rms_norm")
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        joined = producer(op.operands[0], "reshape")
        if joined is None:
            return "the operand is no reshape"
        if any(value is not None for value in op.operands[1:]):
            return "there is a scale or a bias for each element"
        if [axis % joined.result.type.rank for axis in op.attrs["axes"]] != [joined.result.type.rank - 1]:
            return "it is not the last dimension alone that is normalised"
        return None if _apart(joined) is not None else "the reshape does not join trailing dimensions"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        joined = matched(op.operands[0], "reshape")
        shape = _apart(joined)
        if shape is None:
            raise InternalError(f"{op.name} is not of joined dimensions, which the check of the rule has shown")
        x: Value = operand(joined, 0)
        x = x if x.shape == shape else g.reshape(x, shape=shape)
        first = joined.result.type.rank - 1
        (found,) = g.build(op.definition, (x, *op.operands[1:]), {**op.attrs, "axes": tuple(range(first, len(shape)))})
        return g.reshape(found, shape=op.result.shape)


def _apart(joined: Op) -> tuple[Dim, ...] | None:
    """The shape in which the last dimension of a reshape is several; None where it is not made of whole trailing ones.

    Of the first of them a part may belong to the dimension before: the channels of a group.
    """
    shape, leading = operand(joined, 0).shape, joined.result.shape[:-1]
    count = len(leading)
    if len(shape) > count + 1 and shape[:count] == leading:
        return shape
    if not count or len(shape) <= count or shape[: count - 1] != leading[:-1]:
        return None
    channels, groups = shape[count - 1], leading[-1]
    if not isinstance(channels, int) or not isinstance(groups, int) or not groups or channels % groups or channels == groups:
        return None
    return (*leading, channels // groups, *shape[count:])
