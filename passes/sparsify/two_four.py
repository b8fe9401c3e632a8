"""Weights of linear layers and convolutions with two kept values in every four along the contracted axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ir.formats import sparse_name
from ...ir.formats.sparse import GROUP, pruned
from ...ir.graph import Module, Value
from ...ir.graph.rewrite import Numerics, Rewriter
from ..base import Pass, PassContext
from ..weights.weights import Weight, values_of, weights_of, why_not_replaced


@dataclass(frozen=True)
class SparsifyTwoFour(Pass):
    """Keep the two largest of every four weights along the contracted axis, with their places packed four to a byte.

    Before: const @w : f32[n, k]   %y = matmul(%x, @w) {transpose_b = true}
    After:  const @w.kept : f32[n, k / 2]   const @w.places : u8[n, k / 8]
            %w = decode(@w.kept, @w.places) {format = "2:4.f32", axis = 1}   %y = matmul(%x, %w) {transpose_b = true}
    """

    numerics: ClassVar[Numerics] = "LOSSY"

    def run(self, module: Module, context: PassContext) -> bool:
        """Every weight that allows it; a weight with several readers is pruned once."""
        known: dict[Value, tuple[Value, Value]] = {}
        changed = False
        for graph in module.functions.values():
            rewriter = context.rewriter(module, graph, self.name)
            for weight in weights_of(graph):
                if why_not(weight) is None and context.spend():
                    _sparsify(rewriter, weight, known)
                    changed = True
        return changed


def why_not(weight: Weight) -> str | None:
    """Why a weight stays dense, or None."""
    stored = weight.stored
    if weight.sparse is not None:
        return "the weight is 2:4 sparse already"
    # The axis is that of the numbers: blocks of codes lie along another.
    size = weight.value.shape[weight.contracted]
    if not isinstance(size, int) or size % GROUP or size == 0:
        return f"the contracted axis has {size} element{'' if size == 1 else 's'}, expected a multiple of {GROUP}"
    if weight.expanded_by("dequantize") is not None or weight.coded is not None:
        name = stored.dtype if weight.coded is None else weight.coded.attrs["format"]
        return f"the weight is quantized already, to {name}; prune before quantizing"
    if not stored.dtype.is_float:
        return f"the weight is {stored.dtype}, expected a float"
    return why_not_replaced(weight)


def _sparsify(rewriter: Rewriter, weight: Weight, known: dict[Value, tuple[Value, Value]]) -> None:
    stored, module = weight.stored, rewriter.module
    if stored not in known:
        kept, places = pruned(values_of(stored), weight.contracted)
        names = f"{stored.name}.kept", f"{stored.name}.places"
        known[stored] = module.add_constant(names[0], kept, stored.source), module.add_constant(names[1], places, stored.source)
    format = sparse_name(stored.dtype.name)
    dense = rewriter.builder(weight.op).decode(*known[stored], format=format, axis=weight.contracted, dtype=stored.dtype)
    rewriter.set_operand(weight.op, weight.position, dense)
