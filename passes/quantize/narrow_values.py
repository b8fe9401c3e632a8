"""Values of narrow products that a product reads in 16 bits again: what else reads them reads the same 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ir.errors import UsageError
from ...ir.graph import Module, Op, Value
from ...ir.graph.rewrite import Numerics
from ...ir.types import DTYPES, DType, f32
from ..base import Pass, PassContext
from ..match import operand

MOVES = ("reshape", "transpose", "slice", "broadcast_to", "concat", "pad", "max_pool")
"""Ops whose result holds what an operand held, in no other precision."""


@dataclass(frozen=True)
class NarrowValues(Pass):
    """Let pointwise ops read a value as the rounded one that products read, where it was made of products in 16 bits alone.

    Before: %x = relu(conv(%a, @v))   %n = cast(%x) {dtype = bf16}   %y = conv(%n, @w)   %z = add(%y, %x)
    After:  %x = relu(conv(%a, @v))   %n = cast(%x) {dtype = bf16}   %y = conv(%n, @w)   %z = add(%y, cast(%n))

    A residual between convolutions is then stored once, in half the bytes: it has the precision that torch.autocast gives it, under which
    results of products are in 16 bits, and so is what pointwise ops make of them. A sum that something in f32 takes part in stays in f32:
    what calls bring, norms, softmax and other sums. They read what they read before, and so does the caller.
    """

    dtype: str = "bf16"
    numerics: ClassVar[Numerics] = "LOSSY"

    def check(self) -> None:
        """The dtype has the range of f32: a residual that f16 does not hold is no infinity where nothing asks for it in f16."""
        if self.dtype != "bf16":
            raise UsageError(f"pass {self.name}: dtype is {self.dtype!r}, expected bf16")

    def run(self, module: Module, context: PassContext) -> bool:
        """Every value that is computed here; it is rounded where it is made, once."""
        changed = False
        for graph in module.functions.values():
            rewriter, narrow = context.rewriter(module, graph, self.name), set[Value]()
            for op in list(graph):
                if not _is_narrow(op, DTYPES[self.dtype], narrow):
                    continue
                narrow.add(op.result)
                casts, others = _readers(op, DTYPES[self.dtype])
                if not casts or not others or not context.spend():
                    continue
                builder = rewriter.builder(op.next, op.source)
                rounded = builder.cast(op.result, dtype=casts[0].result.dtype)
                wide = builder.cast(rounded, dtype=op.result.dtype)
                narrow.add(wide)
                for user in others:
                    for position, value in enumerate(user.operands):
                        if value is op.result:
                            rewriter.set_operand(user, position, wide)
                for cast in casts:
                    rewriter.replace(cast, [rounded])
                changed = True
        return changed


def _is_narrow(op: Op, dtype: DType, narrow: set[Value]) -> bool:
    """Whether a result in f32 has no more than the precision of `dtype`: a product's of such factors, or made of such results alone."""
    if len(op.results) != 1 or op.results[0].dtype != f32:
        return False
    if op.name in ("matmul", "conv"):
        return operand(op, 0).dtype == operand(op, 1).dtype == dtype
    if op.name == "cast":
        return operand(op, 0).dtype == dtype
    if op.definition.kind != "pointwise" and op.name not in MOVES:
        return False
    floats = [value for value in op.operands if value is not None and value.dtype.is_float and value.constant is None]
    return bool(floats) and all(value in narrow for value in floats)


def _readers(op: Op, dtype: DType) -> tuple[list[Op], list[Op]]:
    """The casts to `dtype` of a value in f32, and the pointwise ops that compute floats from it; none of what was narrow before."""
    users = [] if op.name == "cast" else list(op.result.uses)
    casts = [user for user in users if user.name == "cast" and user.result.dtype == dtype]
    others = [user for user in users if user.definition.kind == "pointwise" and user.name != "cast" and user.result.dtype.is_float]
    return casts, others
