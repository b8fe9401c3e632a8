"""Schedules and strategies: the choice of how to compute a region, and what a strategy must answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...ir import dims
from ...ir.dims import Dim, Facts
from ...ir.layout import Layout
from ...ir.region import Region
from ...ir.region_cost import typical_sizes
from ...ir.tile.program import TileProgram


@dataclass(frozen=True)
class Schedule:
    """A strategy's name and its parameters, in the order that the strategy declares: `packed{m=96, n=256}`."""

    strategy: str
    parameters: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        inside = ", ".join(f"{name}={value}" for name, value in self.parameters)
        return f"{self.strategy}{{{inside}}}" if inside else self.strategy

    def __getitem__(self, name: str) -> int:
        return dict(self.parameters)[name]


@dataclass(frozen=True)
class Problem:
    """What a strategy is asked to compute: the region, what is known of its symbols, layouts fixed for constants.

    `constants` are the operands whose values are known when building, `sizes` what to reckon with for symbols.
    """

    region: Region
    symbols: Facts
    layouts: Mapping[str, Layout]
    constants: frozenset[str] = frozenset()
    sizes: Mapping[str, int] = field(default_factory=dict)

    def typical(self, dim: Dim) -> int:
        """A size to reckon with: typical for a symbol of which nothing is said."""
        return max(1, dims.evaluate(dim, {**typical_sizes(self.symbols, dims.symbols(dim)), **self.sizes}))


class Strategy(Protocol):
    """One way to tile regions for a kind of machine; one file each."""

    @property
    def name(self) -> str:
        """The strategy's name in schedules and records."""

    def applies(self, problem: Problem, target: Any) -> str | None:
        """Why the strategy cannot compute this problem, or None if it can."""

    def space(self, problem: Problem, target: Any) -> Iterator[Schedule]:
        """The schedules worth considering, the most promising first."""

    def cost(self, problem: Problem, schedule: Schedule, target: Any) -> float:
        """Predicted seconds on one core (CPU) or on the whole device (GPU) at the symbols' typical sizes."""

    def tile(self, problem: Problem, schedule: Schedule, target: Any) -> TileProgram:
        """The tile program."""
