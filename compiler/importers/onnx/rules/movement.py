"""Rules that move elements without computing: transpose, concatenation, slices, padding, blocks of space."""

from __future__ import annotations

from .....ir import dims
from .....ir.dims import Dim
from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.types import LARGEST, boolean, i64
from ... import moves
from ..context import Node, rule


@rule("Transpose")
def _transpose(n: Node) -> Value:
    x = n.x()
    permutation = n.attr_ints("perm") or tuple(reversed(range(x.type.rank)))
    permutation = n.axes(permutation, x.type.rank)
    if len(permutation) != x.type.rank:
        raise n.fail(f"perm has {len(permutation)} axes, expected {x.type.rank}")
    return transpose(n, x, permutation)


def transpose(n: Node, x: Value, permutation: tuple[int, ...]) -> Value:
    """x with its axes in another order; itself where that is the same."""
    return moves.transpose(n.b, x, permutation)


@rule("Concat")
def _concat(n: Node) -> Value:
    xs = n.xs()
    axis = n.axis(n.attr_int("axis", 1), xs[0].type.rank)
    if len(xs) == 1:
        return xs[0]
    result: Value = n.b.concat(*xs, axis=axis)
    return result


@rule("Split")
def _split(n: Node) -> list[Value]:
    x = n.x()
    axis = n.axis(n.attr_int("axis"), x.type.rank)
    size = x.shape[axis]
    if n.opset < 13:
        parts: tuple[Dim, ...] | None = n.attr_ints("split")
    else:
        parts = n.sizes(1, "the split") if n.given(1) else None
    if parts is None:
        parts = even_parts(n, size, n.attr_int("num_outputs", len(n.outputs)))
    if dims.equal(_total(parts), size, n.facts) is False:
        raise n.fail(f"parts {[str(p) for p in parts]} do not add up to size {size}")
    results = []
    begin: Dim = 0
    for part in parts:
        # Each part must be there, whatever becomes of the others.
        for edge in (begin, begin + part):
            x = moves.with_places(n.b, x, axis, edge)
        results.append(slice_axis(n, x, axis, begin, part))
        begin = begin + part
    return results


def _total(parts: tuple[Dim, ...]) -> Dim:
    total: Dim = 0
    for part in parts:
        total = total + part
    return total


