"""Common subexpression elimination: one op for all that compute the same."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from ...ir.graph import Graph, Module, Op, Value
from ...ir.graph.text import attribute_text
from ..base import Pass, PassContext

SMALL = 4096


@dataclass(frozen=True)
class EliminateCommonSubexpressions(Pass):
    """Let users of an op read an earlier one with the same operands and attributes; operands of a commutative op may
    stand in either order, small constants are compared by their values.

    Before: %a = mul(%x, %y)   %b = mul(%y, %x)   %c = add(%a, %b)
    After:  %a = mul(%x, %y)   %c = add(%a, %a)
    """

    def run(self, module: Module, context: PassContext) -> bool:
        """One walk in order: an op's operands are already shared when it is met."""
        names = _ConstantNames()
        changed = [_share(module, graph, names, context) for graph in module.functions.values()]
        return any(changed)


class _ConstantNames:
    """One key for all constants that are known to have the same values."""

    def __init__(self) -> None:
        self._keys: dict[int, Hashable] = {}

    def key(self, value: Value) -> Hashable:
        if id(value) not in self._keys:
            self._keys[id(value)] = self._compute(value)
        return self._keys[id(value)]

    def _compute(self, value: Value) -> Hashable:
        data, elements = value.constant, value.type.elements
        if data is None:
            return id(value)
        # Digests of large constants would read every weight; those are shared only if they are one object.
        small = isinstance(elements, int) and elements <= SMALL and data.available
        return (value.type, data.digest) if small else (value.type, id(data))


def _share(module: Module, graph: Graph, names: _ConstantNames, context: PassContext) -> bool:
    rewriter = context.rewriter(module, graph, EliminateCommonSubexpressions.name)
    seen: dict[Hashable, Op] = {}
    for op in graph:
        if not op.definition.is_pure or not op.results:
            continue
        first = seen.setdefault(_key(op, names), op)
        same_types = [value.type for value in first.results] == [value.type for value in op.results]
        if first is not op and same_types and context.spend():
            rewriter.replace(op, first.results)
    return rewriter.changes > 0


def _key(op: Op, names: _ConstantNames) -> Hashable:
    operands: list[Hashable] = [None if value is None else names.key(value) for value in op.operands]
    if "commutative" in op.definition.traits:
        operands.sort(key=repr)
    return (op.name, tuple(operands), tuple((name, attribute_text(value)) for name, value in sorted(op.attrs.items())))
