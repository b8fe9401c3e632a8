"""How long a kernel takes, from its machine code and its launch, and what holds it back.

The page docs/kernels.md derives the formula and works one kernel by hand. In short: a walk through the code says how long
a program takes alone; counts by class, weighted by how often their blocks run, give cycles of each unit of a processor;
programs fill processors in rounds; memory and cache have rates of their own; the slowest is the bound.
"""

from __future__ import annotations

import functools
import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from operator import mul

from cubins import Cubin
from machines import BLACKWELL_ROWS, ELEMENT_BYTES, ISSUED, LANES, NEAR, SHARED_BYTES, STARTED, WARP_MATRIX_SHARE, Machine
from trips import SourceLoop, innermost, lengths_of, loop_at, loops_of, shares_of
from walk import walked

from ourcc.codegen.sass.counts import MatrixShape
from ourcc.codegen.sass.listing import Instruction
from ourcc.codegen.sass.reading import Reading, Region, read_kernel


@dataclass(frozen=True)
class Fitted:
    """The numbers that were fitted to measured and published times; all others are public facts of machines.

    A kernel's time as the tracer sees it begins `started` seconds before its programs work. A load that memory answers takes
    `far` cycles; of a kernel's loads those are the share of bytes that have to move among those asked for, to the power
    of `first`, as programs that read the same run side by side and wait for the same answer. What goes on side by side
    hides one another as the norm of order `overlap` says. `memory` is the share of the data sheet's rate that is
    reached, `cache` that of the cache's, which may exceed 1: equal requests of neighbours are answered together. A chip
    that is measured for long while it multiplies all the time runs at `1 - throttle` of its clock.
    """

    started: float
    far: float
    first: float
    overlap: float
    memory: float
    cache: float
    throttle: float


FITTED = Fitted(started=3.0e-6, far=953.0, first=0.158, overlap=2.935, memory=0.858, cache=1.3, throttle=0.4)

