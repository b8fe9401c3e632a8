"""How well language models predict a text: the log-probability of each of its tokens, read in windows; models side by side.

A window begins every `stride` tokens and holds `window` of them, and of each only what no window before it held is scored: all
tokens but the first are, each once, behind at least `window - stride` others once there are so many. Logarithms are natural, sums
are of float64 and exact but for their last rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...ir.errors import InputError, UsageError
from .given import whole_numbers

Array = np.ndarray[Any, Any]
ROWS = 32
"""Positions whose probabilities are held in float64 at a time."""


class Sized(Protocol):
    """What is asked of a model's facts: words, tokens that a session holds, tokens of a prompt that are read in one call."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def context(self) -> int: ...

    @property
    def chunk(self) -> int: ...


class Reader(Protocol):
    """What is asked of a sequence: f32[last, vocabulary] behind the last of the tokens."""

    def all_logits(self, tokens: Sequence[int], last: int) -> Array: ...


class Predictor(Protocol):
    """What is asked of a model: its sizes, and sequences; a `LanguageModel` is one."""

    @property
    def facts(self) -> Sized: ...

    def sequence(self) -> Reader: ...


@dataclass(frozen=True)
class Scores:
    """What a model says of tokens 1, 2, ... of a text: f64[n] log-probabilities of them, i64[n] the likeliest in their places."""

    log_probabilities: Array
    likeliest: Array

    @property
    def nats(self) -> float:
        """The mean of what each token costs, the cross entropy in nats."""
        return -math.fsum(self.log_probabilities) / len(self.log_probabilities)

    @property
    def perplexity(self) -> float:
        """e to the power of the cross entropy; infinite where a token is said to be impossible."""
        return float(np.exp(self.nats))

    def bits_per_byte(self, tokens: int, size: int) -> float:
        """Cross entropy in bits for each of the `size` bytes of a text of so many tokens (Gao et al., The Pile, 2020, section 3.1)."""
        return self.nats / math.log(2) * tokens / size


@dataclass(frozen=True)
class Comparison:
    """Two models on one text: their scores, and f64[n] Kullback-Leibler divergences at each place, in nats.

    `forward` is the sum of P log(P / Q) over the vocabulary, P the first model's probabilities and Q the second one's; `backward`
    has them the other way around.
    """

    first: Scores
    second: Scores
    forward: Array
    backward: Array

    @property
    def agreement(self) -> float:
        """The share of places where both find the same token the likeliest."""
        return float(np.mean(self.first.likeliest == self.second.likeliest))


def _nobody(count: int) -> None:
    """Hears how much is done, and tells no one."""


def score(
    model: Predictor, tokens: Sequence[int], window: int | None = None, stride: int | None = None, told: Callable[[int], None] = _nobody
) -> Scores:
    """The scores of tokens; `told` hears how many more of them are done.

    `window` is 2 to the model's context (default: all of it), `stride` 1 to `window - 1` (default: half of it).
    """
    return Scores(*(np.concatenate(part) for part in zip(*_scored([model], tokens, window, stride, told, _one), strict=True)))


def compare(
    model: Predictor,
    *others: Predictor,
    tokens: Sequence[int],
    window: int | None = None,
    stride: int | None = None,
    told: Callable[[int], None] = _nobody,
) -> list[Comparison]:
    """A model and each of the others on the same tokens in the same windows, as `score` takes them; all must have one vocabulary."""
    for other in others:
        if other.facts.vocabulary != model.facts.vocabulary:
            raise UsageError(f"the models have {model.facts.vocabulary} and {other.facts.vocabulary} words, expected one vocabulary")
    parts = [np.concatenate(part) for part in zip(*_scored([model, *others], tokens, window, stride, told, _several), strict=True)]
    return [Comparison(Scores(*parts[:2]), Scores(*parts[n : n + 2]), *parts[n + 2 : n + 4]) for n in range(2, len(parts), 4)]


