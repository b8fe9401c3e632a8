"""What is counted in a kernel beside its estimate: one flat row that shows why a kernel takes its time."""

from __future__ import annotations

from math import ceil
from typing import Any

from estimate import Launch, estimate
from machines import Machine

from ourcc.codegen.sass.counts import Counts
from ourcc.codegen.sass.reading import Reading, read_kernel


def row_of(launch: Launch, machine: Machine) -> dict[str, Any]:
    """The estimate of a launch on a machine, and the counts behind it.

    `us` microseconds, `share` of them that the slowest unit or memory needs at least, `issue` cycles of instructions per
    cycle of the matrix unit (None without one), `per matrix` instructions of a warp in the matrix loop per matrix
    instruction, `plain loads` in it that are not asynchronous, `masked` accesses and `wide` 64-bit integer instructions in
    loops, `spills` inside and outside of loops, `flight` bytes asked for per processor and `needed` by memory's rate and
    latency, `tail` the part of the last round that is empty, `cache` bytes a cycle and processor, `per byte` instructions of
    threads per byte stored.
    """
    found, reading = estimate(launch, machine), read_kernel(launch.cubin.listing)
    loops = [reading.loop_counts(number) for number, loop in enumerate(reading.flow.loops) if not loop.waits]
    hot = max(loops, key=lambda each: (each.classes["matrix"], each.instructions), default=Counts())
    total, program = reading.total(), found.program
    inside = sum(each.local_loads + each.local_stores for each in loops)
    cycles = found.times["processors"] * found.clock
    matrix = program.units["matrix"]
    return {
        "kernel": launch.cubin.name,
        "us": round(found.seconds * 1e6, 2),
        "bound": found.bound,
        "share": round(found.share, 3),
        "grid": launch.programs,
        "warps": launch.cubin.warps,
        "registers": launch.cubin.registers,
        "shared": launch.cubin.shared,
        "resident": found.resident,
        "waves": round(found.waves, 2),
        "tail": round(1 - found.waves / ceil(found.waves), 3),
        "gigaop": round(program.operations * launch.programs / 1e9, 3),
        "issue": round(program.units["instructions"] / matrix, 3) if matrix else None,
        "per matrix": round(hot.instructions / hot.classes["matrix"], 1) if hot.classes["matrix"] else None,
        "drained": round(program.drained, 2),
        "barriers": hot.classes["barrier"],
        "plain loads": hot.classes["global load"] if hot.classes["matrix"] else 0,
        "masked": sum(each.masked for each in loops),
        "wide": sum(each.wide_integers for each in loops),
        "calls": total.calls,
        "spills": [inside, total.local_loads + total.local_stores - inside],
        "global widths": _widths(total, "global load", "global store", "asynchronous copy"),
        "shared widths": _widths(total, "shared load", "shared store"),
        "described": _described(reading),
        "flight": round(found.flight),
        "needed": round(machine.memory * machine.latency / machine.processors),
        "cache": round(launch.programs * program.asked / machine.processors / cycles, 1),
        "per byte": round(32 * program.instructions / program.stored, 2) if program.stored else None,
    }


def _widths(total: Counts, *classes: str) -> str:
    """Accesses by bytes of a thread, such as `16: 24, 4: 1`."""
    widths: dict[int, int] = {}
    for (name, width), times in total.accesses.items():
        if name in classes:
            widths[width] = widths.get(width, 0) + times
    return ", ".join(f"{width}: {times}" for width, times in sorted(widths.items(), reverse=True))


def _described(reading: Reading) -> int:
    """Copies by descriptors in the code."""
    return sum(each.name in ("UTMALDG", "UTMASTG") for each in reading.listing.instructions)
