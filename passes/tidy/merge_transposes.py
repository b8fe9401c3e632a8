"""Merging of transposes into the products that read or write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ..base import RulePass
from ..match import Replacement, matched, operand, producer


@dataclass(frozen=True)
class MergeTransposes(RulePass):
    """Let matmul read a transposed operand as it lies.

    Before: %t = transpose(%w) {permutation = [1, 0]}   %y = matmul(%x, %t)
    After:  %y = matmul(%x, %w) {transpose_b = true}

    The terms are the same, a target may sum them in another order.
    """

    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def rules(self) -> Sequence[Rule]:
        """Operands first."""
        return (TransposedOperand(), TransposedProduct())


def swapped(value: Value | None) -> Value | None:
    """x if `value` is x with its last two dimensions swapped."""
    op = producer(value, "transpose")
    if op is None:
        return None
    permutation = list(op.attrs["permutation"])
    permutation[-2:] = permutation[:-3:-1]
    return operand(op, 0) if len(permutation) >= 2 and permutation == sorted(permutation) else None


class TransposedOperand(Rule):
    """matmul(transpose(a), b) -> matmul(a, b) {transpose_a = not transpose_a}, and so for b"""

    ops = ("matmul",)
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        found = [swapped(value) for value in op.operands]
        return None if any(value is not None for value in found) else "no operand has its last two dimensions swapped"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        a, b = (swapped(value) for value in op.operands)
        return g.matmul(
            op.operands[0] if a is None else a,
            op.operands[1] if b is None else b,
            transpose_a=op.attrs["transpose_a"] != (a is not None),
            transpose_b=op.attrs["transpose_b"] != (b is not None),
            wide=op.attrs["wide"],
        )


class TransposedProduct(Rule):
    """transpose(matmul(a, b)) -> matmul(b, a) with both transposed, where only the last two dimensions are swapped"""

    ops = ("transpose",)
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        product = swapped(op.result)
        if product is None or producer(product, "matmul") is None:
            return "the last two dimensions of a product are not what is swapped"
        return None if sum(product.uses.values()) == 1 else "the product has other users"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        product = matched(op.operands[0], "matmul")
        flags = {"transpose_a": not product.attrs["transpose_b"], "transpose_b": not product.attrs["transpose_a"]}
        return g.matmul(product.operands[1], product.operands[0], **flags, wide=product.attrs["wide"])
