"""How long a kernel takes, from its machine code and its launch, and what holds it back.

The page docs/kernels.md derives the formula and works one kernel by hand. In short: counts of a program by class, weighted
by how often their blocks run, give cycles of each unit of a processor; units work beside each other as far as the code
lets them; programs fill processors in rounds; memory and cache have rates of their own; the slowest is the bound.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from cubins import Cubin
from machines import BARRIER, BLACKWELL_ROWS, ELEMENT_BYTES, ISSUED, LANES, SHARED_BYTES, STARTED, WARP_MATRIX_SHARE, Machine
from trips import SourceLoop, innermost, loop_at, loops_of, shares_of

from ourcc.codegen.sass.counts import MatrixShape
from ourcc.codegen.sass.listing import Instruction
from ourcc.codegen.sass.reading import Reading, Region, read_kernel


@dataclass(frozen=True)
class Fitted:
    """The numbers that were fitted to published times; all others are public facts of machines.

    `filled` cycles go by before a program's first data are there and after its last are
    stored. `memory` is the share of the data sheet's memory rate that copies reach. Of two units that could work at the same
    time, the shorter one's work is hidden by the share `drained` where each step waits for the matrix unit and by
    `pending` where it does not. A processor that multiplies all the time runs at `1 - throttle` of its clock.
    """

    filled: float
    memory: float
    drained: float
    pending: float
    throttle: float


FITTED = Fitted(filled=7630.0, memory=0.863, drained=0.326, pending=0.783, throttle=0.247)


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel and what it is launched for.

    `unique` are bytes of memory that have to move once: what it reads and what it writes.
    """

    cubin: Cubin
    grid: tuple[int, ...]
    unique: float

    @property
    def programs(self) -> int:
        """Programs of the grid."""
        return prod(self.grid)


@dataclass(frozen=True)
class Program:
    """What one program does.

    `units` are cycles of a processor's units by name, `fetched`, `stored` and `spilled` bytes, `operations` those of matrix
    instructions, `instructions` those that its warps issue, `drained` the share of its matrix steps that are waited for.
    """

    units: Mapping[str, float]
    fetched: float
    stored: float
    operations: float
    instructions: float
    barriers: float
    drained: float
    spilled: float


@dataclass(frozen=True)
class Estimate:
    """Seconds, the bound's name, the share of the time that the bound alone would take, and what was found on the way."""

    seconds: float
    bound: str
    share: float
    resident: int
    waves: float
    times: Mapping[str, float]
    program: Program
    flight: float
    clock: float


def estimate(launch: Launch, machine: Machine, fitted: Fitted = FITTED) -> Estimate:
    """The estimate of a launch on a machine; UnknownTrips if the source does not say how often its loops run."""
    reading, program = _read(launch, machine)
    resident = residents(launch.cubin, machine)
    cycles, waited = _processor_cycles(launch.programs, program, resident, machine, fitted)
    busy = program.units["matrix"] * launch.programs / machine.processors / cycles
    clock = machine.clock * (1 - fitted.throttle * busy)
    flight = in_flight(launch, reading, program, resident, machine)
    rate = min(fitted.memory * machine.memory, flight * machine.processors / machine.latency)
    # What nobody asks for does not move: of a table, say, most rows.
    moved = min(launch.unique, launch.programs * (program.fetched + program.stored))
    times = {
        "processors": cycles / clock,
        "memory": moved / rate,
        "cache": launch.programs * (program.fetched + program.stored) / (machine.cache_bytes_per_cycle * clock),
    }
    bound = max(times, key=lambda name: times[name])
    seconds = STARTED + times[bound]
    if bound == "processors" and waited > cycles / 2:
        bound = "latency"
    elif bound == "processors":
        bound = max(program.units, key=lambda name: program.units[name])
    elif bound == "memory" and rate < fitted.memory * machine.memory:
        bound = "latency"
    least = max(launch.programs * max(program.units.values()) / machine.processors / clock, moved / machine.memory)
    waves = launch.programs / (machine.processors * resident)
    return Estimate(seconds, bound, least / seconds, resident, waves, times, program, flight, clock)


