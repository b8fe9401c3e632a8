"""The torch importer: fx graphs of ATen ops, from AOTAutograd or torch.export, to graph modules."""

from __future__ import annotations

import os
from typing import Any

from .walk import Imported, import_graph

__all__ = ["Imported", "exported_module", "import_graph"]


def exported_module(path: str | os.PathLike[str]) -> Any:
    """A .pt2 file as a torch module that takes its inputs in order and returns a tuple; nothing in the file is run."""
    from .pt2.program import read_program

    return read_program(path).module()
