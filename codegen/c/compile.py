"""The C compiler: finding one, and building shared objects whose bytes depend on their sources and flags alone."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ...ir.errors import ToolchainError
from ...ir.extras import install_hint, is_installed
from ...ir.target import CPU_LEVELS, CpuLevel
from .abi import KERNEL, descriptor, support_files
from .disassembly import KernelCode, disassemble
from .objects import ObjectFolder

_LOG = logging.getLogger(__name__)

HINT = f"install gcc or clang, set CC to one, or {install_hint('ziglang')}"

REMEMBERED = 16 << 20
"""Bytes of object files that a process remembers."""


@dataclass(frozen=True)
class Compiler:
    """A C compiler: how it is called, its family (gcc, clang, zig), its version line and the digest of its program."""

    command: tuple[str, ...]
    family: str
    version: str
    digest: str

    @property
    def identity(self) -> str:
        """What a lock or a record names it by."""
        return f"{self.version} sha256:{self.digest[:16]}"


@dataclass(frozen=True)
class SharedObject:
    """A compiled engine part: its bytes, what made them, and what became of the kernels that were asked about."""

    data: bytes
    level: str
    flags: tuple[str, ...]
    compiler: Compiler
    kernels: Mapping[str, KernelCode] = field(default_factory=dict)


def find_compiler(requested: str | None = None) -> Compiler:
    """The compiler `requested` (the value of CC), else gcc, clang, cc, else the ziglang wheel.

    ToolchainError says how to get one; a requested one that does not run is an error, never replaced.
    """
    if requested:
        return _probe(tuple(shlex.split(requested)))
    for name in ("gcc", "clang", "cc"):
        path = shutil.which(name)
        if path:
            return _probe((path,))
    if is_installed("ziglang"):
        return _probe((sys.executable, "-m", "ziglang", "cc"))
    raise ToolchainError("no c compiler found: got none of gcc, clang, cc and the ziglang package, expected one", hint=HINT)


@functools.cache
def _probe(command: tuple[str, ...]) -> Compiler:
    try:
        answer = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError(f"c compiler {shlex.join(command)!r} does not run: {error}", hint=HINT) from error
    version = answer.stdout.splitlines()[0].strip() if answer.stdout else "unknown"
    family = "zig" if "ziglang" in command else "clang" if "clang" in version.lower() else "gcc"
    return Compiler(command, family, version, _digest(command, family))


def _digest(command: tuple[str, ...], family: str) -> str:
    """The digest of the program that translates: cc1 for gcc, whose driver changes rarely, and zig for its wheel."""
    programs = [Path(shutil.which(command[0]) or command[0])]
    if family == "zig":
        spec = importlib.util.find_spec("ziglang")
        programs = [Path(spec.origin).with_name("zig")] if spec is not None and spec.origin else []
    elif family == "gcc":
        found = subprocess.run([*command, "-print-prog-name=cc1"], capture_output=True, text=True, timeout=60, check=False)
        programs.append(Path(found.stdout.strip()))
    digest = hashlib.sha256()
    for program in programs:
        if program.is_file():
            digest.update(program.resolve().read_bytes())
    return digest.hexdigest()


def flags_for(level: CpuLevel, compiler: Compiler) -> tuple[str, ...]:
    """Every option that decides the code; no default is relied on."""
    machine = [f"-march={level.march}", "-mtune=generic"]
    if compiler.family == "zig":
        machine = [f"-mcpu={level.march.replace('-', '_')}"]
    base = _features(level.march)
    machine += [f"-m{_OPTION.get(feature, feature)}" for feature in level.features if feature not in base]
    if level.vector_bits == 512 and compiler.family == "gcc":
        machine.append("-mprefer-vector-width=512")
    return (
        *("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off"),
        *("-fno-fast-math", "-fno-math-errno", "-fno-trapping-math", "-fno-stack-protector", "-fno-asynchronous-unwind-tables"),
        *("-fno-ident", "-g0", "-w", *machine),
    )


_OPTION = {"avx512_bf16": "avx512bf16", "avx512_vnni": "avx512vnni", "avx512_fp16": "avx512fp16", "avx_vnni": "avxvnni"}
_OPTION |= {"amx_tile": "amx-tile", "amx_int8": "amx-int8", "amx_bf16": "amx-bf16"}


def _features(march: str) -> tuple[str, ...]:
    return next((level.features for level in CPU_LEVELS if level.march == march), ())


# What can be loaded can be unloaded: the runtime keeps the one library whose pool the process uses.
LINK = ("-shared", "-s", "-Wl,--build-id=none", "-Wl,-z,noexecstack,-z,now", "-pthread", "-lm")


PRELUDE = """#define _GNU_SOURCE
#include "ourcc.h"
#include <immintrin.h>
#include <math.h>
#include <sched.h>
#include <string.h>
"""
"""What most files include. gcc reads its intrinsics for a quarter of a second, and for a tenth of that if it did so before."""

PRECOMPILED = 3
"""From so many files on, the prelude is compiled first; where it is there already, one file is enough."""


def _renamed(kernel: str, symbol: str) -> str:
    """Lines of C that give a kernel's function and its description another name."""
    return f"#define {kernel} {symbol}\n#define {descriptor(kernel)} {descriptor(symbol)}\n"


