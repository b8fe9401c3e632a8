"""What is wrong in a call of a language model is one of our errors, whatever it is, wherever it stands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ourcc
from ourcc.runtime.language.model import LanguageModel
from ourcc.runtime.language.scoring import compare, score
from ourcc.runtime.language.writing import Told

Both = tuple[LanguageModel, Any, Path]
WRONG: list[Any] = [
    *(None, 5, -1, 1.5, 1j, 10**30, True, b"hi", object(), object, float("nan"), "\ud800", "a\0b"),
    *([None], [1.5], [True], [[1]], ["a", 1], [{}], [{"role": 1, "content": "x"}], [{"role": "user"}], [-1], [10**30]),
    *({}, {"role": "user"}, {1: None}, {1.5}, (None,), np.array(1), np.array([1.5]), np.array([[1]]), np.array([None])),
]
MESSAGE = {"role": "user", "content": "hi"}
Call = Callable[[LanguageModel, Any], Any]
CALLS: dict[str, Call] = {
    "generate": lambda lm, x: list(lm.generate(x, max_tokens=1)),
    "generate raw": lambda lm, x: list(lm.generate(x, raw=True, max_tokens=1)),
    "generate_batch": lambda lm, x: list(lm.generate_batch(x, max_tokens=1)),
    "generate_batch one": lambda lm, x: list(lm.generate_batch([x], max_tokens=1)),
    "generate_batch each": lambda lm, x: list(lm.generate_batch(["a"], x, max_tokens=1)),
    "generate_batch one of each": lambda lm, x: list(lm.generate_batch(["a"], [x], max_tokens=1)),
    "prompt_tokens": lambda lm, x: lm.prompt_tokens(x),
    "prompt_tokens raw": lambda lm, x: lm.prompt_tokens("a", x),
    "chat_tokens": lambda lm, x: lm.chat_tokens(x),
    "chat_tokens of a message": lambda lm, x: lm.chat_tokens([MESSAGE, x]),
    "follow a sequence": lambda lm, x: list(lm.follow(x, [1], Told(), max_tokens=1)),
    "follow tokens": lambda lm, x: list(lm.follow(lm.sequence(), x, Told(), max_tokens=1)),
    "follow and tell": lambda lm, x: list(lm.follow(lm.sequence(), [1], x, max_tokens=1)),
    "logits of sequences": lambda lm, x: lm.sequences().logits(x),
    "logits of one of them": lambda lm, x: lm.sequences().logits([x]),
    "logits behind tokens": lambda lm, x: lm.sequence().logits(x),
    "logits behind some": lambda lm, x: lm.sequence().all_logits([1, 2], last=x),
    "load": lambda lm, x: ourcc.load(x),
    "load_sequence": lambda lm, x: lm.load_sequence(x),
    "load_chat": lambda lm, x: lm.load_chat(x),
    "save a chat": lambda lm, x: lm.chat().save(x) if not isinstance(x, str) or "\0" in x else None,
    "save a sequence": lambda lm, x: lm.sequence().save(x) if not isinstance(x, str) or "\0" in x else None,
    "system": lambda lm, x: lm.chat().system(x),
    "send": lambda lm, x: list(lm.chat().send(x, max_tokens=1)),
    "encode": lambda lm, x: lm.tokenizer.encode(x),
    "decode": lambda lm, x: lm.tokenizer.decode(x),
    "score": lambda lm, x: score(lm, x),
    "score in windows": lambda lm, x: score(lm, [1, 2, 3], window=x),
    "score in strides": lambda lm, x: score(lm, [1, 2, 3], stride=x),
    "compare": lambda lm, x: compare(lm, lm, tokens=x),
    **{
        f"generate with {name}": lambda lm, x, name=name: list(lm.generate("a", **{"max_tokens": 1, name: x}))  # type: ignore[misc]
        for name in ourcc.runtime.language.options.Generation.__annotations__
    },
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_wrong_is_one_of_our_errors(name: str, both: Both) -> None:
    refused = 0
    for value in WRONG:
        try:
            CALLS[name](both[0], value)
        except ourcc.CompilerError as error:
            assert not isinstance(error, ourcc.InternalError)
            refused += 1
    assert refused > len(WRONG) / 2


def test_a_bias_is_of_a_token(both: Both) -> None:
    with pytest.raises(ourcc.InputError, match=r"bias {True: 1\.0}: expected numbers by token"):
        both[0].generate("a", bias={True: 1.0})


def test_an_answer_of_a_chat_says_how_it_went(both: Both) -> None:
    chat = both[0].chat()
    with chat.send("hi", max_tokens=3, ignore_end=True) as answer:  # type: ignore[attr-defined]
        list(answer)
    assert answer.told is chat.told and len(chat.told.made) == 3
