"""Numbers in a declared format: `decode` gives the tensor that the arrays of a format code (ir/formats)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import dims, scalar
from ..dims import Dim
from ..errors import VerifyError
from ..formats import FORMATS, Format, format_of, sparse_name
from ..formats.format import channel_of
from ..scalar import Traced
from ..types import DType, TensorType, bf16, f16, f32, i8, u8
from .sampling import array, draw, refused
from .structure import RegionBuilder
from .table import Sample, axis_of, structured

Tensor = np.ndarray[Any, Any]


@structured()
def decode(*fields: Tensor, format: str, axis: int, dtype: DType = f32) -> Tensor:
    """The tensor whose numbers along `axis` are coded in a format, computed in f32; `fields` are the format's arrays in their order.

    Fields that some rows share are shared along the last axis but `axis`. `2:4.NAME` is the format of that name (or dtype) with
    two of every four numbers kept; the others are 0.
    """
    known = format_of(format)
    value = known.decoded({field.name: each for field, each in zip(known.fields, fields, strict=True)}, axis)
    return scalar.convert(value, dtype)


@decode.infers
def _(*fields: TensorType, format: str, axis: int, dtype: DType) -> TensorType:
    axis = axis_of("decode", axis, fields[0].rank if fields else 0)
    try:
        known = format_of(format)
        allowed = (f32, f16, bf16) if known.plain is None else (known.plain,)
        if dtype not in allowed:
            raise VerifyError(f"{format}: got dtype {dtype}, expected {' or '.join(each.name for each in allowed)}")
        return TensorType(dtype, known.dense(fields, axis))
    except VerifyError as error:
        raise VerifyError(f"decode: {error.message}") from error


@dataclass(frozen=True)
class _Operands:
    """The fields of a format as a region's operands, at one element of the dense tensor."""

    builder: RegionBuilder
    format: Format
    element: Sequence[Dim]
    axis: int

    def word(self, field: str, place: Any, own: bool = False) -> Traced:
        number = self.format.number_of(field)
        rows = self.format.fields[number].rows
        subscripts = list(self.element)
        subscripts[self.axis] = place
        channel = channel_of(len(subscripts), self.axis)
        if channel is not None and rows != 1:
            subscripts[channel] = 0 if rows is None else subscripts[channel] // rows
        loaded = self.builder.load(number, subscripts, compute=False)
        return scalar.cast(loaded, f32) if loaded.dtype.is_float and not own else loaded

    def number(self, place: Any, dtype: DType) -> Traced:
        return self.builder.index(place, dtype)


@decode.region
def _(r: RegionBuilder, *fields: TensorType, format: str, axis: int, dtype: DType) -> None:
    axis %= fields[0].rank
    axes = r.grid(r.outputs[0].type.shape)
    known = format_of(format)
    value = known.decode(_Operands(r, known, axes, axis), axes[axis])
    r.store(0, axes, value if value.dtype == dtype else scalar.rounded(value, dtype))


@decode.samples
def _() -> Iterator[Sample]:
    for known in FORMATS.values():
        length = max(2 * known.group, 8)
        # Bytes of any value are codes; scales are drawn, so that no sample overflows.
        shapes = known.types((5, length), 1)
        fields = tuple(_drawn(kind) for kind in shapes)
        yield Sample(fields, {"format": known.name, "axis": 1})
    four = FORMATS["int4.g32"]
    turned = four.encoded(draw(64, 3), axis=0)
    yield Sample(tuple(turned[field.name] for field in four.fields), {"format": four.name, "axis": 0, "dtype": bf16})
    deep = four.encoded(draw(2, 3, 32))
    yield Sample(tuple(deep[field.name] for field in four.fields), {"format": four.name, "axis": -1, "dtype": f16})
    for kept, shape, axis, dtype in (
        ("f32", (3, 16), 1, f32),
        ("f32", (20, 3), -2, f32),
        ("bf16", (2, 3, 8), 2, bf16),
        ("i8", (16, 3), 0, i8),
        ("int8", (5, 16), 1, f16),
        ("uint4.g32", (64, 3), 0, f32),
        ("mxfp4", (3, 128), 1, bf16),
        ("q4_1", (3, 64), -1, f32),
    ):
        name = sparse_name(kept)
        yield Sample(tuple(_drawn(kind) for kind in format_of(name).types(shape, axis)), {"format": name, "axis": axis, "dtype": dtype})
    yield refused((draw(3, 8), draw(3, 2, dtype=u8)), "2:4.f32: got dtype f16, expected f32", format="2:4.f32", axis=1, dtype=f16)
    yield refused((draw(3, 8), draw(3, 4, dtype=u8)), "2:4.f32: got places u8[3, 4], expected u8[3, 2]", format="2:4.f32", axis=1)
    yield refused((draw(3, 7), draw(3, 2, dtype=u8)), "size 14 along axis 1 of [3, 14] is no multiple of 4", format="2:4.f32", axis=1)
    codes, scale = (turned[field.name] for field in four.fields)
    yield refused((codes, scale), "number format 'int5' is not known", format="int5", axis=0)
    yield refused((codes,), "int4.g32: got 1 fields, expected 2: codes, scale", format="int4.g32", axis=0)
    yield refused((codes, array(1.0)), "int4.g32: got scale f32[1], expected f16[2, 3]", format="int4.g32", axis=0)


def _drawn(kind: TensorType) -> Tensor:
    shape = [dims.number(size) for size in kind.shape]
    return draw(*shape, dtype=kind.dtype, low=0.01, high=2.0) if kind.dtype.is_float else draw(*shape, dtype=kind.dtype, low=-128, high=255)
