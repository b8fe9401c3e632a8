"""Tuning records: what was measured of one problem in one environment, as canonical JSON that is data and never code.

A record's id is the digest of its problem and environment; its samples are a set, so that merging two records is their
union: commutative, associative and idempotent, whoever merges and in whatever order.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..ir.errors import CompilerError
from ..passes.tile.schedule import Schedule

SCHEMA = 1
MAX_BYTES = 4 << 20
MAX_TRIALS, MAX_SAMPLES, MAX_FAILURES, MAX_ROUNDS = 256, 32, 4, 256
LONGEST = 10**15
"""Picoseconds: no candidate is measured for longer than 1000 seconds."""

Data = dict[str, Any]

_WORD = re.compile(r"[a-z][a-z0-9_]{0,63}")
_RUN = re.compile(r"[0-9a-f]{16}")
_SCHEDULE = re.compile(r"([a-z][a-z0-9_]*)(?:\{(.*)\})?")
FAILURES = ("unsupported", "timeout", "wrong", "crashed", "internal")
BUGS = frozenset({"wrong", "crashed", "internal"})
"""Failures that no candidate may have: they are reported, the others are part of searching."""


class RecordError(CompilerError):
    """A record is damaged, hostile, or of another schema."""


@dataclass(frozen=True, order=True)
class Sample:
    """The times of one candidate in one measuring run; `deviation` is its error against the run's first candidate."""

    run: str
    picoseconds: tuple[int, ...]
    deviation: float = 0.0


@dataclass(frozen=True, order=True)
class Failure:
    """Why a candidate could not be measured."""

    kind: str
    reason: str

    @property
    def is_bug(self) -> bool:
        """Whether it shows a bug of ours."""
        return self.kind in BUGS


@dataclass(frozen=True)
class Trial:
    """One candidate: its schedule, and what measuring it gave."""

    schedule: Schedule
    samples: tuple[Sample, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def times(self) -> list[int]:
        """All samples' times in order; a candidate that ever computed something wrong has none."""
        wrong = any(failure.is_bug for failure in self.failures)
        return [] if wrong else sorted(time for sample in self.samples for time in sample.picoseconds)


@dataclass(frozen=True)
class Record:
    """What is known of one problem in one environment."""

    problem: Data
    environment: Data
    trials: tuple[Trial, ...] = ()

    @property
    def id(self) -> str:
        """The digest of problem and environment."""
        return record_id(self.problem, self.environment)

    def trial(self, schedule: Schedule) -> Trial | None:
        """What is known of a schedule."""
        return next((trial for trial in self.trials if trial.schedule == schedule), None)


def canonical(data: Any) -> bytes:
    """The one JSON text of a value."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def scrub(text: str) -> str:
    """A reason without paths, at most 300 characters long: records go to other machines."""
    return re.sub(r"(?<![\w.])~?/[^\s'\":,;)]+", "...", text)[:300]


def digest(data: Any) -> str:
    """The digest of a value's canonical JSON."""
    return hashlib.sha256(canonical(data)).hexdigest()


def record_id(problem: Data, environment: Data) -> str:
    """The id of the record of a problem in an environment."""
    return digest({"problem": problem, "environment": environment})


def parse_schedule(text: str) -> Schedule:
    """Read what `str(schedule)` prints: `packed{m=96, n=256}`."""
    match = _SCHEDULE.fullmatch(text)
    parameters = []
    for item in match[2].split(", ") if match is not None and match[2] else ():
        name, equals, value = item.partition("=")
        if not equals or not _WORD.fullmatch(name) or not re.fullmatch(r"[0-9]{1,9}", value):
            raise RecordError(f"schedule {text[:80]!r}: got {item[:40]!r}, expected name=number")
        parameters.append((name, int(value)))
    if match is None or len(text) > 400:
        raise RecordError(f"got schedule {text[:80]!r}, expected strategy{{name=number, ...}}")
    return Schedule(match[1], tuple(parameters))


# --- merging ----------------------------------------------------------------------------------------------------------


def merge(records: Iterable[Record]) -> Record:
    """The union of records with one id; beyond the limits those that sort first are kept, which is a union as well."""
    found = list(records)
    if len({record.id for record in found}) != 1:
        raise RecordError(f"cannot merge records of {len({record.id for record in found})} ids, expected one")
    trials: dict[str, list[Trial]] = {}
    for record in found:
        for trial in record.trials:
            trials.setdefault(str(trial.schedule), []).append(trial)
    merged = [_merge_trials(trials[text]) for text in sorted(trials)[:MAX_TRIALS]]
    return replace(found[0], trials=tuple(merged))


def _merge_trials(trials: list[Trial]) -> Trial:
    samples = sorted({sample for trial in trials for sample in trial.samples})[:MAX_SAMPLES]
    failures = sorted({failure for trial in trials for failure in trial.failures})[:MAX_FAILURES]
    return Trial(trials[0].schedule, tuple(samples), tuple(failures))


# --- text -------------------------------------------------------------------------------------------------------------


def encode(record: Record) -> bytes:
    """The record as canonical JSON, with the digest of all else in it."""
    body = {
        "schema": SCHEMA,
        "id": record.id,
        "problem": record.problem,
        "environment": record.environment,
        "candidates": [_trial_data(trial) for trial in merge([record]).trials],
    }
    return canonical({**body, "digest": digest(body)})


def _trial_data(trial: Trial) -> Data:
    samples = [{"run": s.run, "picoseconds": list(s.picoseconds), "deviation": s.deviation} for s in trial.samples]
    failures = [{"kind": f.kind, "reason": f.reason} for f in trial.failures]
    return {"schedule": str(trial.schedule), "samples": samples, "failures": failures}


def decode(data: bytes, expected: str | None = None) -> Record:
    """Read a record that anyone may have written; RecordError says what is wrong with it."""
    if len(data) > MAX_BYTES:
        raise RecordError(f"record has {len(data)} bytes, expected at most {MAX_BYTES}")
    try:
        body = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"record is not json: {type(error).__name__}") from error
    _expect_keys(body, ("schema", "id", "problem", "environment", "candidates", "digest"), "record")
    if body["schema"] != SCHEMA or isinstance(body["schema"], bool):
        raise RecordError(f"record has schema {body['schema']!r}, expected {SCHEMA}")
    stated = body.pop("digest")
    try:
        actual = digest(body)
    except (ValueError, RecursionError) as error:
        raise RecordError("record holds what canonical json cannot") from error
    if stated != actual:
        raise RecordError("record is damaged: its digest does not match")
    record = _read(body)
    if body["id"] != record.id or (expected is not None and record.id != expected):
        raise RecordError("record is filed under the id of another one")
    return record


