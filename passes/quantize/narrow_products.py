"""Products of 16 bits: factors are rounded to bf16 or f16, multiplied exactly and added up in f32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ir.errors import UsageError
from ...ir.graph import Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rewriter
from ...ir.types import DTYPES, DType, f32
from ..base import Pass, PassContext
from ..weights.weights import STORED


@dataclass(frozen=True)
class NarrowProducts(Pass):
    """Round the factors of products and convolutions in f32 to `dtype`; their results, and all else, stay wide.

    Before: %y = matmul(%x, @w)
    After:  %a = cast(%x) {dtype = bf16}   %b = cast(@w) {dtype = bf16}   %y = matmul(%a, %b) {wide = true}

    What products read is then stored in 16 bits, as the cast becomes part of the kernel that makes it; softmax, norms, residual sums and
    long sums stay in f32. A weight with scales of its own keeps them.
    """

    dtype: str = "bf16"
    numerics: ClassVar[Numerics] = "LOSSY"

    def check(self) -> None:
        """The dtype is one that products have instructions for."""
        if self.dtype not in ("bf16", "f16"):
            raise UsageError(f"pass {self.name}: dtype is {self.dtype!r}, expected bf16 or f16")

    def run(self, module: Module, context: PassContext) -> bool:
        """Every product that allows it; what several products read is rounded once."""
        changed = False
        for graph in module.functions.values():
            rewriter = context.rewriter(module, graph, self.name)
            known: dict[Value, Value] = {}
            for op in list(graph):
                if why_not(op) is None and context.spend():
                    _narrow(rewriter, op, DTYPES[self.dtype], known)
                    changed = True
        return changed


def _narrow(rewriter: Rewriter, op: Op, dtype: DType, known: dict[Value, Value]) -> None:
    """Let a product read its factors narrow; `known` are those of earlier products, which stand before it."""
    builder = rewriter.builder(op)

    def narrow(value: Value) -> Value:
        if value not in known:
            known[value] = builder.cast(value, dtype=dtype)
        return known[value]

    operands = [narrow(value) if n < 2 and value is not None else value for n, value in enumerate(op.operands)]
    rewriter.replace(op, list(builder.build(op.definition, operands, {**op.attrs, "wide": True})))


def why_not(op: Op) -> str | None:
    """Why an op keeps its factors as they are, or None."""
    if op.name not in ("matmul", "conv"):
        return f"only the factors of matmul and conv are rounded, {op.name} takes them as they are"
    factors = [value for value in op.operands[:2] if value is not None]
    if any(value.dtype != f32 for value in factors):
        return f"its factors are {' and '.join(dict.fromkeys(value.dtype.name for value in factors))}, not f32"
    if any(value.op is not None and value.op.name in STORED for value in factors):
        return "its weight is stored with scales"
    return None
