"""A sequence of tokens and the cache that holds their keys and values: what was read once is not read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.errors import EngineError, InputError
from ..session import Session
from .facts import STEP, LanguageFacts

Array = np.ndarray[Any, Any]


class TokenSequence:
    """One sequence on a session of its own."""

    def __init__(self, session: Session, facts: LanguageFacts) -> None:
        self.session = session
        self.facts = facts
        self.tokens: list[int] = []
        """The tokens whose keys and values the cache holds."""

    def logits(self, tokens: Sequence[int]) -> Array:
        """f32[vocabulary] for what follows `tokens`; of them only those are read that the cache does not hold."""
        row: Array = self.all_logits(tokens, last=1)[-1]
        return row

    def all_logits(self, tokens: Sequence[int], last: int | None = None) -> Array:
        """f32[count, vocabulary] behind the `last` of the tokens (default: behind all that are read)."""
        self._check(tokens)
        first = self._known(tokens, len(tokens) - (1 if last is None else last))
        wanted = len(tokens) - first if last is None else last
        found = []
        for begin in range(first, len(tokens), self.facts.chunk):
            end = min(begin + self.facts.chunk, len(tokens))
            rows = np.arange(max(len(tokens) - wanted, begin), end) - begin
            # A call gives the logits of at least one token.
            asked = rows if len(rows) else np.zeros(1, np.int64)
            held = self._step(tokens[begin:end], begin, asked)
            found += [held] if len(rows) else []
        return np.concatenate(found)

    def _known(self, tokens: Sequence[int], most: int) -> int:
        """How many of the first tokens the cache holds, at most `most`."""
        count = 0
        for ours, theirs in zip(self.tokens, tokens, strict=False):
            if ours != theirs or count >= most:
                break
            count += 1
        return count

    def _step(self, tokens: Sequence[int], first: int, wanted: Array) -> Array:
        places = np.arange(first, first + len(tokens))
        try:
            logits = self.session.functions[STEP](np.asarray([tokens], np.int64), places[None], np.arange(first + len(tokens)), wanted)
        except EngineError:
            raise  # the session is another thread's, or of no use any more: nothing was written
        except BaseException:
            self.tokens = self.tokens[:first]  # what a call that fails leaves in the cache is not counted on
            raise
        self.tokens = [*self.tokens[:first], *tokens]
        return np.asarray(logits)

    def _check(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise InputError("a text of no tokens: a model continues at least one")
        outside = next((token for token in tokens if not isinstance(token, int) or not 0 <= token < self.facts.vocabulary), None)
        if outside is not None:
            raise InputError(f"token {outside!r}: the vocabulary has 0 to {self.facts.vocabulary - 1}")
        if len(tokens) > self.facts.context:
            raise InputError(
                f"the text has {len(tokens)} tokens, and a session of this engine holds {self.facts.context}",
                hint="shorten it, or build the engine with a larger --context",
            )
