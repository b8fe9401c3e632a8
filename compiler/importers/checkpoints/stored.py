"""A tensor as a checkpoint stores it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint, sizes outermost first: plain numbers, or records of a number format along the last axis.

    `read` gives the numbers, or u8 of [..., bytes of a row]; until then nothing of the file is touched.
    """

    name: str
    shape: tuple[int, ...]
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
