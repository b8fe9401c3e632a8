"""Blocks for instructions that multiply matrices: which contractions they take, and the sizes of register blocks in tiles."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator

from ....ir.region import Load
from ....ir.target import CpuInstruction, CpuLevel
from ...regions.contraction import Contraction, plain_load, stride_of
from ..schedule import Problem

SIDE = 16
TILES = 8
WHOLE = 4096
"""The longest contracted axis that one `dot` streams over, and of which blocks of columns are copied; longer ones go in steps."""
LADDER = (16, 4, 1)
"""Rows of the blocks that take what larger ones left, where only calls know how many rows there are."""


def matrix_instruction(problem: Problem, found: Contraction, target: CpuLevel) -> CpuInstruction | None:
    """The instruction whose factors those of a contraction are: rows that lie along the sum, columns in its vectors."""
    left, right = plain_load(found.left), plain_load(found.right)
    if left is None or right is None or not found.rows or not found.columns or found.block is not None:
        return None
    instruction = target.matrix(left.dtype.name, right.dtype.name, found.reduce.dtype.name)
    if instruction is None or not _lies_in_groups(problem, found, right, instruction):
        return None
    inner = found.over[-1]
    extent = problem.region.axis(inner).extent
    fits = isinstance(extent, int) and extent % instruction.depth == 0 and stride_of(left, problem.region, inner) == 1
    return instruction if fits else None


def _lies_in_groups(problem: Problem, found: Contraction, right: Load, instruction: CpuInstruction) -> bool:
    """Whether the right factor has the order of tiles: a constant in its layout, what calls bring in copies that enough rows share."""
    layout = problem.layouts.get(right.operand)
    if layout is not None or right.operand in problem.constants:
        return layout is not None and layout.in_groups(instruction.lanes, instruction.depth)
    rows, depth = (problem.region.axis(name).extent for name in (found.rows[-1], found.over[-1]))
    is_shared = not isinstance(rows, int) or rows > SIDE // 2
    return len(found.over) == 1 and isinstance(depth, int) and depth <= WHOLE and is_shared and right.other is None and not right.gathers


def ladder(height: int, lengths: Iterable[int]) -> tuple[int, ...]:
    """Rows of blocks in falling order, for grid tiles of these lengths: a block with few rows takes nearly as long as a whole one, so
    that what is left is one block wherever it may be.
    """
    rests = {length % height for length in lengths}
    rungs = {height}
    for rest in rests - {0}:
        rungs |= {rest} if _is_high(rest) else {SIDE, rest - SIDE}
    found = sorted(rungs, reverse=True)
    if not rests or any(functools.reduce(operator.mod, found, rest) for rest in rests):
        found = sorted(rungs.union(n for n in LADDER if n < height), reverse=True)
    return tuple(found)


def matrix_blocks(problem: Problem, found: Contraction) -> Iterator[tuple[int, int, int, int]]:
    """(m, n, mr, nr): one row of tiles or two, each as high as divides the rows, and tiles of columns as there are registers."""
    rows, columns = (problem.region.axis(axis).extent for axis in (found.rows[-1], found.columns[-1]))
    heights = [2 * SIDE, SIDE]
    if isinstance(rows, int):
        most = -(-rows // (2 * SIDE))
        heights += [rows // n for n in range(most, 2 * most + 1) if rows % n == 0 and _is_high(rows // n)]
    for height in dict.fromkeys(heights):
        for width in (2, 4, 3, 1) if height <= SIDE else (2, 1):
            if not isinstance(columns, int) or width * SIDE < columns + SIDE:
                for m, n in ((128, 256), (256, 256), (64, 512), (128, 64)):
                    yield -(-m // height) * height, n - n % (width * SIDE), height, width * SIDE


def _is_high(height: int) -> bool:
    return height <= SIDE or (height <= 2 * SIDE and height % 2 == 0)
