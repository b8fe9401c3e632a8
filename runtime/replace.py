"""Writing files all or nothing: beside their place, synced, then renamed into it; a reader sees the old file or the new one.

A link stays, and what it leads to is replaced. Pipes and character devices are written into; other things that are no files are
left alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable
from typing import Any

from ..ir.errors import UsageError
from .mapping import BLOCK
from .pieces import regroup


def path_text(path: Any, what: str) -> str:
    """A path as text; UsageError for what is none."""
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"got a {type(path).__name__} for {what}, expected a path")
    name = os.fsdecode(path)
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError as error:
        raise UsageError(f"the path {name!r} for {what} holds {name[error.start]!r}, which no file's name has") from error
    if b"\0" in encoded:
        raise UsageError(f"the path {name!r} for {what} holds a NUL, which no file's name has")
    return name


def replace_file(path: str | os.PathLike[str], pieces: Iterable[bytes | memoryview], mode: int = 0o666, durable: bool = True) -> None:
    """Write a file whole or not at all; OSError leaves what was there, and nothing else.

    What has the old file open or mapped keeps it as it was. A process that is killed leaves at most a file whose name
    starts with a dot and ends in .tmp.
    """
    if is_stream(path):
        _write_into(os.fspath(path), pieces)
        return
    name = os.path.realpath(path) if os.path.islink(path) else os.fspath(path)
    directory = os.path.dirname(name) or "."
    if os.path.isdir(name):
        raise IsADirectoryError(21, "Is a directory", name)
    temporary = os.path.join(directory, f".{os.path.basename(name)}.{secrets.token_hex(8)}.tmp")
    try:
        _write_new(temporary, pieces, mode)
        try:
            os.replace(temporary, name)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        # The file that the caller knows, not the one beside it.
        error.filename, error.filename2 = name, None
        raise
    # Makes the rename durable; not every file system can, and readers are safe without.
    with contextlib.nullcontext() if durable else contextlib.suppress(OSError):
        _sync_directory(directory)


def hint_of(error: OSError) -> str:
    """What to do about a file that could not be written."""
    found = "choose a folder in which you may write"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        found = "make the folder first, or name another"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        found = "free space, or choose another folder"
    return f"nothing was changed; {found}"


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether a path leads to what takes bytes and keeps none: a pipe or a character device; OSError for what is no file at all."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise OSError(errno.EINVAL, "Neither a file nor a pipe", os.fspath(path))
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _write_into(path: str, pieces: Iterable[bytes | memoryview]) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        _write(handle, path, pieces)
    finally:
        os.close(handle)


def _write(handle: int, path: str, pieces: Iterable[bytes | memoryview]) -> None:
    """In blocks, so that they are kept in large pages (mapping.py); what is a whole one already is not copied."""
    try:
        for parts in regroup(pieces, BLOCK):
            view = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
            while view:
                view = view[os.write(handle, view) :]
    except OSError as error:
        error.filename = path
        raise


def _write_new(path: str, pieces: Iterable[bytes | memoryview], mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0), mode)
    done = False
    try:
        _write(handle, path, pieces)
        os.fsync(handle)
        done = True
    finally:
        # A quota or network file system may report a lost write only at close.
        try:
            os.close(handle)
        except OSError:
            done = False
            raise
        finally:
            if not done:
                os.unlink(path)


def _sync_directory(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
