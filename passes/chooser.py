"""The question that a pass may ask before it changes a program: does it pay?

Passes know neither the cost model nor the tuner; the pipeline hands them a chooser that does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..ir.dims import NO_FACTS, Facts
from ..ir.region import Region


@dataclass(frozen=True)
class Alternatives:
    """One decision: what is proposed, and the kernels with and without it."""

    proposal: str
    without: Sequence[Region]
    proposed: Sequence[Region]
    facts: Facts = NO_FACTS


@dataclass(frozen=True)
class Decision:
    """The answer and its reason, which the report shows."""

    pays: bool
    why: str


class Chooser(Protocol):
    """Says whether a change pays."""

    def pays(self, alternatives: Alternatives) -> Decision:
        """Whether the proposed kernels are better than those without."""


@dataclass(frozen=True)
class Always:
    """Takes every proposal: for passes in isolation, where there is no cost model."""

    def pays(self, alternatives: Alternatives) -> Decision:
        """Yes."""
        return Decision(True, "every proposal is taken")


@dataclass(frozen=True)
class Never:
    """Refuses every proposal."""

    def pays(self, alternatives: Alternatives) -> Decision:
        """No."""
        return Decision(False, "every proposal is refused")
