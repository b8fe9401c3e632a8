"""Files of sessions: what states held, bound to the program that wrote them by its digest.

A line that says what it is, the SHA-256 of all that follows, and a safetensors file: parts of states by name, and `ABOUT`, JSON.
Digests show damage and the wrong engine, not who wrote a file; there is nothing in it that runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir import dims
from ..ir.errors import EngineError
from ..ir.types import TensorType
from .digests import read_into
from .kinds import SESSION, check_replaced
from .memory import allocate
from .replace import hint_of, path_text, replace_file
from .weights import ALIGNMENT, Array, Constant, decode, encode, nbytes

MAGIC = b"ourcc session 1\n"
DIGEST = hashlib.sha256().digest_size
ABOUT = "~about"
MOST_ABOUT, MOST_HEAD = 1 << 28, 1 << 24
"""Bytes: what a file says of itself, and its list of states, are no longer."""


@dataclass(frozen=True)
class Saved:
    """What a file holds: the digest of its program, what its writer says of it, and arrays that are parts of states."""

    program: str
    about: Mapping[str, Any]
    arrays: Mapping[str, Array]


def write_saved(path: str | os.PathLike[str], saved: Saved) -> None:
    """Write a file all or nothing; EngineError where it cannot be written."""
    name = path_text(path, "the session")
    check_replaced(name, SESSION)
    about = json.dumps({"program": saved.program, "about": dict(saved.about)}).encode()
    constants = {name: Constant.of(array) for name, array in saved.arrays.items()}
    head, pieces = encode({**constants, ABOUT: Constant.of(np.frombuffer(about, np.uint8))})
    digest = hashlib.sha256(head)
    for piece in pieces:
        digest.update(piece)
    try:
        replace_file(name, [MAGIC, digest.digest(), head, *pieces])
    except OSError as error:
        raise EngineError(f"cannot write session {name}: {error.strerror or error}", hint=hint_of(error)) from error


def read_saved(path: str | os.PathLike[str], program: str, types: Mapping[str, TensorType]) -> Saved:
    """What a file holds; EngineError unless it is what was written, for this program, each array a part of a state of its type."""
    name = path_text(path, "the session")
    data = _read(name, types)
    if data[: len(MAGIC)].tobytes() != MAGIC:
        raise EngineError(f"{name}: not a session: it does not start as one")
    first = len(MAGIC) + DIGEST
    body = data[first:]
    if hashlib.sha256(body.data).digest() != data[len(MAGIC) : first].tobytes():
        raise EngineError(f"{name}: the session does not match its digest", hint="it was damaged, cut off or changed after it was written")
    length = int.from_bytes(body[:8].tobytes(), "little") + 8
    if length > min(body.size, MOST_HEAD):
        raise EngineError(f"{name}: the session's list of states has {length} bytes, the file {body.size}")
    constants = decode(body[:length].tobytes(), body[length:], name)
    about = _about(constants.pop(ABOUT, None), name)
    if about["program"] != program:
        raise EngineError(
            f"{name}: the session is one of another engine", hint="load the engine that wrote it, or one that was built alike"
        )
    return Saved(program, about["about"], {state: _part(state, each, types, name) for state, each in constants.items()})


def _read(path: str, types: Mapping[str, TensorType]) -> Array:
    """The bytes of a file that is no longer than these states."""
    most = sum((nbytes(type) or 0) + ALIGNMENT for type in types.values()) + MOST_ABOUT + MOST_HEAD
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise EngineError(f"{path}: not a regular file, expected a session")
            least = len(MAGIC) + DIGEST + 8
            if not least <= status.st_size <= most:
                expected = f"at least {least}" if status.st_size < least else f"at most {most}"
                raise EngineError(f"{path}: not a session of this engine: it has {status.st_size} bytes, expected {expected}")
            data = allocate(status.st_size, lambda: "a session's file", lambda: np.empty(status.st_size, np.uint8))
            read_into(handle, 0, data.data)
        finally:
            os.close(handle)
    except EOFError as error:
        raise EngineError(f"{path}: the session ends early") from error
    except OSError as error:
        raise EngineError(f"cannot read session {path}: {error.strerror or error}") from error
    return data


def _about(held: Constant | None, path: str) -> Mapping[str, Any]:
    try:
        said = json.loads(held.data.tobytes()) if held is not None else None
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{path}: what the session says of itself is damaged: {error}") from error
    if not isinstance(said, dict) or not isinstance(said.get("program"), str) or not isinstance(said.get("about"), dict):
        raise EngineError(f"{path}: the session does not say of which engine it is")
    return said


def _part(state: str, held: Constant, types: Mapping[str, TensorType], path: str) -> Array:
    """An array that is no larger than the state that it is a part of."""
    type = types.get(state)
    if type is None:
        raise EngineError(f"{path}: the session holds state {state!r}, which the engine has not")
    fits = held.type.dtype == type.dtype and held.type.rank == type.rank
    if not fits or not all(dims.number(got) <= dims.number(most) for got, most in zip(held.type.shape, type.shape, strict=True)):
        raise EngineError(f"{path}: the session holds {held.type} for state {state!r}, which is {type}")
    return held.array()
