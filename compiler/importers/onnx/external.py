"""External weight files: opened by descriptor inside the model's folder, checked, and mapped into memory."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ....ir.digits import whole_number
from ....ir.errors import ModelError, Source

KEYS = frozenset({"location", "offset", "length", "checksum", "basepath"})


class ExternalFiles:
    """The weight files of one model; each is opened once, and what was checked is what is read."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.maps: dict[str, mmap.mmap | bytes] = {}

    def bytes_of(self, name: str, entries: Mapping[str, str], expected: int) -> np.ndarray[Any, Any]:
        """The `expected` bytes of tensor `name` as a read-only view of its file."""
        source = Source(name)
        unknown = sorted(set(entries) - KEYS)
        if unknown:
            raise ModelError(f"external data of {name!r} has the unknown key {unknown[0][:80]!r}", source=source)
        location = entries.get("location", "")
        offset = _number(entries, "offset", 0, source)
        length = _number(entries, "length", expected, source)
        content = self._open(location, source)
        size = len(content)
        if length != expected:
            raise ModelError(f"external data of {name!r}: got a length of {length} bytes, expected {expected} for its type", source=source)
        if length > size or offset > size - length:
            raise ModelError(
                f"external data of {name!r}: bytes {offset}..{offset + length} lie outside {location!r}, which has {size}", source=source
            )
        return np.frombuffer(content, dtype=np.uint8, count=length, offset=offset)

    def _open(self, location: str, source: Source) -> mmap.mmap | bytes:
        if location not in self.maps:
            if self.folder is None:
                raise ModelError(
                    f"weights lie in the external file {location[:200]!r}, and the model was given without a folder",
                    source=source,
                    hint="pass the path of the .onnx file instead of its bytes",
                )
            descriptor = open_inside(self.folder, location, source)
            try:
                size = os.fstat(descriptor).st_size
                self.maps[location] = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) if size else b""
            finally:
                os.close(descriptor)
        return self.maps[location]


def open_inside(folder: Path, location: str, source: Source) -> int:
    """A descriptor of a regular, singly linked file below `folder`, with no link followed on the way.

    Every component is opened relative to the one before without following links, so nothing can be exchanged between
    the check and the read.
    """
    parts = location.replace("\\", "/").split("/")
    if (
        not location
        or "\0" in location
        or len(location) > 4096
        or location.startswith("/")
        or any(part in ("", "..") for part in parts)
        or ":" in parts[0]
    ):
        raise ModelError(f"external data location {location[:200]!r} is not a path inside the model's folder", source=source)
    parts = [part for part in parts if part != "."]
    if not parts:
        raise ModelError(f"external data location {location[:200]!r} is not a file", source=source)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for position, part in enumerate(parts):
            last = position == len(parts) - 1
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_NONBLOCK if last else os.O_DIRECTORY)
            following = os.open(part, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = following
        status = os.fstat(descriptor)
    except OSError as error:
        os.close(descriptor)
        raise ModelError(
            f"external data file {location[:200]!r} cannot be opened: {error.strerror}",
            source=source,
            hint="links are not followed; put the file itself beside the model",
        ) from error
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        what = "has more than one hard link" if stat.S_ISREG(status.st_mode) else "is not a regular file"
        raise ModelError(
            f"external data file {location[:200]!r} {what}", source=source, hint="put a plain copy of the file beside the model"
        )
    return descriptor


def _number(entries: Mapping[str, str], key: str, default: int, source: Source) -> int:
    text = entries.get(key)
    if text is None:
        return default
    number = whole_number(text)
    if number is None:
        raise ModelError(f"external data {key} {text[:80]!r} is not a number of bytes", source=source)
    return number
