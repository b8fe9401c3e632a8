"""Weights in memory and in safetensors bytes: constants as read-only views, sub-byte elements packed, nothing copied."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir.digits import whole_number
from ..ir.errors import EngineError
from ..ir.types import DTYPES, DType, TensorType, from_numpy, string
from .memory import allocate

Array = np.ndarray[Any, Any]

ALIGNMENT = 64
"""Bytes: every tensor starts at a multiple of this, in a file and in memory."""

MAX_HEADER = 100_000_000
PADDING = "~padding."
"""Names of the tensors that fill the gaps: the format allows no holes, and kernels want aligned rows."""

_TYPES = "ourcc.types"
_SAFETENSORS = {
    **{"f64": "F64", "f32": "F32", "f16": "F16", "bf16": "BF16", "f8e4m3": "F8_E4M3", "f8e5m2": "F8_E5M2", "f8e8m0": "F8_E8M0"},
    **{"i64": "I64", "i32": "I32", "i16": "I16", "i8": "I8", "u64": "U64", "u32": "U32", "u16": "U16", "u8": "U8", "bool": "BOOL"},
    "c64": "C64",
}
SAFETENSORS = {value: key for key, value in _SAFETENSORS.items()}
"""The dtypes by the names that safetensors has for them."""


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor as kernels see it: its type and its bytes in memory (a flat u8 array; strings are JSON text)."""

    type: TensorType
    data: Array

    @staticmethod
    def of(array: Array) -> Constant:
        """The constant that holds a numpy array; elements narrower than a byte are packed, low bits first."""
        dtype = from_numpy(array.dtype)
        type = TensorType(dtype, tuple(int(n) for n in array.shape))
        if dtype == string:
            return Constant(type, np.frombuffer(json.dumps([str(text) for text in array.ravel()]).encode(), np.uint8))
        if dtype.bits < 8:
            return Constant(type, pack(array, dtype.bits))
        dense = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
        return Constant(type, dense.reshape(-1).view(np.uint8))

    def array(self) -> Array:
        """The constant as a numpy array: a view where numpy can hold it so."""
        shape = tuple(int(n) for n in self.type.shape if isinstance(n, int))
        dtype = self.type.dtype
        if dtype == string:
            return _strings(self.data.tobytes(), shape)
        if dtype.bits < 8:
            return unpack(self.data, dtype, shape)
        return self.data.view(dtype.numpy).reshape(shape)

    @property
    def nbytes(self) -> int:
        """The bytes of `data`, which are not read for that."""
        return self.data.size

    def on_gpu(self, ordinal: int) -> int | None:
        """Where on a GPU the bytes lie already, in the hands of whoever made the constant."""
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.type == other.type and bool(np.array_equal(self.data, other.data))


def _strings(data: bytes, shape: tuple[int, ...]) -> Array:
    result = np.empty(shape, dtype=object)
    texts = json.loads(data)
    if not isinstance(texts, list) or len(texts) != result.size or not all(isinstance(text, str) for text in texts):
        raise EngineError(f"string constant holds other than {result.size} strings")
    result.reshape(-1)[:] = texts
    return result


def pack(array: Array, bits: int) -> Array:
    """Elements of 2 or 4 bits, one per byte in numpy, packed into bytes, the first element lowest."""
    per_byte = 8 // bits
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & ((1 << bits) - 1)
    padded = np.zeros(-(-codes.size // per_byte) * per_byte, np.uint8)
    padded[: codes.size] = codes
    shifts = np.arange(per_byte, dtype=np.uint8) * bits
    result: Array = np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1).astype(np.uint8)
    return result


def unpack(data: Array, dtype: DType, shape: tuple[int, ...]) -> Array:
    """The numpy form (one element per byte) of packed elements."""
    per_byte = 8 // dtype.bits
    shifts = np.arange(per_byte, dtype=np.uint8) * dtype.bits
    codes = ((data.reshape(-1, 1) >> shifts) & ((1 << dtype.bits) - 1)).astype(np.uint8).reshape(-1)
    count = int(np.prod(shape, dtype=np.int64))
    if dtype.kind == "int":
        # ml_dtypes keeps signed codes sign-extended in their byte.
        codes = ((codes ^ (1 << (dtype.bits - 1))) - (1 << (dtype.bits - 1))).astype(np.int8).view(np.uint8)
    result: Array = codes[:count].view(dtype.numpy).reshape(shape)
    return result


def nbytes(type: TensorType) -> int | None:
    """Bytes of a static type; None where a size is symbolic or elements have no size."""
    size = type.nbytes
    return size if isinstance(size, int) and type.dtype != string else None


# --- safetensors ------------------------------------------------------------------------------------------------------


def encode(constants: Mapping[str, Constant]) -> tuple[bytes, list[memoryview]]:
    """The header (length included) and the pieces that follow it, in the order of names, each tensor aligned."""
    entries: dict[str, Any] = {}
    types: dict[str, str] = {}
    pieces: list[memoryview] = []
    offset = 0
    for name in sorted(constants):
        if name.startswith(PADDING) or name == "__metadata__":
            raise EngineError(f"constant name {name!r} is reserved")
        gap = -offset % ALIGNMENT
        if gap:
            entries[f"{PADDING}{len(pieces)}"] = {"dtype": "U8", "shape": [gap], "data_offsets": [offset, offset + gap]}
            pieces.append(memoryview(bytes(gap)))
            offset += gap
        constant = constants[name]
        plain = constant.type.dtype.name in _SAFETENSORS and nbytes(constant.type) == constant.data.size
        shape = list(constant.type.shape) if plain else [constant.data.size]
        if not plain:
            types[name] = str(constant.type)
        dtype = _SAFETENSORS[constant.type.dtype.name] if plain else "U8"
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + constant.data.size]}
        pieces.append(constant.data.data)
        offset += constant.data.size
    metadata = {"format": "ourcc", **({_TYPES: json.dumps(types, sort_keys=True)} if types else {})}
    text = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, pieces


