"""The choice of the next token of a text: greedy, or drawn from what temperature, top-k, top-p and min-p leave.

Sources: Holtzman et al. (2020) for top-p, Nguyen et al. (2024) for min-p, Keskar et al. (2019) for the repetition penalty, Salmon
et al. (2011) for Philox. On a CPU it runs in C (`codegen/host/sample_token.c`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import VerifyError
from ..types import TensorType, f32, f64, i64
from .sampling import draw, refused
from .table import Sample, opaque

Tensor = np.ndarray[Any, Any]
LEAST = -87.0
"""A weight below e to this power is 0: it is no normal number of f32."""
TINY = float(np.finfo(np.float64).tiny)
"""What is enough at least: the likeliest token stays."""
FLOORS = (1e-2, 1e-4, 1e-6, 0.0)
"""For top-p those weights are sorted that are no smaller than the first number that leaves enough."""


@opaque()
def sample_token(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    place: Tensor,
    edited: Tensor,
    edits: Tensor,
    /,
) -> tuple[Tensor, Tensor]:
    """A token i64[R] for each row of logits f32[R, V], and f32[R, V] weights: how many times as likely as the likeliest each is.

    First single scores are changed: `edited` i64[E, 2] are (row, token), `edits` f64[E, 2] a penalty, by which a positive score is
    divided and another one multiplied, and what is added then; pairs outside of the logits count for nothing. Temperature 0 takes the
    largest score, the first of equals. Else `top_k` scores are kept, the first of equals (0: all), and have the weights
    e^((score - largest) / temperature). Of these stay those of at least `min_p`, and the fewest that add up to `top_p` of all, the
    largest first and of equals the first; the likeliest always stays. All others weigh 0. The token is the one at which weights, added
    up in the order of tokens, exceed u of all, u being the first number from 0 to 1 of the Philox 4x64-10 block `place` + 1 with the key
    `seed`. It is -1, and weights are 0, where a score is NaN or the largest is infinite.
    """
    found = []
    for row, numbers in enumerate(zip(temperature, top_k, top_p, min_p, seed, place, strict=True)):
        own = edited[:, 0] == row
        found.append(_row(_changed(logits[row].astype(np.float32), edits[own], edited[own, 1]), *numbers))
    tokens = np.asarray([token for token, _ in found], np.int64)
    return tokens, np.asarray([weights for _, weights in found], np.float32).reshape(logits.shape)


def _row(scores: Tensor, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, place: int) -> tuple[int, Tensor]:
    weights = np.zeros(len(scores), np.float32)
    best = int(np.argmax(scores))
    if not np.isfinite(scores[best]):
        return -1, weights
    if not temperature > 0:
        weights[best] = 1
        return best, weights
    kept = _largest(scores, top_k) if 0 < top_k < len(scores) else np.arange(len(scores))
    rate = min(max(1 / max(temperature, 1e-300), 1e-100), 1e300)
    with np.errstate(over="ignore"):
        powers = (scores[kept].astype(np.float64) - float(scores[best])) * rate
    weights[kept] = np.where(powers < LEAST, 0, np.exp(np.maximum(powers, LEAST)))
    enough = max(top_p * weights.sum(dtype=np.float64), TINY)
    if min_p > 0:
        weights[weights < np.float32(min(min_p, 1))] = 0
    if top_p < 1:
        weights = _fewest(weights, enough)
    return _drawn(weights, np.random.Generator(np.random.Philox(key=int(seed), counter=int(place))).random()), weights


def _largest(scores: Tensor, count: int) -> Tensor:
    """The places of the `count` largest, of equals the first: only those are sorted that are no smaller than the last of them."""
    found = np.flatnonzero(scores >= np.partition(scores, len(scores) - count)[len(scores) - count])
    return found[np.argsort(-scores[found], kind="stable")][:count]


def _fewest(weights: Tensor, enough: float) -> Tensor:
    """The weights without those that the largest, which add up to `enough`, can do without: few are sorted where few are enough."""
    for floor in FLOORS:
        found = np.flatnonzero(weights >= floor)
        if weights[found].sum(dtype=np.float64) >= enough:
            break
    order = found[np.argsort(-weights[found], kind="stable")]
    kept = order[np.cumsum(weights[order], dtype=np.float64) - weights[order] < enough]
    result = np.zeros_like(weights)
    result[kept] = weights[kept]
    return result


def _changed(scores: Tensor, edits: Tensor, tokens: Tensor) -> Tensor:
    most = float(np.finfo(np.float32).max)
    for (penalty, added), token in zip(edits, tokens, strict=True):
        if 0 <= token < len(scores):
            score = float(scores[token])
            score = (score / penalty if score > 0 else score * penalty) + added
            scores[token] = score if np.isinf(score) and score < 0 else np.clip(score, -most, most)
    return scores


def _drawn(weights: Tensor, share: float) -> int:
    sums = np.cumsum(weights, dtype=np.float64)
    return min(int(np.searchsorted(sums, share * sums[-1], side="right")), int(np.flatnonzero(weights)[-1]))


@sample_token.infers
def _(*types: TensorType) -> tuple[TensorType, TensorType]:
    logits, *rows, edited, edits = types
    if logits.dtype != f32 or logits.rank != 2 or logits.shape[1] == 0:
        raise VerifyError(f"sample_token: got logits {logits}, expected f32 rows that are not empty")
    for name, dtype, type in zip(ROWS, (f64, i64, f64, f64, i64, i64), rows, strict=True):
        if type != TensorType(dtype, logits.shape[:1]):
            raise VerifyError(f"sample_token: got {name} {type}, expected {TensorType(dtype, logits.shape[:1])}")
    pairs = edited.rank == 2 and edited.shape[1] == 2 and edits == edited.with_dtype(f64)
    if edited.dtype != i64 or not pairs:
        raise VerifyError(f"sample_token: got edited {edited} and edits {edits}, expected i64[E, 2] and f64[E, 2]")
    return TensorType(i64, logits.shape[:1]), logits


ROWS = ("temperature", "top_k", "top_p", "min_p", "seed", "place")
"""The operands that have a number for each row."""


@sample_token.samples
def _() -> Iterator[Sample]:
    ones, none = np.ones(4), (np.zeros((0, 2), np.int64), np.zeros((0, 2)))
    numbers = np.arange(4)
    several = (np.array([0, 0.7, 1.0, 2.0]), np.array([0, 3, 0, 900]), np.array([1, 1, 0.8, 0.6]), np.array([0, 0, 0.1, 0]))
    edited = np.array([[0, 2], [1, 0], [1, 3], [9, 0], [2, 99]]), np.array([[1.3, 0], [1.0, -np.inf], [1, 5], [2, 2], [1, 1]])
    for changed in (none, edited):
        yield Sample((draw(4, 40), *several, numbers, numbers[::-1].copy(), *changed))
    yield Sample((np.zeros((4, 5), np.float32), *several, numbers, numbers, *none))
    yield Sample((np.zeros((0, 5), np.float32), ones[:0], numbers[:0], ones[:0], ones[:0], numbers[:0], numbers[:0], *none))
    rows = (ones, numbers, ones, ones, numbers, numbers)
    yield refused((draw(4), *rows, *none), "got logits f32[4], expected f32 rows that are not empty")
    yield refused((draw(4, 0), *rows, *none), "got logits f32[4, 0], expected f32 rows that are not empty")
    yield refused((draw(4, 5), ones[:3], *rows[1:], *none), "got temperature f64[3], expected f64[4]")
    yield refused((draw(4, 5), *rows, none[0], none[1][:, :1]), "expected i64[E, 2] and f64[E, 2]")
