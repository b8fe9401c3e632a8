"""Folds as strategies walk them: a running value that loops carry, a running fold along an axis, the place of an extreme."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ...ir import dims
from ...ir.dims import Dim, Facts
from ...ir.region import SCANS, Reduce, Scan
from ...ir.tile.program import Ref, Value
from ...ir.types import DType, i64
from .lower import Block, is_long

COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "bit_or", "all": "bit_and"}
"""The primitive that folds one more element in."""


def identity(kind: str, dtype: DType) -> bool | int | float:
    """The neutral element of a reduction."""
    if kind in ("sum", "any"):
        return False if dtype.kind == "bool" else 0.0 if dtype.is_float else 0
    if kind in ("prod", "all"):
        return True if dtype.kind == "bool" else 1.0 if dtype.is_float else 1
    highest = kind in ("min", "argmin", "argmin_last")
    if dtype.kind == "bool":
        return highest
    if dtype.is_float:
        return float("inf") if highest else float("-inf")
    low, high = (0, 2**dtype.bits - 1) if dtype.kind == "uint" else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)
    return high if highest else low


def is_compensated(kind: str, dtype: DType, extents: Sequence[Dim], symbols: Facts) -> bool:
    """Whether a fold over axes of these extents is a float sum so long that it carries along what its roundings lose."""
    return kind == "sum" and dtype.is_float and is_long(extents, symbols)


@dataclass(frozen=True)
class Total:
    """A running value, and of a long float sum the companion that holds what its roundings have added too much."""

    value: Ref
    combine: str
    lost: Ref | None

    @property
    def carries(self) -> tuple[Ref, ...]:
        """What a loop around `take` carries."""
        return (self.value,) if self.lost is None else (self.value, self.lost)

    def take(self, block: Block, value: Value) -> None:
        """Fold one more value in."""
        if self.lost is None:
            block.rebind(self.value, block.apply(self.combine, self.value, value))
        else:
            block.add_to(self.value, self.lost, value)


def open_total(block: Block, name: str, kind: str, dtype: DType, axes: Sequence[str], extents: Sequence[Dim]) -> Total:
    """A running value of its own at each place of the tile axes `axes`, at the start of a fold over axes of these extents."""
    value = block.let(name, block.full(identity(kind, dtype), dtype, axes))
    lost = block.lost(value) if is_compensated(kind, dtype, extents, block.problem.symbols) else None
    return Total(value, COMBINE[kind], lost)


@contextmanager
def running_fold(block: Block, scan: Scan, axes: Sequence[str]) -> Iterator[Callable[[Value], None]]:
    """One loop along the axis of a scan, with a running value at each place of the tile axes `axes`.

    What it yields is called once inside with the value there, and makes the scan readable for what follows.
    """
    extent = block.problem.region.axis(scan.along).extent
    total = open_total(block, scan.name, SCANS[scan.kind], scan.dtype, axes, [extent])
    with block.loop(scan.along, "scalar", 0, extent, 1, carries=total.carries) as inner:
        place: Dim = dims.symbol(inner)
        block.index[scan.along] = extent - 1 - place if scan.reverse else place
        before = block.let("before", total.value)

        def take(value: Value) -> None:
            total.take(block, value)
            block.readers[scan.name] = lambda _: before if scan.exclusive else total.value

        yield take


@dataclass(frozen=True)
class Extreme:
    """The best value of an argmax or argmin so far, and its place."""

    kind: str
    best: Ref
    place: Ref

    @property
    def carries(self) -> tuple[Ref, ...]:
        """What a loop around `take` carries."""
        return self.best, self.place

    def is_ahead(self, block: Block, value: Value) -> Value:
        """Whether a value is farther out than the best; never where one of them is NaN."""
        ahead, behind = (self.best, value) if is_highest(self.kind) else (value, self.best)
        return block.apply("lt", ahead, behind)

    def take(self, block: Block, value: Value, place: Value) -> None:
        """Take a value and its place where it is better; values come in the order of their places."""
        chosen = block.let("better", self._is_better(block, value))
        block.rebind(self.place, block.apply("where", chosen, place, self.place))
        block.rebind(self.best, block.apply("where", chosen, value, self.best))

    def _is_better(self, block: Block, value: Value) -> Value:
        """Whether a value takes the place of the best: NaN is better than any number, and of equals the later where the last is meant.

        The best begins as the neutral element at place 0, so that of values that are all neutral the first has its place already.
        """
        better, is_last = self.is_ahead(block, value), self.kind.endswith("_last")
        if is_last:
            better = block.apply("bit_or", better, block.apply("eq", value, self.best))
        if not value.type.dtype.is_float:
            return better
        fresh = block.apply("is_nan", value)
        if not is_last:
            fresh = block.apply("bit_and", fresh, block.apply("bit_not", block.apply("is_nan", self.best)))
        return block.apply("bit_or", better, fresh)


def open_extreme(block: Block, statement: Reduce, dtype: DType, axes: Sequence[str], place: str, from_end: bool = False) -> Extreme:
    """An extreme at each place of the tile axes `axes`, before any value was seen; `place` names where it will be.

    `from_end` says that of a last extreme values come from the end on, so that it is the first which is met.
    """
    first = identity("max" if is_highest(statement.kind) else "min", dtype)
    best = block.let(f"{statement.name}_best", block.full(first, dtype, axes))
    kind = statement.kind.removesuffix("_last") if from_end else statement.kind
    return Extreme(kind, best, block.let(place, block.full(0, i64, axes)))


def is_highest(kind: str) -> bool:
    """Whether an argmax is meant, the first or the last, and not an argmin."""
    return kind in ("argmax", "argmax_last")
