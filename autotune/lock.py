"""`ourcc.lock`: every choice of a build as text, so that another build has none left to make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..ir.errors import CompilerError
from ..passes.tile.schedule import Schedule
from .record import RecordError, parse_schedule

SCHEMA = 1
MAX_BYTES = 16 << 20
_HINT = "build without --locked, and take the ourcc.lock of that engine"


class LockError(CompilerError):
    """A lock is damaged, or does not fit this build."""


@dataclass
class LockedLevel:
    """What one instruction-set level or GPU architecture is built with: the compiler, and a schedule per problem."""

    compiler: str
    choices: dict[str, Schedule] = field(default_factory=dict)


@dataclass
class Lock:
    """The choices of a build, by architecture and problem."""

    producer: str
    levels: dict[str, LockedLevel] = field(default_factory=dict)

    def text(self) -> str:
        """The lock as JSON, the same for the same choices."""
        targets = {
            name: {"compiler": level.compiler, "choices": {id: str(schedule) for id, schedule in level.choices.items()}}
            for name, level in self.levels.items()
        }
        return json.dumps({"schema": SCHEMA, "producer": self.producer, "targets": targets}, indent=1, sort_keys=True) + "\n"

    def level(self, architecture: str, compiler: str, producer: str) -> LockedLevel:
        """The choices for an architecture; LockError if they were made for others or by other programs."""
        if architecture not in self.levels:
            held = ", ".join(self.levels) or "none"
            raise LockError(f"the lock holds no choices for {architecture}, expected one of {held}", hint=_HINT)
        level = self.levels[architecture]
        for what, locked, present in (("compiler", level.compiler, compiler), ("producer", self.producer, producer)):
            if locked != present:
                raise LockError(f"the lock was made with another {what}: got {present!r}, expected {locked!r}", hint=_HINT)
        return level

    @staticmethod
    def parse(text: str) -> Lock:
        """Read what `text` prints; LockError says what is wrong."""
        if len(text) > MAX_BYTES:
            raise LockError(f"lock has {len(text)} characters, expected at most {MAX_BYTES}")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise LockError("lock is not json", hint=_HINT) from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA or set(data) != {"schema", "producer", "targets"}:
            raise LockError(f"lock is not of schema {SCHEMA}, with a producer and targets", hint=_HINT)
        if not isinstance(data["targets"], dict):
            raise LockError("lock: got targets of another kind, expected choices by architecture")
        return Lock(str(data["producer"]), {name: _level(name, value) for name, value in data["targets"].items()})


def _level(name: str, data: Any) -> LockedLevel:
    if not isinstance(data, Mapping) or set(data) != {"compiler", "choices"} or not isinstance(data["choices"], Mapping):
        raise LockError(f"lock: target {name!r} has other keys than compiler and choices")
    try:
        return LockedLevel(str(data["compiler"]), {str(id): parse_schedule(str(text)) for id, text in data["choices"].items()})
    except RecordError as error:
        raise LockError(f"lock: {error.message}") from error
