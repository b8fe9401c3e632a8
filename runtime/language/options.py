"""What a caller may ask of a generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from ...ir.errors import InputError, UsageError
from .sampling import Sampling


class Generation(TypedDict, total=False):
    """The options of `generate`: at most `max_tokens` are made, the texts of `stop` end it and are not part of it, `raw` takes the
    prompt as it stands, `ignore_end` goes on behind the end of a turn. `logprobs` notes each token's score with those of so many of the
    likeliest. `speculate` guesses so many tokens at once by what followed the last ones before; by default as many as hold, and of several
    prompts none. The others are those of `Sampling`.
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
    logprobs: int | None
    speculate: int | None


@dataclass(frozen=True)
class Wanted:
    """Options, read."""

    sampling: Sampling
    max_tokens: int
    stop: tuple[str, ...]
    ignore_end: bool
    raw: bool = False
    logprobs: int | None = None
    speculate: int | None = None


MOST_TOKENS = 256
"""Tokens that are made where nothing else is said."""
MOST_GUESSES = 64
"""So many tokens may be guessed at once."""


def read_generation(options: Generation) -> Wanted:
    """The options, checked; UsageError names one that there is not, InputError one that is of no use."""
    given: dict[str, Any] = dict(options)
    flags = {name: flag(name, given.pop(name, False)) for name in ("raw", "ignore_end")}
    most, stop = given.pop("max_tokens", MOST_TOKENS), given.pop("stop", ())
    logprobs, guesses = given.pop("logprobs", None), given.pop("speculate", None)
    unknown = given.keys() - Sampling.__dataclass_fields__.keys()
    if unknown:
        raise UsageError(
            f"generate() has no option {sorted(map(str, unknown))[0]!r}", hint=f"there are {', '.join(Generation.__annotations__)}"
        )
    return Wanted(
        Sampling(**given),
        _whole("max_tokens", most, 1),
        _texts(stop),
        logprobs=None if logprobs is None else _whole("logprobs", logprobs, 0),
        speculate=None if guesses is None else _whole("speculate", guesses, 0, MOST_GUESSES),
        **flags,
    )


def flag(name: str, value: Any) -> bool:
    """A choice of two; InputError for anything else, which is as good as a mistake."""
    if not isinstance(value, bool):
        raise InputError(f"{name} {value!r:.80}: expected True or False")
    return value


def _whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    if type(value) is not int or value < least or (most is not None and value > most):
        raise InputError(f"{name} {value!r:.80}: expected a whole number from {least} {'on' if most is None else f'to {most}'}")
    return value


def _texts(stop: Any) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, (list, tuple)) else (None,)
    if not all(isinstance(text, str) and text for text in texts):
        raise InputError(f"stop {stop!r:.80}: expected a text or several, none of them empty")
    return tuple(map(str, texts))
