"""Cubins of Triton functions and their listings, kept by content: what was compiled once is not compiled again.

Triton's own cache holds the cubins, under the folder that `OURCC_CACHE_DIR` or the user's cache names.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("OURCC_CACHE_DIR", Path.home() / ".cache" / "ourcc")) / "kernels"


@dataclass(frozen=True, eq=False)
class Cubin:
    """A kernel for one architecture: its listing, the source that its lines stand in, and what it takes of a processor.

    `registers` are those of a thread, `shared` bytes those of a program and `columns` of tensor memory too, `warps` those that
    a program is launched with, `constants` the values of names that its source uses. `marks` are accesses to global memory
    and matrix instructions by line of the source in the PTX, where no loop is unrolled yet.
    """

    name: str
    listing: str
    source: str
    first_line: int
    constants: Mapping[str, int | float | bool | str]
    warps: int
    registers: int
    shared: int
    marks: Mapping[str, list[int]]
    columns: int = 0


def compile_function(
    function: Any, capability: int, types: Mapping[str, str], constants: Mapping[str, Any], options: Mapping[str, int], aligned: bool = True
) -> Cubin:
    """A jitted function for an architecture; pointers (`*bf16`) are `aligned` to 16 bytes.

    Multiplications and additions are fused, as Triton does unless it is told. Raises what Triton raises.
    """
    os.environ.setdefault("TRITON_CACHE_DIR", str(FOLDER / "triton"))
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = function.arg_names
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    divided = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if aligned and signature[name].startswith("*")}
    source = ASTSource(function, signature, {(names.index(name),): value for name, value in constants.items()}, divided)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"enable_fp_fusion": True, **options})
    cubin = compiled.asm["cubin"]
    return Cubin(
        function.__name__,
        listing_of(cubin),
        function.raw_src if isinstance(function.raw_src, str) else "".join(function.raw_src),
        function.starting_line_number,
        dict(constants),
        warps_of(compiled.asm["ptx"]),
        registers_of(cubin),
        int(compiled.metadata.shared),
        marks_of(compiled.asm["ptx"]),
        columns_of(compiled.asm["ptx"]),
    )


def warps_of(ptx: str) -> int:
    """Warps of a program as compiled, which are more than asked for where the compiler gives some of them other work."""
    found = re.search(r"\.reqntid\s+([0-9]+)", ptx)
    if found is None:
        raise ValueError("the PTX does not say how many threads a program has")
    return int(found[1]) // 32


_ALLOCATED = re.compile(r"\btcgen05\.alloc\.[^\n]*?, (\d+);")


def columns_of(ptx: str) -> int:
    """Columns of tensor memory that a program takes."""
    return sum(map(int, _ALLOCATED.findall(ptx)))


_PLACE = re.compile(r"^\s*\.loc\s+([0-9]+)\s+([0-9]+)[^\n]*?(?:inlined_at\s+([0-9]+)\s+([0-9]+).*)?$")
_ACCESS = re.compile(r"\b(ld|st)\.global")
_MATRIX = re.compile(r"\b(wgmma\.mma_async|tcgen05\.mma|mma\.sync)")


def marks_of(ptx: str) -> dict[str, list[int]]:
    """Accesses to global memory and matrix instructions in PTX, by the line of the kernel's source that they stand for.

    What a library function does stands for the line that calls it, or for the last line of the kernel before it. Inline
    assembly stands for the line before it: its printer gives every row of it a line of its own, each one further down.
    """
    found: dict[str, list[int]] = {}
    own, line, inline = None, "0", False
    for row in ptx.splitlines():
        if "inline asm" in row:
            inline = "begin" in row
        elif inline and _PLACE.match(row):
            continue
        elif place := _PLACE.match(row):
            own = own or place[1]
            line = place[4] if place[3] == own else place[2] if place[1] == own else line
        elif _ACCESS.search(row):
            found.setdefault(line, [0, 0])[0] += 1
        elif _MATRIX.search(row):
            found.setdefault(line, [0, 0])[1] += 1
    return found


def listing_of(cubin: bytes) -> str:
    """The listing of a cubin."""
    from triton import knobs

    return _said(cubin, knobs.nvidia.nvdisasm.path, "-c", "-gi")


def registers_of(cubin: bytes) -> int:
    """Registers of a thread, as the cubin reports them."""
    from triton import knobs

    found = re.findall(r"REG:([0-9]+)", _said(cubin, knobs.nvidia.cuobjdump.path, "--dump-resource-usage"))
    return max(int(each) for each in found)


def _said(cubin: bytes, *command: str) -> str:
    """What a program of the toolkit prints of a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([*command, file.name], capture_output=True, text=True, check=True).stdout
