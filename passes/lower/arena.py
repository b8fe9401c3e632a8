"""Buffer planning: intermediate values share slots of one arena when they are not alive at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...ir import dims
from ...ir.dims import Dim
from ...ir.plan import Slot
from ...ir.workload import Workload, default_workload, size_at


@dataclass(frozen=True)
class Lifetime:
    """A buffer's size in bytes and the steps between which it is needed (written first at `start`, read last at `end`)."""

    name: str
    size: Dim
    start: int
    end: int


def assign_slots(
    lifetimes: Sequence[Lifetime], symbols: dims.Facts, workload: Workload | None = None
) -> tuple[tuple[Slot, ...], dict[str, str]]:
    """Slots and the slot of each buffer.

    Greedy in order of `start`: among the free slots the one that has to grow least, judged at the workload's. A slot
    is free for a buffer that starts after the last reader of its current one.
    """
    sizes = (workload or default_workload(symbols)).sizes
    slots: list[list[Dim]] = []
    free_at: list[int] = []
    place: dict[str, str] = {}
    for life in sorted(lifetimes, key=lambda item: (item.start, item.name)):
        wanted = size_at(life.size, sizes)
        best: int | None = None
        for n, until in enumerate(free_at):
            if until >= life.start:
                continue
            if best is None or _mismatch(slots[n], wanted, sizes) < _mismatch(slots[best], wanted, sizes):
                best = n
        if best is None:
            slots.append([])
            free_at.append(-1)
            best = len(slots) - 1
        if not any(_covers(size, life.size, symbols) for size in slots[best]):
            slots[best] = [size for size in slots[best] if not _covers(life.size, size, symbols)] + [life.size]
        free_at[best] = life.end
        place[life.name] = f"s{best}"
    return tuple(Slot(f"s{n}", tuple(sizes)) for n, sizes in enumerate(slots)), place


def _covers(big: Dim, small: Dim, symbols: dims.Facts) -> bool:
    return dims.at_most(small, big, symbols) is True


def _mismatch(sizes: Sequence[Dim], wanted: int, at: Mapping[str, int]) -> tuple[int, int]:
    """How many bytes the slot would grow, then how many it would waste."""
    present = max((size_at(size, at) for size in sizes), default=0)
    return max(0, wanted - present), max(0, present - wanted)
