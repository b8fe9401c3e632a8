"""The language model of an engine: text from prompts, token by token, and conversations that keep their cache."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias, Unpack

from ...ir.errors import CompilerError, InputError, UsageError
from ..engine import Engine
from .answer import Answer
from .chat import Chat
from .facts import FACTS, STEP, TOKENIZER, LanguageFacts
from .given import checked_tokens, listed, messages_of, whole_numbers
from .options import Generation, Wanted, flag, read_generation
from .sequence import Sequences, TokenSequence
from .template import Message, render
from .tokens import Tokenizer
from .writing import Told, Writing, written, written_together

Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""A text, tokens, or messages."""
GUESSLESS: Generation = {"speculate": 0}


class LanguageModel(Engine):
    """An engine that holds a language model.

    `generate(prompt, max_tokens=, temperature=, top_k=, top_p=, min_p=, repetition_penalty=, seed=, stop=, raw=)` yields text as it
    is made, `generate_batch(prompts, ...)` the texts of several prompts side by side. A prompt is a text, which the model's chat
    template wraps unless it is `raw`, a list of messages (`{"role": "user", "content": "..."}`), or a list of tokens. `chat()` begins a
    conversation.
    """

    @cached_property
    def facts(self) -> LanguageFacts:
        """What the engine says of its model."""
        return LanguageFacts.of(self.contents.assets[FACTS])

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Text to tokens and back; UsageError if the engine has none."""
        if TOKENIZER not in self.contents.assets:
            hint = "build it from a model with one (tokenizer.json, or a .gguf file); in Python, lm.generate([1, 2, 3]) takes tokens"
            raise UsageError("the engine holds no tokenizer, which a text needs", hint=hint)
        return Tokenizer(self.contents.assets[TOKENIZER].decode())

    @cached_property
    def moved_bytes(self) -> float:
        """The bytes that a token moves at least: what the kernels of `step` read and write, at the sizes that the engine was built for."""
        rows = self.contents.report.get("kernels", {}).get(self.part, ())
        # Functions that share a kernel launch it alike.
        shared = [((row.get("function") or STEP).split(", "), row) for row in rows]
        moved = (row.get("calls", 0) / len(functions) * (row.get("megabytes") or 0.0) for functions, row in shared if STEP in functions)
        return 1e6 * float(sum(moved))

    def sequences(self) -> Sequences:
        """As many sequences of tokens as a session holds, in a cache of their own."""
        return Sequences(self.session(), self.facts)

    def sequence(self) -> TokenSequence:
        """A sequence of tokens with a cache of its own."""
        return self.sequences().begin()

    def load_sequence(self, path: str | os.PathLike[str]) -> TokenSequence:
        """The sequence that `save` wrote, with a cache of its own; EngineError for a file that holds none of this engine's."""
        return self.sequences().load(path)[0]

    def generate(self, prompt: Prompt, **options: Unpack[Generation]) -> Answer[str]:
        """Yield the text that follows a prompt, piece by piece; options are those of `Generation`."""
        wanted = read_generation(options)
        told = Told()
        writing = self._writing(self._prompt(prompt, wanted), wanted, told)
        return Answer(written(self.sequence(), writing), [told])

    def generate_batch(
        self, prompts: Iterable[Prompt], each: Sequence[Generation] | None = None, **options: Unpack[Generation]
    ) -> Answer[tuple[int, str]]:
        """Yield (number of the prompt, piece of its text), as many prompts at once as a session holds sequences.

        `each` has options for each prompt, which come before those for all. A text does not depend on the other prompts.
        """
        asked = _prompts(prompts)
        own = [{} for _ in asked] if each is None else listed(each, f"each: expected a mapping of options for each of {len(asked)} prompts")
        if len(own) != len(asked) or not all(isinstance(one, Mapping) for one in own):
            raise InputError(f"each: expected a mapping of options for each of {len(asked)} prompts")
        writings, tolds = [], [Told() for _ in asked]
        for number, (prompt, one, told) in enumerate(zip(asked, own, tolds, strict=True)):
            try:
                # Rows of several texts share the reading of weights already: a guess is work for all of them.
                wanted = read_generation({**(GUESSLESS if len(asked) > 1 else {}), **options, **one})
                writings.append(self._writing(self._prompt(prompt, wanted), wanted, told))
            except CompilerError as error:
                error.message = f"prompt {number}: {error.message}"
                raise
        return Answer(written_together(self.sequences(), writings), tolds)

    def chat(self) -> Chat:
        """A conversation that keeps its cache."""
        return Chat(self)

    def load_chat(self, path: str | os.PathLike[str]) -> Chat:
        """The conversation that `save` wrote; EngineError for a file that holds none of this engine's."""
        return Chat.load(self, path)

    def prompt_tokens(self, prompt: Prompt, raw: bool = False) -> list[int]:
        """The tokens that the model is given for a prompt."""
        raw = flag("raw", raw)
        if isinstance(prompt, str):
            if raw or self.facts.template is None:
                return [*self.facts.begin, *self.tokenizer.encode(prompt)]
            return self.chat_tokens([{"role": "user", "content": prompt}])
        items = listed(prompt, "a prompt is a text, a list of messages or a list of tokens")
        if items and all(isinstance(item, Mapping) for item in items):
            if raw:
                raise UsageError("raw leaves out the chat template, which messages are made of", hint="give the prompt as one text")
            return self.chat_tokens(items)
        try:
            return whole_numbers(items)
        except InputError as error:
            raise InputError(f"a prompt is a text, a list of messages or a list of tokens: {error.message}") from error

    def chat_tokens(self, messages: Sequence[Message]) -> list[int]:
        """A conversation as tokens, with the beginning of an answer."""
        if self.facts.template is None:
            raise UsageError("the model has no chat template", hint="ourcc generate, and lm.generate, take the prompt as one text")
        text = render(self.facts.template, messages_of(messages), self.facts.named)
        tokens = self.tokenizer.encode(text)
        # A template that spells out what begins a text has begun it.
        return tokens if tokens[: len(self.facts.begin)] == list(self.facts.begin) else [*self.facts.begin, *tokens]

    def follow(self, sequence: TokenSequence, tokens: Sequence[int], told: Told, **options: Unpack[Generation]) -> Iterator[str]:
        """Yield the text that follows tokens, and note in `told` how it went."""
        if not isinstance(sequence, TokenSequence) or not isinstance(told, Told):
            raise InputError(f"expected a sequence of this model and a Told, got {type(sequence).__name__} and {type(told).__name__}")
        return written(sequence, self._writing(checked_tokens(tokens, self.facts), read_generation(options), told))

    def __repr__(self) -> str:
        facts = self.facts
        held = f"{facts.sequences} sequences of {facts.context} tokens" if facts.sequences > 1 else f"sessions of {facts.context} tokens"
        return f"LanguageModel({facts.vocabulary} words, {held}; {', '.join(self.parts)}, running {self.part or 'elsewhere'})"

    def _prompt(self, prompt: Prompt, wanted: Wanted) -> list[int]:
        return checked_tokens(self.prompt_tokens(prompt, wanted.raw), self.facts)

    def _writing(self, tokens: Sequence[int], wanted: Wanted, told: Told) -> Writing:
        if wanted.logprobs is not None and wanted.logprobs > self.facts.vocabulary:
            raise InputError(f"logprobs {wanted.logprobs}: expected a whole number from 0 to {self.facts.vocabulary}, the vocabulary's")
        return Writing(tokens, self.facts, self.tokenizer if TOKENIZER in self.contents.assets else None, wanted, told)


def _prompts(prompts: Any) -> list[Any]:
    asked = listed(prompts, "prompts are a list of them")
    if asked and all(isinstance(each, Mapping) or isinstance(each, int) for each in asked):
        raise InputError("prompts are a list of them, got one prompt", hint="lm.generate_batch([prompt])")
    return asked
