"""Opaque ops: what has no index structure that a kernel could tile, and runs as a step of the host program.

A size that only the data decide is a fresh symbol: whoever adds the op declares the symbol in the module and gives it
as the attribute `count`, and the result's type carries it. The step binds the symbol when it has run, so that later
sizes and attributes may use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import dims
from ..dims import Dim
from ..errors import InputError, VerifyError
from ..types import TensorType, boolean, f16, i32, i64, u8
from .reduction import expect_numbers
from .sampling import array, draw, refused, specials
from .table import Sample, axis_of, bound, broadcast, opaque, same_dtype

Tensor = np.ndarray[Any, Any]


def _expect_size(op: str, count: Dim) -> None:
    if isinstance(count, int) and count < 0:
        raise VerifyError(f"{op}: got count {count}, expected 0 or more or a fresh symbol")


# --- scalars that sizes are made of -----------------------------------------------------------------------------------


@opaque(traits=("impure",))
def item(x: Tensor, /, *, symbol: Dim) -> Tensor:
    """x, an i64 scalar, whose value becomes that of `symbol`: sizes and places may be made of it. It may be negative."""
    return x


@item.infers
def _(x: TensorType, *, symbol: Dim) -> TensorType:
    if x != TensorType(i64, ()):
        raise VerifyError(f"item: got {x}, expected i64[]")
    if dims.name_of(symbol) is None:
        raise VerifyError(f"item: got {symbol}, expected one symbol")
    return x


@item.samples
def _() -> Iterator[Sample]:
    yield Sample((draw(dtype=i64),), {"symbol": dims.symbol("captured")})
    yield refused((draw(1, dtype=i64),), "got i64[1], expected i64[]", symbol=dims.symbol("captured"))
    yield refused((draw(dtype=i64),), "got 3, expected one symbol", symbol=3)


@opaque(traits=("impure",))
def require(condition: Tensor, /, *, message: str) -> Tensor:
    """The condition, a boolean scalar; where it is false the call ends in an error that says `message`."""
    if not condition:
        raise InputError(message)
    return condition


@require.infers
def _(condition: TensorType, *, message: str) -> TensorType:
    if condition != TensorType(boolean, ()):
        raise VerifyError(f"require: got {condition}, expected bool[]")
    return condition


@require.samples
def _() -> Iterator[Sample]:
    yield Sample((np.asarray(True),), {"message": "u0 is negative"})
    yield refused((draw(2, dtype=boolean),), "got bool[2], expected bool[]", message="")


# --- data-dependent sizes ---------------------------------------------------------------------------------------------


@opaque()
def nonzero(x: Tensor, /, *, count: Dim) -> Tensor:
    """The indices of the elements that are not 0, in row-major order: i64 [rank, count]; a scalar has rank 1 here."""
    return np.asarray(np.nonzero(np.atleast_1d(x)), dtype=np.int64)


@nonzero.infers
def _(x: TensorType, *, count: Dim) -> TensorType:
    _expect_size("nonzero", count)
    return TensorType(i64, (max(x.rank, 1), count))


@nonzero.samples
def _() -> Iterator[Sample]:
    fresh = dims.symbol("found")
    for x in (draw(3, 4, dtype=i32), draw(2, 3, dtype=boolean), draw(0, 2), draw(), array(0.0, -0.0, float("nan"))):
        yield Sample((x,), {"count": fresh})
    yield refused((draw(3),), "got count -1, expected 0 or more or a fresh symbol", count=-1)


@opaque()
def unique(x: Tensor, /, *, axis: int | None = None, sorted: bool = True, count: Dim) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The distinct elements (or slices along `axis`), ascending or in order of appearance; for each the index of its
    first appearance, for each element of x the place of its value, and how often each value appears.
    """
    values, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    place = 0 if axis is None else axis
    if not sorted:
        order = np.argsort(first)
        values, first, counts = values.take(order, axis=place), first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return values, first.astype(np.int64), inverse.reshape(-1).astype(np.int64), counts.astype(np.int64)


@unique.infers
def _(x: TensorType, *, axis: int | None, sorted: bool, count: Dim) -> tuple[TensorType, ...]:
    _expect_size("unique", count)
    if axis is None:
        shape: tuple[Dim, ...] = (count,)
        members = x.elements
    else:
        place = axis_of("unique", axis, x.rank)
        shape = (*x.shape[:place], count, *x.shape[place + 1 :])
        members = x.shape[place]
    found = TensorType(i64, (count,))
    return x.with_shape(shape), found, TensorType(i64, (members,)), found


