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


UNNAMED = "the lock"
"""What messages call a lock that is in no file."""


class LockError(CompilerError):
    """A lock is damaged, or does not fit this build."""


@dataclass
class LockedLevel:
    """What one instruction-set level or GPU architecture is built with: the compiler, and a schedule per problem; `name` is the lock's."""

    compiler: str
    choices: dict[str, Schedule] = field(default_factory=dict)
    name: str = UNNAMED


@dataclass
class Lock:
    """The choices of a build, by architecture and problem; `name` is what messages call it."""

    producer: str
    levels: dict[str, LockedLevel] = field(default_factory=dict)
    name: str = UNNAMED

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
            raise LockError(f"{self.name} holds no choices for {architecture}, expected one of {held}", hint=_HINT)
        level = self.levels[architecture]
        for what, locked, present in (("compiler", level.compiler, compiler), ("producer", self.producer, producer)):
            if locked != present:
                raise LockError(f"{self.name} was made with another {what}: got {present!r}, expected {locked!r}", hint=_HINT)
        return level

    @staticmethod
    def parse(text: str, name: str = UNNAMED) -> Lock:
        """Read what `text` prints; LockError says what is wrong."""
        if len(text) > MAX_BYTES:
            raise LockError(f"{name} has {len(text)} characters, expected at most {MAX_BYTES}")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise LockError(f"{name} is not json", hint=_HINT) from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA or set(data) != {"schema", "producer", "targets"}:
            raise LockError(f"{name} is not of schema {SCHEMA}, with a producer and targets", hint=_HINT)
        if not isinstance(data["targets"], dict):
            raise LockError(f"{name}: got targets of another kind, expected choices by architecture")
        return Lock(str(data["producer"]), {target: _level(target, value, name) for target, value in data["targets"].items()}, name)


def _level(target: str, data: Any, name: str) -> LockedLevel:
    if not isinstance(data, Mapping) or set(data) != {"compiler", "choices"} or not isinstance(data["choices"], Mapping):
        raise LockError(f"{name}: target {target!r} has other keys than compiler and choices")
    try:
        choices = {str(id): parse_schedule(str(text)) for id, text in data["choices"].items()}
    except RecordError as error:
        raise LockError(f"{name}: {error.message}") from error
    return LockedLevel(str(data["compiler"]), choices, name)
