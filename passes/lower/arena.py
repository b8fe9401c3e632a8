"""Buffer planning: intermediate values share bytes of one arena when they are not alive at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...ir import dims
from ...ir.dims import Dim
from ...ir.plan import SLOT_ALIGNMENT, Slot
from ...ir.plan.places import MOST_ABOVE
from ...ir.workload import Workload, default_workload, size_at


@dataclass(frozen=True)
class Lifetime:
    """A buffer's size in bytes and the steps between which it is needed (written first at `start`, read last at `end`)."""

    name: str
    size: Dim
    start: int
    end: int


@dataclass
class _Placed:
    """A buffer at the workload's sizes: its bytes, the first of them in the arena, and the placed buffers that are alive with it."""

    life: Lifetime
    bytes: int
    first: int = 0
    beside: tuple[int, ...] = ()

    @property
    def slot(self) -> tuple[int, Dim]:
        """What buffers have alike that share a slot."""
        return self.first, self.life.size


def assign_slots(
    lifetimes: Sequence[Lifetime], symbols: dims.Facts, workload: Workload | None = None
) -> tuple[tuple[Slot, ...], dict[str, str]]:
    """Slots and the slot of each buffer.

    Buffers get their places at the workload's sizes, the largest first, each the lowest that is free while it is alive. Those of
    one size at one place share a slot, and a slot lies above those below it of which a buffer is alive with one of its own: so
    it is right for all sizes, and smallest at the workload's.
    """
    placed = _placed(lifetimes, (workload or default_workload(symbols)).sizes)
    keys = sorted(dict.fromkeys(each.slot for each in placed), key=lambda slot: slot[0])
    number = {key: n for n, key in enumerate(keys)}
    own = [number[each.slot] for each in placed]
    below = [0] * len(keys)
    for each, slot in zip(placed, own, strict=True):
        for other in {own[n] for n in each.beside}:
            below[max(slot, other)] |= 1 << min(slot, other)
    order = _nearest(below)
    if sum(map(len, order)) > MOST_ABOVE:
        order = [[n - 1] if n else [] for n in range(len(keys))]
    slots = tuple(Slot(f"s{n}", (size,), tuple(f"s{m}" for m in order[n])) for n, (_, size) in enumerate(keys))
    return slots, {each.life.name: f"s{slot}" for each, slot in zip(placed, own, strict=True)}


def _placed(lifetimes: Sequence[Lifetime], sizes: dict[str, int]) -> list[_Placed]:
    """Where each buffer begins; what is empty at these sizes takes a line, so that each has bytes of its own."""
    found = [_Placed(life, max(-(-size_at(life.size, sizes) // SLOT_ALIGNMENT), 1) * SLOT_ALIGNMENT) for life in lifetimes]
    found.sort(key=lambda each: (-each.bytes, each.life.start, each.life.name))
    starts, ends = (np.array([getattr(each.life, end) for each in found], np.int64) for end in ("start", "end"))
    for n, each in enumerate(found):
        beside = np.flatnonzero((starts[:n] <= each.life.end) & (ends[:n] >= each.life.start)).tolist()
        for other in sorted((found[m] for m in beside), key=lambda other: other.first):
            if each.first + each.bytes <= other.first:
                break
            each.first = max(each.first, other.first + other.bytes)
        each.beside = tuple(beside)
    return found


def _nearest(below: Sequence[int]) -> list[list[int]]:
    """Of each slot those that it lies above and above no other of which it does; sets of slots are bits of an integer."""
    every: list[int] = []
    nearest: list[list[int]] = []
    for rest in below:
        kept, under = [], rest
        while rest:
            top = rest.bit_length() - 1
            kept.append(top)
            under |= every[top]
            rest &= ~(every[top] | 1 << top)
        every.append(under)
        nearest.append(kept[::-1])
    return nearest
