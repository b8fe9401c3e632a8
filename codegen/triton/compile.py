"""Printed kernels compiled ahead of time to PTX and cubin, with the resource report, on a machine with no GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ...ir.errors import ToolchainError, UnsupportedError, reason
from ...ir.target import GpuTarget
from .children import COMPILERS
from .cubin import launch_needs
from .kernel import TritonKernel

WARP = 32
DEADLINE = 120.0
"""Seconds after which the toolchain is taken to hang on a kernel."""
LONGEST = 300
"""Characters of a reason."""


@dataclass(frozen=True)
class Resources:
    """What the assembler says of a kernel: per thread registers and bytes spilled, per program warps and bytes of memory.

    Warps are those that the cubin is for: more than were asked for where the compiler gives some of them other work.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int
    scratch: int
    warps: int
    parameters: int
    instructions: dict[str, int]

    @property
    def spilled(self) -> int:
        """Bytes that a thread moves because its registers are too few."""
        return self.spill_stores + self.spill_loads


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel for one target; `resources.scratch` bytes of global memory per program go to the first scratch pointer."""

    kernel: TritonKernel
    target: str
    ptx: str
    cubin: bytes
    resources: Resources


@dataclass(frozen=True)
class Failure:
    """A kernel that could not be built: the toolchain refused it, crashed or did not end, or the target cannot hold it."""

    error: ToolchainError | UnsupportedError

    @property
    def why(self) -> str:
        """The reason in one line."""
        return reason(self.error)[:LONGEST]


def compile_kernel(kernel: TritonKernel, target: GpuTarget, deadline: float = DEADLINE, *, is_read: bool = True) -> CompiledKernel:
    """PTX and cubin of a kernel; ToolchainError if Triton refuses it, UnsupportedError if the target cannot hold it.

    Where the machine code is not read, which takes the disassembler a quarter of a second, the mix has what PTX names alone.
    """
    request = {
        "kind": "compile",
        "name": kernel.name,
        "source": kernel.source,
        "signature": kernel.signature,
        "divisible": list(kernel.divisible),
        "arch": target.capability,
        "options": options(kernel, target),
        "is_read": is_read,
    }
    answer, blobs = COMPILERS.ask(request, [], deadline)
    if "error" in answer:
        raise ToolchainError(f"triton refused kernel {kernel.name} for {target.name}: {answer['error']}", note=kernel.source)
    ptx = blobs[0].decode()
    compiled = CompiledKernel(kernel, target.name, ptx, blobs[1], _resources(kernel, ptx, blobs[1], answer))
    if compiled.resources.shared > target.shared_memory:
        raise UnsupportedError(
            f"kernel {kernel.name} needs {compiled.resources.shared} bytes of shared memory, {target.name} has {target.shared_memory}",
            hint="choose smaller tiles or fewer stages",
        )
    return compiled


def compile_kernels(
    kernels: Iterable[TritonKernel], target: GpuTarget, deadline: float = DEADLINE, *, is_read: bool = True
) -> tuple[CompiledKernel, ...]:
    """All kernels, two at a time, in order."""
    with ThreadPoolExecutor(COMPILERS.size) as executor:
        return tuple(executor.map(lambda kernel: compile_kernel(kernel, target, deadline, is_read=is_read), kernels))


def try_kernels(kernels: Iterable[TritonKernel], target: GpuTarget, deadline: float = DEADLINE) -> tuple[CompiledKernel | Failure, ...]:
    """The same; one that cannot be built keeps no other from it."""

    def built(kernel: TritonKernel) -> CompiledKernel | Failure:
        try:
            return compile_kernel(kernel, target, deadline)
        except (ToolchainError, UnsupportedError) as error:
            return Failure(error)

    with ThreadPoolExecutor(COMPILERS.size) as executor:
        return tuple(executor.map(built, kernels))


def disassemble(cubin: bytes, name: str, deadline: float = DEADLINE) -> str:
    """The machine code of a cubin as text, for `codegen/sass`; ToolchainError if the disassembler refuses it."""
    answer, blobs = COMPILERS.ask({"kind": "disassemble", "name": name}, [cubin], deadline)
    if "error" in answer:
        raise ToolchainError(f"the disassembler refused the cubin of {name}: {answer['error']}")
    return blobs[0].decode()


def options(kernel: TritonKernel, target: GpuTarget) -> dict[str, Any]:
    """Every option that steers code generation, none left to a default."""
    return {
        "num_warps": kernel.warps,
        "num_stages": kernel.stages,
        "num_ctas": kernel.clusters,
        # The lowest ISA that the target and the kernel allow, so that the oldest driver that knows it loads the kernel.
        "ptx_version": max(target.ptx_isa, kernel.isa),
        # A fused multiply-add is printed where it is meant; subnormals are kept in library functions.
        "enable_fp_fusion": False,
        "enable_reflect_ftz": False,
        "default_dot_input_precision": "ieee",
        # Dots of fp8 that are to be added up often say so themselves.
        "max_num_imprecise_acc_default": 2**30,
        "launch_cooperative_grid": False,
        "launch_pdl": False,
        "sanitize_overflow": False,
        "debug": False,
    }


def _resources(kernel: TritonKernel, ptx: str, cubin: bytes, answer: dict[str, Any]) -> Resources:
    log, needs = answer["log"], launch_needs(cubin, kernel.name)
    if needs.threads != WARP * answer["warps"]:
        raise ToolchainError(f"kernel {kernel.name}: triton says {answer['warps']} warps, its cubin is for {needs.threads} threads")

    def number(pattern: str) -> int:
        found = re.search(pattern, log)
        if found is None:
            raise ToolchainError(f"the assembler's report on kernel {kernel.name} has no {pattern!r}", note=log)
        return int(found[1])

    return Resources(
        number(r"Used ([0-9]+) registers"),
        number(r"([0-9]+) bytes spill stores"),
        number(r"([0-9]+) bytes spill loads"),
        number(r"([0-9]+) bytes stack frame"),
        answer["shared"],
        answer["scratch"],
        answer["warps"],
        len(needs.parameters),
        instruction_mix(ptx, answer["sass"]),
    )


_PTX_FAMILIES = {
    "wgmma": r"\bwgmma\.mma_async",
    "tcgen05": r"\btcgen05\.mma",
    "mma.sync": r"\bmma\.sync",
    **{f"cp.async {n}": rf"\bcp\.async\.c[ag]\.\S+ \[[^\]]*\], \[[^\]]*\], (?:0x{n:x}|{n}),?" for n in (4, 8, 16)},
    "tma": r"\bcp\.async\.bulk\.tensor",
}


def instruction_mix(ptx: str, sass: dict[str, int]) -> dict[str, int]:
    """Counts that tell how a kernel works: matrix instructions, asynchronous copies, global accesses by bytes."""
    mix = {name: len(re.findall(pattern, ptx)) for name, pattern in _PTX_FAMILIES.items()}
    for name, count in sass.items():
        parts = name.split(".")
        family = {"LDG": "load", "STG": "store", "FFMA": "ffma", "MUFU": "mufu", "LDL": "local load", "STL": "local store"}.get(parts[0])
        if family in ("load", "store"):
            width = next(
                (int(p) // 8 for p in parts if p in ("64", "128", "256")),
                2 if "U16" in parts or "S16" in parts else 1 if {"U8", "S8"} & set(parts) else 4,
            )
            family = f"global {family} {width}"
        if family is not None:
            mix[family] = mix.get(family, 0) + count
    return {name: count for name, count in sorted(mix.items()) if count}
