"""Values that a product reads in 16 bits: what else reads them reads the same 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ir.errors import UsageError
from ...ir.graph import Module, Op
from ...ir.graph.rewrite import Numerics
from ...ir.types import DTYPES, DType, f32
from ..base import Pass, PassContext


@dataclass(frozen=True)
class NarrowValues(Pass):
    """Let pointwise ops read a value in f32 as the rounded one that products read, as eager torch does in a model of that type.

    Before: %n = cast(%x) {dtype = bf16}   %y = conv(%n, @w)   %z = add(%y, %x)
    After:  %n = cast(%x) {dtype = bf16}   %y = conv(%n, @w)   %w = cast(%n) {dtype = f32}   %z = add(%y, %w)

    A residual is then stored once, in half the bytes. Norms, softmax and sums read what they read before, and so does the caller.
    """

    dtype: str = "bf16"
    numerics: ClassVar[Numerics] = "LOSSY"

    def check(self) -> None:
        """The dtype is one that products are made narrow in."""
        if self.dtype not in ("bf16", "f16"):
            raise UsageError(f"pass {self.name}: dtype is {self.dtype!r}, expected bf16 or f16")

    def run(self, module: Module, context: PassContext) -> bool:
        """Every value that is computed here; it is rounded where it is made, once."""
        changed = False
        for graph in module.functions.values():
            rewriter = context.rewriter(module, graph, self.name)
            for op in list(graph):
                casts, others = _readers(op, DTYPES[self.dtype])
                if not casts or not others or not context.spend():
                    continue
                builder = rewriter.builder(op.next, op.source)
                narrow = builder.cast(op.result, dtype=casts[0].result.dtype)
                wide = builder.cast(narrow, dtype=op.result.dtype)
                for user in others:
                    for position, value in enumerate(user.operands):
                        if value is op.result:
                            rewriter.set_operand(user, position, wide)
                for cast in casts:
                    rewriter.replace(cast, [narrow])
                changed = True
        return changed


def _readers(op: Op, dtype: DType) -> tuple[list[Op], list[Op]]:
    """The casts to `dtype` of a value in f32, and the pointwise ops that compute floats from it; none where it is not made here as such."""
    made = len(op.results) == 1 and op.results[0].dtype == f32 and op.name != "cast"
    users = list(op.result.uses) if made else []
    casts = [user for user in users if user.name == "cast" and user.result.dtype == dtype]
    others = [user for user in users if user.definition.kind == "pointwise" and user.name != "cast" and user.result.dtype.is_float]
    return casts, others
