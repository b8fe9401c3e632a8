"""What a file is, by its first bytes, and what may take its place: no output replaces what it is not a newer one of."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from ..ir.errors import UsageError
from .replace import is_stream

FOLDER = "the folder of a language model"
CONFIG = "config.json"
SAVED = "a file of torch.save"
"""Tensors by name or a pickled module, without a program."""


@dataclass(frozen=True)
class Kind:
    """A kind of file that is written: its name, the suffixes that say so, and for what others write too, what stands in ours alone."""

    name: str
    suffixes: tuple[str, ...]
    mark: bytes = b""

    def is_in(self, path: str | os.PathLike[str]) -> bool:
        """Whether a file is one of these that we wrote."""
        found = kind_of(path)
        return found in (self.name, None) and self.mark in _head(path, 1024) if self.mark else found == self.name


PAGE_MARK = '<meta name="generator" content="ourcc">'
PICTURE_MARK = 'data-generator="ourcc"'
TRACE_MARK = {"generator": "ourcc"}
SOURCE_MARK = "/* Written by ourcc runtime; written again, it is replaced. */ "
"""What stands near the beginning of a file of ours whose format is anybody's."""


ENGINE = Kind("an engine", (".ourcc",))
PAGE = Kind("a page of HTML", (".html", ".htm"), PAGE_MARK.encode())
PICTURE = Kind("an SVG picture", (".svg",), PICTURE_MARK.encode())
RECORDS = Kind("a file of JSON", (".json", ".jsonl", ".ndjson"), b'{"candidates":[')
TRACE = Kind("a file of JSON", (".json", ".jsonl", ".ndjson"), json.dumps(TRACE_MARK).encode())
SOURCE = Kind("a source of the C runtime", (".c", ".h"), SOURCE_MARK.encode())
ARRAYS = Kind("an .npz file of arrays", (".npz",))
SESSION = Kind("a saved session", (".session",))
KNOWN = frozenset(
    ".onnx .pt2 .pt .pth .gguf .safetensors .npy .npz .pem .key .pub .pdf .png .jpg".split()
    + ".html .htm .svg .json .jsonl .ourcc .lock .py .c .h .so".split()
)
"""Suffixes that say what a file is."""


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """An engine, an ONNX model, ...; None for what is not known, damaged or not there."""
    if os.path.isfile(Path(path, CONFIG)):
        return FOLDER
    if not os.path.isfile(path):
        return None  # A pipe would be waited for.
    head = _head(path, 256)
    if head.startswith(b"PK\x03\x04"):
        return _archive(head)
    if head.startswith(_LEGACY):
        return SAVED
    if head.startswith(b"GGUF"):
        return "a GGUF file of a language model"
    if 2 <= int.from_bytes(head[:8], "little") < 1 << 32 and head[8:9] == b"{":
        return "a safetensors file of weights"
    if head.startswith(b"\x93NUMPY"):
        return "an .npy file of one array"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    for kind, beginnings in _TEXTS.items():
        if text.lower().startswith(beginnings):
            return kind
    # A ModelProto: field 1, its version of the format, is written first by whatever writes ONNX.
    return "an ONNX model" if len(head) > 2 and head[0] == 8 and 0 < head[1] < 64 and head[2] in _FIELDS else None


def _head(path: str | os.PathLike[str], count: int) -> bytes:
    """A file's first bytes; none of one that cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read(count)
    except OSError:
        return b""


_FIELDS = frozenset(number << 3 | kind for number, kind in ((2, 2), (3, 2), (4, 2), (5, 0), (6, 2), (7, 2), (8, 2), (14, 2)))
"""Tags of the fields that may follow it."""


_LEGACY = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
"""The number that torch.save wrote first, pickled, before its files were archives."""


def _archive(head: bytes) -> str | None:
    """What a zip archive is, by the name of its first member."""
    name = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    if name == b"manifest.json":
        return ENGINE.name
    if name.endswith(b".npy"):
        return ARRAYS.name
    if name.endswith(b"/data.pkl"):
        return SAVED
    return "an exported program of torch, or another zip archive"


_TEXTS: dict[str, tuple[bytes, ...]] = {
    PAGE.name: (b"<!doctype html", b"<html"),
    PICTURE.name: (b"<svg", b"<?xml"),
    RECORDS.name: (b"{", b"["),
    SESSION.name: (b"ourcc session",),
    "a key or a certificate": (b"-----begin",),
    "a PDF file": (b"%pdf",),
}


def check_replaced(path: str | os.PathLike[str], *kinds: Kind) -> None:
    """UsageError for a file that would get what its suffix denies, or that holds anything but an older one of these kinds of ours."""
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"got a {type(path).__name__} for the output, expected a path")
    file = Path(path)
    suffixes = {suffix for kind in kinds for suffix in kind.suffixes}
    expected = " or ".join(kind.name for kind in kinds)
    if is_stream(file):
        return
    if file.suffix.lower() in KNOWN - suffixes:
        hint = f"name it {file.with_suffix(kinds[0].suffixes[0]).name}"
        raise UsageError(f"output {str(file)!r} has the suffix {file.suffix}, and gets {expected}", hint=hint)
    if not file.is_file() or not file.stat().st_size or any(kind.is_in(file) for kind in kinds):
        return
    found = kind_of(file)
    is_ours = "" if found not in {kind.name for kind in kinds} else ", which ourcc did not write"
    is_what = "holds something else" if found is None else f"is {found}{is_ours}"
    raise UsageError(
        f"output {str(file)!r} {is_what}, and is not replaced by {expected}", hint="name another file, or remove that one first"
    )


__all__ = [
    "ARRAYS",
    "CONFIG",
    "ENGINE",
    "FOLDER",
    "KNOWN",
    "PAGE",
    "PICTURE",
    "RECORDS",
    "SAVED",
    "SESSION",
    "SOURCE",
    "TRACE",
    "Kind",
    "check_replaced",
    "kind_of",
]
