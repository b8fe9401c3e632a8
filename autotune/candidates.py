"""Candidates of one problem as one shared object: each in a file of its own, called and timed through one function."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..codegen.c.abi import declaration, descriptor
from ..codegen.c.compile import compile_shared
from ..codegen.c.printer import Kernel, SourceFile
from ..codegen.c.toolchain import Compiler
from ..ir import dims
from ..ir.dims import Dim
from ..ir.errors import ToolchainError, UnsupportedError, is_own, reason
from ..ir.region import Load, Reduce, Region, Store, scalars, walk
from ..ir.target import CpuLevel
from ..ir.tile.made import made_of
from ..ir.tile.program import Param, TileProgram
from ..ir.types import DType, i32
from ..passes.tile.schedule import Candidate, Problem
from .record import Failure, scrub
from .worker import draw

MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class CandidateBuffer:
    """Memory that candidates read or write: role in, given, out or scratch, and how an input is drawn."""

    role: str
    dtype: DType
    count: int
    bound: int = 2

    def to_json(self) -> dict[str, Any]:
        """What the child needs to make it."""
        size = math.ceil(self.count * self.dtype.bits / 8)
        kind = "complex" if self.dtype.kind == "complex" else "float" if self.dtype.is_float else "index"
        drawn = "bytes" if self.dtype.bits < 8 else kind
        return {
            "role": self.role,
            "dtype": self.dtype.numpy.name,
            "count": self.count,
            "bytes": size,
            "draw": drawn,
            "bound": self.bound,
        }


@dataclass
class Sources:
    """C files of those candidates that could be printed, their kernels, the buffers that they use, and why others could not.

    `made` are buffers that are given, by their numbers: the operand, the one that it is made of, and the number of that.
    """

    buffers: list[CandidateBuffer] = field(default_factory=list)
    files: dict[int, str] = field(default_factory=dict)
    calls: dict[int, list[str]] = field(default_factory=dict)
    kernels: dict[int, list[str]] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    made: dict[int, tuple[Param, Param, int]] = field(default_factory=dict)

    def given(self, seed: int) -> list[bytes]:
        """The contents of the buffers that are given, in order, as the child draws the others with that seed."""
        if not self.made:
            return []
        random = np.random.default_rng(seed)
        drawn = [np.zeros(0, np.uint8) if number in self.made else draw(b.to_json(), random) for number, b in enumerate(self.buffers)]
        found = []
        for param, of, number in (self.made[place] for place in sorted(self.made)):
            values = drawn[number].view(of.dtype.numpy)[: self.buffers[number].count]
            found.append(made_of(param, of, values).tobytes())
        return found


def unmeasurable(problem: Problem, sizes: Mapping[str, int]) -> str | None:
    """Why a problem cannot be measured on made-up inputs; None if it can."""
    for part in scalars(problem.region.body):
        if isinstance(part, Load) and part.gathers:
            inner = [p for _, gather in part.gathers for p in walk(gather)]
            if any(isinstance(p, Load) and not (p.dtype.is_integer or p.dtype.kind == "bool") for p in inner):
                return "an index is computed from numbers that are no integers"
    total = 0.0
    for operand in (*problem.region.inputs, *problem.region.outputs):
        if operand.type.dtype.bits == 0:
            return f"%{operand.name} holds {operand.type.dtype}"
        total += dims.evaluate(operand.type.elements, sizes) * operand.type.dtype.bits / 8
    return f"its operands take {total / 2**30:.1f} GB, expected at most {MOST_BYTES / 2**30:.0f}" if total > MOST_BYTES else None


def print_candidates(problem: Problem, candidates: Sequence[Candidate], level: CpuLevel, sizes: Mapping[str, int]) -> Sources:
    """Print each candidate as a file; one that cannot be made is a failure of its own, whatever went wrong."""
    sources = Sources()
    bound = _index_bound(problem.region, sizes)
    places: dict[str, int] = {}
    for operand in (*problem.region.inputs, *problem.region.outputs):
        layout = problem.layouts.get(operand.name)
        shape: tuple[Dim, ...] = operand.type.shape if layout is None else layout.extents(operand.type.shape)
        role = "out" if operand in problem.region.outputs else "in"
        places[operand.name] = len(sources.buffers)
        sources.buffers.append(CandidateBuffer(role, operand.type.dtype, dims.evaluate(dims.product(shape), sizes), bound))
    for number, (match, schedule) in enumerate(candidates):
        before = len(sources.buffers)
        try:
            program = match.strategy.tile(match, schedule, level)
            _print_candidate(sources, number, program, level, problem, places, sizes)
        except Exception as failure:
            if not is_own(failure):
                raise
            del sources.buffers[before:]
            sources.made = {place: of for place, of in sources.made.items() if place < before}
            kind = "unsupported" if isinstance(failure, UnsupportedError) else "internal"
            sources.failures[number] = Failure(kind, scrub(reason(failure)))
    return sources


def _print_candidate(
    sources: Sources,
    number: int,
    program: TileProgram,
    level: CpuLevel,
    problem: Problem,
    places: Mapping[str, int],
    sizes: Mapping[str, int],
) -> None:
    file, symbols = SourceFile(level), tuple(problem.symbols.ranges)
    own, calls = dict(places), []
    for space in program.workspaces:
        own[space.name] = len(sources.buffers)
        sources.buffers.append(CandidateBuffer("scratch", space.dtype, dims.evaluate(dims.product(space.shape), sizes)))
    for param, made in program.made:
        own[param.name] = len(sources.buffers)
        sources.made[own[param.name]] = param, program.params[made.operand], places[made.operand]
        count = dims.product(param.shape if param.layout is None else param.layout.extents(param.shape))
        sources.buffers.append(CandidateBuffer("given", param.dtype, dims.evaluate(count, sizes)))
    for place, launch in enumerate(program.launches):
        kernel = file.add(launch, f"candidate_{number}_{place}", symbols, problem.symbols)
        operands = [own[param.name] for param in launch.params]
        for counter in launch.counters:
            extent = dims.evaluate(counter.extent, sizes)
            calls.append(f"memset(buffers[{len(sources.buffers)}], 0, {4 * extent});")
            operands.append(len(sources.buffers))
            sources.buffers.append(CandidateBuffer("scratch", i32, extent))
        calls.append(_call(kernel, operands, dims.evaluate(kernel.points, sizes)))
    sources.files[number], sources.calls[number] = file.text(), calls
    sources.kernels[number] = [kernel.name for kernel in file.kernels]


def _call(kernel: Kernel, operands: Sequence[int], points: int) -> str:
    named = ", ".join(f"buffers[{n}]" for n in operands) or "0"
    launch = f"ourcc_launch(1, INT64_C({points}), &{descriptor(kernel.name)}, operands, symbols)"
    return f"{{ void *operands[] = {{{named}}}; if ((status = {launch}) != 0) return status; }}"


def compile_candidates(sources: Sources, level: CpuLevel, compiler: Compiler, jobs: int = 2, cache: Path | None = None) -> bytes | None:
    """The shared object of all that compile; None if none does. What the compiler refuses becomes a failure. `cache` is of
    object files.
    """
    while sources.files:
        try:
            return _compile(sources, list(sources.files), level, compiler, jobs, cache)
        except ToolchainError as error:
            refused = [n for n in sources.files if _refusal(sources, n, level, compiler, cache) is not None]
            if not refused:
                raise
            for number in refused:
                sources.failures[number] = Failure("internal", scrub(error.note or error.message))
                del sources.files[number], sources.calls[number]
    return None


def _refusal(sources: Sources, number: int, level: CpuLevel, compiler: Compiler, cache: Path | None) -> str | None:
    try:
        _compile(sources, [number], level, compiler, 1, cache)
    except ToolchainError as error:
        return error.message
    return None


def _compile(sources: Sources, numbers: Sequence[int], level: CpuLevel, compiler: Compiler, jobs: int, cache: Path | None) -> bytes:
    files = {f"candidate_{n}.c": sources.files[n] for n in numbers}
    return compile_shared({**files, "measure.c": _driver(sources, numbers)}, level, compiler, jobs=jobs, cache=cache).data


def _driver(sources: Sources, numbers: Sequence[int]) -> str:
    """`ourcc_measure(candidate, buffers, symbols, repeats)`: nanoseconds of so many runs on one thread, or a kernel's failure, below 0."""
    lines = ['#include "ourcc.h"', "#include <string.h>", "#include <time.h>", ""]
    for n in numbers:
        lines += map(declaration, sources.kernels[n])
        lines += [f"static int32_t run_{n}(void *const *buffers, const int64_t *symbols) {{", "    int32_t status = 0;"]
        lines += [*(f"    {call}" for call in sources.calls[n]), "    return status;", "}", ""]
    signature = "int64_t ourcc_measure(int32_t candidate, void *const *buffers, const int64_t *symbols, int64_t repeats)"
    lines += [f"OURCC_EXPORT {signature};", f"{signature} {{", "    int32_t (*run)(void *const *, const int64_t *) = 0, status = 0;"]
    lines += [f"    if (candidate == {n}) run = run_{n};" for n in numbers]
    lines += ["    if (!run) return -1;", "    struct timespec start, end;", "    clock_gettime(CLOCK_MONOTONIC, &start);"]
    lines += ["    for (int64_t n = 0; n < repeats && status == 0; ++n) status = run(buffers, symbols);"]
    lines += ["    clock_gettime(CLOCK_MONOTONIC, &end);", "    if (status != 0) return status;"]
    lines += ["    return (end.tv_sec - start.tv_sec) * INT64_C(1000000000) + (end.tv_nsec - start.tv_nsec);", "}"]
    return "\n".join(lines) + "\n"


