"""Choosing a schedule for each problem: from a lock, from records, by measuring, else by predicted cost.

Whatever the source, the choice is one of the schedules that the strategies offer for the problem: a record or a lock
that names another is not believed.
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ..passes.lower.schedule import cheapest
from ..passes.tile.schedule import Candidate, Problem, Schedule
from .candidates import unmeasurable
from .lock import LockedLevel, LockError
from .plausible import believable
from .problem import bucket, problem_data
from .record import Data, Record, Trial, digest, merge, record_id
from .search import leader, rank, shortlist
from .store import RecordStore

Source = Literal["cost", "record", "measured", "locked"]
SHORTLIST = 8
"""How many schedules of a problem are measured where only the time in all is given."""


class Measures(Protocol):
    """What measures candidates."""

    def measure(self, problem: Problem, candidates: Sequence[Candidate]) -> tuple[Trial, ...]:
        """One trial for each candidate that was tried."""


@dataclass(frozen=True)
class ScheduleChoice:
    """What was chosen for one problem, from where and why; `tried` candidates were measured in this very build."""

    problem: str
    data: Data
    schedule: Schedule
    source: Source
    why: str
    record: str | None = None
    tried: int = 0
    ties: int = 1


@functools.cache
def _warn(text: str) -> None:
    """What cannot be used is told once, however many builds find it so, and whoever asked for quiet."""
    logging.getLogger("ourcc.tuning").warning(text)


@dataclass
class Shelves:
    """The stores in use: read in order, written at the first, which is the user's own; one that fails is left alone after a warning."""

    stores: list[RecordStore]
    note: Callable[[str], None]
    others: dict[str, list[Record]] | None = None

    def __post_init__(self) -> None:
        self.own = self.stores[0] if self.stores else None

    def checked(self, makes_own: bool) -> Shelves:
        """These without stores that are known not to be there; whether the user's own is looked at too, and made."""
        for store in list(self.stores):
            is_own = store is self.own
            try:
                if makes_own or not is_own:
                    store.backend.check(is_own)
            except OSError as error:
                self._fail(store, error)
        return self

    def get(self, id: str) -> Iterator[Record]:
        """The record of an id in each store that has it."""
        for store in list(self.stores):
            try:
                record = store.get(id)
            except OSError as error:
                self._fail(store, error)
                continue
            for message in store.notes:
                self.note(message)
            store.notes.clear()
            if record is not None:
                yield record

    def put(self, record: Record) -> Record:
        """Add to the user's own store; the union with what it held."""
        if self.own is None or self.own not in self.stores:
            return record
        try:
            return self.own.put(record)
        except OSError as error:
            self._fail(self.own, error)
            return record

    def elsewhere(self, problem: str) -> list[Record]:
        """Records of the problem in the user's own store, whatever their environment."""
        if self.others is None:
            self.others = {}
            if self.own is None or self.own not in self.stores:
                return []
            try:
                for record in self.own.list():
                    self.others.setdefault(digest(record.problem), []).append(record)
            except OSError as error:
                self._fail(self.own, error)
        return self.others.get(problem, [])

    def _fail(self, store: RecordStore, error: OSError) -> None:
        self.stores.remove(store)
        _warn(f"store {store.name} is not used: {(error.strerror or str(error)).lower()}")


