"""The C compiler: finding one, and building shared objects whose bytes depend on their sources and flags alone."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import logging
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ...ir.errors import ToolchainError
from ...ir.extras import install_hint, is_installed
from ...ir.target import CpuLevel
from .abi import support_files
from .disassembly import KernelCode, disassemble

_LOG = logging.getLogger(__name__)

HINT = f"install gcc or clang, set CC to one, or {install_hint('ziglang')}"

OBJECTS = 64
"""So many object files are remembered by a process, a few hundred kilobytes each with their source."""


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


def _features(march: str) -> tuple[str, ...]:
    from ...ir.target import CPU_LEVELS

    return next((level.features for level in CPU_LEVELS if level.march == march), ())


# What can be loaded can be unloaded: the runtime keeps the one library whose pool the process uses.
LINK = ("-shared", "-s", "-Wl,--build-id=none", "-Wl,-z,noexecstack,-z,now", "-pthread", "-lm")


def compile_shared(
    sources: Mapping[str, str],
    level: CpuLevel,
    compiler: Compiler,
    *,
    jobs: int = 2,
    timeout: float = 300.0,
    kernels: Sequence[str] = (),
) -> SharedObject:
    """Compile C files (name -> text) and the thread pool into one shared object for an instruction-set level.

    File names become part of messages only; the same texts give the same bytes in any folder. What the compiler made of
    `kernels` is counted.
    """
    files = {**sources, **support_files()}
    flags = flags_for(level, compiler)
    headers = tuple((name, text) for name, text in files.items() if not name.endswith(".c"))
    units = sorted(name for name in files if name.endswith(".c"))
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        calls = [pool.submit(_object, name, files[name], headers, (*compiler.command, *flags), timeout) for name in units]
        objects = {f"{name[:-2]}.o": call.result() for name, call in zip(units, calls, strict=True)}
    with tempfile.TemporaryDirectory(prefix="ourcc-") as folder:
        for name, data in objects.items():
            Path(folder, name).write_bytes(data)
        _call([*compiler.command, *flags, *objects, "-o", "engine.so", *LINK], folder, timeout, "the shared object")
        data = Path(folder, "engine.so").read_bytes()
        counted = disassemble(Path(folder), list(objects), kernels) if kernels else {}
    return SharedObject(data, level.name, (*flags, *LINK), compiler, counted)


@functools.lru_cache(maxsize=OBJECTS)
def _object(name: str, text: str, headers: tuple[tuple[str, str], ...], command: tuple[str, ...], timeout: float) -> bytes:
    """The object file of one C file. Remembered: packing weights anew prints the same kernels, and every engine has a pool."""
    with tempfile.TemporaryDirectory(prefix="ourcc-") as folder:
        for file, content in ((name, text), *headers):
            Path(folder, file).write_text(content)
        _call([*command, "-c", name, "-o", "object.o"], folder, timeout, name)
        return Path(folder, "object.o").read_bytes()


def _call(command: Sequence[str], folder: str, timeout: float, what: str) -> None:
    _LOG.debug("%s", shlex.join(command))
    try:
        answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False)
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


def _is_elf(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"
