"""Speculation: the same text in fewer calls, greedily and by draws; scores of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ourcc
from ourcc.runtime.language.lookup import FEWEST, FIRST_PAUSE, LONGEST_PAUSE, MOST, Lookup, Pace
from ourcc.runtime.language.model import LanguageModel
from ourcc.runtime.language.sequence import Sequences
from ourcc.runtime.language.writing import Told

from .conftest import logits_of
from .test_architectures import tokens_of
from .test_forks import calls

Both = tuple[LanguageModel, Any, Path]


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}, {"temperature": 0.7, "top_k": 9, "repetition_penalty": 1.2}])
def test_a_text_is_the_same_with_guesses(both: Both, options: Any) -> None:
    engine = both[0]
    for seed in range(4):
        # Short texts over few tokens repeat themselves; a bias keeps the draws among them.
        prompt = [int(token) + 5 for token in np.random.default_rng(seed).integers(0, 3, 20)]
        given: Any = {"max_tokens": 30, "ignore_end": True, "bias": {5: 6.0, 6: 6.0, 7: 6.0}, **options}
        plain = engine.generate(prompt, speculate=0, **given)
        expected = "".join(plain)
        for guesses in (None, 1, 4, 16):
            answer = engine.generate(prompt, speculate=guesses, **given)
            assert "".join(answer) == expected
            assert answer.told.made == plain.told.made and answer.told.guessed >= answer.told.accepted
        assert answer.told.accepted > 0 and plain.told.guessed == 0


def test_right_guesses_save_calls(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    # What the model says goes before, as if it copied: every guess is right.
    engine, start = both[0], tokens_of(4, seed=2)
    first = engine.generate(start, max_tokens=20, ignore_end=True, speculate=0)
    list(first)
    text = [*start, *first.told.made]
    monkeypatch.setattr(Lookup, "guesses", lambda self, tokens, most: text[len(tokens) : len(tokens) + most])
    read = calls(monkeypatch)
    answer = engine.generate(start, max_tokens=20, ignore_end=True, speculate=4)
    list(answer)
    assert answer.told.made == first.told.made
    assert len(read) == 4 and answer.told.accepted == 16
    # None of them right: as many calls as tokens, and the same text.
    monkeypatch.setattr(Lookup, "guesses", lambda self, tokens, most: [(text[len(tokens)] + 1) % 97] * most if most > 0 else [])
    read.clear()
    answer = engine.generate(start, max_tokens=20, ignore_end=True, speculate=4)
    list(answer)
    assert answer.told.made == first.told.made and len(read) == 20 and answer.told.accepted == 0


def test_copying_takes_fewer_calls(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    read = calls(monkeypatch)
    counts = []
    for guesses in (0, 8):
        read.clear()
        list(both[0].generate([5, 6, 7, 8] * 6, max_tokens=24, ignore_end=True, bias={5: 99.0}, speculate=guesses))
        counts.append(len(read))
    assert counts[0] == 24 and counts[1] <= 24 // 4


def test_guesses_stay_inside_of_what_is_asked(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, call = list[int](), Sequences._call
    monkeypatch.setattr(
        Sequences, "_call", lambda self, group, name, inputs: (seen.append(len(inputs[2])), call(self, group, name, inputs))[1]
    )
    engine = both[0]
    for options in ({"max_tokens": 3}, {"max_tokens": 99}):
        plain, guessing = (engine.generate([5] * 58, ignore_end=True, bias={5: 99.0}, speculate=n, **options) for n in (0, 16))  # type: ignore[arg-type]
        assert "".join(plain) == "".join(guessing)
        assert (plain.told.ended, len(plain.told.made)) == (guessing.told.ended, len(guessing.told.made))
    assert max(seen) <= engine.facts.context


def test_a_stop_inside_of_guesses(both: Both) -> None:
    engine = both[0]
    given: Any = {"max_tokens": 30, "ignore_end": True, "bias": {5: 9.0, 6: 9.0}, "temperature": 1.0}
    prompt = [5, 6, 5, 5, 6, 6, 5, 6, 5]
    whole = "".join(engine.generate(prompt, **given))
    for first in range(2, len(whole) - 3, 4):
        answers = [engine.generate(prompt, stop=whole[first : first + 3], speculate=n, **given) for n in (0, 8)]
        assert "".join(answers[0]) == "".join(answers[1]) and answers[0].told.made == answers[1].told.made


def test_draws_with_guesses_follow_the_model(both: Both) -> None:
    """The second token behind a prompt, over seeds, against the model's probabilities: chi-squared below one sample in a million."""
    engine, model, _ = both
    prompt, count, bias = [9, 5, 6, 5, 6, 5], 1200, {5: 4.0, 6: 4.0, 7: 3.0}
    sequence, drawn, accepted = engine.sequence(), [], 0
    for seed in range(count):
        told = Told()
        list(
            engine.follow(
                sequence, prompt, told, max_tokens=2, ignore_end=True, temperature=1.0, seed=seed, bias=bias, top_k=3, speculate=2
            )
        )
        drawn.append(tuple(told.made))
        accepted += told.accepted

    def shares(tokens: list[int]) -> dict[int, float]:
        row = logits_of(model, tokens)[-1].astype(np.float64)
        for token, value in bias.items():
            row[token] += value
        top = np.argsort(-row)[:3]
        weights = np.exp(row[top] - row[top].max())
        return dict(zip(top.tolist(), (weights / weights.sum()).tolist(), strict=True))

    expected = {(a, b): p * q for a, p in shares(prompt).items() for b, q in shares([*prompt, a]).items()}
    assert set(drawn) <= set(expected) and 0 < accepted < count
    statistic = sum((drawn.count(pair) - count * share) ** 2 / (count * share) for pair, share in expected.items())
    # 8 degrees of freedom.
    assert statistic < 42.7


