"""Number formats: every code of 8 bits and less against another definition of it, rounding, axes, refusals, GGML's own package."""

from __future__ import annotations

import warnings
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from ourcc.ir import dims, formats
from ourcc.ir.errors import VerifyError
from ourcc.ir.formats import Format, format_of, ggml
from ourcc.ir.formats.affine import PLANES, pack_codes, read_code
from ourcc.ir.formats.format import Field, packed

from .shown import FIVE

FORMATS = {**formats.FORMATS, FIVE.name: FIVE}
"""The table, and the format that contributors are shown."""
MADE = [name for name, format in FORMATS.items() if format.encode is not None]


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def length(format: Format) -> int:
    return 2 * format.group if format.group > 1 else 96


class Words:
    """Arrays to read codes from."""

    def __init__(self, fields: dict[str, np.ndarray]) -> None:
        self.fields = fields

    def word(self, field: str, place: np.ndarray) -> np.ndarray:
        return self.fields[field][place]

    def number(self, place: np.ndarray, dtype: object) -> np.ndarray:
        return np.asarray(place).astype(dtype.numpy)  # type: ignore[attr-defined]


@pytest.mark.parametrize("bits", sorted(PLANES))
@pytest.mark.parametrize("run", [8, 16, 32])
def test_every_code_is_packed_and_read(bits: int, run: int) -> None:
    codes = np.resize(np.arange(1 << bits, dtype=np.uint8), max(256, 2 * run))
    fields = pack_codes(codes, bits, run)
    assert sum(array.nbytes for array in fields.values()) * 8 == codes.size * bits
    read = read_code(Words(fields), np.arange(codes.size), bits, run)
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, codes)


SMALL = {
    "mxfp4": (ml_dtypes.float4_e2m1fn, 4),
    "nvfp4": (ml_dtypes.float4_e2m1fn, 4),
    "mxfp6.e2m3": (ml_dtypes.float6_e2m3fn, 6),
    "mxfp6.e3m2": (ml_dtypes.float6_e3m2fn, 6),
    "mxfp8.e4m3": (ml_dtypes.float8_e4m3fn, 8),
    "mxfp8.e5m2": (ml_dtypes.float8_e5m2, 8),
    "fp8.e4m3": (ml_dtypes.float8_e4m3fn, 8),
    "fp8.e5m2": (ml_dtypes.float8_e5m2, 8),
}


