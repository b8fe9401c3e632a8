"""Which size of a model is its batch, where that can be seen."""

from __future__ import annotations

from .. import dims
from .graph import Module


def lone_batch(module: Module) -> str | None:
    """The one symbol of a module, where it is the first of several axes of whatever input has it."""
    if len(module.facts.ranges) != 1:
        return None
    (name,) = module.facts.ranges
    shapes = [value.shape for graph in module.functions.values() for value in graph.arguments]
    places = [(len(shape), axis, size) for shape in shapes for axis, size in enumerate(shape) if name in dims.symbols(size)]
    return name if places and all(rank > 1 and axis == 0 and dims.name_of(size) == name for rank, axis, size in places) else None
