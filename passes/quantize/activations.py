"""Activations as int8 with a scale for each token: what makes products of int8 weights integer ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ir import dims
from ...ir.graph import Builder, Module, Value
from ...ir.rewrite import Numerics, Rewriter
from ...ir.types import f32, i8
from ..base import Pass, PassContext
from ..integer_products import MOST_TERMS
from ..weights import Weight, weights_of

LARGEST, LEAST = 127, 2.0**-126


@dataclass(frozen=True)
class QuantizeActivations(Pass):
    """Round what int8 weights are multiplied by to int8, by the largest magnitude of each row (token).

    Before: %y = matmul(%x, %w)   with %w = dequantize(@w.int8, @w.scale)
    After:  %s = div(reduce_max(abs(%x)), 127)   %c = quantize(%x, %s) {axis = 0, dtype = i8}
            %y = matmul(dequantize(%c, %s), %w)

    Rows are independent of each other, so a result does not depend on the batch. A row with NaN or infinity stays one: its
    scale is not finite. `integer_products` multiplies the codes.
    """

    numerics: ClassVar[Numerics] = "LOSSY"

    def run(self, module: Module, context: PassContext) -> bool:
        """Every product of a matrix or more with an int8 weight; what several products read is rounded once."""
        changed = False
        for graph in module.functions.values():
            rewriter = context.rewriter(module, graph, self.name)
            known: dict[Value, Value] = {}
            for weight in weights_of(graph):
                if why_not(weight) is None and context.spend():
                    _quantize(rewriter, weight, known)
                    changed = True
        return changed


def why_not(weight: Weight) -> str | None:
    """Why what a weight is multiplied by stays as it is, or None."""
    op, coded = weight.op, weight.expanded_by("dequantize")
    if op.name != "matmul" or weight.position != 1 or weight.value.type.rank != 2:
        return "only products with one matrix of weights on the right have scales for each token"
    if coded is None or weight.stored.dtype != i8 or coded.attrs["block"]:
        return "the weight is not int8 with a scale for each channel"
    x = op.operands[0]
    if x is None or not x.dtype.is_float or x.type.rank < 2 or op.attrs["transpose_a"]:
        return "the left factor is not rows of floats"
    if x.op is not None and x.op.name == "dequantize":
        return "the left factor is quantized already"
    depth = weight.stored.shape[weight.contracted]
    if dims.at_most(depth, MOST_TERMS) is not True:
        return f"a sum of {depth} products may not fit 32 bits"
    return None


def _quantize(rewriter: Rewriter, weight: Weight, known: dict[Value, Value]) -> None:
    op, x = weight.op, weight.op.operands[0]
    assert x is not None
    builder = rewriter.builder(op)
    if x not in known:
        known[x] = _rounded(builder, x)
    product = builder.matmul(known[x], weight.value, transpose_b=op.attrs["transpose_b"])
    rewriter.replace(op, [product if x.type.rank == 2 else builder.reshape(product, shape=op.result.shape)])


def _rounded(b: Builder, x: Value) -> Value:
    """The rows of x as int8 and back, each by a scale of its own."""
    rows = b.reshape(x, shape=(dims.product(x.shape[:-1]), x.shape[-1])) if x.type.rank > 2 else x
    size = b.reduce_max(b.abs(rows), axes=(1,), keepdims=False)
    size = size if size.dtype == f32 else b.cast(size, dtype=f32)
    # Of zeros only any scale is right; of numbers near the least normal one it has fewer digits below that.
    scale = b.maximum(b.div(size, float(LARGEST)), LEAST)
    result: Value = b.dequantize(b.quantize(rows, scale, axis=0, dtype=i8), scale, axis=0, dtype=x.dtype)
    return result