@pytest.mark.parametrize("name", SMALL)
def test_every_code_of_a_small_float_is_its_number(name: str) -> None:
    format, (kind, bits) = FORMATS[name], SMALL[name]
    codes = np.arange(256, dtype=np.uint8) & ((1 << bits) - 1)
    fields = {"codes": codes.view(kind)} if bits == 8 else pack_codes(codes, bits, min(format.group, 32))
    for field in format.fields:
        if field.name not in fields:
            count = 1 if field.per is None else 256 // field.per
            fields[field.name] = np.ones(count, field.dtype.numpy)
    np.testing.assert_array_equal(
        format.decoded({name: array[None] for name, array in fields.items()})[0], codes.view(kind).astype(np.float32)
    )


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith(("int", "uint"))])
def test_every_code_of_an_integer_is_its_number(name: str) -> None:
    format = FORMATS[name]
    fields = format.encoded(random(1, max(256, 2 * format.group)))
    plain = {"scale": np.ones_like, "offset": np.zeros_like}
    scale = {field: plain[field](array) for field, array in fields.items() if field in plain}
    numbers = format.decoded({**fields, **scale})
    assert set(np.unique(numbers)) <= set(range(-256, 256))
    if "zero" in fields:
        moved = format.decoded({**fields, **scale, "zero": np.zeros_like(fields["zero"])})
        spread = np.repeat(fields["zero"].astype(np.float32), numbers.shape[1] // fields["zero"].shape[1], axis=1)
        np.testing.assert_array_equal(numbers, moved - spread)


@pytest.mark.parametrize("name", MADE)
def test_what_is_decoded_is_coded_as_it_was(name: str) -> None:
    format = FORMATS[name]
    x = random(130, length(format))
    once = format.decoded(format.encoded(x))
    again = format.decoded(format.encoded(once))
    # Scales are rounded themselves: the second time they may be an ulp of f16 apart.
    np.testing.assert_allclose(again, once, rtol=2e-3, atol=1e-6)
    assert np.corrcoef(x.ravel(), once.ravel())[0, 1] > 0.9


@pytest.mark.parametrize("name", MADE)
def test_the_error_is_half_a_step(name: str) -> None:
    """No number is farther from its code than half the distance of codes there; beyond the last code of a range, a whole one."""
    format = FORMATS[name]
    x = random(7, length(format), seed=1)
    fields = format.encoded(x)
    error = np.abs(format.decoded(fields) - x)
    if format.mantissa is not None:
        # A float's step grows with it, by the digits it has; the shared scale's own rounding may cut off the largest.
        assert (error <= np.maximum(np.abs(x), np.abs(x).max() * 0.1) * 2.0**-format.mantissa).all()
        return
    ones = replace(format, code=lambda reader, place: np.ones(place.shape, np.int8), zero=0, offset=None)
    steps, codes = np.abs(ones.decoded(fields)), replace(format, scale=None, zero=0, offset=None).decoded(fields)
    is_last = (codes == format.least) | (codes == format.most)
    assert (error <= steps * np.where(is_last, 1.02, 0.52)).all()
    assert np.mean(error <= steps * 0.51) > 0.9


@pytest.mark.parametrize("name", MADE)
def test_any_axis_is_coded_alike(name: str) -> None:
    format = FORMATS[name]
    x = random(5, length(format))
    for axis, turned in ((0, x.T), (1, x), (-1, x)):
        fields = format.encoded(np.ascontiguousarray(turned), axis)
        np.testing.assert_array_equal(np.moveaxis(format.decoded(fields, axis), axis, -1), format.decoded(format.encoded(x)))
    deep = np.stack([x, 2 * x])
    if format.fields[-1].rows == 1:
        np.testing.assert_array_equal(format.decoded(format.encoded(deep))[1], format.decoded(format.encoded(2 * x)))


@pytest.mark.parametrize("name", MADE)
def test_zeros_stay_zeros(name: str) -> None:
    format = FORMATS[name]
    zeros = np.zeros((3, length(format)), np.float32)
    np.testing.assert_array_equal(format.decoded(format.encoded(zeros)), zeros)


HOSTILE = (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e6, -1e6)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("where", ["one", "row", "all"])
def test_what_no_scale_holds_is_refused_or_held(name: str, hostile: float, where: str) -> None:
    format = FORMATS[name]
    x = random(3, length(format))
    x[{"one": (1, 1), "row": 1, "all": ...}[where]] = hostile
    try:
        found = format.decoded(format.encoded(x))
    except VerifyError as error:
        assert "is beyond" in error.message or "not finite" in error.message
        return
    assert np.isfinite(hostile) and np.isfinite(found).all()
    np.testing.assert_allclose(found[x == x.dtype.type(hostile)], hostile, rtol=0.3)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e-9, 1e-7, 1e4, 1e30])
def test_numbers_of_any_size_are_held_or_refused(name: str, size: float) -> None:
    """What is coded is not silently all zeros or infinite."""
    format = FORMATS[name]
    x = random(3, length(format)) * np.float32(size)
    try:
        found = format.decoded(format.encoded(x))
    except VerifyError as error:
        assert "is beyond" in error.message or "does not hold" in error.message
        return
    assert np.isfinite(found).all()
    assert np.corrcoef((x / size).ravel(), (found / size).ravel())[0, 1] > 0.85


