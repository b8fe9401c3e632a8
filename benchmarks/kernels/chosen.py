"""What `--only` chooses of a benchmark's problems; a word that chooses none is one line of error that lists what there is."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

SHOWN = 40
"""Names that an error lists."""
T = TypeVar("T")


def chosen(parser: argparse.ArgumentParser, words: Sequence[str], things: Iterable[T], name: Callable[[T], str]) -> list[T]:
    """The things whose names hold one of the words, in their order; the empty word is in all names."""
    listed = list(things)
    order = [n for word in words for n, thing in enumerate(listed) if word in name(thing)]
    found = [listed[n] for n in dict.fromkeys(order)]
    if not found:
        names = list(dict.fromkeys(map(name, listed)))
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        parser.exit(
            2, f"{parser.prog}: error: nothing is called {','.join(words)!r}, expected a part of one of: {'; '.join(names[:SHOWN])}{more}\n"
        )
    return found
