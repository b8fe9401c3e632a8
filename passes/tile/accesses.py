"""Where accesses of a region lie in memory: how an axis moves them, and which points of a scatter meet or lie outside."""

from __future__ import annotations

from ...ir import dims
from ...ir.dims import Dim, Facts
from ...ir.region import Region, Store
from ...ir.tile.program import Value
from ...ir.types import boolean
from .lower import Block

SCORE = (0, 3, -2)
"""What an access says for an axis as the lanes, by the axis' stride class."""


def stride_class(region: Region, operand: str, subscripts: tuple[Dim, ...], axis: str) -> int:
    """0 if the axis does not move the address, 1 if it steps by one element, else 2."""
    step = step_of(region, operand, subscripts, axis)
    return step if step in (0, 1) else 2


def step_of(region: Region, operand: str, subscripts: tuple[Dim, ...], axis: str) -> int | None:
    """By how many elements the axis moves the address; None where that is not one small number."""
    shape = region.operand(operand).type.shape
    for place, subscript in enumerate(reversed(subscripts)):
        if axis in dims.symbols(subscript):
            moved = dims.substitute(subscript, {axis: dims.symbol(axis) + 1}) - subscript
            inner = dims.product(shape[len(shape) - place :])
            return moved if isinstance(moved, int) and inner == 1 else None
    return 0


def is_within(subscript: Dim, size: Dim, facts: Facts) -> bool:
    """Whether a subscript is known to lie in 0..size."""
    return dims.at_most(0, subscript, facts) is True and dims.at_most(subscript + 1, size, facts) is True


def apart(store: Store) -> set[str]:
    """Axes that stand alone in a subscript: two points of the store that differ along one of them never meet."""
    return {axis for axis in store.axes if dims.symbol(axis) in store.subscripts}


def unproved(block: Block, store: Store) -> list[int]:
    """Which subscripts of a scatter are not known to lie inside the output."""
    facts = block.problem.region.facts(block.problem.symbols)
    shape = block.problem.region.operand(store.output).type.shape
    pairs = zip(store.subscripts, shape, strict=True)
    return [n for n, (subscript, size) in enumerate(pairs) if not is_within(subscript, size, facts)]


def lies_inside(block: Block, store: Store, subscripts: tuple[Dim, ...]) -> Value:
    """Whether a scattered element, with its loaded `subscripts`, lies inside the output; one that does not is not written."""
    shape = block.problem.region.operand(store.output).type.shape
    inside: Value | None = None
    for n in unproved(block, store):
        place = block.index_value(subscripts[n])
        low, high = block.apply("le", block.index_value(0), place), block.apply("lt", place, block.index_value(shape[n]))
        both = block.apply("bit_and", low, high)
        inside = both if inside is None else block.apply("bit_and", inside, both)
    return inside if inside is not None else block.full(True, boolean)
