"""What an engine says of the language model that it holds, and the names of the files that say it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ...ir.errors import EngineError

FACTS, TOKENIZER = "language.json", "tokenizer.json"
STEP = "step"
"""The function that a language model's engine has."""


@dataclass(frozen=True)
class Facts:
    """Architecture, vocabulary, tokens that a sequence may have, sequences side by side, tokens that begin a text and that end a turn."""

    architecture: str
    vocabulary: int
    context: int
    slots: int = 1
    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    template: str | None = None

    def to_json(self) -> bytes:
        """The file."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @staticmethod
    def of(data: bytes) -> Facts:
        """What a file says; EngineError if it is damaged."""
        try:
            said = json.loads(data)
            facts = Facts(**{**said, "begin": tuple(said["begin"]), "end": tuple(said["end"])})
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise EngineError(f"{FACTS} of the engine is damaged: {error}") from error
        numbers = (facts.vocabulary, facts.context, facts.slots)
        if not all(type(each) is int and each > 0 for each in numbers) or not isinstance(facts.template, str | None):
            raise EngineError(f"{FACTS} of the engine is damaged: {facts}")
        if not all(type(each) is int and 0 <= each < facts.vocabulary for each in (*facts.begin, *facts.end)):
            raise EngineError(f"{FACTS} of the engine is damaged: a token lies outside of the vocabulary")
        return facts
