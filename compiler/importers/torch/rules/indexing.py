"""Rules that read elements at computed places."""

from __future__ import annotations

from typing import Any

from .....ir import dims
from .....ir.dims import Dim
from .....ir.graph import Value
from .....ir.types import boolean, i64
from ... import moves
from ..context import Node, aten


def checked(n: Node, indices: Value, size: Dim, negative: bool = False) -> Value:
    """Indices, every one of which must lie in the axis that they index: eager raises IndexError for another."""
    result: Value = n.b.check_index(indices, size=size, negative=negative)
    return result


@aten("embedding")
def _embedding(n: Node, weight: Value, indices: Value, *_: Any) -> Value:
    result: Value = n.b.take(weight, checked(n, indices, weight.shape[0]), axis=0)
    return result


@aten("index_select")
def _index_select(n: Node, x: Value, axis: int, indices: Value) -> Value:
    if not x.type.rank:
        return x
    axis = n.axis(axis, x.type.rank)
    result: Value = n.b.take(x, checked(n, n.reshape(indices, (indices.type.elements,)), x.shape[axis]), axis=axis)
    return result


@aten("gather")
def _gather(n: Node, x: Value, axis: int, indices: Value, **_: Any) -> Value:
    x, indices = (value if value.type.rank else n.reshape(value, (1,)) for value in (x, indices))
    axis = n.axis(axis, x.type.rank)
    result: Value = n.b.take_along_axis(x, checked(n, indices, x.shape[axis]), axis=axis)
    return n.reshape(result, n.shape)


@aten("unfold")
def _unfold(n: Node, x: Value, axis: int, size: int, step: int) -> Value:
    """Windows of an axis; their own axis is the last."""
    if not x.type.rank:
        return n.reshape(x, n.shape)
    axis = n.axis(axis, x.type.rank)
    shape = (n.shape[axis], size)
    first = n.b.mul(n.b.iota(shape=shape, axis=0, dtype=i64), n.value(step, i64))
    windows = n.b.take(x, n.b.add(first, n.b.iota(shape=shape, axis=1, dtype=i64)), axis=axis)
    return n.permute(windows, [*range(axis + 1), *range(axis + 2, x.type.rank + 1), axis + 1])


@aten("take")
def _take(n: Node, x: Value, indices: Value) -> Value:
    result: Value = n.b.take(n.reshape(x, (x.type.elements,)), checked(n, indices, x.type.elements, negative=True), axis=0)
    return result


def index_places(n: Node, indices: tuple[Value | None, ...]) -> list[tuple[int, Value]]:
    """The indexed axes with their index tensors; a mask has no size before it has run."""
    places = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if any(index.dtype == boolean or index.dtype.name == "u8" for _, index in places):
        raise n.fail("an index is a mask, whose number of elements only the data decide")
    return places


def checked_places(n: Node, x: Value, places: list[tuple[int, Value]]) -> list[tuple[int, Value]]:
    """Indexed axes with their checked index tensors; what torch itself calls unsafe is not checked."""
    if n.operator.split(".")[0].endswith(("_unsafe_index", "_unsafe_index_put")):
        return places
    return [(axis, checked(n, index, x.shape[axis], negative=True)) for axis, index in places]


def index_vectors(n: Node, places: list[tuple[int, Value]]) -> Value:
    """All index tensors broadcast together, as vectors along a last axis."""
    shape = broadcast(n, [index.shape for _, index in places])
    parts = [n.reshape(n.expand(n.cast(index, i64), shape), (*shape, 1)) for _, index in places]
    result: Value = parts[0] if len(parts) == 1 else n.b.concat(*parts, axis=len(shape))
    return result


def broadcast(n: Node, shapes: list[tuple[Dim, ...]]) -> tuple[Dim, ...]:
    """The common shape of several."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))


def is_adjacent(places: list[tuple[int, Value]]) -> bool:
    """Whether the indexed axes stand side by side, so that the result's take their place."""
    axes = [axis for axis, _ in places]
    return axes == list(range(axes[0], axes[0] + len(axes)))


@aten("index.Tensor", "_unsafe_index")
def _index(n: Node, x: Value, indices: tuple[Value | None, ...]) -> Value:
    places = index_places(n, indices)
    if not places:
        return x
    places = checked_places(n, x, places)
    if len(places) == 1:
        result: Value = n.b.take(x, places[0][1], axis=places[0][0])
        return result
    axes = [axis for axis, _ in places]
    rest = [axis for axis in range(x.type.rank) if axis not in axes]
    vectors = index_vectors(n, places)
    found: Value = n.b.gather_nd(n.permute(x, [*axes, *rest]), vectors, batch_dims=0)
    if not is_adjacent(places):
        return found
    width = vectors.type.rank - 1
    lead = axes[0]
    order = [*range(width, width + lead), *range(width), *range(width + lead, width + len(rest))]
    return n.permute(found, order)


@aten("nonzero")
def _nonzero(n: Node, x: Value) -> Value:
    """Places as rows; their number is the symbol that torch made for it."""
    count = n.shape[0]
    if dims.name_of(count) is None or not x.type.rank:
        raise n.fail("it makes no size of its own, or its operand is a scalar")
    return n.permute(n.b.nonzero(x, count=count), (1, 0))


@aten("sort")
def _sort(n: Node, x: Value, *arguments: Any, **keywords: Any) -> tuple[Value, ...]:
    axis, descending = _sort_options(n, arguments, keywords)
    if not x.type.rank:
        return x, n.b.full(shape=(), value=0, dtype=i64)
    values, places = n.b.sort(x, axis=n.axis(axis, x.type.rank), descending=descending)
    return values, places


def _sort_options(n: Node, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[int, bool]:
    if n.operator.endswith(".stable"):
        return keywords.get("dim", -1), keywords.get("descending", False)
    given = dict(zip(("dim", "descending"), arguments, strict=False)) | keywords
    return given.get("dim", -1), given.get("descending", False)


@aten("topk")
def _topk(n: Node, x: Value, k: Any, axis: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Value, ...]:
    if not x.type.rank:
        raise n.fail("its operand is a scalar")
    if isinstance(x.shape[axis], dims.Expr) and not isinstance(k, int):
        raise n.fail("how many elements are wanted is symbolic")
    axis = n.axis(axis, x.type.rank)
    x = moves.with_places(n.b, x, axis, k)
    values, places = n.b.top_k(x, k=k, axis=axis, largest=largest, sorted=sorted)
    return values, places
