"""A kernel's machine code read: its blocks with their counts, how matrix instructions are waited for, and copies by descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .counts import Counts, bytes_in_flight, copied_in_flight, count
from .listing import Instruction, Listing, constant_before, read_listing
from .loops import Flow, flow_of


@dataclass(frozen=True)
class Region:
    """A basic block that begins with the instruction `first`: its counts, the lines of source that its instructions stand for, and
    the loop that it stands in.

    `loop` is the number of the innermost loop, None outside of loops. `described` are bytes that copies by descriptors
    bring, as the barrier is told that waits for them. A region `drains` if it waits for all matrix instructions: on
    Blackwell, if it reads their sums.
    """

    first: int
    counts: Counts
    lines: tuple[int, ...]
    loop: int | None
    described: int
    drains: bool


@dataclass(frozen=True)
class Reading:
    """A kernel: its regions in order, its flow, and what is known of its waiting.

    `in_flight` are the bytes that a thread asks for by plain loads before it waits for the first of them, `copied_in_flight`
    the same of asynchronous copies, each instruction taken once in order.
    """

    listing: Listing
    flow: Flow
    regions: tuple[Region, ...]
    in_flight: int
    copied_in_flight: int

    def loop_counts(self, number: int) -> Counts:
        """The counts of a loop's own instructions, each as if it ran once."""
        return count(self.listing.instructions[at] for at in self.flow.loops[number].own)

    def total(self) -> Counts:
        """The counts of the whole kernel, each instruction as if it ran once."""
        return count(each for region in self.flow.blocks for each in self.listing.instructions[region.first : region.end])


def read_kernel(text: str) -> Reading:
    """The reading of a listing as `nvdisasm -c -gi` prints it; ToolchainError if there is no instruction in it."""
    listing = read_listing(text)
    flow = flow_of(listing)
    innermost: dict[int, int] = {}
    for number, loop in enumerate(flow.loops):
        innermost |= dict.fromkeys(loop.own, number)
    reached = set(flow.outside) | set(innermost)
    regions = [
        _region(listing, range(block.first, block.end), innermost.get(block.first)) for block in flow.blocks if block.first in reached
    ]
    flights = [bytes_in_flight(listing.instructions[block.first : block.end]) for block in flow.blocks]
    return Reading(listing, flow, tuple(regions), max(flights, default=0), copied_in_flight(listing.instructions))


def _region(listing: Listing, block: range, loop: int | None) -> Region:
    run = listing.instructions[block.start : block.stop]
    lines = tuple(each.line for each in run if each.line and each.file == listing.file and each.name not in ("BRA", "NOP"))
    return Region(block.start, count(run), lines, loop, _described(listing.instructions, block), any(_drains(each) for each in run))


def _drains(each: Instruction) -> bool:
    return each.name == "LDTM" or (each.opcode.startswith("WARPGROUP.DEPBAR") and each.immediates[-1:] == (0,))


def _described(instructions: Sequence[Instruction], block: range) -> int:
    """Bytes that barriers are told to expect in a block: the number lies in a register, which is followed back to a constant."""
    total = 0
    for at in block:
        each = instructions[at]
        if not each.opcode.startswith("SYNCS.ARRIVE.TRANS64") or not each.registers:
            continue
        total += constant_before(instructions, at, each.registers[-1]) or 0
    return total
