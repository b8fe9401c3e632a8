"""Code by content, object files and the texts they come from: made once, kept in a folder that only its user may write.

It is taken from a folder only if that and the file are the user's own and nobody else's to write, and if the bytes have the
digest that they were written with.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

_LOG = logging.getLogger(__name__)

LIMIT = 512 << 20
"""Bytes: what was not used for longest goes where there is more."""

_DIGEST = 32
_DIGESTS = "digests"
_PRUNED_EACH, _PRUNE_AT = 64, 1
_ABANDONED = 86_400


class ObjectFolder:
    """A folder of files by key; one that cannot be trusted or written keeps nothing and gives nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._added = 0

    def get(self, key: str) -> bytes | None:
        """What was kept; None where there is none that can be trusted."""
        try:
            # What is no file is not waited for.
            with os.fdopen(os.open(self.path / key, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
                found = os.fstat(file.fileno())
                if not self._is_own() or not stat.S_ISREG(found.st_mode) or not _is_ours(found):
                    return None
                digest, data = file.read(_DIGEST), file.read()
        except OSError:
            return None
        if _sealed(key, data) != digest:
            _LOG.warning("%s in the folder of object files is damaged: it is made again", key)
            return None
        with contextlib.suppress(OSError):
            os.utime(self.path / key)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keep bytes, all or nothing; a folder that is full or not the user's own keeps none."""
        if not self._is_own():
            return
        with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=self.path, prefix="~", delete=False) as file:
            try:
                file.write(_sealed(key, data) + data)
                file.close()
                os.replace(file.name, self.path / key)
            except OSError:
                os.unlink(file.name)
                raise
        self._added += 1
        if self._added % _PRUNED_EACH == _PRUNE_AT:
            self._prune()

    def get_folder(self, name: str) -> Path | None:
        """A folder of files that `put_folder` kept; None where there is none that can be trusted, and one that is damaged goes."""
        made = self.path / name
        try:
            if not self._is_own() or not _is_ours(made.stat()):
                return None
            if (made / _DIGESTS).exists() and (made / _DIGESTS).read_text() == _listing(made):
                return made
        except OSError:
            return None
        _LOG.warning("folder %s of object files is damaged: it is made again", name)
        shutil.rmtree(made, ignore_errors=True)
        return None

    def put_folder(self, name: str, fill: Callable[[Path], None]) -> Path | None:
        """Let `fill` write files into a folder that appears under its name when it is whole; whoever is first keeps it."""
        if not self._is_own():
            return None
        folder = Path(tempfile.mkdtemp(dir=self.path, prefix="~"))
        try:
            fill(folder)
            (folder / _DIGESTS).write_text(_listing(folder))
            with contextlib.suppress(OSError):
                folder.rename(self.path / name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return self.get_folder(name)

    def _is_own(self) -> bool:
        """Whether the folder is there, the user's own, and nobody else's to write."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.path.stat()
        except OSError:
            return False
        if not _is_ours(found):
            _distrust(self.path)
            return False
        return True

    def _prune(self) -> None:
        with contextlib.suppress(OSError):
            entries = list(os.scandir(self.path))
            kept = sorted(((entry.stat(), entry.path) for entry in entries if entry.is_file()), key=lambda item: item[0].st_mtime)
            excess = sum(found.st_size for found, _ in kept) - LIMIT
            for entry in entries:
                # What a process that was killed had begun.
                if entry.is_dir() and entry.name.startswith("~") and time.time() - entry.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(entry.path, ignore_errors=True)
            for found, path in kept:
                if excess <= 0:
                    break
                os.unlink(path)
                excess -= found.st_size


@functools.cache
def _distrust(path: Path) -> None:
    """Said once of each folder: every kernel asks for it."""
    _LOG.warning("%s is not used: others may write it, and object files are code", path)


def _sealed(key: str, data: bytes) -> bytes:
    """The digest of bytes as those of a key: the file of another one does not fit."""
    return hashlib.sha256(f"{key}\n".encode() + data).digest()


def _listing(folder: Path) -> str:
    """The names and digests of the files of a folder that are the user's own."""
    files = ((file, file.stat()) for file in sorted(folder.iterdir()) if file.name != _DIGESTS)
    return "".join(_digest(str(file), *_state(found)) for file, found in files if _is_ours(found))


def _state(found: os.stat_result) -> tuple[int, ...]:
    """What changes with a file's bytes."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@functools.lru_cache(maxsize=256)
def _digest(path: str, *state: int) -> str:
    """A file's name and digest as a line; read once as long as its state is the same."""
    with open(path, "rb") as file:
        return f"{os.path.basename(path)} {hashlib.file_digest(file, 'sha256').hexdigest()}\n"


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
