"""The language model of an engine: text from a prompt, token by token, and conversations that keep their cache."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Unpack

from ...ir.errors import InputError, UsageError
from ..engine import Engine
from .facts import FACTS, TOKENIZER, LanguageFacts
from .options import Generation, read_generation
from .sequence import TokenSequence
from .template import Message, render
from .tokens import Pieces, Tokenizer


@dataclass
class Told:
    """How a generation went: tokens read and made, why it ended (`end`, `stop`, `length`, `context`), and seconds."""

    read: int = 0
    made: list[int] = field(default_factory=list)
    ended: str = ""
    first: float = 0.0
    rest: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens a second behind the first one; 0 where there is none."""
        return (len(self.made) - 1) / self.rest if len(self.made) > 1 and self.rest else 0.0


class LanguageModel(Engine):
    """An engine that holds a language model.

    `generate(prompt, max_tokens=, temperature=, top_k=, top_p=, min_p=, repetition_penalty=, seed=, stop=, raw=)` yields text as it
    is made. A prompt is a text, which the model's chat template wraps unless it is `raw`, a list of messages (`{"role": "user",
    "content": "..."}`), or a list of tokens. `chat()` begins a conversation.
    """

    @cached_property
    def facts(self) -> LanguageFacts:
        """What the engine says of its model."""
        return LanguageFacts.of(self.contents.assets[FACTS])

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Text to tokens and back; UsageError if the engine has none."""
        if TOKENIZER not in self.contents.assets:
            raise UsageError("the engine holds no tokenizer", hint="give tokens, a list of whole numbers, instead of text")
        return Tokenizer(self.contents.assets[TOKENIZER].decode())

    @cached_property
    def moved_bytes(self) -> float:
        """The bytes that a token moves at least: what its kernels read and write, at the sizes that the engine was built for."""
        rows = self.contents.report.get("kernels", {}).get(self.part, ())
        return 1e6 * float(sum(row.get("calls", 0) * (row.get("megabytes") or 0.0) for row in rows))

    def sequence(self) -> TokenSequence:
        """A sequence of tokens with a cache of its own."""
        return TokenSequence(self.session(), self.facts)

    def generate(self, prompt: str | Sequence[int] | Sequence[Message], **options: Unpack[Generation]) -> Iterator[str]:
        """Yield the text that follows a prompt, piece by piece; options are those of `Generation`."""
        raw = bool(options.get("raw", False))
        yield from self.follow(self.sequence(), self.prompt_tokens(prompt, raw), Told(), **options)

    def chat(self) -> Chat:
        """A conversation that keeps its cache."""
        return Chat(self)

    def prompt_tokens(self, prompt: str | Sequence[int] | Sequence[Message], raw: bool = False) -> list[int]:
        """The tokens that the model is given for a prompt."""
        if isinstance(prompt, str):
            if raw or self.facts.template is None:
                return [*self.facts.begin, *self.tokenizer.encode(prompt)]
            return self.chat_tokens([{"role": "user", "content": prompt}])
        items: list[Any] = list(prompt)
        if items and all(isinstance(item, Mapping) for item in items):
            return self.chat_tokens(items)
        if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            return items
        raise InputError(f"a prompt is a text, a list of messages or a list of tokens, got {type(prompt).__name__}")

    def chat_tokens(self, messages: Sequence[Message]) -> list[int]:
        """A conversation as tokens, with the beginning of an answer."""
        if self.facts.template is None:
            raise UsageError("the model has no chat template", hint="give the prompt as one text")
        for message in messages:
            if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
                raise InputError(f"a message is {{'role': ..., 'content': ...}} with two texts, got {dict(message)!r}")
        text = render(self.facts.template, messages, *self.facts.words)
        tokens = self.tokenizer.encode(text)
        # A template that spells out what begins a text has begun it.
        return tokens if tokens[: len(self.facts.begin)] == list(self.facts.begin) else [*self.facts.begin, *tokens]

    def follow(self, sequence: TokenSequence, tokens: Sequence[int], told: Told, **options: Unpack[Generation]) -> Iterator[str]:
        """Yield the text that follows tokens, and note in `told` how it went."""
        wanted = read_generation(options)
        begun = time.perf_counter()
        held, text = list(tokens), ""
        pieces = Pieces(self.tokenizer) if TOKENIZER in self.contents.assets else None
        told.read, shown = len(held), 0
        while True:
            if len(told.made) == wanted.max_tokens:
                told.ended = "length"
                break
            if told.made and len(held) > self.facts.context:
                told.ended = "context"
                break
            token = wanted.sampling.choose(sequence.logits(held), held)
            now = time.perf_counter()
            if not told.made:
                told.first = now - begun
            told.rest = now - begun - told.first
            if token in self.facts.end and not wanted.ignore_end:
                told.ended = "end"
                break
            told.made.append(token)
            held.append(token)
            text += pieces.add(token) if pieces is not None else f"{token} "
            cut = _stopped(text, wanted.stop)
            if cut is not None:
                told.ended = "stop"
                break
            safe = len(text) - _beginning(text, wanted.stop)
            if safe > shown:
                yield text[shown:safe]
                shown = safe
        if told.ended != "stop":
            text += pieces.rest() if pieces is not None else ""
            cut = _stopped(text, wanted.stop)
        if len(text[:cut]) > shown:
            yield text[shown:cut]


def _stopped(text: str, stop: Sequence[str]) -> int | None:
    """Where the first of the stop texts begins."""
    places = [place for place in (text.find(each) for each in stop) if place >= 0]
    return min(places) if places else None


def _beginning(text: str, stop: Sequence[str]) -> int:
    """How many characters at the end may be the beginning of a stop text."""
    return max((size for each in stop for size in range(1, len(each)) if text.endswith(each[:size])), default=0)


class Chat:
    """A conversation: `send(text)` yields the answer; what was said before stays in the cache."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._sequence = model.sequence()
        self.messages: list[Message] = []
        self.told = Told()

    def system(self, text: str) -> None:
        """What the model is told before the conversation begins."""
        if self.messages:
            raise UsageError("the conversation has begun: say what the system is before it")
        self.messages.append({"role": "system", "content": text})

    def send(self, text: str, **options: Unpack[Generation]) -> Iterator[str]:
        """Say something, and yield the answer; an answer that is cut short is kept as far as it went."""
        if options.get("raw"):
            raise UsageError("raw leaves out the chat template, which a conversation is made of", hint="lm.generate(text, raw=True)")
        asked = [*self.messages, {"role": "user", "content": text}]
        tokens = self._model.chat_tokens(asked)
        self.told = Told()
        answer = ""
        try:
            for piece in self._model.follow(self._sequence, tokens, self.told, **options):
                answer += piece
                yield piece
        finally:
            if answer or self.told.made or self.told.ended == "end":
                self.messages = [*asked, {"role": "assistant", "content": answer}]
