"""What the C compiler made of each kernel: vector registers, accesses of the stack, instructions by kind.

It is read from the disassembly of the object files (binutils' objdump, or llvm-objdump). Where neither is installed
nothing is known, and nothing is said.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("objdump", "llvm-objdump")
_FUNCTION = re.compile(r"^[0-9a-f]+ <([A-Za-z_]\w*)[^>]*>:$")
_REGISTER = re.compile(r"%[xyz]mm([0-9]+)")
_JUMP = re.compile(r"j[a-z]+ +([0-9a-f]+) ")
_ON_STACK = re.compile(r"-?(?:0x[0-9a-f]+)?\(%[er]sp\)")
# The first that matches names an instruction; a multiply-add that reads memory is a multiply-add.
KINDS: tuple[tuple[str, str], ...] = (
    ("matrix", r"tdp|tile"),
    ("dot", r"vpdp|vdpbf16"),
    ("multiply-add", r"vfn?m(?:add|sub)"),
    ("gather", r"vp?gather|vp?scatter"),
    ("broadcast", r"vp?broadcast"),
    ("move", r"vmov|vpmov[^a-z]|vlddqu"),
    ("vector", r"v|k(?:and|or|mov|not|xor|shift|unpck|test)"),
    ("branch", r"j|call|ret"),
    ("no-op", r"nop|data16|xchg +%ax,%ax|cs nop|endbr"),
    ("scalar", r""),
)
_KIND = re.compile("|".join(f"({pattern})" for _, pattern in KINDS))


@dataclass(frozen=True)
class KernelCode:
    """One kernel as it was compiled.

    `registers` are the vector registers that it names, `spills` its vector moves between registers and fixed places of
    the stack (an upper bound: a small array that lives on the stack counts too), `inner_spills` those of them in loops that
    hold no other, `instructions` the counts by kind.
    """

    registers: int
    spills: int
    inner_spills: int = 0
    instructions: Mapping[str, int] = field(default_factory=dict)

    @property
    def mix(self) -> str:
        """The counts as text, most frequent first."""
        return ", ".join(f"{count} {kind}" for kind, count in sorted(self.instructions.items(), key=lambda item: (-item[1], item[0])))


def disassemble(folder: Path, objects: Sequence[str], kernels: Iterable[str]) -> dict[str, KernelCode]:
    """What was made of each of the kernels that the object files hold; empty where no disassembler is installed."""
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        return {}
    command = [program, "--disassemble", "--no-show-raw-insn", *objects]
    try:
        listing = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        # The engine is whole without it; `inspect` then shows no counts.
        return {}
    return read_listing(listing, kernels)


def read_listing(listing: str, kernels: Iterable[str]) -> dict[str, KernelCode]:
    """Instructions of each kernel, with those of its parts that the compiler put elsewhere (`name.part.0`)."""
    lines: dict[str, list[tuple[int, str]]] = {name: [] for name in kernels}
    current: list[tuple[int, str]] | None = None
    for line in listing.splitlines():
        title = _FUNCTION.match(line)
        if title is not None:
            current = lines.get(title[1])
        elif current is not None and "\t" in line:
            address, text = line.split("\t", 1)
            current.append((int(address.strip(" :"), 16), text.strip()))
    return {name: _count(found) for name, found in lines.items() if found}


def _count(instructions: Sequence[tuple[int, str]]) -> KernelCode:
    registers: set[str] = set()
    kinds: Counter[str] = Counter()
    spills = []
    for address, text in instructions:
        registers.update(_REGISTER.findall(text))
        match = _KIND.match(text)
        kind = KINDS[match.lastindex - 1][0] if match is not None and match.lastindex else "scalar"
        kinds[kind] += 1
        if kind == "move" and _ON_STACK.search(text) is not None:
            spills.append(address)
    kinds.pop("no-op", None)
    loops = _inner_loops(instructions)
    return KernelCode(len(registers), len(spills), sum(any(address in loop for loop in loops) for address in spills), dict(kinds))


def _inner_loops(instructions: Sequence[tuple[int, str]]) -> list[range]:
    """The addresses between a jump back and its target, where no other such stretch begins."""
    starts = {address for address, _ in instructions}
    jumps = ((address, _JUMP.match(text + " ")) for address, text in instructions)
    ends: dict[int, int] = {}
    for address, match in jumps:
        if match is not None and (start := int(match[1], 16)) <= address and start in starts:
            ends.setdefault(start, address)
    loops = [range(start, end + 1) for start, end in sorted(ends.items())]
    return [loop for loop in loops if not any(other.start in loop and other != loop for other in loops)]
