"""The state of the interpreter inside one block: numbers, open axes, named tiles, memories, and index expressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .. import dims
from ..dims import Dim, Symbol
from ..errors import VerifyError
from . import evaluate
from .evaluate import Array, Tile
from .program import Local, Param
from .scope import Scope

_FUNCTIONS: dict[str, Callable[..., Any]] = {"div": np.floor_divide, "mod": np.mod, "max": np.maximum, "min": np.minimum}


@dataclass
class Memory:
    """An operand's elements (physical order) and which of them hold no value yet."""

    operand: Param | Local
    data: Array
    poison: Array


@dataclass(frozen=True)
class Extent:
    """An open tile axis while it runs: start and domain as numbers."""

    first: int
    low: int
    high: int
    lanes: Array

    @cached_property
    def inside(self) -> Array:
        index = self.first + self.lanes
        return np.asarray((index >= self.low) & (index < self.high))


@dataclass
class Frame:
    """What one block sees: numbers of scalars and starts, tile axes, values and memories."""

    scope: Scope
    numbers: dict[str, int]
    axes: dict[str, Extent]
    values: dict[str, Tile]
    memories: dict[str, Memory]

    def inner(self, scope: Scope) -> Frame:
        return Frame(scope, dict(self.numbers), dict(self.axes), dict(self.values), dict(self.memories))

    def open(self, name: str, first: int, low: int, high: int, extent: int) -> None:
        """Start a tile of an axis whose domain is low..high."""
        self.axes[name] = Extent(first, low, high, np.arange(extent, dtype=np.int64))
        self.numbers[f"{name}.first"] = first

    def number(self, dim: Dim) -> int:
        """An index expression that is one integer."""
        if isinstance(dim, int):
            return dim
        values = dict(self.numbers)
        for name in dims.symbols(dim):
            if name.startswith("%"):
                tile = self.values[name[1:]]
                if tile.poison is not None and tile.poison.any():
                    raise VerifyError(f"index expression {dim} reads %{name[1:]}, which is poison")
                values[name] = int(tile.data)
        return dims.evaluate(dim, values)

    def index(self, dim: Dim, axes: tuple[str, ...]) -> Array:
        """An index expression for every lane: an i64 array that broadcasts over `axes`."""
        if isinstance(dim, int):
            return np.asarray(dim, np.int64)
        total: Any = 0
        for monomial, factor in dim.terms:
            term: Any = factor
            for atom in monomial:
                if isinstance(atom, Symbol):
                    term = term * self.lanes(atom.name, axes)
                else:
                    sides = self.index(atom.left, axes), self.index(atom.right, axes)
                    term = term * _FUNCTIONS[atom.kind](*sides)
            total = total + term
        return np.asarray(total, np.int64)

    def lanes(self, name: str, axes: tuple[str, ...]) -> Array:
        if name.startswith("%"):
            tile = self.values[name[1:]].over(axes)
            data = tile.data.astype(np.int64)
            return data if tile.poison is None else np.where(tile.poison, 0, data)
        axis, _, part = name.partition(".")
        if axis in self.axes and part != "first":
            extent = self.axes[axis]
            lanes = extent.lanes if part == "lane" else extent.lanes + extent.first
            return aligned_lanes(lanes, axis, axes)
        return np.asarray(self.numbers[name], np.int64)

    def poisoned_index(self, subscripts: tuple[Dim, ...], axes: tuple[str, ...]) -> Array | None:
        names = {name for subscript in subscripts for name in dims.symbols(subscript) if name.startswith("%")}
        return evaluate.either(*(self.values[name[1:]].over(axes).poison for name in sorted(names)))


def aligned_lanes(lanes: Array, axis: str, axes: tuple[str, ...]) -> Array:
    """A vector along one axis, as an array over `axes`."""
    if axis not in axes:
        raise VerifyError(f"axis {axis} varies inside a value over [{', '.join(axes)}]")
    return evaluate.aligned(lanes, (axis,), axes)
