"""What a command is given: an engine or a model, by its suffix, and by its first bytes where that says nothing."""

from __future__ import annotations

from pathlib import Path

MODELS = (".onnx", ".pt2")
_HEADER, _FIRST = 30, b"manifest.json"


def is_engine(path: Path) -> bool:
    """Whether a file is an engine; one that is named as such is, whatever is in it."""
    if path.suffix == ".ourcc" or path.suffix in MODELS:
        return path.suffix == ".ourcc"
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEADER + len(_FIRST))
    except OSError:
        return False
    return head[:4] == b"PK\x03\x04" and head[_HEADER:] == _FIRST
