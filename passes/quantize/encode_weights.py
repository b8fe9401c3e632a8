"""Weights in a declared number format: codes and scales along the contracted axis, read in registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...ir import dims
from ...ir.errors import UsageError, VerifyError
from ...ir.formats import Format, format_of, sparse_name
from ...ir.graph import Module, Value
from ...ir.graph.rewrite import Numerics, Rewriter
from ..base import Pass, PassContext
from ..match import operand
from ..weights.weights import Weight, values_of, weights_of, why_not_coded
from .vanished import vanished


@dataclass(frozen=True)
class EncodeWeights(Pass):
    """Store each weight in a number format (ir/formats), coded along its contracted axis.

    Before: const @w : f32[n, k]   %y = matmul(%x, @w) {transpose_b = true}
    After:  const @w.codes : u8[n, k / 2]   const @w.scale : f16[n, k / 32]
            %w = decode(@w.codes, @w.scale) {format = "int4.g32", axis = 1}   %y = matmul(%x, %w) {transpose_b = true}

    Of a 2:4 sparse weight those that are kept are coded, in a format of the same name. What is computed stays in floats.
    """

    format: str = "int4.g32"
    numerics: ClassVar[Numerics] = "LOSSY"

    def check(self) -> None:
        """The format is one that is declared."""
        try:
            format_of(self.format)
        except VerifyError as error:
            raise UsageError(f"pass {self.name}: {error.message}") from error

    def run(self, module: Module, context: PassContext) -> bool:
        """Every weight that allows it; a weight with several readers is coded once."""
        known: dict[Value, tuple[Value, ...]] = {}
        changed = False
        for graph in module.functions.values():
            rewriter = context.rewriter(module, graph, self.name)
            for weight in weights_of(graph):
                fields = {} if weight.stored in known else fields_of(weight, format_of(self.format))
                if not isinstance(fields, str) and context.spend():
                    context.notes += _notes(weight, format_of(self.format), fields)
                    _encode(rewriter, weight, self.format, fields, known)
                    changed = True
        return changed


def fields_of(weight: Weight, format: Format) -> dict[str, np.ndarray[Any, Any]] | str:
    """A weight's codes, scales and what else the format holds; or why the weight stays as it is."""
    stored = weight.stored
    size = weight.value.type.shape[weight.contracted]
    group = format.group if weight.sparse is None else format_of(sparse_name(format.name)).group
    if stored.type.elements == 0:
        return "the weight has no elements"
    if stored.dtype.bits > 32:
        return f"the weight is {stored.dtype}, expected a float of 16 or 32 bits"
    # What is no float has no axis to speak of: its product may be written with other axes by now.
    why_not = why_not_coded(weight)
    if why_not is not None:
        return why_not
    if dims.divides(group, size) is not True:
        return f"the contracted axis has {size} element{'' if size == 1 else 's'}, expected a multiple of {group}"
    numbers = values_of(weight.stored)
    try:
        fields = format.encoded(numbers, weight.contracted)
    except VerifyError as error:
        return error.message
    taken = sum(array.nbytes for array in fields.values())
    return fields if taken < numbers.nbytes else f"it would take {taken} bytes, and takes {numbers.nbytes}"


def _notes(weight: Weight, format: Format, fields: dict[str, np.ndarray[Any, Any]]) -> list[str]:
    """What is to be said of a weight that is coded."""
    if not fields:
        return []
    numbers, axis = values_of(weight.stored), weight.contracted
    group = format.group if numbers.shape[axis] % format.group == 0 and format.group > 1 else 0
    said = vanished(weight.stored.name, format.name, numbers, axis, group, lambda: format.decoded(fields, axis))
    return [] if said is None else [said]


def why_not(weight: Weight, format: str) -> str | None:
    """Why a weight stays as it is, or None."""
    found = fields_of(weight, format_of(format))
    return found if isinstance(found, str) else None


def _encode(
    rewriter: Rewriter, weight: Weight, format: str, arrays: dict[str, np.ndarray[Any, Any]], known: dict[Value, tuple[Value, ...]]
) -> None:
    stored, module = weight.stored, rewriter.module
    if stored not in known:
        known[stored] = tuple(module.add_constant(f"{stored.name}.{name}", array, stored.source) for name, array in arrays.items())
    fields, sparse = known[stored], weight.sparse
    if sparse is not None:
        fields, format = (*fields, operand(sparse, 1)), sparse_name(format)
    value = rewriter.builder(weight.op).decode(*fields, format=format, axis=weight.contracted, dtype=stored.dtype)
    rewriter.set_operand(weight.op, weight.position, value)
