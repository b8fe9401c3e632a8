"""Which files' weights were found whole before: one small record a file in the user's cache, data and nothing else.

A record names a file by device, inode, size and the times of its last changes, and says which manifest its bytes
fitted. It shows that nothing changed since; it is no proof against someone who may write the file or the cache.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from dataclasses import dataclass

from .replace import replace_file

MOST = 1024
SETTLED = 2_000_000_000
"""Nanoseconds: a change so soon after the last one may have left the times as they were."""


@dataclass(frozen=True)
class Checked:
    """The records in one folder. One that cannot be read or written only costs time."""

    folder: str

    def holds(self, status: os.stat_result, digest: str) -> bool:
        """Whether the file with this status was found to fit this manifest."""
        try:
            handle = os.open(self._path(status), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            record = os.fstat(handle)
            # Others' word is not taken: the folder may be shared.
            ours = stat.S_ISREG(record.st_mode) and record.st_uid == os.geteuid() and not record.st_mode & 0o022
            return ours and os.read(handle, 1024) == _text(status, digest)
        except OSError:
            return False
        finally:
            os.close(handle)

    def add(self, status: os.stat_result, digest: str) -> None:
        """Remember that the file fits the manifest, unless it was changed too recently to tell a later change."""
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < SETTLED:
            return
        with contextlib.suppress(OSError):
            os.makedirs(self.folder, exist_ok=True)
            self._make_room()
            replace_file(self._path(status), [_text(status, digest)], mode=0o644, durable=False)

    def _path(self, status: os.stat_result) -> str:
        return os.path.join(self.folder, f"{status.st_dev:x}-{status.st_ino:x}.json")

    def _make_room(self) -> None:
        files = [entry.path for entry in os.scandir(self.folder)]
        if len(files) >= MOST:
            for path in sorted(files, key=os.path.getmtime)[: len(files) - MOST // 2]:
                os.unlink(path)


def same_file(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether nothing was written between two looks at a file."""
    return _text(one, "") == _text(other, "")


def _text(status: os.stat_result, digest: str) -> bytes:
    fields = {
        **{"schema": 1, "digest": digest, "device": status.st_dev, "inode": status.st_ino, "size": status.st_size},
        **{"mtime_ns": status.st_mtime_ns, "ctime_ns": status.st_ctime_ns},
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
