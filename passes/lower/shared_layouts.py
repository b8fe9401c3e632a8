"""Shared layouts: a constant that a product reads in panels is read in them by others too, where a second copy would not pay.

The embedding of a language model is the weight of its head as well: rows that are looked up come out of the head's panels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from ...ir.dims import Dim
from ...ir.errors import InternalError
from ...ir.graph import Value
from ...ir.layout import Layout
from ..fusion.partition import HostOp
from .schedule import Scheduled

Held: TypeAlias = "tuple[Layout, tuple[Dim, ...]]"
"""A layout, and the shape that it is of."""
U = TypeVar("U", Scheduled, Scheduled | HostOp)

SHARE = 0.01
"""A second copy of a constant must save such a part of the time that all kernels together take."""


def share_layouts(units: Sequence[Sequence[U]], again: Callable[[Scheduled, Mapping[Value, Layout]], Scheduled]) -> list[list[U]]:
    """The units of several functions, where those that read a constant row-major, which others read in a layout, read it there.

    `again` schedules a unit for constants in given layouts, or raises InternalError where no strategy can.
    """
    every = [unit for each in units for unit in each if isinstance(unit, Scheduled)]
    held = _layouts(every)
    most = SHARE * sum(unit.cost for unit in every)
    made: dict[int, Scheduled] = {}
    for unit in every:
        wanted = _wanted(unit, held)
        if not wanted:
            continue
        try:
            other = again(unit, wanted)
        except InternalError:
            continue
        if other.cost - unit.cost <= most:
            made[id(unit)] = other
    return [[made.get(id(unit), unit) if isinstance(unit, Scheduled) else unit for unit in each] for each in units]


def _layouts(units: Sequence[Scheduled]) -> Mapping[Value, set[Held]]:
    """The layouts in which constants are read, each with the shape that it is of."""
    found: dict[Value, set[Held]] = defaultdict(set)
    for unit in units:
        for value, name, shape in _constants(unit):
            layout = unit.problem.layouts.get(name)
            if layout is not None:
                found[value].add((layout, shape))
    return found


def _wanted(unit: Scheduled, held: Mapping[Value, set[Held]]) -> dict[Value, Layout]:
    """For constants that a unit reads row-major the one layout that others read them in, as tensors of the same shape."""
    found: dict[Value, Layout] = {}
    for value, name, shape in _constants(unit):
        if name not in unit.problem.layouts and len(held.get(value, ())) == 1:
            ((layout, other),) = held[value]
            if other == shape:
                found[value] = layout
    return found


def _constants(unit: Scheduled) -> Sequence[tuple[Value, str, tuple[Dim, ...]]]:
    """The constants that a unit reads, with the operand's name and shape."""
    pairs = zip(unit.problem.region.inputs, unit.group.inputs, strict=True)
    return [(value, operand.name, operand.type.shape) for operand, value in pairs if value.constant is not None]
