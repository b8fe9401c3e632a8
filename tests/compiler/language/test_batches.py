"""Batches: what a sequence is told is what the engine would tell it alone, to the bit, whatever else is read beside it."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ourcc
from ourcc.compiler.language import config
from ourcc.compiler.language.module import PAGE
from ourcc.ir import dims
from ourcc.ir.plan import Copy
from ourcc.ir.plan.storage import Arena
from ourcc.runtime.language.model import LanguageModel
from ourcc.runtime.language.pages import Pages
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


def test_threads_share_sequences(batched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread is told what it would be told alone, and no page is lost, though all others come by while pages are counted."""
    found, count = list[str](), Pages._pages_for
    monkeypatch.setattr(Pages, "_pages_for", lambda self, *given: (time.sleep(0.002), count(self, *given))[1])
    sequences, shared = batched.sequences(), tokens_of(10)
    base = sequences.begin()
    base.logits(shared)
    texts = [[[*shared, *tokens_of(4, seed=20 * number + step)] for step in range(5)] for number in range(COUNT - 1)]
    expected = [[batched.sequence().logits(text) for text in each] for each in texts]

    def work(number: int) -> None:
        for text, rows in zip(texts[number], expected[number], strict=True):
            for sequence in (base.fork(), sequences.begin()):
                if not np.array_equal(sequence.logits(text), rows):
                    found.append(f"thread {number} was told something else")
                sequence.end()

    with ThreadPoolExecutor(COUNT - 1) as pool:
        list(pool.map(work, range(COUNT - 1)))
    base.end()
    assert not found
    assert sequences.pages.free == sequences.pages.count


