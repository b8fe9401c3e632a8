"""Slots of the arena: no two values that are alive together share one, and each slot is large enough whatever the sizes are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ourcc.ir import dims
from ourcc.passes.lower.arena import Lifetime, assign_slots

N = dims.symbol("N")
LIVES = st.tuples(st.sampled_from([4, 64, 8 * N, 4 * N + 16, N * N]), st.integers(0, 20), st.integers(0, 6))


@given(st.lists(LIVES, max_size=12), st.integers(1, 100))
def test_slots_hold_what_is_in_them(drawn: list[tuple[dims.Dim, int, int]], n: int) -> None:
    lives = [Lifetime(f"b{number}", size, start, start + length) for number, (size, start, length) in enumerate(drawn)]
    slots, places = assign_slots(lives, dims.Facts().with_range("N", 1, 100))
    bytes_of = {slot.name: max(dims.evaluate(size, {"N": n}) for size in slot.sizes) for slot in slots}
    assert places.keys() == {life.name for life in lives} and set(places.values()) == set(bytes_of)
    for number, life in enumerate(lives):
        assert dims.evaluate(life.size, {"N": n}) <= bytes_of[places[life.name]]
        for other in lives[:number]:
            if places[life.name] == places[other.name]:
                assert life.end < other.start or other.end < life.start


def test_a_slot_is_taken_again_as_soon_as_it_is_free() -> None:
    lives = [Lifetime("a", 64, 0, 1), Lifetime("b", 64, 1, 2), Lifetime("c", 64, 2, 3)]
    slots, places = assign_slots(lives, dims.NO_FACTS)
    assert len(slots) == 2 and places["a"] == places["c"] != places["b"]