@dataclass
class Chooser:
    """Fills the scheduler's question for one level or GPU architecture, and remembers what it answered.

    Without `environment` there are no records to look for, and `unmeasured` is the reason of every choice. `count`
    schedules of a problem are measured by `measurer`, until `deadline` (on the monotonic clock).
    """

    target: Any
    environment: Data | None = None
    shelves: Shelves | None = None
    count: int = 0
    measurer: Measures | None = None
    deadline: float | None = None
    locked: LockedLevel | None = None
    note: Callable[[str], None] = lambda message: None
    unmeasured: str = "least predicted cost"
    decisions: dict[str, ScheduleChoice] = field(default_factory=dict)
    ahead: dict[str, ScheduleChoice] = field(default_factory=dict)
    """What was decided before it was asked for, in an order of its own."""
    names: dict[str, str] = field(default_factory=dict)
    """What people call a problem: the kernel that it becomes."""

    @property
    def measures(self) -> bool:
        """Whether it would measure anything now."""
        return self.count > 0 and self.measurer is not None

    def decide_ahead(self, asked: Iterable[tuple[Problem, Sequence[Sequence[Candidate]]]]) -> None:
        """Decide on problems in this order, since time may not suffice for all; whoever asks for them later gets these choices."""
        for problem, families in asked:
            self(problem, iter(families))
        self.ahead, self.decisions = {**self.ahead, **self.decisions}, {}

    def __call__(self, problem: Problem, families: Iterator[Sequence[Candidate]]) -> Candidate:
        data = problem_data(problem)
        id = digest(data)
        if self.locked is not None:
            return self._locked(self.locked, id, data, families)
        if self.environment is None or self.shelves is None:
            candidate = cheapest(self.target)(problem, families)
            self.decisions[id] = ScheduleChoice(id, data, candidate[1], "cost", self.unmeasured)
            return candidate
        every = [list(family) for family in families]
        known = self.ahead.get(id)
        found = next((each for family in every for each in family if known is not None and each[1] == known.schedule), None)
        if known is not None and found is not None:
            self.decisions[id] = known
            return found
        usual = cheapest(self.target)(problem, iter(every))
        offered = [candidate for family in every for candidate in family]
        candidate, self.decisions[id] = self._tuned(problem, id, data, offered, usual, self.environment, self.shelves)
        return candidate

    def _locked(self, level: LockedLevel, id: str, data: Data, families: Iterator[Sequence[Candidate]]) -> Candidate:
        schedule = level.choices.get(id)
        if schedule is None:
            raise LockError(
                f"{level.name} holds no choice for problem {id[:16]}: it was made of another model, for other sizes or with other options",
                note=f"the lock's choices are for {len(level.choices)} other problems",
                hint="give the same --shape, --workload and other options as the build that made the lock, or build without --locked",
            )
        for candidate in itertools.chain.from_iterable(families):
            if candidate[1] == schedule:
                self.decisions[id] = ScheduleChoice(id, data, schedule, "locked", "the lock says so")
                return candidate
        raise LockError(
            f"{level.name} chooses {schedule} for problem {id[:16]}, which no strategy offers", note=str(data["region"]).strip()
        )

    def _tuned(
        self, problem: Problem, id: str, data: Data, offered: list[Candidate], usual: Candidate, environment: Data, shelves: Shelves
    ) -> tuple[Candidate, ScheduleChoice]:
        key = record_id(data, environment)
        record = self._known(key, offered, shelves)
        tried, why = 0, "no record of this problem on such a machine"
        if self.count:
            wanted = shortlist(rank([offered], self.target), self.count, self._warm(id, key, offered, shelves))
            missing = [c for c in wanted if record is None or record.trial(c[1]) is None]
            refusal = self._refusal(problem) if missing else None
            if missing and refusal is None:
                record, tried = self._measure(problem, data, environment, record, missing, offered, shelves)
            why = refusal or "no candidate could be measured"
        best = leader(record, offered, self.target) if record is not None else None
        if best is None:
            return usual, ScheduleChoice(id, data, usual[1], "cost", f"{why}: least predicted cost", None, tried)
        amount = f"fastest of {sum(1 for c in offered if record is not None and record.trial(c[1]) is not None)} tried"
        why = amount if len(best.ties) == 1 else f"{amount}; {len(best.ties)} are within noise, of which it has the least predicted cost"
        source: Source = "measured" if tried else "record"
        if tried:
            name = self.names.get(id, f"problem {id[:16]}")
            self.note(f"{name}: {best.candidate[1]} of {tried} candidates timed, {best.picoseconds / 1e6:.3g} us")
        return best.candidate, ScheduleChoice(id, data, best.candidate[1], source, why, key, tried, len(best.ties))

    def _known(self, key: str, offered: list[Candidate], shelves: Shelves) -> Record | None:
        """The first record that serves; before measuring, the union of what all stores have."""
        records = (self._believable(record) for record in shelves.get(key))
        if self.count:
            found = list(records)
            return merge(found) if found else None
        return next((record for record in records if leader(record, offered, self.target) is not None), None)

    def _believable(self, record: Record) -> Record:
        """The record without times that no machine reaches."""
        kept, reasons = believable(record)
        for reason in reasons:
            self.note(f"a time of record {record.id[:16]} is refused: {reason}")
        return kept

    def _refusal(self, problem: Problem) -> str | None:
        """Why a problem is not measured now."""
        if self.measurer is None:
            return f"this machine cannot run {self.environment['architecture'] if self.environment else 'it'}"
        if self.deadline is not None and time.monotonic() > self.deadline:
            return "the time for measuring was spent"
        return unmeasurable(problem, bucket(problem))

    def _warm(self, id: str, key: str, offered: list[Candidate], shelves: Shelves) -> list[Schedule]:
        """What won in other environments."""
        best = [leader(record, offered, self.target) for record in shelves.elsewhere(id) if record.id != key]
        return [found.candidate[1] for found in best if found is not None]

    def _measure(
        self,
        problem: Problem,
        data: Data,
        environment: Data,
        record: Record | None,
        missing: list[Candidate],
        offered: list[Candidate],
        shelves: Shelves,
    ) -> tuple[Record, int]:
        """Measure what is missing, beside the best that is known; the record with what was found."""
        known = leader(record, offered, self.target) if record is not None else None
        candidates = [known.candidate, *missing] if known is not None else missing
        trials = self.measurer.measure(problem, candidates) if self.measurer is not None else ()
        for trial in trials:
            for failure in trial.failures:
                if failure.is_bug:
                    self.note(f"candidate {trial.schedule} of problem {digest(data)[:16]} is left out: {failure.kind}: {failure.reason}")
        fresh = Record(data, environment, trials)
        # What other stores hold counts as well.
        return shelves.put(merge([fresh, record]) if record is not None else fresh), len(trials)
