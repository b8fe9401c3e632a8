"""2:4 sparsity in any format: of every four numbers two are kept, in the codes of that format, with their positions beside them.

The arrays are those that the format has for the kept numbers alone, half as many: a group of its scales is as many kept numbers,
which lie in twice as many places. A place that is not kept reads as 0, after zero points are subtracted and offsets added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from .. import scalar
from ..scalar import Array
from ..types import DType, f32, i8, i32, u8
from .format import Field, Format, Part, Place, Reader, Tensor

PREFIX = "2:4."
GROUP, KEPT = 4, 2
"""So many neighbours are a group, of which so many are kept."""
BITS = 2
PLACES = "places"
PER_BYTE = u8.bits // BITS
SERVED = GROUP * PER_BYTE // KEPT
"""So many numbers have their positions in one byte."""


def plain(dtype: DType) -> Format:
    """Numbers as they are, in a dtype."""
    fields = (Field("kept", dtype, 1),)
    return Format(
        dtype.name,
        f"{dtype} as it is",
        fields,
        1,
        lambda reader, place: reader.word("kept", place, own=True),
        encode=lambda x: {"kept": x.astype(dtype.numpy)},
        plain=dtype,
    )


def two_four(kept: Format) -> Format:
    """The format whose numbers are 2:4 sparse, those that are kept in another format.

    Positions are 2 bits, four in a byte, the first lowest. Every byte is valid: of two numbers at one place the first is read.
    """
    fields = tuple(replace(field, per=field.per and field.per * GROUP // KEPT) for field in kept.fields)

    def selected(part: Part) -> Part:
        def read(reader: Reader, place: Place) -> Array:
            value: Array = 0
            for member in reversed(range(KEPT)):
                at = place // GROUP * KEPT + member
                is_here = scalar.eq(_position(reader, at), reader.number(place % GROUP, i32))
                value = scalar.where(is_here, part(reader, at), value)
            return value

        return read

    def apart(part: Part | None) -> Part | None:
        # Neighbours of a group share what groups of an even number of kept numbers share.
        return None if part is None else lambda reader, place: part(reader, place // (GROUP // KEPT))

    # What is added to products of codes and scales is so to kept numbers alone.
    whole = kept.offset is not None
    least, most = _differences(kept)
    is_byte = -128 <= least and most <= 127
    dtype = kept.plain or (i8 if is_byte else f32)
    return Format(
        f"{PREFIX}{kept.name}",
        f"two of every four numbers, kept as {kept.doc}",
        (*fields, Field(PLACES, u8, SERVED)),
        math.lcm(GROUP, kept.group * GROUP // KEPT),
        selected(kept.decode if whole else lambda reader, place: scalar.cast(kept.difference(reader, place), dtype)),
        scale=None if whole else apart(kept.scale),
        least=least,
        most=most,
        encode=None if kept.encode is None else lambda x: _encoded(kept, x),
        mantissa=kept.mantissa,
        plain=kept.plain,
        kept=kept,
    )


def _differences(kept: Format) -> tuple[float, float]:
    """The least and the most that codes without their zero points can be, which are bytes where they vary."""
    least, most = (kept.zero, kept.zero) if isinstance(kept.zero, int) else (0, (1 << u8.bits) - 1)
    return kept.least - most, kept.most - least


def _position(reader: Reader, place: Place) -> Array:
    """Where in its group a kept number stands, i32."""
    byte = scalar.cast(reader.word(PLACES, place // PER_BYTE), i32)
    return scalar.bit_and(scalar.shift_right(byte, reader.number(place % PER_BYTE * BITS, i32)), (1 << BITS) - 1)


def _encoded(kept: Format, x: Tensor) -> Mapping[str, Tensor]:
    values, places = pruned(x, -1)
    return {**kept.encoded(values), PLACES: places}


def pruned(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """(values, places): of every four along `axis` the two of largest magnitude, in order; of equals the first."""
    groups = np.moveaxis(x, axis, -1)
    groups = groups.reshape(*groups.shape[:-1], -1, GROUP)
    largest_first = np.argsort(-np.abs(groups.astype(np.float64)), axis=-1, kind="stable")
    kept = np.sort(largest_first[..., :KEPT], axis=-1)
    values = np.take_along_axis(groups, kept, axis=-1)
    values = values.reshape(*values.shape[:-2], -1)
    return np.ascontiguousarray(np.moveaxis(values, -1, axis)), np.ascontiguousarray(np.moveaxis(_packed(kept), -1, axis))


def _packed(positions: Tensor) -> Tensor:
    """Pairs of positions as bytes of four."""
    flat = positions.reshape(*positions.shape[:-2], -1).astype(np.uint8)
    flat = np.pad(flat, [(0, 0)] * (flat.ndim - 1) + [(0, -flat.shape[-1] % PER_BYTE)])
    fields = flat.reshape(*flat.shape[:-1], -1, PER_BYTE) << np.arange(0, u8.bits, BITS, dtype=np.uint8)
    result: Tensor = np.bitwise_or.reduce(fields, axis=-1).astype(np.uint8)
    return result