@unique.samples
def _() -> Iterator[Sample]:
    fresh = dims.symbol("found")
    for ordered in (True, False):
        yield Sample((array(2, 1, 1, 3, 4, 3, dtype=i32),), {"sorted": ordered, "count": fresh})
        yield Sample((draw(4, 3, dtype=i32, low=0, high=1),), {"axis": 0, "sorted": ordered, "count": fresh})
        yield Sample((draw(2, 4, dtype=i32, low=0, high=1),), {"axis": -1, "sorted": ordered, "count": fresh})
    yield refused((draw(3),), "axis 1 is out of range for rank 1", axis=1, count=fresh)
    yield refused((draw(3),), "got count -2, expected 0 or more", count=-2)


@opaque()
def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    /,
    *,
    limit: int,
    overlap: float,
    threshold: float | None = None,
    centred: bool = False,
    count: Dim,
) -> Tensor:
    """(batch, class, box) of the kept boxes: i64 [count, 3], by batch, class and descending score.

    boxes [batch, boxes, 4] are two corners (y, x, y, x), or (x, y, width, height) if `centred`; scores are
    [batch, classes, boxes]. A box is dropped when its score is not above `threshold` or when it overlaps a kept one of
    its class by more than `overlap` (intersection over union); at most `limit` are kept for each class.
    """
    kept: list[tuple[int, int, int]] = []
    for batch, kind in np.ndindex(*scores.shape[:2]):
        corners = _corners(boxes[batch], centred)
        chosen: list[int] = []
        for candidate in np.argsort(-scores[batch, kind], kind="stable"):
            if len(chosen) >= limit or (threshold is not None and not scores[batch, kind, candidate] > threshold):
                break
            if all(_overlap(corners[candidate], corners[other]) <= overlap for other in chosen):
                chosen.append(int(candidate))
        kept += [(batch, kind, box) for box in chosen]
    return np.asarray(kept, dtype=np.int64).reshape(-1, 3)


def _corners(boxes: Tensor, centred: bool) -> Tensor:
    """Boxes as (low, low, high, high)."""
    if centred:
        return np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], axis=1)
    return np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], axis=1)


def _overlap(left: Tensor, right: Tensor) -> float:
    """Intersection over union of two boxes; 0 where either has no area."""
    sides = np.minimum(left[2:], right[2:]) - np.maximum(left[:2], right[:2])
    shared = float(np.prod(np.maximum(sides, 0)))
    areas = [float(np.prod(box[2:] - box[:2])) for box in (left, right)]
    return shared / (areas[0] + areas[1] - shared) if min(areas) > 0 else 0.0


@non_max_suppression.infers
def _(
    boxes: TensorType, scores: TensorType, *, limit: int, overlap: float, threshold: float | None, centred: bool, count: Dim
) -> TensorType:
    _expect_size("non_max_suppression", count)
    expect_numbers("non_max_suppression", boxes, ("float",), "floats")
    same_dtype("non_max_suppression", boxes, scores)
    if boxes.rank != 3 or scores.rank != 3 or boxes.shape[2] != 4:
        raise VerifyError(
            f"non_max_suppression: got boxes {boxes} and scores {scores}, expected [batch, boxes, 4] and [batch, classes, boxes]"
        )
    for left, right in ((boxes.shape[0], scores.shape[0]), (boxes.shape[1], scores.shape[2])):
        if dims.equal(left, right) is not True:
            raise VerifyError(f"non_max_suppression: sizes {left} and {right} differ in boxes {boxes} and scores {scores}")
    return TensorType(i64, (count, 3))


@non_max_suppression.samples
def _() -> Iterator[Sample]:
    attrs = {"limit": 3, "overlap": 0.5, "count": dims.symbol("found")}
    corners = array(0, 0, 1, 1, 0, 0.1, 1, 1.1, 0, -0.1, 1, 0.9, 0, 10, 1, 11, 0, 10.1, 1, 11.1, 0, 100, 1, 101).reshape(1, 6, 4)
    scores = array(0.9, 0.75, 0.6, 0.95, 0.5, 0.3).reshape(1, 1, 6)
    yield Sample((corners, scores), attrs)
    yield Sample((corners, scores), {**attrs, "threshold": 0.4, "limit": 1})
    yield Sample((np.tile(corners, (2, 1, 1)), draw(2, 3, 6, low=0.0, high=1.0)), {**attrs, "centred": True})
    yield Sample((corners, scores), {**attrs, "limit": 0})
    yield refused((corners, scores[0]), "expected [batch, boxes, 4] and [batch, classes, boxes]", **attrs)
    yield refused((corners, scores[:, :, :5]), "sizes 6 and 5 differ", **attrs)


# --- order ------------------------------------------------------------------------------------------------------------


def _comparable(x: Tensor) -> Tensor:
    """The same numbers in a type of numpy's own: others have no place for NaN when they are sorted."""
    return x if x.dtype.isbuiltin == 1 else x.astype(np.float32)


