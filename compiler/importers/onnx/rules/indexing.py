"""Rules that read and write by index, and the ops whose result size only the run knows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .....ir import dims
from .....ir.dims import Dim
from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.types import f64, i64
from ...moves import with_places
from ..context import Node, cast, rule
from .grids import gathered_whole
from .movement import slice_axis
from .shape import unsqueeze

COMBINE = {"none": "none", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def checked(n: Node, indices: Value, size: Dim, negative: bool = True) -> Value:
    """Indices, every one of which must lie in the axis that they index: the standard calls another an error."""
    result: Value = n.b.check_index(indices, size=size, negative=negative)
    return result


def _checked_vectors(n: Node, indices: Value, shape: Sequence[Dim]) -> Value:
    """Index vectors along the last axis, each of whose parts indexes one of `shape`."""
    depth = indices.shape[-1] if indices.type.rank else 0
    if not isinstance(depth, int) or depth > len(shape) or depth == 0:
        return indices  # the op itself refuses these types, or indexes nothing
    if all(size == shape[0] for size in shape[:depth]):
        return checked(n, indices, shape[0])
    lead = indices.type.rank - 1
    parts = []
    for place in range(depth):
        starts, sizes = (*(0,) * lead, place), (*indices.shape[:-1], 1)
        parts.append(checked(n, n.b.slice(indices, starts=starts, sizes=sizes, steps=(1,) * (lead + 1)), shape[place]))
    result: Value = n.b.concat(*parts, axis=lead)
    return result


def _checked_along(n: Node, x: Value, indices: Value, axis: int) -> Value:
    """Indices along an axis of x; along the others they have no more places than x, which sizes that vary do not prove."""
    indices = checked(n, indices, x.shape[axis])
    for each, (size, limit) in enumerate(zip(indices.shape, x.shape, strict=False)):
        if each == axis or dims.at_most(size, limit, n.facts) is not None:
            continue  # the op itself refuses what never fits
        shape = tuple(size if other == each else 1 for other in range(indices.type.rank))
        # What is added is 0: it makes whoever reads the indices ask for the check.
        places = n.b.iota(shape=shape, axis=each, dtype=indices.dtype)
        indices = n.b.add(indices, n.b.sub(checked(n, places, limit, negative=False), places))
    return indices


@rule("Gather")
def _gather(n: Node) -> Value:
    x = n.x(0)
    axis = n.axis(n.attr_int("axis"), x.type.rank)
    result: Value = n.b.take(x, checked(n, n.x(1), x.shape[axis]), axis=axis)
    return result


@rule("GatherElements")
def _gather_elements(n: Node) -> Value:
    x = n.x(0)
    axis = n.axis(n.attr_int("axis"), x.type.rank)
    result: Value = n.b.take_along_axis(x, _checked_along(n, x, n.x(1), axis), axis=axis)
    return result


@rule("GatherND")
def _gather_nd(n: Node) -> Value:
    batch_dims = n.attr_int("batch_dims")
    whole = gathered_whole(n, n.x(0), n.x(1)) if batch_dims == 0 else None
    if whole is not None:
        return whole
    result: Value = n.b.gather_nd(n.x(0), _checked_vectors(n, n.x(1), n.x(0).shape[batch_dims:]), batch_dims=batch_dims)
    return result


@rule("ScatterElements", "Scatter")
def _scatter_elements(n: Node) -> Value:
    x = n.x(0)
    combine = _combine(n)
    axis = n.axis(n.attr_int("axis"), x.type.rank)
    result: Value = n.b.scatter_along_axis(x, _checked_along(n, x, n.x(1), axis), n.x(2), axis=axis, combine=combine)
    return result


@rule("ScatterND")
def _scatter_nd(n: Node) -> Value:
    result: Value = n.b.scatter_nd(n.x(0), _checked_vectors(n, n.x(1), n.x(0).shape), n.x(2), combine=_combine(n))
    return result


def _combine(n: Node) -> str:
    reduction = n.attr_string("reduction", "none")
    if reduction not in COMBINE:
        raise n.fail(f"reduction {reduction!r} is not known, expected one of {', '.join(COMBINE)}")
    return COMBINE[reduction]


@rule("ArrayFeatureExtractor", domain="ai.onnx.ml")
def _array_feature_extractor(n: Node) -> Value:
    x, indices = n.x(0), n.x(1)
    flat = n.b.reshape(indices, shape=(indices.type.elements,))
    flat = checked(n, flat, x.shape[-1], negative=False)
    taken: Value = n.b.take(x, flat, axis=x.type.rank - 1)
    return taken if taken.type.rank > 1 else unsqueeze(n, taken, (0,))


@rule("OneHot")
def _one_hot(n: Node) -> Value:
    indices, values = n.x(0), n.x(2)
    depth = n.sizes(1, "the depth")[0] if n.x(1).dtype.is_integer else int(n.array(1, "the depth").reshape(-1)[0])
    rank = indices.type.rank + 1
    axis = n.axis(n.attr_int("axis", -1), rank)
    index = unsqueeze(n, cast(n, indices, i64), (axis,))
    shape: list[Dim] = [1] * rank
    shape[axis] = depth
    classes = n.b.iota(shape=tuple(shape), axis=axis, dtype=i64)
    size = n.b.scalar(depth, i64) if isinstance(depth, int) else n.b.dim(value=depth)
    # Negative indices count from the end, once.
    wrapped = n.b.where(n.b.lt(index, 0), n.b.add(index, size), index)
    off, on = (n.b.take(values, n.b.scalar(k, i64), axis=0) for k in (0, 1))
    result: Value = n.b.where(n.b.eq(wrapped, classes), on, off)
    return result


@rule("Compress")
def _compress(n: Node) -> Value:
    x, condition = n.x(0), n.x(1)
    if condition.type.rank != 1:
        raise n.fail(f"condition is {condition.type}, expected rank 1")
    if not n.has("axis"):
        x, axis = n.b.reshape(x, shape=(x.type.elements,)), 0
    else:
        axis = n.axis(n.attr_int("axis"), x.type.rank)
    # A condition may be shorter than the axis; what it does not reach is left out.
    reach = dims.simplify(dims.minimum(condition.shape[0], x.shape[axis]), n.facts)
    kept = slice_axis(n, condition, 0, 0, reach)
    array = n.b.array_of(kept)
    if array is not None:
        places = n.b.module.add_constant("c", np.flatnonzero(array).astype(np.int64), n.source)
    else:
        found = n.b.nonzero(kept, count=n.fresh("found"))
        places = n.b.reshape(found, shape=(found.shape[1],))
    result: Value = n.b.take(x, places, axis=axis)
    return result


@rule("NonZero")
def _non_zero(n: Node) -> Value:
    x = n.x()
    array = n.b.array_of(x)
    if array is not None:
        return n.b.module.add_constant("c", np.array(np.nonzero(np.atleast_1d(array)), dtype=np.int64), n.source)
    result: Value = n.b.nonzero(x, count=n.fresh("found"))
    return result


@rule("Hardmax")
def _hardmax(n: Node) -> Value:
    x = n.x()
    rank = x.type.rank
    axis = n.axis(n.attr_int("axis", -1 if n.opset >= 13 else 1), rank)
    flat, last = x, axis
    if n.opset < 13:
        flat = n.b.reshape(x, shape=(dims.product(x.shape[:axis]), dims.product(x.shape[axis:])))
        last = 1
    if flat.shape[last] == 0:
        return x
    index = n.b.argmax(flat, axis=last, keepdims=True)
    classes = n.b.iota(shape=tuple(s if a == last else 1 for a, s in enumerate(flat.shape)), axis=last, dtype=i64)
    result: Value = n.b.cast(n.b.eq(classes, index), dtype=x.dtype)
    return result if n.opset >= 13 else n.b.reshape(result, shape=x.shape)


@rule("TopK")
def _top_k(n: Node) -> tuple[Value, Value]:
    x = n.x(0)
    axis = n.axis(n.attr_int("axis", -1), x.type.rank)
    k = n.sizes(1, "k")[0] if n.opset >= 10 else n.attr_int("k")
    size = x.shape[axis]
    if isinstance(k, int) and isinstance(size, int) and not 0 <= k <= size:
        raise n.fail(f"k is {k}, expected 0 to {size}")
    x = with_places(n.b, x, axis, k)
    values, indices = n.b.top_k(x, k=k, axis=axis, largest=n.attr_flag("largest", True), sorted=True)
    return values, indices


@rule("CenterCropPad")
def _center_crop_pad(n: Node) -> Value:
    x = n.x(0)
    wanted = n.integers(1, "the shape")
    axes = n.axes(n.attr_ints("axes") or tuple(range(x.type.rank)), x.type.rank)
    if len(axes) != len(wanted):
        raise n.fail(f"got {len(wanted)} sizes for {len(axes)} axes")
    sizes = n.static_shape(x, "the input")
    before, after = [0] * x.type.rank, [0] * x.type.rank
    for axis, size in zip(axes, wanted, strict=True):
        more = size - sizes[axis]
        # Both crop and pad put the odd element at the end; cropping counts it from the other side.
        before[axis] = more // 2 if more >= 0 else -((-more) // 2)
        after[axis] = more - before[axis]
    result: Value = n.b.pad(x, before=tuple(before), after=tuple(after), mode="constant", value=0 if x.dtype.is_integer else 0.0)
    return result


@rule("TensorScatter")
def _tensor_scatter(n: Node) -> Value:
    past, update = n.x(0), n.x(1)
    rank = past.type.rank
    axis = n.axis(n.attr_int("axis", -2), rank)
    size = past.shape[axis]
    if axis == 0:
        raise n.fail("axis 0 is the batch, expected another")
    shape = tuple(s if a == axis else 1 for a, s in enumerate(update.shape))
    index = n.b.iota(shape=shape, axis=axis, dtype=i64)
    if n.given(2):
        index = n.b.add(index, n.b.reshape(cast(n, n.x(2), i64), shape=(past.shape[0], *(1,) * (rank - 1))))
    if n.attr_string("mode", "linear") == "circular":
        index = n.b.mod(index, n.b.scalar(size, i64) if isinstance(size, int) else n.b.dim(value=size))
    index = checked(n, index, size, negative=False)
    result: Value = n.b.scatter_along_axis(past, n.b.broadcast_to(index, shape=update.shape), update, axis=axis, combine="none")
    return result


@rule("Unique")
def _unique(n: Node) -> Sequence[Value]:
    axis = n.axis(n.attr_int("axis"), n.rank()) if n.has("axis") else None
    results: tuple[Value, ...] = n.b.unique(n.x(), axis=axis, sorted=n.attr_flag("sorted", True), count=n.fresh("found"))
    return results


@rule("NonMaxSuppression")
def _non_max_suppression(n: Node) -> Value:
    limit = n.integers(2, "the limit")[0] if n.given(2) else 0
    overlap = float(n.array(3, "the overlap").reshape(-1)[0]) if n.given(3) else 0.0
    threshold = float(n.array(4, "the score threshold").reshape(-1)[0]) if n.given(4) else None
    result: Value = n.b.non_max_suppression(
        n.x(0), n.x(1), limit=limit, overlap=overlap, threshold=threshold, centred=n.attr_flag("center_point_box"), count=n.fresh("found")
    )
    return result


# --- det --------------------------------------------------------------------------------------------------------------

DET_SIZE = 4


@rule("Det")
def _det(n: Node) -> Value:
    x = n.x()
    size = x.shape[-1] if x.type.rank >= 2 else None
    if size is None or dims.equal(x.shape[-2], size, n.facts) is False:
        raise n.fail(f"got {x.type}, expected square matrices")
    if not isinstance(size, int) or not 1 <= size <= DET_SIZE:
        raise UnsupportedError(f"determinant of size {size}", hint=f"sizes 1 to {DET_SIZE} are supported")
    return cast(n, _expanded(n, cast(n, x, f64), tuple(range(size)), 0), x.dtype)


def _expanded(n: Node, x: Value, columns: tuple[int, ...], row: int) -> Value:
    """The determinant of the rows from `row` on at `columns`, along the first of them."""
    result: Value | None = None
    for position, column in enumerate(columns):
        element: Value = n.b.take(n.b.take(x, n.b.scalar(row, i64), axis=x.type.rank - 2), n.b.scalar(column, i64), axis=x.type.rank - 2)
        rest = columns[:position] + columns[position + 1 :]
        term: Value = n.b.mul(element, _expanded(n, x, rest, row + 1)) if rest else element
        result = term if result is None else n.b.sub(result, term) if position % 2 else n.b.add(result, term)
    if result is None:
        raise n.fail("matrix is empty")
    return result