@pytest.mark.parametrize("name", [name for name, format in FORMATS.items() if format.group > 1])
def test_sizes_that_no_group_divides_are_refused(name: str) -> None:
    format = FORMATS[name]
    with pytest.raises(VerifyError, match=f"is no multiple of {format.group}"):
        format.types((4, format.group + 1), 1)
    with pytest.raises(VerifyError, match="is no multiple"):
        format.types((dims.symbol("K"), 3), 0)


def test_names() -> None:
    assert format_of("mxfp4") is FORMATS["mxfp4"] and format_of("five") is FIVE
    with pytest.raises(VerifyError, match="number format 'mxfp5' is not known, expected one of int8"):
        format_of("mxfp5")
    with pytest.raises(VerifyError, match="q4_k: numbers of this format are read, not made"):
        FORMATS["q4_k"].encoded(random(1, 256))


@pytest.mark.parametrize("name", FORMATS)
def test_fields_say_what_a_number_takes(name: str) -> None:
    format = FORMATS[name]
    rows, count = 256, 32 * max(32, format.group)
    stored = sum(int(str(kind.nbytes)) for kind in format.types((rows, count), 1))
    assert stored * 8 / (rows * count) == pytest.approx(format.bits, rel=0.01)
    assert format.doc and format.least < format.most
    assert all(isinstance(field, Field) for field in format.fields)


# --- GGML -----------------------------------------------------------------------------------------------------------------


GGML = {format.name: format for format in ggml.FORMATS}


@pytest.mark.parametrize("name", GGML)
def test_ggml_blocks_are_what_its_package_says(name: str) -> None:
    """Random bytes as records, every bit of every number."""
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
    kind = getattr(gguf.GGMLQuantizationType, name.removeprefix("ggml_").upper())
    format = GGML[name]
    block, size = gguf.constants.GGML_QUANT_SIZES[kind]
    assert block == format.group
    records = np.random.default_rng(3).integers(0, 256, (500, 2 * size), dtype=np.uint8)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = gguf.quants.dequantize(records, kind).astype(np.float32)
        found = format.decoded(ggml.split(format, records))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(ggml.joined(format, ggml.split(format, records)), records)


@pytest.mark.parametrize("name", [name for name in GGML if FORMATS[name].encode is not None])
def test_ggml_blocks_made_here_are_as_near_as_its_own(name: str) -> None:
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
    kind = getattr(gguf.GGMLQuantizationType, name.upper())
    x = random(64, 256, seed=4)
    theirs = gguf.quants.dequantize(gguf.quants.quantize(x, kind), kind)
    ours = GGML[name].decoded(GGML[name].encoded(x))
    assert np.square(ours - x).mean() <= 1.01 * np.square(theirs - x).mean()


def test_records_of_other_sizes_are_refused() -> None:
    with pytest.raises(VerifyError, match="q4_0: a row of 17 bytes, expected whole records of 18"):
        ggml.split(GGML["q4_0"], np.zeros((2, 17), np.uint8))


def test_packed_bytes_hold_neighbours_side_by_side() -> None:
    codes = np.arange(32, dtype=np.uint8) % 16
    np.testing.assert_array_equal(packed(codes, 4, 32), codes[:16] | codes[16:] << 4)


@pytest.mark.parametrize("name", ["int4.g32", "int2.g64", "int3.g32", "q8_0"])
def test_numbers_that_no_scale_holds_are_refused(name: str) -> None:
    """All of them would become zeros; a channel of them among larger ones may."""
    x = random(4, 64)
    with pytest.raises(VerifyError, match=r"the largest scale is .*, which f16 does not hold"):
        FORMATS[name].encoded(x * np.float32(1e-7))
    small = FORMATS[name].encoded(x * np.float32(3e-4))
    error = np.abs(FORMATS[name].decoded(small) - x * np.float32(3e-4)).max()
    assert error < 0.6 * np.abs(x).max() * 3e-4
    x[1:] *= np.float32(1e-9)
    assert not FORMATS[name].decoded(FORMATS[name].encoded(x))[1:].any()