def ordered(x: Tensor, axis: int, descending: bool) -> Tensor:
    """Indices that sort x along `axis`, stable both ways; NaN counts as the largest."""
    x = _comparable(x)
    if not descending:
        return x.argsort(axis=axis, kind="stable")
    # Sorting the reversed array and reversing the result keeps equal elements in their order.
    return np.flip(x.shape[axis] - 1 - np.flip(x, axis).argsort(axis=axis, kind="stable"), axis)


FEW = 4
"""Of so many times as many elements some are selected, without sorting all."""


def _selected(x: Tensor, count: int, largest: bool) -> Tensor:
    """The first `count` indices of `ordered` along the last axis. No two keys are equal: a number is followed by its place."""
    places = np.arange(x.shape[-1], dtype=np.uint64)
    keys = _in_order(x).astype(np.uint64) << np.uint64(32) | (places[::-1] if largest else places)
    kept: Tensor = keys[..., :0]
    if count and largest:
        kept = np.sort(np.partition(keys, -count, axis=-1)[..., -count:])[..., ::-1]
    elif count:
        kept = np.sort(np.partition(keys, count - 1, axis=-1)[..., :count])
    found: Tensor = kept.astype(np.uint32).astype(np.int64)
    return x.shape[-1] - 1 - found if largest else found


def _in_order(x: Tensor) -> Tensor:
    """Unsigned numbers of 32 bits that compare as numbers of at most so many do: both zeros alike, NaN above all."""
    if x.dtype.kind in "iu":
        return (x.astype(np.int64) + ((1 << 31) if x.dtype.kind == "i" else 0)).astype(np.uint32)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float32) + np.float32(0)
    bits = np.where(np.isnan(wide), np.float32(np.nan), wide).view(np.uint32)
    return np.where(bits >> 31 != 0, ~bits, bits | np.uint32(1 << 31))


@opaque()
def sort(x: Tensor, /, *, axis: int, descending: bool = False) -> tuple[Tensor, Tensor]:
    """x sorted along `axis`, and the i64 indices that sort it; equal elements keep their order, NaN is the largest.

    On GPUs it is kernels where `axis` has at most 1,024 elements, as `top_k` is.
    """
    order = ordered(x, axis, descending)
    return np.take_along_axis(x, order, axis), order.astype(np.int64)


@sort.infers
def _(x: TensorType, *, axis: int, descending: bool) -> tuple[TensorType, TensorType]:
    expect_numbers("sort", x, ("float", "int", "uint", "bool"), "an ordered dtype")
    axis_of("sort", axis, x.rank)
    return x, x.with_dtype(i64)


