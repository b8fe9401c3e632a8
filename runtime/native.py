"""Native code: shared objects opened from checked bytes, the machines they are for, and the thread pool they share."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import threading
import weakref
from _ctypes import dlclose, dlopen, dlsym
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from ..ir.errors import EngineError
from .again import again
from .contents import LIBRARY, PartContents

ABI = 2
_PLANS = "ourcc_plans"
"""The constant of a library that is the digest of the plans it was made for."""
_SEALS = 0x1 | 0x2 | 0x4 | 0x8  # no more seals, no shrinking, no growing, no writing (linux/fcntl.h)
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # of Linux on x86-64 (asm/prctl.h)
Segment = Callable[..., int]


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The CPU's features under the kernel's names, as every core has them."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            lines = [line.partition(":") for line in file]
    except OSError as error:
        raise EngineError(f"cannot read the features of this cpu: {error.strerror}") from error
    sets = [frozenset(flags.split()) for key, _, flags in lines if key.strip() in ("flags", "Features")]
    return frozenset.intersection(*sets) if sets else frozenset()


def why_not(part: PartContents, machine: str, flags: frozenset[str]) -> str | None:
    """Why the code of a CPU part does not run on a machine with these CPU flags; None if it does."""
    if part.machine != machine:
        return f"it is for {part.machine}, this machine is {machine}"
    missing = [flag for flag in part.requires if flag not in flags]
    return f"it needs {', '.join(missing)}, which this cpu lacks" if missing else withheld(part.requires)


def withheld(features: Iterable[str]) -> str | None:
    """Why this process may not use features that its CPU has; None if it may.

    Linux gives a process the tiles of AMX when it asks for them; sandboxes, old kernels and small signal stacks refuse.
    """
    return None if "amx_tile" not in features or _may_use_tiles() else "it needs amx_tile, which the system does not let this process use"


@functools.cache
def _may_use_tiles() -> bool:
    """Ask for the tiles: the answer holds for all threads, and for processes that are forked."""
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


class _Handle:
    """An opened shared object and its functions; closed once neither it nor any of them is left, in no cycle."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._closing = weakref.finalize(self, dlclose, number)
        # At the end of the process other threads may still run the code, and closing it would help nobody.
        self._closing.atexit = False

    def keep(self) -> None:
        """Never close it."""
        self._closing.detach()

    def address(self, name: str) -> int:
        """Where a function lies; EngineError if there is none of that name."""
        try:
            return dlsym(self.number, name)
        except OSError as error:
            raise EngineError(f"native code of the engine has no function {name}") from error

    def expect(self, plans: str, name: str) -> None:
        """EngineError unless the library says that it was made for these plans: its code takes sizes and places from them."""
        try:
            known = ctypes.string_at(dlsym(self.number, _PLANS), len(plans))
        except OSError:
            known = b""
        if known != plans.encode():
            why = "other plans than the engine holds" if known else "plans that it does not name"
            raise EngineError(f"native code {name} was made for {why}", hint=f"build the engine again: {again()}")

    def function(self, name: str, result: Any, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        """A function, which holds the library."""
        # Functions that ctypes.CDLL makes refer to themselves: the library would stay until the collector runs.
        function: Any = ctypes.CFUNCTYPE(result, *arguments)(self.address(name))
        function.library = self
        return cast(Callable[..., Any], function)


class NativeLibrary:
    """A loaded shared object of one engine: the segments of its functions and the sizes of their arenas.

    It is closed once neither this object nor any function of it is left. A call holds what it runs, and a worker of the
    pool has left a library's code before the call that sent it there returns.
    """

    def __init__(self, name: str, data: bytes, plans: str | None = None) -> None:
        """`plans` is the digest of the plans that the library must be made for; what is for others is never called."""
        self._handle = _open(name, data)
        if plans is not None:
            self._handle.expect(plans, name)
        _PROCESS.adopt(self._handle, name)

    def arena(self, function: int) -> Callable[..., int]:
        """The size of the arena of the engine's Nth function: (symbols) -> bytes."""
        return self.function(f"ourcc_arena_{function}", ctypes.c_int64, (ctypes.c_void_p,))

    def segment(self, function: int, number: int) -> Segment:
        """One run of steps of the engine's Nth function: (buffers, symbols, arena, threads) -> status."""
        return self.function(
            f"ourcc_segment_{function}_{number}", ctypes.c_int32, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
        )

    @contextlib.contextmanager
    def timing(self, count: int) -> Iterator[Any]:
        """Time the next `count` launches of this thread: an array of nanoseconds, filled as they run."""
        times = (ctypes.c_int64 * max(1, count))()
        start = self.function("ourcc_time", None, (ctypes.c_void_p, ctypes.c_int64))
        start(times, count)
        try:
            yield times
        finally:
            start(times, 0)

    def function(self, name: str, result: Any, arguments: tuple[Any, ...]) -> Callable[..., int]:
        return self._handle.function(name, result, arguments)


class _Process:
    """What all engines of this process share: the thread pool of the library that was loaded first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._parallel: int | None = None

    def next_path(self, descriptor: int) -> str:
        """A path of a descriptor that was never used before: the loader takes equal paths for equal libraries."""
        with self._lock:
            self._count += 1
            number = self._count
        spelling = "".join("./" if number >> bit & 1 else "/" for bit in range(number.bit_length()))
        return f"/proc/self/fd/{spelling}{descriptor}"

    def adopt(self, library: _Handle, name: str) -> None:
        """Check the interface's version and give the library the process's pool."""
        version = library.function("ourcc_abi", ctypes.c_int32, ())()
        if version != ABI:
            hint = "build the engine again with this version of ourcc"
            raise EngineError(f"native code {name} has interface version {version}, expected {ABI}", hint=hint)
        use_parallel = library.function("ourcc_use_parallel", None, (ctypes.c_void_p,))
        with self._lock:
            if self._parallel is None:
                self._parallel = library.address("ourcc_parallel")
                # The workers of the pool live in this library's code: one library stays, however many engines come and go.
                library.keep()
        use_parallel(self._parallel)


_PROCESS = _Process()


def _open(name: str, data: bytes) -> _Handle:
    """Load a shared object from memory: the bytes lie in a sealed anonymous file, so nobody can change them."""
    try:
        descriptor = os.memfd_create(name[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (OSError, AttributeError) as error:
        raise EngineError(f"cannot load native code {name}: this system has no anonymous files: {error}") from error
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        fcntl.fcntl(descriptor, getattr(fcntl, "F_ADD_SEALS", 1033), _SEALS)
        return _Handle(dlopen(_PROCESS.next_path(descriptor), os.RTLD_NOW | os.RTLD_LOCAL))
    except OSError as error:
        raise EngineError(f"cannot load native code {name}: {error}") from error
    finally:
        os.close(descriptor)


def open_library(name: str, data: bytes) -> _Handle:
    """Load code that needs no thread pool."""
    return _open(name, data)


def load(name: str, part: PartContents) -> NativeLibrary:
    """Load the code of a CPU part; its files give checked bytes."""
    if LIBRARY not in part.files:
        hint = f"build it again: {again(name)}"
        raise EngineError(f"engine holds no native code for its part {name}", hint=hint)
    return NativeLibrary(f"{name}.so", part.files[LIBRARY], part.digest)
