"""Sequences of tokens and the cache that holds their keys and values: what was read once is not read again."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from ...ir import dims
from ...ir.errors import EngineError, InputError, UsageError
from ...ir.types import TensorType
from ..saved import Saved, read_saved, write_saved
from ..session import Session
from .facts import SAMPLE, STEP, LanguageFacts
from .given import checked_tokens, listed
from .pages import Held, Pages, Writing
from .sampling import Draw, Sampling, operands

Array = np.ndarray[Any, Any]
TOGETHER = 16
"""Sequences that have so many tokens left to read at most are read in one call: shorter ones repeat their last token."""
NOBODY = np.zeros(0, np.int64)
"""The tokens that nobody chose."""
ENDED = "the sequence has ended, or is one of another session"


Asked: TypeAlias = "tuple[TokenSequence, Sequence[int], int | None]"
"""A sequence, its tokens, and behind how many of them logits are asked for."""
AskedTokens: TypeAlias = "tuple[TokenSequence, Sequence[int], int, Sampling, bool]"
"""A sequence, its tokens, behind how many of them a token is chosen, how, and whether the logits are asked for too."""


class Sequences:
    """The sequences of one session, whose keys and values lie in pages of its caches; a call reads some of them.

    What a sequence is told does not depend on the others, to the bit: every token is computed as if it were alone. A session of an
    engine for one sequence holds one; any other as many as its pages have room for. Threads may share them: each waits for the
    others' calls to end.
    """

    def __init__(self, session: Session, facts: LanguageFacts) -> None:
        self.session = session
        self.facts = facts
        self.pages = Pages(session)
        self._begun = 0
        self._context = np.arange(facts.context)
        self._turn = threading.RLock()
        """Held from when pages are counted until they are read or written: who reads on must not meet another's change."""

    def begin(self) -> TokenSequence:
        """A new sequence, which takes pages as it grows; UsageError where the engine is one for a single sequence, and there is one."""
        with self._turn:
            if self.facts.sequences == 1 and self._begun:
                hint = "end it, or build the engine with a larger --batch"
                raise UsageError("the session holds 1 sequence, and it is taken", hint=hint)
            self._begun += 1
            return TokenSequence(self, Held())

    def end(self, sequence: TokenSequence) -> None:
        """Give back what a sequence holds."""
        with self._turn:
            if sequence.ended:
                return
            sequence.ended = True
            self._begun -= 1
            self.pages.give_back(sequence.held)

    def fork(self, sequence: TokenSequence) -> TokenSequence:
        """Another sequence that has read the same, and shares its pages until one of the two writes them."""
        with self._turn:
            if sequence.ended:
                raise UsageError(ENDED)
            if self.facts.sequences > 1:
                self._begun += 1
                other = TokenSequence(self, self.pages.share(sequence.held, len(sequence.tokens)))
            else:
                other = Sequences(self.session.fork(), self.facts).begin()
                other.owner.pages.prepare([Writing(other.held, 0, len(sequence.tokens))])
                if not self.pages.is_sound(sequence.held):
                    other.owner.pages.doubt(other.held, len(sequence.tokens))
            other.tokens = list(sequence.tokens)
            return other

    def save(self, sequence: TokenSequence, path: str | os.PathLike[str], about: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Write what a sequence has read, and what is said `about` it, all or nothing."""
        with self._turn:
            if sequence.ended:
                raise UsageError(ENDED)
            arrays = {}
            for name, type in self.session.states.items():
                held = np.zeros(self._saved_sizes(type, len(sequence.tokens)), self.session.state(name, (0, slice(0, 0))).dtype)
                for number, (page, places) in enumerate(self._places(sequence)):
                    held[number, places] = self.session.state(name, (page, places))
                arrays[name] = held
            tokens = sequence.tokens
        write_saved(path, Saved(self.session.program, {**about, "tokens": tokens}, arrays))

    def load(self, path: str | os.PathLike[str]) -> tuple[TokenSequence, Mapping[str, Any]]:
        """The sequence of a file and what was said about it; EngineError for a file that holds none of this engine's."""
        saved = read_saved(path, self.session.program, self.session.states)
        try:
            tokens = checked_tokens(saved.about.get("tokens"), self.facts) if saved.about.get("tokens") != [] else []
        except InputError as error:
            raise EngineError(f"{os.fspath(path)}: the file holds no sequence of this engine: {error.message}") from error
        for name, type in self.session.states.items():
            held = saved.arrays.get(name)
            if held is None or held.shape != self._saved_sizes(type, len(tokens)):
                got = "nothing" if held is None else f"sizes {list(held.shape)}"
                raise EngineError(f"{os.fspath(path)}: the file holds {got} of state {name!r} for {len(tokens)} tokens")
        with self._turn:
            sequence = self.begin()
            try:
                self.pages.prepare([Writing(sequence.held, 0, len(tokens))])
            except UsageError:
                self.end(sequence)
                raise
            self.pages.doubt(sequence.held, len(tokens))  # a file may hold what is no number
            sequence.tokens = tokens
            for name, array in saved.arrays.items():
                for number, (page, places) in enumerate(self._places(sequence)):
                    self.session.set_state(name, array[number, places], (page, places))
            return sequence, saved.about

    def _saved_sizes(self, type: TensorType, count: int) -> tuple[int, ...]:
        """What a file holds of a state for so many tokens: pages, places of each, and the sizes of a place."""
        return max(1, self.pages.needed(count)), min(count, self.pages.size), *map(dims.number, type.shape[2:])

    def _places(self, sequence: TokenSequence) -> Iterator[tuple[int, slice]]:
        """The pages that hold what a sequence has read, with the places of each."""
        size, count = self.pages.size, len(sequence.tokens)
        for number, page in enumerate(sequence.held.pages[: self.pages.needed(count)]):
            yield page, slice(0, min(size, count - number * size))

    def logits(self, asked: Sequence[Asked]) -> list[Array]:
        """For each sequence, its tokens and a number of them: f32[number, vocabulary] behind the last of them.

        Of the tokens only those are read that the cache does not hold; None asks for the logits behind all that are read.
        """
        with self._turn:
            return [each.logits for each in self._read([self._reading(*each) for each in _asked(asked)])]

    def sample(self, asked: Sequence[AskedTokens]) -> list[tuple[list[int], Array]]:
        """For each sequence the tokens that are chosen behind the last of its tokens, -1 where logits are no numbers, and f32[n,
        vocabulary]: the logits that they were chosen by, or none.
        """
        with self._turn:
            return [(each.chosen, each.logits) for each in self._read([self._reading(*each) for each in asked])]

    def _read(self, todo: Sequence[_Reading]) -> Sequence[_Reading]:
        """Read what is to be read, in as many calls as it takes."""
        if len({id(each.sequence) for each in todo}) != len(todo):
            raise InputError("a sequence is asked for twice in one call")
        changed = self.pages.prepare([Writing(each.sequence.held, each.place, len(each.tokens)) for each in todo])
        for each in itertools.compress(todo, changed):
            each.sequence.tokens = each.tokens[: each.place]
        while group := self._next(todo):
            self._step(group)
        return todo

    def _reading(
        self, sequence: TokenSequence, tokens: Sequence[int], last: int | None, sampling: Sampling | None = None, scored: bool = True
    ) -> _Reading:
        if sequence.ended or sequence.owner is not self:
            raise UsageError(ENDED)
        held = self._checked(sequence.tokens, tokens)
        is_count = isinstance(last, (int, np.integer)) and not isinstance(last, bool)
        if last is not None and not (is_count and 1 <= last <= len(held)):
            raise InputError(f"got the logits behind the last {last!r:.80} tokens, expected 1 to {len(held)}")
        first = sequence.known(held, len(held) - (1 if last is None else last))
        return _Reading(sequence, held, first, first if last is None else len(held) - last, sampling, scored)

    def _checked(self, read: list[int], tokens: Sequence[int]) -> list[int]:
        """Tokens that the model can read; those that were read already were looked at then."""
        count = len(read)
        if isinstance(tokens, list) and len(tokens) > count and tokens[:count] == read:
            return [*read, *checked_tokens(tokens[count:], self.facts, count)]
        return checked_tokens(tokens, self.facts)

    def _next(self, todo: Sequence[_Reading]) -> list[_Reading]:
        """What the next call reads: a part of one long text, or the ends of as many of them as it takes."""
        left = [each for each in todo if each.left]
        long = [each for each in left if each.left > TOGETHER]
        return long[:1] or left[: self.facts.sequences]

    def _step(self, group: Sequence[_Reading]) -> None:
        """One call: read what is next of each, and give each what it asked for."""
        counts = [min(each.left, self.facts.chunk) for each in group]
        asked = [(row, each, place) for row, each in enumerate(group) for place in each.asked(counts[row])]
        # A call gives the logits of at least one token.
        wanted = [row * max(counts) + place - each.place for row, each, place in asked] or [0]
        inputs = [*self._placed(group, counts), np.array(wanted)]
        draws = [(each.sampling, each.tokens, place + 1) for _, each, place in asked if each.sampling is not None]
        if draws:
            shown = np.array([number for number, (_, each, _) in enumerate(asked) if each.scored], np.int64)
            chosen, rows = self._call(group, SAMPLE, [*inputs, *operands(draws), shown])
        else:
            chosen, rows = NOBODY, self._call(group, STEP, inputs)
        for each, count in zip(group, counts, strict=True):
            number = len(each.asked(count))
            shares = number if each.scored else 0
            each.take(count, chosen[:number].tolist(), rows[:shares])
            chosen, rows = chosen[number:], rows[shares:]

    def _placed(self, group: Sequence[_Reading], counts: Sequence[int]) -> list[Array]:
        """The tokens that a call reads, their positions, their pages if there are any, and the places that it looks at."""
        longest, seen = max(counts), max(each.place + count for each, count in zip(group, counts, strict=True))
        # Behind its end a shorter one repeats its last token where it is: what is written there stays the same.
        tokens = [_lengthened(each.tokens[each.place : each.place + count], longest) for each, count in zip(group, counts, strict=True)]
        positions = [_lengthened(range(each.place, each.place + count), longest) for each, count in zip(group, counts, strict=True)]
        tables = [self.pages.table([each.sequence.held for each in group], seen)] if self.facts.sequences > 1 else []
        return [np.array(tokens), np.array(positions), *tables, self._context[:seen]]

    def _call(self, group: Sequence[_Reading], function: str, inputs: Sequence[Array]) -> Any:
        try:
            return self.session.functions[function](*inputs)
        except EngineError:
            raise  # the session is another thread's, or of no use any more: nothing was written
        except BaseException:
            for each in group:  # what a call that fails leaves in the cache is not counted on
                each.sequence.tokens = each.sequence.tokens[: each.place]
            raise


class TokenSequence:
    """One sequence in pages of a session's caches."""

    def __init__(self, owner: Sequences, held: Held) -> None:
        self.owner = owner
        self.held = held
        self.tokens: list[int] = []
        """The tokens whose keys and values the caches hold."""
        self.ended = False

    @property
    def session(self) -> Session:
        """The session that holds it."""
        return self.owner.session

    @property
    def facts(self) -> LanguageFacts:
        """What the engine says of its model."""
        return self.owner.facts

    def logits(self, tokens: Sequence[int]) -> Array:
        """f32[vocabulary] for what follows `tokens`; of them only those are read that the cache does not hold."""
        row: Array = self.all_logits(tokens, last=1)[-1]
        return row

    def all_logits(self, tokens: Sequence[int], last: int | None = None) -> Array:
        """f32[count, vocabulary] behind the `last` of the tokens (default: behind all that are read)."""
        (rows,) = self.owner.logits([(self, tokens, last)])
        return rows

    def fork(self) -> TokenSequence:
        """Another sequence that has read the same; nothing is copied before one of the two reads on.

        Where a session holds one sequence it is one of a session of its own, whose cache is copied by the first of the two that
        reads on; else both hold the same pages, and who writes one of them takes a copy of that one.
        """
        return self.owner.fork(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was read to a file that `lm.load_sequence(path)` goes on with; EngineError where it cannot be written."""
        self.owner.save(self, path)

    def end(self) -> None:
        """Give its pages back; the sequence cannot be used any more."""
        self.owner.end(self)

    def known(self, tokens: list[int], most: int) -> int:
        """How many of the first tokens the cache holds, at most `most`."""
        count = min(len(self.tokens), most)
        if self.tokens[:count] == tokens[:count]:
            return count
        return next(n for n, (ours, theirs) in enumerate(zip(self.tokens, tokens, strict=False)) if ours != theirs)


@dataclass
class _Reading:
    """Tokens of a sequence: `place` are read, and behind those from `first` on logits are asked for, or tokens as `sampling` says."""

    sequence: TokenSequence
    tokens: list[int]
    place: int
    first: int
    sampling: Sampling | None
    scored: bool
    rows: list[Array] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)

    @property
    def left(self) -> int:
        """How many are not read yet."""
        return len(self.tokens) - self.place

    def asked(self, count: int) -> range:
        """The places among the next `count` tokens whose logits are asked for."""
        return range(max(self.first, self.place), self.place + count)

    def draws(self, count: int) -> list[Draw]:
        """How a token is chosen behind each of those."""
        return [] if self.sampling is None else [(self.sampling, self.tokens, place + 1) for place in self.asked(count)]

    @property
    def logits(self) -> Array:
        """The logits that were asked for."""
        return np.concatenate(self.rows) if self.rows else np.zeros((0, self.sequence.facts.vocabulary), np.float32)

    def take(self, count: int, chosen: list[int], rows: Array) -> None:
        """Note that so many more are read, with the tokens that were chosen and the logits."""
        self.sequence.tokens = self.tokens[: self.place + count]
        self.place += count
        self.chosen += chosen
        if len(rows):
            self.rows.append(rows)
        if -1 in chosen or (len(rows) and not np.isfinite(rows).all()):
            self.sequence.owner.pages.doubt(self.sequence.held, self.place)


def _asked(asked: Any) -> list[Asked]:
    """What is asked of several sequences; InputError for anything else."""
    held = listed(asked, "what is asked is a list of (sequence, tokens, last)")
    for item in held:
        if not isinstance(item, (tuple, list)) or len(item) != 3 or not isinstance(item[0], TokenSequence):
            raise InputError(f"what is asked of a sequence is (sequence, tokens, last), got {type(item).__name__}")
    return held


def _lengthened(numbers: Sequence[int], length: int) -> list[int]:
    """Numbers, and the last of them again up to a length."""
    return [*numbers, *[numbers[-1]] * (length - len(numbers))]
