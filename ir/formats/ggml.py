"""The block formats of GGML, as GGUF files hold them: records of bytes, taken apart into fields and put together again.

A record holds 32 or 256 numbers of a row. Names and layouts are those of ggml's `ggml-common.h`; fields are in the order
in which a record holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from .. import scalar
from ..errors import VerifyError
from ..scalar import Array
from ..types import f16, f32, i8, i32, u8
from .affine import divided, in_range
from .floating import small_float
from .format import Field, Format, Part, Place, Reader, Tensor, looked_up, packed, plane

SHORT, LONG = 32, 256
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The numbers of IQ4_NL's codes."""


def split(format: Format, records: Tensor) -> dict[str, Tensor]:
    """The fields of rows of records: u8 of [..., bytes of a row] as the arrays of the format, the same bytes."""
    size = sum(field.words * field.dtype.itemsize for field in format.fields)
    if records.shape[-1] % size:
        raise VerifyError(f"{format.name}: a row of {records.shape[-1]} bytes, expected whole records of {size}")
    cut = records.reshape(*records.shape[:-1], -1, size)
    found, first = {}, 0
    for field in format.fields:
        part = np.ascontiguousarray(cut[..., first : first + field.words * field.dtype.itemsize])
        found[field.name] = part.view(field.dtype.numpy).reshape(*records.shape[:-1], -1)
        first += field.words * field.dtype.itemsize
    return found


def joined(format: Format, fields: Mapping[str, Tensor]) -> Tensor:
    """The records that `split` takes apart."""
    parts = []
    for field in format.fields:
        array = np.ascontiguousarray(fields[field.name])
        parts.append(array.reshape(*array.shape[:-1], -1, field.words).view(np.uint8))
    records: Tensor = np.concatenate(parts, axis=-1)
    return records.reshape(*records.shape[:-2], -1)


def _bits(value: Array, shift: Array | int, count: int) -> Array:
    return scalar.bit_and(scalar.shift_right(value, shift), (1 << count) - 1)


