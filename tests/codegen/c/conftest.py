"""Runs printed tile programs: compiles them for a level and calls the kernels on numpy arrays."""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from ourcc.codegen.c.abi import descriptor
from ourcc.codegen.c.compile import compile_shared
from ourcc.codegen.c.printer import Kernel, SourceFile
from ourcc.codegen.c.toolchain import Compiler, find_compiler
from ourcc.ir import dims, target
from ourcc.ir.dims import NO_FACTS, Facts
from ourcc.ir.tile.program import Param, TileProgram
from ourcc.runtime.native import withheld

Array = np.ndarray[Any, Any]
FOLDER = tempfile.TemporaryDirectory(prefix="ourcc-tests-")


def machine_levels() -> list[target.CpuLevel]:
    """AVX2 and AVX-512, as far as this machine runs them."""
    words = set(Path("/proc/cpuinfo").read_text().split()) if Path("/proc/cpuinfo").exists() else set()
    return [level for level in target.CPU_LEVELS[1:] if words.issuperset(level.features) and withheld(level.features) is None]


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
OURCC_EXPORT int32_t run_{name}(int threads, int64_t points, void *const *operands, const int64_t *symbols) {{
    return ourcc_launch(threads, points, &{descriptor}, operands, symbols);
}}
"""


def load_library(data: bytes) -> ctypes.CDLL:
    """A shared object under a path that no other one has."""
    path = Path(FOLDER.name, hashlib.sha256(data).hexdigest()[:24] + ".so")
    if not path.exists():  # what is loaded must not be written
        path.write_bytes(data)
    return ctypes.CDLL(str(path))


def storage(param: Param, symbols: Mapping[str, int]) -> Array:
    shape = tuple(dims.evaluate(size, symbols) for size in param.shape)
    if param.layout is not None:
        shape = tuple(dims.evaluate(size, symbols) for size in param.layout.extents(shape))
    return np.zeros(shape, param.dtype.numpy)


def print_programs(programs: Sequence[tuple[TileProgram, Facts]], level: target.CpuLevel) -> tuple[dict[str, str], list[list[Kernel]]]:
    """Programs as C files with a function that runs each kernel, and the kernels of each program."""
    file = SourceFile(level)
    drivers, printed = [], []
    for program, facts in programs:
        kernels = []
        for launch in program.launches:
            kernels.append(file.add(launch, f"kernel_{len(drivers)}", program.symbols, facts))
            drivers.append(
                DRIVER.format(name=kernels[-1].name, descriptor=descriptor(kernels[-1].name), declarations=kernels[-1].declaration)
            )
        printed.append(kernels)
    return {"kernels.c": file.text(), "drivers.c": "".join(drivers)}, printed


class Runner:
    """Compiles programs once for each level, many of them into one file, and runs them."""

    def __init__(self, compiler: Compiler, cache: Path) -> None:
        self.compiler, self.cache = compiler, cache
        self.built: dict[tuple[TileProgram, str], tuple[ctypes.CDLL, list[Kernel]]] = {}

    def build(self, programs: Sequence[tuple[TileProgram, Facts]], level: target.CpuLevel) -> None:
        sources, printed = print_programs(programs, level)
        # A level that adds products alone prints the same of most programs: compiled once, they are the same machine code.
        alike = (each for each in target.CPU_LEVELS if each.march == level.march)
        first = next((each for each in alike if each == level or print_programs(programs, each)[0] == sources), level)
        library = load_library(compile_shared(sources, first, self.compiler, cache=self.cache).data)
        for (program, _), kernels in zip(programs, printed, strict=True):
            self.built[program, level.name] = library, kernels

    def __call__(
        self,
        program: TileProgram,
        arrays: Mapping[str, Array],
        symbols: Mapping[str, int],
        level: target.CpuLevel,
        facts: Facts = NO_FACTS,
        threads: int = 1,
        among: Sequence[tuple[TileProgram, Facts]] = (),
    ) -> dict[str, Array]:
        """Run a program; `among` are programs that are compiled together with it."""
        if (program, level.name) not in self.built:
            self.build(among or [(program, facts)], level)
        library, kernels = self.built[program, level.name]
        names = tuple(program.symbols)
        sizes = (ctypes.c_int64 * max(1, len(names)))(*(symbols[name] for name in names))
        memory: dict[str, Array] = {}
        for launch, kernel in zip(program.launches, kernels, strict=True):
            for param in launch.params:
                if param.name not in memory:
                    given = arrays[param.name].copy() if param.name in arrays else storage(param, symbols)
                    memory[param.name] = np.ascontiguousarray(given)
            counters = [np.zeros(max(1, dims.evaluate(counter.extent, symbols)), np.int32) for counter in launch.counters]
            held = [*(memory[param.name] for param in launch.params), *counters]
            pointers = (ctypes.c_void_p * len(held))(*(array.ctypes.data for array in held))
            points = ctypes.c_int64(dims.evaluate(kernel.points, symbols))
            assert getattr(library, f"run_{kernel.name}")(threads, points, pointers, sizes) == 0
        workspaces = {workspace.name for workspace in program.workspaces}
        outputs = {p.name for launch in program.launches for p in launch.params if p.role != "in"}
        return {name: memory[name] for name in memory if name in outputs - workspaces}


class Functions:
    """Functions of f32 in the library, given with their number of operands, on arrays."""

    LANES = (1, 4, 8, 16)
    _made: ClassVar[dict[tuple[str, ...], Functions]] = {}

    @staticmethod
    def of(functions: Mapping[str, int], level: target.CpuLevel, compiler: Compiler) -> Functions:
        """These, compiled once for a level."""
        key = level.name, *functions
        if key not in Functions._made:
            Functions._made[key] = Functions(functions, level, compiler)
        return Functions._made[key]

    def __init__(self, functions: Mapping[str, int], level: target.CpuLevel, compiler: Compiler) -> None:
        library, loops = SourceFile(level).library, []
        for name, arity in functions.items():
            for lanes in self.LANES:
                operands = ", ".join(f"*(const {library._type('f32', lanes, 'u')} *)(x{n} + i)" for n in range(arity))
                call = library.call(f"{name}_f32", lanes, *(f"({library.vector('f32', lanes)}){each}" for each in operands.split(", ")))
                params = ", ".join(f"const float *x{n}" for n in range(arity))
                loops.append(f"OURCC_EXPORT void loop_{name}_{lanes}(int64_t count, float *y, {params}) {{")
                loops.append(f"    for (int64_t i = 0; i < count; i += {lanes}) *(f32x{lanes}u *)(y + i) = {call};\n}}")
        source = "\n".join(['#include "ourcc.h"', library.text(), *loops, ""])
        self.library = load_library(compile_shared({"functions.c": source}, level, compiler).data)

    def __call__(self, name: str, *operands: Array) -> Array:
        """The results, which are the same bits on every lane count and in every lane."""
        count = -(-operands[0].size // 16) * 16
        padded = [np.resize(operand.astype(np.float32), count) for operand in operands]
        results = [self._run(name, lanes, padded) for lanes in self.LANES]
        results += [np.roll(self._run(name, lanes, [np.roll(operand, 5) for operand in padded]), -5) for lanes in self.LANES]
        for result in results[1:]:
            np.testing.assert_array_equal(result.view(np.uint32), results[0].view(np.uint32))
        return results[0][: operands[0].size]

    def _run(self, name: str, lanes: int, operands: Sequence[Array]) -> Array:
        result = np.zeros_like(operands[0])
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (result, *operands)]
        getattr(self.library, f"loop_{name}_{lanes}")(ctypes.c_int64(result.size), *pointers)
        return result


def same_signs(result: Array, wanted: Array, where: Array) -> bool:
    """Whether numbers have the signs that they should have, zeros too."""
    return np.array_equal(np.signbit(result[where]), np.signbit(wanted[where]))


@pytest.fixture(scope="session")
def run_c(compiler: Compiler, object_files: Path) -> Runner:
    return Runner(compiler, object_files)