@opaque()
def top_k(x: Tensor, /, *, k: Dim, axis: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) elements along `axis` and their i64 indices, best first; of equal ones the first.

    NaN counts as the largest. Without `sorted` any order would do; it is the same one here. On GPUs it is kernels where `axis` is known to
    have at most 1,024 elements (pass `rank_lines`), on CPUs native code.
    """
    count = bound((k,))[0]
    if FEW * count <= x.shape[axis] and x.dtype.itemsize <= 4:
        order = np.moveaxis(_selected(np.moveaxis(x, axis, -1), count, largest), -1, axis)
    else:
        order = np.take(ordered(x, axis, largest), np.arange(count), axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int64)


@top_k.infers
def _(x: TensorType, *, k: Dim, axis: int, largest: bool, sorted: bool) -> tuple[TensorType, TensorType]:
    expect_numbers("top_k", x, ("float", "int", "uint"), "an ordered dtype")
    place = axis_of("top_k", axis, x.rank)
    if dims.at_most(0, k) is False or dims.at_most(k, x.shape[place]) is False:
        raise VerifyError(f"top_k: got k = {k}, expected 0 to {x.shape[place]} for axis {axis} of {x}")
    result = x.with_shape((*x.shape[:place], k, *x.shape[place + 1 :]))
    return result, result.with_dtype(i64)


@opaque()
def search_sorted(boundaries: Tensor, x: Tensor, /, *, right: bool = False) -> Tensor:
    """For each element of x the i64 index at which it would be inserted into the ascending vector `boundaries`:
    before equal ones, or after them with `right`. Found by bisection, which says what comes of a vector that does not ascend; NaN
    counts as the largest.
    """
    held, wanted = _comparable(boundaries), _comparable(x)
    low, high = np.zeros(x.shape, np.int64), np.full(x.shape, boundaries.size, np.int64)
    while (is_open := low < high).any():
        middle = (low + high) // 2
        found = held[np.minimum(middle, boundaries.size - 1)]
        is_behind = ~_precedes(wanted, found) if right else _precedes(found, wanted)
        low, high = np.where(is_open & is_behind, middle + 1, low), np.where(is_open & ~is_behind, middle, high)
    return np.asarray(low, np.int64)


def _precedes(first: Tensor, second: Tensor) -> Tensor:
    """Where a number comes before another one: NaN behind all others."""
    is_less: Tensor = np.less(first, second)
    return is_less | (np.isnan(second) & ~np.isnan(first)) if first.dtype.kind == "f" else is_less


@search_sorted.infers
def _(boundaries: TensorType, x: TensorType, *, right: bool) -> TensorType:
    same_dtype("search_sorted", boundaries, x)
    expect_numbers("search_sorted", x, ("float", "int", "uint"), "an ordered dtype")
    if boundaries.rank != 1:
        raise VerifyError(f"search_sorted: got boundaries {boundaries}, expected a vector")
    return x.with_dtype(i64)


@sort.samples
def _() -> Iterator[Sample]:
    for x in (
        draw(3, 5),
        draw(6, dtype=i32, low=0, high=2),
        specials(),
        draw(4, dtype=f16),
        draw(0, 3),
        draw(3, 0),
        draw(4, dtype=boolean),
    ):
        yield Sample((x,), {"axis": -1})
        yield Sample((x,), {"axis": 0, "descending": True})
    yield refused((draw(3),), "axis 1 is out of range for rank 1", axis=1)
    yield refused((np.asarray(["a"], dtype=object),), "got string[1], expected an ordered dtype", axis=0)


@top_k.samples
def _() -> Iterator[Sample]:
    for x in (draw(3, 5), draw(6, dtype=i32, low=0, high=2), specials(), draw(4, dtype=f16)):
        for largest in (True, False):
            yield Sample((x,), {"k": 2, "largest": largest})
            yield Sample((x,), {"k": x.shape[0], "axis": 0, "largest": largest})
    yield Sample((draw(3, 5),), {"k": 0})
    for few in (
        draw(3, 40),
        draw(3, 40, dtype=i32, low=-3, high=3),
        np.tile(specials(), 3),
        draw(40, dtype=f16),
        draw(40, dtype=u8, low=0, high=4),
    ):
        for largest in (True, False):
            yield Sample((few,), {"k": 5, "largest": largest})
    yield refused((draw(3),), "got k = 4, expected 0 to 3 for axis -1 of f32[3]", k=4)
    yield refused((draw(3, dtype=boolean),), "got bool[3], expected an ordered dtype", k=1)


@search_sorted.samples
def _() -> Iterator[Sample]:
    boundaries = array(-2.0, 0.0, 0.0, 1.5)
    for right in (False, True):
        yield Sample((boundaries, array(-3.0, 0.0, 1.0, 1.5, 9.0)), {"right": right})
        yield Sample((array(3.0, -1.0, np.nan, 0.5, 0.0, 2.0, -4.0), array(-5.0, 0.0, 1.0, 2.5, np.nan, np.inf)), {"right": right})
    yield Sample((array(1, 3, dtype=i32), draw(2, 3, dtype=i32)))
    yield Sample((draw(0), draw(2)))
    yield refused((draw(2, 2), draw(2)), "got boundaries f32[2, 2], expected a vector")
    yield refused((boundaries, draw(2, dtype=i32)), "operand dtypes differ: got f32 and i32")


# --- strings ----------------------------------------------------------------------------------------------------------


def _expect_strings(op: str, *operands: TensorType) -> None:
    for x in operands:
        expect_numbers(op, x, ("string",), "strings")


def _same_shape(op: str, x: TensorType, y: TensorType) -> TensorType:
    _expect_strings(op, x, y)
    return x.with_shape(broadcast(op, x.shape, y.shape))


@opaque(onnx="StringConcat")
def string_concat(x: Tensor, y: Tensor, /) -> Tensor:
    """x followed by y, element by element."""
    return np.asarray(np.add(x.astype(object), y.astype(object)), dtype=object)


@string_concat.infers
def _(x: TensorType, y: TensorType) -> TensorType:
    return _same_shape("string_concat", x, y)


@opaque()
def string_equal(x: Tensor, y: Tensor, /) -> Tensor:
    """Whether strings are equal, element by element."""
    return np.asarray(x == y, dtype=np.bool_)


@string_equal.infers
def _(x: TensorType, y: TensorType) -> TensorType:
    return _same_shape("string_equal", x, y).with_dtype(boolean)


def _strings() -> Iterator[Sample]:
    words = np.asarray([["a", "b"], ["", "ä"]], dtype=object)
    yield Sample((words, words[::-1].copy()))
    yield Sample((words, np.asarray("b", dtype=object)))
    yield Sample((np.zeros(0, dtype=object), np.zeros(0, dtype=object)))
    yield refused((words, draw(2)), "got f32[2], expected strings")
    yield refused((words, np.asarray(["a"] * 3, dtype=object)), "sizes 2 and 3 do not broadcast")


string_concat.samples(_strings)
string_equal.samples(_strings)
