"""The loops of a kernel: its basic blocks, which of them come before which on every way, and the branches that lead back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .listing import Instruction, Listing

_ENDS = frozenset({"EXIT", "RET", "BRX", "JMX", "JMP", "BPT"})
_BRANCHES = frozenset({"BRA", "JMP"})


@dataclass(frozen=True)
class Block:
    """Instructions `first` up to `end` (exclusive), which run one after the other, and the blocks that may follow."""

    first: int
    end: int
    next: tuple[int, ...]


@dataclass(frozen=True)
class Loop:
    """A natural loop: `blocks` by number, in order; `header` is the one that all others are entered through.

    `own` are the positions of its instructions that stand in no loop inside it. `parent` is the number of the loop around
    it, None if there is none. A loop that `waits` does nothing but ask whether a barrier was passed.
    """

    header: int
    blocks: tuple[int, ...]
    own: tuple[int, ...]
    parent: int | None
    waits: bool


@dataclass(frozen=True)
class Flow:
    """How a kernel runs: blocks, loops (outer ones first), and the positions of instructions that stand in no loop."""

    blocks: tuple[Block, ...]
    loops: tuple[Loop, ...]
    outside: tuple[int, ...]

    def always(self, number: int) -> frozenset[int]:
        """Where the blocks of a loop begin that each pass through it runs: no way leads around them."""
        loop = self.loops[number]
        return frozenset(self.blocks[each].first for each in loop.blocks if not self._leads_around(loop, each))

    def _leads_around(self, loop: Loop, block: int) -> bool:
        seen, waiting = {loop.header, block}, [loop.header] if block != loop.header else []
        while waiting:
            follow = self.blocks[waiting.pop()].next
            if loop.header in follow:
                return True
            fresh = [each for each in follow if each in loop.blocks and each not in seen]
            seen.update(fresh)
            waiting += fresh
        return False


def flow_of(listing: Listing) -> Flow:
    """Blocks and loops of a kernel; what cannot be reached from its start, such as the trap behind its end, is left out.

    A function that it calls is reached through the call and returns behind it.
    """
    blocks = _blocks(listing)
    reached = _reached(blocks)
    bodies = _bodies(blocks, reached)
    order = sorted(bodies, key=lambda header: (-len(bodies[header]), header))
    inner = {header: [other for other in order if other != header and bodies[other] < bodies[header]] for header in order}
    loops = tuple(_loop(listing, blocks, header, bodies, order, inner) for header in order)
    inside = frozenset().union(*bodies.values()) if bodies else frozenset()
    outside = tuple(at for number in sorted(reached - inside) for at in range(blocks[number].first, blocks[number].end))
    return Flow(blocks, loops, outside)


def _loop(
    listing: Listing,
    blocks: Sequence[Block],
    header: int,
    bodies: dict[int, frozenset[int]],
    order: Sequence[int],
    inner: dict[int, list[int]],
) -> Loop:
    around = [other for other in order if header in bodies[other] and other != header and header in inner[other]]
    parent = min(around, key=lambda other: len(bodies[other]), default=None)
    own = bodies[header].difference(*(bodies[other] for other in inner[header]))
    positions = tuple(at for number in sorted(own) for at in range(blocks[number].first, blocks[number].end))
    waits = any(listing.instructions[at].opcode.startswith("SYNCS.PHASECHK") for at in positions) and len(positions) <= _WAITING
    return Loop(header, tuple(sorted(bodies[header])), positions, None if parent is None else order.index(parent), waits)


_WAITING = 8
"""Instructions that a loop which only waits has at most."""


def _blocks(listing: Listing) -> tuple[Block, ...]:
    instructions = listing.instructions
    firsts = {0, *(at for at in listing.labels.values() if at < len(instructions))}
    firsts |= {at + 1 for at, each in enumerate(instructions[:-1]) if each.name in _ENDS | _BRANCHES}
    starts = sorted(firsts)
    numbers = {first: number for number, first in enumerate(starts)}
    ends = [*starts[1:], len(instructions)]
    found = []
    for first, end in zip(starts, ends, strict=True):
        follow = [numbers[at] for at in _following(instructions, listing.labels, range(first, end)) if at in numbers]
        found.append(Block(first, end, tuple(dict.fromkeys(follow))))
    return tuple(found)


def _following(instructions: Sequence[Instruction], labels: dict[str, int], block: range) -> Iterator[int]:
    """Where control may go from a block, as positions of instructions."""
    for at in block:
        each = instructions[at]
        target = labels.get(each.target or "")
        if each.name in _BRANCHES | {"CALL"} and target is not None and not each.never_runs:
            yield target
    last = instructions[block[-1]]
    # A branch on a further predicate is written behind it: `BRA.U !UP0, ...`, `BRA P0, ...`.
    conditional = bool(last.guard) or (last.name in _BRANCHES and not last.rest.startswith("`"))
    if last.name not in _ENDS | _BRANCHES or conditional:
        yield block[-1] + 1


def _reached(blocks: Sequence[Block]) -> frozenset[int]:
    seen, waiting = {0}, [0]
    while waiting:
        for other in blocks[waiting.pop()].next:
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return frozenset(seen)


def _bodies(blocks: Sequence[Block], reached: frozenset[int]) -> dict[int, frozenset[int]]:
    """The blocks of each natural loop by its header: loops with one header are one."""
    dominators = _dominators(blocks, reached)
    before: dict[int, list[int]] = {number: [] for number in reached}
    for number in reached:
        for other in blocks[number].next:
            before[other].append(number)
    bodies: dict[int, set[int]] = {}
    for number in sorted(reached):
        for header in blocks[number].next:
            if header not in dominators[number]:
                continue
            body = bodies.setdefault(header, {header})
            waiting = [number]
            while waiting:
                each = waiting.pop()
                if each not in body:
                    body.add(each)
                    waiting += before[each]
    return {header: frozenset(body) for header, body in bodies.items()}


def _dominators(blocks: Sequence[Block], reached: frozenset[int]) -> dict[int, frozenset[int]]:
    """For each block those that every way to it leads through, itself included."""
    order = sorted(reached)
    before: dict[int, list[int]] = {number: [] for number in order}
    for number in order:
        for other in blocks[number].next:
            before[other].append(number)
    found = dict.fromkeys(order, reached) | {0: frozenset({0})}
    changed = True
    while changed:
        changed = False
        for number in order[1:]:
            new = frozenset({number}) | frozenset.intersection(*(found[each] for each in before[number]))
            if new != found[number]:
                found[number], changed = new, True
    return found
