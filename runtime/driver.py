"""The CUDA driver through its C interface: the few functions that load kernels, move memory and launch."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..ir.errors import EngineError

LIBRARY = "libcuda.so.1"
_MAJOR, _MINOR, _SHARED = 75, 76, 97
_MAX_DYNAMIC_SHARED = 8
DEFAULT_SHARED = 48 * 1024

_pointer, _int, _unsigned, _size = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_size_t
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_unsigned,),
    "cuGetErrorName": (_int, _pointer),
    "cuGetErrorString": (_int, _pointer),
    "cuDeviceGetCount": (_pointer,),
    "cuDeviceGet": (_pointer, _int),
    "cuDeviceGetName": (_pointer, _int, _int),
    "cuDeviceGetAttribute": (_pointer, _int, _int),
    "cuDevicePrimaryCtxRetain": (_pointer, _int),
    "cuCtxPushCurrent_v2": (_pointer,),
    "cuCtxPopCurrent_v2": (_pointer,),
    "cuModuleLoadData": (_pointer, _pointer),
    "cuModuleGetFunction": (_pointer, _pointer, ctypes.c_char_p),
    "cuFuncSetAttribute": (_pointer, _int, _int),
    "cuMemAlloc_v2": (_pointer, _size),
    "cuMemFree_v2": (_pointer,),
    "cuMemcpyHtoDAsync_v2": (_pointer, _pointer, _size, _pointer),
    "cuMemcpyDtoHAsync_v2": (_pointer, _pointer, _size, _pointer),
    "cuMemcpyDtoDAsync_v2": (_pointer, _pointer, _size, _pointer),
    "cuMemsetD8Async": (_pointer, ctypes.c_ubyte, _size, _pointer),
    "cuStreamSynchronize": (_pointer,),
    "cuLaunchKernel": (_pointer, *(_unsigned,) * 6, _unsigned, _pointer, _pointer, _pointer),
}


class Driver:
    """The driver's functions, each raising EngineError with the driver's own words when it fails."""

    def __init__(self, library: Any) -> None:
        self._functions: dict[str, Callable[..., int]] = {}
        for name, arguments in _SIGNATURES.items():
            try:
                function = getattr(library, name)
            except AttributeError as error:
                raise EngineError(f"the CUDA driver has no function {name}", hint="install a driver of CUDA 12 or later") from error
            if isinstance(library, ctypes.CDLL):
                function.argtypes, function.restype = arguments, ctypes.c_int
            self._functions[name] = function
        self.launch_function = self._functions["cuLaunchKernel"]
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; EngineError names it and the driver's error."""
        status = self._functions[name](*arguments)
        if status:
            raise EngineError(f"{name} failed: {self.describe(status)}")

    def describe(self, status: int) -> str:
        """The driver's name and sentence for an error."""
        words = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            self._functions[name](status, ctypes.byref(text))
            words.append((text.value or b"").decode("ascii", "replace"))
        return f"{words[0]} ({words[1]})" if words[0] else f"error {status}"

    def count(self) -> int:
        """The number of devices."""
        number = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(number))
        return number.value

    def device(self, ordinal: int) -> Device:
        """A device by its number."""
        handle = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(handle), ordinal)
        return Device(self, ordinal, handle.value)


class Device:
    """One GPU: what it is, and its memory, modules and launches inside its primary context."""

    def __init__(self, driver: Driver, ordinal: int, handle: int) -> None:
        self.driver = driver
        self.ordinal = ordinal
        self.handle = handle
        self.capability = (self._attribute(_MAJOR), self._attribute(_MINOR))
        self.shared = self._attribute(_SHARED)
        name = ctypes.create_string_buffer(256)
        driver.call("cuDeviceGetName", name, 256, handle)
        self.name = name.value.decode("ascii", "replace")
        self._lock = threading.Lock()
        self._context: ctypes.c_void_p | None = None

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self.driver.call("cuDeviceGetAttribute", ctypes.byref(value), number, self.handle)
        return value.value

    def __enter__(self) -> Device:
        """Make the primary context current: the one that the process's other CUDA users share."""
        with self._lock:
            if self._context is None:
                context = ctypes.c_void_p()
                self.driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.handle)
                self._context = context
        self.driver.call("cuCtxPushCurrent_v2", self._context)
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def load(self, cubin: bytes, entry: str, shared: int) -> int:
        """A kernel of a cubin; allowed the dynamic shared memory it needs."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver.call("cuModuleLoadData", ctypes.byref(module), cubin)
        self.driver.call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        if shared > self.shared:
            raise EngineError(f"kernel {entry} needs {shared} bytes of shared memory, {self.name} has {self.shared}")
        if shared > DEFAULT_SHARED:
            self.driver.call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, shared)
        return function.value or 0

    def allocate(self, size: int) -> int:
        """Device memory; EngineError if there is not enough."""
        address = ctypes.c_void_p()
        try:
            self.driver.call("cuMemAlloc_v2", ctypes.byref(address), max(1, size))
        except EngineError as error:
            raise EngineError(f"cannot allocate {size} bytes on {self.name}: {error.message}") from error
        return address.value or 0

    def free(self, address: int) -> None:
        self.driver.call("cuMemFree_v2", address)

    def upload(self, target: int, source: int, size: int, stream: int) -> None:
        if size:
            self.driver.call("cuMemcpyHtoDAsync_v2", target, source, size, stream)

    def download(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy to host memory and wait for it."""
        if size:
            self.driver.call("cuMemcpyDtoHAsync_v2", target, source, size, stream)
        self.synchronize(stream)

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        if size:
            self.driver.call("cuMemcpyDtoDAsync_v2", target, source, size, stream)

    def zero(self, target: int, size: int, stream: int) -> None:
        if size:
            self.driver.call("cuMemsetD8Async", target, 0, size, stream)

    def synchronize(self, stream: int) -> None:
        self.driver.call("cuStreamSynchronize", stream)

    def launch(self, name: str, function: int, grid: Sequence[int], threads: int, shared: int, stream: int, parameters: Any) -> None:
        status = self.driver.launch_function(function, *grid, threads, 1, 1, shared, stream, parameters, None)
        if status:
            raise EngineError(f"launch of kernel {name} failed: {self.driver.describe(status)}")


def open_driver() -> Driver:
    """The driver of this machine; EngineError if there is none."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise EngineError(
            f"this machine has no CUDA driver ({LIBRARY})", hint="install NVIDIA's driver; ourcc doctor says what this machine can run"
        ) from error
    return Driver(library)
