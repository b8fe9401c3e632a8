"""Suggestions for a word that is not in a list: the nearest one, as a sentence for an error's help."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """'did you mean X?' for the closest known word, None where nothing is close."""
    # Imported here: only an error needs it, and every start of the command line would pay for it.
    import difflib

    found = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"did you mean {found[0]!r}?" if found else None