def even_parts(n: Node, size: Dim, count: int) -> tuple[Dim, ...]:
    """`size` in `count` equal parts, the last one smaller where it does not divide."""
    if count < 1 or count > 100_000:
        raise n.fail(f"cannot split into {count} parts")
    if not isinstance(size, int):
        part = dims.simplify(size // count, n.facts)
        if dims.equal(part * count, size, n.facts) is not True:
            raise UnsupportedError(f"size {size} is not known to divide by {count}", hint="fix that size at import (shapes)")
        return (part,) * count
    part = -(-size // count)
    return (*(part,) * (count - 1), size - part * (count - 1))


def slice_axis(n: Node, x: Value, axis: int, start: Dim, size: Dim, step: int = 1) -> Value:
    """`size` elements of one axis from `start` on."""
    return moves.slice_axis(n.b, x, axis, start, size, step)


@rule("Slice")
def _slice(n: Node) -> Value:
    x = n.x()
    rank = x.type.rank
    if n.opset < 10:
        starts: tuple[Dim, ...] = n.attr_ints("starts") or ()
        ends: tuple[Dim, ...] = n.attr_ints("ends") or ()
        axes = n.attr_ints("axes") or tuple(range(len(starts)))
        steps = (1,) * len(starts)
    else:
        starts, ends = n.sizes(1, "the start"), n.sizes(2, "the end")
        axes = n.integers(3, "axes") if n.given(3) else tuple(range(len(starts)))
        steps = n.integers(4, "the step") if n.given(4) else (1,) * len(starts)
    axes = n.axes(axes, rank)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise n.fail(f"got {len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps, expected as many of each")
    begin: list[Dim] = [0] * rank
    sizes: list[Dim] = list(x.shape)
    strides = [1] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise n.fail("step is 0")
        # No dimension is longer, so that one element is all there is either way.
        step = max(-LARGEST, min(step, LARGEST))
        begin[axis], sizes[axis] = slice_bounds(n, start, end, step, x.shape[axis])
        strides[axis] = step
    if tuple(sizes) == x.shape and all(s == 1 for s in strides):
        return x
    result: Value = n.b.slice(x, starts=tuple(begin), sizes=tuple(sizes), steps=tuple(strides))
    return result


def slice_bounds(n: Node, start: Dim, end: Dim, step: int, size: Dim) -> tuple[Dim, Dim]:
    """First index and count of a slice, clamped as numpy does it."""
    # Going backwards, an end in front of the first element is -1 and a start there is the first element itself.
    high = size if step > 0 else size - 1
    first = _clamped(n, start, size, 0, high)
    last = _clamped(n, end, size, 0 if step > 0 else -1, high)
    distance = last - first if step > 0 else first - last
    count = dims.simplify(dims.maximum(dims.ceil_div(distance, abs(step)), 0), n.facts)
    if count == 0:
        first = 0
    return first, count


def _clamped(n: Node, index: Dim, size: Dim, low: Dim, high: Dim) -> Dim:
    """An index counted from the end where negative, within low..high."""
    negative = dims.at_most(index, -1, n.facts)
    if negative is None and dims.at_most(0, index, n.facts) is not True:
        raise UnsupportedError(f"bound {index} may be negative or not", hint="give the range of its symbols at import (shapes)")
    if negative and not (isinstance(index, int) and index < -(1 << 40)):
        index = index + size
    elif negative:
        return low
    if isinstance(index, int) and index > 1 << 40:
        return high
    return dims.simplify(dims.minimum(dims.maximum(index, low), high), n.facts)


# --- padding ----------------------------------------------------------------------------------------------------------

PAD_MODES = {"constant": "constant", "edge": "edge", "reflect": "reflect", "wrap": "wrap"}


@rule("Pad")
def _pad(n: Node) -> Value:
    x = n.x()
    rank = x.type.rank
    mode = n.attr_string("mode", "constant")
    if mode not in PAD_MODES:
        raise n.fail(f"mode {mode!r} is not known, expected one of {', '.join(PAD_MODES)}")
    fill: Value | None = None
    if n.opset < 11:
        pads: tuple[Dim, ...] = n.attr_ints("pads") or n.attr_ints("paddings") or ()
        value = n.attr_float("value")
    else:
        pads, value = n.sizes(1, "the padding"), 0.0
        fill = n.optional(2)
    axes = n.axes(n.integers(3, "axes"), rank) if n.given(3) else tuple(range(rank))
    if len(pads) != 2 * len(axes):
        raise n.fail(f"got {len(pads)} pads, expected two for each of {len(axes)} axes")
    before: list[Dim] = [0] * rank
    after: list[Dim] = [0] * rank
    for position, axis in enumerate(axes):
        before[axis], after[axis] = pads[position], pads[position + len(axes)]
    if fill is not None and mode == "constant":
        return _pad_with(n, x, tuple(before), tuple(after), fill)
    for axis in range(rank) if mode != "constant" else ():
        x = x if before[axis] == after[axis] == 0 else moves.with_place(n.b, x, axis)
    result: Value = n.b.pad(x, before=tuple(before), after=tuple(after), mode=mode, value=_number(value, x))
    return result


def _number(value: float, x: Value) -> float | int | bool:
    return bool(value) if x.dtype.kind == "bool" else int(value) if x.dtype.is_integer else value


def _pad_with(n: Node, x: Value, before: tuple[Dim, ...], after: tuple[Dim, ...], fill: Value) -> Value:
    array = n.b.array_of(fill)
    if array is not None and array.size == 1 and x.dtype.kind != "complex":
        result: Value = n.b.pad(x, before=before, after=after, mode="constant", value=_number(array.reshape(-1)[0].item(), x))
        return result
    # A computed fill: pad a mask beside it.
    inside = n.b.pad(n.b.full(shape=x.shape, value=True, dtype=boolean), before=before, after=after, mode="constant", value=False)
    padded = n.b.pad(x, before=before, after=after, mode="constant", value=_number(0.0, x))
    result = n.b.where(inside, padded, n.b.reshape(fill, shape=()))
    return result


# --- blocks of space --------------------------------------------------------------------------------------------------


@rule("DepthToSpace")
def _depth_to_space(n: Node) -> Value:
    x, block = n.x(), n.attr_int("blocksize", 1)
    if x.type.rank != 4 or block < 1:
        raise n.fail(f"got rank {x.type.rank} and block size {block}, expected rank 4 and a positive block size")
    batch, depth, height, width = x.shape
    groups = depth // (block * block)
    if n.attr_string("mode", "DCR") == "DCR":
        split: tuple[Dim, ...] = (batch, block, block, groups, height, width)
        order = (0, 3, 4, 1, 5, 2)
    else:
        split = (batch, groups, block, block, height, width)
        order = (0, 1, 4, 2, 5, 3)
    moved = n.b.transpose(n.b.reshape(x, shape=split), permutation=order)
    result: Value = n.b.reshape(moved, shape=(batch, groups, height * block, width * block))
    return result


@rule("SpaceToDepth")
def _space_to_depth(n: Node) -> Value:
    x, block = n.x(), n.attr_int("blocksize", 1)
    if x.type.rank != 4 or block < 1:
        raise n.fail(f"got rank {x.type.rank} and block size {block}, expected rank 4 and a positive block size")
    batch, depth, height, width = x.shape
    split = (batch, depth, height // block, block, width // block, block)
    order = (0, 3, 5, 1, 2, 4) if n.attr_string("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    moved = n.b.transpose(n.b.reshape(x, shape=split), permutation=order)
    result: Value = n.b.reshape(moved, shape=(batch, depth * block * block, height // block, width // block))
    return result


@rule("Trilu")
def _trilu(n: Node) -> Value:
    x = n.x()
    if x.type.rank < 2:
        raise n.fail(f"input has rank {x.type.rank}, expected at least 2")
    rows, columns = (n.b.iota(shape=x.shape[-2:], axis=axis, dtype=i64) for axis in (0, 1))
    diagonal, first = n.b.sub(columns, rows), n.b.reshape(n.x(1), shape=()) if n.given(1) else n.b.scalar(0, i64)
    kept = n.b.ge(diagonal, first) if n.attr_flag("upper", True) else n.b.le(diagonal, first)
    result: Value = n.b.where(kept, x, n.b.scalar(0, x.dtype))
    return result


@rule("ReverseSequence")
def _reverse_sequence(n: Node) -> Value:
    x, lengths = n.x(0), n.x(1)
    batch_axis, time_axis = n.axis(n.attr_int("batch_axis", 1), x.type.rank), n.axis(n.attr_int("time_axis", 0), x.type.rank)
    if {batch_axis, time_axis} != {0, 1}:
        raise n.fail(f"axes are {batch_axis} and {time_axis}, expected 0 and 1")
    shape = tuple(size if axis in (0, 1) else 1 for axis, size in enumerate(x.shape))
    time = n.b.iota(shape=shape, axis=time_axis, dtype=i64)
    length = n.b.reshape(
        n.b.cast(lengths, dtype=i64), shape=tuple(x.shape[batch_axis] if a == batch_axis else 1 for a in range(x.type.rank))
    )
    index = n.b.where(n.b.lt(time, length), n.b.sub(n.b.sub(length, time), 1), time)
    result: Value = n.b.take_along_axis(x, n.b.broadcast_to(index, shape=x.shape), axis=time_axis)
    return result
