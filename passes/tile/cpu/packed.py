"""The strategy `packed`: contractions in register blocks over panels of the right factor.

A constant right factor lies in panels of 16 columns (`n/16 k n%16`); another one is copied into panels in a cache tile
for each column block where its lanes are not contiguous. Row blocks of `mr` with a ladder for the tail, so every row
is computed alike however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from ....ir import dims
from ....ir.dims import Dim
from ....ir.region import Region
from ....ir.target import CpuInstruction, CpuLevel
from ....ir.tile.program import TileProgram
from ...regions.blocks import in_blocks
from ...regions.contraction import Contraction, in_fours, plain_load, read_contraction, selects
from ..lower import upper_bound
from ..schedule import Match, Order, Problem, Refusal, Schedule
from .decoded import DecodedBlocks, DecodedPanels, blocks_of_codes, is_computed, is_decoded, panels_fit, shapes
from .matrix import matrix_blocks, matrix_instruction
from .pairs import PairedBlocks, takes_pairs
from .price import Priced
from .register_blocks import RegisterBlocks, few_rows

FEW = 16
"""So many rows at most have row blocks of their own: where there are more, they fill those that fill the registers."""

HIGHEST = 24
"""Rows of a register block at most: with more of them compilers no longer keep all sums in registers, and it takes three times as long."""


@dataclass(frozen=True)
class Blocked:
    """A contraction in the region that sums up blocks, and the instruction for matrices that multiplies it, if there is one; as blocks of
    codes that tiles take, if it is that.
    """

    region: Region
    product: Contraction
    instruction: CpuInstruction | None
    codes: Contraction | None = None


@dataclass(frozen=True)
class Packed(Priced):
    """Register blocks of mr x nr; grid tiles of m rows and n columns. With `decoded` they are over panels of codes that became bytes, in
    tiles where the target has those.
    """

    name: str = "packed"

    def match(self, problem: Problem, target: CpuLevel) -> Match[Blocked] | Refusal:
        found = _read(problem, target)
        if isinstance(found, str):
            return Refusal(found)
        why = why_no_blocks(replace(problem, region=found.region), found.product)
        return Match(self, problem, found) if why is None else Refusal(why)

    def space(self, match: Match[Blocked], target: CpuLevel) -> Iterator[Schedule]:
        """Register blocks that fit the registers; grid tiles by cache size."""
        problem, found = _problem(match), match.found.product
        if match.found.instruction is not None:
            for m, n, rows, columns in matrix_blocks(problem, found):
                yield Schedule(self.name, (("m", m), ("n", n), ("mr", rows), ("nr", columns)))
            return
        for m, n, rows, columns in () if match.found.codes is None else shapes(problem, match.found.codes):
            yield Schedule(self.name, (("m", m), ("n", n), ("mr", rows), ("nr", columns), ("decoded", 1)))
        extent = problem.region.axis(found.rows[-1]).extent if found.rows else None
        seen = set()
        # Sums of blocks have two vectors for each result, that of the block and of all blocks: the latter may wait in memory.
        sums = (1, 2) if found.block is not None else (1,)
        spare = 1 if target.registers < 32 else 2
        # One row of few columns would wait for its own sums.
        blocks = [
            (vectors, rows)
            for held in sums
            for vectors in ((4, 2, 1) if extent in (None, 1) else (2, 4, 1))
            for rows in _block_rows(extent, min(HIGHEST, max(1, ((target.registers - 4) // vectors - spare) // held)))
        ]
        if any(rows == 1 for _, rows in blocks):
            blocks += [(vectors, 1) for _, widths in few_rows(target, 1, (1,)) for vectors in widths[:1]]
        near = _near_columns(problem, found, target)
        is_shared = is_computed(found) or (match.found.codes is None and is_decoded(problem, found) and selects(found.right))
        choices = [
            (m, n, rows, vectors)
            for vectors, rows in blocks
            for m, n in (*((8 * rows, n) for n in near), (8 * rows, 256), (8 * rows, 128), (4 * rows, 256), (16 * rows, 256))
        ]
        if extent is not None and dims.at_most(extent, FEW, problem.symbols) is True:
            choices += [(FEW, 256, rows, vectors[0]) for held in sums for rows, vectors in few_rows(target, held)]
        for m, n, rows, vectors in choices:
            schedule = Schedule(self.name, (("m", m), ("n", max(n, vectors * target.lanes)), ("mr", rows), ("nr", vectors * target.lanes)))
            if schedule not in seen:
                seen.add(schedule)
                yield schedule
                if is_shared and panels_fit(problem, found, schedule["nr"]):
                    yield replace(schedule, parameters=(*schedule.parameters, ("decoded", 1)))

    def order(self, match: Match[Blocked], schedule: Schedule, target: CpuLevel) -> Order:
        """By the steps of the contracted axes: blocks of rows and columns keep a running sum for each result."""
        return self.name, *_blocks(match, schedule, target).order()

    def tile(self, match: Match[Blocked], schedule: Schedule, target: CpuLevel) -> TileProgram:
        """One launch."""
        launch, symbols = _blocks(match, schedule, target).launch(), match.problem.symbols
        return TileProgram(match.problem.region.name, (launch,), symbols=tuple(symbols.ranges))


def _blocks(match: Match[Blocked], schedule: Schedule, target: CpuLevel) -> RegisterBlocks:
    """What builds the launch of a schedule."""
    problem, found = _problem(match), match.found
    if "decoded" in dict(schedule.parameters):
        if found.codes is not None and found.codes.block is not None:
            return DecodedBlocks(problem, schedule, found.codes, target)
        return DecodedPanels(problem, schedule, found.codes or found.product, target, in_tiles=found.codes is not None)
    if found.instruction is None and takes_pairs(problem, schedule, found.product, target):
        return PairedBlocks(problem, schedule, found.product, target)
    return RegisterBlocks(problem, schedule, found.product, target, found.instruction is not None)


def _near_columns(problem: Problem, found: Contraction, target: CpuLevel) -> tuple[int, ...]:
    """As many columns as the second cache holds of a deep sum, where that are fewer than usual and each line of an image reads them."""
    depth = prod(problem.typical(problem.region.axis(name).extent) for name in found.over)
    columns = target.level2_bytes * 8 // (depth * max(8, found.right.dtype.bits))
    return (64 if columns >= 64 else 32,) if len(found.rows) > 1 and columns <= 128 else ()


def _read(problem: Problem, target: CpuLevel) -> Blocked | str:
    """A region as a contraction, with codes' blocks as axes of their own, or why it is none."""
    region = in_blocks(problem.region, problem.symbols)
    found = read_contraction(region)
    if isinstance(found, str):
        return found
    problem = replace(problem, region=region)
    return Blocked(region, found, matrix_instruction(problem, found, target), blocks_of_codes(problem, found, target))


