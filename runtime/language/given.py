"""What callers of a language model give, read: tokens, messages, lists; what is none is one error with what was got and expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...ir.errors import InputError
from .facts import LanguageFacts
from .template import Message, is_message


def checked_tokens(tokens: Any, facts: LanguageFacts, before: int = 0) -> list[int]:
    """Tokens that the model can read behind some `before`, as plain numbers; InputError names what it cannot."""
    held = whole_numbers(tokens)
    if not held:
        raise InputError("a text of no tokens: a model continues at least one")
    if min(held) < 0 or max(held) >= facts.vocabulary:
        outside = next(token for token in held if not 0 <= token < facts.vocabulary)
        raise InputError(f"token {outside}: the vocabulary has 0 to {facts.vocabulary - 1}")
    if before + len(held) > facts.context:
        raise InputError(
            f"the text has {before + len(held)} tokens, and a session of this engine holds {facts.context}",
            hint="shorten it, or build the engine with a larger --context",
        )
    return held


def whole_numbers(tokens: Any) -> list[int]:
    """Tokens as Python's whole numbers; InputError for anything else."""
    held = listed(tokens, "tokens are a list of whole numbers")
    if {*map(type, held)} <= {int}:
        return held
    for item in held:
        if not isinstance(item, (int, np.integer)) or isinstance(item, bool):
            raise InputError(f"tokens are whole numbers, got {item!r:.80}")
    return [int(item) for item in held]


def messages_of(messages: Any) -> list[Message]:
    """The messages of a conversation; InputError names what is none."""
    held = listed(messages, "messages are a list of them")
    for message in held:
        if not is_message(message):
            raise InputError(f"a message is {{'role': ..., 'content': ...}} with two texts, got {message!r:.200}")
    return held


def listed(items: Any, expected: str) -> list[Any]:
    """Several things in a list; InputError for a text, a mapping, and what holds no items."""
    if isinstance(items, (str, bytes, bytearray, memoryview, Mapping)) or not isinstance(items, Iterable):
        raise InputError(f"{expected}, got {type(items).__name__}")
    try:
        return list(items)
    except TypeError as error:  # an array of rank 0 says that it can be iterated over
        raise InputError(f"{expected}, got {type(items).__name__}: {error}") from error
