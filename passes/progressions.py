"""Integers that count: which tensors of integers are start + step * i along one axis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..ir.dims import Dim
from ..ir.graph import Op, Value
from ..ir.ops.rounding import holds
from .match import operand, producer, uniform


@dataclass(frozen=True)
class Progression:
    """Integers start + step * i along one axis of a tensor, equal along all others."""

    axis: int
    start: Dim
    step: int


MAXIMUM_DEPTH = 16
LONGEST = 1 << 22
"""A longer constant is not looked at."""
FARTHEST = 1 << 31
"""What counts up to larger numbers is no index."""


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
    if value.constant is None or not value.constant.available or not isinstance(elements, int) or not 1 < elements <= LONGEST:
        return None
    array = np.asarray(value.constant.array)
    first, last = int(array.reshape(-1)[0]), int(array.reshape(-1)[-1])
    for axis, size in enumerate(array.shape):
        if size < 2:
            continue
        step = int(array[tuple(1 if n == axis else 0 for n in range(array.ndim))]) - first
        if not step or last != first + step * (size - 1) or max(abs(first), abs(last)) > FARTHEST:
            continue
        line = (first + step * np.arange(size)).reshape([-1 if n == axis else 1 for n in range(array.ndim)])
        if np.array_equal(array, np.broadcast_to(line, array.shape)):
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
