"""Rows as codes while an engine runs: what each row is divided by, and the codes of what is left, on the graph builder."""

from __future__ import annotations

from ...ir.graph import Builder, Value
from ...ir.types import DType, f32

LEAST = 2.0**-126


def coded_rows(b: Builder, rows: Value, largest: float, dtype: DType) -> tuple[Value, Value]:
    """Codes [N, K] and scales f32[N] of rows [N, K]: the largest magnitude of a row becomes `largest`.

    A row does not see the others. One with NaN or infinity stays one: its scale is not finite.
    """
    size = b.reduce_max(b.abs(rows), axes=(1,), keepdims=False)
    size = size if size.dtype == f32 else b.cast(size, dtype=f32)
    # Of zeros only any scale is right; of numbers near the least normal one it has fewer digits below that.
    scale = b.maximum(b.div(size, largest), LEAST)
    return b.quantize(rows, scale, axis=0, dtype=dtype), scale