@functools.cache
def _read(launch: Launch, machine: Machine) -> tuple[Reading, Program]:
    reading = read_kernel(launch.cubin.listing)
    return reading, program_of(launch, reading, machine)


def residents(cubin: Cubin, machine: Machine) -> int:
    """Programs that a processor holds at the same time; registers go out in portions of 256 a warp, shared memory of 128 bytes."""
    per_warp = ceil(max(cubin.registers, 16) * 32 / 256) * 256
    by_registers = machine.registers // (per_warp * cubin.warps)
    by_shared = machine.shared // (ceil((cubin.shared + 1024) / 128) * 128)
    found = min(by_registers, by_shared, machine.warps // cubin.warps, machine.programs)
    if found < 1:
        raise ValueError(f"{cubin.name} does not fit a processor: {cubin.registers} registers, {cubin.shared} bytes, {cubin.warps} warps")
    return found


def frequencies(launch: Launch, reading: Reading) -> list[float]:
    """How often each region of a kernel runs in a program.

    A region outside of loops runs once. One inside runs as often as the loop of the source that the machine loop is, divided
    by the steps that the machine loop holds, as the assembler unrolls some. Where loops were flattened into one, each region
    is judged by its own lines.
    """
    cubin = launch.cubin
    loops = loops_of(cubin.name, cubin.source, cubin.first_line, cubin.constants, launch.grid)
    usual = [loop_at(_lines(reading, [reading.listing.instructions[at] for at in loop.own]), loops) for loop in reading.flow.loops]
    shares = _shares(reading, usual, loops, cubin.marks)
    found = []
    for region in reading.regions:
        if region.loop is None or reading.flow.loops[region.loop].waits:
            found.append(1.0)
            continue
        chosen = usual[region.loop]
        if any(each.flattened for each in loops):
            chosen = _most(region.lines, loops) or chosen
        found.append(chosen.runs * shares[region.loop] if chosen is not None else 1.0)
    return found


def _most(lines: Sequence[int], loops: Sequence[SourceLoop]) -> SourceLoop | None:
    """The loop that most of these lines are in, the innermost of each."""
    votes = Counter(found for line in lines if (found := innermost(line, loops)) is not None)
    return votes.most_common(1)[0][0] if votes else None


def _lines(reading: Reading, instructions: Sequence[Instruction]) -> list[int]:
    return [each.line for each in instructions if each.file == reading.listing.file]


def _shares(
    reading: Reading, usual: Sequence[SourceLoop | None], loops: Sequence[SourceLoop], marks: Mapping[str, list[int]]
) -> dict[int, float]:
    """The share of the source's runs that each machine loop takes: what is there more often than in the PTX is of further steps."""
    groups: dict[SourceLoop, dict[int, int]] = {}
    for number, chosen in enumerate(usual):
        counts = reading.loop_counts(number)
        kind = 1 if counts.classes["matrix"] else 0
        if chosen is None or (counts.classes["asynchronous copy"] and not kind):
            continue
        once = sum(times[kind] for line, times in marks.items() if innermost(int(line), loops) == chosen)
        held = counts.classes["matrix"] if kind else counts.classes["global load"] + counts.classes["global store"]
        groups.setdefault(chosen, {})[number] = max(1, round(held / once)) if once else 1
    found = dict.fromkeys(range(len(usual)), 1.0)
    for group in groups.values():
        found |= dict(zip(group, shares_of(list(group.values())), strict=True))
    return found


def program_of(launch: Launch, reading: Reading, machine: Machine) -> Program:
    """The work of one program."""
    weights = frequencies(launch, reading)
    warps = launch.cubin.warps
    units: Counter[str] = Counter()
    fetched = stored = matrix = operands = operations = instructions = barriers = drained = spilled = unknown = steps = 0.0
    for region, runs in zip(reading.regions, weights, strict=True):
        counts = region.counts
        instructions += runs * warps * counts.instructions
        busy = {name: warps * counts.classes[name] * 32 / lanes for name, lanes in LANES.items()}
        units["special"] += runs * busy.pop("special")
        # Units that take what is issued in the next cycle are as long at work as the slowest of them.
        units["instructions"] += runs * max(warps * counts.instructions / ISSUED, *busy.values())
        units["shared memory"] += runs * warps * 32 * _shared_bytes(region) / SHARED_BYTES
        fetched += runs * (warps * 32 * (counts.bytes("global load") + counts.bytes("asynchronous copy")) + region.described)
        stored += runs * warps * 32 * counts.bytes("global store")
        spilled += runs * warps * 32 * counts.bytes("local")
        barriers += runs * counts.classes["barrier"]
        for shape, number in counts.shapes.items():
            issued = runs * number * (warps / shape.warps if shape.warps else 1.0)
            operations += issued * shape.operations
            matrix += issued * shape.operations / (machine.matrix[shape.kind] * _matrix_share(shape))
            if shape.warps != 1:
                operand = (shape.n + (shape.m if shape.left_is_shared else 0)) * shape.k * ELEMENT_BYTES[shape.kind]
                operands += issued * operand / SHARED_BYTES
        unknown += runs * counts.unknown_matrix
        if counts.classes["matrix"]:
            steps += runs
        if region.drains:
            drained += runs
    if unknown:
        raise ValueError(f"{launch.cubin.name} has matrix instructions of unknown shapes")
    units["matrix"] = max(matrix, operands)
    share = min(1.0, drained / steps) if steps else 0.0
    return Program(units, fetched, stored, operations, instructions, barriers, share, spilled)


def _matrix_share(shape: MatrixShape) -> float:
    """The share of the matrix unit's rate that instructions of a shape reach."""
    if shape.warps == 1:
        return WARP_MATRIX_SHARE
    return min(1.0, shape.m / BLACKWELL_ROWS) if shape.warps == 0 else 1.0


def _shared_bytes(region: Region) -> float:
    """Bytes of a thread through the port of shared memory: what is narrower than a bank of 4 bytes takes a bank all the same."""
    through = ("shared load", "shared store", "local", "asynchronous copy")
    return sum(max(4, width) * times for (name, width), times in region.counts.accesses.items() if name in through)


def _processor_cycles(programs: int, program: Program, resident: int, machine: Machine, fitted: Fitted) -> tuple[float, float]:
    """Cycles of the busiest processor, and those of them that it waits for first data and last stores.

    Programs come in rounds of as many as fit. In each, the unit with the most to do works all the time; of what the others
    do, the hidden share goes on beside it. A program takes `filled` cycles longer than its work; others fill them.
    """
    hidden = program.drained * fitted.drained + (1 - program.drained) * fitted.pending
    longest, serial = max(program.units.values()), sum(program.units.values()) + BARRIER * program.barriers
    alone = longest + (1 - hidden) * (serial - longest)
    full, rest = divmod(programs, machine.processors * resident)
    rounds = [(full, resident), (1, ceil(rest / machine.processors))]
    worked = sum(times * together * alone for times, together in rounds)
    cycles = sum(times * max(together * alone, alone + fitted.filled) for times, together in rounds if together)
    return cycles, cycles - worked


def in_flight(launch: Launch, reading: Reading, program: Program, resident: int, machine: Machine) -> float:
    """Bytes that a processor has asked memory for at the same time, at least a quarter of a line a warp."""
    warps = launch.cubin.warps
    together = min(resident, ceil(launch.programs / machine.processors))
    plain, copies = reading.in_flight * warps * 32, reading.copied_in_flight * warps * 32
    described = sum(region.described for region in reading.regions if region.loop is None)
    one = max(plain, copies, described, 32.0 * warps)
    return together * one
