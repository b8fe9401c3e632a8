"""Products of flattened rows: matmul takes leading dimensions as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ...ir.ops.table import OPS
from ..base import RulePass
from ..match import Replacement, matched, operand, producer, same_shape

POINTWISE = tuple(name for name, definition in OPS.items() if definition.kind == "pointwise")
MAXIMUM_STEPS = 16


@dataclass(frozen=True)
class UnflattenProducts(RulePass):
    """Leave out the reshapes around a product that join leading dimensions before and split them again after it.

    Before: %r = reshape(%x) : f32[6, 8]   %p = matmul(%r, %w) : f32[6, 4]   %b = add(%p, @bias)   %y = reshape(%b) : f32[2, 3, 4]
    After:  %p = matmul(%x, %w) : f32[2, 3, 4]   %y = add(%p, @bias)

    The terms are the same, a target may sum them in another order.
    """

    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def rules(self) -> Sequence[Rule]:
        """The reshape after the product rises to it, then both go."""
        return (SplitAbovePointwise(), SplitProduct())


class SplitProduct(Rule):
    """reshape(matmul(reshape(x, [L, K]), w)) -> matmul(x, w), where the result has the leading dimensions of x"""

    ops = ("reshape",)
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        product = producer(op.operands[0], "matmul")
        if product is None:
            return "the operand is no product"
        if sum(product.result.uses.values()) != 1:
            return "the product has other users"
        x = _unflattened(product)
        if x is None:
            return "the rows of the product are no reshape that joins leading dimensions"
        same = same_shape((*x.shape[:-1], product.result.shape[-1]), op.result.shape, module)
        return None if same else "the reshape splits the rows otherwise"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        product = matched(op.operands[0], "matmul")
        return g.matmul(_unflattened(product), product.operands[1], **product.attrs)


def _unflattened(product: Op) -> Value | None:
    """x of matmul(reshape(x, [L, K]), w) with a matrix w."""
    rows = producer(product.operands[0], "reshape")
    if rows is None or product.attrs["transpose_a"] or product.result.type.rank != 2:
        return None
    x = operand(rows, 0)
    return x if x.type.rank > 2 and x.shape[-1] == rows.result.shape[-1] else None


class SplitAbovePointwise(Rule):
    """reshape(f(t, b)) -> f(reshape(t), b), where t comes from a product of flattened rows and b is one row"""

    ops = ("reshape",)

    def check(self, op: Op, module: Module) -> str | None:
        inner = producer(op.operands[0], *POINTWISE)
        if inner is None:
            return "the operand is not pointwise"
        if inner.result.type.rank != 2 or op.result.type.rank < 3 or op.result.shape[-1] != inner.result.shape[-1]:
            return "the reshape does not only split the rows"
        if sum(inner.result.uses.values()) != 1:
            return "the operand has other users"
        if not all(value is None or _is_whole(value, inner) or _is_row(value, inner) for value in inner.operands):
            return "an operand is a column"
        return None if _comes_from_product(inner.result) else "no product of flattened rows stands behind it"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        inner = matched(op.operands[0], *POINTWISE)
        operands = []
        for value in inner.operands:
            if value is None or _is_row(value, inner):
                row = value if value is None or value.type.rank < 2 else g.reshape(value, shape=value.shape[1:])
                operands.append(row)
            else:
                operands.append(g.reshape(value, shape=op.result.shape))
        return g.build(inner.definition, operands, inner.attrs)


def _is_whole(value: Value, inner: Op) -> bool:
    return value.shape == inner.result.shape


def _is_row(value: Value, inner: Op) -> bool:
    return not _is_whole(value, inner) and (value.type.rank < 2 or value.shape[0] == 1)


def _comes_from_product(value: Value) -> bool:
    for _ in range(MAXIMUM_STEPS):
        op = value.op
        if op is None:
            return False
        if op.name == "matmul":
            return _unflattened(op) is not None
        if op.definition.kind != "pointwise":
            return False
        whole = [part for part in op.operands if part is not None and _is_whole(part, op)]
        if not whole:
            return False
        value = whole[0]
    return False
