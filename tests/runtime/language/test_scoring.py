"""Scores: every token but the first once, each from the logits behind the one before it in its window; divergences as defined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ourcc.ir.errors import InputError, UsageError
from ourcc.runtime.language.scoring import compare, score, windows

WORDS = 11


class Told:
    """A model whose logits are a function of all that it has seen since its window began."""

    def __init__(self, seed: int = 0, context: int = 64, chunk: int = 8, words: int = WORDS) -> None:
        self.facts = SimpleNamespace(context=context, chunk=chunk, vocabulary=words)
        self.seed = seed
        self.asked: list[tuple[int, int]] = []

    def sequence(self) -> Told:
        return self

    def row(self, tokens: Sequence[int]) -> np.ndarray[Any, Any]:
        return np.random.default_rng([self.seed, *tokens]).normal(0, 3, self.facts.vocabulary).astype(np.float32)

    def all_logits(self, tokens: Sequence[int], last: int) -> np.ndarray[Any, Any]:
        assert 1 <= last <= len(tokens) <= self.facts.context
        self.asked.append((len(tokens), last))
        return np.stack([self.row(tokens[: len(tokens) - last + n + 1]) for n in range(last)])


def softmax(row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = np.exp(row.astype(np.longdouble) - row.max())
    return wide / wide.sum()


def tokens_of(count: int, seed: int = 1) -> list[int]:
    return [int(each) for each in np.random.default_rng(seed).integers(0, WORDS, count)]


@pytest.mark.parametrize("seed", range(40))
def test_every_token_but_the_first_is_scored_once(seed: int) -> None:
    draw = np.random.default_rng(seed)
    count, window = int(draw.integers(2, 200)), int(draw.integers(2, 60))
    stride = int(draw.integers(1, window))
    scored = []
    for begin, first, end in windows(count, window, stride):
        assert begin < first < end <= begin + window
        scored += range(first, end)
        assert first - begin >= (1 if begin == 0 else window - stride)
    assert scored == list(range(1, count))


@pytest.mark.parametrize(("window", "stride", "chunk"), [(None, None, 8), (20, 7, 8), (20, 19, 3), (2, 1, 64), (64, 1, 5)])
def test_scores_are_those_of_each_window(window: int | None, stride: int | None, chunk: int) -> None:
    model, tokens, steps = Told(chunk=chunk), tokens_of(90), []
    found = score(model, tokens, window, stride, steps.append)
    rows = [
        (softmax(model.row(tokens[begin:at])), tokens[at])
        for begin, first, end in windows(90, window or 64, stride or 32)
        for at in range(first, end)
    ]
    np.testing.assert_allclose(found.log_probabilities, [np.log(row[token]) for row, token in rows], rtol=1e-12)
    np.testing.assert_array_equal(found.likeliest, [row.argmax() for row, _ in rows])
    assert found.nats == pytest.approx(-float(sum(np.log(row[token]) for row, token in rows)) / 89, rel=1e-14)
    assert found.perplexity == pytest.approx(math.exp(found.nats), rel=1e-14)
    assert found.bits_per_byte(90, 180) == pytest.approx(found.nats / math.log(2) / 2, rel=1e-14)
    assert sum(steps) == 89 and max(last for _, last in model.asked) <= chunk


def test_two_models_side_by_side() -> None:
    models, tokens = (Told(1), Told(2)), tokens_of(40)
    (found,) = compare(*models, tokens=tokens)
    p, q = ([softmax(model.row(tokens[:at])) for at in range(1, 40)] for model in models)
    np.testing.assert_allclose(found.forward, [float((a * np.log(a / b)).sum()) for a, b in zip(p, q, strict=True)], rtol=1e-11)
    np.testing.assert_allclose(found.backward, [float((b * np.log(b / a)).sum()) for a, b in zip(p, q, strict=True)], rtol=1e-11)
    assert found.agreement == np.mean([a.argmax() == b.argmax() for a, b in zip(p, q, strict=True)])
    np.testing.assert_array_equal(found.second.log_probabilities, score(models[1], tokens).log_probabilities)
    same, other = compare(models[0], models[0], models[1], tokens=tokens)
    assert not same.forward.any() and not same.backward.any() and same.agreement == 1
    np.testing.assert_array_equal(other.forward, found.forward)


def test_long_sums_lose_nothing() -> None:
    model = Told()
    model.row = lambda tokens: np.zeros(WORDS, np.float32)  # type: ignore[method-assign]
    found = score(model, tokens_of(60) * 200, 64, 60)
    assert found.nats == pytest.approx(math.log(WORDS), rel=1e-15) and found.perplexity == pytest.approx(WORDS, rel=1e-14)


def test_what_is_impossible() -> None:
    def rows(*impossible: int) -> Any:
        model = Told()
        model.row = lambda tokens: np.where(np.isin(np.arange(WORDS), impossible), -np.inf, 0).astype(np.float32)  # type: ignore[method-assign]
        return model

    (found,) = compare(rows(3), rows(3, 4), tokens=[1, 2, 5])
    np.testing.assert_array_equal(found.forward, [np.inf, np.inf])  # what P has and Q has not
    np.testing.assert_allclose(found.backward, math.log(10 / 9), rtol=1e-12)
    assert found.first.perplexity == pytest.approx(10)
    assert score(rows(2), [1, 2, 5]).perplexity == math.inf


def test_what_cannot_be_scored() -> None:
    for tokens in ([], [3]):
        with pytest.raises(InputError, match=f"has {len(tokens)} tokens"):
            score(Told(), tokens)
    for sizes, message in (
        ((1, None), "window 1"),
        ((65, None), "window 65: expected 2 to 64"),
        ((8, 8), "stride 8"),
        ((8, 0), "stride 0"),
    ):
        with pytest.raises(UsageError, match=message):
            score(Told(), [1, 2], *sizes)
    with pytest.raises(UsageError, match="11 and 12 words"):
        compare(Told(), Told(words=12), tokens=[1, 2])
    for bad in (np.nan, np.inf):
        model = Told()
        model.row = lambda tokens, bad=bad: np.asarray([0, bad], np.float32)  # type: ignore[method-assign, misc]
        with pytest.raises(InputError, match="NaN or no finite number"):
            score(model, [1, 0])
