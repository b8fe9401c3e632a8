"""What a caller may ask of the choice of a token, and how the engine is told: the op `sample_token` chooses.

A draw depends on the seed, the number of the sequence's token and the logits alone, whatever else runs beside.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ...ir.errors import InputError

Array = np.ndarray[Any, Any]
MOST = (1 << 63) - 1
"""The largest whole number that an engine is told."""
NO_EDITS = np.zeros((0, 2), np.int64), np.zeros((0, 2))


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; temperature 0 takes the likeliest, the smallest of equals, and nothing is left to keep from.

    `top_k` keeps so many tokens (0: all), `top_p` the fewest whose probabilities add up to it, `min_p` those at least so many
    times as likely as the likeliest. `repetition_penalty` divides positive logits of tokens that are there already, and
    multiplies negative ones. `bias` is added to logits by token.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            if not _is_number(value := getattr(self, name)):
                raise InputError(f"{name} {value!r:.80}: expected a number")
        for name in ("top_k", "seed"):
            if type(value := getattr(self, name)) is not int:
                raise InputError(f"{name} {value!r:.80}: expected a whole number")
        if not isinstance(self.bias, Mapping) or not all(map(_is_bias, self.bias.items())):
            raise InputError(f"bias {self.bias!r:.80}: expected numbers by token, a whole number")
        checks = (
            (self.temperature >= 0 and self.temperature < float("inf"), f"temperature {self.temperature}: expected 0 or more"),
            (self.top_k >= 0, f"top_k {self.top_k}: expected a whole number, 0 for all"),
            (0 < self.top_p <= 1, f"top_p {self.top_p}: expected more than 0 and at most 1"),
            (0 <= self.min_p <= 1, f"min_p {self.min_p}: expected 0 to 1"),
            (0 < self.repetition_penalty <= 1e100, f"repetition_penalty {self.repetition_penalty}: expected more than 0, at most 1e100"),
            (0 <= self.seed < 1 << 63, f"seed {self.seed}: expected a whole number from 0 to {(1 << 63) - 1}"),
        )
        for holds, message in checks:
            if not holds:
                raise InputError(message)
        kept = [name for name, all_ in (("top_k", 0), ("top_p", 1), ("min_p", 0), ("seed", 0)) if getattr(self, name) != all_]
        if self.temperature == 0 and kept:
            hint = f"give temperature=0.7, say, or leave out {', '.join(kept)}"
            raise InputError(f"{kept[0]} has no effect: the temperature is 0, which takes the likeliest token", hint=hint)

    def check(self, vocabulary: int) -> None:
        """InputError where the bias names a token outside of the vocabulary."""
        for token in self.bias:
            if not 0 <= token < vocabulary:
                raise InputError(f"bias of token {token}: the vocabulary has {vocabulary}")
        if len(self.bias) == vocabulary and all(value == -np.inf for value in self.bias.values()):
            raise InputError(f"bias: all {vocabulary} tokens are forbidden", hint="leave at least one that may be chosen")

    @functools.cached_property
    def _added(self) -> tuple[Array, Array]:
        """The tokens of the bias, and what is added to their scores."""
        return np.fromiter(self.bias, np.int64, len(self.bias)), np.fromiter(self.bias.values(), np.float64, len(self.bias))

    def edits(self, before: Sequence[int]) -> tuple[Array, Array]:
        """The tokens whose scores change behind those `before`, and f64[n, 2] penalties and what is added."""
        seen = np.unique(np.asarray(before, np.int64)) if self.repetition_penalty != 1.0 else NONE
        tokens, values = self._added
        edits = np.zeros((len(seen) + len(tokens), 2))
        edits[:, 0], edits[: len(seen), 0], edits[len(seen) :, 1] = 1, self.repetition_penalty, values
        return np.concatenate([seen, tokens]), edits


NONE = np.zeros(0, np.int64)
Draw: TypeAlias = tuple[Sampling, Sequence[int], int]
"""How a token is chosen, a text, and how many of its tokens stand before the one that is chosen."""


def operands(draws: Sequence[Draw]) -> list[Array]:
    """What the op `sample_token` is given beside logits, for some draws."""
    edits = [(row, *each.edits(text[:place])) for row, (each, text, place) in enumerate(draws) if each.bias or each.repetition_penalty != 1]
    edited = [np.stack([np.full(len(tokens), row), tokens], axis=1) for row, tokens, _ in edits]
    return [
        np.array([each.temperature for each, _, _ in draws], np.float64),
        np.array([min(each.top_k, MOST) for each, _, _ in draws], np.int64),
        np.array([each.top_p for each, _, _ in draws], np.float64),
        np.array([each.min_p for each, _, _ in draws], np.float64),
        np.array([each.seed for each, _, _ in draws], np.int64),
        np.array([place for _, _, place in draws], np.int64),
        np.concatenate([NO_EDITS[0], *edited]),
        np.concatenate([NO_EDITS[1], *(values for _, _, values in edits)]),
    ]


def _is_bias(item: tuple[Any, Any]) -> bool:
    token, value = item
    return isinstance(token, (int, np.integer)) and not isinstance(token, bool) and _is_number(value) and bool(value < float("inf"))


def _is_number(value: Any) -> bool:
    """Whether a value is a number that a float holds, or no number of a float's own."""
    if isinstance(value, (float, np.floating)):
        return True
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and abs(int(value)) < 1 << 1000
