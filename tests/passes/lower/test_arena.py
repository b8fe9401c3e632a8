"""Slots of the arena: no two values that are alive together share bytes, whatever the sizes are; at the workload's the arena is small."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ourcc.ir import dims
from ourcc.ir.plan import Slot, slot_offsets
from ourcc.ir.workload import Point, Workload
from ourcc.passes.lower import arena
from ourcc.passes.lower.arena import Lifetime, assign_slots

N = dims.symbol("N")
FACTS = dims.Facts().with_range("N", 0, 100)
SIZES: list[dims.Dim] = [0, 4, 64, 100, 8 * N, 4 * N + 16, N * N, 640]
LIVES = st.lists(st.tuples(st.sampled_from(SIZES), st.integers(0, 20), st.integers(0, 6)), max_size=14)


def lives_of(drawn: list[tuple[dims.Dim, int, int]]) -> list[Lifetime]:
    return [Lifetime(f"b{number}", size, start, start + length) for number, (size, start, length) in enumerate(drawn)]


def at_workload(n: int) -> Workload:
    return Workload((Point((("N", n),)),))


def alive_together(lives: list[Lifetime]) -> list[tuple[Lifetime, Lifetime]]:
    return [(a, b) for a, b in itertools.combinations(lives, 2) if a.start <= b.end and b.start <= a.end]


def least(lives: list[Lifetime], n: int) -> int:
    """The bytes that are alive at the step with most of them, in whole lines."""
    lines = {life: -(-dims.evaluate(life.size, {"N": n}) // 64) * 64 for life in lives}
    return max((sum(lines[life] for life in lives if life.start <= step <= life.end) for step in range(30)), default=0)


@given(LIVES, st.integers(0, 100), st.integers(0, 100))
def test_buffers_that_are_alive_together_share_no_byte(drawn: list[tuple[dims.Dim, int, int]], n: int, at: int) -> None:
    lives = lives_of(drawn)
    slots, places = assign_slots(lives, FACTS, at_workload(at))
    offsets, total = slot_offsets(slots, {"N": n})
    assert places.keys() == {life.name for life in lives} and set(places.values()) == {slot.name for slot in slots}
    sizes = {life.name: dims.evaluate(life.size, {"N": n}) for life in lives}
    first = {life.name: offsets[places[life.name]] for life in lives}
    assert all(first[name] % 64 == 0 and first[name] + size <= total for name, size in sizes.items())
    for one, other in alive_together(lives):
        a, b = sorted((one.name, other.name), key=lambda name: (first[name], sizes[name]))
        assert places[a] != places[b] and first[a] + sizes[a] <= first[b]


@given(LIVES)
def test_a_slot_says_no_more_than_it_has_to(drawn: list[tuple[dims.Dim, int, int]]) -> None:
    """Without one of the slots that it lies above, it would share bytes with a buffer that is alive with one of its own."""
    lives = lives_of(drawn)
    slots, places = assign_slots(lives, FACTS)
    held = {frozenset((places[a.name], places[b.name])) for a, b in alive_together(lives)}
    for slot in slots:
        assert all(frozenset((slot.name, below)) in held for below in slot.above)
        for gone in slot.above:
            rest = tuple(replace(s, above=tuple(b for b in s.above if b != gone)) if s is slot else s for s in slots)
            assert gone not in below(rest, slot.name)


def below(slots: tuple[Slot, ...], name: str) -> set[str]:
    direct = {slot.name: slot.above for slot in slots}[name]
    return set(direct).union(*(below(slots, each) for each in direct))


def test_a_large_buffer_has_its_bytes_taken_by_small_ones() -> None:
    lives = [Lifetime("large", 32 * N, 0, 1), Lifetime("one", 8 * N, 2, 4), Lifetime("two", 16 * N, 3, 5), Lifetime("three", 8 * N, 5, 6)]
    slots, places = assign_slots(lives, dims.Facts().with_range("N", 1, 100))
    for n in (1, 8, 100):
        assert slot_offsets(slots, {"N": n})[1] == max(-(-32 * n // 64) * 64, -(-8 * n // 64) * 64 + -(-16 * n // 64) * 64)
    assert places["one"] == places["three"] or places["three"] != places["two"]


def test_layers_that_are_alike_share_their_slots() -> None:
    """However many there are: as few slots as one takes, and no more bytes than are alive."""
    lives = [Lifetime("x0", 64 * N, 0, 1)]
    for layer in range(40):
        step = 4 * layer + 1
        lives += [Lifetime(f"h{layer}", 256 * N, step, step + 1), Lifetime(f"a{layer}", 64 * N, step + 1, step + 3)]
        lives += [Lifetime(f"x{layer + 1}", 64 * N, step + 3, step + 5)]
    slots, _ = assign_slots(lives, dims.Facts().with_range("N", 1, 100))
    assert len(slots) <= 5 and slot_offsets(slots, {"N": 7})[1] == 7 * (64 + 256 + 64)
    assert least([replace(life, start=life.start, end=life.end) for life in lives][:9], 7) == 7 * (64 + 256 + 64)


@given(LIVES)
def test_at_the_workload_the_arena_is_seldom_larger_than_what_is_alive(drawn: list[tuple[dims.Dim, int, int]]) -> None:
    lives = lives_of(drawn)
    slots, _ = assign_slots(lives, FACTS, at_workload(40))
    total = slot_offsets(slots, {"N": 40})[1]
    assert least(lives, 40) <= total <= sum(-(-dims.evaluate(life.size, {"N": 40}) // 64) * 64 for life in lives)


@given(LIVES, st.integers(0, 100))
def test_more_orders_than_a_plan_may_say_are_one_order_of_all(drawn: list[tuple[dims.Dim, int, int]], n: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, "MOST_ABOVE", 0)
        slots, places = assign_slots(lives_of(drawn), FACTS)
    offsets, total = slot_offsets(slots, {"N": n})
    assert [slot.above for slot in slots] in ([()] * len(slots), [(), *((before.name,) for before in slots[:-1])])
    assert set(places.values()) == set(offsets) and total >= least(lives_of(drawn), n)
