"""What callers give a language model: tokens, messages and lists, and an answer that one thread at a time reads."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ourcc.ir.errors import InputError, UsageError
from ourcc.runtime.language.answer import Answer
from ourcc.runtime.language.facts import LanguageFacts
from ourcc.runtime.language.given import checked_tokens, messages_of, whole_numbers
from ourcc.runtime.language.writing import Told

FACTS = LanguageFacts("llama", vocabulary=9, context=4)


def test_whole_numbers_of_any_kind_are_tokens() -> None:
    for given in ([1, 2], (1, 2), range(1, 3), iter([1, 2]), np.array([1, 2]), np.array([1, 2], np.uint8), [np.int64(1), 2]):
        assert whole_numbers(given) == [1, 2] and {*map(type, whole_numbers([1]))} == {int}


@pytest.mark.parametrize("item", [None, 1.0, True, "1", b"1", [1], np.float32(1), np.bool_(True), 1j, object()])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_no_whole_number_is_named(item: Any, place: int) -> None:
    tokens: list[Any] = [1, 2]
    with pytest.raises(InputError) as refused:
        whole_numbers([*tokens[:place], item, *tokens[place:]])
    assert f"tokens are whole numbers, got {item!r:.80}" in str(refused.value)


@pytest.mark.parametrize("tokens", [None, 5, 1.5, "hi", b"hi", bytearray(b"h"), {"a": 1}, object(), np.array(5), [].append])
def test_what_is_no_list_is_named(tokens: Any) -> None:
    with pytest.raises(InputError, match="tokens are a list of whole numbers, got"):
        whole_numbers(tokens)
    with pytest.raises(InputError, match="messages are a list of them, got"):
        messages_of(tokens)


def test_tokens_are_those_of_the_vocabulary() -> None:
    assert checked_tokens([0, 8], FACTS) == [0, 8]
    for tokens, message in (([9], "token 9"), ([-1], "token -1"), ([], "no tokens"), ([1] * 5, "has 5 tokens"), ([1 << 70], "token 11805")):
        with pytest.raises(InputError, match=message):
            checked_tokens(tokens, FACTS)


def drawn(held: threading.Event, going: threading.Event) -> Iterator[str]:
    for piece in "abc":
        held.set()
        going.wait(60)
        yield piece


def test_a_second_thread_at_the_next_piece_is_told() -> None:
    held, going, found = threading.Event(), threading.Event(), []
    answer = Answer(drawn(held, going), [Told()])
    reader = threading.Thread(target=lambda: found.append(next(answer)))
    reader.start()
    assert held.wait(60)
    with pytest.raises(UsageError, match="another thread is at the next piece of this text\n  help: let one thread read it"):
        next(answer)
    going.set()
    reader.join()
    assert [*found, *answer] == ["a", "b", "c"]


def test_any_thread_may_end_an_answer_behind_the_piece_that_is_being_made() -> None:
    held, going, found = threading.Event(), threading.Event(), list[str]()
    pieces = drawn(held, going)
    answer = Answer(pieces, [Told()])
    reader = threading.Thread(target=lambda: found.extend(answer))
    reader.start()
    assert held.wait(60)
    answer.close()
    going.set()
    reader.join()
    assert found == ["a"] and list(answer) == [] and list(pieces) == []
    answer.close()


def test_answers_are_ended_by_one_thread_while_others_read() -> None:
    for _ in range(200):
        ended: list[bool] = []

        def pieces(ended: list[bool] = ended) -> Iterator[int]:
            try:
                yield from itertools.count()
            finally:
                ended.append(True)

        answer = Answer(pieces(), [Told()])
        reader = threading.Thread(target=lambda answer=answer: [None for _ in answer])
        reader.start()
        answer.close()
        reader.join(60)
        assert not reader.is_alive() and len(ended) <= 1
