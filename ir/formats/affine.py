"""Integers with a scale, and a zero point where they have one: for a tensor, for each channel, or for groups along a channel."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from .. import scalar
from ..errors import VerifyError
from ..scalar import Array
from ..types import DTYPES, DType, f16, f32, i8, i32, u8
from .format import Field, Format, Part, Place, Reader, Tensor, block_of, packed, plane

PLANES = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}
"""How codes are taken apart into planes whose codes fill bytes, lowest bits first."""


def code_fields(bits: int, run: int) -> tuple[Field, ...]:
    """The arrays of unsigned codes of so many bits, one for each plane."""
    return tuple(Field(_plane_name(number), u8, run, run * width // u8.bits) for number, width in enumerate(PLANES[bits]))


def read_code(reader: Reader, place: Place, bits: int, run: int) -> Array:
    """The unsigned code at a place, u8, from its planes."""
    value, above = None, 0
    for number, width in enumerate(PLANES[bits]):
        part = plane(reader, _plane_name(number), place, width, run)
        value = part if value is None else scalar.bit_or(value, scalar.shift_left(part, above))
        above += width
    return value


def pack_codes(codes: Tensor, bits: int, run: int) -> dict[str, Tensor]:
    """Unsigned codes along the last axis as the arrays of their planes."""
    found, above = {}, 0
    for number, width in enumerate(PLANES[bits]):
        found[_plane_name(number)] = packed(codes.astype(np.uint8) >> above & ((1 << width) - 1), width, run)
        above += width
    return found


def _plane_name(number: int) -> str:
    return ("codes", "high")[number]


def _run(group: int) -> int:
    """Codes whose bytes lie together: the more, the wider the loads; a group holds whole runs."""
    return next(run for run in (32, 16, 8) if group % run == 0)


def grouped(bits: int, group: int | None, zero_points: bool = False, scales: DType = f16) -> Format:
    """Unsigned codes of 2 to 6 bits in groups of `group` along the contracted axis, or one group for each channel.

    Without zero points the middle of the range is zero, and the scale is negative where the number of largest magnitude
    is positive: that number gets the one code that has no counterpart. With them a group's range includes zero.
    """
    run, middle = _run(group or WHOLE_RUN), 1 << (bits - 1)
    zeros = (Field("zero", u8, group),) if zero_points else ()
    fields, with_zeros = (*code_fields(bits, run), Field("scale", scales, group), *zeros), " and zero points" if zero_points else ""

    def encode(x: Tensor) -> Mapping[str, Tensor]:
        parts = x.reshape(*x.shape[:-1], -1, group or x.shape[-1])
        if zero_points:
            scale, middles = _ranged(parts, (-1,), 2 * middle - 1, scales)
        else:
            extreme = np.take_along_axis(parts, np.abs(parts).argmax(-1, keepdims=True), -1)
            scale = in_range(-extreme / np.float32(middle), scales)
            middles = np.full_like(scale, middle)
        codes = np.clip(np.rint(divided(parts, scale)) + middles, 0, 2 * middle - 1).reshape(x.shape)
        found = {**pack_codes(codes, bits, run), "scale": scale[..., 0].astype(scales.numpy)}
        return {**found, "zero": middles[..., 0].astype(np.uint8)} if zero_points else found

    return Format(
        grouped_name(bits, group, zero_points, scales),
        f"{bits}-bit integers, {scales} scales{with_zeros} for {f'groups of {group}' if group else 'each channel'}",
        fields,
        group or WHOLE_RUN,
        lambda reader, place: read_code(reader, place, bits, run),
        scale=lambda reader, place: reader.word("scale", block_of(place, group)),
        zero=_zero_point(group) if zero_points else middle,
        least=0,
        most=2 * middle - 1,
        encode=encode,
    )


def with_offsets(bits: int, group: int, scales: DType = f16) -> Format:
    """Unsigned codes of 2 to 8 bits in groups of `group` along the contracted axis, times a scale, plus an f32 offset.

    What has a zero point that is no whole number is stored so: the offset is the scale times the zero point, negated.
    """
    run, most = _run(group), (1 << bits) - 1

    def encode(x: Tensor) -> Mapping[str, Tensor]:
        parts = x.reshape(*x.shape[:-1], -1, group)
        least = parts.min(-1, keepdims=True)
        wanted = (parts.max(-1, keepdims=True) - least) / np.float32(most)
        scale = in_range(wanted, scales)
        if np.any((scale == 0) & (wanted > 0)):
            raise VerifyError(f"a scale is {wanted[scale == 0].max():.3g}, which {scales} does not hold")
        codes = np.clip(np.rint(divided(parts - least, scale)), 0, most).reshape(x.shape)
        return {**pack_codes(codes, bits, run), "scale": scale[..., 0].astype(scales.numpy), "offset": least[..., 0]}

    return Format(
        offset_name(bits, group, scales),
        f"{bits}-bit integers, {scales} scales and f32 offsets for groups of {group}",
        (*code_fields(bits, run), Field("scale", scales, group), Field("offset", f32, group)),
        group,
        lambda reader, place: read_code(reader, place, bits, run),
        scale=lambda reader, place: reader.word("scale", place // group),
        offset=lambda reader, place: reader.word("offset", place // group),
        least=0,
        most=most,
        encode=encode,
    )


WHOLE_RUN = 32
"""Codes whose bytes lie together where a whole channel is one group."""


def grouped_name(bits: int, group: int | None, zero_points: bool = False, scales: DType = f16) -> str:
    """`int4.g32`, `uint4.g128.f32` with zero points, `int4.channel.f32`: f16 scales go without saying."""
    words = [f"{'u' if zero_points else ''}int{bits}", f"g{group}" if group else "channel", *([] if scales == f16 else [str(scales)])]
    return ".".join(words)


def offset_name(bits: int, group: int, scales: DType = f16) -> str:
    """`uint4.g32.f32.offset`."""
    return f"{grouped_name(bits, group, True, scales)}.offset"


_GROUPED = re.compile(r"(u?)int([2-6])\.(?:g([0-9]{1,6})|channel)(?:\.(f32|bf16))?")
_WITH_OFFSETS = re.compile(r"uint([2-68])\.g([0-9]{1,6})(?:\.(f32|bf16))?\.offset")


def parse_grouped(name: str) -> Format | None:
    """The format that `grouped_name` or `offset_name` names: of any group that eight divides."""
    offsets = _WITH_OFFSETS.fullmatch(name)
    if offsets is not None and int(offsets[2]) and int(offsets[2]) % 8 == 0:
        return with_offsets(int(offsets[1]), int(offsets[2]), DTYPES[offsets[3] or "f16"])
    match = _GROUPED.fullmatch(name)
    if match is None or (match[3] is not None and (int(match[3]) % 8 or not int(match[3]))):
        return None
    return grouped(int(match[2]), int(match[3]) if match[3] else None, bool(match[1]), DTYPES[match[4] or "f16"])


def whole_bytes(name: str, doc: str, *, signed: bool, rows: int | None = 1, group: int | None = None) -> Format:
    """Bytes with f32 scales for the tensor (`rows` None), for each channel, or for groups; unsigned ones have zero points."""
    dtype = i8 if signed else u8
    zeros = () if signed else (Field("zero", u8, group, 1, rows),)
    fields = (Field("codes", dtype, 1), Field("scale", f32, group, 1, rows), *zeros)

    def encode(x: Tensor) -> Mapping[str, Tensor]:
        parts = x.reshape(*x.shape[:-1], -1, group or x.shape[-1])
        over = (-1,) if rows == 1 else (-3, -1)
        if signed:
            scale = in_range(np.abs(parts).max(over, keepdims=True, initial=0) / np.float32(127), f32)
            codes = np.clip(np.rint(divided(parts, scale)), -127, 127)
            middles = np.zeros_like(scale)
        else:
            scale, middles = _ranged(parts, over, 255, f32)
            codes = np.clip(np.rint(divided(parts, scale)) + middles, 0, 255)
        found = {"codes": codes.reshape(x.shape).astype(dtype.numpy), "scale": scale[..., 0]}
        return found if signed else {**found, "zero": middles[..., 0].astype(np.uint8)}

    return Format(
        name,
        doc,
        fields,
        group or 1,
        lambda reader, place: reader.word("codes", place),
        scale=lambda reader, place: reader.word("scale", block_of(place, group)),
        zero=0 if signed else _zero_point(group),
        least=-128 if signed else 0,
        most=127 if signed else 255,
        encode=encode,
    )


def _zero_point(group: int | None) -> Part:
    return lambda reader, place: scalar.cast(reader.word("zero", block_of(place, group)), i32)


def _ranged(parts: Tensor, over: tuple[int, ...], most: int, scales: DType) -> tuple[Tensor, Tensor]:
    """Scales and zero points of codes from 0 to `most`, by the range of the numbers, which includes zero."""
    low = parts.min(over, keepdims=True, initial=0)
    scale = in_range((parts.max(over, keepdims=True, initial=0) - low) / np.float32(most), scales)
    return scale, np.clip(np.rint(np.float32(0) - divided(low, scale)), 0, most)


def in_range(scale: Tensor, dtype: DType) -> Tensor:
    """Scales as their type holds them, f32; one that it holds with less than four bits becomes 0, and what it scales becomes 0.

    VerifyError where one is too large, or all of them are too small.
    """
    rounded = scalar.convert(scale.astype(np.float32), dtype).astype(np.float32)
    if not np.isfinite(rounded).all():
        raise VerifyError(f"a scale of {np.abs(scale).max():.3g} is beyond {dtype}")
    least = 2.0**-20 if dtype == f16 else np.finfo(np.float32).tiny
    kept = np.where(np.abs(rounded) < least, np.float32(0), rounded)
    if np.any(scale) and not kept.any():
        raise VerifyError(f"the largest scale is {np.abs(scale).max():.3g}, which {dtype} does not hold")
    return kept


def divided(x: Tensor, scale: Tensor) -> Tensor:
    """x / scale, 0 where the scale is 0."""
    return np.divide(x, scale, out=np.zeros(np.broadcast_shapes(x.shape, scale.shape), np.float32), where=scale != 0)


FORMATS = (
    whole_bytes("int8.tensor", "bytes with one f32 scale", signed=True, rows=None),
    whole_bytes("int8", "bytes with an f32 scale for each channel", signed=True),
    whole_bytes("int8.g32", "bytes with f32 scales for groups of 32", signed=True, group=32),
    whole_bytes("int8.g128", "bytes with f32 scales for groups of 128", signed=True, group=128),
    whole_bytes("uint8.tensor", "unsigned bytes with one f32 scale and zero point", signed=False, rows=None),
    whole_bytes("uint8", "unsigned bytes with an f32 scale and a zero point for each channel", signed=False),
    whole_bytes("uint8.g128", "unsigned bytes with f32 scales and zero points for groups of 128", signed=False, group=128),
    *(grouped(4, group, zero_points) for group in (32, 64, 128) for zero_points in (False, True)),
    *(grouped(bits, group, zero_points) for bits in (2, 3) for group in (32, 64) for zero_points in (False, True)),
    *(with_offsets(bits, 32, f32) for bits in (2, 4, 8)),
)
