"""Checkpoints of language models: GGUF files, and folders with config.json and safetensors."""

from __future__ import annotations

from pathlib import Path

from .folder import read_config, read_folder
from .gguf import read_gguf
from .stored import Checkpoint


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint, whatever it is stored as."""
    return read_folder(path) if path.is_dir() else read_gguf(path)


__all__ = ["Checkpoint", "read_checkpoint", "read_config", "read_folder", "read_gguf"]
