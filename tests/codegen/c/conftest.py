"""Runs printed tile programs: compiles them for a level and calls the kernels on numpy arrays."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ourcc.codegen.c.compile import Compiler, compile_shared, find_compiler
from ourcc.codegen.c.printer import SourceFile
from ourcc.ir import dims, target
from ourcc.ir.dims import NO_FACTS, Facts
from ourcc.ir.tile.program import Param, TileProgram

Array = np.ndarray[Any, Any]
FOLDER = tempfile.TemporaryDirectory(prefix="ourcc-tests-")


def machine_levels() -> list[target.CpuLevel]:
    """AVX2 and AVX-512, as far as this machine runs them."""
    words = set(Path("/proc/cpuinfo").read_text().split()) if Path("/proc/cpuinfo").exists() else set()
    return [level for level in target.CPU_LEVELS[1:] if words.issuperset(level.features)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "level" in metafunc.fixturenames:
        levels = machine_levels()
        metafunc.parametrize("level", levels, ids=[level.name for level in levels])


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    return find_compiler()


DRIVER = """
#include "ourcc.h"
{declarations}
OURCC_EXPORT void run_{name}(int threads, int64_t points, void *const *operands, const int64_t *symbols) {{
    ourcc_launch(threads, points, {name}, operands, symbols);
}}
"""


@functools.cache
def load_library(data: bytes) -> ctypes.CDLL:
    """A shared object under a path that no other one has."""
    path = Path(FOLDER.name, hashlib.sha256(data).hexdigest()[:24] + ".so")
    path.write_bytes(data)
    return ctypes.CDLL(str(path))


def storage(param: Param, symbols: Mapping[str, int]) -> Array:
    shape = tuple(dims.evaluate(size, symbols) for size in param.shape)
    if param.layout is not None:
        shape = tuple(dims.evaluate(size, symbols) for size in param.layout.extents(shape))
    return np.zeros(shape, param.dtype.numpy)


@pytest.fixture(scope="session")
def run_c(compiler: Compiler) -> Callable[..., dict[str, Array]]:
    def run(
        program: TileProgram,
        arrays: Mapping[str, Array],
        symbols: Mapping[str, int],
        level: target.CpuLevel,
        facts: Facts = NO_FACTS,
        threads: int = 1,
    ) -> dict[str, Array]:
        file = SourceFile(level)
        names = tuple(program.symbols)
        kernels = [file.add(launch, f"kernel_{n}", names, facts) for n, launch in enumerate(program.launches)]
        drivers = [DRIVER.format(name=kernel.name, declarations=kernel.declaration) for kernel in kernels]
        library = load_library(compile_shared({"kernels.c": file.text(), "drivers.c": "".join(drivers)}, level, compiler).data)
        memory: dict[str, Array] = {}
        sizes = (ctypes.c_int64 * max(1, len(names)))(*(symbols[name] for name in names))
        for launch, kernel in zip(program.launches, kernels, strict=True):
            for param in launch.params:
                if param.name not in memory:
                    memory[param.name] = arrays[param.name].copy() if param.name in arrays else storage(param, symbols)
            counters = [np.zeros(max(1, dims.evaluate(counter.extent, symbols)), np.int32) for counter in launch.counters]
            held = [np.ascontiguousarray(memory[param.name]) for param in launch.params]
            for param, array in zip(launch.params, held, strict=True):
                memory[param.name] = array
            pointers = (ctypes.c_void_p * (len(held) + len(counters)))(*(a.ctypes.data for a in (*held, *counters)))
            function = getattr(library, f"run_{kernel.name}")
            function(threads, ctypes.c_int64(dims.evaluate(kernel.points, symbols)), pointers, sizes)
        workspaces = {workspace.name for workspace in program.workspaces}
        outputs = {p.name for launch in program.launches for p in launch.params if p.role != "in"}
        return {name: memory[name] for name in memory if name in outputs - workspaces}

    return run
