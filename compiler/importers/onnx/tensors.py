"""ONNX tensors as constants: sizes checked against the bytes that are there, values read when first asked for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ....ir import dims, types
from ....ir.errors import ModelError, Source, UnsupportedError
from ....ir.graph import ConstantData
from ....ir.types import DType, TensorType
from .external import ExternalFiles

if TYPE_CHECKING:
    import onnx

RANK = 32
DIMENSION = 1 << 40
TENSOR_BYTES = 1 << 38

# The numbers of TensorProto.DataType.
ELEMENT_TYPES: dict[int, DType] = {
    **{1: types.f32, 2: types.u8, 3: types.i8, 4: types.u16, 5: types.i16, 6: types.i32, 7: types.i64, 8: types.string},
    **{9: types.boolean, 10: types.f16, 11: types.f64, 12: types.u32, 13: types.u64, 14: types.c64, 15: types.c128},
    **{16: types.bf16, 17: types.f8e4m3, 18: types.f8e4m3fnuz, 19: types.f8e5m2, 20: types.f8e5m2fnuz, 21: types.u4},
    **{22: types.i4, 23: types.f4e2m1, 24: types.f8e8m0, 25: types.u2, 26: types.i2},
}
ELEMENT_NUMBERS = {dtype: number for number, dtype in ELEMENT_TYPES.items()}
_FIELDS = {
    "f32": "float_data",
    "c64": "float_data",
    "f64": "double_data",
    "c128": "double_data",
    "i64": "int64_data",
    "u32": "uint64_data",
    "u64": "uint64_data",
}


def element_type(number: int, source: Source) -> DType:
    """The element type of a TensorProto.DataType number."""
    if number not in ELEMENT_TYPES:
        raise ModelError(f"element type {number} is not known", source=source)
    return ELEMENT_TYPES[number]


def tensor_type(tensor: onnx.TensorProto, source: Source) -> TensorType:
    """The type that a tensor declares, within the limits."""
    dtype = element_type(tensor.data_type, source)
    shape = tuple(int(size) for size in tensor.dims)
    check_shape(shape, dtype, source)
    return TensorType(dtype, shape)


def check_shape(shape: tuple[int, ...], dtype: DType, source: Source) -> None:
    """Refuse ranks, sizes and byte counts that no honest model has."""
    if len(shape) > RANK:
        raise ModelError(f"tensor has rank {len(shape)}, expected at most {RANK}", source=source)
    for size in shape:
        if not 0 <= size <= DIMENSION:
            raise ModelError(f"dimension {size} is out of range 0..{DIMENSION}", source=source)
    if math.prod(shape) * max(dtype.bits, 8) // 8 > TENSOR_BYTES:
        raise ModelError(f"tensor of shape {list(shape)} is larger than {TENSOR_BYTES} bytes", source=source)


def constant_data(tensor: onnx.TensorProto, files: ExternalFiles, source: Source) -> tuple[ConstantData, TensorType]:
    """A tensor's values, checked now and read when first used."""
    type = tensor_type(tensor, source)
    if tensor.HasField("segment"):
        raise UnsupportedError(
            f"tensor {tensor.name!r} is stored in segments", source=source, hint="save the model again with a current onnx"
        )
    if tensor.data_location == 1:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if type.dtype.kind == "string":
            raise ModelError(f"tensor {tensor.name!r} of strings cannot be external", source=source)
        view = files.bytes_of(tensor.name, entries, _stored_bytes(type))
        return ConstantData(load=lambda: _from_bytes(view, type), origin=entries.get("location")), type
    if type.dtype.kind == "string":
        _expect(tensor.name, "strings", len(tensor.string_data), math.prod(_sizes(type)), source)
        return ConstantData(_strings(tensor, type, source)), type
    if tensor.HasField("raw_data"):
        _expect(tensor.name, "bytes", len(tensor.raw_data), _stored_bytes(type), source)
        return ConstantData(load=lambda: _from_bytes(np.frombuffer(tensor.raw_data, np.uint8), type)), type
    return ConstantData(_from_fields(tensor, type, source)), type


def _sizes(type: TensorType) -> tuple[int, ...]:
    return tuple(dims.number(size) for size in type.shape)


def _stored_bytes(type: TensorType) -> int:
    return -(-math.prod(_sizes(type)) * type.dtype.bits // 8)


def _expect(name: str, what: str, got: int, expected: int, source: Source) -> None:
    if got != expected:
        raise ModelError(f"tensor {name!r}: got {got} {what}, expected {expected} for its type", source=source)


def _strings(tensor: onnx.TensorProto, type: TensorType, source: Source) -> np.ndarray[Any, Any]:
    try:
        texts = [text.decode("utf-8") for text in tensor.string_data]
    except UnicodeDecodeError as error:
        raise ModelError(f"tensor {tensor.name!r}: a string is not UTF-8", source=source) from error
    result = np.empty(len(texts), dtype=object)
    result[:] = texts
    return result.reshape(_sizes(type))


def _from_bytes(data: np.ndarray[Any, Any], type: TensorType) -> np.ndarray[Any, Any]:
    """Little-endian bytes as an array; elements narrower than a byte are unpacked, low bits first."""
    shape, dtype = _sizes(type), type.dtype
    if dtype.bits < 8:
        per_byte, mask = 8 // dtype.bits, (1 << dtype.bits) - 1
        parts = np.stack([(data >> (dtype.bits * n)) & mask for n in range(per_byte)], axis=-1).reshape(-1)
        return _from_bits(parts[: math.prod(shape)], dtype).reshape(shape)
    return data.view(dtype.numpy).reshape(shape) if data.size else np.zeros(shape, dtype.numpy)


def _from_bits(bits: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    if dtype.is_float:
        return bits.astype(np.uint8).view(dtype.numpy)
    signed = bits.astype(np.int16)
    if dtype.kind == "int":
        signed = np.where(signed >= 1 << (dtype.bits - 1), signed - (1 << dtype.bits), signed)
    return signed.astype(dtype.numpy)


def _from_fields(tensor: onnx.TensorProto, type: TensorType, source: Source) -> np.ndarray[Any, Any]:
    """Values from the typed repeated fields, whose element types are wider than the tensor's."""
    dtype, count = type.dtype, math.prod(_sizes(type))
    values = getattr(tensor, _FIELDS.get(dtype.name, "int32_data"))
    if dtype.bits < 8:
        _expect(tensor.name, "values", len(values), _stored_bytes(type), source)
        return _from_bytes(np.asarray(values, dtype=np.int64).astype(np.uint8), type)
    _expect(tensor.name, "values", len(values), count * 2 if dtype.kind == "complex" else count, source)
    if dtype.kind == "complex":
        wide = np.asarray(values, dtype=np.float32 if dtype.bits == 64 else np.float64)
        return wide.view(dtype.numpy).reshape(_sizes(type))
    array = np.asarray(values)
    if dtype.is_float and dtype.bits <= 16:
        carrier = np.uint16 if dtype.bits == 16 else np.uint8
        return array.astype(np.int64).astype(carrier).view(dtype.numpy).reshape(_sizes(type))
    return array.astype(dtype.numpy).reshape(_sizes(type))
