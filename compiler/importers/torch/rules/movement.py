"""Rules for views, concatenation, slices and padding: memory is never shared, so a view is its value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .....ir import dims
from .....ir.dims import Dim
from .....ir.graph import Value
from .....ir.types import boolean, i64
from ..context import Node, Number, aten, python_number


@aten("view.default", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "_reshape_alias", "view_copy.default")
def _reshape(n: Node, x: Value, *_: Any) -> Value:
    return n.reshape(x, n.shape)


@aten("expand")
def _expand(n: Node, x: Value, *_: Any, **__: Any) -> Value:
    return n.expand(x, n.shape)


@aten("permute")
def _permute(n: Node, x: Value, order: tuple[int, ...]) -> Value:
    return n.permute(x, [n.axis(axis, x.type.rank) for axis in order])


@aten("transpose.int")
def _transpose(n: Node, x: Value, first: int, second: int) -> Value:
    order = list(range(x.type.rank))
    if order:
        first, second = n.axis(first, len(order)), n.axis(second, len(order))
        order[first], order[second] = second, first
    return n.permute(x, order)


@aten("t", "numpy_T")
def _t(n: Node, x: Value) -> Value:
    return n.permute(x, tuple(reversed(range(x.type.rank))))


@aten("select.int")
def _select(n: Node, x: Value, axis: int, index: Any) -> Value:
    axis = n.axis(axis, x.type.rank)
    x, place = n.with_index(x, axis, index)
    return n.reshape(n.slice(x, axis, place, 1), n.shape)


@aten("slice.Tensor")
def _slice(n: Node, x: Value, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    axis = n.axis(axis, x.type.rank)
    first, size = slice_start(n, x, axis, start), n.shape[axis]
    # Tracing made the size a number (`narrow`): then the call's axis must have as many.
    whole = isinstance(size, int) and size > 0 and isinstance(step, int)
    return n.slice(n.with_place(x, axis, first + (size - 1) * step) if whole else x, axis, first, size, step)


def slice_start(n: Node, x: Value, axis: int, start: Any) -> Dim:
    """The first index of a slice, counted from the front and clamped."""
    size = x.shape[axis]
    if start is None:
        return 0
    place = n.index(start, size)
    return dims.simplify(dims.minimum(dims.maximum(place, 0), size), n.facts)


@aten("cat")
def _cat(n: Node, xs: tuple[Value, ...], axis: int = 0) -> Value:
    # An empty vector joins tensors of any rank: torch's oldest exception.
    kept = [n.cast(x, n.dtype) for x in xs if not (x.shape == (0,) and len(n.shape) != 1)]
    if not kept:
        raise n.fail("there is nothing to join")
    result: Value = kept[0] if len(kept) == 1 else n.b.concat(*kept, axis=n.axis(axis, len(n.shape)))
    return result


@aten("stack")
def _stack(n: Node, xs: tuple[Value, ...], axis: int = 0) -> Value:
    axis = n.axis(axis, len(n.shape))
    parts = [n.reshape(n.cast(x, n.dtype), (*x.shape[:axis], 1, *x.shape[axis:])) for x in xs]
    result: Value = n.b.concat(*parts, axis=axis)
    return result


@aten("split_with_sizes", "split.Tensor", "split_with_sizes_copy.default", "split_copy.Tensor", "chunk")
def _split(n: Node, x: Value, sizes: Any, axis: int = 0, **_: Any) -> list[Value]:
    axis = n.axis(axis, x.type.rank)
    parts: list[Value] = []
    start: Dim = 0
    for result in n.results:
        if result is None:
            raise n.fail("a part is not a tensor")
        parts.append(n.slice(x, axis, start, result.shape[axis]))
        start = start + result.shape[axis]
    return parts


@aten("unbind.int")
def _unbind(n: Node, x: Value, axis: int = 0) -> list[Value]:
    axis = n.axis(axis, x.type.rank)
    return [n.reshape(n.slice(x, axis, place, 1), n.shape) for place in range(len(n.results))]


@aten("flip")
def _flip(n: Node, x: Value, axes: tuple[int, ...]) -> Value:
    for axis in (n.axis(axis, x.type.rank) for axis in axes if x.type.rank):
        if x.shape[axis] != 0:
            x = n.slice(x, axis, x.shape[axis] - 1, x.shape[axis], -1)
    return x


@aten("roll")
def _roll(n: Node, x: Value, shifts: tuple[Any, ...], axes: tuple[int, ...] = ()) -> Value:
    if not axes:
        flat = n.reshape(x, (x.type.elements,))
        return n.reshape(_rolled(n, flat, shifts[0], 0), x.shape)
    for shift, axis in zip(shifts, axes, strict=True):
        if x.type.rank:
            x = _rolled(n, x, shift, n.axis(axis, x.type.rank))
    return x


def _rolled(n: Node, x: Value, shift: Any, axis: int) -> Value:
    size = x.shape[axis]
    cut = -shift % dims.maximum(size, 1)
    if cut == 0:
        return x
    result: Value = n.b.concat(n.slice(x, axis, cut, size - cut), n.slice(x, axis, 0, cut), axis=axis)
    return result


@aten("repeat", "tile")
def _repeat(n: Node, x: Value, repeats: tuple[Any, ...]) -> Value:
    rank = len(n.shape)
    counts = (1,) * (rank - len(repeats)) + tuple(repeats)
    sizes = (1,) * (rank - x.type.rank) + x.shape
    if any(count == 0 for count in counts):
        result: Value = n.b.full(shape=n.shape, value=python_number(0, n.dtype), dtype=n.dtype)
        return result
    split = tuple(size for pair in zip([1] * rank, sizes, strict=True) for size in pair)
    wide = tuple(size for pair in zip(counts, sizes, strict=True) for size in pair)
    return n.reshape(n.expand(n.reshape(x, split), wide), n.shape)


def _pads(x: Value, amounts: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Torch's amounts (last axis first) as before and after of every axis."""
    before: list[Any] = [0] * x.type.rank
    after: list[Any] = [0] * x.type.rank
    for place in range(len(amounts) // 2):
        before[-1 - place], after[-1 - place] = amounts[2 * place], amounts[2 * place + 1]
    return tuple(before), tuple(after)


@aten("constant_pad_nd")
def _constant_pad(n: Node, x: Value, amounts: tuple[Any, ...], value: Any = 0) -> Value:
    before, after = _pads(x, amounts)
    if isinstance(value, (dims.Expr, Number)):
        # The value is no attribute: it is chosen where padding says so.
        outside = n.b.pad(n.b.full(shape=x.shape, value=False, dtype=boolean), before=before, after=after, mode="constant", value=1)
        chosen: Value = n.b.where(outside, n.value(value, n.dtype), n.b.pad(x, before=before, after=after, mode="constant", value=0))
        return chosen
    result: Value = n.b.pad(x, before=before, after=after, mode="constant", value=python_number(value, n.dtype))
    return result


@aten(*(f"{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)))
def _pad(n: Node, x: Value, amounts: tuple[Any, ...]) -> Value:
    before, after = _pads(x, amounts)
    reflects = ".reflection" in n.operator
    for axis, ends in enumerate(zip(before, after, strict=True)):
        if ends != (0, 0):
            # A reflection leaves the edge out, so it reaches one element further in.
            x = n.with_place(x, axis, dims.simplify(dims.maximum(dims.maximum(*ends), 0), n.facts) if reflects else 0)
    result: Value = n.b.pad(x, before=before, after=after, mode="reflect" if reflects else "edge")
    return result


@aten("diagonal")
def _diagonal(n: Node, x: Value, offset: int = 0, first: int = 0, second: int = 1) -> Value:
    first, second = n.axis(first, x.type.rank), n.axis(second, x.type.rank)
    rest = [axis for axis in range(x.type.rank) if axis not in (first, second)]
    moved = n.permute(x, [*rest, first, second])
    rows, columns = moved.shape[-2:]
    flat = n.reshape(moved, (*moved.shape[:-2], rows * columns))
    if n.shape[-1] == 0:
        return n.slice(flat, len(rest), 0, 0)
    if not isinstance(columns, int):
        raise n.fail(f"steps by the symbolic size {columns}")
    return n.slice(flat, len(rest), offset if offset >= 0 else -offset * columns, n.shape[-1], columns + 1)


@aten("diagonal_scatter")
def _diagonal_scatter(n: Node, x: Value, update: Value, offset: int = 0, first: int = 0, second: int = 1) -> Value:
    """A choice by place: a row's element of the diagonal, if it has one, stands `offset` columns after its own number."""
    first, second = n.axis(first, x.type.rank), n.axis(second, x.type.rank)
    order = [axis for axis in range(x.type.rank) if axis not in (first, second)] + [first, second]
    moved = n.permute(x, order)
    rows, columns = moved.shape[-2:]
    if update.shape[-1] == 0:
        return x
    row = n.b.iota(shape=(rows, columns), axis=0, dtype=i64)
    wanted = n.b.add(row, n.value(offset, i64))
    mask = n.b.eq(n.b.iota(shape=(rows, columns), axis=1, dtype=i64), wanted)
    place = n.b.iota(shape=(rows,), axis=0, dtype=i64)
    place = n.b.add(place, n.value(min(offset, 0), i64))
    last = n.b.sub(n.value(update.shape[-1], i64), n.value(1, i64))
    place = n.b.minimum(n.b.maximum(place, n.value(0, i64)), last)
    spread = n.b.take(n.cast(update, n.dtype), place, axis=update.type.rank - 1)
    result = n.b.where(mask, n.reshape(spread, (*spread.shape, 1)), moved)
    return n.permute(result, [order.index(axis) for axis in range(x.type.rank)])


@aten("slice_scatter")
def _slice_scatter(n: Node, x: Value, update: Value, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    axis = n.axis(axis, x.type.rank)
    if update.shape == x.shape:
        return n.cast(update, n.dtype)
    first = slice_start(n, x, axis, start)
    # Where only a call decides on the first, tracing need not have asked whether all are there.
    end = dims.simplify(dims.maximum(first + (update.shape[axis] - 1) * step + 1, 0), n.facts)
    return _put(n, n.with_places(x, axis, end), update, axis, first, step)


@aten("select_scatter")
def _select_scatter(n: Node, x: Value, update: Value, axis: int, index: Any) -> Value:
    axis = n.axis(axis, x.type.rank)
    part = n.reshape(update, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    x, place = n.with_index(x, axis, index)
    return _put(n, x, part, axis, place, 1)


def _put(n: Node, x: Value, update: Value, axis: int, start: Dim, step: int) -> Value:
    if not isinstance(step, int):
        raise n.fail(f"steps by {step}, which only a call decides")
    starts = tuple(start if a == axis else 0 for a in range(x.type.rank))
    result: Value = n.b.put_slice(
        x, n.cast(update, n.dtype), starts=starts, steps=tuple(step if a == axis else 1 for a in range(x.type.rank))
    )
    return result


@aten("as_strided", "as_strided_copy.default")
def _as_strided(n: Node, x: Value, size: tuple[Any, ...], stride: tuple[Any, ...], offset: Any = None) -> Value:
    """Another view of all that a dense tensor's memory holds: its elements in the order of memory, and those permuted."""
    memory = n.given[0]
    begin, strides = n.symbols.dim(memory.storage_offset()), n.symbols.shape(memory.stride())
    before, after = _memory_order(n, x.shape, strides), _memory_order(n, size, stride)
    same = dims.equal(x.type.elements, dims.product(size), n.facts) is True
    if before is None or after is None or not same or dims.equal(begin if offset is None else offset, begin, n.facts) is not True:
        raise n.fail("strides of memory have no meaning in a program of values")
    ordered = n.reshape(n.permute(x, before), [size[axis] for axis in after])
    return n.permute(ordered, [after.index(axis) for axis in range(len(after))])


def _memory_order(n: Node, sizes: Sequence[Dim], strides: Sequence[Dim]) -> list[int] | None:
    """The axes from the outermost to the innermost in memory; None where these strides do not lay elements out side by side."""
    placed: list[int] = [axis for axis, size in enumerate(sizes) if size == 1]
    step: Dim = 1
    while len(placed) < len(sizes):
        inner = [axis for axis in range(len(sizes)) if axis not in placed and dims.equal(strides[axis], step, n.facts) is True]
        if not inner:
            return None
        placed.append(inner[-1])
        step = step * sizes[inner[-1]]
    return placed[::-1]
