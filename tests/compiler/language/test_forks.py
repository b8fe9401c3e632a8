"""Sequences and conversations that go on in two ways, or from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ourcc
from ourcc.compiler.language.module import PAGE
from ourcc.runtime.language.chat import Chat
from ourcc.runtime.language.model import LanguageModel
from ourcc.runtime.language.sequence import Sequences
from ourcc.runtime.language.writing import Told
from ourcc.runtime.saved import Saved, write_saved

from .test_architectures import tokens_of

Both = tuple[LanguageModel, Any, Path]


@pytest.fixture(scope="module", params=[("f32", 1), ("fp8", 3)])
def engine(request: pytest.FixtureRequest, both: Both) -> Any:
    cache, batch = request.param
    return ourcc.build(both[2].parent, tune="off", cache=cache, batch=batch)


def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens of each sequence every call reads."""
    found, call = list[int](), Sequences._call
    monkeypatch.setattr(
        Sequences, "_call", lambda self, group, name, inputs: (found.append(inputs[0].shape[1]), call(self, group, name, inputs))[1]
    )
    return found


def test_a_fork_has_read_what_its_origin_has(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text, ends = tokens_of(20), ([3, 4], [9], [7, 7, 7])
    expected = [engine.sequence().logits([*text, *end]) for end in ends]
    read = calls(monkeypatch)
    origin = engine.sequence()
    origin.logits(text)
    several = [origin, origin.fork(), origin.fork()]
    for each, end, logits in zip(several, ends, expected, strict=True):
        np.testing.assert_array_equal(each.logits([*text, *end]), logits)
    assert read == [20, 2, 1, 3]
    # None of them saw what the others read.
    for each, end in zip(several, ends, strict=True):
        np.testing.assert_array_equal(each.logits([*text, *end, 5]), engine.sequence().logits([*text, *end, 5]))


def test_a_saved_sequence_goes_on(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, sequence = tokens_of(20), engine.sequence()
    sequence.logits(text)
    sequence.save(tmp_path / "s")
    expected = sequence.logits([*text, 5])
    read = calls(monkeypatch)
    again = engine.load_sequence(tmp_path / "s")
    assert again.tokens == text
    np.testing.assert_array_equal(again.logits([*text, 5]), expected)
    assert read == [1]
    # Only what was read is in the file.
    held = min(2 * PAGE, engine.facts.places) if engine.facts.sequences > 1 else len(text)
    assert (tmp_path / "s").stat().st_size < held * engine.facts.token_bytes + 4096
    engine.sequence().save(tmp_path / "empty")
    assert engine.load_sequence(tmp_path / "empty").tokens == []


def test_files_that_hold_no_sequence(engine: Any, both: Both, tmp_path: Path) -> None:
    sequence = engine.sequence()
    sequence.logits(tokens_of(5))
    session = sequence.session
    arrays = {name: session.state(name, (slice(0, 1), slice(0, 5))) for name in session.states}
    name = next(iter(arrays))
    for about, held, message in (
        ({}, arrays, "holds no sequence of this engine: tokens are a list of whole numbers"),
        ({"tokens": 5}, arrays, "holds no sequence of this engine: tokens are a list"),
        ({"tokens": [1, 2, 3, 4, 297]}, arrays, "token 297: the vocabulary has"),
        ({"tokens": [1] * 65}, arrays, "holds no sequence of this engine: the text has 65 tokens"),
        ({"tokens": [1, 2, 3, 4]}, arrays, "the file holds sizes .* of state .* for 4 tokens"),
        ({"tokens": [1, 2, 3, 4, 5]}, {each: arrays[each] for each in list(arrays)[1:]}, f"the file holds nothing of state '{name}'"),
        ({"tokens": []}, arrays, "for 0 tokens"),
    ):
        write_saved(tmp_path / "s", Saved(session.program, about, held))
        with pytest.raises(ourcc.EngineError, match=message):
            engine.load_sequence(tmp_path / "s")
    for messages in (5, [5], [{"role": "user"}], None):
        write_saved(tmp_path / "s", Saved(session.program, {"tokens": [1, 2, 3, 4, 5], "messages": messages}, arrays))
        with pytest.raises(ourcc.EngineError, match="holds no conversation"):
            engine.load_chat(tmp_path / "s")
    sequence.save(tmp_path / "s")
    with pytest.raises(ourcc.EngineError, match="is one of another engine"):
        ourcc.build(both[2].parent, tune="off", context=32).load_sequence(tmp_path / "s")  # type: ignore[attr-defined]


def said(chat: Chat, text: str) -> str:
    return "".join(chat.send(text, max_tokens=4, temperature=1.0))


def test_a_conversation_is_saved_and_goes_on(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = engine.chat()
    chat.system("be")
    said(chat, "hi")
    chat.save(tmp_path / "chat")
    other = engine.load_chat(tmp_path / "chat")
    assert other.messages == chat.messages and len(chat.messages) == 3
    read = calls(monkeypatch)
    assert said(other, "so") == said(chat, "so")
    assert read[: len(read) // 2] == read[len(read) // 2 :]


def test_a_conversation_goes_on_in_two_ways(engine: Any) -> None:
    chat = engine.chat()
    said(chat, "hi")
    other, fresh = chat.fork(), engine.chat()
    fresh.messages = list(chat.messages)
    answers = said(chat, "sky"), said(other, "sea")
    assert [each.messages[-2]["content"] for each in (chat, other)] == ["sky", "sea"]
    assert answers[1] == said(fresh, "sea")


def test_what_is_said_is_text(engine: Any) -> None:
    chat = engine.chat()
    for wrong in (5, None, b"x", ["a"]):
        with pytest.raises(ourcc.InputError, match="what the user says is a text"):
            list(chat.send(wrong))
        with pytest.raises(ourcc.InputError, match="what the system says is a text"):
            chat.system(wrong)
    assert json.dumps(chat.messages) == "[]"


def test_a_text_that_is_closed_leaves_its_sequence(engine: Any) -> None:
    sequence, text = engine.sequence(), tokens_of(8)

    told = Told()
    pieces = engine.follow(sequence, text, told, max_tokens=20, temperature=1.0, ignore_end=True)
    next(pieces)
    pieces.close()
    assert told.ended == "closed" and 1 <= len(told.made) < 20
    whole = [*text, *told.made]
    assert sequence.tokens == whole[:-1]
    np.testing.assert_array_equal(sequence.logits(whole), engine.sequence().logits(whole))
    chat = engine.chat()
    answer = chat.send("hi", max_tokens=9, temperature=1.0, ignore_end=True)
    first = next(answer)
    answer.close()
    assert chat.messages[-1] == {"role": "assistant", "content": first}
    assert said(chat, "so") is not None and len(chat.messages) == 4
