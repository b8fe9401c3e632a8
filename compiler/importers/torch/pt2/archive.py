"""The zip file of a `.pt2`: its members, read as JSON or as raw tensors within limits, never unpickled."""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from .....ir.errors import ModelError, Source, UnsupportedError

JSON_BYTES = 1 << 29
MEMBERS = 1_000_000

SCALAR_TYPES = {
    **{1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64"},
    **{10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16", 34: "uint32", 35: "uint64"},
    **{29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz", 33: "float8_e8m0fnu"},
}


class Archive:
    """An opened `.pt2`; every damaged or hostile member is a ModelError that names it."""

    def __init__(self, path: str | os.PathLike[str], trust_pickle: bool = False) -> None:
        self.source = Source(Path(path).name)
        self.trust_pickle = trust_pickle
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

    def tensors(self, folder: str, config: str) -> Mapping[str, Any]:
        """The configuration of stored tensors, by name; empty where the archive has none."""
        if self.root + config not in self.members:
            return {}
        entries = self.json(config)
        found = entries.get("config") if isinstance(entries, dict) else None
        if not isinstance(found, dict):
            raise self.fail(f"the member {config!r} holds no tensors by name")
        return found

    def tensor(self, folder: str, name: str, entry: Any) -> Any:
        """One stored tensor from its raw bytes."""
        import torch

        try:
            path, meta = str(entry["path_name"]), entry["tensor_meta"]
            pickled = bool(entry["use_pickle"])
            sizes, strides = _integers(meta["sizes"]), _integers(meta["strides"])
            (offset,) = _integers([meta["storage_offset"]])
            kind = SCALAR_TYPES.get(meta["dtype"])
        except (KeyError, TypeError, ValueError) as error:
            raise self.fail(f"the entry of the tensor {name!r} is damaged: {type(error).__name__} {error}") from error
        if pickled:
            return self._unpickled(folder, path, name)
        if kind is None:
            raise self.fail(f"the tensor {name!r} has the unknown dtype {meta['dtype']!r}")
        dtype = getattr(torch, kind)
        span = 0 if 0 in sizes else offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1
        data = self._read(f"{self.root}{folder}/{path}", 1 << 46)
        if (
            min((*sizes, *strides, offset, 0)) < 0
            or len(sizes) != len(strides)
            or span * dtype.itemsize > len(data)
            or math.prod(sizes) > max(span, 0)
        ):
            raise self.fail(
                f"the tensor {name!r} has {len(data)} bytes, which do not hold sizes {list(sizes)} with strides {list(strides)}"
            )
        if not data:
            return torch.empty(sizes, dtype=dtype)
        return torch.frombuffer(bytearray(data), dtype=dtype).as_strided(sizes, strides, offset)

    def _unpickled(self, folder: str, path: str, name: str) -> Any:
        if not self.trust_pickle:
            raise ModelError(
                f"the tensor {name!r} is pickled, and reading it may run code",
                source=self.source,
                hint="save the program with plain tensors, or say --trust-pickle if you made this file yourself",
            )
        raise UnsupportedError(
            f"the tensor {name!r} is pickled, which is not read yet", source=self.source, hint="save the program with plain tensors"
        )


def _integers(entries: Any) -> tuple[int, ...]:
    values = tuple(entry["as_int"] for entry in entries)
    if any(not isinstance(value, int) or isinstance(value, bool) for value in values):
        raise ValueError("a size is no integer")
    return values
