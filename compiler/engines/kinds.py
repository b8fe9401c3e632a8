"""Engines and models told apart, by their first bytes and by suffix, and what to say of one that stands where the other should."""

from __future__ import annotations

import os
from pathlib import Path

from ...ir.errors import NotAnEngineError, UsageError
from ...runtime.kinds import ENGINE, FOLDER, kind_of

MODELS = (".onnx", ".pt2")


def is_engine(path: Path) -> bool:
    """Whether a file is an engine; one that is named as such is, whatever is in it."""
    if path.suffix == ".ourcc" or path.suffix in MODELS:
        return path.suffix == ".ourcc"
    return kind_of(path) == ENGINE.name


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
    if kind is None or kind == ENGINE.name:
        return
    hint = how_to_build(Path(path)) or "name an engine, as ourcc build writes it"
    raise NotAnEngineError(f"{os.fspath(path)!r} is {kind}, expected an engine", hint=hint)
