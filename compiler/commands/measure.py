"""Comparing times: everything in one process, in interleaved rounds, minimum and median of each."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..progress import SILENT, Progress


@dataclass(frozen=True)
class Timing:
    """The times of one candidate, in seconds, one for each round."""

    name: str
    samples: tuple[float, ...]

    @property
    def minimum(self) -> float:
        return min(self.samples)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


def compare(
    candidates: Mapping[str, Callable[[], object]], rounds: int, *, inner: float = 0.02, pause: float = 0.0, progress: Progress = SILENT
) -> list[Timing]:
    """Time each candidate once a round, in an order that turns with the rounds.

    Short calls are repeated until they take `inner` seconds; a sample is then the mean of one batch.
    Before each sample nothing is done for `pause` seconds: threads of others, which wait awake for more work, go to sleep.
    """
    batches = {name: _batch(call, inner) for name, call in candidates.items()}
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    progress.stage("measure", rounds)
    for number in range(rounds):
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            time.sleep(pause)
            samples[name].append(_time(candidates[name], batches[name]))
        progress.advance()
    return [Timing(name, tuple(samples[name])) for name in names]


def _batch(call: Callable[[], object], inner: float) -> int:
    call()
    call()
    return max(1, int(inner / max(_time(call, 1), 1e-7)))


def _time(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def rows(timings: Sequence[Timing]) -> tuple[tuple[str, float, float, float], ...]:
    """(name, minimum in ms, median in ms, how many times as long as the first by minimum)."""
    first = timings[0]
    return tuple((t.name, round(t.minimum * 1e3, 4), round(t.median * 1e3, 4), round(t.minimum / first.minimum, 3)) for t in timings)
