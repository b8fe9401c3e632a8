"""Choosing the next token: greedy, or drawn from what temperature, top-k, top-p and min-p leave.

A draw depends on the seed, the number of the sequence's token and the logits alone, whatever else runs beside. Sources: Holtzman
et al. (2020) for top-p, Nguyen et al. (2024) for min-p, Keskar et al. (2019) for the repetition penalty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...ir.errors import InputError

Array = np.ndarray[Any, Any]
FLOORS = (1e-2, 1e-4, 1e-6, 0.0)
"""For top-p those tokens are sorted that are at least so many times as likely as the likeliest: the first number that leaves enough."""
BLOCK = 256
"""Tokens whose weights are added up first for a draw."""
STRIPS = 16
"""Pieces that a vocabulary is laid into, one under the other, to find numbers that are surely large by the maxima of columns."""


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
            (0 < self.repetition_penalty < float("inf"), f"repetition_penalty {self.repetition_penalty}: expected more than 0"),
            (0 <= self.seed < 1 << 63, f"seed {self.seed}: expected a whole number from 0 to {(1 << 63) - 1}"),
        )
        for holds, message in checks:
            if not holds:
                raise InputError(message)
        kept = [name for name, all_ in (("top_k", 0), ("top_p", 1), ("min_p", 0), ("seed", 0)) if getattr(self, name) != all_]
        if self.temperature == 0 and kept:
            hint = f"give temperature=0.7, say, or leave out {', '.join(kept)}"
            raise InputError(f"{kept[0]} has no effect: the temperature is 0, which takes the likeliest token", hint=hint)

    def choose(self, logits: Array, before: Sequence[int]) -> int:
        """The token after `before`, from f32[vocabulary]; InputError where no logit is a number."""
        scores = self._changed(logits, before)
        best = int(np.argmax(scores))
        if not np.isfinite(scores[best]):
            raise InputError(f"the model's logits after {len(before)} tokens hold NaN or no finite number", hint="its weights are damaged")
        if self.temperature == 0:
            return best
        tokens, weights = self._kept(scores, best)
        place = _drawn(weights, np.random.Generator(np.random.Philox(key=self.seed, counter=len(before))).random())
        return place if tokens is None else int(tokens[place])

    def _kept(self, scores: Array, best: int) -> tuple[Array | None, Array]:
        """The tokens that may be drawn (None: all) and their weights, the likeliest's 1: top-k first, of these min-p and top-p.

        Only as many are sorted as top-k and top-p look at; of equals those with smaller numbers stand in front.
        """
        tokens = _likeliest(scores, self.top_k) if 0 < self.top_k < len(scores) else None
        weights = (scores if tokens is None else scores[tokens]).astype(np.float64)
        weights -= float(scores[best])
        weights /= self.temperature
        np.exp(weights, out=weights)
        enough = self.top_p * weights.sum() if self.top_p < 1 else None
        if self.min_p > 0:
            tokens, weights = _at_least(self.min_p, tokens, weights)
        if enough is None:
            return tokens, weights
        for floor in FLOORS:
            found, shares = _at_least(floor, tokens, weights)
            order = np.argsort(-shares, kind="stable")
            below = np.cumsum(shares[order]) - shares[order] < enough
            if not below[-1]:
                break
        return found[order[below]], shares[order[below]]

    def _changed(self, logits: Array, before: Sequence[int]) -> Array:
        if not self.bias and (self.repetition_penalty == 1.0 or not before):
            return logits
        scores = logits.astype(np.float64)
        if self.repetition_penalty != 1.0 and before:
            seen = np.unique(np.asarray(before))
            scores[seen] = np.where(scores[seen] > 0, scores[seen] / self.repetition_penalty, scores[seen] * self.repetition_penalty)
        for token, value in self.bias.items():
            if not 0 <= token < len(scores):
                raise InputError(f"bias of token {token}: the vocabulary has {len(scores)}")
            scores[token] += value
        return scores


def _likeliest(scores: Array, count: int) -> Array:
    """The places of the `count` largest numbers, from the largest on; of equals the first come first."""
    width = len(scores) // STRIPS
    # So many columns hold a number as large as the least of their `count` largest maxima: none smaller is wanted.
    some = scores[: STRIPS * width].reshape(STRIPS, width).max(0) if width >= count else scores
    least = np.partition(some, len(some) - count)[len(some) - count]
    found = np.flatnonzero(scores >= least)
    return found[np.argsort(-scores[found], kind="stable")][:count]


def _drawn(weights: Array, share: float) -> int:
    """The place of which the weights before it are at most `share` of all and with it more: looked for among blocks, then in one."""
    sums = np.add.reduceat(weights, range(0, len(weights), BLOCK))
    ends = np.cumsum(sums)
    draw = share * ends[-1]
    block = min(int(np.searchsorted(ends, draw, side="right")), int(np.flatnonzero(sums)[-1]))
    inside = weights[block * BLOCK : (block + 1) * BLOCK]
    place = int(np.searchsorted(np.cumsum(inside), draw - (ends[block] - sums[block]), side="right"))
    return block * BLOCK + min(place, int(np.flatnonzero(inside)[-1]))


def _at_least(least: float, tokens: Array | None, weights: Array) -> tuple[Array, Array]:
    """The tokens (None: all) whose weights are no smaller, and these weights."""
    found = np.flatnonzero(weights >= least)
    return found if tokens is None else tokens[found], weights[found]


def _is_bias(item: tuple[Any, Any]) -> bool:
    token, value = item
    return isinstance(token, (int, np.integer)) and _is_number(value) and bool(value < float("inf"))


def _is_number(value: Any) -> bool:
    """Whether a value is a number that a float holds, or no number of a float's own."""
    if isinstance(value, (float, np.floating)):
        return True
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and abs(int(value)) < 1 << 1000
