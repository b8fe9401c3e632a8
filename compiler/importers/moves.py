"""What rules of every importer build alike: conversions and moves of a tensor, left out where they would change nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir import dims
from ...ir.dims import Dim
from ...ir.graph import Builder, Value
from ...ir.types import DType


def cast(b: Builder, x: Value, dtype: DType) -> Value:
    """x in a dtype."""
    if x.dtype == dtype:
        return x
    result: Value = b.cast(x, dtype=dtype)
    return result


def reshape(b: Builder, x: Value, shape: Sequence[Dim]) -> Value:
    """The elements of x in another shape."""
    if x.shape == tuple(shape):
        return x
    result: Value = b.reshape(x, shape=tuple(shape))
    return result


def broadcast(b: Builder, x: Value, shape: Sequence[Dim]) -> Value:
    """x broadcast to a shape."""
    if x.shape == tuple(shape):
        return x
    result: Value = b.broadcast_to(x, shape=tuple(shape))
    return result


def transpose(b: Builder, x: Value, order: Sequence[int]) -> Value:
    """x with its axes in another order."""
    if tuple(order) == tuple(range(x.type.rank)):
        return x
    result: Value = b.transpose(x, permutation=tuple(order))
    return result


def with_place(b: Builder, x: Value, axis: int, place: Dim = 0, negative: bool = False) -> Value:
    """x, whose axis must have a place (0: must not be empty; `negative`: also from the end): an error at run time.

    No op where it is known to have it.
    """
    size, facts = x.shape[axis], b.module.facts
    if dims.at_most(-size if negative else 0, place, facts) is True and dims.at_most(place, size - 1, facts) is True:
        return x
    result: Value = b.check_place(x, axis=axis, place=place, negative=negative)
    return result


def with_places(b: Builder, x: Value, axis: int, count: Dim) -> Value:
    """x, whose axis must have so many places: an error at run time, and no op where it is known to have them."""
    if dims.at_most(0, count, b.module.facts) is True and dims.at_most(count, x.shape[axis], b.module.facts) is True:
        return x
    result: Value = b.check_place(x, axis=axis, place=count, counted=True)
    return result


def slice_axis(b: Builder, x: Value, axis: int, start: Dim, size: Dim, step: int = 1) -> Value:
    """`size` elements of one axis from `start` on."""
    if start == 0 and step == 1 and size == x.shape[axis]:
        return x
    rank = x.type.rank
    result: Value = b.slice(
        x,
        starts=tuple(start if n == axis else 0 for n in range(rank)),
        sizes=tuple(size if n == axis else own for n, own in enumerate(x.shape)),
        steps=tuple(step if n == axis else 1 for n in range(rank)),
    )
    return result
