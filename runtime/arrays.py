"""The caller's tensors: numpy arrays and torch tensors seen alike, torch never imported unless the caller has it."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..ir.errors import InputError, ParseError, UnsupportedError
from ..ir.types import DTYPES, DType, TensorType, boolean, from_numpy, string
from .memory import allocate
from .weights import Array, aligned_bytes, nbytes, pack, unpack

_TORCH_NAMES = {
    **{"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "bool": "bool", "c64": "complex64", "c128": "complex128"},
    **{"i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8"},
    **{"f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2fnuz": "float8_e5m2fnuz"},
    "f8e8m0": "float8_e8m0fnu",
}
_WRITABLE = 0x200  # PyBUF_WRITE
_memory_view = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)
_SCALARS = {bool: boolean.kind, int: "int", float: "float", complex: "complex"}
_DLPACK_CPU = (1, 3)
"""DLPack's numbers for plain memory, and for memory that a GPU may read too."""


def torch_module() -> Any:
    """torch if the caller has imported it, else None."""
    return sys.modules.get("torch")


def is_torch(value: Any) -> bool:
    """Whether a value is a torch tensor."""
    torch = torch_module()
    return torch is not None and isinstance(value, torch.Tensor)


@functools.cache
def torch_dtype(dtype: DType) -> Any:
    """The torch dtype of an element type; UnsupportedError where torch has none."""
    found = getattr(torch_module(), _TORCH_NAMES.get(dtype.name, ""), None)
    if found is None:
        raise UnsupportedError(f"torch has no dtype for {dtype}", hint="pass numpy arrays, then the results are numpy arrays too")
    return found


@functools.cache
def from_torch(dtype: Any) -> DType | None:
    """The element type of a torch dtype, or None."""
    name = str(dtype).removeprefix("torch.")
    return next((DTYPES[ours] for ours, theirs in _TORCH_NAMES.items() if theirs == name), None)


def admit(value: Any, name: str, expected: DType, rank: int, device: str = "cpu") -> Any:
    """A dense numpy array or torch tensor of the expected dtype; InputError says what was got instead."""
    if is_torch(value):
        return _admit_torch(value, name, expected, device)
    if isinstance(value, (*_SCALARS, list, tuple)) and not isinstance(value, np.generic):
        return _from_python(value, name, expected, rank)
    if isinstance(value, np.generic):
        value = np.asarray(value)
    elif not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        value = _from_dlpack(value, name)
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        raise InputError(f"input {name!r} is a {type(value).__name__}, expected a numpy array, a torch tensor or a DLPack one")
    return _admit_numpy(value, name, expected)


def _from_python(value: Any, name: str, expected: DType, rank: int) -> Array:
    """Python numbers of the expected kind, in nested lists as deep as the rank."""
    wanted = "int" if expected.kind == "uint" else expected.kind
    try:
        shape = np.shape(value)
        found = sorted({_SCALARS.get(type(leaf), type(leaf).__name__) for leaf in np.asarray(value, dtype=object).flat})
        if found not in ([wanted], []):
            hint = f"pass numpy.asarray(values, {expected.numpy.name!r})" if expected != string else "pass an array of str"
            raise InputError(f"input {name!r} holds Python's {', '.join(found)}, expected {expected}", hint=hint)
        return np.asarray(value, dtype=expected.numpy).reshape(shape)
    except OverflowError as error:
        raise InputError(f"input {name!r} is {str(value)[:40]}, which does not fit {expected}") from error
    except ValueError as error:
        raise InputError(f"input {name!r} is a list of lists of different lengths, expected {rank} dimensions") from error


def _from_dlpack(value: Any, name: str) -> Array:
    """The memory of another library's tensor, shared; InputError where numpy cannot see it."""
    kind = int(value.__dlpack_device__()[0]) if hasattr(value, "__dlpack_device__") else _DLPACK_CPU[0]
    if kind not in _DLPACK_CPU:
        raise InputError(
            f"input {name!r} is on DLPack device {kind}, expected the CPU's memory", hint="copy it to the CPU, or pass torch's"
        )
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        hint = "pass a numpy array"
        raise InputError(f"input {name!r} is a {type(value).__name__} that numpy cannot share: {error}", hint=hint) from error


def _admit_numpy(value: Array, name: str, expected: DType) -> Array:
    got = _element_type(value)
    if got != expected:
        hint = f"convert it with .astype({expected.numpy.name!r})" if expected != string else "pass an array of str"
        raise InputError(f"input {name!r} has dtype {value.dtype if got is None else got}, expected {expected}", hint=hint)
    if expected == string:
        return value.astype(object)
    return np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("=")).reshape(value.shape)


