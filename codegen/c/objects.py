"""Object files by content: compiled once, remembered by the process and in a folder that only its user may write.

An object file is code, so it is taken from a folder only if that and the file are the user's own and nobody else's to
write, and if its bytes have the digest that they were written with.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
from pathlib import Path

_LOG = logging.getLogger(__name__)

LIMIT = 512 << 20
"""Bytes: what was not used for longest goes where there is more."""

_DIGEST = 32
_PRUNED_EACH, _PRUNE_AT = 64, 1


class ObjectFolder:
    """A folder of object files by key; one that cannot be trusted or written keeps nothing and gives nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._added = 0

    def get(self, key: str) -> bytes | None:
        """The object file; None where there is none that can be trusted."""
        try:
            with (self.path / key).open("rb") as file:
                if not self._is_own() or not _is_ours(os.fstat(file.fileno())):
                    return None
                digest, data = file.read(_DIGEST), file.read()
        except OSError:
            return None
        if hashlib.sha256(data).digest() != digest:
            _LOG.warning("object file %s is damaged: it is compiled again", key)
            return None
        with contextlib.suppress(OSError):
            os.utime(self.path / key)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keep an object file, all or nothing; a folder that is full or not the user's own keeps none."""
        if not self._is_own():
            return
        with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=self.path, prefix="~", delete=False) as file:
            try:
                file.write(hashlib.sha256(data).digest() + data)
                file.close()
                os.replace(file.name, self.path / key)
            except OSError:
                os.unlink(file.name)
                raise
        self._added += 1
        if self._added % _PRUNED_EACH == _PRUNE_AT:
            self._prune()

    def folder(self, name: str) -> Path | None:
        """A folder in it for what a compiler writes itself; None where the whole cannot be trusted."""
        made = self.path / name
        with contextlib.suppress(OSError):
            if self._is_own():
                made.mkdir(mode=0o700, exist_ok=True)
                return made if _is_ours(made.stat()) else None
        return None

    def _is_own(self) -> bool:
        """Whether the folder is there, the user's own, and nobody else's to write."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.path.stat()
        except OSError:
            return False
        if not _is_ours(found):
            _LOG.warning("%s is not used: others may write it, and object files are code", self.path)
            return False
        return True

    def _prune(self) -> None:
        with contextlib.suppress(OSError):
            kept = sorted(
                ((entry.stat(), entry.path) for entry in os.scandir(self.path) if entry.is_file()), key=lambda item: item[0].st_mtime
            )
            excess = sum(found.st_size for found, _ in kept) - LIMIT
            for found, path in kept:
                if excess <= 0:
                    break
                os.unlink(path)
                excess -= found.st_size


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
