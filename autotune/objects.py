"""Where records lie: folders, fsspec file systems and Redis, as immutable objects under one id.

An object is never changed: its name holds its digest. A writer that has seen several objects of an id adds their union
and then removes what it saw, so that nothing is lost whatever else writes at the same time, and no lock is needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from ..ir.errors import UsageError
from ..ir.extras import need
from ..runtime.replace import replace_file
from .record import MAX_BYTES
from .signed import LONGEST

MAX_OBJECT = MAX_BYTES + LONGEST
_OBJECT = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{16})\.json")


class ObjectStore(Protocol):
    """Objects by (id, name); OSError for whatever the place cannot do."""

    url: str

    def check(self, is_own: bool) -> None:
        """OSError where a place is known not to be there before it is used; the user's own is made."""

    def names(self) -> list[tuple[str, str]]:
        """Every (id, name), sorted."""

    def read(self, id: str) -> dict[str, bytes]:
        """The objects of an id by name."""

    def add(self, id: str, data: bytes) -> str:
        """Add an object, whole or not at all; its name."""

    def remove(self, id: str, names: Iterable[str]) -> None:
        """Remove objects; one that is gone already is none."""


def object_name(data: bytes) -> str:
    """The name of an object: the beginning of its digest."""
    return hashlib.sha256(data).hexdigest()[:16]


def split_names(files: Iterable[str]) -> list[tuple[str, str]]:
    """(id, name) of those files that are objects, sorted."""
    matches = (_OBJECT.fullmatch(file.rsplit("/", 1)[-1]) for file in files)
    return sorted({(match[1], match[2]) for match in matches if match is not None})


class Folder:
    """A local or shared folder: one file per object, written beside its place and renamed into it."""

    def __init__(self, path: str) -> None:
        self.url = path
        self._path = Path(path).expanduser()

    def check(self, is_own: bool) -> None:
        if is_own:
            with contextlib.suppress(FileExistsError):
                self._path.mkdir(parents=True, exist_ok=True)
        os.scandir(self._path).close()

    def names(self) -> list[tuple[str, str]]:
        try:
            return split_names(os.listdir(self._path))
        except FileNotFoundError:
            return []

    def read(self, id: str) -> dict[str, bytes]:
        # A writer may replace what was listed by its union before it is read: then look again.
        for _ in range(8):
            found = {name: self._load(f"{id}.{name}.json") for known, name in self.names() if known == id}
            if all(data is not None for data in found.values()):
                break
        return {name: data for name, data in found.items() if data is not None}

    def _load(self, file: str) -> bytes | None:
        try:
            descriptor = os.open(self._path / file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError:
            # A link or something unreadable counts as a damaged object, which readers pass over.
            return b""
        with os.fdopen(descriptor, "rb") as stream:
            return stream.read(MAX_OBJECT + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""

    def add(self, id: str, data: bytes) -> str:
        self._path.mkdir(parents=True, exist_ok=True)
        name = object_name(data)
        replace_file(self._path / f"{id}.{name}.json", [data], durable=False)
        return name

    def remove(self, id: str, names: Iterable[str]) -> None:
        for name in names:
            (self._path / f"{id}.{name}.json").unlink(missing_ok=True)


class Remote:
    """Any file system that fsspec knows, by URL."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url.rstrip("/")
        try:
            self._files, self._path = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise UsageError(f"store {url!r} cannot be opened: {error}") from error

    def check(self, is_own: bool) -> None:
        """A bucket without records looks like none: a call tells."""

    def names(self) -> list[tuple[str, str]]:
        try:
            # What was listed before may have been replaced by another writer since.
            self._files.invalidate_cache(self._path)
            return split_names(str(name) for name in self._files.ls(self._path, detail=False))
        except FileNotFoundError:
            return []

    def read(self, id: str) -> dict[str, bytes]:
        self._files.invalidate_cache(self._path)
        try:
            # Object stores list by prefix, so the size of the store does not matter.
            present = split_names(str(name) for name in self._files.glob(f"{self._path}/{id}.*.json"))
        except FileNotFoundError:
            return {}
        found: dict[str, bytes] = {}
        for _, name in present:
            with contextlib.suppress(FileNotFoundError):
                found[name] = bytes(self._files.cat_file(self._file(id, name), 0, MAX_OBJECT + 1))
        return found

    def add(self, id: str, data: bytes) -> str:
        name = object_name(data)
        try:
            self._files.makedirs(self._path, exist_ok=True)
            self._files.pipe_file(self._file(id, name), data)
        except NotImplementedError as error:
            raise PermissionError(f"store {self.url} cannot be written") from error
        return name

    def _file(self, id: str, name: str) -> str:
        return f"{self._path}/{id}.{name}.json"

    def remove(self, id: str, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError, NotImplementedError):
                self._files.rm_file(self._file(id, name))


class Redis:
    """A Redis server: one hash per id, objects by name, added and removed atomically by the server."""

    PREFIX = "ourcc:record:"

    def __init__(self, url: str, client: Any = None) -> None:
        self.url = url
        need("redis", "the store redis://")
        import redis

        self._error: type[Exception] = redis.RedisError
        self._client = client if client is not None else redis.Redis.from_url(url, socket_timeout=10)

    def check(self, is_own: bool) -> None:
        """Asked once, when it is first used."""

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._client, method)(*arguments)
        except self._error as error:
            # The message may hold the address, which may hold a password.
            raise ConnectionError(f"redis refused {method}: {type(error).__name__}") from error

    def names(self) -> list[tuple[str, str]]:
        try:
            keys = [bytes(key).decode("ascii", "replace") for key in self._client.scan_iter(match=f"{self.PREFIX}*", count=1000)]
        except self._error as error:
            raise ConnectionError(f"redis refused scan: {type(error).__name__}") from error
        ids = [key.removeprefix(self.PREFIX) for key in keys]
        files = [f"{id}.{bytes(name).decode('ascii', 'replace')}.json" for id in ids for name in self._call("hkeys", self.PREFIX + id)]
        return split_names(files)

    def read(self, id: str) -> dict[str, bytes]:
        found = self._call("hgetall", self.PREFIX + id)
        return {bytes(name).decode("ascii", "replace"): bytes(data) for name, data in found.items()}

    def add(self, id: str, data: bytes) -> str:
        name = object_name(data)
        self._call("hset", self.PREFIX + id, name, data)
        return name

    def remove(self, id: str, names: Iterable[str]) -> None:
        gone = list(names)
        if gone:
            self._call("hdel", self.PREFIX + id, *gone)


def open_objects(url: str) -> ObjectStore:
    """Where the objects of a store lie: a folder, redis://, or what fsspec knows."""
    scheme, colon, _ = url.partition("://")
    if not colon:
        return Folder(url)
    if scheme == "file":
        return Folder(url.removeprefix("file://"))
    return Redis(url) if scheme in ("redis", "rediss") else Remote(url)
