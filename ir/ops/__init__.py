"""The op table: importing this package declares every op."""

from . import activation, contraction, host, indexing, movement, normalization, pointwise, quantization, reduction, window

__all__ = ["activation", "contraction", "host", "indexing", "movement", "normalization", "pointwise", "quantization", "reduction", "window"]