def _element_type(value: Array) -> DType | None:
    try:
        return from_numpy(value.dtype)
    except ParseError:
        return None


def _admit_torch(value: Any, name: str, expected: DType, device: str) -> Any:
    got = from_torch(value.dtype)
    if got != expected:
        hint = f"convert it with .to(torch.{_TORCH_NAMES[expected.name]})" if expected.name in _TORCH_NAMES else "pass a numpy array"
        raise InputError(f"input {name!r} has dtype {value.dtype if got is None else got}, expected {expected}", hint=hint)
    torch = torch_module()
    if value.layout is not torch.strided:
        raise InputError(f"input {name!r} has layout {value.layout}, expected a dense tensor", hint="convert it with .to_dense()")
    if value.device.type != "cpu" and value.device.type != device:
        hint = f"move it with .to({device!r}), or load the engine for another target"
        raise InputError(f"input {name!r} is on {value.device}, expected {device}", hint=hint)
    # Lazily conjugated or negated views hold other bytes than their values.
    return value.detach().resolve_conj().resolve_neg().contiguous()


def on_host(value: Any, dtype: DType) -> Array:
    """A copy of an admitted value as a numpy array."""
    if isinstance(value, np.ndarray):
        return value.copy()
    dense = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    type = TensorType(dtype, tuple(dense.shape))
    return view(memory_at(pointer(dense), nbytes(type) or 0), type).copy()


def pointer(value: Any) -> int:
    """The address of the first element."""
    if isinstance(value, np.ndarray):
        return _DATA.from_address(id(value) + _DATA_AT).value or 0 if _IS_IN_OBJECT else _told(value)
    return int(value.data_ptr())


def _told(value: Array) -> int:
    """The address of an array's elements in a description that numpy makes of it, which takes longer than all else of a small call."""
    address: int = value.__array_interface__["data"][0]
    return address


_DATA, _DATA_AT = ctypes.c_void_p, object.__basicsize__
"""numpy's C ABI: what follows the head of an array's object is the address of its elements."""
_IS_IN_OBJECT = all(_told(array) == (_DATA.from_address(id(array) + _DATA_AT).value or 0) for array in (np.zeros(3), np.zeros(3)[1:]))


def packed(value: Array, dtype: DType) -> Array:
    """What kernels read of an input whose elements are narrower than a byte."""
    return pack(value, dtype.bits)


def new_output(dtype: DType, shape: tuple[int, ...], as_torch: bool, device: str = "cpu") -> Any:
    """Fresh memory for a result, of the caller's kind."""
    make: Callable[[], Any]
    if as_torch and dtype != string:
        make = functools.partial(torch_module().empty, shape, dtype=torch_dtype(dtype), device=device)
    else:
        make = functools.partial(np.empty, shape, dtype.numpy)
    # Memory of a device is its own allocator's to refuse.
    size = math.prod(shape) * max(dtype.bits, 8) // 8 if device == "cpu" else 0
    return allocate(size, lambda: f"a result {dtype}[{', '.join(map(str, shape))}]", make)


def new_bytes(type: TensorType) -> Array:
    """Fresh memory for a tensor of the plan, as kernels see it; sizes are known."""
    size = type.nbytes
    return aligned_bytes(size if isinstance(size, int) else 0)


def view(memory: Array, type: TensorType) -> Array:
    """The numpy form of a tensor in memory (a flat u8 array): a view, or a copy where elements must be unpacked."""
    shape = tuple(size for size in type.shape if isinstance(size, int))
    size = type.nbytes
    data = memory[: size if isinstance(size, int) else 0]
    if type.dtype.bits < 8:
        return unpack(data, type.dtype, shape)
    result: Array = data.view(type.dtype.numpy).reshape(shape)
    return result


def store(memory: Array, value: Array, dtype: DType) -> None:
    """Write a numpy array into memory (a flat u8 array), packed where elements are narrower than a byte."""
    data = pack(value, dtype.bits) if dtype.bits < 8 else np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    memory[: data.size] = data


def memory_at(address: int, size: int) -> Array:
    """A flat u8 array over memory that somebody else owns and keeps alive."""
    if size == 0:
        return np.zeros(0, np.uint8)
    # Not an array type of ctypes: it keeps a word about each size it ever saw.
    return np.frombuffer(_memory_view(address, size, _WRITABLE), np.uint8)
