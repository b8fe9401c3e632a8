"""GGUF files, versions 2 and 3: metadata and tensors, mapped and not read until they are asked for.

Source: the specification in ggml's `docs/gguf.md`. Every count, length and place is checked against the file's size
before anything is made of it.
"""

from __future__ import annotations

import math
import os
import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ....ir.errors import ModelError, Source
from ....ir.formats import format_of
from ....ir.types import bf16, f16, f32, f64, i8, i16, i32, i64, u8
from .stored import Array, Checkpoint, Stored, mapped, part

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_RANK = 4
NAME_BYTES = 65_535
DEFAULT_ALIGNMENT = 32
MOST_ALIGNMENT = 1 << 20

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_PLAIN = {0: f32, 1: f16, 24: i8, 25: i16, 26: i32, 27: i64, 28: f64, 30: bf16}
_CODED = {
    **{2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 10: "q2_k", 11: "q3_k", 12: "q4_k", 13: "q5_k", 14: "q6_k"},
    **{20: "iq4_nl", 39: "ggml_mxfp4"},
}
_OTHERS = {
    **{4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S"},
    **{22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0"},
}


def read_gguf(path: str | os.PathLike[str]) -> Checkpoint:
    """A file's metadata and tensors; ModelError for what is damaged, hostile, or of a type that no format declares."""
    file = Path(path)
    return _Reader(file.name, mapped(file)).checkpoint()


class _Reader:
    """Reads from the start of a file, in order."""

    def __init__(self, file: str, data: Array) -> None:
        self.file = file
        self.data = data
        self.at = 0

    def damaged(self, what: str) -> ModelError:
        return ModelError(f"{self.file}: {what}", hint="the file is damaged or no GGUF model: download or convert it again")

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise self.damaged(f"ends early: {count} bytes were expected at byte {self.at} of {len(self.data)}")
        self.at += count
        return self.data[self.at - count : self.at].tobytes()

    def number(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def count(self, what: str, least: int) -> int:
        """A number of things that take at least so many bytes each."""
        found: int = self.number("<Q")
        if found * least > len(self.data) - self.at:
            raise self.damaged(f"says that it holds {found} {what}, more than fit into its {len(self.data)} bytes")
        return found

    def string(self, what: str, most: int | None = None) -> str:
        size = self.count(f"bytes of {what}", 1)
        if most is not None and size > most:
            raise self.damaged(f"{what} has {size} bytes, expected at most {most}")
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise self.damaged(f"{what} is no UTF-8 text") from error

    def value(self, name: str, kind: int, inside: bool = False) -> Any:
        """A value of the metadata; an array is a list, of numbers a numpy array."""
        if kind in _SCALARS:
            if kind == 7:
                return self.number("<B") != 0
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.string(f"the value of {name!r}")
        if kind != _ARRAY or inside:
            raise self.damaged(f"{name!r} has a value of type {kind}" + (" inside an array" if inside else "") + ", which there is not")
        element = self.number("<I")
        size = struct.calcsize(_SCALARS[element]) if element in _SCALARS else 8
        count = self.count(f"elements of {name!r}", size)
        if element in _SCALARS:
            return np.frombuffer(self.take(count * size), np.dtype(_SCALARS[element])).copy()
        return [self.value(name, element, inside=True) for _ in range(count)]

    def checkpoint(self) -> Checkpoint:
        if self.data[:4].tobytes() != MAGIC:
            raise self.damaged(f"begins with {self.data[:4].tobytes()!r}, expected {MAGIC!r}")
        self.at = 4
        version = self.number("<I")
        if version not in VERSIONS:
            swapped = int.from_bytes(struct.pack("<I", version), "big") in VERSIONS
            what = "big-endian" if swapped else f"GGUF version {version}"
            raise ModelError(f"{self.file}: {what}, expected little-endian GGUF version 2 or 3", hint="convert the model again")
        tensors = self.count("tensors", 24)
        pairs = self.count("pairs of metadata", 13)
        metadata: dict[str, Any] = {}
        for _ in range(pairs):
            name = self.string("a name in the metadata", NAME_BYTES)
            if name in metadata:
                raise self.damaged(f"says {name!r} twice")
            metadata[name] = self.value(name, self.number("<I"))
        return Checkpoint(self.file, "gguf", metadata, self.tensors(tensors, metadata))

    def tensors(self, count: int, metadata: dict[str, Any]) -> dict[str, Stored]:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 8 <= alignment <= MOST_ALIGNMENT or alignment & (alignment - 1):
            raise self.damaged(f"general.alignment is {alignment!r}, expected a power of two from 8 to {MOST_ALIGNMENT}")
        told = [self.told() for _ in range(count)]
        begin = -(-self.at // alignment) * alignment
        found: dict[str, Stored] = {}
        taken: list[tuple[int, int, str]] = []
        for name, sizes, kind, offset in told:
            if name in found:
                raise self.damaged(f"holds tensor {name!r} twice")
            shape = tuple(reversed(sizes))
            row, format = self.row(name, shape, kind)
            size = row * math.prod(shape[:-1])
            if offset % alignment or begin + offset + size > len(self.data):
                raise self.damaged(f"tensor {name!r} of {size} bytes at {begin} + {offset} does not lie in the {len(self.data)} bytes")
            taken.append((begin + offset, size, name))
            rows = (*shape[:-1], row) if format is not None else shape
            dtype, held = (f32, u8) if format is not None else (_PLAIN[kind], _PLAIN[kind])
            found[name] = Stored(name, shape, dtype, partial(part, self.data, begin + offset, size, held.numpy, rows), format)
        end, before = begin, ""
        for first, size, name in sorted(taken):
            if first < end and size:
                raise self.damaged(f"tensors {before!r} and {name!r} overlap")
            end, before = max(end, first + size), name
        return found

    def told(self) -> tuple[str, tuple[int, ...], int, int]:
        """What the file says of a tensor: name, sizes innermost first, type, place."""
        name = self.string("a tensor's name", NAME_BYTES)
        rank = self.number("<I")
        if not 1 <= rank <= MOST_RANK:
            raise self.damaged(f"tensor {name!r} has {rank} dimensions, expected 1 to {MOST_RANK}")
        sizes = tuple(self.number("<Q") for _ in range(rank))
        return name, sizes, self.number("<I"), self.number("<Q")

    def row(self, name: str, shape: tuple[int, ...], kind: int) -> tuple[int, str | None]:
        """The bytes of a tensor's row, and the format of what it holds."""
        if math.prod(shape) > 8 * len(self.data):
            raise self.damaged(f"tensor {name!r} of {list(shape)} does not fit into {len(self.data)} bytes")
        if kind in _PLAIN:
            return shape[-1] * _PLAIN[kind].itemsize, None
        if kind not in _CODED:
            what = _OTHERS.get(kind, f"number {kind}")
            raise ModelError(
                f"{self.file}: tensor {name!r} is stored as GGML type {what}, which is not supported",
                source=Source(name, self.file),
                hint=f"quantize the model to one of {', '.join(sorted(_CODED.values()))}",
            )
        format = format_of(_CODED[kind])
        if shape[-1] % format.group:
            raise self.damaged(f"tensor {name!r} has rows of {shape[-1]} numbers, and {format.name} has blocks of {format.group}")
        return shape[-1] // format.group * sum(field.words * field.dtype.itemsize for field in format.fields), format.name