LATENCIES = (200.0, 700.0, 1400.0, 2400.0)
"""Latencies that programs are walked with; what lies between is interpolated."""


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

    `units` are cycles of a processor's units by name, `alone` those that it takes by itself for each of LATENCIES.
    `copied` are bytes by asynchronous copies, `plain` by loads into registers, `stored` and `spilled` bytes, `operations`
    those of matrix instructions, `instructions` those that its warps issue, `drained` the share of its matrix steps that
    are waited for.
    """

    units: Mapping[str, float]
    alone: tuple[float, ...]
    copied: float
    plain: float
    stored: float
    operations: float
    instructions: float
    drained: float
    spilled: float

    @property
    def asked(self) -> float:
        """Bytes that it asks the cache for or gives to it."""
        return self.copied + self.plain + self.stored


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


def estimate(launch: Launch, machine: Machine, fitted: Fitted = FITTED, published: bool = False) -> Estimate:
    """The estimate of a launch on a machine; UnknownTrips if the source does not say how often its loops run.

    It is what the driver's tracer would say of a few runs, or of one that is `published`: measured for long, by events.
    """
    reading, program = _read(launch, machine)
    resident = residents(launch.cubin, machine)
    # What nobody asks for does not move: of a table, say, most rows.
    moved = min(launch.unique, launch.programs * program.asked)
    cycles, waited = _processor_cycles(launch, program, resident, moved, machine, fitted)
    busy = program.units["matrix"] * launch.programs / machine.processors / cycles
    clock = machine.clock * (1 - (fitted.throttle * busy if published else 0))
    # Loads into registers find what was read before in the processor itself: each byte is fetched once.
    fetched = launch.programs * (program.copied + program.stored) + min(launch.programs * program.plain, launch.unique)
    times = {
        "processors": cycles / clock,
        "memory": moved / (fitted.memory * machine.memory),
        "cache": fetched / (fitted.cache * machine.cache_bytes_per_cycle * machine.clock),
    }
    bound = max(times, key=lambda name: times[name])
    seconds = (STARTED if published else fitted.started) + beside(fitted.overlap, *times.values())
    if bound == "processors":
        bound = "latency" if waited else max(program.units, key=lambda name: program.units[name])
    least = max(launch.programs * max(program.units.values()) / machine.processors / clock, moved / machine.memory)
    waves = launch.programs / (machine.processors * resident)
    flight = in_flight(launch, reading, resident, machine)
    return Estimate(seconds, bound, least / seconds, resident, waves, times, program, flight, clock)


def beside(order: float, *times: float) -> float:
    """What takes these times each takes so long side by side: the largest, and more the nearer others come to it."""
    most = max(times)
    return most * sum((each / most) ** order for each in times) ** (1 / order) if most else 0.0


@functools.cache
def _read(launch: Launch, machine: Machine) -> tuple[Reading, Program]:
    reading = read_kernel(launch.cubin.listing)
    return reading, program_of(launch, reading, machine)


def residents(cubin: Cubin, machine: Machine) -> int:
    """Programs that a processor holds at the same time; registers go out in portions of 256 a warp, shared memory of 128 bytes, tensor
    memory of the columns that a program asks for."""
    per_warp = ceil(max(cubin.registers, 16) * 32 / 256) * 256
    by_registers = machine.registers // (per_warp * cubin.warps)
    by_shared = machine.shared // (ceil((cubin.shared + 1024) / 128) * 128)
    by_columns = machine.columns // cubin.columns if cubin.columns else machine.programs
    found = min(by_registers, by_shared, by_columns, machine.warps // cubin.warps, machine.programs)
    if found < 1:
        raise ValueError(f"{cubin.name} does not fit a processor: {cubin.registers} registers, {cubin.shared} bytes, {cubin.warps} warps")
    return found


def frequencies(launch: Launch, reading: Reading) -> list[float]:
    """How often each region of a kernel runs in a program.

    A region outside of loops runs once. One inside runs as often as the loop of the source that the machine loop is, divided
    by the steps that the machine loop holds, as the assembler unrolls some. Where loops were flattened into one, its passes are
    those of the one that runs most often, and a region that is not part of each pass is judged by its own lines.
    """
    cubin = launch.cubin
    loops = loops_of(cubin.name, cubin.source, cubin.first_line, cubin.constants, launch.grid)
    is_flat = any(each.flattened for each in loops)
    lines = [_lines(reading, [reading.listing.instructions[at] for at in loop.own]) for loop in reading.flow.loops]
    usual = [_deepest(each, loops) if is_flat else loop_at(each, loops) for each in lines]
    shares = _shares(reading, usual, loops, cubin.marks)
    always = [reading.flow.always(number) for number in range(len(lines))]
    found = []
    for region in reading.regions:
        if region.loop is None or reading.flow.loops[region.loop].waits:
            found.append(1.0)
            continue
        chosen = usual[region.loop]
        if is_flat and region.first not in always[region.loop]:
            chosen = _most(region.lines, loops) or chosen
        found.append(chosen.runs * shares[region.loop] if chosen is not None else 1.0)
    return found


def _deepest(lines: Sequence[int], loops: Sequence[SourceLoop]) -> SourceLoop | None:
    """The loop that runs most often of those that these lines are in."""
    return max((found for line in lines if (found := innermost(line, loops)) is not None), key=lambda loop: loop.runs, default=None)


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
    plain = stored = matrix = operands = operations = instructions = drained = spilled = unknown = steps = 0.0
    for region, runs in zip(reading.regions, weights, strict=True):
        counts = region.counts
        instructions += runs * warps * counts.instructions
        busy = {name: warps * counts.classes[name] * 32 / lanes for name, lanes in LANES.items()}
        units["special"] += runs * busy.pop("special")
        # Units that take what is issued in the next cycle are as long at work as the slowest of them.
        units["instructions"] += runs * max(warps * counts.instructions / ISSUED, *busy.values())
        units["shared memory"] += runs * warps * 32 * _shared_bytes(region) / SHARED_BYTES
        plain += runs * warps * 32 * counts.bytes("global load")
        stored += runs * warps * 32 * counts.bytes("global store")
        spilled += runs * warps * 32 * counts.bytes("local")
        for shape, number in counts.shapes.items():
            issued = runs * number * (warps / shape.warps if shape.warps else 1.0)
            operations += issued * shape.operations
            matrix += issued * shape.operations / (machine.matrix[shape.kind] * _matrix_share(shape))
            if shape.warps != 1:
                operand = (shape.n + (shape.m if shape.left_is_shared else 0)) * shape.k * ELEMENT_BYTES[shape.kind]
                operands += issued * operand / SHARED_BYTES
        unknown += runs * counts.unknown_matrix
        steps += runs if counts.classes["matrix"] else 0.0
        drained += runs if region.drains else 0.0
    if unknown:
        raise ValueError(f"{launch.cubin.name} has matrix instructions of unknown shapes")
    units["matrix"] = max(matrix, operands)
    share = min(1.0, drained / steps) if steps else 0.0
    alone = tuple(sum(map(mul, walked(reading, weights, warps, machine, latency), weights)) for latency in LATENCIES)
    copied = _copied(reading, weights, warps)
    return Program(units, alone, copied, plain, stored, operations, instructions, share, spilled)


def _copied(reading: Reading, weights: Sequence[float], warps: int) -> float:
    """Bytes by asynchronous copies: those before a loop are its first steps, which its last ones leave out."""
    inside = outside = 0.0
    for region, runs in zip(reading.regions, weights, strict=True):
        found = runs * (warps * 32 * region.counts.bytes("asynchronous copy") + region.described)
        inside, outside = (inside, outside + found) if region.loop is None else (inside + found, outside)
    return max(inside, outside)


def _matrix_share(shape: MatrixShape) -> float:
    """The share of the matrix unit's rate that instructions of a shape reach."""
    if shape.warps == 1:
        return WARP_MATRIX_SHARE
    return min(1.0, shape.m / BLACKWELL_ROWS) if shape.warps == 0 else 1.0


