"""Words that name one of several: suggestions for one that is not in a list, as a sentence for an error's help."""

from __future__ import annotations

from collections.abc import Iterable

from .errors import UsageError


def nearest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """'did you mean X?' for the closest of known words; None where none is close."""
    found = closest(word, known, cutoff)
    return None if found is None else f"did you mean {found!r}?"


def closest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """The first known word that begins with this one, else the closest; None where nothing is close.

    Capitals are as good as small letters.
    """
    spelled = {each.lower(): each for each in known}
    small = word.lower()
    if small in spelled and spelled[small] != word:
        return spelled[small]
    longer = next((each for low, each in spelled.items() if len(word) > 1 and each != word and low.startswith(small)), None)
    if longer is not None:
        return longer
    # Imported here: only an error needs it, and every start of the command line would pay for it.
    import difflib

    found = difflib.get_close_matches(small, spelled, n=1, cutoff=cutoff)
    return spelled[found[0]] if found else None


def function_of(functions: Iterable[str], asked: str | None) -> str:
    """The function of an engine that a command is to call: the one asked for, else the first, the entry."""
    names = tuple(functions)
    if asked is not None and asked not in names:
        raise UsageError(f"--function {asked}: the engine has {', '.join(names)}", hint=nearest(asked, names))
    return asked or names[0]
