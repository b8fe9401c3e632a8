"""The op table: importing this package declares every op."""

from . import activation, contraction, indexing, movement, normalization, pointwise, reduction

__all__ = ["activation", "contraction", "indexing", "movement", "normalization", "pointwise", "reduction"]
