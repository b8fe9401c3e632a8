"""Mistakes of our own that another choice hides: each is a note of the build, with the strategy and the region that it met."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from ..ir.errors import UnsupportedError, is_own, reason

LOG = logging.getLogger("ourcc.faults")


@dataclass
class Faults:
    """The notes of a build, each once and in order; the log has them too."""

    notes: dict[str, None] = field(default_factory=dict)

    def add(self, what: str, failure: Exception) -> None:
        """Note a failure, unless it is a limit that we know: an UnsupportedError says what is not taken, and is no mistake."""
        if is_own(failure) and not isinstance(failure, UnsupportedError):
            note = f"internal error: {what} failed, and another choice was taken: {reason(failure)}"
            if note not in self.notes:
                self.notes[note] = None
                LOG.info("%s", note)
