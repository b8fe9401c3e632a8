"""Weights of linear layers and convolutions with two kept values in every four along the contracted axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...ir.graph import Module, Value
from ...ir.graph.rewrite import Numerics, Rewriter
from ..base import Pass, PassContext
from ..weights.weights import Weight, values_of, weights_of, why_not_replaced

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SparsifyTwoFour(Pass):
    """Keep the two largest of every four weights along the contracted axis, with their places packed four to a byte.

    Before: const @w : f32[n, k]   %y = matmul(%x, @w) {transpose_b = true}
    After:  const @w.kept : f32[n, k / 2]   const @w.places : u8[n, k / 8]
            %w = decompress_2to4(@w.kept, @w.places) {axis = 1}   %y = matmul(%x, %w) {transpose_b = true}
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
    if weight.expanded_by("decompress_2to4") is not None:
        return "the weight is 2:4 sparse already"
    size = stored.shape[weight.contracted]
    if not isinstance(size, int) or size % 4 or size == 0:
        return f"the contracted axis has {size} elements, expected a multiple of 4"
    if weight.expanded_by("dequantize") is not None:
        return f"the weight is quantized already, to {stored.dtype}; prune before quantizing"
    if not stored.dtype.is_float:
        return f"the weight is {stored.dtype}, expected a float"
    return why_not_replaced(weight)


def pruned(weights: Array, axis: int) -> tuple[Array, Array]:
    """(values, positions): of every four along `axis` the two of largest magnitude, in order; of equals the first.

    Positions are numbers from 0 to 3, four in each byte, the first lowest.
    """
    groups = np.moveaxis(weights, axis, -1)
    groups = groups.reshape(*groups.shape[:-1], -1, 4)
    largest_first = np.argsort(-np.abs(groups.astype(np.float64)), axis=-1, kind="stable")
    kept = np.sort(largest_first[..., :2], axis=-1)
    values = np.take_along_axis(groups, kept, axis=-1)
    values = values.reshape(*values.shape[:-2], -1)
    return np.ascontiguousarray(np.moveaxis(values, -1, axis)), np.ascontiguousarray(np.moveaxis(_packed(kept), -1, axis))


def _packed(positions: Array) -> Array:
    """Pairs of positions as bytes of four."""
    flat = positions.reshape(*positions.shape[:-2], -1).astype(np.uint8)
    flat = np.pad(flat, [(0, 0)] * (flat.ndim - 1) + [(0, -flat.shape[-1] % 4)])
    fields = flat.reshape(*flat.shape[:-1], -1, 4) << np.arange(0, 8, 2, dtype=np.uint8)
    result: Array = np.bitwise_or.reduce(fields, axis=-1).astype(np.uint8)
    return result


def _sparsify(rewriter: Rewriter, weight: Weight, known: dict[Value, tuple[Value, Value]]) -> None:
    stored, module = weight.stored, rewriter.module
    if stored not in known:
        kept, places = pruned(values_of(stored), weight.contracted)
        names = f"{stored.name}.kept", f"{stored.name}.places"
        known[stored] = module.add_constant(names[0], kept, stored.source), module.add_constant(names[1], places, stored.source)
    kept_value, places_value = known[stored]
    dense = rewriter.builder(weight.op).decompress_2to4(kept_value, places_value, axis=weight.contracted)
    rewriter.set_operand(weight.op, weight.position, dense)
