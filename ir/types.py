"""Element types and tensor types: every dtype that ONNX has, each with its bits, kind and numpy form."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import dims
from .dims import Dim
from .errors import ParseError


@dataclass(frozen=True)
class DType:
    """An element type; `kind` is float, int, uint, bool, complex or string, `bits` the width of one element."""

    name: str
    kind: str
    bits: int

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def has_kernels(self) -> bool:
        """Whether kernels load and store single elements of it: whole bytes, and neither text nor complex."""
        return self.bits >= 8 and self.kind not in ("string", "complex")

    @property
    def itemsize(self) -> int:
        """Bytes of one element in numpy's (unpacked) form; strings have none."""
        return max(1, self.bits // 8)

    @property
    def compute(self) -> DType:
        """The type that arithmetic runs in: f32 for narrower floats, the type itself otherwise."""
        return f32 if self.is_float and self.bits < 32 else self

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype (ml_dtypes for the small ones)."""
        return _numpy(self.name)


f64 = DType("f64", "float", 64)
f32 = DType("f32", "float", 32)
f16 = DType("f16", "float", 16)
bf16 = DType("bf16", "float", 16)
f8e4m3 = DType("f8e4m3", "float", 8)
f8e5m2 = DType("f8e5m2", "float", 8)
f8e4m3fnuz = DType("f8e4m3fnuz", "float", 8)
f8e5m2fnuz = DType("f8e5m2fnuz", "float", 8)
f8e8m0 = DType("f8e8m0", "float", 8)
f4e2m1 = DType("f4e2m1", "float", 4)
i64 = DType("i64", "int", 64)
i32 = DType("i32", "int", 32)
i16 = DType("i16", "int", 16)
i8 = DType("i8", "int", 8)
i4 = DType("i4", "int", 4)
i2 = DType("i2", "int", 2)
u64 = DType("u64", "uint", 64)
u32 = DType("u32", "uint", 32)
u16 = DType("u16", "uint", 16)
u8 = DType("u8", "uint", 8)
u4 = DType("u4", "uint", 4)
u2 = DType("u2", "uint", 2)
boolean = DType("bool", "bool", 8)
c64 = DType("c64", "complex", 64)
c128 = DType("c128", "complex", 128)
string = DType("string", "string", 0)

DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        *(f64, f32, f16, bf16, f8e4m3, f8e5m2, f8e4m3fnuz, f8e5m2fnuz, f8e8m0, f4e2m1),
        *(i64, i32, i16, i8, i4, i2, u64, u32, u16, u8, u4, u2, boolean, c64, c128, string),
    )
}

_NUMPY_NAMES = {
    **{"f64": "float64", "f32": "float32", "f16": "float16", "bool": "bool", "c64": "complex64", "c128": "complex128"},
    **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"u{n}": f"uint{n}" for n in (8, 16, 32, 64)},
}
_ML_NAMES = {
    **{"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e4m3fnuz": "float8_e4m3fnuz"},
    **{"f8e5m2fnuz": "float8_e5m2fnuz", "f8e8m0": "float8_e8m0fnu", "f4e2m1": "float4_e2m1fn"},
    **{"i4": "int4", "u4": "uint4", "i2": "int2", "u2": "uint2"},
}


@functools.cache
def _numpy(name: str) -> np.dtype[Any]:
    if name == "string":
        return np.dtype(object)
    if name in _NUMPY_NAMES:
        return np.dtype(_NUMPY_NAMES[name])
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_NAMES[name]))
    return found


@functools.cache
def from_numpy(dtype: np.dtype[Any]) -> DType:
    """The element type of a numpy dtype; ParseError for one that has none here."""
    names = {v: k for k, v in (_NUMPY_NAMES | _ML_NAMES).items()}
    if dtype.name in names:
        return DTYPES[names[dtype.name]]
    if dtype.kind in "OUS":
        return string
    raise ParseError(f"numpy dtype {dtype} has no element type here")


LARGEST = 1 << 48
"""Bytes, elements and sizes are at most this, what a processor of today addresses: arithmetic on them in 64 bits cannot wrap."""


@dataclass(frozen=True)
class TensorType:
    """A tensor's element type and shape; rank 0 is a scalar, sizes may be symbolic."""

    dtype: DType
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(str(d) for d in self.shape)}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every size is a known integer."""
        return all(isinstance(d, int) for d in self.shape)

    @property
    def elements(self) -> Dim:
        """The number of elements."""
        return dims.product(self.shape)

    @property
    def nbytes(self) -> Dim:
        """Bytes in memory; elements narrower than a byte are packed."""
        if self.dtype.bits < 8:
            return dims.ceil_div(self.elements * self.dtype.bits, 8)
        return self.elements * (self.dtype.bits // 8)

    @property
    def row_major(self) -> tuple[Dim, ...]:
        """The strides of a dense tensor, in elements."""
        return tuple(dims.product(self.shape[n + 1 :]) for n in range(self.rank))

    def excess(self) -> str | None:
        """What of this type is beyond any memory: a size, or all of it; None where nothing is known to be."""
        fixed = self.dtype.bits
        for size in self.shape:
            if dims.magnitude(size) > 2 * LARGEST:
                return f"size {str(size)[:80]}"
            fixed *= size if isinstance(size, int) else 1
        return f"{fixed // 8} bytes" if fixed > 8 * LARGEST else None

    def with_shape(self, shape: tuple[Dim, ...]) -> TensorType:
        return TensorType(self.dtype, shape)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)


def type_of(array: np.ndarray[Any, Any]) -> TensorType:
    """The type of a numpy array."""
    return TensorType(from_numpy(array.dtype), tuple(int(n) for n in array.shape))
