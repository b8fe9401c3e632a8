"""Shared objects whose bytes depend on their sources and flags alone."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...ir.target import CpuLevel
from .disassembly import KernelCode, disassemble
from .toolchain import Compiler, call
from .units import ObjectFiles, Unit, renamed

# What can be loaded can be unloaded: the runtime keeps the one library whose pool the process uses.
LINK = ("-shared", "-s", "-Wl,--build-id=none", "-Wl,-z,noexecstack,-z,now", "-pthread", "-lm")


@dataclass(frozen=True)
class SharedObject:
    """A compiled engine part: its bytes, what made them, and what became of the kernels that were asked about."""

    data: bytes
    level: str
    flags: tuple[str, ...]
    compiler: Compiler
    kernels: Mapping[str, KernelCode] = field(default_factory=dict)


def compile_shared(
    sources: Mapping[str, str],
    level: CpuLevel,
    compiler: Compiler,
    *,
    jobs: int = 2,
    timeout: float = 300.0,
    kernels: Sequence[str] = (),
    cache: Path | None = None,
    objects: ObjectFiles | None = None,
) -> SharedObject:
    """Compile C files (name -> text) and the thread pool into one shared object for an instruction-set level.

    File names become part of messages only; the same texts give the same bytes in any folder. The file NAME.c of each of
    `kernels` defines it and its description under the name `abi.KERNEL`, the other files launch it as NAME; what the compiler
    made of it is counted.
    Object files are kept in the folder `cache`, and what is found there is not compiled again. `objects` are those of this level
    that were begun before.
    """
    with contextlib.ExitStack() as stack:
        made = objects or stack.enter_context(ObjectFiles(compiler, level, jobs=jobs, timeout=timeout, cache=cache))
        owned = {f"{kernel}.c": kernel for kernel in kernels}
        files = {**{name: text for name, text in sources.items() if name.endswith(".c")}, **made.support}
        units = [Unit.of_kernel(name, files[name]) if name in owned else Unit(name, files[name]) for name in sorted(files)]
        names = "".join(renamed(owned[unit.name], unit.symbol) for unit in units if unit.symbol)
        units = [unit if unit.symbol or unit.name not in sources else Unit(unit.name, names + unit.text) for unit in units]
        compiled = made.all(list({unit.text: unit for unit in reversed(units)}.values()))
    with tempfile.TemporaryDirectory(prefix="ourcc-") as folder:
        for name, data in compiled.items():
            Path(folder, name).write_bytes(data)
        call([*compiler.command, *made.flags, *compiled, "-o", "engine.so", *LINK], folder, timeout, "the shared object")
        data = Path(folder, "engine.so").read_bytes()
        symbols = {owned[unit.name]: unit.symbol for unit in units if unit.symbol}
        code = disassemble(Path(folder), [f"{name}.o" for name in symbols if f"{name}.o" in compiled], symbols.values()) if symbols else {}
    counted = {kernel: code[symbol] for kernel, symbol in symbols.items() if symbol in code}
    return SharedObject(data, level.name, (*made.flags, *LINK), compiler, counted)
