"""Rules that write elements at computed places."""

from __future__ import annotations

from typing import Any, cast

from .....ir.graph import Value
from .....ir.ops.reduction import highest, lowest
from .....ir.types import boolean
from ..context import Node, aten
from .indexing import checked, checked_places, index_places, index_vectors, is_adjacent

COMBINES = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


@aten("scatter")
def _scatter(n: Node, x: Value, axis: int, indices: Value, update: Any, reduce: str | None = None) -> Value:
    return _along(n, x, axis, indices, update, "none" if reduce is None else COMBINES[reduce])


@aten("scatter_add")
def _scatter_add(n: Node, x: Value, axis: int, indices: Value, update: Value) -> Value:
    return _along(n, x, axis, indices, update, "add")


@aten("scatter_reduce.two")
def _scatter_reduce(n: Node, x: Value, axis: int, indices: Value, update: Value, reduce: str, include_self: bool = True) -> Value:
    if not indices.type.elements:
        return x
    if reduce == "mean":
        return _mean_along(n, x, axis, indices, update, include_self)
    if not include_self:
        # What is written at all starts from the number that changes nothing.
        x = _along(n, x, axis, indices, _identity(n, reduce), "none")
    return _along(n, x, axis, indices, update, COMBINES[reduce])


@aten("index_add")
def _index_add(n: Node, x: Value, axis: int, indices: Value, update: Value, *, alpha: Any = 1) -> Value:
    scaled = update if not isinstance(alpha, Value) and alpha == 1 else n.b.mul(update, n.value(alpha, update.dtype))
    return _rows_put(n, x, axis, indices, scaled, True)


@aten("index_copy")
def _index_copy(n: Node, x: Value, axis: int, indices: Value, update: Value) -> Value:
    return _rows_put(n, x, axis, indices, update, False)


@aten("index_fill")
def _index_fill(n: Node, x: Value, axis: int, indices: Value, value: Any) -> Value:
    filled: Value = n.value(value, n.dtype)
    if not x.type.rank:
        return filled if indices.type.elements else x
    places = n.reshape(indices, (indices.type.elements,))
    result: Value = _index_put(n, x, (*[None] * n.axis(axis, x.type.rank), places), filled)
    return result


def _rows_put(n: Node, x: Value, axis: int, indices: Value, update: Value, accumulate: bool) -> Value:
    """Slices of `update` put at places along an axis, none of which counts from the end."""
    count = indices.type.elements
    if not x.type.rank:
        x, update = n.reshape(x, (1,)), n.reshape(update, (count,))
    axis = n.axis(axis, x.type.rank)
    places = checked(n, n.reshape(indices, (count,)), x.shape[axis])
    return n.reshape(_index_put(n, x, (*[None] * axis, places), update, accumulate), n.shape)


@aten("index_reduce")
def _index_reduce(n: Node, x: Value, axis: int, indices: Value, update: Value, reduce: str, *, include_self: bool = True) -> Value:
    axis = n.axis(axis, x.type.rank)
    shape = tuple(indices.type.elements if place == axis else 1 for place in range(x.type.rank))
    spread = n.expand(n.reshape(indices, shape), update.shape) if x.type.rank else indices
    result: Value = _scatter_reduce(n, x, axis, spread, update, reduce, include_self)
    return result


def _mean_along(n: Node, x: Value, axis: int, indices: Value, update: Value, include_self: bool) -> Value:
    if not n.dtype.is_float:
        raise n.fail(f"a mean of {n.dtype}")
    first = x if include_self else _along(n, x, axis, indices, 0, "none")
    counts = n.b.full(shape=x.shape, value=1.0, dtype=n.dtype)
    counts = _along(n, counts if include_self else _along(n, counts, axis, indices, 0, "none"), axis, indices, 1, "add")
    result: Value = n.b.div(_along(n, first, axis, indices, update, "add"), counts)
    return result


def _identity(n: Node, reduce: str) -> Any:
    """The number that a reduction leaves as it is."""
    if reduce in ("sum", "prod"):
        return 0 if reduce == "sum" else 1
    if n.dtype.is_float:
        return float("-inf") if reduce == "amax" else float("inf")
    return lowest(n.dtype.numpy) if reduce == "amax" else highest(n.dtype.numpy)


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
    result: Value = n.b.scatter_along_axis(x, checked(n, indices, x.shape[axis]), source, axis=axis, combine=combine)
    return n.reshape(result, n.shape)


@aten("index_put", "_unsafe_index_put")
def _index_put(n: Node, x: Value, indices: tuple[Value | None, ...], update: Value, accumulate: bool = False, *_: Any) -> Value:
    masks = [index for index in indices if index is not None and index.dtype == boolean]
    if masks:
        return _masked_put(n, x, indices, update, accumulate)
    places = checked_places(n, x, index_places(n, indices))
    axes = [axis for axis, _ in places]
    combine = "add" if accumulate else "none"
    if len(places) == 1:
        ((axis, index),) = places
        along = n.expand(n.cast(update, n.dtype), (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))
        return cast(Value, n.b.put(x, index, along, axis=axis, combine=combine))
    rest = [axis for axis in range(x.type.rank) if axis not in axes]
    vectors = index_vectors(n, places)
    width = vectors.type.rank - 1
    # Indexed axes side by side leave theirs in the middle of the update, others come first.
    lead = axes[0] if is_adjacent(places) else 0
    shape = (*(x.shape[axis] for axis in rest[:lead]), *vectors.shape[:-1], *(x.shape[axis] for axis in rest[lead:]))
    updates = n.expand(n.cast(update, n.dtype), shape)
    updates = n.permute(updates, [*range(lead, lead + width), *range(lead), *range(lead + width, len(shape))])
    order = [*axes, *rest]
    result = n.b.scatter_nd(n.permute(x, order), vectors, updates, combine=combine)
    return n.permute(result, [order.index(axis) for axis in range(x.type.rank)])


def _masked_put(n: Node, x: Value, indices: tuple[Value | None, ...], update: Value, accumulate: bool) -> Value:
    """One mask over the leading axes and one number: a choice."""
    if len(indices) != 1 or indices[0] is None or accumulate or update.type.elements != 1:
        raise n.fail("an index is a mask, whose number of elements only the data decide")
    mask = indices[0]
    mask = n.reshape(mask, (*mask.shape, *(1 for _ in range(x.type.rank - mask.type.rank))))
    result: Value = n.b.where(mask, n.reshape(n.cast(update, n.dtype), ()), x)
    return result
