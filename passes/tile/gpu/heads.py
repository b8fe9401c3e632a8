"""Attention as a region poses it, and with the rows of heads that share keys and values beside each other in one tile.

Where heads have fewer rows than a tile, heads that read the same keys fill it together (grouped queries: Ainslie et al., 2023).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ....ir.region import Region
from ...regions.contraction import axes_of
from ...regions.simplify_region import join_axes, split_axis
from ...regions.split_groups import groups_of
from ..schedule import Match, Problem, Schedule
from ..softmax import Attention, read_attention
from .parts import free_name

FEW = 64
"""Rows of the smallest tiles: heads that have as many fill one by themselves."""


@dataclass(frozen=True)
class Reading:
    """A region as attention whose tiles hold rows of so many heads."""

    heads: int
    region: Region
    attention: Attention


@dataclass(frozen=True)
class Heads:
    """All readings of a region; the first one is there whatever its sizes are."""

    readings: tuple[Reading, ...]

    @property
    def attention(self) -> Attention:
        """The attention of the first reading."""
        return self.readings[0].attention


def read_heads(problem: Problem) -> Heads | str:
    """The ways to read a problem as attention, or why it is none."""
    found = read_attention(problem.region)
    if isinstance(found, str):
        return found
    if found.row is None:
        first = next(_rows_of_heads(problem, found), Reading(1, problem.region, found))
        return Heads((replace(first, heads=1),))
    few = problem.typical(problem.region.axis(found.row).extent) < FEW
    return Heads((Reading(1, problem.region, found), *(_rows_of_heads(problem, found) if few else ())))


def posed(match: Match[Heads], schedule: Schedule | None = None) -> tuple[Problem, Attention]:
    """The problem as a schedule takes it, and its attention."""
    heads = 1 if schedule is None else heads_of(schedule)
    reading = next(each for each in match.found.readings if each.heads == heads)
    return replace(match.problem, region=reading.region), reading.attention


def heads_of(schedule: Schedule) -> int:
    """The heads whose rows lie in one tile."""
    return dict(schedule.parameters).get("heads", 1)


def _rows_of_heads(problem: Problem, found: Attention) -> Iterator[Reading]:
    """The reading with the most heads as rows, if several share keys and values."""
    region, symbols = problem.region, problem.symbols
    shared = {name for name in found.batch if name not in axes_of(found.key) | axes_of(found.value)}
    for name in found.batch:
        extent = region.axis(name).extent
        if not isinstance(extent, int) or (name in shared and found.row is None):
            continue
        for size in [extent] if name in shared else sorted(groups_of(region, name, 2), reverse=True):
            made = region if name in shared else split_axis(region, name, [size], symbols)
            group = name if name in shared else made.axes[region.axes.index(region.axis(name)) + 1].name
            if found.row is not None:
                # The heads of a row beside each other.
                rows = free_name(replace(problem, region=made), found.row)
                made, group = join_axes(made, (found.row, group), rows, symbols), rows
            after = read_attention(made)
            if isinstance(after, Attention) and after.row == group:
                yield Reading(size, made, after)
                return
