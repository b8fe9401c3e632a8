"""Scans that do not fit the registers: one running value for each parallel point, along the axis one index at a time."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

from ....ir import dims
from ....ir.errors import InternalError
from ....ir.region import Let, Reduce, Scan, Store
from ....ir.tile.program import GridAxis, Launch
from ..folds import running_fold
from ..lower import used_parameters
from ..schedule import Problem
from .shape import contiguous_axes
from .sweep import fresh_block

LANES = 128


@dataclass(frozen=True)
class Sequence:
    """One scan and its store; other axes are the grid, the most contiguous of them in tiles."""

    problem: Problem
    statements: Many[Let | Reduce | Scan]
    store: Store

    def launch(self, name: str) -> Launch:
        """The kernel."""
        scans = [s for s in self.statements if isinstance(s, Scan)]
        if len(scans) != 1 or any(isinstance(s, Reduce) for s in self.statements):
            raise InternalError(f"launch {name} holds {len(scans)} scans, expected one and no other fold")
        scan, region = scans[0], self.problem.region
        others = [axis.name for axis in region.axes if axis.name in scan.axes and axis.name != scan.along]
        scores = contiguous_axes(region, (*self.statements, self.store))
        lane = max(others, key=lambda axis: (scores[axis], others.index(axis)), default=None)
        block = fresh_block(self.problem, others)
        grid: list[GridAxis] = []
        for axis in others:
            grid.append(GridAxis(axis, 0, region.axis(axis).extent, LANES if axis == lane else None))
            block.index[axis] = dims.symbol(axis)
        if lane is not None:
            block.axes.append(lane)
        axes = tuple(block.axes)
        with running_fold(block, scan, axes) as take:
            for let in (s for s in self.statements if isinstance(s, Let)):
                block.later(let)
            take(block.spread(block.lower(scan.value), axes))
            block.store(self.store.output, block.subscripts(self.store.subscripts, ()), block.lower(self.store.value))
        params = used_parameters(self.problem, (*self.statements, self.store))
        return Launch(name, params, tuple(grid), tuple(block.body), hints=(("warps", LANES // 32), ("stages", 1)))
