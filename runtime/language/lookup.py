"""Guesses at the tokens that come next: what followed the last few of them where they stood before, and how many at once."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST, SHORTEST = 4, 2
"""So many of the last tokens are looked for, the longest run of them first."""


FEWEST, MOST = 3, 12
"""Tokens that are guessed at first and at most where nobody says how many."""
FIRST_PAUSE, LONGEST_PAUSE = 8, 64
"""Calls that pass without guesses after those of one call all failed."""


class Pace:
    """How many tokens are guessed at once where nobody says: more while all guesses hold, none for a while after none did.

    A call that reads guesses costs more than one that reads a token, so a text that does not repeat itself is left alone: after
    each guess that fails the pause is twice as long. It counts tokens and calls, never time: a text is made in the same calls anywhere.
    """

    def __init__(self) -> None:
        self._count, self._pause, self._waiting = FEWEST, FIRST_PAUSE, 0

    def most(self) -> int:
        """How many tokens the next call may guess."""
        if self._waiting:
            self._waiting -= 1
            return 0
        return self._count

    def learn(self, guessed: int, accepted: int) -> None:
        """Note what became of a call's guesses."""
        if accepted == guessed:
            self._count = min(2 * self._count, MOST)
        elif accepted:
            self._count = max(FEWEST, accepted)
        else:
            self._count, self._waiting = FEWEST, self._pause
        self._pause = FIRST_PAUSE if accepted else min(2 * self._pause, LONGEST_PAUSE)


class Lookup:
    """The runs of a text that grows, each with the place behind its latest occurrence that something follows.

    Source: prompt lookup decoding, Saxena (2023), after Leviathan et al., Fast Inference from Transformers via Speculative
    Decoding (2023).
    """

    def __init__(self) -> None:
        self._known = 0
        self._behind: dict[tuple[int, ...], int] = {}

    def guesses(self, tokens: Sequence[int], most: int) -> list[int]:
        """So many guesses at what follows, or none; `tokens` are those of the call before, and more."""
        self._learn(tokens)
        for size in range(LONGEST, SHORTEST - 1, -1):
            place = self._behind.get(tuple(tokens[-size:])) if len(tokens) > size else None
            if place is not None:
                return _copied(tokens, place, most)
        return []

    def _learn(self, tokens: Sequence[int]) -> None:
        """Note what stands before each token that is new: the run at the very end has nothing behind it yet."""
        for place in range(self._known, len(tokens)):
            for size in range(SHORTEST, LONGEST + 1):
                if place >= size:
                    self._behind[tuple(tokens[place - size : place])] = place
        self._known = len(tokens)


def _copied(tokens: Sequence[int], place: int, count: int) -> list[int]:
    """What stands at a place and behind it; behind the end stands the copy itself, so that what repeats itself goes on."""
    found: list[int] = []
    for each in range(place, place + count):
        found.append(tokens[each] if each < len(tokens) else found[each - len(tokens)])
    return found
