"""`ourcc.explain`: what would be compiled of a model for given inputs, what would fall back, and why; builds nothing."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ..ir.errors import UsageError
from ..ir.graph import Module
from .importers.torch.walk import Imported, import_graph
from .options import BuildOptions
from .report.table import Report, Table


def explain_torch(model: Any, inputs: Sequence[Any], options: BuildOptions) -> Report:
    """Run a torch module or function once through torch.compile; every graph is imported and then run by torch."""
    import torch
    from torch._dynamo.utils import counters

    from .backend import aot

    if not callable(model):
        raise UsageError(f"got a {type(model).__name__}, expected a torch module, a function, or a path")
    graphs: list[_Listed] = []
    breaks = set(counters["graph_break"])

    def backend(graph_module: Any, example_inputs: Sequence[Any]) -> Any:
        return aot(graph_module, example_inputs, functools.partial(_Listed, graphs=graphs))

    # A fresh code object each time: what was compiled before must not hide a graph.
    torch._dynamo.reset_code_caches()
    torch.compile(model, backend=backend)(*inputs)
    return _report(graphs, [reason for reason in counters["graph_break"] if reason not in breaks])


class _Listed:
    """A graph that is imported to be listed, and run by torch."""

    def __init__(self, graph_module: Any, example_inputs: Sequence[Any], *, is_inference: bool, graphs: list[_Listed]) -> None:
        self._boxed_call = True
        self.graph_module = graph_module
        self.is_inference = is_inference
        self.imported: Imported = import_graph(graph_module)
        graphs.append(self)

    def __call__(self, *arguments: Any) -> Any:
        values = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], list) else arguments
        return self.graph_module(*values)


def _report(graphs: Sequence[_Listed], breaks: Sequence[str]) -> Report:
    rows: list[tuple[str | int, ...]] = []
    fallbacks: list[tuple[str, str, str]] = []
    notes: list[str] = []
    for number, listed in enumerate(graphs):
        imported = listed.imported
        ops = len(imported.module.main)
        symbols = imported.module.symbols
        rows.append(
            (number, "inference" if listed.is_inference else "training", ops - len(imported.calls), len(imported.calls), ", ".join(symbols))
        )
        fallbacks += [(fallback.operator, str(fallback.source), fallback.why) for fallback in imported.fallbacks]
        if symbols:
            notes.append(
                f"graph {number} has {len(symbols)} symbolic sizes: torch compiles size 1 apart, so up to {2 ** len(symbols)} graphs"
            )
    tables = [
        Table("graphs", ("graph", "kind", "compiled ops", "aten calls", "symbols"), tuple(rows), tuple(notes)),
        Table("fallbacks", ("op", "source", "why"), tuple(fallbacks), () if fallbacks else ("nothing falls back",)),
    ]
    if breaks:
        tables.append(Table("graph breaks", ("reason",), tuple((reason.splitlines()[0],) for reason in breaks)))
    facts = {
        "graphs": len(graphs),
        "compiled ops": sum(int(row[2]) for row in rows),
        "aten calls": len(fallbacks),
        "graph breaks": len(breaks),
    }
    return Report(facts, tuple(tables))


def explain_module(module: Module) -> Report:
    """What is in an imported program: all of it is compiled, or the import would have failed."""
    kinds: dict[str, int] = {}
    for op in module.main:
        kinds[op.name] = kinds.get(op.name, 0) + 1
    rows = tuple(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))
    return Report({"graphs": 1, "compiled ops": sum(kinds.values()), "aten calls": 0}, (Table("ops", ("op", "count"), rows),))
