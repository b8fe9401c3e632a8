"""The strategy `packed`: contractions in register blocks over panels of the right factor.

A constant right factor lies in panels of 16 columns (`n/16 k n%16`); another one is copied into panels in a cache tile
for each column block where its lanes are not contiguous. Row blocks of `mr` with a ladder for the tail, so every row
is computed alike however many there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ....ir import dims
from ....ir.codes import FOUR
from ....ir.dims import Dim
from ....ir.target import CpuLevel
from ....ir.tile.program import TileProgram
from ...regions.blocks import in_blocks
from ...regions.contraction import Contraction, in_fours, plain_load, read_contraction
from ..lower import upper_bound
from ..schedule import Order, Problem, Schedule
from .matrix import matrix_blocks, matrix_instruction, matrix_seconds
from .register_blocks import RegisterBlocks

FEW = 16
"""So many rows at most have row blocks of their own: where there are more, they fill those that fill the registers."""
DECODING, SCALING = 2, 3
"""Operations on vectors that give one of decoded numbers, and that add a block's sums, scaled, to the others."""


@dataclass(frozen=True)
class Packed:
    """Register blocks of mr x nr; grid tiles of m rows and n columns."""

    name: str = "packed"

    def applies(self, problem: Problem, target: CpuLevel) -> str | None:
        problem, found = _read(problem)
        if isinstance(found, str):
            return found
        if not in_fours(problem.region, found) and (not found.reduce.dtype.is_float or found.reduce.dtype.bits > 32):
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

    def space(self, problem: Problem, target: CpuLevel) -> Iterator[Schedule]:
        """Register blocks that fit the registers; grid tiles by cache size."""
        problem, found = _read(problem)
        if not isinstance(found, str) and matrix_instruction(problem, found, target) is not None:
            for m, n, rows, columns in matrix_blocks(problem, found):
                yield Schedule(self.name, (("m", m), ("n", n), ("mr", rows), ("nr", columns)))
            return
        extent = problem.region.axis(found.rows[-1]).extent if not isinstance(found, str) and found.rows else None
        seen = set()
        # Sums of blocks have two vectors for each result, that of the block and of all blocks: the latter may wait in memory.
        sums = (1, 2) if not isinstance(found, str) and found.block is not None else (1,)
        spare = 1 if target.registers < 32 else 2
        blocks = [
            (vectors, _block_rows(extent, max(1, ((target.registers - 4) // vectors - spare) // held)))
            for held in sums
            for vectors in (2, 4, 1)
        ]
        choices = [
            (m, n, rows, vectors)
            for vectors, rows in blocks
            for m, n in ((8 * rows, 256), (8 * rows, 128), (4 * rows, 256), (16 * rows, 256))
        ]
        if extent is not None and not isinstance(extent, int) and dims.at_most(extent, FEW, problem.symbols) is True:
            choices += [(FEW, 256, rows, vectors) for held in sums for vectors, rows in _few_rows(target, held)]
        for m, n, rows, vectors in choices:
            schedule = Schedule(self.name, (("m", m), ("n", max(n, vectors * target.lanes)), ("mr", rows), ("nr", vectors * target.lanes)))
            if schedule not in seen:
                seen.add(schedule)
                yield schedule

    def cost(self, problem: Problem, schedule: Schedule, target: CpuLevel) -> float:
        """Multiply-adds at the rate of two vectors a cycle, less what ragged blocks waste."""
        problem, found = _read(problem)
        if isinstance(found, str):
            return float("inf")
        instruction = matrix_instruction(problem, found, target)
        if instruction is not None:
            return matrix_seconds(problem, found, instruction, schedule["mr"], schedule["nr"])
        extents = problem.region.extents
        count = 1.0
        for name in (*found.batch, *found.rows, *found.over, *found.columns):
            count *= problem.typical(extents[name])
        columns = problem.typical(extents[found.columns[-1]])
        padded = -(-columns // schedule["nr"]) * schedule["nr"]
        wasted = padded / columns
        if found.rows:
            wasted *= _waste(problem.typical(extents[found.rows[-1]]), schedule["mr"])
        # Fewer accumulators than the latency of two multiply-adds needs leave units idle.
        chains = schedule["mr"] * schedule["nr"] / target.lanes
        # Each step loads nr / lanes vectors and broadcasts mr elements; two loads a cycle keep up with about this many.
        loads = (schedule["mr"] + schedule["nr"] / target.lanes) / chains
        wasted *= 1.0 + 0.5 * max(0.0, loads - 0.7)
        each = FOUR if in_fours(problem.region, found) else 1
        if found.block is not None:
            # A vector of codes is decoded for all rows of a block, and each sum of a block is scaled.
            terms = math.prod(problem.typical(extents[name]) for name in found.streamed)
            held, vectors = schedule["mr"] * schedule["nr"] // target.lanes, schedule["nr"] // target.lanes
            moved = 2 * max(0, 2 * held + vectors + 2 - target.registers) / held
            wasted *= 1 + DECODING / schedule["mr"] + (SCALING + moved) * each / terms
        return count * wasted * max(1.0, 10 / chains) / (2 * each * target.lanes * 3e9)

    def order(self, problem: Problem, schedule: Schedule, target: CpuLevel) -> Order:
        """By the steps of the contracted axes: blocks of rows and columns keep a running sum for each result."""
        problem, found = _read(problem)
        return ("",) if isinstance(found, str) else (self.name, *RegisterBlocks(problem, schedule, found).order())

    def tile(self, problem: Problem, schedule: Schedule, target: CpuLevel) -> TileProgram:
        """One launch."""
        problem, found = _read(problem)
        if isinstance(found, str):
            raise ValueError(found)
        launch = RegisterBlocks(problem, schedule, found, matrix_instruction(problem, found, target) is not None).launch()
        return TileProgram(problem.region.name, (launch,), symbols=tuple(problem.symbols.ranges))


def _read(problem: Problem) -> tuple[Problem, Contraction | str]:
    """The problem with codes' blocks as axes of their own, and its contraction, or why it is none."""
    region = in_blocks(problem.region, problem.symbols)
    return problem if region is problem.region else replace(problem, region=region), read_contraction(region)


def _block_rows(extent: Dim | None, most: int) -> int:
    """Rows of a register block: the largest divisor of a known extent that is not much smaller than what fits."""
    if not isinstance(extent, int):
        return most - most % 6 if most >= 6 else most
    whole = [n for n in range(1, most + 1) if extent % n == 0]
    if whole and (whole[-1] * 3 >= most * 2 or whole[-1] == extent):
        return whole[-1]
    return most - most % 6 if most >= 6 else most


def _few_rows(target: CpuLevel, sums: int) -> Iterator[tuple[int, int]]:
    """Blocks for few rows: the fewer, the wider, as far as sums, a vector of each column and one of a row fit the registers."""
    for rows in (8, 4, 1):
        wide = [vectors for vectors in (8, 4, 2, 1) if sums * rows * vectors + vectors + 1 <= target.registers]
        if wide:
            yield wide[0], rows


def _waste(extent: int, rows: int) -> float:
    """How much longer ragged row blocks take: blocks of 4 run at 0.7 of the rate, single rows at 0.3."""
    left = extent % rows
    return (extent - left + (left - left % 4) / 0.7 + (left % 4) / 0.3) / extent
