"""The contract of a build: what was requested of each op of the user's model, what was realised, and why."""

from __future__ import annotations

from ..ir.graph import Module
from ..runtime.contents import ContractRow


def fallback_rows(module: Module) -> list[ContractRow]:
    """One row for each op that runs as a call back into the framework."""
    rows = []
    for graph in module.functions.values():
        for op in graph:
            if op.name == "aten_call":
                rows.append(ContractRow(str(op.source or op.attrs["target"]), op.attrs["target"], "compiled", "aten call", op.attrs["why"]))
    return rows
