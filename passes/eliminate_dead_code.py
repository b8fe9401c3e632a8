"""Dead code elimination: ops and constants that nobody reads."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.graph import Graph, Module
from .base import Pass, PassContext


@dataclass(frozen=True)
class EliminateDeadCode(Pass):
    """Erase pure ops whose results nobody reads, and constants without users.

    Before: %a = exp(%x)   %b = neg(%x)   return %b
    After:  %b = neg(%x)   return %b
    """

    def run(self, module: Module, context: PassContext) -> bool:
        """One sweep from the end of each function, then the constants."""
        changed = False
        for graph in module.functions.values():
            changed |= _sweep(module, graph, context)
        kept = {id(value) for graph in module.functions.values() for value in graph.outputs}
        kept |= {id(state.initial) for state in module.states.values()}
        for name, value in list(module.constants.items()):
            if not value.uses and id(value) not in kept:
                del module.constants[name]
                changed = True
        return changed


def _sweep(module: Module, graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(module, graph, EliminateDeadCode.name)
    returned = set(map(id, graph.outputs))
    for op in graph.reversed():
        unread = not any(result.uses or id(result) in returned for result in op.results)
        if op.definition.is_pure and unread and context.spend():
            rewriter.erase(op)
    return rewriter.changes > 0
