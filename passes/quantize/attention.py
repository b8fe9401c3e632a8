"""Scores of attention as sums of integers: queries and keys as int8, with a scale for each token of a head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ir import dims
from ...ir.codes import MOST_TERMS
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rewriter
from ...ir.types import f32, i8
from ..base import Pass, PassContext
from ..match import operand, producer
from ..weights.weights import STORED
from .narrow_products import is_kept
from .rows import row_scales

LARGEST = 127


@dataclass(frozen=True)
class QuantizeAttention(Pass):
    """Round queries and keys of attention in f32 to int8, by the largest magnitude of each token of a head; weights and values stay.

    Before: %y = attention(%q, %k, %v)
    After:  %s = div(reduce_max(abs(%q)), 127)   %c = quantize(%q, %s) {axis, block, dtype = i8}   (and so for %k)
            %y = attention(dequantize(%c, %s), dequantize(%d, %t), %v)

    A score is then a sum of integers times two scales. Weights of many columns are small beside the largest one: rounded to 8 bits
    they would vanish together, so the second product keeps its floats (as SageAttention does, arXiv 2410.02367).
    """

    numerics: ClassVar[Numerics] = "LOSSY"

    def run(self, module: Module, context: PassContext) -> bool:
        """Every attention that allows it; what several read is rounded once."""
        changed = False
        for graph in module.functions.values():
            rewriter = context.rewriter(module, graph, self.name)
            known: dict[Value, Value] = {}
            for op in list(graph):
                if why_not(op) is None and context.spend():
                    _quantize(rewriter, op, known)
                    changed = True
        return changed


def why_not(op: Op) -> str | None:
    """Why an attention multiplies its queries and keys as they are, or None."""
    if op.name != "attention":
        return f"only attention multiplies queries and keys, {op.name} does not"
    query, key = operand(op, 0), operand(op, 1)
    if query.dtype != f32 or key.dtype != f32:
        return f"its queries and keys are {query.dtype}, not f32"
    if any(producer(value, *STORED) is not None for value in (query, key)):
        return "its queries or keys are stored with scales already"
    size = query.shape[-1]
    if not isinstance(size, int) or not 0 < size <= MOST_TERMS:
        return f"heads have {size} elements, expected a number from 1 to {MOST_TERMS}"
    widened = producer(key, "cast")
    held = key if widened is None else operand(widened, 0)
    if is_kept(held):
        return f"its keys are kept in {held.dtype} from call to call"
    return None


def _quantize(rewriter: Rewriter, op: Op, known: dict[Value, Value]) -> None:
    builder = rewriter.builder(op)
    for value in (operand(op, 0), operand(op, 1)):
        if value not in known:
            known[value] = _rounded(builder, value)
    operands = [known[value] if n < 2 and value is not None else value for n, value in enumerate(op.operands)]
    rewriter.replace(op, list(builder.build(op.definition, operands, op.attrs)))


def _rounded(b: Builder, x: Value) -> Value:
    """The tokens of x as int8 and back, each by a scale of its own."""
    along, size = x.type.rank - 1, dims.number(x.shape[-1])
    scale = row_scales(b, x, float(LARGEST), keepdims=True)
    codes = b.quantize(x, scale, axis=along, block=size, dtype=i8)
    result: Value = b.dequantize(codes, scale, axis=along, block=size, dtype=f32)
    return result
