"""The rules of the torch importer; importing this package fills the table."""

from . import attention, contraction, creation, indexing, movement, normalization, pointwise, reduction, scatter, window

FAMILIES = (attention, contraction, creation, indexing, movement, normalization, pointwise, reduction, scatter, window)

__all__ = ["FAMILIES"]
