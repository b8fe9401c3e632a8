"""Listings of the disassembler: instructions with their lines of source, and the labels that they jump to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...ir.errors import ToolchainError

_FUNCTION = re.compile(r"^\.text\.(\S+):\s*$")
_LABEL = re.compile(r"^\s*(\.L_x_[0-9]+|\$\S+|\.L_[0-9]+):\s*$")
_LINE = re.compile(r'^\s*//## File "(?P<file>[^"]*)", line (?P<line>[0-9]+)')
_INSTRUCTION = re.compile(r"^\s*/\*(?P<at>[0-9a-f]+)\*/\s+(?:\{\s*)?(?:@(?P<guard>!?U?P\w+)\s+)?(?P<opcode>[A-Z][\w.]*)\s*(?P<rest>[^;]*);")
_TARGET = re.compile(r"`\(([^)]+)\)")
_HEXADECIMAL = re.compile(r"(?<![\w.])(-?0x[0-9a-f]+)\b")
_DESCRIPTOR = re.compile(r"idesc\[(UR[0-9]+)\]")
_REGISTER = re.compile(r"\b(U?R)([0-9]+)\b")


@dataclass(frozen=True)
class Instruction:
    """One instruction: `guard` is its predicate ("" if it always runs), `line` where it stands in the source (0 if unknown).

    `line` is that of the kernel itself, also for what a library function does on its behalf. `descriptor` is the number in
    the register that a matrix instruction of Blackwell takes its shape from, None if it is no constant.
    """

    opcode: str
    guard: str
    rest: str
    file: str
    line: int
    descriptor: int | None = None

    @property
    def name(self) -> str:
        """The opcode without its suffixes."""
        return self.opcode.partition(".")[0]

    @property
    def suffixes(self) -> tuple[str, ...]:
        """What follows the name, as `128` and `E` of `LDG.E.128`."""
        return tuple(self.opcode.split(".")[1:])

    @property
    def target(self) -> str | None:
        """The label that it names, None if there is none."""
        found = _TARGET.search(self.rest)
        return None if found is None else found[1]

    @property
    def never_runs(self) -> bool:
        """Whether its predicate is false in every thread; the assembler pads some sequences with such instructions."""
        return self.guard in ("!PT", "!UPT")

    @property
    def immediates(self) -> tuple[int, ...]:
        """Numbers that stand in it, in order."""
        return tuple(int(text, 16) for text in _HEXADECIMAL.findall(self.rest))

    @property
    def registers(self) -> tuple[str, ...]:
        """Registers that it names, in order; of wide operands the first."""
        return tuple(kind + number for kind, number in _REGISTER.findall(self.rest))


@dataclass(frozen=True)
class Listing:
    """The instructions of one kernel in order, and which of them each label stands before; `file` is its source's."""

    kernel: str
    file: str
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]


def read_listing(text: str) -> Listing:
    """What `nvdisasm -c -gi` printed of a file with one kernel; functions that it calls are part of it.

    ToolchainError if there is no instruction in it.
    """
    kernel, file, line = "", "", 0
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for row in text.splitlines():
        if found := _INSTRUCTION.match(row):
            instructions.append(Instruction(found["opcode"], found["guard"] or "", found["rest"].strip(), file, line))
        elif found := _LINE.match(row):
            # Lines of what was inlined come first, then those of its callers: the last one stands.
            file, line = found["file"], int(found["line"])
        elif found := _LABEL.match(row):
            labels[found[1]] = len(instructions)
        elif (found := _FUNCTION.match(row)) and not kernel:
            kernel = found[1]
    if not instructions:
        raise ToolchainError("the disassembler printed no instruction", note=text[:500] or None)
    complete = (_described(instructions, at) if "idesc[" in each.rest else each for at, each in enumerate(instructions))
    return Listing(kernel, instructions[0].file, tuple(complete), labels)


def _described(instructions: list[Instruction], at: int) -> Instruction:
    """A matrix instruction with the number of its descriptor, as the last instruction wrote it that stands before."""
    each = instructions[at]
    register = _DESCRIPTOR.search(each.rest)
    return each if register is None else replace(each, descriptor=constant_before(instructions, at, register[1]))


def constant_before(instructions: Sequence[Instruction], at: int, register: str) -> int | None:
    """The number that a register holds before an instruction, if the last one that wrote it wrote a constant."""
    for each in reversed(instructions[:at]):
        if each.registers[:1] == (register,) and each.name not in _READERS:
            return each.immediates[-1] if len(each.immediates) == 1 else None
    return None


_READERS = frozenset({"STG", "STS", "STL", "ST", "BAR", "SYNCS", "UTMALDG", "UTMASTG", "LDGSTS", "UTCBAR", "UTCHMMA", "UTCQMMA", "UTCIMMA"})
"""Instructions whose first register is read, not written."""
