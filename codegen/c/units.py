"""Object files of C files: compiled once for each text, beside whoever prints the next one.

A kernel's file is known by its text, so that equal kernels of any engine are one object file.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ...ir.errors import ToolchainError
from ...ir.target import CpuLevel
from .abi import KERNEL, descriptor, support_files
from .objects import ObjectFolder
from .toolchain import Compiler, Running, call, flags_for

_LOG = logging.getLogger(__name__)

REMEMBERED = 16 << 20
"""Bytes of object files that a process remembers."""


PRELUDE = """#define _GNU_SOURCE
#include "ourcc.h"
#include <immintrin.h>
#include <math.h>
#include <sched.h>
#include <string.h>
"""
"""What most files include. gcc reads its intrinsics for a quarter of a second, and for a tenth of that if it did so before."""

HEADER = "prelude.h"
PRECOMPILED = 3
"""From so many files on, the prelude is compiled first; where it is there already, one file is enough."""


def renamed(kernel: str, symbol: str) -> str:
    """Lines of C that give a kernel's function and its description another name."""
    return f"#define {kernel} {symbol}\n#define {descriptor(kernel)} {descriptor(symbol)}\n"


@dataclass(frozen=True)
class Unit:
    """A C file to compile: its text as the compiler sees it, and the name there of the kernel that it defines, if it defines one."""

    name: str
    text: str
    symbol: str = ""

    @staticmethod
    def of_kernel(name: str, text: str) -> Unit:
        """The file of a kernel, which is named by the text, so that equal kernels of any engine are one object file."""
        symbol = f"{KERNEL}_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
        return Unit(name, f"{renamed(KERNEL, symbol)}{text}", symbol)

    @property
    def is_wide(self) -> bool:
        """Whether it includes what takes most compilers longest to read."""
        return "<immintrin.h>" in self.text


class ObjectFiles:
    """The object files of one shared object: each is compiled once, beside whoever goes on printing the others."""

    def __init__(self, compiler: Compiler, level: CpuLevel, *, jobs: int = 2, timeout: float = 300.0, cache: Path | None = None) -> None:
        files = support_files()
        self.compiler = compiler
        self.flags = flags_for(level, compiler)
        self.timeout = timeout
        self.support = {name: text for name, text in files.items() if name.endswith(".c")}
        self._headers = tuple((name, text) for name, text in files.items() if not name.endswith(".c"))
        self._folder = None if cache is None else ObjectFolder(cache)
        self._calls: dict[str, Future[bytes]] = {}
        self._waiting: list[tuple[Unit, str]] = []
        self._is_begun = False
        self._prelude: Path | None = None
        self._has_failed = False
        self._running = Running()
        self._pool = ThreadPoolExecutor(max_workers=max(1, jobs))

    def __enter__(self) -> ObjectFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._running.stop()
        self._pool.shutdown(cancel_futures=True)

    def begin(self, unit: Unit) -> str:
        """Compile a unit by and by, unless it is there; gives its key. The first few wait: for so many the prelude is compiled
        beforehand.
        """
        key = self._key(unit)
        if key in self._calls or any(key == other for _, other in self._waiting):
            return key
        found = self._known(key)
        if found is not None:
            self._calls[key] = Future()
            self._calls[key].set_result(found)
            return key
        self._waiting.append((unit, key))
        if self._is_begun or len(self._waiting) >= PRECOMPILED:
            self._submit()
        return key

    def all(self, units: Sequence[Unit]) -> dict[str, bytes]:
        """The object file of each unit, by its name."""
        keys = [self.begin(unit) for unit in units]
        self._submit()
        return {f"{unit.name[:-2]}.o": self._calls[key].result() for unit, key in zip(units, keys, strict=True)}

    def _submit(self) -> None:
        """Hand what waits to the pool."""
        wide = [unit for unit, _ in self._waiting if unit.is_wide]
        if wide and self._prelude is None and not self._has_failed:
            self._prelude = self._precompiled(PRECOMPILED if self._is_begun else len(wide))
        self._is_begun = self._is_begun or len(self._waiting) >= PRECOMPILED
        for unit, key in self._waiting:
            self._calls[key] = self._pool.submit(self._compile, unit, key, self._prelude)
        self._waiting.clear()

    def _key(self, unit: Unit) -> str:
        machine = os.confstr("CS_GNU_LIBC_VERSION") or ""  # whose headers are read
        parts = (
            self.compiler.digest,
            self.compiler.version,
            machine,
            *self.compiler.command[1:],
            *self.flags,
            *map(str, self._headers),
            unit.text,
        )
        return f"object-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}"

    def _known(self, key: str) -> bytes | None:
        data = _remembered().get(key)
        if data is None and self._folder is not None:
            data = self._folder.get(key)
        return data

    def _compile(self, unit: Unit, key: str, prelude: Path | None) -> bytes:
        with tempfile.TemporaryDirectory(prefix="ourcc-") as folder:
            # One name for all: it would be part of the bytes.
            for file, content in (("unit.c", unit.text), *self._headers):
                Path(folder, file).write_text(content)
            before = ["-include", str(prelude)] if prelude is not None and unit.is_wide else []
            self._call([*self.compiler.command, *self.flags, *before, "-c", "unit.c", "-o", "object.o"], folder, unit.name)
            data = Path(folder, "object.o").read_bytes()
        _remembered().put(key, data)
        if self._folder is not None:
            self._folder.put(key, data)
        return data

    def _precompiled(self, count: int) -> Path | None:
        """The compiled prelude for so many units; None where it does not pay, or there is no place to keep it."""
        if self._folder is None or self.compiler.family != "gcc":
            return None
        name = f"prelude-{self._key(Unit(HEADER, PRELUDE))[-24:]}"
        kept = self._folder.get_folder(name)
        if kept is not None or count < PRECOMPILED:
            return None if kept is None else kept / HEADER

        def fill(folder: Path) -> None:
            for file, content in ((HEADER, PRELUDE), *self._headers):
                (folder / file).write_text(content)
            self._call([*self.compiler.command, *self.flags, "-x", "c-header", HEADER, "-o", f"{HEADER}.gch"], str(folder), "the prelude")

        try:
            kept = self._folder.put_folder(name, fill)
        except (OSError, ToolchainError) as error:
            _LOG.warning("the prelude is not compiled beforehand: %s", error)
            self._has_failed = True
        return None if kept is None else kept / HEADER

    def _call(self, command: Sequence[str], folder: str, what: str) -> None:
        call(command, folder, self.timeout, what, self._running)


class _Remembered:
    """Object files of this process: packing weights anew prints the same kernels, and every engine has a pool."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        return self._held.get(key)

    def put(self, key: str, data: bytes) -> None:
        with self._lock:
            if key not in self._held:
                self._held[key] = data
                self._size += len(data)
            while self._size > REMEMBERED:
                self._size -= len(self._held.pop(next(iter(self._held))))


@functools.cache
def _remembered() -> _Remembered:
    return _Remembered()
