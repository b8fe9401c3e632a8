"""How long work tells what it is doing: a protocol that the command line, a notebook or nobody fills."""

from __future__ import annotations

import logging
from typing import Protocol


class Progress(Protocol):
    """Told of stages in order; `advance` counts within the current stage."""

    def stage(self, name: str, total: int | None = None) -> None:
        """A new stage begins, of `total` steps if that is known."""

    def advance(self, steps: int = 1) -> None:
        """Some steps of the current stage are done."""

    def note(self, message: str) -> None:
        """Something worth a line: what was reused, skipped or decided."""


class Silent:
    """Progress that nobody watches: stages and notes go to the log."""

    def stage(self, name: str, total: int | None = None) -> None:
        """A line in the log."""
        _LOG.info("%s", name)

    def advance(self, steps: int = 1) -> None:
        """Says nothing."""

    def note(self, message: str) -> None:
        """A line in the log."""
        _LOG.info("%s", message)


_LOG = logging.getLogger("ourcc.build")


SILENT: Progress = Silent()
