"""The text of a generation as it is made: pieces that one thread at a time asks for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from ...ir.errors import UsageError
from .writing import Told

P = TypeVar("P")


class Answer(Generic[P], Iterator[P]):
    """Pieces of text as they are made; `close()` ends them early, from any thread, and `with` does so at its end.

    `told` says how it goes, `all_told` does of each prompt of a batch. One thread at a time asks for the next piece; UsageError for
    another one meanwhile, which takes nothing from the text.
    """

    def __init__(self, pieces: Iterator[P], told: list[Told]) -> None:
        self._pieces = pieces
        self._taken = threading.Lock()
        self._is_closed = False
        self.all_told = told

    @property
    def told(self) -> Told:
        """How the text goes, or the first of several."""
        return self.all_told[0]

    def __next__(self) -> P:
        with self._alone():
            return next(self._pieces)

    def close(self) -> None:
        """Make no more of it; a piece that another thread is at is the last one."""
        self._is_closed = True
        self._finish()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._taken.acquire(blocking=False):
            hint = "let one thread read it, or give each thread its own: lm.generate(...)"
            raise UsageError("another thread is at the next piece of this text", hint=hint)
        try:
            yield
        finally:
            self._taken.release()
            # Whoever comes last closes: the thread that was at a piece, or the one that asked for the end meanwhile.
            if self._is_closed:
                self._finish()

    def _finish(self) -> None:
        """End the pieces, unless a thread is at one, which will."""
        close = getattr(self._pieces, "close", None)
        if close is not None and self._taken.acquire(blocking=False):
            try:
                close()
            finally:
                self._taken.release()

    def __enter__(self) -> Answer[P]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
