"""Numbers in a declared format: `decode` gives the tensor that the arrays of a format code (ir/formats)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import dims, scalar
from ..dims import Dim
from ..errors import VerifyError
from ..formats import FORMATS, Format, format_of
from ..formats.format import channel_of
from ..scalar import Traced
from ..types import DType, TensorType, bf16, f16, f32
from .sampling import array, draw, refused
from .structure import RegionBuilder
from .table import Sample, axis_of, structured

Tensor = np.ndarray[Any, Any]


@structured()
def decode(*fields: Tensor, format: str, axis: int, dtype: DType = f32) -> Tensor:
    """The tensor whose numbers along `axis` are coded in a format, computed in f32; `fields` are the format's arrays in their order.

    Fields that some rows share are shared along the last axis but `axis`.
    """
    known = format_of(format)
    value = known.decoded({field.name: each for field, each in zip(known.fields, fields, strict=True)}, axis)
    return scalar.convert(value, dtype)


@decode.infers
def _(*fields: TensorType, format: str, axis: int, dtype: DType) -> TensorType:
    if dtype not in (f32, f16, bf16):
        raise VerifyError(f"decode: got dtype {dtype}, expected f32, f16 or bf16")
    axis = axis_of("decode", axis, fields[0].rank if fields else 0)
    try:
        return TensorType(dtype, format_of(format).dense(fields, axis))
    except VerifyError as error:
        raise VerifyError(f"decode: {error.message}") from error


@dataclass(frozen=True)
class _Operands:
    """The fields of a format as a region's operands, at one element of the dense tensor."""

    builder: RegionBuilder
    format: Format
    element: Sequence[Dim]
    axis: int

    def word(self, field: str, place: Any) -> Traced:
        number = self.format.number_of(field)
        rows = self.format.fields[number].rows
        subscripts = list(self.element)
        subscripts[self.axis] = place
        channel = channel_of(len(subscripts), self.axis)
        if channel is not None and rows != 1:
            subscripts[channel] = 0 if rows is None else subscripts[channel] // rows
        loaded = self.builder.load(number, subscripts, compute=False)
        return scalar.cast(loaded, f32) if loaded.dtype.is_float else loaded

    def number(self, place: Any, dtype: DType) -> Traced:
        return self.builder.index(place, dtype)


@decode.region
def _(r: RegionBuilder, *fields: TensorType, format: str, axis: int, dtype: DType) -> None:
    axis %= fields[0].rank
    axes = r.grid(r.outputs[0].type.shape)
    known = format_of(format)
    value = known.decode(_Operands(r, known, axes, axis), axes[axis])
    r.store(0, axes, value if dtype == f32 else scalar.rounded(value, dtype))


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
    codes, scale = (turned[field.name] for field in four.fields)
    yield refused((codes, scale), "number format 'int5' is not known", format="int5", axis=0)
    yield refused((codes,), "int4.g32: got 1 fields, expected 2: codes, scale", format="int4.g32", axis=0)
    yield refused((codes, array(1.0)), "int4.g32: got scale f32[1], expected f16[2, 3]", format="int4.g32", axis=0)


def _drawn(kind: TensorType) -> Tensor:
    shape = [dims.number(size) for size in kind.shape]
    return draw(*shape, dtype=kind.dtype, low=0.01, high=2.0) if kind.dtype.is_float else draw(*shape, dtype=kind.dtype, low=-128, high=255)
