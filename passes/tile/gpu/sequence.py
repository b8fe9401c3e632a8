"""Scans that do not fit the registers: one running value for each parallel point, along the axis one index at a time."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

from ....ir import dims
from ....ir.dims import Dim
from ....ir.errors import InternalError
from ....ir.region import Let, Reduce, Scan, Store
from ....ir.tile.program import GridAxis, Launch
from ..lower import COMBINE, identity, is_long, used_parameters
from ..schedule import Problem
from .shape import contiguous_axes
from .sweep import SCAN_KIND, fresh_block, spread

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
        start = identity(SCAN_KIND[scan.kind], scan.dtype)
        acc = block.let(scan.name, block.full(start, scan.dtype, block.axes))
        extent = region.axis(scan.along).extent
        long = scan.kind == "cumsum" and scan.dtype.is_float and is_long([extent], self.problem.symbols)
        lost = block.lost(acc) if long else None
        with block.loop(scan.along, "scalar", 0, extent, 1, carries=(acc,) if lost is None else (acc, lost)) as inner:
            place: Dim = dims.symbol(inner)
            block.index[scan.along] = extent - 1 - place if scan.reverse else place
            before = block.let("before", acc)
            for let in (s for s in self.statements if isinstance(s, Let)):
                block.later(let)
            value = spread(block, block.lower(scan.value), acc.type.axes)
            if lost is None:
                block.rebind(acc, block.apply(COMBINE[SCAN_KIND[scan.kind]], acc, value))
            else:
                block.add_to(acc, lost, value)
            result = before if scan.exclusive else acc
            block.readers[scan.name] = lambda _: result
            subscripts = block.subscripts(self.store.subscripts, ())
            block.store(self.store.output, subscripts, block.lower(self.store.value))
        params = used_parameters(self.problem, (*self.statements, self.store))
        return Launch(name, params, tuple(grid), tuple(block.body), hints=(("warps", LANES // 32), ("stages", 1)))
