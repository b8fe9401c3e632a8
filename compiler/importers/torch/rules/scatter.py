"""Rules that write elements at computed places."""

from __future__ import annotations

from typing import Any

from .....ir.graph import Value
from .....ir.types import boolean
from ..context import Node, aten
from .indexing import index_places, index_vectors

COMBINES = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


@aten("scatter")
def _scatter(n: Node, x: Value, axis: int, indices: Value, update: Any, reduce: str | None = None) -> Value:
    return _along(n, x, axis, indices, update, "none" if reduce is None else COMBINES[reduce])


@aten("scatter_add")
def _scatter_add(n: Node, x: Value, axis: int, indices: Value, update: Value) -> Value:
    return _along(n, x, axis, indices, update, "add")


@aten("scatter_reduce.two")
def _scatter_reduce(n: Node, x: Value, axis: int, indices: Value, update: Value, reduce: str, include_self: bool = True) -> Value:
    if reduce not in COMBINES or not include_self:
        raise n.fail(f"reduces by {reduce}{'' if include_self else ' without the element itself'}")
    return _along(n, x, axis, indices, update, COMBINES[reduce])


def _along(n: Node, x: Value, axis: int, indices: Value, update: Any, combine: str) -> Value:
    if not indices.type.elements:
        return x
    source = n.value(update, n.dtype)
    if not x.type.rank:
        x, indices, source = (n.reshape(value, (1,)) for value in (x, n.reshape(indices, (1,)), n.reshape(source, (1,))))
    axis = n.axis(axis, x.type.rank)
    if source.type.rank:
        for place, size in enumerate(indices.shape):
            source = n.slice(source, place, 0, size)
    source = n.expand(source, indices.shape)
    result: Value = n.b.scatter_along_axis(x, indices, source, axis=axis, combine=combine)
    return n.reshape(result, n.shape)


@aten("index_put", "_unsafe_index_put")
def _index_put(n: Node, x: Value, indices: tuple[Value | None, ...], update: Value, accumulate: bool = False, *_: Any) -> Value:
    masks = [index for index in indices if index is not None and index.dtype == boolean]
    if masks:
        return _masked_put(n, x, indices, update, accumulate)
    places = index_places(n, indices)
    axes = [axis for axis, _ in places]
    rest = [axis for axis in range(x.type.rank) if axis not in axes]
    if axes != list(range(len(axes))):
        raise n.fail("indexes axes that are not the first ones")
    vectors = index_vectors(n, places)
    updates = n.expand(n.cast(update, n.dtype), (*vectors.shape[:-1], *(x.shape[axis] for axis in rest)))
    result: Value = n.b.scatter_nd(x, vectors, updates, combine="add" if accumulate else "none")
    return result


def _masked_put(n: Node, x: Value, indices: tuple[Value | None, ...], update: Value, accumulate: bool) -> Value:
    """One mask over the leading axes and one number: a choice."""
    if len(indices) != 1 or indices[0] is None or accumulate or update.type.elements != 1:
        raise n.fail("an index is a mask, whose number of elements only the data decide")
    mask = indices[0]
    mask = n.reshape(mask, (*mask.shape, *(1 for _ in range(x.type.rank - mask.type.rank))))
    result: Value = n.b.where(mask, n.reshape(n.cast(update, n.dtype), ()), x)
    return result
