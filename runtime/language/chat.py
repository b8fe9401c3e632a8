"""Conversations: what was said, and a sequence that has read it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Unpack

from ...ir.errors import EngineError, InputError, UsageError
from .answer import Answer
from .options import Generation
from .sequence import TokenSequence
from .template import Message, is_message
from .writing import Told

if TYPE_CHECKING:
    from .model import LanguageModel


class Chat:
    """A conversation: `send(text)` yields the answer; what was said before stays in the cache.

    `fork()` goes on in two ways from here, `save(path)` keeps it in a file that `lm.load_chat(path)` goes on with.
    """

    def __init__(self, model: LanguageModel, sequence: TokenSequence | None = None) -> None:
        self._model = model
        self._sequence = model.sequence() if sequence is None else sequence
        self.messages: list[Message] = []
        self.told = Told()
        self._is_answering = False

    def system(self, text: str) -> None:
        """What the model is told before the conversation begins."""
        if self.messages:
            raise UsageError("the conversation has begun: say what the system is before it")
        self.messages.append(_said("system", text))

    def send(self, text: str, **options: Unpack[Generation]) -> Answer[str]:
        """Say something, and yield the answer; an answer that is cut short is kept as far as it went.

        One answer is made at a time: UsageError while another one of this conversation is neither taken whole nor closed.
        """
        told = Told()
        return Answer(self._answer(text, told, options), [told])

    def _answer(self, text: str, told: Told, options: Generation) -> Iterator[str]:
        if options.get("raw"):
            raise UsageError("raw leaves out the chat template, which a conversation is made of", hint="lm.generate(text, raw=True)")
        if self._is_answering:
            raise UsageError("an answer of this conversation is being made", hint="take it whole, close() it, or ask a fork()")
        self.told = told
        asked = [*self.messages, _said("user", text)]
        tokens = self._model.chat_tokens(asked)
        facts = self._model.facts
        if self.messages and len(tokens) > facts.context:
            raise InputError(
                f"the conversation has {len(tokens)} tokens with this, and a session of this engine holds {facts.context}",
                hint="start a new one, or build the engine with a larger --context",
            )
        self._is_answering = True
        answer = ""
        try:
            for piece in self._model.follow(self._sequence, tokens, told, **options):
                answer += piece
                yield piece
        finally:
            self._is_answering = False
            if answer or told.made or told.ended == "end":
                self.messages = [*asked, {"role": "assistant", "content": answer}]

    def fork(self) -> Chat:
        """Another conversation in which the same was said."""
        other = Chat(self._model, self._sequence.fork())
        other.messages = list(self.messages)
        return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the conversation to a file, with what the cache holds of it."""
        self._sequence.owner.save(self._sequence, path, {"messages": [dict(message) for message in self.messages]})

    @staticmethod
    def load(model: LanguageModel, path: str | os.PathLike[str]) -> Chat:
        """The conversation of a file; EngineError for one that holds none of this engine's."""
        sequence, about = model.sequences().load(path)
        messages = about.get("messages")
        if not isinstance(messages, list) or not all(map(is_message, messages)):
            raise EngineError(f"{os.fspath(path)}: the file holds no conversation")
        chat = Chat(model, sequence)
        chat.messages = messages
        return chat


def _said(role: str, text: Any) -> Message:
    if not isinstance(text, str):
        raise InputError(f"what the {role} says is a text, got {type(text).__name__}")
    return {"role": role, "content": text}
