"""Rows as codes while an engine runs: what each row is divided by, on the graph builder."""

from __future__ import annotations

from ...ir.graph import Builder, Value
from ...ir.types import f32

LEAST = 2.0**-126


def row_scales(b: Builder, rows: Value, largest: float, *, keepdims: bool) -> Value:
    """The scales f32[..] (with `keepdims` f32[.., 1]) of rows [.., K]: the largest magnitude of a row becomes `largest`.

    A row does not see the others. One with NaN or infinity stays one: its scale is not finite.
    """
    size = b.reduce_max(b.abs(rows), axes=(rows.type.rank - 1,), keepdims=keepdims)
    size = size if size.dtype == f32 else b.cast(size, dtype=f32)
    # Of zeros only any scale is right; of numbers near the least normal one it has fewer digits below that.
    result: Value = b.maximum(b.div(size, largest), LEAST)
    return result
