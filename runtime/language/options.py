"""What a caller may ask of a generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from ...ir.errors import InputError, UsageError
from .sampling import Sampling


class Generation(TypedDict, total=False):
    """The options of `generate`: at most `max_tokens` are made, the texts of `stop` end it and are not part of it, `raw` takes the
    prompt as it stands, `ignore_end` goes on behind the end of a turn; the others are those of `Sampling`.
    """

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int
    bias: Mapping[int, float]
    stop: str | Sequence[str]
    raw: bool
    ignore_end: bool


@dataclass(frozen=True)
class Wanted:
    """Options, read."""

    sampling: Sampling
    max_tokens: int
    stop: tuple[str, ...]
    ignore_end: bool


MOST_TOKENS = 256
"""Tokens that are made where nothing else is said."""


def read_generation(options: Generation) -> Wanted:
    """The options, checked; UsageError names one that there is not."""
    given: dict[str, Any] = dict(options)
    given.pop("raw", None)
    most, stop, ignore = given.pop("max_tokens", MOST_TOKENS), given.pop("stop", ()), bool(given.pop("ignore_end", False))
    unknown = given.keys() - Sampling.__dataclass_fields__.keys()
    if unknown:
        raise UsageError(f"generate() has no option {sorted(unknown)[0]!r}", hint=f"there are {', '.join(Generation.__annotations__)}")
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise InputError(f"max_tokens {most!r}: expected a whole number from 1 on")
    texts = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(text, str) and text for text in texts):
        raise InputError("stop: expected a text or several, none of them empty")
    return Wanted(Sampling(**given), most, texts, ignore)