def decode(head: bytes, data: Array, name: str) -> dict[str, Constant]:
    """Views of tensors in the bytes (a flat u8 array) that follow a safetensors header (its length included).

    EngineError where they are damaged or hostile.
    """
    length = int.from_bytes(head[:8], "little")
    if len(head) < 8 or length != len(head) - 8 or length > MAX_HEADER:
        raise EngineError(f"{name}: got a safetensors header of {len(head)} bytes that says {length + 8}")
    try:
        header = json.loads(head[8:].decode("utf-8"))
        metadata = header.pop("__metadata__", {})
        types = json.loads(metadata.get(_TYPES, "{}"))
        return dict(_tensors(header, types, data, name))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise EngineError(f"{name}: safetensors header is damaged: {error}") from error


def _tensors(header: Mapping[str, Any], types: Mapping[str, str], data: Array, member: str) -> Iterator[tuple[str, Constant]]:
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])):
        first, last = entry["data_offsets"]
        if type(first) is not int or type(last) is not int or first != end or not first <= last <= data.size:
            raise EngineError(f"{member}: tensor {name!r} lies at {first}..{last}, expected to start at {end} and end within {data.size}")
        end = last
        if name.startswith(PADDING):
            continue
        dtype = DTYPES[SAFETENSORS[entry["dtype"]]]
        declared = _read_type(types[name]) if name in types else TensorType(dtype, _shape(entry["shape"]))
        size = nbytes(declared)
        if (size is not None and size > last - first) or (name not in types and size != last - first):
            raise EngineError(f"{member}: tensor {name!r} has {last - first} bytes, expected {size} for {declared}")
        yield name, Constant(declared, data[first:last])
    if end != data.size:
        raise EngineError(f"{member}: {data.size - end} bytes follow the last tensor")


def _shape(sizes: Any) -> tuple[int, ...]:
    if not isinstance(sizes, list) or not all(type(n) is int and 0 <= n < 2**48 for n in sizes):
        raise ValueError(f"got shape {sizes!r}, expected a list of sizes")
    return tuple(sizes)


def _read_type(text: str) -> TensorType:
    dtype, bracket, sizes = text.rstrip("]").partition("[")
    if not bracket or not text.endswith("]"):
        raise ValueError(f"got type {text!r}, expected dtype[sizes]")
    return TensorType(DTYPES[dtype], _shape([whole_number(n, 15) for n in sizes.split(", ")] if sizes else []))


def aligned(constant: Constant) -> Constant:
    """The constant at an aligned address: itself, or a copy."""
    if constant.data.size == 0 or constant.data.__array_interface__["data"][0] % ALIGNMENT == 0:
        return constant
    copy = aligned_bytes(constant.data.size)
    copy[:] = constant.data
    copy.flags.writeable = False
    return Constant(constant.type, copy)


def aligned_bytes(size: int, zeros: bool = False) -> Array:
    """A new flat u8 array whose first byte lies at an aligned address; `zeros` take memory when they are first touched."""
    make = np.zeros if zeros else np.empty
    memory = allocate(size, lambda: "a buffer", lambda: make(size + ALIGNMENT, np.uint8))
    first = -int(memory.__array_interface__["data"][0]) % ALIGNMENT
    return memory[first : first + size]