@dataclass(frozen=True)
class _Unit:
    """A C file to compile: its text as the compiler sees it, and the name there of the kernel that it defines, if it defines one."""

    name: str
    text: str
    symbol: str = ""

    @staticmethod
    def of_kernel(name: str, text: str) -> _Unit:
        """The file of a kernel, which is named by the text, so that equal kernels of any engine are one object file."""
        symbol = f"{KERNEL}_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
        return _Unit(name, f"{_renamed(KERNEL, symbol)}{text}", symbol)


def compile_shared(
    sources: Mapping[str, str],
    level: CpuLevel,
    compiler: Compiler,
    *,
    jobs: int = 2,
    timeout: float = 300.0,
    kernels: Sequence[str] = (),
    cache: Path | None = None,
) -> SharedObject:
    """Compile C files (name -> text) and the thread pool into one shared object for an instruction-set level.

    File names become part of messages only; the same texts give the same bytes in any folder. The file NAME.c of each of
    `kernels` defines it and its description under the name `abi.KERNEL`, the other files launch it as NAME; what the compiler
    made of it is counted.
    Object files are kept in the folder `cache`, and what is found there is not compiled again.
    """
    files = {**sources, **support_files()}
    flags = flags_for(level, compiler)
    headers = tuple((name, text) for name, text in files.items() if not name.endswith(".c"))
    owned = {f"{kernel}.c": kernel for kernel in kernels}
    texts = {name: files[name] for name in sorted(files) if name.endswith(".c")}
    units = [_Unit.of_kernel(name, text) if name in owned else _Unit(name, text) for name, text in texts.items()]
    renamed = "".join(_renamed(owned[unit.name], unit.symbol) for unit in units if unit.symbol)
    units = [unit if unit.symbol or unit.name not in sources else _Unit(unit.name, renamed + unit.text) for unit in units]
    made = _Objects(compiler, flags, headers, timeout, None if cache is None else ObjectFolder(cache))
    objects = made.all(list({unit.text: unit for unit in reversed(units)}.values()), jobs)
    with tempfile.TemporaryDirectory(prefix="ourcc-") as folder:
        for name, data in objects.items():
            Path(folder, name).write_bytes(data)
        _call([*compiler.command, *flags, *objects, "-o", "engine.so", *LINK], folder, timeout, "the shared object")
        data = Path(folder, "engine.so").read_bytes()
        symbols = {owned[unit.name]: unit.symbol for unit in units if unit.symbol}
        code = disassemble(Path(folder), [f"{name}.o" for name in symbols if f"{name}.o" in objects], symbols.values()) if symbols else {}
    counted = {kernel: code[symbol] for kernel, symbol in symbols.items() if symbol in code}
    return SharedObject(data, level.name, (*flags, *LINK), compiler, counted)


