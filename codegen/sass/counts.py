"""What is counted in machine code: classes of instructions, the widths of accesses, and what stands out in a loop."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .listing import Instruction

CLASSES: dict[str, tuple[str, ...]] = {
    "matrix": ("HGMMA", "IGMMA", "QGMMA", "BGMMA", "HMMA", "IMMA", "QMMA", "OMMA", "DMMA", "UTCHMMA", "UTCIMMA", "UTCQMMA", "UTCOMMA"),
    "asynchronous copy": ("LDGSTS", "UTMALDG", "UBLKCP", "UTMASTG", "UTMAREDG"),
    "global load": ("LDG", "LD"),
    "global store": ("STG", "ST"),
    "atomic": ("ATOM", "ATOMG", "RED", "REDG", "ATOMS"),
    "shared load": ("LDS", "LDSM"),
    "shared store": ("STS", "STSM"),
    "local": ("LDL", "STL"),
    "constant": ("LDC", "LDCU", "ULDC"),
    "tensor memory": ("LDTM", "STTM", "UTCCP", "UTCATOMSWS", "UTCBAR", "UTCSHIFT"),
    "barrier": ("BAR", "UCGABAR_ARV", "UCGABAR_WAIT"),
    "fence": ("MEMBAR", "FENCE", "ERRBAR", "CCTL", "WARPGROUP", "DEPBAR", "LDGDEPBAR", "WARPSYNC", "SYNCS", "ARRIVES", "UTMACMDFLUSH"),
    "special": ("MUFU",),
    "conversion": ("F2F", "F2I", "I2F", "FRND", "I2I"),
    "double": ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX"),
    "packed float": ("FADD2", "FMUL2", "FFMA2"),
    "float": ("FADD", "FMUL", "FFMA", "FSETP", "FSEL", "FMNMX", "FMNMX3", "FCHK", "FSET", "FSWZADD", "FADD32I", "FMUL32I", "FFMA32I"),
    "half": ("HADD2", "HMUL2", "HFMA2", "HMNMX2", "HSETP2", "HSET2", "F2FP", "I2FP"),
    "shuffle": ("SHFL", "VOTE", "VOTEU", "MATCH", "REDUX", "CREDUX"),
    "control": ("BRA", "EXIT", "CALL", "RET", "BRX", "JMP", "BSSY", "BSYNC", "NOP", "YIELD", "BPT", "BREAK", "NANOSLEEP", "USETMAXREG"),
}
"""Opcodes by class; the rest is `integer`, or `uniform` where one thread computes for the warp."""

_CLASS_OF = {opcode: name for name, opcodes in CLASSES.items() for opcode in opcodes}
_WIDE = re.compile(r"^(IMAD\.WIDE|IMAD\.X|IADD3\.X|IADD\.64|LEA\.HI\.X|ISETP\.\S+\.EX|USETP\.\S+\.EX|UIADD3\.X|UIMAD\.WIDE|IADD3\.64)")
_BITS = {"256": 256, "128": 128, "64": 64, "U16": 16, "S16": 16, "U8": 8, "S8": 8}


def class_of(instruction: Instruction) -> str:
    """The class that an instruction is counted in."""
    known = _CLASS_OF.get(instruction.name)
    if known is not None:
        return known
    return "uniform" if instruction.name.startswith("U") or instruction.name == "R2UR" else "integer"


def bytes_of(instruction: Instruction) -> int:
    """Bytes that one thread moves with a load, store or copy by threads; 4 where its opcode says nothing else.

    A matrix load or store of shared memory moves 4 bytes a thread for each of its squares of 8 x 8.
    """
    if instruction.name in ("LDSM", "STSM"):
        squares = next((int(each) for each in instruction.suffixes if each in ("2", "4")), 1)
        return 4 * squares
    return next((_BITS[each] for each in instruction.suffixes if each in _BITS), 32) // 8


def is_wide_integer(instruction: Instruction) -> bool:
    """Whether it is part of arithmetic on 64-bit integers, such as addresses."""
    return _WIDE.match(instruction.opcode) is not None


@dataclass(frozen=True)
class MatrixShape:
    """What one matrix instruction multiplies: m x k by k x n, in a number format that rates are given for.

    `warps` warps issue it together; 0 if one thread issues it for the whole program. `left_is_shared` says that the left
    operand comes from shared memory, as the right one always does unless `warps` is 1.
    """

    m: int
    n: int
    k: int
    warps: int
    kind: str
    left_is_shared: bool

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k


_GROUP = re.compile(r"^(?P<name>[HIQB]GMMA)(?:\.SP)?\.(?P<m>[0-9]+)x(?P<n>[0-9]+)x(?P<k>[0-9]+)")
_WARP = re.compile(r"^(?P<name>[HIQOD]MMA)\.(?:SP\.)?(?P<shape>[0-9]{3,6})\b")
_SHAPES = {"1688": (16, 8, 8), "16816": (16, 8, 16), "16832": (16, 8, 32), "884": (8, 8, 4), "16864": (16, 8, 64), "168128": (16, 8, 128)}


def matrix_shape(instruction: Instruction) -> MatrixShape | None:
    """The shape of a matrix instruction; None if it is none, or its shape stands in a register and is not known."""
    if found := _GROUP.match(instruction.opcode):
        sizes = int(found["m"]), int(found["n"]), int(found["k"])
        return MatrixShape(*sizes, 4, _kind(found["name"], instruction), "gdesc" in instruction.rest.partition(",")[2].partition(",")[0])
    if (found := _WARP.match(instruction.opcode)) and found["shape"] in _SHAPES:
        return MatrixShape(*_SHAPES[found["shape"]], 1, _kind(found["name"], instruction), False)
    if instruction.descriptor is not None and instruction.name in _DESCRIBED:
        return _described(instruction, instruction.descriptor)
    return None


_DESCRIBED = {"UTCHMMA": ("bf16", 16), "UTCQMMA": ("f8e4m3", 32), "UTCIMMA": ("i8", 32), "UTCOMMA": ("f4", 64)}
_TF32 = 2


def _described(instruction: Instruction, descriptor: int) -> MatrixShape:
    """As the PTX ISA lays out the instruction descriptor of tcgen05: the left format in bits 7 to 9, n / 8 from 17, m / 16 from 24."""
    kind, k = _DESCRIBED[instruction.name]
    if instruction.name == "UTCHMMA" and descriptor >> 7 & 7 == _TF32:
        kind, k = "tf32", 8
    return MatrixShape((descriptor >> 24 & 31) * 16, (descriptor >> 17 & 63) * 8, k, 0, kind, instruction.rest.startswith("gdesc"))


def _kind(name: str, instruction: Instruction) -> str:
    """The number format that rates are given for."""
    if "TF32" in instruction.suffixes:
        return "tf32"
    return {"H": "bf16", "Q": "f8e4m3", "I": "i8", "B": "b1", "D": "f64", "O": "f4"}[name[0]]


@dataclass
class Counts:
    """What a run of instructions holds, per warp: `classes` by name, `accesses` by class and bytes of a thread, and what stands out."""

    instructions: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    accesses: Counter[tuple[str, int]] = field(default_factory=Counter)
    shapes: Counter[MatrixShape] = field(default_factory=Counter)
    unknown_matrix: int = 0
    wide_integers: int = 0
    masked: int = 0
    comparisons: int = 0
    calls: int = 0
    local_loads: int = 0
    local_stores: int = 0

    def bytes(self, name: str) -> int:
        """Bytes that one thread moves by instructions of a class."""
        return sum(width * count for (kind, width), count in self.accesses.items() if kind == name)


_MOVES = ("global load", "global store", "shared load", "shared store", "asynchronous copy", "local")


def count(instructions: Iterable[Instruction]) -> Counts:
    """The counts of instructions, each as if it ran once."""
    found = Counts()
    for each in instructions:
        if each.never_runs:
            continue
        name = class_of(each)
        found.instructions += 1
        found.classes[name] += 1
        if name == "matrix":
            shape = matrix_shape(each)
            found.unknown_matrix += shape is None
            if shape is not None:
                found.shapes[shape] += 1
        if name in _MOVES and not each.name.startswith("U"):
            found.accesses[name, bytes_of(each)] += 1
            found.masked += bool(each.guard) or bool(re.search(r"(^|, )!?U?P[0-9]+$", each.rest))
        found.wide_integers += is_wide_integer(each)
        found.comparisons += each.name in ("ISETP", "USETP", "UISETP")
        found.calls += each.name == "CALL"
        found.local_loads += each.name == "LDL"
        found.local_stores += each.name == "STL"
    return found


def bytes_in_flight(instructions: Sequence[Instruction]) -> int:
    """The most bytes that one thread has asked of global memory and not waited for yet, loads into registers only.

    An instruction that reads what a load brings waits for it, and for those before it: loads come back in their order.
    """
    waiting: list[tuple[str, int]] = []
    most = 0
    for each in instructions:
        named = each.registers
        is_load = class_of(each) == "global load" and not each.never_runs
        read = named[1:] if is_load else named
        last = max((at for at, (register, _) in enumerate(waiting) if _overlaps(register, waiting[at][1], read)), default=-1)
        waiting = waiting[last + 1 :]
        if is_load and named:
            waiting.append((named[0], bytes_of(each)))
            most = max(most, sum(width for _, width in waiting))
    return most


def copied_in_flight(instructions: Iterable[Instruction]) -> int:
    """The most bytes of asynchronous copies that one thread has under way.

    `LDGDEPBAR` ends a group of copies, `DEPBAR.LE SB0, n` waits for all groups but the last n.
    """
    groups, most = [0], 0
    for each in instructions:
        if each.name == "LDGSTS" and not each.never_runs:
            groups[-1] += bytes_of(each)
            most = max(most, sum(groups))
        elif each.name == "LDGDEPBAR":
            groups.append(0)
        elif each.opcode == "DEPBAR.LE" and "SB0" in each.rest and each.immediates:
            # The last group is the open one; as many closed ones as the instruction says are not waited for.
            groups = groups[-1 - each.immediates[-1] :]
    return most


def _overlaps(first: str, width: int, read: Sequence[str]) -> bool:
    """Whether registers from `first` on, `width` bytes of them, are among those read."""
    start = int(first.lstrip("UR"))
    taken = range(start, start + max(1, width // 4))
    return any(each[0] == "R" and int(each[1:]) in taken for each in read)
