"""The C runtime as Python calls it in tests: compiled once, numpy arrays in and out, errors by status and message."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ourcc.ir.types import DTYPES, TensorType, from_numpy
from ourcc.runtime.arrays import view
from ourcc.runtime.sources import FLAGS, LIBRARIES, sources
from ourcc.runtime.weights import pack

STATUSES = ("OK", "USAGE", "SYSTEM", "DAMAGED", "UNSUPPORTED", "INPUT", "MEMORY", "FAILED", "BUSY")
NAMES = [name for name in DTYPES if name != "string"]


class Error(ctypes.Structure):
    _fields_ = (("status", ctypes.c_int), ("message", ctypes.c_char * 1024))


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_size_t),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    )


class Port(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_size_t),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("sizes", ctypes.POINTER(ctypes.c_char_p)),
    )


class Symbol(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("low", ctypes.c_int64), ("high", ctypes.c_int64), ("divisor", ctypes.c_int64))


class Options(ctypes.Structure):
    _fields_ = (("threads", ctypes.c_int), ("copy_weights", ctypes.c_int), ("part", ctypes.c_char_p))


class CError(Exception):
    """What a call gave instead of OURCC_OK."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


def write_sources(folder: Path) -> list[str]:
    """The files of the runtime in a folder; the names of those that are compiled."""
    folder.mkdir(exist_ok=True)
    for name, data in sources().items():
        (folder / name).write_bytes(data)
    return [str(folder / name) for name in sources() if name.endswith(".c")]


def compile_c(output: Path, files: Sequence[str], *flags: str) -> Path:
    """Compile C with every warning an error."""
    command = ["gcc", *FLAGS, "-Werror", *flags, "-o", str(output), *files, *LIBRARIES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output


class Library:
    """The runtime as a shared object."""

    def __init__(self, path: Path) -> None:
        self.c = ctypes.CDLL(str(path))
        for name in ("ourcc_inputs", "ourcc_outputs", "ourcc_states"):
            getattr(self.c, name).restype = ctypes.POINTER(Port)
        self.c.ourcc_symbols.restype = ctypes.POINTER(Symbol)
        self.c.ourcc_tensor_bytes.restype = ctypes.c_size_t
        self.c.ourcc_function_count.restype = ctypes.c_size_t
        for name in ("ourcc_part", "ourcc_function_name", "ourcc_dtype_name", "ourcc_status_name"):
            getattr(self.c, name).restype = ctypes.c_char_p

    def call(self, name: str, *arguments: Any) -> None:
        """A function that gives a status; CError for any but OURCC_OK, which must come with its message."""
        error = Error()
        status = getattr(self.c, name)(*arguments, ctypes.byref(error))
        assert status == error.status
        if status:
            assert error.message
            raise CError(STATUSES[status], error.message.decode())
        assert not error.message

    def open(self, path: Path | str, **options: Any) -> CEngine:
        return CEngine(self, path, **options)


class CEngine:
    """An engine that the C runtime opened."""

    def __init__(
        self, library: Library, path: Path | str, *, threads: int = 2, copy_weights: bool = False, part: str | None = None
    ) -> None:
        self.library = library
        self.pointer = ctypes.c_void_p()
        options = Options(threads, copy_weights, None if part is None else part.encode())
        library.call("ourcc_open", str(path).encode(), ctypes.byref(options), ctypes.byref(self.pointer))

    def close(self) -> None:
        self.library.c.ourcc_close(self.pointer)
        self.pointer = ctypes.c_void_p()

    def ports(self, what: str, function: str | None = None) -> list[Port]:
        count = ctypes.c_size_t()
        name = () if what == "states" else (None if function is None else function.encode(),)
        found = getattr(self.library.c, f"ourcc_{what}")(self.pointer, *name, ctypes.byref(count))
        return found[: count.value] if found else []

    @property
    def part(self) -> str:
        return str(self.library.c.ourcc_part(self.pointer).decode())

    @property
    def functions(self) -> list[str]:
        count = self.library.c.ourcc_function_count(self.pointer)
        return [self.library.c.ourcc_function_name(self.pointer, ctypes.c_size_t(n)).decode() for n in range(count)]

    def session(self) -> CSession:
        return CSession(self)

    def __call__(self, *inputs: Any) -> list[Any]:
        """One call of the entry in a session of its own."""
        session = self.session()
        try:
            return session(*inputs)
        finally:
            session.close()

    def __del__(self) -> None:
        self.close()


def tensor(array: Any) -> Tensor:
    """A dense numpy array as C has it; whoever calls keeps the array."""
    dtype = from_numpy(array.dtype)
    shape = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
    array = np.ascontiguousarray(array).reshape(array.shape) if dtype.bits >= 8 else pack(array, dtype.bits)
    made = Tensor(array.__array_interface__["data"][0], array.nbytes, NAMES.index(dtype.name), len(shape[:]), shape)
    made.held = array, shape
    return made


def tensors(arrays: Sequence[Any]) -> Any:
    made = [tensor(array) for array in arrays]
    for each, array in zip(made, arrays, strict=True):
        each.rank = array.ndim
    held = (Tensor * max(1, len(made)))(*made)
    held.kept = made
    return held


class CSession:
    """A session of the C runtime: arrays in, copies of its outputs out."""

    def __init__(self, engine: CEngine) -> None:
        self.engine = engine
        self.library = engine.library
        self.pointer = ctypes.c_void_p()
        self.library.call("ourcc_session_open", engine.pointer, ctypes.byref(self.pointer))

    def close(self) -> None:
        self.library.c.ourcc_session_close(self.pointer)
        self.pointer = ctypes.c_void_p()

    def __call__(self, *inputs: Any, function: str | None = None, into: Mapping[int, Any] | None = None, results: Any = None) -> list[Any]:
        """The outputs, copied; `into` has memory for some of them by number, `results` is what C fills, as it is."""
        given, count = tensors(inputs), len(self.engine.ports("outputs", function))
        results = (Tensor * max(1, count))() if results is None else results
        for number, array in (into or {}).items():
            results[number] = tensor(array)
        name = None if function is None else function.encode()
        self.library.call("ourcc_run", self.pointer, name, given, ctypes.c_size_t(len(inputs)), results, ctypes.c_size_t(count))
        return [read(results[n]) for n in range(count)]

    def reset(self) -> None:
        self.library.call("ourcc_session_reset", self.pointer)

    def read(self, name: str, size: int) -> bytes:
        memory = ctypes.create_string_buffer(max(1, size))
        self.library.call("ourcc_state_read", self.pointer, name.encode(), memory, ctypes.c_size_t(size))
        return memory.raw[:size]

    def write(self, name: str, data: bytes) -> None:
        self.library.call("ourcc_state_write", self.pointer, name.encode(), data, ctypes.c_size_t(len(data)))

    def __del__(self) -> None:
        self.close()


def read(found: Tensor) -> Any:
    """A copy of an output as numpy has it."""
    type = TensorType(DTYPES[NAMES[found.dtype]], tuple(found.shape[n] for n in range(found.rank)))
    size = type.nbytes
    assert isinstance(size, int) and size <= found.bytes
    memory = np.frombuffer(ctypes.string_at(found.data, size), np.uint8) if size else np.zeros(0, np.uint8)
    return view(memory, type).copy()


def same_bits(left: Any, right: Any) -> bool:
    """Whether two arrays are the same: dtype, shape, and every bit."""
    left, right = np.asarray(left), np.asarray(right)
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
