"""One text as it is made: behind which tokens the next ones are chosen, what becomes of them, the pieces that may be shown."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...ir.errors import InputError
from .facts import LanguageFacts
from .lookup import Lookup, Pace
from .options import Wanted
from .sampling import Sampling
from .scoring import logarithms
from .sequence import Sequences, TokenSequence
from .tokens import Pieces, Tokenizer

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Score:
    """What the model gave a token: the logarithm of its probability, and the likeliest tokens of its place with theirs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class Told:
    """How a generation went: tokens read and made, why it ended, seconds; scores of tokens where they are asked for.

    It ends by the `end` of a turn, a `stop` text, the `length` asked for, a full `context`, or because it was `closed`. Of `guessed`
    tokens so many were `accepted`: each saved a call.
    """

    read: int = 0
    made: list[int] = field(default_factory=list)
    ended: str = ""
    first: float = 0.0
    rest: float = 0.0
    logprobs: list[Score] = field(default_factory=list)
    guessed: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float:
        """Tokens a second behind the first one; 0 where there is none."""
        return (len(self.made) - 1) / self.rest if len(self.made) > 1 and self.rest else 0.0


class Writing:
    """A text behind its prompt: `ask` says behind which tokens the next are chosen, `take` goes on with them, until `is_done`."""

    def __init__(self, tokens: Sequence[int], facts: LanguageFacts, tokenizer: Tokenizer | None, wanted: Wanted, told: Told) -> None:
        wanted.sampling.check(facts.vocabulary)
        self.told = told
        self._held = list(tokens)
        self._facts, self._wanted = facts, wanted
        self._pieces = Pieces(tokenizer) if tokenizer is not None else None
        self._text, self._shown = "", 0
        self._lookup = Lookup() if wanted.speculate != 0 else None
        self._pace = Pace() if wanted.speculate is None else None
        self._guesses: list[int] = []
        self._begun = time.perf_counter()
        told.read = len(self._held)

    @property
    def is_done(self) -> bool:
        """Whether the text has ended."""
        return bool(self.told.ended)

    def ask(self) -> tuple[list[int], int, Sampling, bool]:
        """The tokens to read, guesses behind them, behind how many of them tokens are chosen, how, and whether their scores are told."""
        self._guesses = []
        if self._lookup is not None:
            most = self._pace.most() if self._pace is not None else self._wanted.speculate or 0
            room = min(self._wanted.max_tokens - len(self.told.made) - 1, self._facts.context - len(self._held), most)
            self._guesses = self._lookup.guesses(self._held, room)
        return [*self._held, *self._guesses], 1 + len(self._guesses), self._wanted.sampling, self._wanted.logprobs is not None

    def take(self, chosen: Sequence[int], rows: Array) -> str:
        """Take the tokens that were chosen, by logits f32[count, vocabulary] if they were asked for, and give the text that may be shown.

        Each token stands behind a guess that was right, so it is what the model says without guesses: the same tokens are chosen,
        greedily or by the same draws, and none is lost or made likelier.
        """
        for number, token in enumerate(chosen):
            if token < 0:
                what = f"the model's logits after {len(self._held)} tokens hold NaN or no finite number"
                raise InputError(what, hint="its weights are damaged")
            self._note(token, rows[number : number + 1])
            if self.is_done or number == len(self._guesses) or token != self._guesses[number]:
                self.told.accepted += number
                break
        self.told.guessed += len(self._guesses)
        if self._pace is not None and self._guesses:
            self._pace.learn(len(self._guesses), number)
        return self._show()

    def _note(self, token: int, rows: Array) -> None:
        told, wanted = self.told, self._wanted
        now = time.perf_counter() - self._begun
        told.first = told.first if told.made else now
        told.rest = now - told.first
        if token in self._facts.end and not wanted.ignore_end:
            told.ended = "end"
            return
        told.made.append(token)
        self._held.append(token)
        if wanted.logprobs is not None:
            told.logprobs.append(scored(rows, token, wanted.logprobs))
        self._text += self._pieces.add(token) if self._pieces is not None else f"{token} "
        if _stopped(self._text, wanted.stop) is not None:
            told.ended = "stop"
        elif len(told.made) == wanted.max_tokens:
            told.ended = "length"
        elif len(self._held) > self._facts.context:
            told.ended = "context"

    def _show(self) -> str:
        """What is new of the text: all of it at the end, before that nothing that a stop text may begin with."""
        if self.is_done and self.told.ended != "stop" and self._pieces is not None:
            self._text += self._pieces.rest()
        cut = _stopped(self._text, self._wanted.stop)
        end = (len(self._text) if cut is None else cut) if self.is_done else len(self._text) - _beginning(self._text, self._wanted.stop)
        shown, self._shown = self._text[self._shown : end], max(self._shown, end)
        return shown


def scored(rows: Array, token: int, count: int) -> Score:
    """A token's score and those of the likeliest `count`, from f32[1, vocabulary]; the smallest of equals comes first."""
    (logs,) = logarithms(rows)
    top = np.argsort(-logs, kind="stable")[:count]
    return Score(token, float(logs[token]), tuple((int(each), float(logs[each])) for each in top))


def written(sequence: TokenSequence, writing: Writing) -> Iterator[str]:
    """The pieces of one text. Whoever closes the iterator leaves a sequence that can be used on."""
    try:
        while not writing.is_done:
            ((chosen, rows),) = sequence.owner.sample([(sequence, *writing.ask())])
            piece = writing.take(chosen, rows)
            if piece:
                yield piece
    except GeneratorExit:
        writing.told.ended = writing.told.ended or "closed"
        raise


def written_together(sequences: Sequences, writings: Sequence[Writing]) -> Iterator[tuple[int, str]]:
    """The pieces of several texts with their numbers, as many at once as a call reads; one that ends makes room for the next."""
    waiting, active = list(enumerate(writings)), dict[int, tuple[Writing, TokenSequence]]()
    try:
        while waiting or active:
            while waiting and len(active) < sequences.facts.sequences:
                number, writing = waiting.pop(0)
                active[number] = writing, sequences.begin()
            found = sequences.sample([(sequence, *writing.ask()) for writing, sequence in active.values()])
            for (number, (writing, sequence)), each in zip(list(active.items()), found, strict=True):
                piece = writing.take(*each)
                if writing.is_done:
                    sequence.end()
                    del active[number]
                if piece:
                    yield number, piece
    except GeneratorExit:
        for writing in writings:
            writing.told.ended = writing.told.ended or "closed"
        raise
    finally:
        for _, sequence in active.values():
            sequence.end()


def _stopped(text: str, stop: Sequence[str]) -> int | None:
    """Where the first of the stop texts begins."""
    places = [place for place in (text.find(each) for each in stop) if place >= 0]
    return min(places) if places else None


def _beginning(text: str, stop: Sequence[str]) -> int:
    """How many characters at the end may be the beginning of a stop text."""
    return max((size for each in stop for size in range(1, len(each)) if text.endswith(each[:size])), default=0)
