"""Decomposition of ops that are others in disguise, so that fusion and strategies meet fewer kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ir import dims
from ...ir.dims import Dim
from ...ir.graph import Builder, Module, Op
from ...ir.graph.rewrite import Numerics, Rule
from ..base import RulePass
from ..match import Replacement, operand
from .decompose_convolution import TransposedConvolution


@dataclass(frozen=True)
class Decompose(RulePass):
    """Write group_norm as a layer_norm over each group, scaled and shifted per channel; transposed convolutions as plain ones.

    Before: %y = group_norm(%x, %scale, %bias) {groups = 8, epsilon = 1e-05}
    After:  %g = reshape(%x)   %n = layer_norm(%g)   %r = reshape(%n)   %m = mul(%r, %scale)   %y = add(%m, %bias)
    """

    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def rules(self) -> Sequence[Rule]:
        """One rule for each op."""
        return (GroupNorm(), TransposedConvolution())


class GroupNorm(Rule):
    """group_norm(x [N, C, ..], scale, bias) -> reshape(layer_norm(reshape(x, [N, G, rest]))) * scale + bias"""

    ops = ("group_norm",)
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        x = operand(op, 0)
        if x.dtype.compute != x.dtype:
            return "the normalized values would be rounded before they are scaled"
        rest = dims.product(x.shape[1:])
        whole = dims.equal(_rest(op) * op.attrs["groups"], rest, module.facts)
        return None if whole is True else "the groups are not known to divide the channels"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        x, groups = operand(op, 0), op.attrs["groups"]
        rows = g.reshape(x, shape=(x.shape[0], groups, _rest(op)))
        result = g.reshape(g.layer_norm(rows, axes=(2,), epsilon=op.attrs["epsilon"]), shape=x.shape)
        per_channel = (x.shape[1], *[1] * (x.type.rank - 2))
        for parameter, build in zip(op.operands[1:], (g.mul, g.add), strict=False):
            if parameter is not None:
                result = build(result, g.reshape(parameter, shape=per_channel))
        return result


def _rest(op: Op) -> Dim:
    """The elements of one group of one sample."""
    groups: int = op.attrs["groups"]
    return dims.product(operand(op, 0).shape[1:]) // groups
