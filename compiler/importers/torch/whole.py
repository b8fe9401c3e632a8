"""A graph that is not compiled (sparse tensors, dtypes without a type, a fault of ours): torch runs it, every op is listed."""

from __future__ import annotations

from typing import Any

from ....ir.graph import Graph, Module
from .imported import Fallback, Imported
from .nodes import operator_name, source_of


def left(graph_module: Any, why: str) -> Imported:
    """An empty module whose fallbacks are all ops of a graph, since the graph is not compiled."""
    module = Module("model")
    module.functions["main"] = Graph("main")
    nodes = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    fallbacks = tuple(Fallback(operator_name(node.target), source_of(node), f"its graph is not compiled: {why}") for node in nodes)
    return Imported(module, (), (), (), fallbacks, is_left=True)
