"""The zip file of a `.pt2`: its members, read as JSON or as raw bytes within limits."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Any

from .....ir.errors import ModelError, Source

JSON_BYTES = 1 << 29
STORAGE_BYTES = 1 << 46
MEMBERS = 1_000_000


class Archive:
    """An opened `.pt2`; every damaged or hostile member is a ModelError that names it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.source = Source(Path(path).name)
        self.storages: dict[str, bytearray] = {}
        try:
            self.file = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ModelError(
                f"cannot open {str(path)!r} as an exported program: {reason}", hint="save it with torch.export.save"
            ) from error
        self.members = {info.filename: info for info in self.file.infolist()}
        self.root = self._root()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.file.close()

    def fail(self, message: str) -> ModelError:
        return ModelError(message, source=self.source, hint="save the program again with torch.export.save")

    def _root(self) -> str:
        """The folder that everything lies in; torch names it after the file."""
        if len(self.members) > MEMBERS:
            raise self.fail(f"the archive has {len(self.members)} members, expected at most {MEMBERS}")
        roots = [name.removesuffix("archive_format") for name in self.members if name.endswith("/archive_format") and name.count("/") == 1]
        if len(roots) != 1 or self._read(f"{roots[0]}archive_format", 16).strip() != b"pt2":
            raise self.fail("the archive is no exported program: its archive_format is missing or not 'pt2'")
        if f"{roots[0]}byteorder" in self.members and self._read(f"{roots[0]}byteorder", 16).strip() != b"little":
            raise self.fail("the archive's numbers are not little-endian")
        return roots[0]

    def names(self, folder: str) -> list[str]:
        """The members of a folder, without the archive's own."""
        return [name.removeprefix(self.root) for name in self.members if name.startswith(self.root + folder)]

    def _read(self, name: str, limit: int) -> bytes:
        info = self.members.get(name)
        if info is None:
            raise self.fail(f"the archive lacks {name!r}")
        # Torch stores its members; what is compressed could grow without bound.
        if info.compress_type != zipfile.ZIP_STORED:
            raise self.fail(f"the member {name!r} is compressed, expected it stored")
        if info.file_size > limit:
            raise self.fail(f"the member {name!r} has {info.file_size} bytes, expected at most {limit}")
        try:
            return self.file.read(info)
        except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError) as error:
            raise self.fail(f"the member {name!r} is damaged: {error}") from error

    def json(self, name: str) -> Any:
        """A member as JSON."""
        try:
            return json.loads(self._read(self.root + name, JSON_BYTES))
        except (ValueError, RecursionError) as error:
            raise self.fail(f"the member {name!r} is no JSON: {str(error)[:200]}") from error

    def maybe_json(self, name: str) -> Any:
        """A member as JSON, or None where the archive has no such member."""
        return self.json(name) if self.root + name in self.members else None

    def bytes(self, name: str) -> bytearray:
        """A member as it lies there; tensors that share one share its memory."""
        if name not in self.storages:
            self.storages[name] = bytearray(self._read(self.root + name, STORAGE_BYTES))
        return self.storages[name]
