"""What was found right before: one small record each in the user's cache, data and nothing else.

The record of a file names it by device, inode, size and the times of its last changes, and says which manifest its bytes
fitted. It shows that nothing changed since; it is no proof against someone who may write the file or the cache. The record
of plans names their digest, and the rules that they were held against: of the same bytes the same rules say the same.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from .replace import replace_file

MOST = 1024
RULES = ("plan", "dims", ".")
"""The folders of `ir` whose modules say what a plan is, and when it is sound."""
SETTLED = 2_000_000_000
"""Nanoseconds: a change so soon after the last one may have left the times as they were."""


@dataclass(frozen=True)
class Checked:
    """The records in one folder. One that cannot be read or written only costs time."""

    folder: str

    def holds(self, status: os.stat_result, digest: str) -> bool:
        """Whether the file with this status was found to fit this manifest."""
        return self._says(_name(status), _text(status, digest))

    def add(self, status: os.stat_result, digest: str) -> None:
        """Remember that the file fits the manifest, unless it was changed too recently to tell a later change."""
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) >= SETTLED:
            self._write(_name(status), _text(status, digest))

    def holds_plans(self, digest: str) -> bool:
        """Whether the plans of this digest were found sound by the rules of today."""
        return _rules() != "" and self._says(f"plans-{digest}.json", _plans_text(digest))

    def add_plans(self, digest: str) -> None:
        """Remember that the plans of this digest are sound."""
        if _rules() != "":
            self._write(f"plans-{digest}.json", _plans_text(digest))

    def _says(self, name: str, text: bytes) -> bool:
        try:
            handle = os.open(os.path.join(self.folder, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            record = os.fstat(handle)
            # Others' word is not taken: the folder may be shared.
            ours = stat.S_ISREG(record.st_mode) and record.st_uid == os.geteuid() and not record.st_mode & 0o022
            return ours and os.read(handle, len(text) + 1) == text
        except OSError:
            return False
        finally:
            os.close(handle)

    def _write(self, name: str, text: bytes) -> None:
        with contextlib.suppress(OSError):
            os.makedirs(self.folder, exist_ok=True)
            self._make_room()
            replace_file(os.path.join(self.folder, name), [text], mode=0o644, durable=False)

    def _make_room(self) -> None:
        files = [entry.path for entry in os.scandir(self.folder)]
        if len(files) >= MOST:
            for path in sorted(files, key=os.path.getmtime)[: len(files) - MOST // 2]:
                os.unlink(path)


def _name(status: os.stat_result) -> str:
    return f"{status.st_dev:x}-{status.st_ino:x}.json"


def same_file(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether nothing was written between two looks at a file."""
    return _text(one, "") == _text(other, "")


def _text(status: os.stat_result, digest: str) -> bytes:
    fields = {
        **{"schema": 1, "digest": digest, "device": status.st_dev, "inode": status.st_ino, "size": status.st_size},
        **{"mtime_ns": status.st_mtime_ns, "ctime_ns": status.st_ctime_ns},
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def _plans_text(digest: str) -> bytes:
    return json.dumps({"schema": 1, "plans": digest, "rules": _rules()}, sort_keys=True, separators=(",", ":")).encode()


@functools.cache
def _rules() -> str:
    """Which rules plans are held against, in hexadecimal; nothing where that cannot be told."""
    try:
        return hashlib.sha256("\n".join(_sources()).encode()).hexdigest()
    except OSError:
        return ""


def _sources() -> list[str]:
    """The modules that say what a plan is, with their sizes and times."""
    folder = Path(__file__).parents[1] / "ir"
    found = [entry for place in RULES for entry in os.scandir(folder / place) if entry.name.endswith(".py")]
    return sorted(f"{entry.name} {entry.stat().st_size} {entry.stat().st_mtime_ns}" for entry in found)
