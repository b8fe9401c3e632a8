"""The strategy `windows`: each channel of an image is folded over windows of it; places beside each other share what they read.

A grid point copies the part of the image that its windows see into a cache tile, with what is read outside of the image around it and
as the fold computes with it. From there no place is tested, and a row of places in registers takes a row of the window at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ....ir import dims
from ....ir.target import CpuLevel
from ....ir.tile.program import TileProgram
from ..lower import upper_bound
from ..schedule import Match, Order, Problem, Refusal, Schedule
from .price import Priced
from .windows_launch import WindowsLaunch, held_bytes
from .windows_sides import Side, Windows, read_windows

TILE = 128 * 1024
"""Bytes of the part of an image that a grid point holds at most."""
MOST = 8 * TILE
"""Bytes of that where windows are so large that no such part holds them."""
ROWS = (8, 4, 16, 2, 1)
"""Rows of places of a grid point."""
ACROSS = (64, 32, 16)
"""Places of a row that a grid point has at most."""
FEW = 3
"""Grid points of so many shapes are offered, of those that the cache holds the first."""


@dataclass(frozen=True)
class CpuWindows(Priced):
    """`rows` of places a grid point, `n` places of a row at once in registers."""

    name: str = "windows"

    def match(self, problem: Problem, target: CpuLevel) -> Match[Windows] | Refusal:
        found = read_windows(problem.region)
        return Refusal(found) if isinstance(found, str) else Match(self, problem, found)

    def space(self, match: Match[Windows], target: CpuLevel) -> Iterator[Schedule]:
        """As many places at once as registers hold, best so many that a row is made of them."""
        region, last = match.problem.region, match.found.sides[-1]
        extent = region.axis(last.place or "").extent
        taps = dims.number(region.axis(last.tap).extent)
        most = max(2, (target.registers - 2 - taps) // (2 if last.stride == 1 else 1 + last.stride))
        whole = [n for n in range(2, most + 1) if isinstance(extent, int) and extent % n == 0]
        bound = _bound(match.problem, last)
        for n in dict.fromkeys((*whole[:-3:-1], most, 4)):
            shapes = [(rows, across) for across, rows in itertools.product(ACROSS, ROWS)]
            made = [Schedule(self.name, (("rows", rows), ("across", -(-min(across, bound) // n) * n), ("n", n))) for rows, across in shapes]
            held = [held_bytes(match.problem, match.found, schedule, target.lanes) for schedule in made]
            fitting = [schedule for schedule, size in zip(made, held, strict=True) if size <= TILE]
            yield from dict.fromkeys(fitting[:FEW] or [made[held.index(min(held))]] if min(held) <= MOST else [])

    def order(self, match: Match[Windows], schedule: Schedule, target: CpuLevel) -> Order:
        """Along the window, one place after the other."""
        return (self.name,)

    def tile(self, match: Match[Windows], schedule: Schedule, target: CpuLevel) -> TileProgram:
        """One launch."""
        problem = match.problem
        launch = WindowsLaunch(problem, match.found, schedule, target.lanes).launch()
        return TileProgram(problem.region.name, (launch,), symbols=tuple(problem.symbols.ranges))


def _bound(problem: Problem, side: Side) -> int:
    bound = upper_bound(problem.region.axis(side.place or "").extent, problem.symbols)
    return ACROSS[0] if bound is None else max(1, bound)
