"""Every op's region through its strategy to C: the compiled kernel computes what the region means."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ourcc.codegen.c.abi import descriptor
from ourcc.codegen.c.compile import SharedObject, compile_shared
from ourcc.codegen.c.printer import Kernel, SourceFile
from ourcc.codegen.c.toolchain import find_compiler
from ourcc.ir import dims
from ourcc.ir.graph.reference import judge
from ourcc.ir.ops import table
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS
from ourcc.ir.target import AVX2, AVX512, AVX512_AMX, AVX512_BF16, AVX512_VNNI, CpuLevel
from ourcc.ir.tile.program import TileProgram
from ourcc.ir.types import type_of
from ourcc.passes.lower.layout import constant_layouts
from ourcc.passes.regions.simplify_region import simplify_region
from ourcc.passes.regions.spell_out import spell_out
from ourcc.passes.tile.cpu import STRATEGIES
from ourcc.passes.tile.schedule import Problem, matches
from ourcc.runtime.native import cpu_flags, withheld

FILES = 8


def problems() -> Iterator[tuple[str, Problem, dict[str, Any], dict[str, Any]]]:
    """Each sample's problem once with its operands unknown and, where a layout applies, once with them constant."""
    for op in OPS.values():
        for number, sample in enumerate(op.sample_list() if op.has_region else []):
            if sample.error is not None or not all(a is None or type_of(a).dtype.has_kernels for a in sample.operands):
                continue
            region = region_of(op, [None if a is None else type_of(a) for a in sample.operands], sample.attrs)
            assert region is not None
            arrays = {f"x{n}": a for n, a in enumerate(sample.operands) if a is not None}
            if not all(operand.type.dtype.has_kernels for operand in region.outputs):
                continue
            results = tuple(operand.type for operand in region.outputs)
            stepwise, wide = (table.run(op, sample.operands, sample.attrs, results, mode) for mode in (False, True))
            expected = {o.name: pair for o, *pair in zip(region.outputs, stepwise, wide, strict=True)}
            region = simplify_region(spell_out(region), dims.NO_FACTS)
            layouts = constant_layouts(region, frozenset(arrays))
            for chosen in ({}, layouts) if layouts else ({},):
                yield f"{op.name}-{number}{'-packed' if chosen else ''}", Problem(region, dims.NO_FACTS, chosen), arrays, expected


SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def export(kernels: list[Kernel]) -> str:
    """A C file that exports the kernels of the other file, in order: kernels themselves are hidden."""
    names = ", ".join(f"&{descriptor(kernel.name)}" for kernel in kernels)
    table = f"OURCC_EXPORT const ourcc_kernel *const kernels[] = {{{names}}};"
    return "\n".join(['#include "ourcc.h"', *(k.declaration for k in kernels), table, ""])


def functions(path: Path, kernels: list[Kernel]) -> dict[str, Any]:
    """The kernels of a shared object by name."""
    library = ctypes.CDLL(str(path))
    addresses = (ctypes.c_void_p * len(kernels)).in_dll(library, "kernels")
    return {
        kernel.name: SIGNATURE(ctypes.c_void_p.from_address(address).value or 0) for kernel, address in zip(kernels, addresses, strict=True)
    }


def run(
    library: dict[str, Any], kernels: list[Kernel], problem: Problem, arrays: dict[str, Any], expected: dict[str, Any]
) -> dict[str, Any]:
    """Call the kernels of one problem in order."""
    memory: dict[str, Any] = {}
    for operand in problem.region.inputs:
        array = np.ascontiguousarray(arrays[operand.name]).reshape(tuple(dims.evaluate(d, {}) for d in operand.type.shape))
        memory[operand.name] = problem.layouts[operand.name].pack(array) if operand.name in problem.layouts else array
    for name, (array, _) in expected.items():
        memory[name] = np.zeros_like(array, order="C")
    for kernel in kernels:
        # Reading a little past the end must not be needed: every operand gets a buffer of exactly its size.
        pointers = (ctypes.c_void_p * len(kernel.operands))(*(memory[name].ctypes.data for name in kernel.operands))
        assert library[kernel.name](ctypes.cast(pointers, ctypes.c_void_p), None, 0, dims.evaluate(kernel.points, {})) == 0
    return {name: memory[name] for name in expected}


