"""Gathers by counting indices: x[b, s] for all b and s, as exporters write masks, is x itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from .....ir import dims
from .....ir.dims import Dim
from .....ir.graph import Value
from ..context import Node
from ..symbolic import KNOWN_ELEMENTS
from .movement import transpose
from .shape import expand


def gathered_whole(n: Node, x: Value, indices: Value) -> Value | None:
    """What gather_nd(x, indices) is where index k counts 0, 1, 2 ... along an axis of its own; None elsewhere."""
    grid = indices.shape[:-1]
    counted = _counted_axes(n, indices)
    if len(counted) != x.type.rank:
        return None
    axes: list[int] = []
    for candidates, size in zip(counted, x.shape, strict=True):
        fitting = [axis for axis in candidates if axis not in axes and axis < len(grid) and dims.equal(grid[axis], size, n.facts) is True]
        if not fitting:
            return None
        axes.append(fitting[0])
    ordered = transpose(n, x, tuple(sorted(range(len(axes)), key=axes.__getitem__)))
    shape: tuple[Dim, ...] = tuple(size if axis in axes else 1 for axis, size in enumerate(grid))
    return expand(n, n.b.reshape(ordered, shape=shape) if shape != ordered.shape else ordered, grid)


def _counted_axes(n: Node, indices: Value) -> list[list[int]]:
    """For each index of a place, the axes along which it counts; nothing where that cannot be seen."""
    array = n.b.array_of(indices)
    if array is not None and array.size <= KNOWN_ELEMENTS:
        return [_axes_of(array[..., k]) for k in range(array.shape[-1])]
    op = indices.op
    if op is None or op.name != "concat" or op.attrs["axis"] != indices.type.rank - 1:
        return []
    parts = [counted_axis(part) if part is not None and part.shape[-1] == 1 else None for part in op.operands]
    return [[] if axis is None else [axis] for axis in parts]


def _axes_of(array: np.ndarray[Any, Any]) -> list[int]:
    views = [np.arange(size).reshape([-1 if a == axis else 1 for a in range(array.ndim)]) for axis, size in enumerate(array.shape)]
    return [axis for axis, view in enumerate(views) if bool((array == view).all())]


def counted_axis(value: Value) -> int | None:
    """The axis along which an integer value is 0, 1, 2 ..., the same along every other; None if it is not known to be."""
    moves: list[Value] = []
    while value.op is not None and value.op.name in ("reshape", "broadcast_to", "cast") and value.dtype.is_integer:
        moves.append(value)
        operand = value.op.operands[0]
        if operand is None:
            return None
        value = operand
    if value.op is None or value.op.name != "iota":
        return None
    axis: int | None = int(value.op.attrs["axis"])
    for move in reversed(moves):
        if axis is None or move.op is None or move.op.operands[0] is None:
            return None
        axis = _moved(move.op.name, move.op.operands[0].shape, move.shape, axis)
    return axis


def _moved(name: str, before: tuple[Dim, ...], after: tuple[Dim, ...], axis: int) -> int | None:
    """Where an axis went."""
    if name == "cast":
        return axis
    if name == "broadcast_to":
        place = axis + len(after) - len(before)
        return place if before[axis] == after[place] else None
    # A reshape that only adds and drops sizes of 1.
    kept, places = ([k for k, size in enumerate(shape) if size != 1] for shape in (before, after))
    if axis not in kept or [before[k] for k in kept] != [after[k] for k in places]:
        return None
    return places[kept.index(axis)]
