"""The strategy `attention`: softmax between two products, with scores that never leave the cache; what it takes, offers and costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ....ir import dims
from ....ir.target import CpuLevel
from ....ir.tile.program import TileProgram
from ..schedule import Match, Order, Problem, Refusal, Schedule
from ..softmax import Attention, read_attention
from .attention_factors import groups_of, rows_of, sharing
from .attention_launch import LANES, AttentionLaunch
from .matrix import SIDE
from .price import Priced

WIDEST = 512
"""The largest head size whose transposed keys stay in the second-level cache."""


@dataclass(frozen=True)
class CpuAttention(Priced):
    """Online softmax over column steps of `t`, row blocks of `mr` x `nr` in registers, `m` rows a grid point."""

    name: str = "attention"

    def match(self, problem: Problem, target: CpuLevel) -> Match[Attention] | Refusal:
        found = read_attention(problem.region)
        if isinstance(found, str):
            return Refusal(found)
        if found.product.dtype.name != "f32":
            return Refusal(f"scores are in {found.product.dtype}, expected f32")
        if len(found.inner) != 1:
            return Refusal(f"scores fold {len(found.inner)} axes, expected one")
        for name in (*found.inner, found.feature):
            extent = problem.region.axis(name).extent
            if not isinstance(extent, int) or not 1 <= extent <= WIDEST:
                return Refusal(f"head size {extent} is not a number from 1 to {WIDEST}")
        if any(extent == 0 for extent in problem.region.extents.values()):
            return Refusal("an axis has no elements")
        return Match(self, problem, found)

    def space(self, match: Match[Attention], target: CpuLevel) -> Iterator[Schedule]:
        """Row blocks by registers, steps by cache size; heads that read the same keys together, or each by itself."""
        shared = sharing(match.problem, match.found)
        for mr, nr in _blocks(match.problem, match.found, target):
            # Register blocks and the squares that are turned both fill a step of columns.
            whole = math.lcm(nr, LANES)
            choices = ((16, 128), (8, 128), (16, 64)) if mr <= SIDE else ((16, 128), (16, 256), (16, 512), (16, _even(match)))
            steps = dict.fromkeys((blocks, -(-t // whole) * whole) for blocks, t in choices)
            for heads in (1,) if shared is None else (1, shared[1]):
                for blocks, t in steps:
                    yield Schedule(self.name, (("m", max(1, blocks // heads) * mr), ("t", t), ("mr", mr), ("nr", nr), ("heads", heads)))

    def order(self, match: Match[Attention], schedule: Schedule, target: CpuLevel) -> Order:
        """By steps of columns, in each by as many as are looked at together; below the diagonal by blocks of rows as well, which look at
        columns that weigh nothing.
        """
        launch = AttentionLaunch(match.problem, schedule, match.found, target)
        groups = tuple(group and (group.dtype.name, group.depth, group.step) for group in (launch.scored, launch.summed))
        return self.name, schedule["t"], launch.lanes, launch.rows if match.found.limits else 0, groups

    def tile(self, match: Match[Attention], schedule: Schedule, target: CpuLevel) -> TileProgram:
        """One launch."""
        problem = match.problem
        launch = AttentionLaunch(problem, schedule, match.found, target).launch()
        return TileProgram(problem.region.name, (launch,), symbols=tuple(problem.symbols.ranges))


def _even(match: Match[Attention]) -> int:
    """Steps of at most 512 that are as long as each other, where it is known how many columns there are."""
    extent = match.problem.region.axis(match.found.column).extent
    return 512 if not isinstance(extent, int) else -(-extent // -(-extent // 512))


def _blocks(problem: Problem, found: Attention, target: CpuLevel) -> Iterator[tuple[int, int]]:
    """Rows and columns of register blocks: twelve by two vectors or six by two, or two tiles by two where matrices are multiplied; a
    single row has as many vectors as a head.
    """
    many, (scored, _) = target.registers >= 32, groups_of(problem, found, target)
    if scored is not None and scored.is_matrix:
        yield 2 * SIDE, 2 * SIDE
    elif rows_of(problem, found) == 1:
        features = dims.number(problem.region.axis(found.feature).extent)
        most = (8 if many else 4) * target.lanes
        yield 1, min(most, max(2 * target.lanes, -(-features // target.lanes) * target.lanes))
    else:
        yield (12, 32) if many else (6, 16)
