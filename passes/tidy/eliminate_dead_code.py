"""Dead code elimination: ops and constants that nobody reads."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.graph import Graph, Module
from ...ir.graph.dead import dead_ops
from ..base import Pass, PassContext


@dataclass(frozen=True)
class EliminateDeadCode(Pass):
    """Erase pure ops whose results nobody reads, unless a size that is needed has its value from them; constants without users.

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
    for op in dead_ops(graph):
        if op.definition.is_pure and context.spend():
            rewriter.erase(op)
    return rewriter.changes > 0
