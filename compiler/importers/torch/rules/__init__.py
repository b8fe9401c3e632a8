"""The rules of the torch importer; importing this package fills the table."""

from . import attention, contraction, creation, indexing, movement, normalization, pointwise, quantization, reduction, scatter, window

FAMILIES = (attention, contraction, creation, indexing, movement, normalization, pointwise, quantization, reduction, scatter, window)

__all__ = ["FAMILIES"]
