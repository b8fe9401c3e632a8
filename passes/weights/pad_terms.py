"""Sums of products whose number of terms instructions do not take: factors of few bits are padded with zeros to whole groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ir import dims
from ...ir.dims import Dim
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ...ir.types import DType, bf16, i8, u8
from ..base import RulePass
from ..match import Replacement, operand

GROUPS: dict[DType, int] = {u8: 4, i8: 4, bf16: 2}
"""So many neighbours along the sum lie in one lane of a dot product: 32 bits."""
COLUMNS = 16
"""From so many columns on, the copy of a row costs less than what it saves: without groups a product takes two to ten times as long."""
ROWS = 4
"""From so many rows on, the copy of a right factor that calls bring does."""


@dataclass(frozen=True)
class PadTerms(RulePass):
    """Multiply in whole groups.

    Before: %y = matmul(%x : u8[m, 5], @w : i8[5, n])
    After:  %p = pad(%x) {after = [0, 3]}   %q = pad(@w) {after = [3, 0]}   %y = matmul(%p, %q)

    The terms that are added are 0 times 0.
    """

    numerics: ClassVar[Numerics] = "EXACT"

    def rules(self) -> Sequence[Rule]:
        """One: of a padded product nothing is left over."""
        return (WholeGroups(),)


@dataclass(frozen=True)
class WholeGroups(Rule):
    """matmul(x, w) -> matmul(pad(x), pad(w))"""

    ops: ClassVar[tuple[str, ...]] = ("matmul",)
    numerics: ClassVar[Numerics] = "EXACT"

    def check(self, op: Op, module: Module) -> str | None:
        left, right = operand(op, 0), operand(op, 1)
        group = GROUPS.get(left.dtype)
        if group is None or GROUPS.get(right.dtype) != group:
            return f"factors of {left.dtype} and {right.dtype} are multiplied one by one"
        if left.type.rank < 2 or right.type.rank < 2:
            return "a factor is no matrix"
        rows, terms, columns = _sizes(op)
        if dims.divides(group, terms, module.facts) is True:
            return f"{terms} terms are whole groups of {group}"
        if right.constant is None and isinstance(rows, int) and rows < ROWS:
            return f"the right factor, which is not constant, is not copied for {rows} rows"
        return None if isinstance(columns, int) and columns >= COLUMNS else f"rows are not copied for {columns} columns"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        left, right = operand(op, 0), operand(op, 1)
        more = missing(_sizes(op)[1], GROUPS[left.dtype])
        across = (padded(g, left, contracted(op, 0), more), padded(g, right, contracted(op, 1), more))
        (result,) = g.build(op.definition, across, op.attrs)
        return result


def contracted(op: Op, number: int) -> int:
    """The axis of a factor that is summed over."""
    turned, rank = op.attrs["transpose_a" if number == 0 else "transpose_b"], operand(op, number).type.rank
    return rank - 2 if turned == (number == 0) else rank - 1


def missing(terms: Dim, group: int) -> Dim:
    """How many terms are missing to whole groups."""
    return (terms + group - 1) // group * group - terms


def _sizes(op: Op) -> tuple[Dim, Dim, Dim]:
    """The rows of a product, the terms of a sum, and the columns."""
    *_, rows, columns = op.result.shape
    return rows, operand(op, 1).shape[contracted(op, 1)], columns


def padded(g: Builder, value: Value, axis: int, more: Dim) -> Value:
    """A factor with `more` zeros behind its terms, along an axis."""
    rank = value.type.rank
    found: Value = g.pad(value, before=(0,) * rank, after=tuple(more if n == axis else 0 for n in range(rank)))
    return found
