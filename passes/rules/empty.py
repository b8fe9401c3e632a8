"""Rules of nothing: what has no elements is not computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir import dims
from ...ir.graph import Builder, ConstantData, Module, Op, Value
from ...ir.graph.rewrite import Rule
from ...ir.ops.table import OPS


class ComputeNothing(Rule):
    """an op whose results have no elements -> constants without elements, as wide as the results are"""

    ops = tuple(name for name, definition in OPS.items() if definition.is_pure and definition.kind != "host")

    def check(self, op: Op, module: Module) -> str | None:
        if not all(0 in result.shape for result in op.results):
            return "a result has elements"
        made = op.name == "broadcast_to" and op.operands[0] is not None and op.operands[0].constant is not None
        return "it widens a constant" if made else None

    def rewrite(self, op: Op, g: Builder) -> Sequence[Value]:
        return [_nothing(result, g) for result in op.results]


def _nothing(result: Value, g: Builder) -> Value:
    """A constant of this type; sizes that only a call knows are made by a broadcast."""
    shape = tuple(1 if dims.symbols(size) else size for size in result.shape)
    data = ConstantData(np.zeros(shape, result.dtype.numpy), origin="folded")
    made = g.module.add_constant(result.name, data, result.source, result.type.with_shape(shape))
    widened: Value = made if result.type.is_static else g.broadcast_to(made, shape=result.shape)
    return widened


RULES = (ComputeNothing(),)