def may_gain(problem: Problem, level: CpuLevel) -> bool:
    """Whether a problem has operands of the products that a level adds to those of AVX-512; all do for one that adds registers."""
    added = [instruction for instruction in level.instructions if instruction not in AVX512.instructions]
    names = {name for each in added for name in (each.left, each.right)}
    return level in (AVX2, AVX512) or any(operand.type.dtype.name in names for operand in problem.region.inputs)


Printed = tuple[tuple[Kernel, ...], str]
"""The kernels of a program under one name, and a file of them alone: what they are compiled from, and how they are called."""


def printed(programs: Iterable[TileProgram], level: CpuLevel) -> list[Printed]:
    made = []
    for program in programs:
        file = SourceFile(level)
        made.append((tuple(file.add(launch, "kernel", ()) for launch in program.launches), file.text()))
    return made


def programs_for(level: CpuLevel, known: Sequence[Problem]) -> list[TileProgram]:
    """What the first strategy makes of each problem."""
    firsts = [next(matches(STRATEGIES, problem, level)) for problem in known]
    return [match.strategy.tile(match, next(iter(match.strategy.space(match, level))), level) for match in firsts]


@pytest.mark.parametrize("machine", [AVX2, AVX512, AVX512_VNNI, AVX512_BF16, AVX512_AMX], ids=lambda level: level.name)
def test_kernels_compute_their_regions(machine: CpuLevel, tmp_path: Path, object_files: Path) -> None:
    level = machine
    if not cpu_flags().issuperset(level.features) or withheld(level.features) is not None:
        pytest.skip(f"this cpu lacks {', '.join(sorted(set(level.features) - cpu_flags()))}, or withholds it")
    every = [each for each in problems() if may_gain(each[1], level)]
    known = [problem for _, problem, *_ in every]
    programs = programs_for(level, known)
    # A level that adds products alone prints most kernels as AVX-512 does, where they are compiled and run.
    below = frozenset[Printed]() if level in (AVX2, AVX512) else frozenset(printed(programs_for(AVX512, known), AVX512))
    files = [SourceFile(level) for _ in range(FILES)]
    work, held = [], dict[Printed, tuple[int, list[Kernel]]]()
    for number, ((name, problem, arrays, expected), program, text) in enumerate(
        zip(every, programs, printed(programs, level), strict=True)
    ):
        if text in below:
            continue
        if text not in held:
            # Equal texts are compiled once, and run for each sample.
            kernels = [files[len(held) % FILES].add(launch, f"kernel_{number}_{n}", ()) for n, launch in enumerate(program.launches)]
            held[text] = len(held) % FILES, kernels
        work.append((held[text][0], name, held[text][1], problem, arrays, expected))
    assert len(held) > (1000 if level in (AVX2, AVX512) else 0)
    compiler, parts = find_compiler(), [(f"part{n}.c", file.text(), export(file.kernels)) for n, file in enumerate(files)]

    def compiled(part: tuple[str, str, str]) -> SharedObject:
        name, text, table = part
        return compile_shared({name: text, "table.c": table}, level, compiler, jobs=1, cache=object_files)

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compiled, parts))
    libraries = []
    for n, item in enumerate(objects):
        path = tmp_path / f"part{n}.so"
        path.write_bytes(item.data)
        libraries.append(functions(path, files[n].kernels))
    wrong = []
    for file, name, kernels, problem, arrays, expected in work:
        got = run(libraries[file], kernels, problem, arrays, expected)
        for output, (stepwise, wide) in expected.items():
            verdict = judge(got[output], stepwise, wide)
            if not verdict.passed:
                wrong.append(f"{name}: {output}: {verdict.reason}")
    assert not wrong, f"{len(wrong)} of {len(work)} are wrong:\n" + "\n".join(wrong)
