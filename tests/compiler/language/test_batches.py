"""Batches: what a sequence is told is what the engine would tell it alone, to the bit, whatever else is read beside it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ourcc
from ourcc.compiler.language import assets
from ourcc.ir import dims
from ourcc.ir.plan import Copy
from ourcc.ir.plan.storage import Arena
from ourcc.runtime.language.model import LanguageModel
from ourcc.runtime.language.sequence import TOGETHER, Sequences

from .conftest import model_of, save
from .test_architectures import tokens_of

COUNT = 4
Both = tuple[LanguageModel, Any, Path]


@pytest.fixture(scope="module")
def batched(both: Both) -> Any:
    return ourcc.build(both[2].parent, tune="off", batch=COUNT)


@pytest.mark.parametrize(("kind", "rope", "cache"), [("mistral", "none", "int8"), ("gpt2", "none", "f32"), ("llama", "dynamic", "bf16")])
def test_a_sequence_is_told_what_it_is_told_alone(kind: str, rope: str, cache: str, tmp_path: Path) -> None:
    folder = save(model_of(kind, rope), tmp_path / "m")
    together: Any = ourcc.build(folder, tune="off", cache=cache, batch=COUNT)
    assert together.facts.sequences == COUNT
    drawn = random.Random(1)
    single = [together.sequence() for _ in range(COUNT)]
    sequences = together.sequences()
    several, texts = [sequences.begin() for _ in range(COUNT)], [list[int]() for _ in range(COUNT)]
    for step in range(12):
        # Any of the sequences, in any order, each with some more tokens; the frequencies of some hang on how much each has seen.
        chosen = drawn.sample(range(COUNT), drawn.randint(1, COUNT))
        for number in chosen:
            texts[number] += tokens_of(drawn.choice((1, 1, 1, 2, 5, TOGETHER + 3)), seed=10 * step + number)
            texts[number] = texts[number][:60]
            if drawn.random() < 0.2:
                texts[number] = texts[number][: max(1, len(texts[number]) // 2)]
        found = sequences.logits([(several[number], texts[number], 1) for number in chosen])
        for number, rows in zip(chosen, found, strict=True):
            np.testing.assert_array_equal(rows[-1], single[number].logits(texts[number]))
    assert [each.tokens for each in several] == [each.tokens for each in single]


def test_calls_are_shared(batched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, call = list[tuple[int, ...]](), Sequences._call
    monkeypatch.setattr(Sequences, "_call", lambda self, group, inputs: (sizes.append(inputs[0].shape), call(self, group, inputs))[1])
    sequences = batched.sequences()
    several = [sequences.begin() for _ in range(COUNT)]
    texts = [tokens_of(count, seed=count) for count in (3, 30, 1, 16)]
    sequences.logits([(each, text, 1) for each, text in zip(several, texts, strict=True)])
    # A long text is read alone, what is left of all of them at once.
    assert sizes == [(1, 30), (3, 16)]
    sequences.logits([(each, [*text, 5], 1) for each, text in zip(several, texts, strict=True)])
    assert sizes[2:] == [(COUNT, 1)]


def test_no_token_copies_the_cache_of_a_batch(batched: Any) -> None:
    plan = batched.contents.best.plans["step"]
    assert [step for step in plan.steps if isinstance(step, Copy) and plan.moves(step)] == []
    seen = [b for b in plan.buffers if isinstance(b.storage, Arena) and "T" in {name for d in b.type.shape for name in dims.symbols(d)}]
    assert {b.type.dtype.name for b in seen} == {"bool"}


def test_texts_of_a_batch_are_those_of_each_prompt(both: Both, batched: Any) -> None:
    engine = both[0]
    prompts = ["sky", "why is the sea so green", [5, 6, 7], [{"role": "user", "content": "is it"}], "sea", "blue", "a"]
    each: list[Any] = [{"seed": number, "max_tokens": 5 + 3 * number} for number in range(len(prompts))]
    options: Any = {"temperature": 1.5, "ignore_end": True, "stop": "th"}
    for model in (batched, engine):  # an engine of one sequence writes one text after the other
        alone = ["".join(model.generate(prompt, **{**options, **one})) for prompt, one in zip(prompts, each, strict=True)]
        answer, texts = model.generate_batch(prompts, each=each, **options), [""] * len(prompts)
        for number, piece in answer:
            texts[number] += piece
        assert texts == alone and len(set(texts)) == len(prompts)
        assert {told.ended for told in answer.all_told} <= {"length", "stop"} and answer.told is answer.all_told[0]
    assert list(batched.generate_batch([])) == []


def test_texts_stream_side_by_side(batched: Any) -> None:
    order = [number for number, _ in batched.generate_batch(["sky", "sea"], max_tokens=20, temperature=1.0, ignore_end=True)]
    assert order.index(1) < len(order) - 1 - order[::-1].index(0) and order.index(0) < len(order) - 1 - order[::-1].index(1)


def test_a_batch_that_is_closed(batched: Any) -> None:
    with batched.generate_batch(["sky", "sea"], max_tokens=20, ignore_end=True) as answer:
        next(answer)
    assert [told.ended for told in answer.all_told] == ["closed", "closed"]
    assert list(answer) == []


def test_slots_are_given_and_taken_back(batched: Any) -> None:
    sequences = batched.sequences()
    several = [sequences.begin() for _ in range(COUNT)]
    with pytest.raises(ourcc.UsageError, match="the session holds 4 sequences, and all are taken"):
        sequences.begin()
    with pytest.raises(ourcc.UsageError, match="all are taken"):
        several[0].fork()
    several[2].end()
    several[2].end()
    assert sequences.free == 1
    with pytest.raises(ourcc.UsageError, match="the sequence has ended"):
        several[2].logits([1])
    again = several[0].fork()
    assert again.slot == several[2].slot and sequences.free == 0
    with pytest.raises(ourcc.InputError, match="asked for twice"):
        sequences.logits([(again, [1], 1), (again, [2], 1)])
    with pytest.raises(ourcc.UsageError, match="one of another session"):
        batched.sequences().logits([(again, [1], 1)])
    with pytest.raises(ourcc.InputError, match="the last 3 tokens, expected 1 to 2"):
        again.all_logits([1, 2], 3)


def test_a_slot_that_is_none_is_refused_before_anything_is_written(batched: Any) -> None:
    session = batched.session()
    for slot in (COUNT, -1):
        with pytest.raises(ourcc.InputError, match=f"index {slot} of input 'slots' is out of range, expected 0..{COUNT - 1}"):
            session(np.array([[5]]), np.array([[0]]), np.array([slot]), np.arange(1), np.array([0]))
    assert not any(session.state(name).any() for name in session.states)


def test_what_is_no_number_stays_in_its_sequence(batched: Any) -> None:
    sequences = batched.sequences()
    bad, good = sequences.begin(), sequences.begin()
    expected = good.logits(tokens_of(9))
    bad.logits(tokens_of(30, seed=1))
    for name in bad.session.states:
        if name.endswith("values"):
            bad.session.set_state(name, np.full_like(bad.session.state(name, bad.where()), np.nan), bad.where())
    text = tokens_of(9)
    rows = sequences.logits([(bad, [*tokens_of(30, seed=1), 4], 1), (good, [*text[:8], text[8]], 1)])
    assert not np.isfinite(rows[0]).any() and not bad.is_sound
    np.testing.assert_array_equal(rows[1][0], expected)
    # Who takes the slot next does not see what was left there, though others look that far.
    bad.end()
    new = sequences.begin()
    while new.slot != bad.slot:
        new = sequences.begin()
    good.logits(tokens_of(40))
    rows = sequences.logits([(new, text, 1), (good, [*tokens_of(40), 3], 1)])
    np.testing.assert_array_equal(rows[0][0], expected)


def test_bad_batches(batched: Any) -> None:
    for prompts, options, message in (
        ("sky", {}, "prompts are a list of them, got str"),
        (5, {}, "prompts are a list of them, got int"),
        ([1, 2], {}, "got one prompt"),
        ([{"role": "user", "content": "x"}], {}, "got one prompt"),
        (["a", 5.0], {}, "prompt 1: a prompt is a text"),
        (["a", [1] * 100], {}, "prompt 1: the text has 100 tokens"),
        (["a", []], {}, "prompt 1: a text of no tokens"),
        (["a", "b"], {"each": [{}]}, "each: expected a mapping of options for each of 2 prompts"),
        (["a", "b"], {"each": [{}, 3]}, "each: expected a mapping"),
        (["a", "b"], {"each": [{}, {"top_p": 7}]}, "prompt 1: top_p 7"),
        (["a", "b"], {"tempo": 1}, "prompt 0: generate.. has no option 'tempo'"),
    ):
        with pytest.raises(ourcc.CompilerError, match=message):
            batched.generate_batch(prompts, **options)


def test_a_prompt_in_parts_beside_others(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "CHUNK", 8)
    engine: Any = ourcc.build(both[2].parent, tune="off", batch=2)
    assert engine.facts.chunk == 8
    sequences = engine.sequences()
    first, second = sequences.begin(), sequences.begin()
    texts = tokens_of(29), tokens_of(3, seed=9)
    rows = sequences.logits([(first, texts[0], None), (second, texts[1], 2)])
    np.testing.assert_array_equal(rows[0], engine.sequence().all_logits(texts[0]))
    np.testing.assert_array_equal(rows[1], engine.sequence().all_logits(texts[1])[1:])