def _shared_bytes(region: Region) -> float:
    """Bytes of a thread through the port of shared memory: what is narrower than a bank of 4 bytes takes a bank all the same."""
    through = ("shared load", "shared store", "local", "asynchronous copy")
    return sum(max(4, width) * times for (name, width), times in region.counts.accesses.items() if name in through)


def _processor_cycles(
    launch: Launch, program: Program, resident: int, moved: float, machine: Machine, fitted: Fitted
) -> tuple[float, bool]:
    """Cycles of the busiest processor, and whether its programs wait more than they work.

    Programs come in rounds of as many as fit. In each, a program takes at least as long as it does alone, and its slowest
    unit works for all of them.
    """
    asked = launch.programs * program.asked
    latency = NEAR + (fitted.far - NEAR) * (min(1.0, moved / asked) ** fitted.first if asked else 0.0)
    alone = _interpolated(program.alone, latency)
    longest = max(program.units.values())
    full, rest = divmod(launch.programs, machine.processors * resident)
    rounds = [(full, resident), (1, ceil(rest / machine.processors))]
    cycles = sum(times * beside(fitted.overlap, alone, together * longest) for times, together in rounds if together)
    together = resident if full else rounds[1][1]
    return cycles * _unevenness(launch, machine.processors * resident), alone > together * longest


def _interpolated(alone: Sequence[float], latency: float) -> float:
    """Cycles of a program at a latency between those it was walked with, or beyond them on the line of the nearest two."""
    at = min(bisect_right(LATENCIES, latency, 1), len(LATENCIES) - 1)
    low, high = LATENCIES[at - 1 : at + 1]
    return alone[at - 1] + (alone[at] - alone[at - 1]) * (latency - low) / (high - low)


@functools.cache
def _unevenness(launch: Launch, places: int) -> float:
    """How much later the last program ends than if all were equally long: each begins, in order, where one ended first."""
    cubin = launch.cubin
    lengths = lengths_of(cubin.name, cubin.source, cubin.constants, launch.grid)
    if not lengths or max(lengths) == min(lengths):
        return 1.0
    ends = [0.0] * places
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends) / (sum(lengths) / len(lengths) * ceil(len(lengths) / places))


def in_flight(launch: Launch, reading: Reading, resident: int, machine: Machine) -> float:
    """Bytes that a processor has asked memory for at the same time, at least a quarter of a line a warp."""
    warps = launch.cubin.warps
    together = min(resident, ceil(launch.programs / machine.processors))
    plain, copies = reading.in_flight * warps * 32, reading.copied_in_flight * warps * 32
    described = sum(region.described for region in reading.regions if region.loop is None)
    return together * max(plain, copies, described, 32.0 * warps)