def test_calls_are_shared(batched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, call = list[tuple[int, ...]](), Sequences._call
    monkeypatch.setattr(
        Sequences, "_call", lambda self, group, name, inputs: (sizes.append(inputs[0].shape), call(self, group, name, inputs))[1]
    )
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


def test_pages_are_given_and_taken_back(batched: Any) -> None:
    sequences = batched.sequences()
    pages = sequences.pages
    assert (pages.count * pages.size, pages.size) == (COUNT * batched.facts.context, PAGE)
    several = [sequences.begin() for _ in range(2 * COUNT)]
    assert pages.free == pages.count
    for number, each in enumerate(several[:COUNT]):
        each.logits(tokens_of(batched.facts.context, seed=number))
    assert pages.free == 0
    with pytest.raises(ourcc.UsageError, match="the session holds 256 tokens in 16 pages, and all are taken") as caught:
        several[COUNT].logits([1])
    assert caught.value.hint == "end a sequence, or build the engine with a larger --batch"
    # Who shares all pages needs one to read on; nothing is lost by asking.
    again = several[0].fork()
    with pytest.raises(ourcc.UsageError, match="all are taken"):
        again.logits([*again.tokens[:20], 5])
    assert again.tokens == several[0].tokens and again.held.pages == several[0].held.pages
    several[2].end()
    several[2].end()
    assert pages.free == 4
    with pytest.raises(ourcc.UsageError, match="the sequence has ended"):
        several[2].logits([1])
    with pytest.raises(ourcc.UsageError, match="the sequence has ended"):
        several[2].fork()
    with pytest.raises(ourcc.UsageError, match="the sequence has ended"):
        several[2].save("nowhere")
    np.testing.assert_array_equal(again.logits([*again.tokens[:20], 5]), batched.sequence().logits([*again.tokens[:20], 5]))
    assert len(again.held.pages) == 2 and again.held.pages[0] == several[0].held.pages[0] and pages.free == 3
    # A sequence that goes back gives back what it does not hold any more.
    several[1].logits([*several[1].tokens[:17], 5])
    assert len(several[1].held.pages) == 2 and pages.free == 5
    with pytest.raises(ourcc.InputError, match="asked for twice"):
        sequences.logits([(again, [1], 1), (again, [2], 1)])
    with pytest.raises(ourcc.UsageError, match="one of another session"):
        batched.sequences().logits([(again, [1], 1)])
    with pytest.raises(ourcc.InputError, match="the last 3 tokens, expected 1 to 2"):
        again.all_logits([1, 2], 3)


def test_an_engine_for_one_sequence_holds_one(both: Both) -> None:
    sequences = both[0].sequences()
    first = sequences.begin()
    with pytest.raises(ourcc.UsageError, match="the session holds 1 sequence, and it is taken"):
        sequences.begin()
    first.end()
    assert sequences.begin().logits([1, 2]).shape == (297,)


def test_more_sequences_than_a_call_reads(batched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, call = list[int](), Sequences._call
    monkeypatch.setattr(
        Sequences, "_call", lambda self, group, name, inputs: (rows.append(len(inputs[0])), call(self, group, name, inputs))[1]
    )
    origin = batched.sequence()
    origin.logits(tokens_of(20))
    several = [origin, *(origin.fork() for _ in range(COUNT + 1))]
    found = origin.owner.logits([(each, [*tokens_of(20), number], 1) for number, each in enumerate(several)])
    assert rows == [1, COUNT, 2]
    for number, logits in enumerate(found):
        np.testing.assert_array_equal(logits[0], batched.sequence().logits([*tokens_of(20), number]))


def test_a_page_that_is_none_is_refused_before_anything_is_written(batched: Any) -> None:
    session, last = batched.session(), COUNT * 4 - 1
    given = (np.array([[5]]), np.array([[0]]), np.array([[0]]), np.arange(1), np.array([0]))
    for page in (last + 1, -1):
        with pytest.raises(ourcc.InputError, match=f"index {page} of input 'pages' is out of range, expected 0..{last}"):
            session(*given[:2], np.array([[page]]), *given[3:])
    for place in (1, -1):
        with pytest.raises(ourcc.InputError, match=f"index {place} of input 'positions' is out of range, expected 0..0"):
            session(given[0], np.array([[place]]), *given[2:])
    with pytest.raises(ourcc.InputError, match="pages"):
        session(*given[:2], np.array([[0, 1]]), *given[3:])
    assert not any(session.state(name).any() for name in session.states)


def test_what_is_no_number_stays_in_its_sequence(batched: Any) -> None:
    sequences = batched.sequences()
    bad, good = sequences.begin(), sequences.begin()
    text, long = tokens_of(9), tokens_of(30, seed=1)
    expected = good.logits(text)
    bad.logits(long)
    last = bad.held.pages[1]
    where = last, slice(4, 14)
    for name in bad.session.states:
        if name.endswith("values"):
            bad.session.set_state(name, np.full_like(bad.session.state(name, where), np.nan), where)
    rows = sequences.logits([(bad, [*long, 4], 1), (good, [*text[:8], text[8]], 1)])
    assert not np.isfinite(rows[0]).any() and not sequences.pages.is_sound(bad.held)
    np.testing.assert_array_equal(rows[1][0], expected)
    # Where it goes back behind what is none it is told what it would be told alone, though others look further in its page.
    rows = sequences.logits([(bad, [*long[:18], 4], 1), (good, tokens_of(25), 1)])
    np.testing.assert_array_equal(rows[0][0], batched.sequence().logits([*long[:18], 4]))
    bad.logits(long)
    for name in bad.session.states:
        if name.endswith("values"):
            bad.session.set_state(name, np.full_like(bad.session.state(name, where), np.nan), where)
    assert not np.isfinite(bad.logits([*long, 5])).any()
    # Who takes the page next does not see what was left there, nor who shares it and goes on before.
    other = bad.fork()
    np.testing.assert_array_equal(other.logits([*long[:16], 8]), batched.sequence().logits([*long[:16], 8]))
    other.end()
    bad.end()
    new = sequences.begin()
    new.logits(tokens_of(64, seed=2))
    assert last not in new.held.pages
    again = sequences.begin()
    rows = sequences.logits([(again, tokens_of(60, seed=5), 1), (good, tokens_of(60), 1)])
    taken = sequences.begin()
    while last not in taken.held.pages:
        taken = sequences.begin()
        taken.logits(text)
    rows = sequences.logits([(taken, text, 1), (good, [*tokens_of(60), 3], 1)])
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
    monkeypatch.setattr(config, "CHUNK", 8)
    engine: Any = ourcc.build(both[2].parent, tune="off", batch=2)
    assert engine.facts.chunk == 8
    sequences = engine.sequences()
    first, second = sequences.begin(), sequences.begin()
    texts = tokens_of(29), tokens_of(3, seed=9)
    rows = sequences.logits([(first, texts[0], None), (second, texts[1], 2)])
    np.testing.assert_array_equal(rows[0], engine.sequence().all_logits(texts[0]))
    np.testing.assert_array_equal(rows[1], engine.sequence().all_logits(texts[1])[1:])
