"""The plan of a function: the host program of an engine, a list of steps on buffers in declared places."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .. import dims
from ..dims import Dim
from .steps import Copy, Step, is_native, writes
from .storage import Alias, Buffer, Constant, Slot, State, StateDeclaration, Storage


@dataclass(frozen=True)
class Plan:
    """The whole host program for one target. `inputs` and `outputs` are (user's name, buffer name); `numbers` are
    (symbol, buffer name): symbols that are the value of an input, an i64 scalar. `ties` are (state, buffer name): what
    a state holds when the call ends; the buffer is the memory of the whole state, or an alias of all of it.
    """

    target: str
    symbols: dims.Facts
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    buffers: tuple[Buffer, ...]
    slots: tuple[Slot, ...]
    steps: tuple[Step, ...]
    numbers: tuple[tuple[str, str], ...] = ()
    states: tuple[StateDeclaration, ...] = ()
    ties: tuple[tuple[str, str], ...] = ()

    @functools.cached_property
    def named(self) -> Mapping[str, Buffer]:
        """The buffers by name."""
        return {buffer.name: buffer for buffer in self.buffers}

    @property
    def constants(self) -> Mapping[str, Constant]:
        """What its constants are in memory, by key."""
        held: list[Storage] = [buffer.storage for buffer in self.buffers]
        held += [Constant(state.initial) for state in self.states if state.initial]
        return {constant.key: constant for constant in held if isinstance(constant, Constant)}

    def moves(self, copy: Copy) -> bool:
        """Whether a copy moves anything: between two buffers of the very same place it does not."""
        return self._place(copy.source) != self._place(copy.target)

    def _place(self, name: str) -> tuple[str, Dim, tuple[Dim, ...]]:
        """The buffer that has the memory, and where in it the buffer lies."""
        buffer = self.named[name]
        if isinstance(buffer.storage, Alias):
            return buffer.storage.root, buffer.storage.offset, buffer.storage.strides
        return name, 0, buffer.type.row_major

    @functools.cached_property
    def first_write(self) -> int:
        """The number of the first step that writes a state; the number of all steps if none does."""
        held = {buffer.name for buffer in self.buffers if isinstance(buffer.storage, State)}
        held |= {buffer.name for buffer in self.buffers if isinstance(buffer.storage, Alias) and buffer.storage.root in held}
        return next((n for n, step in enumerate(self.steps) if not held.isdisjoint(self._written(step))), len(self.steps))

    def _written(self, step: Step) -> tuple[str, ...]:
        return () if isinstance(step, Copy) and not self.moves(step) else writes(step)


class Planned:
    """What has the plans of an engine's functions by name, the entry's first."""

    plans: Mapping[str, Plan]

    @property
    def plan(self) -> Plan:
        """The plan of the entry."""
        return next(iter(self.plans.values()))

    @property
    def constants(self) -> Mapping[str, Constant]:
        """What the constants of all functions are in memory, by key."""
        return {key: held for plan in self.plans.values() for key, held in plan.constants.items()}


SLOT_ALIGNMENT = 64
"""Bytes: every slot of the arena starts at a multiple of this, and so does the arena."""


def slot_offsets(slots: tuple[Slot, ...], values: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Where each slot starts for these symbol values, and the bytes of the whole arena."""
    offsets: dict[str, int] = {}
    ends: dict[str, int] = {}
    for slot in slots:
        size = max((dims.evaluate(size, values) for size in slot.sizes), default=0)
        offsets[slot.name] = max((ends[below] for below in slot.above), default=0)
        ends[slot.name] = offsets[slot.name] + -(-size // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
    return offsets, max(ends.values(), default=0)


def segments(steps: tuple[Step, ...]) -> Iterator[tuple[bool, tuple[Step, ...]]]:
    """Maximal runs of steps that need no Python (True) and the single steps that do (False), in order."""
    run: list[Step] = []
    for step in steps:
        if is_native(step):
            run.append(step)
            continue
        if run:
            yield True, tuple(run)
            run = []
        yield False, (step,)
    if run:
        yield True, tuple(run)