def allowed_ulps(region: Region, dtype: DType, sizes: Mapping[str, int]) -> float:
    """How far two orders of the same sums may lie apart, in units in the last place of the largest result.

    Rounding errors of a sum of k terms grow like the square root of k; a wrong tiling is off by much more.
    """
    longest = 1.0
    for statement in region.body:
        if isinstance(statement, Reduce):
            longest *= max(1.0, math.prod(dims.evaluate(region.axis(name).extent, sizes) for name in statement.over))
    return (16.0 if dtype.bits >= 32 else 4.0) * (1.0 + math.sqrt(longest) / 4)


def _index_bound(region: Region, sizes: Mapping[str, int]) -> int:
    """Integers below this index every operand that is gathered from or scattered to."""
    accesses = [(part.operand, part.subscripts, part.gathers) for part in scalars(region.body) if isinstance(part, Load) and part.gathers]
    accesses += [(s.output, s.subscripts, s.gathers) for s in region.body if isinstance(s, Store) and s.gathers]
    limits = [8]
    for operand, subscripts, gathers in accesses:
        names = {name for name, _ in gathers}
        shape = region.operand(operand).type.shape
        limits += [dims.evaluate(size, sizes) for size, s in zip(shape, subscripts, strict=True) if names & dims.symbols(s)]
    return max(1, min(limits)) if len(limits) == 1 else max(1, min(limits[1:]))
