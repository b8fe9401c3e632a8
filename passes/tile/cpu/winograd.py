"""The strategy `winograd`: neighbouring places of windows of three taps, found together by less than half or two thirds of the products.

A grid point takes tiles of places, two along each side. What their windows see is transformed into as many numbers as there are
points, of which each is multiplied with the filters at its point; places are made of the products. Where that gives a number that is
not finite, a tile is summed place by place: what a NaN or an infinity reaches is what it reaches in the sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from ....ir import dims
from ....ir.target import CpuLevel
from ....ir.tile.program import TileProgram
from ....ir.winograd import POINTS, TAPS, Filtering
from ..schedule import Match, Order, Problem, Refusal, Schedule
from .price import Priced
from .winograd_launch import WinogradLaunch, held_bytes
from .winograd_sides import Filtered, read_filtered

TILES, TRIED = (49, 42, 28, 16, 8, 4, 1), 2
"""Tiles of a grid point at most, and how many of these numbers are offered, the largest that fit: each grid point reads all filters."""
FEWEST = 20
"""Tiles that a call has at least: filters are so many times as large as there are points for a tap, and where few tiles read them,
memory takes longer than what is saved.
"""
ACROSS = 16
"""Tiles of a row that a grid point has at most."""
HELD = 960 << 10
"""Bytes of what a grid point holds at most: it lies on the stack, and in the second cache."""
HIGHEST, VECTORS = {32: 12, 16: 6}, 2
"""Tiles of a register block at most, by the registers, and its vectors of filters."""


@dataclass(frozen=True)
class Winograd(Priced):
    """Tiles of `places` along each side, `rows` x `across` of them a grid point; `n` filters, `nb` of them at once, in blocks mr x nr."""

    name: str = "winograd"

    def match(self, problem: Problem, target: CpuLevel) -> Match[Filtered] | Refusal:
        found = read_filtered(problem)
        if isinstance(found, str):
            return Refusal(found)
        places = _places(problem, found)
        if places is None:
            return Refusal(f"fewer than {FEWEST} tiles of places read the filters")
        return Match(self, problem, found, operations=Fraction(places + TAPS - 1, TAPS * places) ** len(found.sides))

    def space(self, match: Match[Filtered], target: CpuLevel) -> Iterator[Schedule]:
        """As many tiles as the second cache holds with the products of some filters."""
        problem, found = match.problem, match.found
        places = _places(problem, found) or min(POINTS)
        *outer, last = (-(-problem.typical(problem.region.axis(side.place).extent) // places) for side in found.sides)
        across = _even(last, ACROSS)
        offered = [list(self._held(match, places, rows, across, target)) for rows in _rows(outer, across)]
        for schedules in [each for each in offered if each][:TRIED]:
            yield from schedules

    def _held(self, match: Match[Filtered], places: int, rows: int, across: int, target: CpuLevel) -> Iterator[Schedule]:
        """Of so many tiles, schedules whose grid points hold no more than they may."""
        filters, width = dims.number(match.problem.region.axis(match.found.column).extent), VECTORS * target.lanes
        height, seen = _even(rows * across, HIGHEST[32 if target.registers >= 32 else 16]), set()
        for n, nb in ((filters, 32), (filters, 64), (128, 32)):
            held = min(nb, -(-filters // width) * width)
            parts = {"places": places, "rows": rows, "across": across, "n": min(n, filters), "nb": held, "mr": height, "nr": width}
            schedule = Schedule(self.name, tuple(parts.items()))
            if schedule not in seen and held_bytes(match.problem, match.found, schedule, target.lanes) <= HELD:
                seen.add(schedule)
                yield schedule

    def order(self, match: Match[Filtered], schedule: Schedule, target: CpuLevel) -> Order:
        """A sum of channels for each point, and the places of these."""
        return self.name, schedule["places"]

    def tile(self, match: Match[Filtered], schedule: Schedule, target: CpuLevel) -> TileProgram:
        """One launch."""
        problem, found = match.problem, match.found
        filtering = Filtering(schedule["places"], tuple(side.dimension for side in found.sides))
        launch = WinogradLaunch(problem, found, schedule, filtering, target.lanes).launch()
        return TileProgram(problem.region.name, (launch,), symbols=tuple(problem.symbols.ranges))


def _even(count: int, most: int) -> int:
    """The length of parts of as equal lengths as may be, each of at most so many."""
    return -(-count // -(-count // most))


def _rows(outer: Sequence[int], across: int) -> tuple[int, ...]:
    """Rows of tiles of a grid point, the most first."""
    return tuple(dict.fromkeys(_even(outer[0], max(1, most // across)) for most in TILES)) if outer else (1,)


def _places(problem: Problem, found: Filtered) -> int | None:
    """The most places along each side for which there are tiles enough, if there are for any."""
    return next((places for places in sorted(POINTS, reverse=True) if _tiles(problem, found, places) >= FEWEST), None)


def _tiles(problem: Problem, found: Filtered, places: int) -> int:
    """The tiles of a call, images of its batch together."""
    extents = {name: problem.typical(problem.region.axis(name).extent) for name in found.product.rows}
    sides = {side.place for side in found.sides}
    return prod(-(-extent // places) if name in sides else extent for name, extent in extents.items())
