"""How keys and values of tokens that were read are kept: what `--cache` names, and how rows are written and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ...ir import dims
from ...ir.formats import Format, format_of
from ...ir.graph import Builder, Value
from ...ir.types import DType, TensorType, bf16, f16, f32
from ...passes.quantize.rows import row_scales
from ..importers import moves


@dataclass(frozen=True)
class CacheFormat:
    """Numbers in `dtype`, or coded in a `format` that has one scale for all numbers of a row: a token's in one head."""

    dtype: DType = f32
    format: str | None = None

    def parts(self, size: int) -> dict[str, tuple[DType, int]]:
        """What is kept for a row of so many numbers: the dtype and the count of each part, by what its name ends in."""
        if self.format is None:
            return {"": (self.dtype, size)}
        found = self._format
        return {
            f".{field.name}": (field.dtype, dims.number(type.shape[1]))
            for field, type in zip(found.fields, found.types((1, size), 1), strict=True)
        }

    def row_bytes(self, size: int) -> int:
        """The bytes of a row of so many numbers."""
        return sum(dims.number(TensorType(dtype, (count,)).nbytes) for dtype, count in self.parts(size).values())

    def encoded(self, b: Builder, x: Value) -> list[Value]:
        """The parts of the rows of x f32[.., D], each [.., count]: rounded here."""
        if self.format is None:
            return [moves.cast(b, x, self.dtype)]
        scale = row_scales(b, x, self._format.most, keepdims=True)
        return [b.quantize(x, scale, axis=x.type.rank - 1, block=dims.number(x.shape[-1]), dtype=self._format.fields[0].dtype), scale]

    def decoded(self, b: Builder, parts: Sequence[Value]) -> Value:
        """The rows f32[.., D] of their parts."""
        if self.format is None:
            return moves.cast(b, parts[0], f32)
        result: Value = b.decode(*parts, format=self.format, axis=parts[0].type.rank - 1, dtype=f32)
        return result

    @property
    def _format(self) -> Format:
        assert self.format is not None
        return format_of(self.format)


CACHES: Mapping[str, CacheFormat] = MappingProxyType(
    {
        "f32": CacheFormat(),
        "bf16": CacheFormat(bf16),
        "f16": CacheFormat(f16),
        "int8": CacheFormat(format="int8"),
        "fp8": CacheFormat(format="fp8.e4m3"),
    }
)
"""What a cache may be, by name; a format whose fields are codes and one scale for a row is a row more."""