def sizes_of(models: Sequence[Predictor], window: int | None, stride: int | None) -> tuple[int, int]:
    """Window and stride, checked; UsageError for what the models cannot read."""
    most = min(model.facts.context for model in models)
    for name, size in (("window", window), ("stride", stride)):
        if size is not None and type(size) is not int:
            raise UsageError(f"{name} {size!r:.80}: expected a whole number")
    window = most if window is None else window
    if not 2 <= window <= most:
        raise UsageError(f"window {window}: expected 2 to {most} tokens, which a session holds", hint="build with a larger --context")
    stride = max(window // 2, 1) if stride is None else stride
    if not 1 <= stride < window:
        raise UsageError(f"stride {stride}: expected 1 to {window - 1}, so that each token stands behind another one of its window")
    return window, stride


def windows(count: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Where each window begins, what it scores first, and where it ends, of so many tokens."""
    begin, first = 0, 1
    while first < count:
        end = min(begin + window, count)
        yield begin, first, end
        begin, first = begin + stride, end


_Row = Callable[[Sequence[Array], Array], tuple[Array, ...]]


def _scored(
    models: Sequence[Predictor],
    tokens: Sequence[int],
    window: int | None,
    stride: int | None,
    told: Callable[[int], None],
    row: _Row,
) -> Iterator[tuple[Array, ...]]:
    """What `row` says of the models' logits [n, vocabulary] and the tokens [n] that follow, for some places after the other."""
    held = whole_numbers(tokens)
    if len(held) < 2:
        raise InputError(f"the text has {len(held)} tokens: the first one follows nothing, so there is nothing to predict")
    window, stride = sizes_of(models, window, stride)
    piece = max(model.facts.chunk for model in models)
    sequences = [model.sequence() for model in models]
    for begin, first, end in windows(len(held), window, stride):
        for low in range(first, end, piece):
            high = min(low + piece, end)
            # What predicts a token is what the model says behind the one before.
            logits = [sequence.all_logits(held[begin : high - 1], last=high - low) for sequence in sequences]
            for at in range(0, high - low, ROWS):
                part = [each[at : at + ROWS] for each in logits]
                yield row(part, np.asarray(held[low + at : min(low + at + ROWS, high)]))
            told(high - low)


def _one(logits: Sequence[Array], tokens: Array) -> tuple[Array, ...]:
    return _scores_of(logarithms(logits[0]), logits[0], tokens)


def _several(logits: Sequence[Array], tokens: Array) -> tuple[Array, ...]:
    """Scores of the first, then of each other its scores and both divergences."""
    first = logarithms(logits[0])
    found = [*_scores_of(first, logits[0], tokens)]
    for said in logits[1:]:
        other = logarithms(said)
        found += [*_scores_of(other, said, tokens), _divergence(first, other), _divergence(other, first)]
    return tuple(found)


def _scores_of(logarithms: Array, logits: Array, tokens: Array) -> tuple[Array, Array]:
    return np.take_along_axis(logarithms, tokens[:, None], axis=1)[:, 0], np.argmax(logits, axis=1)


def logarithms(logits: Array) -> Array:
    """Logarithms of probabilities, f64; InputError where logits are no numbers."""
    wide = logits.astype(np.float64)
    best = wide.max(axis=1, keepdims=True)
    if not np.isfinite(best).all():
        raise InputError("the model's logits hold NaN or no finite number", hint="its weights are damaged")
    shifted = wide - best
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def _divergence(p: Array, q: Array) -> Array:
    """The sum of P log(P / Q) of each row of logarithms; what is impossible to P counts nothing."""
    possible = np.isfinite(p)
    terms = np.where(possible, np.exp(p) * (np.where(possible, p, 0) - np.where(possible, q, 0)), 0)
    # Rounding may leave a sum of equals just below 0.
    result: Array = np.maximum(terms.sum(axis=1), 0)
    return result
