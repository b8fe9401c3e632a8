"""Rules of gathers whose indices are known: ranges become slices, one index becomes a row."""

from __future__ import annotations

import numpy as np

from ...ir import dims
from ...ir.dims import Dim
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Rule
from ..match import UNIFORM_LIMIT, Replacement, matched, operand, producer, same_shape, uniform
from ..progressions import Progression, progression


class TakeOfRange(Rule):
    """take(x, start + step * i) -> slice(x), where the indices are known to lie within x"""

    ops = ("take",)

    def check(self, op: Op, module: Module) -> str | None:
        indices, found = operand(op, 1), progression(op.operands[1])
        if found is None:
            return "the indices are no progression"
        size = operand(op, 0).shape[op.attrs["axis"] % operand(op, 0).type.rank]
        last = found.start + (indices.shape[found.axis] - 1) * found.step
        low, high = (found.start, last) if found.step > 0 else (last, found.start)
        inside = dims.at_most(0, low, module.facts) is True and dims.at_most(high, size - 1, module.facts) is True
        return None if inside else "the indices are not known to lie within the operand"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        x, indices, found = operand(op, 0), operand(op, 1), progression(op.operands[1])
        if found is None:
            return op.result
        axis = op.attrs["axis"] % x.type.rank
        count = indices.shape[found.axis]
        rank = range(x.type.rank)
        taken = g.slice(
            x,
            starts=tuple(found.start if n == axis else 0 for n in rank),
            sizes=tuple(count if n == axis else x.shape[n] for n in rank),
            steps=tuple(found.step if n == axis else 1 for n in rank),
        )
        ones = tuple(count if n == found.axis else 1 for n in range(indices.type.rank))
        return _spread(taken, (*x.shape[:axis], *ones, *x.shape[axis + 1 :]), op, g)


class TakeOfRepeats(Rule):
    """take(x, start + step * (i // count)) -> reshape(broadcast_to(slice(x))): each of a range several times, as nearest resizing does"""

    ops = ("take",)

    def check(self, op: Op, module: Module) -> str | None:
        found = _repeats(op.operands[1])
        if found is None:
            return "the indices are no range of which each is there equally often"
        first, last = found[0], found[0] + (found[2] - 1) * found[1]
        size = operand(op, 0).shape[op.attrs["axis"] % operand(op, 0).type.rank]
        inside = min(first, last) >= 0 and dims.at_most(max(first, last) + 1, size, module.facts) is True
        return None if inside else "the indices are not known to lie within the operand"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        x, found = operand(op, 0), _repeats(op.operands[1])
        if found is None:
            return op.result
        start, step, count, times = found
        axis, rank = op.attrs["axis"] % x.type.rank, range(x.type.rank)
        taken = g.slice(
            x,
            starts=tuple(start if n == axis else 0 for n in rank),
            sizes=tuple(count if n == axis else x.shape[n] for n in rank),
            steps=tuple(step if n == axis else 1 for n in rank),
        )
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        apart = g.reshape(taken, shape=(*before, count, 1, *after))
        return g.reshape(g.broadcast_to(apart, shape=(*before, count, times, *after)), shape=op.result.shape)


def _repeats(value: Value | None) -> tuple[int, int, int, int] | None:
    """(start, step, count, times) of constant indices that are a progression of which each number stands there so many times in a row."""
    if value is None or value.constant is None or not value.constant.available or value.type.rank != 1:
        return None
    if not isinstance(value.type.elements, int) or not 4 <= value.type.elements <= UNIFORM_LIMIT:
        return None
    array = np.asarray(value.constant.array).astype(np.int64)
    changes = np.flatnonzero(np.diff(array))
    times = int(changes[0]) + 1 if changes.size else 0
    if times < 2 or array.size % times:
        return None
    start, step, count = int(array[0]), int(array[times] - array[0]), array.size // times
    return (start, step, count, times) if np.array_equal(array, np.repeat(start + step * np.arange(count), times)) else None


class TakeOfOne(Rule):
    """take(x, indices) -> broadcast_to(slice(x)), where all indices are one known number"""

    ops = ("take",)

    def check(self, op: Op, module: Module) -> str | None:
        index = uniform(op.operands[1])
        size = operand(op, 0).shape[op.attrs["axis"] % operand(op, 0).type.rank]
        if not isinstance(index, int) or isinstance(index, bool):
            return "the indices are not one number"
        inside = dims.at_most(0, index) is True and dims.at_most(index + 1, size, module.facts) is True
        return None if inside else "the index is not known to lie within the operand"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        x, indices, index = operand(op, 0), operand(op, 1), int(uniform(op.operands[1]) or 0)
        axis, rank = op.attrs["axis"] % x.type.rank, range(x.type.rank)
        row = g.slice(
            x,
            starts=tuple(index if n == axis else 0 for n in rank),
            sizes=tuple(1 if n == axis else x.shape[n] for n in rank),
            steps=(1,) * x.type.rank,
        )
        return _spread(row, (*x.shape[:axis], *[1] * indices.type.rank, *x.shape[axis + 1 :]), op, g)


def _spread(value: Value, shape: tuple[Dim, ...], op: Op, g: Builder) -> Value:
    """`value` with dimensions of size 1 put in to have `shape`, then repeated to the shape of the op's result."""
    result = value if value.shape == shape else g.reshape(value, shape=shape)
    return result if result.shape == op.result.shape else g.broadcast_to(result, shape=op.result.shape)


class GatherOfEverything(Rule):
    """gather_nd(x, (0, 0), (0, 1) ..) -> x, where every element is gathered to its own place"""

    ops = ("gather_nd",)

    def check(self, op: Op, module: Module) -> str | None:
        if op.attrs["batch_dims"] != 0 or not same_shape(operand(op, 0).shape, op.result.shape, module):
            return "the shapes differ, or there are batch dimensions"
        return None if _own_places(operand(op, 1)) else "the indices are not the elements' own places"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return operand(op, 0)


def _own_places(indices: Value) -> bool:
    count = indices.shape[-1]
    if indices.type.rank - 1 != count:
        return False
    elements = indices.type.elements
    if indices.constant is not None and indices.constant.available and isinstance(elements, int) and elements <= UNIFORM_LIMIT:
        array = np.asarray(indices.constant.array)
        return bool(np.array_equal(array, np.moveaxis(np.indices(array.shape[:-1]), 0, -1)))
    joined = producer(indices, "concat")
    if joined is None or joined.attrs["axis"] % indices.type.rank != count or len(joined.operands) != count:
        return False
    return all(_own_place(part, axis) for axis, part in enumerate(joined.operands))


def _own_place(part: Value | None, axis: int) -> bool:
    """Whether indices count along an axis; along one of size 1 they are all 0."""
    if part is not None and part.shape[axis] == 1:
        return uniform(part) == 0
    return progression(part) == Progression(axis, 0, 1)


class ReadOfIota(Rule):
    """slice(iota) -> iota, where it starts at 0 in steps of 1"""

    ops = ("slice",)

    def check(self, op: Op, module: Module) -> str | None:
        if producer(op.operands[0], "iota") is None:
            return "the operand is no iota"
        return None if progression(op.result) == progression(op.operands[0]) else "the slice starts elsewhere or has steps"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        made = matched(op.operands[0], "iota")
        return g.iota(**{**made.attrs, "shape": op.result.shape})


RULES: tuple[Rule, ...] = (TakeOfRange(), TakeOfRepeats(), TakeOfOne(), GatherOfEverything(), ReadOfIota())