@pytest.mark.parametrize("guesses", [0, 4])
def test_scores_are_those_of_the_model(both: Both, guesses: int) -> None:
    engine, model, _ = both
    prompt = [5, 6, 5, 6, 5]
    answer = engine.generate(prompt, max_tokens=8, ignore_end=True, temperature=1.0, logprobs=3, speculate=guesses, bias={5: 9.0, 6: 9.0})
    list(answer)
    told = answer.told
    assert [score.token for score in told.logprobs] == told.made and len(told.made) == 8
    rows = logits_of(model, [*prompt, *told.made])[len(prompt) - 1 : -1].astype(np.float64)
    logs = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
    for score, row in zip(told.logprobs, logs, strict=True):
        assert abs(score.logprob - row[score.token]) < 1e-4
        assert [token for token, _ in score.top] == np.argsort(-row, kind="stable")[:3].tolist()
        assert np.allclose([each for _, each in score.top], np.sort(row)[::-1][:3], atol=1e-4)
    none = engine.generate(prompt, max_tokens=2)
    list(none)
    assert none.told.logprobs == []


def test_batches_guess_too(both: Both) -> None:
    batched: Any = ourcc.build(both[2].parent, tune="off", batch=3)
    prompts = [[5, 6, 7] * 5, [8, 8, 8, 8], tokens_of(12)]
    given: Any = {"max_tokens": 16, "ignore_end": True, "temperature": 0.8, "bias": {5: 5.0, 6: 5.0, 7: 5.0, 8: 5.0}}
    texts = []
    for guesses in (0, 5):
        answer, found = batched.generate_batch(prompts, speculate=guesses, **given), ["", "", ""]
        for number, piece in answer:
            found[number] += piece
        texts.append(found)
    assert texts[0] == texts[1] and sum(told.accepted for told in answer.all_told) > 0


def test_the_pace_rises_while_guesses_hold_and_rests_after_they_failed() -> None:
    pace, counts = Pace(), []
    for _ in range(4):
        counts.append(pace.most())
        pace.learn(counts[-1], counts[-1])
    assert counts == [FEWEST, 2 * FEWEST, MOST, MOST]
    pace.learn(MOST, 5)
    assert pace.most() == 5
    rests = []
    for _ in range(5):
        pace.learn(FEWEST, 0)
        rests.append(next(calls for calls in range(99) if pace.most()))
    assert rests == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    pace.learn(FEWEST, 1)
    pace.learn(FEWEST, 0)
    assert next(calls for calls in range(99) if pace.most()) == FIRST_PAUSE


def test_a_text_that_repeats_nothing_is_rarely_guessed_at(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong guesses at every place: of 40 calls four read any, and two texts at once read none."""
    wrong = lambda self, tokens, most: [(tokens[-1] + 50) % 97] * most  # noqa: E731
    monkeypatch.setattr(Lookup, "guesses", wrong)
    prompt, given = tokens_of(6, seed=1), {"max_tokens": 40, "ignore_end": True, "bias": {5: 60.0, 6: 60.0}}
    answer = both[0].generate(prompt, **given)  # type: ignore[arg-type]
    list(answer)
    assert answer.told.accepted == 0 and 2 * FEWEST <= answer.told.guessed <= 4 * FEWEST
    together = both[0].generate_batch([prompt, prompt], **given)  # type: ignore[arg-type]
    list(together)
    assert all(told.guessed == 0 for told in together.all_told)
