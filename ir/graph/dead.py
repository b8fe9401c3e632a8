"""Which ops of a function may go: nobody reads their results, nor a symbol that has its value from them."""

from __future__ import annotations

from collections.abc import Iterator

from .. import dims
from .graph import Graph, Op


def bound_by(op: Op) -> frozenset[str]:
    """The symbols that have a value once an op has run: sizes of what only the data decide, and the number that `item` reads."""
    if op.definition.kind != "opaque":
        return frozenset()
    sizes = [size for value in op.results for size in value.shape]
    if op.name == "item":
        sizes.append(op.attrs["symbol"])
    return frozenset(name for size in sizes if (name := dims.name_of(size)) is not None)


def needed_by(op: Op) -> frozenset[str]:
    """The symbols that an op's attributes and the sizes of its results are made of."""
    sizes = [*dims.within(tuple(op.attrs.values())), *(size for value in op.results for size in value.shape)]
    return frozenset().union(*map(dims.symbols, sizes))


def dead_ops(graph: Graph) -> Iterator[Op]:
    """The ops that nothing needs, from the last to the first: each that is removed before the next is asked for may free others.

    Whoever takes them asks whether they are pure.
    """
    sources = _sources(graph)
    returned = set(map(id, graph.outputs))
    needed: set[str] = set()
    for op in graph.reversed():
        binds = any(name in needed for name in bound_by(op) if sources[name] is op)
        if not binds and not any(result.uses or id(result) in returned for result in op.results):
            yield op
            if not is_linked(graph, op):
                continue
        needed |= needed_by(op)


def is_linked(graph: Graph, op: Op) -> bool:
    """Whether an op stands in the graph's list."""
    return op.previous is not None or op.next is not None or graph.first is op


def _sources(graph: Graph) -> dict[str, Op | None]:
    """The op that gives a symbol its value, the first that does; None for what the inputs tell."""
    found: dict[str, Op | None] = {name: None for value in graph.inputs for size in value.shape for name in dims.symbols(size)}
    for op in graph:
        for name in bound_by(op):
            found.setdefault(name, op)
    return found
