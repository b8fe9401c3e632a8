"""What an engine says of the language model that it holds, and the names of the files that say it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ...ir.errors import EngineError

FACTS, TOKENIZER = "language.json", "tokenizer.json"
CHUNK = 512
"""So many tokens of a prompt are read in one call, where the model does not need them all in one."""
STEP, SAMPLE = "step", "sample"
"""The functions that a language model's engine has: logits behind tokens, and tokens that are chosen by them."""

WORDS = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True)
class LanguageFacts:
    """Architecture, vocabulary, tokens that a sequence may have, tokens that begin a text and that end a turn.

    `chunk` tokens of a prompt are read in one call. `words` are the texts that a chat template knows by `WORDS`.
    Keys and values are kept in `cache`, which takes `token_bytes` for each token; a call reads so many `sequences`, and a
    session's caches have `places` for the keys and values of tokens.
    """

    architecture: str
    vocabulary: int
    context: int
    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    template: str | None = None
    chunk: int = CHUNK
    words: tuple[str, ...] = ("", "")
    cache: str = "f32"
    token_bytes: int = 0
    sequences: int = 1
    places: int = 1

    @property
    def named(self) -> dict[str, str]:
        """Special tokens as chat templates know them; those that begin and end a text always, others where there are some."""
        return {name: word for n, (name, word) in enumerate(zip(WORDS, self.words, strict=False)) if word or n < 2}

    def to_json(self) -> bytes:
        """The file."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @staticmethod
    def of(data: bytes) -> LanguageFacts:
        """What a file says; EngineError if it is damaged."""
        try:
            said = json.loads(data)
            facts = LanguageFacts(**{**said, "begin": tuple(said["begin"]), "end": tuple(said["end"]), "words": tuple(said["words"])})
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise EngineError(f"{FACTS} of the engine is damaged: {error}") from error
        numbers = (facts.vocabulary, facts.context, facts.chunk, facts.sequences, facts.places)
        if (
            not all(type(each) is int and each > 0 for each in numbers)
            or not isinstance(facts.template, str | None)
            or not isinstance(facts.cache, str)
            or type(facts.token_bytes) is not int
            or not 2 <= len(facts.words) <= len(WORDS)
            or not all(isinstance(word, str) for word in facts.words)
        ):
            raise EngineError(f"{FACTS} of the engine is damaged: {facts}")
        if not all(type(each) is int and 0 <= each < facts.vocabulary for each in (*facts.begin, *facts.end)):
            raise EngineError(f"{FACTS} of the engine is damaged: a token lies outside of the vocabulary")
        return facts
