"""Numbers that GPU strategies share: powers of two, which axis should be the lanes, warps of a tile, predicted seconds."""

from __future__ import annotations

from collections.abc import Iterable

from ....ir import dims
from ....ir.dims import Dim, Facts
from ....ir.region import Load, Region, Statement, accesses, walk
from ....ir.region.cost import cost_of
from ....ir.target import GpuTarget
from ..accesses import SCORE, stride_class
from ..lower import upper_bound
from ..schedule import Problem

LAUNCH_SECONDS = 3e-6
"""What one launch costs on its own."""

REACHED = 0.86
"""The share of the memory's rate that a kernel reaches which does nothing but read: measured on H100."""


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 if count <= 1 else 1 << (count - 1).bit_length()


def padded(extent: Dim, symbols: Facts) -> int | None:
    """The power of two that holds every value of a size; None if it has no bound."""
    bound = upper_bound(extent, symbols)
    return None if bound is None else power_of_two(bound)


def is_covered(extent: Dim, tile: int, symbols: Facts) -> bool:
    """Whether tiles of this extent cover the axis exactly, so that no lane lies outside, and there is an element."""
    return dims.divides(tile, extent, symbols) is True and dims.at_most(1, extent, symbols) is True


def warps_for(elements: int, each: int = 8) -> int:
    """Warps of a program that holds a tile of this many elements: about 8 elements a thread, or as many as are said, 4 to 16 warps."""
    return max(4, min(16, power_of_two(elements // (32 * each))))


def contiguous_axes(region: Region, statements: Iterable[Statement]) -> dict[str, int]:
    """How well each axis does as the lanes: accesses that it steps through by one element count most."""
    scores = dict.fromkeys(region.extents, 0)
    for operand, subscripts in accesses(statements):
        for axis in scores:
            scores[axis] += SCORE[stride_class(region, operand, subscripts, axis)]
    return scores


# --- predicted seconds ------------------------------------------------------------------------------------------------


def traffic(problem: Problem) -> float:
    """Bytes of all operands once, of a table no more than what is taken from it, at the symbols' typical sizes."""
    if any(isinstance(part, Load) and part.gathers for statement in problem.region.body for part in walk(statement.value)):
        return cost_of(problem.region, problem.sizes).bytes
    operands = (*problem.region.inputs, *problem.region.outputs)
    return sum(problem.typical(dims.product(o.type.shape)) * max(1, o.type.dtype.bits) / 8 for o in operands)


def waves(programs: float, target: GpuTarget, resident: int = 1) -> float:
    """Rounds in which the device runs its programs, over those that it would take if none were idle (at least 1)."""
    slots = target.processors * resident
    rounds = -(-programs // slots)
    return max(1.0, rounds * slots / max(1.0, programs))


def beside(*each: float) -> float:
    """Seconds of things that go on beside each other: the slowest, and more where others are nearly as slow."""
    return float(sum(seconds**4 for seconds in each) ** 0.25)


def memory_seconds(bytes_moved: float, programs: float, target: GpuTarget) -> float:
    """Seconds to move bytes: from the cache if it holds them twice, else from memory, and few programs do not fill the device."""
    rate = target.cache_rate if bytes_moved < target.cache_bytes / 2 else target.memory_rate
    filled = min(1.0, programs / target.processors)
    return bytes_moved / (rate * max(filled, 1 / target.processors))
