"""Which candidates to measure, and which of those measured is the best: pure functions, tested against an oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..passes.tile.schedule import Candidate, Schedule, seconds
from .record import Record

NOISE = 0.02
"""Two candidates closer than this are a tie however quiet the machine was."""


@dataclass(frozen=True)
class Leader:
    """The best candidate of a record; `ties` are those that noise cannot tell from the fastest, itself included."""

    candidate: Candidate
    picoseconds: int
    ties: tuple[Schedule, ...]


def rank(families: Sequence[Sequence[Candidate]], target: Any) -> list[Candidate]:
    """All candidates by predicted cost; equal costs keep the order of strategies and of their spaces."""
    candidates = [candidate for family in families for candidate in family]
    costs = [seconds(*candidate, target) for candidate in candidates]
    return [candidates[n] for n in sorted(range(len(candidates)), key=lambda n: (costs[n], n))]


def shortlist(ranked: Sequence[Candidate], count: int, warm: Sequence[Schedule] = ()) -> list[Candidate]:
    """The best `count` candidates by cost, over at least two strategies where two apply.

    `warm` are schedules that won elsewhere: they come in before others of their rank.
    """
    chosen = list(ranked[:count])
    strategies = {schedule.strategy for _, schedule in ranked}
    if count > 1 and len(strategies) > 1 and len({schedule.strategy for _, schedule in chosen}) < 2:
        only = chosen[0][1].strategy
        chosen[-1] = next(candidate for candidate in ranked if candidate[1].strategy != only)
    known = {schedule for _, schedule in chosen}
    extra = [candidate for candidate in ranked if candidate[1] in warm and candidate[1] not in known][: max(0, count - 2)]
    return [*chosen[: count - len(extra) - 1], *extra, chosen[-1]] if extra else chosen


def leader(record: Record, offered: Sequence[Candidate], target: Any) -> Leader | None:
    """The candidate to take: of those that noise cannot tell from the fastest the one with the least predicted cost.

    Schedules that are not offered do not exist, whoever measured them.
    """
    measured = []
    for candidate in offered:
        trial = record.trial(candidate[1])
        if trial is not None and trial.times:
            measured.append((candidate, trial.times))
    if not measured:
        return None
    _, fastest = min(measured, key=lambda item: item[1][0])
    ties = {candidate[1]: times[0] for candidate, times in measured if is_tie(times, fastest)}
    ranked = rank([[candidate for candidate, _ in measured if candidate[1] in ties]], target)
    return Leader(ranked[0], ties[ranked[0][1]], tuple(schedule for _, schedule in ranked))


def is_tie(times: Sequence[int], fastest: Sequence[int]) -> bool:
    """Whether the least of `times` (sorted) is within the noise of both above the least of `fastest`."""
    return times[0] <= fastest[0] * (1 + max(NOISE, _spread(times), _spread(fastest)))


def _spread(times: Sequence[int]) -> float:
    """How far the lower quartile lies above the minimum: what the quieter rounds differ by."""
    return times[(len(times) - 1) // 4] / times[0] - 1
