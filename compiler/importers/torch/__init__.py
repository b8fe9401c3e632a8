"""The torch importer: fx graphs of ATen ops, from AOTAutograd or torch.export, to graph modules."""

from __future__ import annotations

from ....ir.extras import need

# Every road to torch comes through here, so that a missing torch is said with the extra's name.
need("torch", "PyTorch models (.pt2 files, torch modules)")

from .imported import Imported  # noqa: E402
from .walk import import_graph  # noqa: E402

__all__ = ["Imported", "import_graph"]