def _problem(match: Match[Blocked]) -> Problem:
    """The problem with the blocks' axes."""
    return replace(match.problem, region=match.found.region)


def why_no_blocks(problem: Problem, found: Contraction) -> str | None:
    """Why register blocks do not compute a contraction; None if they do."""
    if not in_fours(problem.region, found, problem.symbols) and (not found.reduce.dtype.is_float or found.reduce.dtype.bits > 32):
        return f"it accumulates in {found.reduce.dtype}, register blocks are for f32 and for integers of 8 bits in fours"
    if not found.columns:
        return "no axis of the right factor alone can be the lanes"
    if any(part.other is not None or part.gathers for part in (plain_load(found.right),) if part is not None):
        return "the right factor has padding or gathers"
    if any(problem.region.axis(name).extent == 0 for name in problem.region.extents):
        return "an axis has no elements"
    extent = upper_bound(problem.region.axis(found.columns[-1]).extent, problem.symbols)
    if extent is not None and extent < 4:
        return f"the lane axis has {extent} elements, a vector needs at least 4"
    return None


def _block_rows(extent: Dim | None, most: int) -> list[int]:
    """Rows of a register block: as many as fit, and the largest divisor of a known extent; that alone where it is not much smaller."""
    usual = most - most % 6 if most >= 6 else most
    whole = max((n for n in range(1, most + 1) if extent % n == 0), default=1) if isinstance(extent, int) and extent else 1
    if whole == extent or whole * 3 >= most * 2:
        return [whole]
    if whole * 2 < most or not isinstance(extent, int):
        return [usual]
    # Rows that fill no block of four go one by one.
    return [whole, usual] if extent % usual % 4 else [usual, whole]
