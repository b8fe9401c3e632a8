"""The pages of a session's caches: who holds which, and copies of those that are shared before one of them is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...ir import dims
from ...ir.errors import EngineError, UsageError
from ..session import Session


@dataclass
class Held:
    """The pages of one sequence in order: place t lies at place t mod P of page t div P, where P are the places of a page."""

    pages: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Writing:
    """A sequence that writes its places from `first` up to `end`; those before stay, and those from `end` on are given back."""

    held: Held
    first: int
    end: int


@dataclass(frozen=True)
class _Filling:
    """A page that is to hold the first `count` places of `source`, itself or another, and zeros from there up to `end`."""

    page: int
    source: int
    count: int
    end: int


@dataclass
class _Ledger:
    """Who holds what: by how many sequences each page is held, the free ones, and how many places of a page may hold no numbers."""

    users: list[int]
    free: list[int]
    doubtful: dict[int, int] = field(default_factory=dict)

    def copy(self) -> _Ledger:
        """The same again, to be changed."""
        return _Ledger(list(self.users), list(self.free), dict(self.doubtful))

    def give_back(self, pages: Iterable[int]) -> None:
        """One sequence less holds each of these pages; those that none holds are free."""
        for page in pages:
            self.users[page] -= 1
            if not self.users[page]:
                self.free.append(page)


class Pages:
    """The pages that a session's states consist of, each the same piece of every state; sequences take and share them.

    A page of several sequences is written by none: who writes it takes another, with a copy of what it keeps. What holds no number is
    cleared before it is taken, since places that a sequence does not see weigh nothing, but nothing times NaN is NaN.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        shapes = {type.shape[:2] for type in session.states.values()}
        if [*map(len, shapes)] != [2]:
            raise EngineError("the engine's states are no caches of a language model: they are not all in the same pages")
        self.count, self.size = map(dims.number, shapes.pop())
        self._ledger = _Ledger([0] * self.count, list(range(self.count)))

    @property
    def free(self) -> int:
        """How many no sequence holds."""
        return len(self._ledger.free)

    def users(self, page: int) -> int:
        """How many sequences hold a page."""
        return self._ledger.users[page]

    def needed(self, places: int) -> int:
        """The pages of so many places."""
        return -(-places // self.size)

    def prepare(self, writings: Sequence[Writing]) -> list[bool]:
        """Let each sequence hold pages that are its own alone where it writes; UsageError, and nothing changed, where too few are free.

        Tells of each whether its pages have changed, so that from `first` on they hold nothing more.
        """
        changed = [not self._is_ready(each) for each in writings]
        asked = [each for each, is_changed in zip(writings, changed, strict=True) if is_changed]
        if not asked:
            return changed
        ledger, fillings = self._ledger.copy(), list[_Filling]()
        # Pages that nobody will hold are there for all of them.
        for each in asked:
            ledger.give_back(each.held.pages[self.needed(each.end) :])
        found = [self._pages_for(each, ledger, fillings) for each in asked]
        for filling in fillings:
            self._fill(filling)
        for each, pages in zip(asked, found, strict=True):
            each.held.pages = pages
        self._ledger = ledger
        return changed

    def _is_ready(self, writing: Writing) -> bool:
        """Whether nothing is to be done for it, as for most tokens."""
        held, ledger, first = writing.held.pages, self._ledger, writing.first // self.size
        kept = [writing.first % self.size, *[0] * len(held)]
        own = zip(held[first:], kept, strict=False)
        return len(held) == self.needed(writing.end) and all(
            ledger.users[page] == 1 and ledger.doubtful.get(page, 0) <= count for page, count in own
        )

    def _pages_for(self, writing: Writing, ledger: _Ledger, fillings: list[_Filling]) -> list[int]:
        """The pages of a sequence when it writes; what they are to hold is added to `fillings`."""
        first, pages = writing.first // self.size, writing.held.pages[: self.needed(writing.end)]
        for number in range(first, self.needed(writing.end)):
            kept = writing.first % self.size if number == first else 0
            page = source = pages[number] if number < len(pages) else None
            if page is not None and ledger.users[page] > 1:
                ledger.give_back([page])
                page = None
            page = self._taken(ledger) if page is None else page
            source = page if source is None else source
            end = max(kept, ledger.doubtful.pop(page, 0))
            if end > kept or (kept and page != source):
                fillings.append(_Filling(page, source, kept, end))
            doubtful = min(kept, end if page == source else ledger.doubtful.get(source, 0))
            if doubtful:
                ledger.doubtful[page] = doubtful
            pages[number:] = [page, *pages[number + 1 :]]
        return pages

    def _taken(self, ledger: _Ledger) -> int:
        if not ledger.free:
            what = f"{self.count * self.size} tokens in {self.count} {'page' if self.count == 1 else 'pages'}"
            hint = "end a sequence, or build the engine with a larger --batch"
            raise UsageError(f"the session holds {what}, and all are taken", hint=hint)
        page = ledger.free.pop(0)
        ledger.users[page] = 1
        return page

    def _fill(self, filling: _Filling) -> None:
        """Copy and clear places of a page in every state."""
        kept, cleared = slice(0, filling.count), slice(filling.count, filling.end)
        for name in self._session.states:
            if filling.source != filling.page and filling.count:
                self._session.set_state(name, self._session.state(name, (filling.source, kept)), (filling.page, kept))
            if filling.end > filling.count:
                where = filling.page, cleared
                self._session.set_state(name, np.zeros_like(self._session.state(name, where)), where)

    def share(self, held: Held, places: int) -> Held:
        """Another holder of the pages of the first places."""
        pages = held.pages[: self.needed(places)]
        for page in pages:
            self._ledger.users[page] += 1
        return Held(pages)

    def give_back(self, held: Held) -> None:
        """Hold none of them any more."""
        self._ledger.give_back(held.pages)
        held.pages = []

    def doubt(self, held: Held, places: int) -> None:
        """Note that the first places may hold what is no number."""
        doubtful = self._ledger.doubtful
        for number, page in enumerate(held.pages[: self.needed(places)]):
            doubtful[page] = max(doubtful.get(page, 0), min(self.size, places - number * self.size))

    def is_sound(self, held: Held) -> bool:
        """Whether these pages hold numbers, as far as is known."""
        return not any(page in self._ledger.doubtful for page in held.pages)

    def table(self, holders: Sequence[Held], places: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """i64[holders, pages] of so many places; behind a sequence's own stands its last, which holds numbers and is not looked at."""
        width = self.needed(places)
        rows = [[*held.pages[:width], *[held.pages[-1]] * (width - len(held.pages))] for held in holders]
        return np.asarray(rows, np.int64)
