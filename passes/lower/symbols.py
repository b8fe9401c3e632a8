"""Where a function's symbols get their values: from what the caller gives, or from the op that binds them."""

from __future__ import annotations

from ...ir import dims
from ...ir.graph import Graph, Op, Value


def numbers_given(graph: Graph) -> dict[str, Value]:
    """The arguments that are integers of the caller's own, by the symbol that they are the value of."""
    read = {op.attrs["symbol"]: op.operands[0] for op in graph if op.name == "item"}
    return {str(symbol): value for symbol, value in read.items() if value in graph.arguments and value is not None}


def given(graph: Graph) -> frozenset[str]:
    """The symbols that the caller's shapes and integers bind."""
    sizes = (size for value in graph.arguments for size in value.shape)
    return frozenset(numbers_given(graph)).union(*map(dims.symbols, sizes))


def named(op: Op) -> frozenset[str]:
    """The symbols that an op names: in its attributes, and in the sizes of what it reads and makes."""
    values = (value for value in (*op.operands, *op.results) if value is not None)
    sizes = [size for value in values for size in value.shape]
    sizes += [size for attribute in op.attrs.values() for size in dims.within(attribute)]
    return frozenset().union(*map(dims.symbols, sizes))


def bindable(op: Op) -> frozenset[str]:
    """The symbols that an op gives values, unless they have some."""
    own = {str(op.attrs["symbol"])} if op.name == "item" else set()
    return frozenset(own).union(*(dims.symbols(size) for result in op.results for size in result.shape))
