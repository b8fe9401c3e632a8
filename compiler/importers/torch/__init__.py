"""The torch importer: fx graphs of ATen ops, from AOTAutograd or torch.export, to graph modules."""

from .walk import Imported, import_graph

__all__ = ["Imported", "import_graph"]
