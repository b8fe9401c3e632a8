"""What a file is, by its first bytes, and by its suffix where a command takes engines and models alike."""

from __future__ import annotations

import os
from pathlib import Path

from ...ir.errors import NotAnEngineError, UsageError

ENGINE = "an engine"
FOLDER = "the folder of a language model"
CONFIG = "config.json"
MODELS = (".onnx", ".pt2")


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """An engine, an ONNX model, ...; None for what is not known, damaged or not there."""
    if os.path.isfile(Path(path, CONFIG)):
        return FOLDER
    if not os.path.isfile(path):
        return None  # A pipe would be waited for.
    try:
        with open(path, "rb") as stream:
            head = stream.read(256)
    except OSError:
        return None
    if head.startswith(b"PK\x03\x04"):
        return _archive(head)
    if head.startswith(b"GGUF"):
        return "a GGUF file of a language model"
    if 2 <= int.from_bytes(head[:8], "little") < 1 << 32 and head[8:9] == b"{":
        return "a safetensors file of weights"
    if head.startswith(b"\x93NUMPY"):
        return "an .npy file of one array"
    # A ModelProto: field 1, its version of the format, is written first by whatever writes ONNX.
    return "an ONNX model" if len(head) > 2 and head[0] == 8 and 0 < head[1] < 64 and head[2] in _FIELDS else None


_FIELDS = frozenset(number << 3 | kind for number, kind in ((2, 2), (3, 2), (4, 2), (5, 0), (6, 2), (7, 2), (8, 2), (14, 2)))
"""Tags of the fields that may follow it."""


def _archive(head: bytes) -> str | None:
    """What a zip archive is, by the name of its first member."""
    name = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    if name == b"manifest.json":
        return ENGINE
    if name.endswith(b".npy"):
        return "an .npz file of arrays"
    return "an exported program of torch, or another zip archive"


def is_engine(path: Path) -> bool:
    """Whether a file is an engine; one that is named as such is, whatever is in it."""
    if path.suffix == ".ourcc" or path.suffix in MODELS:
        return path.suffix == ".ourcc"
    return kind_of(path) == ENGINE


def is_checkpoint(path: Path) -> bool:
    """Whether a path is one of a language model: a GGUF file, or a folder."""
    return path.suffix == ".gguf" or path.is_dir()


def how_to_build(path: Path) -> str | None:
    """The way from a model to an engine; None for what is no model that is known."""
    name = Path(os.path.abspath(path)).name
    is_model = (kind_of(path) or "").startswith(_MODEL_KINDS)
    return f"build it first: ourcc build {path} -o {name if path.is_dir() else Path(name).stem}.ourcc" if is_model else None


_MODEL_KINDS = ("an ONNX", "an exported", "a GGUF", FOLDER)


def check_order(engine: Path, other: Path, usage: str) -> None:
    """UsageError for an engine and what belongs to it that are given the wrong way round; `usage` has places for both."""
    if is_engine(other) and not is_engine(engine):
        right = usage.format(other, engine)
        raise UsageError(f"{str(other)!r} is an engine, and stands where {str(engine)!r} should", hint=f"the engine comes first: {right}")


def check_engine(path: str | os.PathLike[str]) -> None:
    """NotAnEngineError for a file that is known to be something else, with the way from a model to an engine."""
    kind = kind_of(path)
    if kind is None or kind == ENGINE:
        return
    hint = how_to_build(Path(path)) or "name an engine, as ourcc build writes it"
    raise NotAnEngineError(f"{os.fspath(path)!r} is {kind}, expected an engine", hint=hint)
