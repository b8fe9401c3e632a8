"""Scatters: points that may meet are taken one after the other, or by integer atomics where their order does not matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....ir import dims
from ....ir.dims import Dim
from ....ir.errors import InternalError
from ....ir.region import Let, Reduce, Region, Scan, Store
from ....ir.tile.program import GridAxis, Launch, Value, statements
from ....ir.tile.program import Let as TileLet
from ....ir.tile.program import Load as TileLoad
from ....ir.tile.program import walk as parts_of
from ..accesses import apart, lies_inside, unproved
from ..folds import identity
from ..lower import Block, used_parameters
from ..schedule import Problem
from ..walk import Walk, walk
from .shape import contiguous_axes
from .sweep import fresh_block

ATOMICS = ("add", "max", "min")
LANES = 128
"""Elements of a tile: one for each of the 128 threads, so that one thread reads and writes an element at every step."""


def by_atomics(region: Region, store: Store) -> bool:
    """Whether points of a scatter may be combined in any order, by instructions of the memory."""
    dtype = region.operand(store.output).type.dtype
    return store.combine in ATOMICS and dtype.is_integer and dtype.bits >= 32


@dataclass(frozen=True)
class Scatter:
    """One store with loaded subscripts, or one that combines into what the output holds.

    Axes that stand alone in a subscript keep points apart and are the grid; the others are walked in order, or are in the grid as
    well where no two points that are written meet (`never_meet`).
    """

    problem: Problem
    statements: Sequence[Let | Reduce | Scan]
    store: Store
    never_meet: bool = False

    def launch(self, name: str) -> Launch:
        """The kernel."""
        if any(not isinstance(s, Let) for s in self.statements):
            raise InternalError(f"launch {name} scatters what it folds, expected a workspace between")
        region, store = self.problem.region, self.store
        adds = by_atomics(region, store)
        free = set(store.axes) if adds or self.never_meet else apart(store)
        names = [axis.name for axis in region.axes if axis.name in store.axes]
        scores = contiguous_axes(region, (*self.statements, store))
        parallel = [axis for axis in names if axis in free]
        # Lanes that write nothing put back what their own column holds: only axes that stand alone are columns.
        lanes = [axis for axis in parallel if adds or axis in apart(store)]
        lane = max(lanes, key=lambda axis: (scores[axis], lanes.index(axis)), default=None)
        block = fresh_block(self.problem, parallel)
        grid: list[GridAxis] = []
        for axis in parallel:
            grid.append(GridAxis(axis, 0, region.axis(axis).extent, LANES if axis == lane else None))
            block.index[axis] = dims.symbol(axis)
        if lane is not None:
            block.axes.append(lane)
        for let in (s for s in self.statements if isinstance(s, Let)):
            block.later(let)
        walks = [Walk(axis, 1, ((0, region.axis(axis).extent, True),)) for axis in names if axis not in free]
        walk(block, walks, lambda _: self._write(block, adds))
        combined = frozenset({store.output}) if self._reads_output(block) else frozenset[str]()
        params = used_parameters(self.problem, (*self.statements, store), combined)
        hints = (("warps", LANES // 32 if lane is not None else 1), ("stages", 1))
        return Launch(name, params, tuple(grid), tuple(block.body), hints=hints)

    def _reads_output(self, block: Block) -> bool:
        loads = (p for s in statements(tuple(block.body)) if isinstance(s, TileLet) for p in parts_of(s.value) if isinstance(p, TileLoad))
        return any(load.operand == self.store.output for load in loads)

    def _write(self, block: Block, adds: bool) -> None:
        store = self.store
        subscripts = block.subscripts(store.subscripts, store.gathers)
        inside, checked = block.let("inside", lies_inside(block, store, subscripts)), unproved(block, store)
        if not inside.type.axes:
            with block.condition(inside):
                self._put(block, subscripts, None, adds)
            return
        # A lane that writes nothing puts back what its own column holds at place 0, or adds nothing there.
        places = list(subscripts)
        for n in checked:
            place = block.apply("where", inside, block.index_value(subscripts[n]), block.index_value(0))
            places[n] = block.place(block.let("place", place))
        with block.condition(self._has_elements(block, checked)):
            self._put(block, tuple(places), inside, adds)

    def _has_elements(self, block: Block, checked: list[int]) -> Value:
        shape = self.problem.region.operand(self.store.output).type.shape
        return block.apply("lt", block.index_value(0), block.index_value(dims.product(shape[n] for n in checked)))

    def _put(self, block: Block, subscripts: tuple[Dim, ...], inside: Value | None, adds: bool) -> None:
        store = self.store
        dtype = self.problem.region.operand(store.output).type.dtype
        axes = block.ordered(block.axes_in(*subscripts))
        value = block.spread(block.lower(store.value), axes)
        if adds:
            nothing = block.full(identity(_FOLD[store.combine or "add"], dtype), dtype)
            value = value if inside is None else block.apply("where", inside, value, nothing)
            block.store_all(store.output, subscripts, value, store.combine)
            return
        if store.combine or inside is not None:
            present = block.let("present", block.load(store.output, subscripts, dtype))
            value = block.apply(store.combine, present, value) if store.combine else value
            value = value if inside is None else block.apply("where", inside, value, present)
        block.store(store.output, subscripts, value)


_FOLD = {"add": "sum", "max": "max", "min": "min"}
