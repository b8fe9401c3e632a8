"""What a picture folds: equal stretches of a program that follow each other are drawn once, and what has no room is counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .vertices import Vertex

SAVED = 4
"""A fold saves so many boxes at least."""
MOST = 400
"""Boxes that a reader can still follow; what is more is counted in boxes of many ops."""
LONGEST = 4096
"""Nodes of a copy; longer ones are not looked for."""
LOOKS = 64
"""So often each node is compared while repeats are looked for."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Part:
    """The nodes from `start` to `stop`: one of them, several that are counted only, or `copies` stretches that are alike.

    Of copies `parts` are those of the first.
    """

    start: int
    stop: int
    copies: int = 1
    parts: tuple[Part, ...] = ()

    @property
    def period(self) -> int:
        """The nodes of one copy."""
        return (self.stop - self.start) // self.copies


def fold(nodes: Sequence[Vertex]) -> tuple[Part, ...]:
    """The nodes as parts, in order."""
    found = _Search(nodes).parts(0, len(nodes))
    return _counted(found, nodes, everything=_boxes(found) > 4 * MOST) if _boxes(found) > MOST else found


def _boxes(parts: Sequence[Part]) -> int:
    return sum(1 + _boxes(part.parts) for part in parts)


class _Search:
    """Repeats of one program: nodes as numbers, equal for equal ones, and where what they read is made."""

    def __init__(self, nodes: Sequence[Vertex]) -> None:
        numbers: dict[tuple[str, int], int] = {}
        self.tokens = np.array([numbers.setdefault((node.alike, len(node.reads)), len(numbers)) for node in nodes], np.int32)
        made = {name: place for place, node in enumerate(nodes) for name in node.writes}
        outside: dict[str, int] = {}
        places = [[made.get(name, -1 - outside.setdefault(name, len(outside))) for name in node.reads] for node in nodes]
        self.first = np.cumsum([0, *map(len, places)])
        self.makers = np.array([place for each in places for place in each], np.int64)
        self.crossing = _crossing(places, len(nodes))
        self.left = LOOKS * max(1, len(nodes))

    def parts(self, start: int, stop: int) -> tuple[Part, ...]:
        """The nodes of a stretch with its repeats folded, those first that save most."""
        folds: list[Part] = []
        free = np.ones(stop - start, bool)
        for period, begin, end in sorted(self._runs(start, stop), key=lambda run: (-_saved(run), run)):
            for low, high in _stretches(free[begin - start : end - start], 2 * period):
                found = self._copies(period, begin + low, begin + high)
                if found is not None:
                    free[found.start - start : found.stop - start] = False
                    folds.append(found)
        return tuple(_filled(start, stop, sorted(folds, key=lambda part: part.start)))

    def _runs(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(period, begin, end) of each stretch that is equal to itself a period further, and long enough to be worth a fold."""
        tokens = self.tokens[start:stop]
        for period in range(1, min(len(tokens) // 2, LONGEST) + 1):
            same = tokens[:-period] == tokens[period:]
            if np.count_nonzero(same) >= max(period, SAVED):
                runs = ((period, start + begin, start + end + period) for begin, end in _stretches(same, period))
                yield from (run for run in runs if _saved(run) >= SAVED)

    def _copies(self, period: int, begin: int, end: int) -> Part | None:
        """The copies in a stretch, from where the fewest values go into it, as long as they read what copies read."""
        if _saved((period, begin, end)) < SAVED:
            return None
        spare = (end - begin) % period
        start = begin + int(np.argmin(self.crossing[begin : begin + spare + 1]))
        count = self._alike(start, period, (end - start) // period)
        if (count - 1) * period < SAVED:
            return None
        return Part(start, start + count * period, count, self.parts(start, start + period))

    def _alike(self, start: int, period: int, count: int) -> int:
        """How many copies are wired alike: each reads inside itself, of the one before or of what all read, as the second does."""
        size = count * period
        if self.left < size:
            return 1
        self.left -= size
        rows = self.makers[self.first[start] : self.first[start + size]].reshape(count, -1)
        moved = np.arange(count)[:, None] * period
        inside = rows >= start + moved
        first = inside[0] == inside[1]
        first &= ~inside[0] | (rows[0] + period == rows[1])
        if not first.all():
            return 1
        fits = (rows - moved == rows[1] - period) | ((rows == rows[1]) & (rows[1] < start))
        fits[0] = True
        whole = fits.all(axis=1)
        return count if whole.all() else int(np.argmin(whole))


def _stretches(flags: Array, least: int) -> list[tuple[int, int]]:
    """Where stretches of so many set flags at least begin and end."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.view(np.int8), [0]))))
    pairs = edges.reshape(-1, 2)
    return [(begin, end) for begin, end in pairs[pairs[:, 1] - pairs[:, 0] >= least].tolist()]


def _saved(run: tuple[int, int, int]) -> int:
    """How many boxes less a run takes when it is drawn once."""
    period, begin, end = run
    return ((end - begin) // period - 1) * period


def _crossing(places: Sequence[Sequence[int]], count: int) -> Array:
    """For each node how many values that were made before it are read from it on."""
    last: dict[int, int] = {}
    for place, each in enumerate(places):
        last |= {maker: place for maker in each if maker >= 0}
    steps = np.zeros(count + 1, np.int64)
    for maker, reader in last.items():
        steps[maker + 1] += 1
        steps[reader + 1] -= 1
    return np.cumsum(steps)


def _filled(start: int, stop: int, folds: Sequence[Part]) -> Iterator[Part]:
    """The folds and, one by one, the nodes between them."""
    at = start
    for part in folds:
        yield from (Part(place, place + 1) for place in range(at, part.start))
        yield part
        at = part.stop
    yield from (Part(place, place + 1) for place in range(at, stop))


def _counted(parts: Sequence[Part], nodes: Sequence[Vertex], everything: bool) -> tuple[Part, ...]:
    """The parts with neighbours as one: ops between folds, and folds as well where there are too many of them."""
    runs: list[list[Part]] = [[]]
    for part in parts:
        alone = (part.copies > 1 and not everything) or nodes[part.start].kind in ("input", "output", "state", "new state")
        runs += [[part], []] if alone else []
        if not alone:
            runs[-1].append(part)
    total = sum(len(run) for run in runs if len(run) > 1) or 1
    room = max(1, MOST - sum(len(run) == 1 for run in runs))
    width = -(-total // room)
    found: list[Part] = []
    for run in runs:
        for at in range(0, len(run), max(2, width)):
            some = run[at : at + max(2, width)]
            found.append(some[0] if len(some) == 1 else Part(some[0].start, some[-1].stop))
    return tuple(found)


__all__ = ["Part", "fold"]
