"""One program of a kernel walked through in order: when each instruction can go, and so how long the program takes on its own.

All warps of the program go side by side: an instruction is issued for each of them before the next one is. It waits for the
registers that it reads, for its unit, and at barriers and waits for what these wait for.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from machines import (
    BARRIER,
    DELAYS,
    ELEMENT_BYTES,
    ISSUED,
    LANES,
    MATRIX_WAIT,
    PORT_BYTES,
    QUEUED,
    SHARED_BYTES,
    USUAL_DELAY,
    WARP_MATRIX_SHARE,
    Machine,
)

from ourcc.codegen.sass.counts import bytes_of, class_of, matrix_shape
from ourcc.codegen.sass.listing import Instruction
from ourcc.codegen.sass.reading import Reading

PASSES, WARM = 8, 4
"""Passes through a loop that are walked, and those of them that fill its pipeline and are not counted."""

SELDOM = 0.5
"""Regions that run less often than this share of the others of their loop are left out of passes that count."""

_NAMES = re.compile(r"\b(U?P[0-6]|U?R[0-9]+)\b")
_WRITES_NOTHING = frozenset({"global store", "shared store", "asynchronous copy", "fence", "barrier", "control"})
_THROUGH_SHARED = frozenset({"shared load", "shared store", "asynchronous copy", "local"})
_GROUP_WARPS = 4


@dataclass(frozen=True)
class Step:
    """An instruction as the walk needs it: registers by name, and cycles for all warps of the program.

    `unit` are cycles of the class's own unit, `port` of shared memory's, `feed` of the way from the cache, `matrix` of the
    matrix unit. `waits` names what it waits for beside registers, `left` are the groups that the wait leaves pending.
    `grouped` ends a group of matrix instructions; `alone` are those that a warp issues by itself.
    """

    kind: str
    written: tuple[str, ...]
    read: tuple[str, ...]
    unit: float
    port: float
    feed: float
    matrix: float
    waits: str
    grouped: bool
    left: int
    alone: bool


@dataclass
class State:
    """The walk at one moment: when the next instruction may go, registers are there, and units are free."""

    now: float = 0.0
    ready: dict[str, float] = field(default_factory=dict)
    units: dict[str, float] = field(default_factory=dict)
    matrix: float = 0.0
    port: float = 0.0
    feed: float = 0.0
    products: deque[float] = field(default_factory=deque)
    copies: list[float] = field(default_factory=lambda: [0.0])


def walked(reading: Reading, runs: Sequence[float], warps: int, machine: Machine, latency: float) -> list[float]:
    """Cycles of each region of a program, once; loads come back after `latency`. Loops are walked until they go evenly.

    Regions that run less often than others of their loop, as where loops were flattened into one, are left out of that: they take
    what a pass with them takes longer.
    """
    starts = {block.first: block for block in reading.flow.blocks}
    inside = {at for loop in reading.flow.loops for at in loop.own}
    reached = inside | set(reading.flow.outside)
    blocks = [starts[first] for first in sorted(starts) if first in reached]
    steps = [_steps(reading.listing.instructions[block.first : block.end], warps, machine) for block in blocks]
    groups: dict[int | None, list[int]] = {}
    for number, region in enumerate(reading.regions):
        groups.setdefault(region.loop, []).append(number)
    found = [0.0] * len(blocks)
    for loop, numbers in groups.items():
        passes, warm = (1, 0) if loop is None else (PASSES, WARM)
        often = [number for number in numbers if loop is None or runs[number] >= SELDOM * max(runs[each] for each in numbers)]
        state = State()

        def once(number: int, state: State = state) -> float:
            before = state.now
            for step in steps[number]:
                _go(state, step, warps, latency)
            return state.now - before

        for turn in range(passes):
            for number in often:
                found[number] += once(number) / (passes - warm) * (turn >= warm)
        if len(often) < len(numbers):
            usual = sum(found[number] for number in often)
            taken = {number: once(number) for number in numbers}
            after = sum(once(number) for number in often)
            rare = {number: time for number, time in taken.items() if number not in often}
            longer = max(0.0, sum(taken.values()) + after - 2 * usual)
            found = [longer * rare[n] / max(1.0, sum(rare.values())) if n in rare else each for n, each in enumerate(found)]
    return found


def _go(state: State, step: Step, warps: int, latency: float) -> None:
    """The state after an instruction of all warps."""
    now = max((state.ready.get(name, 0.0) for name in step.read), default=0.0)
    now = _waited(state, step, max(now, state.now, state.units.get(step.kind, 0.0)), warps)
    done = now + DELAYS.get(step.kind, USUAL_DELAY)
    if step.unit:
        state.units[step.kind] = now + step.unit
    if step.port:
        begun = max(now, state.port)
        state.port = begun + step.port
        done = max(done, begun + DELAYS["shared load"] + step.port / warps)
        now = max(now, begun - QUEUED)
    if step.feed:
        begun = max(now, state.feed)
        state.feed = begun + step.feed
        done = begun + latency + step.feed / warps if step.kind == "global load" else done
        if step.kind == "asynchronous copy":
            state.copies[-1] = max(state.copies[-1], state.feed + latency)
    if step.matrix:
        now = max(now, state.matrix - DELAYS["matrix"]) if step.alone else now
        state.matrix = max(now, state.matrix) + step.matrix
        done = state.matrix + DELAYS["matrix"]
        if step.grouped:
            state.products.append(state.matrix)
    for name in step.written:
        state.ready[name] = done
    state.now = now + max(1.0, warps / ISSUED)


def _waited(state: State, step: Step, now: float, warps: int) -> float:
    """When an instruction goes that waits for more than registers, as one that ends or awaits a group of copies."""
    if step.waits == "barrier":
        return now + max(0.0, warps / ISSUED - 1) + BARRIER
    if step.waits == "tensor":
        return max(now, state.matrix)
    if step.waits == "copies":
        now = max((now, *state.copies[: -1 - step.left]))
        state.copies = state.copies[-1 - step.left :]
    elif step.waits == "group":
        state.copies.append(0.0)
    elif step.waits == "products":
        while len(state.products) > step.left:
            now = max(now, state.products.popleft() + MATRIX_WAIT)
    return now


def _steps(instructions: Sequence[Instruction], warps: int, machine: Machine) -> list[Step]:
    return [_step(each, warps, machine) for each in instructions if not each.never_runs]


def _step(each: Instruction, warps: int, machine: Machine) -> Step:
    kind = class_of(each)
    written, read = _registers(each, kind)
    moved = 32 * warps * bytes_of(each)
    through = 32 * warps * max(4, bytes_of(each)) / SHARED_BYTES
    matrix, alone = _matrix(each, warps, machine) if kind == "matrix" else (0.0, False)
    return Step(
        kind,
        written,
        read,
        max(warps / ISSUED, 1.0) * max(1.0, 32 * ISSUED / LANES[kind]) if kind in LANES else 0.0,
        through if kind in _THROUGH_SHARED and not each.name.startswith("U") else 0.0,
        moved / PORT_BYTES if kind in ("global load", "global store", "asynchronous copy") and not each.name.startswith("U") else 0.0,
        matrix,
        _awaited(each, kind),
        "gsb0" in each.rest and kind == "matrix",
        each.immediates[-1] if each.immediates else 0,
        alone,
    )


def _awaited(each: Instruction, kind: str) -> str:
    """What an instruction waits for beside its registers."""
    if each.opcode.startswith("WARPGROUP.DEPBAR"):
        return "products"
    if each.opcode == "DEPBAR.LE" and "SB0" in each.rest and each.immediates:
        return "copies"
    known = {"LDGDEPBAR": "group", "LDTM": "tensor"}
    return known.get(each.name, "barrier" if kind == "barrier" else "")


def _matrix(each: Instruction, warps: int, machine: Machine) -> tuple[float, bool]:
    """Cycles of the matrix unit for all warps, or of its operands from shared memory; and whether each warp multiplies alone."""
    shape = matrix_shape(each)
    if shape is None:
        return 0.0, False
    if shape.warps == 1:
        return shape.operations * warps / (machine.matrix[shape.kind] * WARP_MATRIX_SHARE), True
    times = warps / _GROUP_WARPS if shape.warps else 1.0
    operands = (shape.n + (shape.m if shape.left_is_shared else 0)) * shape.k * ELEMENT_BYTES[shape.kind] / SHARED_BYTES
    return times * max(shape.operations / machine.matrix[shape.kind], operands), False


def _registers(each: Instruction, kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Registers and predicates that an instruction writes, wide ones in full, and those that it reads."""
    names = _NAMES.findall(each.rest)
    guard = (each.guard.lstrip("!"),) if each.guard else ()
    written: tuple[str, ...] = ()
    # Products of warp groups and of Blackwell name registers that hold descriptors, or sums that a wait stands for.
    described = each.name.endswith("GMMA") or each.name.startswith("UTC")
    nothing = kind in _WRITES_NOTHING or each.name in ("STL", "RED", "REDG") or described
    if names and not nothing:
        width = bytes_of(each) // 4 if kind in ("global load", "shared load", "local") else 4 if kind == "matrix" else 1
        written = _wide(names[0], max(width, 2 if ".WIDE" in each.opcode else 1))
        names = names[1:]
    if kind in ("global store", "shared store") or (kind == "matrix" and not described):
        width = 4 if kind == "matrix" else max(1, bytes_of(each) // 4)
        names = [wide for name in names for wide in _wide(name, width)]
    return written, (*guard, *names)


def _wide(name: str, width: int) -> tuple[str, ...]:
    found = re.fullmatch(r"(U?R)([0-9]+)", name)
    return (name,) if found is None else tuple(f"{found[1]}{int(found[2]) + at}" for at in range(width))
