"""The CUDA driver through its C interface: the few functions that load kernels, move memory, launch, and capture what was launched."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from ..ir.errors import EngineError, OutOfMemoryError
from .memory import text

LIBRARY = "libcuda.so.1"
_MAJOR, _MINOR, _SHARED = 75, 76, 97
_MAX_DYNAMIC_SHARED = 8
DEFAULT_SHARED = 48 * 1024

_pointer, _int, _unsigned, _size = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_size_t
SIGNATURES: dict[str, tuple[Any, ...]] = {
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
    "cuModuleUnload": (_pointer,),
    "cuModuleGetFunction": (_pointer, _pointer, ctypes.c_char_p),
    "cuFuncSetAttribute": (_pointer, _int, _int),
    "cuMemAlloc_v2": (_pointer, _size),
    "cuMemFree_v2": (_pointer,),
    "cuMemcpyHtoDAsync_v2": (_pointer, _pointer, _size, _pointer),
    "cuMemcpyDtoHAsync_v2": (_pointer, _pointer, _size, _pointer),
    "cuMemcpyDtoDAsync_v2": (_pointer, _pointer, _size, _pointer),
    "cuMemsetD8Async": (_pointer, ctypes.c_ubyte, _size, _pointer),
    "cuMemsetD16Async": (_pointer, ctypes.c_ushort, _size, _pointer),
    "cuMemsetD32Async": (_pointer, _unsigned, _size, _pointer),
    "cuCtxSynchronize": (),
    "cuStreamSynchronize": (_pointer,),
    "cuStreamCreate": (_pointer, _unsigned),
    "cuStreamDestroy_v2": (_pointer,),
    "cuStreamIsCapturing": (_pointer, _pointer),
    "cuStreamBeginCapture_v2": (_pointer, _int),
    "cuStreamEndCapture": (_pointer, _pointer),
    "cuGraphInstantiateWithFlags": (_pointer, _pointer, ctypes.c_ulonglong),
    "cuGraphDestroy": (_pointer,),
    "cuGraphLaunch": (_pointer, _pointer),
    "cuGraphExecDestroy": (_pointer,),
    "cuLaunchKernel": (_pointer, *(_unsigned,) * 6, _unsigned, _pointer, _pointer, _pointer),
}


OUT_OF_MEMORY = 2
_NON_BLOCKING, _THREAD_LOCAL = 1, 1
_TABLE = ("cuLaunchKernel", "cuMemcpyDtoDAsync_v2", "cuMemsetD8Async")
"""What the host program in C calls (`codegen/host/launches.c`), in its order."""


_OLDER = (
    "a driver may be older than the kernels: those for Hopper take R525 or later, those for Blackwell R580 or later, see docs/gpu.md;"
    " nvidia-smi says which is installed"
)
HINTS = {
    100: "no GPU is visible to this process: look at nvidia-smi, CUDA_VISIBLE_DEVICES, and how the container was started (--gpus all)",
    **dict.fromkeys((200, 209, 222), _OLDER),
}
"""What to do about errors of the driver: CUDA_ERROR_NO_DEVICE, and INVALID_IMAGE, NO_BINARY_FOR_GPU and UNSUPPORTED_PTX_VERSION."""


class DriverError(EngineError):
    """The driver refused a call; `status` is its number, `step` that of the plan's step (-1: of none)."""

    status = 0
    step = -1


