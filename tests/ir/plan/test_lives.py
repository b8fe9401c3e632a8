"""How long buffers of the arena live: from the first step that touches them to the last, or to the end of the call."""

from __future__ import annotations

from dataclasses import replace

from ourcc.ir.plan import Buffer, slot_offsets, storage
from ourcc.ir.plan.lives import arena_lives, most_alive

from .made import made


def test_buffers_live_from_their_first_step_to_their_last() -> None:
    plan = made()
    lives = arena_lives(plan)
    assert set(lives) == {buffer.name for buffer in plan.buffers if isinstance(buffer.storage, storage.Arena)}
    assert lives["a"] == (1, 3) and lives["b"] == (3, 5)


def test_what_reads_a_part_reads_the_whole() -> None:
    plan = made()
    part = Buffer("part", plan.named["a"].type, storage.Alias("a", 0, plan.named["a"].type.row_major))
    later = replace(plan, buffers=(*plan.buffers, part), outputs=(*plan.outputs, ("part", "part")))
    assert arena_lives(later)["a"] == (1, len(plan.steps))


def test_no_more_bytes_are_alive_than_the_arena_has() -> None:
    plan = made()
    for size in (1, 8, 512):
        most = most_alive(plan, {"S": size})
        assert 256 * size * 2 <= most <= slot_offsets(plan.slots, {"S": size})[1]
