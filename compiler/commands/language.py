"""What the commands of language models share: loading an engine that holds one."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ...ir.errors import UsageError
from ...runtime.language.model import LanguageModel
from ..progress import SILENT, Progress
from .load import load


def load_language(
    path: str | os.PathLike[str],
    *,
    target: str | None = None,
    threads: int | None = None,
    trusted_keys: Iterable[bytes] | None = None,
    progress: Progress = SILENT,
) -> LanguageModel:
    """The language model of an engine file; UsageError if it holds none."""
    engine = load(path, target=target, threads=threads, trusted_keys=trusted_keys, progress=progress)
    if not isinstance(engine, LanguageModel):
        hint = "build one from a .gguf file or a folder with config.json and .safetensors files"
        raise UsageError(f"{os.fspath(path)!r} holds no language model", hint=hint)
    return engine
