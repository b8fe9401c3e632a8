"""Weights of linear layers and convolutions as int8 with one scale for each output channel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...ir.errors import VerifyError
from ...ir.formats import FORMATS, sparse_name
from ...ir.graph import Module, Value
from ...ir.graph.rewrite import Numerics, Rewriter
from ..base import Pass, PassContext
from ..match import operand
from ..weights.weights import Weight, values_of, weights_of, why_not_coded
from .vanished import vanished

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class QuantizeInt8Weight(Pass):
    """Store each weight as int8, rounded to the nearest, with one float scale for each output channel.

    Before: const @w : f32[n, k]   %y = matmul(%x, @w) {transpose_b = true}
    After:  const @w.int8 : i8[n, k]   const @w.scale : f32[n]
            %w = dequantize(@w.int8, @w.scale) {axis = 0, dtype = f32}   %y = matmul(%x, %w) {transpose_b = true}

    Of a 2:4 sparse weight those that are kept are quantized. What is computed stays in floats.
    """

    numerics: ClassVar[Numerics] = "LOSSY"

    def run(self, module: Module, context: PassContext) -> bool:
        """Every weight that allows it; a weight with several readers is quantized once."""
        known: dict[Value, tuple[Value, Value]] = {}
        changed = False
        for graph in module.functions.values():
            rewriter = context.rewriter(module, graph, self.name)
            for weight in weights_of(graph):
                found = None if weight.stored in known else coded(weight)
                if not isinstance(found, str) and context.spend():
                    if found is not None:
                        context.notes += _notes(weight, found[0])
                        known[weight.stored] = _added(module, weight.stored, *found)
                    _read_coded(rewriter, weight, *known[weight.stored])
                    changed = True
        return changed


def coded(weight: Weight) -> tuple[Array, Array] | str:
    """A weight's codes and scales, or why it stays as it is."""
    common = why_not_coded(weight)
    if common is not None:
        return common
    try:
        return quantized(values_of(weight.stored), weight.channel)
    except VerifyError as error:
        return error.message


def _notes(weight: Weight, codes: Array) -> list[str]:
    """What is to be said of a weight that is quantized."""
    apart = [np.moveaxis(array, weight.channel, 0) for array in (values_of(weight.stored), codes)]
    numbers, found = (array.reshape(array.shape[0], -1) for array in apart)
    said = vanished(weight.stored.name, "int8", numbers, 1, 0, lambda: found)
    return [] if said is None else [said]


def why_not(weight: Weight) -> str | None:
    """Why a weight stays as it is, or None."""
    found = coded(weight)
    return found if isinstance(found, str) else None


def quantized(weights: Array, channel: int) -> tuple[Array, Array]:
    """(int8, scales): weights rounded to the nearest multiple of their channel's scale, which maps its largest to 127."""
    channels = np.moveaxis(weights, channel, 0)
    rows = channels.reshape(channels.shape[0], math.prod(channels.shape[1:]))
    fields = FORMATS["int8"].encoded(rows)
    codes, scales = fields["codes"].reshape(channels.shape), fields["scale"][:, 0]
    # A scale below the normal numbers would lose the precision that it is there for: of zeros any will do.
    return np.ascontiguousarray(np.moveaxis(codes, 0, channel)), np.where(scales == 0, np.float32(1), scales)


def _added(module: Module, stored: Value, codes: Array, scales: Array) -> tuple[Value, Value]:
    """The codes and scales of a weight as constants of their own."""
    names = f"{stored.name}.int8", f"{stored.name}.scale"
    return module.add_constant(names[0], codes, stored.source), module.add_constant(names[1], scales, stored.source)


def _read_coded(rewriter: Rewriter, weight: Weight, value: Value, scale: Value) -> None:
    builder = rewriter.builder(weight.op)
    if weight.sparse is not None:
        places = operand(weight.sparse, 1)
        value = builder.decode(value, places, format=sparse_name(value.dtype.name), axis=weight.contracted, dtype=value.dtype)
    rewriter.set_operand(weight.op, weight.position, builder.dequantize(value, scale, axis=weight.channel, dtype=weight.stored.dtype))