class Driver:
    """The driver's functions, each raising EngineError with the driver's own words when it fails."""

    def __init__(self, library: Any) -> None:
        self._functions: dict[str, Callable[..., int]] = {}
        for name, arguments in SIGNATURES.items():
            try:
                function = getattr(library, name)
            except AttributeError as error:
                raise EngineError(f"the CUDA driver has no function {name}", hint="install a driver of CUDA 12 or later") from error
            if isinstance(library, ctypes.CDLL):
                function.argtypes, function.restype = arguments, ctypes.c_int
            self._functions[name] = function
        # Addresses of C functions; what a test puts in place of the driver's is made callable from C.
        called = [self._functions[name] for name in _TABLE]
        if not isinstance(library, ctypes.CDLL):
            called = [ctypes.CFUNCTYPE(_int, *SIGNATURES[name])(function) for name, function in zip(_TABLE, called, strict=True)]
        self._called = called
        self.table = (_pointer * len(_TABLE))(*(ctypes.cast(function, _pointer).value for function in called))  # type: ignore[arg-type]
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; EngineError names it and the driver's error."""
        status = self.status(name, *arguments)
        if status:
            raise self.error(f"{name} failed", status)

    def status(self, name: str, *arguments: Any) -> int:
        """What a function gives."""
        return self._functions[name](*arguments)

    def error(self, what: str, status: int, step: int = -1) -> DriverError:
        """The error of a call that the driver refused."""
        error = DriverError(f"{what}: {self.describe(status)}", hint=HINTS.get(status))
        error.status, error.step = status, step
        return error

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

    def load(self, cubin: bytes) -> int:
        """A module of kernels, from a cubin."""
        module = ctypes.c_void_p()
        self.driver.call("cuModuleLoadData", ctypes.byref(module), cubin)
        return module.value or 0

    def kernel(self, module: int, entry: str, shared: int) -> int:
        """A kernel of a module; allowed the dynamic shared memory it needs."""
        function = ctypes.c_void_p()
        self.driver.call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        if shared > self.shared:
            raise EngineError(f"kernel {entry} needs {shared} bytes of shared memory, {self.name} has {self.shared}")
        if shared > DEFAULT_SHARED:
            self.driver.call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, shared)
        return function.value or 0

    def allocate(self, size: int, make_room: Callable[[], bool] = lambda: False) -> int:
        """Device memory; OutOfMemoryError if there is not enough, also after `make_room`, which says whether it gave any back."""
        address = ctypes.c_void_p()
        status = self.driver.status("cuMemAlloc_v2", ctypes.byref(address), max(1, size))
        if status == OUT_OF_MEMORY and make_room():
            status = self.driver.status("cuMemAlloc_v2", ctypes.byref(address), max(1, size))
        if status == OUT_OF_MEMORY:
            hint = "call with smaller sizes, or end what else holds the GPU's memory"
            raise OutOfMemoryError(f"out of memory: {self.name} does not have {text(size)}: {self.driver.describe(status)}", hint=hint)
        if status:
            raise self.driver.error(f"cannot allocate {size} bytes on {self.name}: cuMemAlloc_v2 failed", status)
        return address.value or 0

    def free(self, address: int) -> None:
        self.driver.call("cuMemFree_v2", address)

    def put(self, target: int, data: bytes, stream: int) -> None:
        """Few bytes, which the command itself carries: no host memory is read later."""
        widths = ((4, "cuMemsetD32Async"), (2, "cuMemsetD16Async"), (1, "cuMemsetD8Async"))
        first = 0
        while first < len(data):
            width, name = next((width, name) for width, name in widths if first + width <= len(data))
            self.driver.call(name, target + first, int.from_bytes(data[first : first + width], "little"), 1, stream)
            first += width

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

    def wait(self) -> None:
        """Until everything that this process asked of the device is done."""
        self.driver.call("cuCtxSynchronize")

    def is_capturing(self, stream: int) -> bool:
        """Whether somebody records what is queued on a stream; nothing may be waited for or allocated then."""
        state = ctypes.c_int()
        self.driver.call("cuStreamIsCapturing", stream, ctypes.byref(state))
        return state.value != 0

    def stream(self) -> int:
        """A stream that waits for no other."""
        found = ctypes.c_void_p()
        self.driver.call("cuStreamCreate", ctypes.byref(found), _NON_BLOCKING)
        return found.value or 0

    def capture(self, stream: int, run: Callable[[], object]) -> int:
        """What `run` queues on a stream, as a graph that is ready to be launched; nothing runs."""
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        # Other threads may do what a capture forbids, such as allocate.
        self.driver.call("cuStreamBeginCapture_v2", stream, _THREAD_LOCAL)
        try:
            run()
        except EngineError:
            if self.driver.status("cuStreamEndCapture", stream, ctypes.byref(graph)) == 0 and graph.value:
                self.driver.call("cuGraphDestroy", graph)
            raise
        self.driver.call("cuStreamEndCapture", stream, ctypes.byref(graph))
        try:
            self.driver.call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, 0)
        finally:
            self.driver.status("cuGraphDestroy", graph)
        return ready.value or 0


def open_driver() -> Driver:
    """The driver of this machine; EngineError if there is none."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise EngineError(
            f"this machine has no CUDA driver ({LIBRARY})", hint="install NVIDIA's driver; ourcc doctor says what this machine can run"
        ) from error
    return Driver(library)
