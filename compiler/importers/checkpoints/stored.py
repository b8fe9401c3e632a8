"""A tensor as a checkpoint stores it."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ....ir.errors import ModelError
from ....ir.types import DType

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint, sizes outermost first: numbers of a dtype, or (f32) records of a number format along the last axis.

    `read` gives the numbers, or u8 of [..., bytes of a row]; until then nothing of the file is touched.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    read: Callable[[], Array]
    format: str | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A model as it is stored: what it says of itself, its tensors by name, the files of a tokenizer."""

    name: str
    kind: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Stored]
    texts: Mapping[str, str] = field(default_factory=dict)


def mapped(file: Path) -> Array:
    """The bytes of a file, read when they are looked at; ModelError for what cannot be read, or is none."""
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{file.name} is no regular file, expected a file of a model")
        return np.memmap(file, np.uint8, "r") if status.st_size else np.zeros(0, np.uint8)
    except OSError as error:
        raise ModelError(f"cannot read {file.name}: {error.strerror or error}") from error


def part(data: Array, first: int, size: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Bytes of a file as an array of this type; copied only where they lie at an odd place."""
    found = np.asarray(data[first : first + size])
    return found.view(dtype).reshape(shape) if first % dtype.itemsize == 0 else np.frombuffer(found.tobytes(), dtype).reshape(shape)
