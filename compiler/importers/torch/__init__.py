"""The torch importer: fx graphs of ATen ops, from AOTAutograd or torch.export, to graph modules."""

from __future__ import annotations

import os
from typing import Any

from ....ir.extras import need

# Every road to torch comes through here, so that a missing torch is said with the extra's name.
need("torch", "PyTorch models (.pt2 files, torch modules)")

from .walk import Imported, import_graph  # noqa: E402

__all__ = ["Imported", "exported_module", "import_graph"]


def exported_module(path: str | os.PathLike[str]) -> Any:
    """A .pt2 file as a torch module that takes its inputs in order and returns a tuple; nothing in the file is run."""
    from .pt2.program import read_program

    return read_program(path).module()
