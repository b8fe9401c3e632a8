"""Small floats: 8 bits with f32 scales, the OCP microscaling formats (MX, v1.0), and NVFP4 with its two levels of scales."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from .. import scalar
from ..scalar import Array
from ..types import DType, f8e4m3, f8e5m2, f8e8m0, f32, i32
from .affine import code_fields, divided, in_range, pack_codes, read_code
from .format import Field, Format, Place, Reader, Tensor, block_of

MX_BLOCK, NV_BLOCK, DEEP_BLOCK = 32, 16, 128
NV_TENSOR = "tensor_scale"


def _largest(dtype: DType) -> float:
    return float(ml_dtypes.finfo(dtype.numpy).max)


def _saturated(x: Tensor, dtype: DType) -> Tensor:
    return np.clip(x, -_largest(dtype), _largest(dtype)).astype(dtype.numpy)


def scaled_bytes(name: str, doc: str, dtype: DType, *, rows: int | None = 1, group: int | None = None) -> Format:
    """Floats of 8 bits with f32 scales: for the tensor, for each row, or for blocks of rows x group."""

    def encode(x: Tensor) -> Mapping[str, Tensor]:
        row, column = rows or x.shape[-2], group or x.shape[-1]
        padded = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, -x.shape[-2] % row), (0, 0)])
        parts = padded.reshape(*x.shape[:-2], -1, row, x.shape[-1] // column, column)
        scale = in_range(np.abs(parts).max((-3, -1), keepdims=True, initial=0) / np.float32(_largest(dtype)), f32)
        codes = _saturated(divided(parts, scale), dtype).reshape(padded.shape)
        return {"codes": codes[..., : x.shape[-2], :], "scale": scale[..., 0, :, 0]}

    return Format(
        name,
        doc,
        (Field("codes", dtype, 1), Field("scale", f32, group, 1, rows)),
        group or 1,
        lambda reader, place: reader.word("codes", place),
        scale=lambda reader, place: reader.word("scale", block_of(place, group)),
        least=-_largest(dtype),
        most=_largest(dtype),
        encode=encode,
        mantissa=ml_dtypes.finfo(dtype.numpy).nmant,
    )


def small_float(code: Array, exponent: int, mantissa: int) -> Array:
    """A sign, exponent and mantissa as an i32 in units of the least number; the formats have neither infinities nor NaN."""
    number = scalar.cast(code, i32)
    digits = scalar.bit_and(number, (1 << mantissa) - 1)
    power = scalar.bit_and(scalar.shift_right(number, mantissa), (1 << exponent) - 1)
    normal = scalar.shift_left(scalar.add(digits, 1 << mantissa), scalar.sub(power, 1))
    size = scalar.where(scalar.eq(power, 0), digits, normal)
    return scalar.where(scalar.eq(scalar.bit_and(number, 1 << (exponent + mantissa)), 0), size, scalar.neg(size))


def _power_of_two(x: Tensor, greatest: int) -> Tensor:
    """MX's shared scale of a block: the power of two that brings the largest number into the element's last binade."""
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log2(np.abs(x).max(-1, keepdims=True, initial=0).astype(np.float64))) - greatest
    held: Tensor = np.exp2(np.clip(np.where(np.isfinite(exponent), exponent, 0), -126, 127)).astype(np.float32)
    return held


def microscaled(bits: int, exponent: int, mantissa: int) -> Format:
    """MXFP8, MXFP6 or MXFP4: blocks of 32 small floats with a power of two as their scale."""
    name = f"e{exponent}m{mantissa}"
    numpy = {"e4m3": f8e4m3.numpy, "e5m2": f8e5m2.numpy}.get(name) or np.dtype(getattr(ml_dtypes, f"float{bits}_{name}fn"))
    greatest = int(np.floor(np.log2(float(ml_dtypes.finfo(numpy).max))))
    # The least number is 2^(1 - bias - mantissa), with the bias 2^(exponent - 1) - 1.
    unit = 2.0 ** (2 - (1 << (exponent - 1)) - mantissa)
    whole = bits == 8
    dtype = f8e4m3 if name == "e4m3" else f8e5m2

    def code(reader: Reader, place: Place) -> Array:
        return reader.word("codes", place) if whole else small_float(read_code(reader, place, bits, MX_BLOCK), exponent, mantissa)

    def scale(reader: Reader, place: Place) -> Array:
        found = reader.word("scale", place // MX_BLOCK)
        return found if whole else scalar.mul(found, unit)

    def encode(x: Tensor) -> Mapping[str, Tensor]:
        parts = x.reshape(*x.shape[:-1], -1, MX_BLOCK)
        shared = _power_of_two(parts, greatest)
        limit = float(ml_dtypes.finfo(numpy).max)
        codes = np.clip(parts / shared, -limit, limit).astype(numpy).reshape(x.shape)
        held = {"scale": shared[..., 0].astype(f8e8m0.numpy)}
        return {"codes": codes, **held} if whole else {**pack_codes(codes.view(np.uint8) & ((1 << bits) - 1), bits, MX_BLOCK), **held}

    largest = float(ml_dtypes.finfo(numpy).max) / (1 if whole else unit)
    return Format(
        {8: f"mxfp8.{name}", 6: f"mxfp6.{name}", 4: "mxfp4"}[bits],
        f"OCP microscaling: blocks of {MX_BLOCK} {name} with a power of two",
        (*((Field("codes", dtype, 1),) if whole else code_fields(bits, MX_BLOCK)), Field("scale", f8e8m0, MX_BLOCK)),
        MX_BLOCK,
        code,
        scale=scale,
        least=-largest,
        most=largest,
        encode=encode,
        mantissa=mantissa,
    )


def nvfp4() -> Format:
    """NVFP4: blocks of 16 e2m1 with an e4m3 scale, and one f32 scale for the tensor."""
    numpy, unit = np.dtype(ml_dtypes.float4_e2m1fn), 0.5

    def scale(reader: Reader, place: Place) -> Array:
        both = scalar.mul(reader.word("scale", place // NV_BLOCK), reader.word(NV_TENSOR, block_of(place, None)))
        return scalar.mul(both, unit)

    def encode(x: Tensor) -> Mapping[str, Tensor]:
        parts = x.reshape(*x.shape[:-1], -1, NV_BLOCK)
        whole = in_range(np.asarray(np.abs(x).max(initial=0) / np.float32(6 * _largest(f8e4m3))), f32)
        block = np.abs(parts).max(-1, keepdims=True) / np.float32(6)
        held = _saturated(divided(block, whole), f8e4m3)
        both = held.astype(np.float32) * whole
        codes = np.clip(divided(parts, both), -6, 6).astype(numpy)
        return {
            **pack_codes(codes.reshape(x.shape).view(np.uint8) & 15, 4, NV_BLOCK),
            "scale": held[..., 0],
            NV_TENSOR: np.full((*x.shape[:-2], 1, 1), whole, np.float32),
        }

    return Format(
        "nvfp4",
        "NVIDIA's blocks of 16 e2m1 with e4m3 scales and one f32 scale",
        (*code_fields(4, NV_BLOCK), Field("scale", f8e4m3, NV_BLOCK), Field(NV_TENSOR, f32, None, 1, None)),
        NV_BLOCK,
        lambda reader, place: small_float(read_code(reader, place, 4, NV_BLOCK), 2, 1),
        scale=scale,
        least=-12,
        most=12,
        encode=encode,
        mantissa=1,
    )


FORMATS = (
    *(
        scaled_bytes(f"fp8.{name}{suffix}", f"{name} floats with {words}", dtype, rows=rows, group=group)
        for name, dtype in (("e4m3", f8e4m3), ("e5m2", f8e5m2))
        for suffix, words, rows, group in (
            (".tensor", "one f32 scale", None, None),
            ("", "an f32 scale for each row", 1, None),
            (".block", f"f32 scales for blocks of {DEEP_BLOCK} x {DEEP_BLOCK}", DEEP_BLOCK, DEEP_BLOCK),
        )
    ),
    *(microscaled(*sizes) for sizes in ((8, 4, 3), (8, 5, 2), (6, 2, 3), (6, 3, 2), (4, 2, 1))),
    nvfp4(),
)
