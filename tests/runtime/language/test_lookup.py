"""Guesses: what followed the last tokens where they stood before, the latest time and the longest run first."""

from __future__ import annotations

import random

from ourcc.runtime.language.lookup import LONGEST, SHORTEST, Lookup


def plainly(tokens: list[int], most: int) -> list[int]:
    """The same by searching."""
    for size in range(LONGEST, SHORTEST - 1, -1):
        run = tokens[-size:]
        places = [n + size for n in range(len(tokens) - size) if tokens[n : n + size] == run]
        if len(tokens) > size and places:
            period = tokens[places[-1] :]
            return (period * (most // len(period) + 1))[:most] if most > 0 else []
    return []


def test_what_followed_before() -> None:
    assert Lookup().guesses([1, 2, 3, 4, 9, 9, 1, 2], 2) == [3, 4]
    assert Lookup().guesses([1, 2, 3, 1, 2, 4, 1, 2], 1) == [4]
    assert Lookup().guesses([5, 1, 2, 3, 1, 2, 4, 5, 1, 2], 1) == [3]
    assert Lookup().guesses([7, 7, 7], 4) == [7, 7, 7, 7]
    assert Lookup().guesses([9, 7, 8, 7, 8], 5) == [7, 8, 7, 8, 7]
    for tokens in ([], [1], [1, 1], [1, 2, 3]):
        assert Lookup().guesses(tokens, 4) == []
    assert Lookup().guesses([1, 2, 3, 1, 2], 0) == []


def test_guesses_are_those_of_a_search_as_a_text_grows() -> None:
    drawn = random.Random(3)
    for _ in range(50):
        lookup, tokens = Lookup(), list[int]()
        while len(tokens) < 60:
            tokens += [drawn.randrange(4) for _ in range(drawn.randint(1, 6))]
            most = drawn.randint(1, 8)
            assert lookup.guesses(tokens, most) == plainly(tokens, most)
