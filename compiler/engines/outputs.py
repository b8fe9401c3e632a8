"""What a command writes, checked before its work begins: it can be written, is none of the inputs, and drops no signature."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...ir.errors import CompilerError, UsageError
from ...runtime.kinds import ENGINE, Kind, check_replaced
from .trust import NOBODY_ASKED, Trust

Places = Mapping[str, "Path | None"]
"""Files by what the user calls them: a flag, or an argument's name."""


def check_output(path: Path, *kinds: Kind) -> Path:
    """A file to write, if it can be written and what is there may be replaced: asked before the work whose result it gets."""
    if path.is_dir():
        raise UsageError(f"output {str(path)!r} is a folder, expected a file")
    from ...runtime.replace import is_stream

    try:
        if is_stream(path) and os.access(path, os.W_OK):
            return path
    except OSError as error:
        raise UsageError(f"output {str(path)!r} cannot be written: {(error.strerror or str(error)).lower()}", hint="name a file") from error
    # A link leads to the folder of its file, which is what is written.
    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        raise UsageError(f"output {str(path)!r}: there is no folder {str(folder)!r}", hint="make the folder first, or name another")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UsageError(f"output {str(path)!r} cannot be written: the permission is missing", hint="choose another folder")
    try:
        # Permissions do not say all: a file system may be read-only, full, or no place for files at all.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"output {str(path)!r} cannot be written: {why}", hint="choose another folder") from error
    if kinds:
        check_replaced(path, *kinds)
    return path


def check_places(outputs: Places, inputs: Places, trust: Trust = NOBODY_ASKED) -> None:
    """Refuse outputs that are inputs, each other, or signed engines which would lose their signature."""
    written = {name: path for name, path in outputs.items() if path is not None}
    read = {name: path for name, path in inputs.items() if path is not None}
    for number, (flag, output) in enumerate(written.items()):
        for name, path in (*read.items(), *list(written.items())[:number]):
            if is_same(output, path):
                raise UsageError(f"{flag}: output {str(output)!r} is the same file as {name}", hint="name another file for the output")
        for path in read.values():
            # An engine is no model's weights: a model need not be parsed for its place to be written again.
            may_hold = output.exists() and not ENGINE.is_in(output) and is_below(output, path.parent)
            for other in _data_of(path) if may_hold else ():
                if is_same(output, other):
                    what = f"{flag}: output {str(output)!r} holds data of {str(path)!r}"
                    raise UsageError(what, hint="name another file for the output")
        keep_signature(output, trust)


def keep_signature(output: Path, trust: Trust) -> None:
    """Refuse to put an unsigned engine in the place of a signed one."""
    from ...runtime.file import read_signature, unsigned

    found = read_signature(output) if trust.signing_key is None else None
    if found is not None:
        raise unsigned(str(output), found, "sign it with --signing-key, or write to another file with -o")


def is_same(left: Path, right: Path) -> bool:
    """Whether two paths are one file, by whatever links."""
    try:
        return os.path.samefile(left, right)
    except OSError:
        return os.path.realpath(left) == os.path.realpath(right)


def is_standard_output(path: Path) -> bool:
    """Whether what is written to a path goes where standard output does: a pipe, or a device that keeps nothing apart."""
    from ...runtime.replace import is_stream

    try:
        return is_stream(path) and os.path.samestat(os.stat(path), os.fstat(1))
    except OSError:
        return False


def is_below(path: Path, folder: Path) -> bool:
    """Whether a file lies in a folder, or below it."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _data_of(model: Path) -> Iterator[Path]:
    """Files beside an ONNX model that hold its weights."""
    if model.suffix != ".onnx":
        return
    from ..importers.onnx import external_files

    try:
        yield from external_files(model)
    except CompilerError:
        return  # what is wrong with the model its import says


__all__ = ["check_output", "check_places", "is_same", "keep_signature"]
