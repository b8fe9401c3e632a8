"""Trimming of constants: leading dimensions of size 1 go where broadcasting puts them back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeGuard

from ...ir.dims import Dim
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ...ir.ops.table import OPS
from ..base import RulePass
from ..match import Replacement


@dataclass(frozen=True)
class TrimConstants(RulePass):
    """Let pointwise ops read constants without leading dimensions of size 1; `fold_constants` reshapes them.

    Where a size is a symbol such a constant is broadcast, where it is 1 it has been folded: now both programs look alike.

    Before: %y = add(%x, @c) : f32[B, 1, 8]                                   where @c is f32[1, 1, 8]
    After:  %r = reshape(@c) : f32[8]   %y = add(%x, %r) : f32[B, 1, 8]
    """

    numerics: ClassVar[Numerics] = "EXACT"

    def rules(self) -> Sequence[Rule]:
        """One rule."""
        return (TrimConstant(),)


class TrimConstant(Rule):
    """f(x, c) -> f(x, reshape(c)) without the leading ones of the constant c, where x has the rank of the result"""

    ops = tuple(name for name, definition in OPS.items() if definition.kind == "pointwise")

    def check(self, op: Op, module: Module) -> str | None:
        if not any(_has_leading_ones(value) for value in op.operands):
            return "no constant has leading dimensions of size 1"
        ranks = [value.type.rank for value in op.operands if value is not None and not _has_leading_ones(value)]
        return None if op.result.type.rank in ranks else "the constant gives the result its rank"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        operands = [g.reshape(value, shape=_trimmed(value)) if _has_leading_ones(value) else value for value in op.operands]
        return g.build(op.definition, operands, op.attrs)


def _has_leading_ones(value: Value | None) -> TypeGuard[Value]:
    return value is not None and value.constant is not None and value.shape[:1] == (1,)


def _trimmed(value: Value) -> tuple[Dim, ...]:
    return tuple(itertools.dropwhile(lambda size: size == 1, value.shape))