@dataclass(frozen=True)
class _Objects:
    """Makes the object files of one shared object."""

    compiler: Compiler
    flags: tuple[str, ...]
    headers: tuple[tuple[str, str], ...]
    timeout: float
    folder: ObjectFolder | None

    def all(self, units: Sequence[_Unit], jobs: int) -> dict[str, bytes]:
        """The object file of each unit, by its name."""
        keys = {unit.name: self._key(unit) for unit in units}
        found = {unit.name: self._known(keys[unit.name]) for unit in units}
        missing = [unit for unit in units if found[unit.name] is None]
        prelude = self._prelude([unit for unit in missing if _is_wide(unit)])
        with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
            calls = {unit.name: pool.submit(self._compile, unit, keys[unit.name], prelude) for unit in missing}
            return {f"{name[:-2]}.o": calls[name].result() if data is None else data for name, data in found.items()}

    def _key(self, unit: _Unit) -> str:
        machine = os.confstr("CS_GNU_LIBC_VERSION") or ""  # whose headers are read
        parts = (
            self.compiler.digest,
            self.compiler.version,
            machine,
            *self.compiler.command[1:],
            *self.flags,
            *map(str, self.headers),
            unit.text,
        )
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _known(self, key: str) -> bytes | None:
        data = _remembered().get(key)
        if data is None and self.folder is not None:
            data = self.folder.get(key)
        return data

    def _compile(self, unit: _Unit, key: str, prelude: Path | None) -> bytes:
        with tempfile.TemporaryDirectory(prefix="ourcc-") as folder:
            # One name for all: it would be part of the bytes.
            for file, content in (("unit.c", unit.text), *self.headers):
                Path(folder, file).write_text(content)
            before = ["-include", str(prelude)] if prelude is not None and _is_wide(unit) else []
            _call([*self.compiler.command, *self.flags, *before, "-c", "unit.c", "-o", "object.o"], folder, self.timeout, unit.name)
            data = Path(folder, "object.o").read_bytes()
        _remembered().put(key, data)
        if self.folder is not None:
            self.folder.put(key, data)
        return data

    def _prelude(self, units: Sequence[_Unit]) -> Path | None:
        """The compiled prelude for these units; None where it does not pay, or there is no place to keep it."""
        if self.folder is None or self.compiler.family != "gcc" or not units:
            return None
        name = f"prelude-{self._key(_Unit('prelude.h', PRELUDE))[:24]}"
        if len(units) < PRECOMPILED and not (self.folder.path / name).exists():
            return None
        folder = self.folder.folder(name)
        if folder is None:
            return None
        header, compiled = folder / "prelude.h", folder / "prelude.h.gch"
        try:
            if not compiled.exists():
                for file, content in (("prelude.h", PRELUDE), *self.headers):
                    (folder / file).write_text(content)
                command = [*self.compiler.command, *self.flags, "-x", "c-header", "prelude.h", "-o", f"prelude.{os.getpid()}"]
                _call(command, str(folder), self.timeout, "the prelude")
                os.replace(folder / f"prelude.{os.getpid()}", compiled)
        except (OSError, ToolchainError) as error:
            _LOG.warning("the prelude is not compiled beforehand: %s", error)
            return None
        return header


def _is_wide(unit: _Unit) -> bool:
    """Whether a file includes what takes most compilers longest to read."""
    return "<immintrin.h>" in unit.text


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


def _call(command: Sequence[str], folder: str, timeout: float, what: str) -> None:
    _LOG.debug("%s", shlex.join(command))
    try:
        answer = _run(command, folder, timeout)
    except subprocess.TimeoutExpired as error:
        raise ToolchainError(f"compiling {what} took more than {timeout:g} s", hint="give the compiler more time") from error
    except OSError as error:
        raise ToolchainError(f"compiling {what} failed: {error}", hint=HINT) from error
    name = shlex.join(command[:1])
    if answer.returncode < 0:
        raise ToolchainError(f"c compiler {name} was ended by signal {-answer.returncode} at {what}", hint="see that memory suffices")
    if answer.returncode != 0:
        lines = [line for line in answer.stderr.splitlines() if "error" in line or "undefined" in line] or answer.stderr.splitlines()
        raise ToolchainError(f"the c compiler refused {what}", note="\n".join(lines[:8]))
    output = Path(folder, command[len(command) - 1 - command[::-1].index("-o") + 1])
    size = output.stat().st_size if output.is_file() else None
    if size is None:
        raise ToolchainError(f"c compiler {name} told no error and did not write {output.name} for {what}", hint=HINT)
    if output.suffix in (".o", ".so") and not _is_elf(output):
        raise ToolchainError(f"c compiler {name} wrote {size} bytes as {output.name} for {what}, expected an ELF file", hint=HINT)


def _run(command: Sequence[str], folder: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """The compiler's answer. Its own children go with it: a driver that is killed alone leaves them at work."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, process_group=0) as running:
        try:
            output, errors = running.communicate(timeout=timeout)
        except BaseException:
            # A group of its own is not reached by the terminal's Ctrl-C, which ends up here.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, running.returncode, output, errors)


def _is_elf(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"
