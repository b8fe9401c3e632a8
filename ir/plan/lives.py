"""How long the buffers of the arena are alive, and how many of its bytes are at once."""

from __future__ import annotations

from collections.abc import Mapping

from .. import dims
from . import storage
from .plan import SLOT_ALIGNMENT, Plan
from .steps import touched


def arena_lives(plan: Plan) -> dict[str, tuple[int, int]]:
    """The steps that touch each buffer of the arena first and last, through its aliases too; what the call gives lives to its end."""
    lives: dict[str, tuple[int, int]] = {}
    ends = [name for _, name in (*plan.outputs, *plan.ties)]
    for number, names in enumerate((*map(touched, plan.steps), ends)):
        for name in names:
            held = plan.named[name].storage
            root = held.root if isinstance(held, storage.Alias) else name
            if isinstance(plan.named[root].storage, storage.Arena):
                lives[root] = (lives.get(root, (number, number))[0], number)
    return lives


def most_alive(plan: Plan, values: Mapping[str, int]) -> int:
    """Bytes that are alive at the step with most of them, in whole lines: no arena is smaller."""
    changes = [0] * (len(plan.steps) + 2)
    for name, (first, last) in arena_lives(plan).items():
        size = -(-dims.evaluate(plan.named[name].type.nbytes, values) // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        changes[first] += size
        changes[last + 1] -= size
    most = alive = 0
    for change in changes:
        alive += change
        most = max(most, alive)
    return most
