"""Rows and images as codes while an engine runs: what each is divided by, on the graph builder."""

from __future__ import annotations

from ...ir.graph import Builder, Value
from ...ir.types import f32

LEAST = 2.0**-126


def row_scales(b: Builder, rows: Value, largest: float, *, keepdims: bool, least: float = LEAST) -> Value:
    """The scales f32[..] (with `keepdims` f32[.., 1]) of rows [.., K]: the largest magnitude of a row becomes `largest`.

    A row does not see the others. One with NaN or infinity becomes NaN: its scale is.
    """
    return _scales(b, b.reduce_max(b.abs(rows), axes=(rows.type.rank - 1,), keepdims=keepdims), largest, least)


def image_scales(b: Builder, images: Value, largest: float) -> Value:
    """The scales f32[N] of images [N, C, ..]: the largest magnitude of an image becomes `largest`.

    The largest of each index of the first spatial axis comes first: threads share what is read.
    """
    others = tuple(axis for axis in range(images.type.rank) if axis not in (0, 2))
    return _scales(b, b.reduce_max(b.reduce_max(b.abs(images), axes=others, keepdims=False), axes=(1,), keepdims=False), largest)


def _scales(b: Builder, size: Value, largest: float, least: float = LEAST) -> Value:
    """What numbers of these largest magnitudes are divided by."""
    size = size if size.dtype == f32 else b.cast(size, dtype=f32)
    # An integer says nothing of infinity over infinity: where numbers have no codes, what is made of them is no number.
    size = b.where(b.is_inf(size), b.sub(size, size), size)
    # Of zeros only any scale is right; of numbers near the least normal one it has fewer digits below that.
    result: Value = b.maximum(b.div(size, largest), least)
    return result
