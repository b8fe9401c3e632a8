"""Casts that are held in the range of a narrow float: a number too large becomes its largest one, only NaN stays NaN."""

from __future__ import annotations

from ...ir.graph import Builder, Value
from ...ir.ops.quantization import limits
from ...ir.types import DType, f32


def saturating_cast(b: Builder, x: Value, dtype: DType) -> Value:
    """x in a float of at most 8 bits; the program's own cast overflows to infinity, or to NaN where the type has none."""
    low, high = limits(dtype)
    if not x.dtype.is_float or x.dtype.bits <= 8:
        # The limits are numbers of every wider float, but not of these.
        x = b.cast(x, dtype=f32)
    result: Value = b.cast(b.clip(x, low, high), dtype=dtype)
    return result
