"""The C compiler: finding one, the options that decide its code, calling it."""

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
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...ir.errors import ToolchainError
from ...ir.extras import install_hint, is_installed
from ...ir.target import CPU_LEVELS, CpuLevel

_LOG = logging.getLogger(__name__)

HINT = f"install gcc or clang, set CC to one, or {install_hint('ziglang')}"


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
    needless = (*base, *_ASSEMBLED) if compiler.family == "gcc" else base
    machine += [f"-m{_OPTION.get(feature, feature)}" for feature in level.features if feature not in needless]
    if level.vector_bits == 512 and compiler.family == "gcc":
        machine.append("-mprefer-vector-width=512")
    return (
        *("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off"),
        *("-fno-fast-math", "-fno-math-errno", "-fno-trapping-math", "-fno-stack-protector", "-fno-asynchronous-unwind-tables"),
        *("-fno-ident", "-g0", "-w", *machine),
    )


_OPTION = {"avx512_bf16": "avx512bf16", "avx512_vnni": "avx512vnni", "avx512_fp16": "avx512fp16", "avx_vnni": "avxvnni"}
_OPTION |= {"amx_tile": "amx-tile", "amx_int8": "amx-int8", "amx_bf16": "amx-bf16", "amx_fp16": "amx-fp16"}
_ASSEMBLED = ("amx_fp16",)
"""Features that stand in assembly alone: gcc's assembler knows more of them than gcc 12 does, and asks for no option."""


def _features(march: str) -> tuple[str, ...]:
    return next((level.features for level in CPU_LEVELS if level.march == march), ())


class Running:
    """The compilers that several threads wait for, to be ended together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes = set[int]()
        self._is_stopped = False

    @contextlib.contextmanager
    def holding(self, process: int) -> Iterator[None]:
        """While a process, which leads a group of its own, runs."""
        with self._lock:
            self._processes.add(process)
            if self._is_stopped:
                _end(process)
        try:
            yield
        finally:
            with self._lock:
                self._processes.discard(process)

    def stop(self) -> None:
        """End those that run, and those that begin from now on."""
        with self._lock:
            self._is_stopped = True
            for process in self._processes:
                _end(process)


def _end(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def call(command: Sequence[str], folder: str, timeout: float, what: str, running: Running | None = None) -> None:
    """Run the compiler in a folder, to write what follows -o; ToolchainError says at `what` and why it wrote none.

    Whoever has `running` can end it.
    """
    _LOG.debug("%s", shlex.join(command))
    try:
        answer = _run(command, folder, timeout, running or Running())
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


def _run(command: Sequence[str], folder: str, timeout: float, group: Running) -> subprocess.CompletedProcess[str]:
    """The compiler's answer. Its own children go with it: a driver that is killed alone leaves them at work."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, process_group=0) as running:
        try:
            with group.holding(running.pid):
                output, errors = running.communicate(timeout=timeout)
        except BaseException:
            # A group of its own is not reached by the terminal's Ctrl-C, which ends up here.
            _end(running.pid)
            raise
    return subprocess.CompletedProcess(command, running.returncode, output, errors)


def _is_elf(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"