def _fifth(reader: Reader, place: Place) -> Array:
    """The highest bit of a 5-bit code of Q5_0 and Q5_1: bit n of four bytes belongs to number n."""
    byte = reader.word("qh", place // SHORT * 4 + place % SHORT // 8)
    return scalar.shift_left(_bits(byte, reader.number(place % 8, u8), 1), 4)


def _low(reader: Reader, place: Place) -> Array:
    return plane(reader, "qs", place, 4, SHORT)


def _five(reader: Reader, place: Place) -> Array:
    return scalar.bit_or(_low(reader, place), _fifth(reader, place))


def _at(field: str, length: int) -> Part:
    return lambda reader, place: reader.word(field, place // length)


def _short(name: str, code: Part, fields: tuple[Field, ...], bits: int, middle: int | None, encode: bool = True) -> Format:
    """Blocks of 32 with a scale `d`, and a least number `m` where the codes start from one."""
    return Format(
        name,
        f"GGML {name.upper()}: blocks of {SHORT}",
        fields,
        SHORT,
        code,
        scale=_at("d", SHORT),
        zero=middle or 0,
        offset=_at("m", SHORT) if middle is None else None,
        least=0,
        most=(1 << bits) - 1,
        encode=_encoder(bits, middle) if encode else None,
    )


def _encoder(bits: int, middle: int | None) -> Callable[[Tensor], Mapping[str, Tensor]]:
    """Rounding to the nearest code; the number of largest magnitude gets the code that has no counterpart."""

    def encode(x: Tensor) -> Mapping[str, Tensor]:
        parts = x.reshape(*x.shape[:-1], -1, SHORT)
        if middle is None:
            least = parts.min(-1, keepdims=True)
            scale = in_range((parts.max(-1, keepdims=True) - least) / np.float32((1 << bits) - 1), f16)
            held = {"m": least[..., 0].astype(f16.numpy)}
            codes = divided(parts - held["m"].astype(np.float32)[..., None], scale)
        else:
            extreme = np.take_along_axis(parts, np.abs(parts).argmax(-1, keepdims=True), -1)
            scale, held = in_range(-extreme / np.float32(middle), f16), {}
            codes = divided(parts, scale) + middle
        codes = np.clip(np.rint(codes), 0, (1 << bits) - 1).astype(np.uint8).reshape(x.shape)
        found = {"d": scale[..., 0].astype(f16.numpy), **held, "qs": packed(codes & 15, 4, SHORT)}
        high = np.packbits(codes.reshape(*codes.shape[:-1], -1, 8) >> 4 & 1, axis=-1, bitorder="little")
        return found if bits == 4 else {**found, "qh": high.reshape(*codes.shape[:-1], -1)}

    return encode


def _q8_0() -> Format:
    def encode(x: Tensor) -> Mapping[str, Tensor]:
        parts = x.reshape(*x.shape[:-1], -1, SHORT)
        scale = in_range(np.abs(parts).max(-1, keepdims=True) / np.float32(127), f16)
        codes = np.clip(np.rint(divided(parts, scale)), -127, 127).astype(np.int8)
        return {"d": scale[..., 0].astype(f16.numpy), "qs": codes.reshape(x.shape)}

    return Format(
        "q8_0",
        f"GGML Q8_0: blocks of {SHORT}",
        (Field("d", f16, SHORT), Field("qs", i8, SHORT, SHORT)),
        SHORT,
        lambda reader, place: reader.word("qs", place),
        scale=_at("d", SHORT),
        encode=encode,
    )


# --- blocks of 256 ------------------------------------------------------------------------------------------------------


def _two_bits(reader: Reader, place: Place) -> Array:
    """Codes of 2 bits: 32 bytes hold 128 numbers, each 32 of them two bits higher."""
    inner = place % LONG
    byte = reader.word("qs", place // LONG * 64 + inner // 128 * 32 + inner % 32)
    return _bits(byte, reader.number(inner % 128 // 32 * 2, u8), 2)


def _scales_of_16(reader: Reader, place: Place) -> Array:
    return reader.word("scales", place // 16)


def _float(value: Array) -> Array:
    return scalar.cast(scalar.cast(value, i32), f32)


def _q2_k() -> Format:
    def scale(reader: Reader, place: Place) -> Array:
        return scalar.mul(reader.word("d", place // LONG), _float(scalar.bit_and(_scales_of_16(reader, place), 15)))

    def offset(reader: Reader, place: Place) -> Array:
        return scalar.neg(scalar.mul(reader.word("dmin", place // LONG), _float(scalar.shift_right(_scales_of_16(reader, place), 4))))

    fields = (Field("scales", u8, LONG, 16), Field("qs", u8, LONG, 64), Field("d", f16, LONG), Field("dmin", f16, LONG))
    return Format("q2_k", _doc("Q2_K"), fields, LONG, _two_bits, scale=scale, offset=offset, least=0, most=3)


def _doc(name: str) -> str:
    return f"GGML {name}: blocks of {LONG}, scales of scales"


def _q3_k() -> Format:
    def code(reader: Reader, place: Place) -> Array:
        inner = place % LONG
        byte = reader.word("hmask", place // LONG * 32 + inner % 32)
        return scalar.bit_or(_two_bits(reader, place), scalar.shift_left(_bits(byte, reader.number(inner // 32, u8), 1), 2))

    def scale(reader: Reader, place: Place) -> Array:
        number, block = place % LONG // 16, place // LONG
        low = _bits(reader.word("scales", block * 12 + number % 8), reader.number(number // 8 * 4, u8), 4)
        high = _bits(reader.word("scales", block * 12 + 8 + number % 4), reader.number(number // 4 * 2, u8), 2)
        six = scalar.sub(scalar.cast(scalar.bit_or(low, scalar.shift_left(high, 4)), i32), 32)
        return scalar.mul(reader.word("d", block), scalar.cast(six, f32))

    fields = (Field("hmask", u8, LONG, 32), Field("qs", u8, LONG, 64), Field("scales", u8, LONG, 12), Field("d", f16, LONG))
    return Format("q3_k", _doc("Q3_K"), fields, LONG, code, scale=scale, zero=4, least=0, most=7)


def _six_bits(reader: Reader, place: Place, least: bool) -> Array:
    """The scale or the least number of 32 numbers of Q4_K and Q5_K, 6 bits: eight of each lie in twelve bytes.

    The first four of each are the low bits of a byte; of the others four bits lie in the last four bytes, two above the first.
    """
    number, first = place % LONG // 32, place // LONG * 12
    early = scalar.bit_and(reader.word("scales", first + number % 4 + (4 if least else 0)), 63)
    last = _bits(reader.word("scales", first + 8 + number % 4), 4 if least else 0, 4)
    above = scalar.shift_right(reader.word("scales", first + number % 4 + (4 if least else 0)), 6)
    late = scalar.bit_or(last, scalar.shift_left(above, 4))
    return scalar.where(scalar.lt(reader.number(number, i32), 4), early, late)


def _four_bits(reader: Reader, place: Place) -> Array:
    inner = place % LONG
    byte = reader.word("qs", place // LONG * 128 + inner // 64 * 32 + inner % 32)
    return _bits(byte, reader.number(inner % 64 // 32 * 4, u8), 4)


def _k_with_least(name: str, code: Part, high: tuple[Field, ...], bits: int) -> Format:
    def scale(reader: Reader, place: Place) -> Array:
        return scalar.mul(reader.word("d", place // LONG), _float(_six_bits(reader, place, False)))

    def offset(reader: Reader, place: Place) -> Array:
        return scalar.neg(scalar.mul(reader.word("dmin", place // LONG), _float(_six_bits(reader, place, True))))

    fields = (Field("d", f16, LONG), Field("dmin", f16, LONG), Field("scales", u8, LONG, 12), *high, Field("qs", u8, LONG, 128))
    return Format(name, _doc(name.upper()), fields, LONG, code, scale=scale, offset=offset, least=0, most=(1 << bits) - 1)


def _q5_k_code(reader: Reader, place: Place) -> Array:
    inner = place % LONG
    byte = reader.word("qh", place // LONG * 32 + inner % 32)
    return scalar.bit_or(_four_bits(reader, place), scalar.shift_left(_bits(byte, reader.number(inner // 32, u8), 1), 4))


def _q6_k() -> Format:
    def code(reader: Reader, place: Place) -> Array:
        block, inner = place // LONG, place % LONG
        part = inner % 128 // 32
        byte = reader.word("ql", block * 128 + inner // 128 * 64 + part % 2 * 32 + inner % 32)
        low = _bits(byte, reader.number(part // 2 * 4, u8), 4)
        byte = reader.word("qh", block * 64 + inner // 128 * 32 + inner % 32)
        return scalar.bit_or(low, scalar.shift_left(_bits(byte, reader.number(part * 2, u8), 2), 4))

    def scale(reader: Reader, place: Place) -> Array:
        return scalar.mul(reader.word("d", place // LONG), _float(_scales_of_16(reader, place)))

    fields = (Field("ql", u8, LONG, 128), Field("qh", u8, LONG, 64), Field("scales", i8, LONG, 16), Field("d", f16, LONG))
    return Format("q6_k", _doc("Q6_K"), fields, LONG, code, scale=scale, zero=32, least=0, most=63)


# --- other tables of numbers ------------------------------------------------------------------------------------------


def _iq4_nl() -> Format:
    return Format(
        "iq4_nl",
        f"GGML IQ4_NL: blocks of {SHORT}, codes that stand for sixteen uneven numbers",
        (Field("d", f16, SHORT), Field("qs", u8, SHORT, 16)),
        SHORT,
        lambda reader, place: looked_up(_low(reader, place), IQ4),
        scale=_at("d", SHORT),
        least=min(IQ4),
        most=max(IQ4),
    )


def _mxfp4() -> Format:
    """GGML's MXFP4: e2m1 in units of a half, and half of the power of two, which is a subnormal f32 for the least two."""

    def scale(reader: Reader, place: Place) -> Array:
        exponent = scalar.cast(reader.word("e", place // SHORT), i32)
        normal = scalar.shift_left(scalar.sub(exponent, 1), 23)
        small = scalar.shift_left(0x200000, exponent)
        return scalar.bitcast(scalar.where(scalar.lt(exponent, 2), small, normal), f32)

    return Format(
        "ggml_mxfp4",
        f"GGML MXFP4: blocks of {SHORT} e2m1 with a power of two",
        (Field("e", u8, SHORT), Field("qs", u8, SHORT, 16)),
        SHORT,
        lambda reader, place: small_float(_low(reader, place), 2, 1),
        scale=scale,
        least=-12,
        most=12,
    )


_D, _M, _QH, _QS = Field("d", f16, SHORT), Field("m", f16, SHORT), Field("qh", u8, SHORT, 4), Field("qs", u8, SHORT, 16)

FORMATS = (
    _short("q4_0", _low, (_D, _QS), 4, 8),
    _short("q4_1", _low, (_D, _M, _QS), 4, None),
    _short("q5_0", _five, (_D, _QH, _QS), 5, 16),
    _short("q5_1", _five, (_D, _M, _QH, _QS), 5, None),
    _q8_0(),
    _q2_k(),
    _q3_k(),
    _k_with_least("q4_k", _four_bits, (), 4),
    _k_with_least("q5_k", _q5_k_code, (Field("qh", u8, LONG, 32),), 5),
    _q6_k(),
    _iq4_nl(),
    _mxfp4(),
)