def _refuse_constant(name: str) -> float:
    raise ValueError(f"got {name}")


def _expect_keys(data: Any, keys: Iterable[str], what: str) -> None:
    wanted = set(keys)
    if not isinstance(data, dict) or set(data) != wanted:
        got = ", ".join(sorted(map(str, data))[:8]) if isinstance(data, dict) else type(data).__name__
        raise RecordError(f"{what}: got {got or 'nothing'}, expected the keys {', '.join(sorted(wanted))}")


def _expect_list(data: Any, most: int, what: str) -> list[Any]:
    if not isinstance(data, list) or len(data) > most:
        got = f"{len(data)} items" if isinstance(data, list) else type(data).__name__
        raise RecordError(f"{what}: got {got}, expected a list of at most {most}")
    return data


def _expect_text(data: Any, most: int, what: str) -> str:
    if not isinstance(data, str) or len(data) > most:
        got = f"{len(data)} characters" if isinstance(data, str) else type(data).__name__
        raise RecordError(f"{what}: got {got}, expected text of at most {most}")
    return data


def _read(body: Data) -> Record:
    problem, environment = body["problem"], body["environment"]
    check_problem(problem)
    check_environment(environment)
    trials = [_read_trial(item) for item in _expect_list(body["candidates"], MAX_TRIALS, "candidates")]
    texts = [str(trial.schedule) for trial in trials]
    if texts != sorted(set(texts)):
        raise RecordError("candidates: got some twice or out of order, expected each once, sorted")
    return Record(problem, environment, tuple(trials))


def check_problem(problem: Any) -> None:
    """RecordError unless the data has a problem's form."""
    _expect_keys(problem, ("region", "symbols", "layouts", "constants", "bucket"), "problem")
    _expect_text(problem["region"], 1 << 20, "region")
    for name in ("symbols", "layouts", "bucket"):
        if not isinstance(problem[name], Mapping) or len(problem[name]) > 256:
            raise RecordError(f"problem: got {name} of type {type(problem[name]).__name__}, expected at most 256 named values")
    if any(type(size) is not int or not 0 <= size < 2**48 for size in problem["bucket"].values()):
        raise RecordError("bucket: got other than sizes")
    for name in _expect_list(problem["constants"], 4096, "constants"):
        _expect_text(name, 200, "constant")


def check_environment(environment: Any) -> None:
    """RecordError unless the data has an environment's form."""
    _expect_keys(environment, ("architecture", "device", "features", "compiler", "producer", "policy"), "environment")
    for name in ("architecture", "device", "compiler", "producer"):
        _expect_text(environment[name], 300, name)
    for feature in _expect_list(environment["features"], 256, "features"):
        _expect_text(feature, 64, "feature")
    policy = environment["policy"]
    if not isinstance(policy, Mapping) or len(policy) > 32 or any(type(v) not in (int, str) for v in policy.values()):
        raise RecordError("policy: got other than at most 32 numbers and words by name")


def _read_trial(data: Any) -> Trial:
    _expect_keys(data, ("schedule", "samples", "failures"), "candidate")
    schedule = parse_schedule(_expect_text(data["schedule"], 400, "schedule"))
    samples = tuple(_read_sample(item) for item in _expect_list(data["samples"], MAX_SAMPLES, "samples"))
    failures = tuple(_read_failure(item) for item in _expect_list(data["failures"], MAX_FAILURES, "failures"))
    return Trial(schedule, samples, failures)


def _read_sample(data: Any) -> Sample:
    _expect_keys(data, ("run", "picoseconds", "deviation"), "sample")
    run = _expect_text(data["run"], 16, "run")
    times = _expect_list(data["picoseconds"], MAX_ROUNDS, "picoseconds")
    if not _RUN.fullmatch(run) or not times or any(type(t) is not int or not 0 < t <= LONGEST for t in times):
        raise RecordError(f"sample: got a time outside 1..{LONGEST} picoseconds or the run {run!r}, expected 16 hex digits")
    deviation = data["deviation"]
    if type(deviation) not in (int, float) or not math.isfinite(deviation) or deviation < 0:
        raise RecordError(f"sample: got deviation {deviation!r}, expected a number of at least 0")
    return Sample(run, tuple(times), float(deviation))


def _read_failure(data: Any) -> Failure:
    _expect_keys(data, ("kind", "reason"), "failure")
    if data["kind"] not in FAILURES:
        raise RecordError(f"failure: got kind {str(data['kind'])[:40]!r}, expected one of {', '.join(FAILURES)}")
    return Failure(data["kind"], _expect_text(data["reason"], 400, "reason"))
