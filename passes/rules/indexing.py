"""Rules of gathers whose indices are known: ranges become slices, one index becomes a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...ir import dims
from ...ir.dims import Dim
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Rule
from ...ir.ops.rounding import holds
from ..match import UNIFORM_LIMIT, Replacement, matched, operand, producer, same_shape, uniform


@dataclass(frozen=True)
class Progression:
    """Integers start + step * i along one axis of a tensor, equal along all others."""

    axis: int
    start: Dim
    step: int


MAXIMUM_DEPTH = 16


def progression(value: Value | None, depth: int = MAXIMUM_DEPTH) -> Progression | None:
    """What progression a tensor of integers is known to be; None if it is not known to be one."""
    if depth == 0 or value is None or not value.dtype.is_integer or not value.type.rank:
        return None
    if value.constant is not None:
        return _constant_progression(value)
    op = producer(value, "iota", "reshape", "broadcast_to", "slice", "cast", "add")
    if op is None:
        return None
    if op.name == "iota":
        return Progression(op.attrs["axis"] % value.type.rank, 0, 1)
    if op.name == "add":
        return _shifted(op, depth)
    source = operand(op, 0)
    inner = progression(source, depth - 1)
    if inner is None:
        return None
    if op.name == "cast":
        return inner if holds(value.dtype, source.dtype) else None
    if op.name == "slice":
        start = inner.start + op.attrs["starts"][inner.axis] * inner.step
        return Progression(inner.axis, start, inner.step * op.attrs["steps"][inner.axis])
    axis = _moved_axis(op, source, inner.axis)
    return None if axis is None else Progression(axis, inner.start, inner.step)


def _constant_progression(value: Value) -> Progression | None:
    elements = value.type.elements
    if value.constant is None or not value.constant.available or not isinstance(elements, int) or not 1 < elements <= UNIFORM_LIMIT:
        return None
    array = np.asarray(value.constant.array).astype(np.int64)
    first = int(array.reshape(-1)[0])
    for axis, size in enumerate(array.shape):
        if size < 2:
            continue
        step = int(array[tuple(1 if n == axis else 0 for n in range(array.ndim))]) - first
        line = (first + step * np.arange(size)).reshape([-1 if n == axis else 1 for n in range(array.ndim)])
        if step and np.array_equal(array, np.broadcast_to(line, array.shape)):
            return Progression(axis, first, step)
    return None


def _shifted(op: Op, depth: int) -> Progression | None:
    for value, other in ((operand(op, 0), operand(op, 1)), (operand(op, 1), operand(op, 0))):
        shift = uniform(other)
        inner = progression(value, depth - 1) if isinstance(shift, int) and value.shape == op.result.shape else None
        if inner is not None and isinstance(shift, int):
            return Progression(inner.axis, inner.start + shift, inner.step)
    return None


def _moved_axis(op: Op, source: Value, axis: int) -> int | None:
    """Where an axis lies after a broadcast, or after a reshape that only adds and drops dimensions of size 1."""
    if op.name == "broadcast_to":
        return axis + op.result.type.rank - source.type.rank if source.shape[axis] != 1 else None
    before = [n for n, size in enumerate(source.shape) if size != 1]
    after = [n for n, size in enumerate(op.result.shape) if size != 1]
    same = [source.shape[n] for n in before] == [op.result.shape[n] for n in after]
    return after[before.index(axis)] if same and axis in before else None


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
