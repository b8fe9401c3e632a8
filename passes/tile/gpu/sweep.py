"""One kernel over the axes of a region: tiles of grid axes, whole axes in padded registers, loops with accumulators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeGuard

from ....ir import dims
from ....ir.dims import Dim
from ....ir.errors import InternalError
from ....ir.region import SCANS, Let, Reduce, Region, Scalar, Scan, Store
from ....ir.region import Ref as ScalarRef
from ....ir.region import walk as parts_of
from ....ir.region.stores import grouped, references
from ....ir.tile.program import GridAxis, Launch, Ref, TileApply, TileType, Value
from ....ir.tile.program import Reduce as TileReduce
from ....ir.tile.program import Scan as TileScan
from ....ir.tile.ranges import beyond, is_size, range_of
from ....ir.types import boolean, i32, i64
from ..expand import with_expansion
from ..folds import identity, is_highest, open_extreme, open_total
from ..lower import Block, used_parameters
from ..schedule import Problem
from ..walk import Walk, walk
from .ahead import loads_ahead
from .shape import contiguous_axes, is_covered


@dataclass(frozen=True)
class Tiling:
    """How a kernel walks its axes.

    `grid` axes have a step (None: one index a program), `whole` axes lie in registers at their padded extent, from where they `begin`
    in a program on, `loops` go in steps of that many elements (1: one index at a time), one after the other in the text where they
    are `written_out`.
    """

    grid: Mapping[str, int | None]
    whole: Mapping[str, int] = field(default_factory=dict)
    loops: Mapping[str, int] = field(default_factory=dict)
    hints: tuple[tuple[str, str | int], ...] = ()
    written_out: bool = False
    begin: Mapping[str, Dim] = field(default_factory=dict)


def fresh_block(problem: Problem, grid: Sequence[str]) -> Block:
    """A block that gives no name which an operand, a symbol or a grid axis has."""
    taken = {o.name for o in (*problem.region.inputs, *problem.region.outputs)} | set(problem.symbols.ranges) | set(grid)
    return Block(problem, names=dict.fromkeys(sorted(taken), 1))


class Sweep:
    """Builds the launch of stores that go together and of the statements that they need."""

    def __init__(self, problem: Problem, statements: Sequence[Let | Reduce | Scan], stores: Sequence[Store], tiling: Tiling) -> None:
        self.problem = problem
        self.region: Region = problem.region
        self.statements = list(statements)
        self.stores = tuple(stores)
        self.tiling = tiling
        self.lets = {s.name: s for s in self.statements if isinstance(s, Let)}

    def launch(self, name: str) -> Launch:
        """The kernel."""
        region, tiling = self.region, self.tiling
        block = fresh_block(self.problem, tuple(tiling.grid))
        grid: list[GridAxis] = []
        for axis, step in tiling.grid.items():
            grid.append(GridAxis(axis, 0, region.axis(axis).extent, step))
            block.index[axis] = dims.symbol(axis)
            if step is not None:
                block.axes.append(axis)
        for axis, extent in tiling.whole.items():
            first = tiling.begin.get(axis, 0)
            block.index[axis] = dims.symbol(block.axis(axis, first, region.axis(axis).extent, extent))
        for statement in self.statements:
            self._statement(block, statement)
        groups = grouped(self.stores, lambda store: tuple(axis for axis in store.axes if axis in tiling.loops))
        for rest, stores in groups.items():
            self._walk(block, rest, partial(self._write, block, stores))
        params = used_parameters(self.problem, (*self.statements, *self.stores))
        return loads_ahead(Launch(name, params, tuple(grid), tuple(block.body), hints=tiling.hints))

    # --- statements ---------------------------------------------------------------------------------------------------

    def _statement(self, block: Block, statement: Let | Reduce | Scan) -> None:
        if isinstance(statement, Let):
            if any(axis in self.tiling.loops for axis in statement.axes):
                block.later(statement)
                return
            value = block.let(statement.name, block.lower(statement.value))
        elif isinstance(statement, Reduce):
            value = self._extreme(block, statement) if statement.kind.startswith("arg") else self._fold(block, statement)
        else:
            value = self._scan(block, statement)
        block.readers[statement.name] = lambda _: value

    def _write(self, block: Block, stores: Sequence[Store]) -> None:
        # What is loaded once stays loaded: no store stands between.
        values = [block.lower(store.value) for store in stores]
        if len(stores) > 1:
            named = zip(stores, values, strict=True)
            values = [value if isinstance(value, Ref) else block.let(f"{store.output}_value", value) for store, value in named]
        for store, value in zip(stores, values, strict=True):
            block.store_all(store.output, block.subscripts(store.subscripts, store.gathers), value, store.combine)

    # --- folds --------------------------------------------------------------------------------------------------------

    def _tile_axis(self, block: Block, axis: str) -> str | None:
        """The tile axis that a region axis is; None where it is one index."""
        found = block.axes_in(block.index[axis])
        return next(iter(found), None)

    def _masked(self, block: Block, value: Scalar, over: Sequence[str], start: bool | int | float) -> Value:
        """`value` with the reduction's neutral element in lanes beyond the axes `over`."""
        for axis in over:
            tile = self._tile_axis(block, axis)
            if tile is not None:
                loop = self.tiling.loops.get(axis)
                base = self.tiling.begin.get(axis, 0) if loop is None else dims.symbol(f"{tile}.first")
                value = with_expansion(block, self.region, value, axis, tile, base, loop or self.tiling.whole[axis])
        block.outside = True
        result = block.lower(value)
        block.outside = False
        for axis in over:
            extent = self.region.axis(axis).extent
            size = self.tiling.whole.get(axis) or self.tiling.loops[axis]
            if not is_covered(extent, size, self.problem.symbols) and not self._is_neutral(block, result, axis, start):
                result = block.inside(block.index[axis], extent, result, start)
        return result

    def _is_neutral(self, block: Block, value: Value, axis: str, start: bool | int | float) -> bool:
        """Whether lanes beyond the axis, whose loads are 0, hold what changes no fold that starts with this neutral element."""
        number = beyond(value, str(block.index[axis]))
        if number is None:
            return False
        if isinstance(start, float) and math.isinf(start) and dims.at_most(1, self.region.axis(axis).extent, self.problem.symbols) is True:
            # No number of the row lies beyond this one: it is the maximum only where it is that of the row too, and the same zero.
            low, high = range_of(value, {})
            return number == (low if start < 0 else high) and (number != 0 or is_size(value))
        return number == start and math.copysign(1, number) == math.copysign(1, start)

    def _result_axes(self, block: Block, axes: Sequence[str]) -> tuple[str, ...]:
        return block.ordered({tile for axis in axes if axis in block.index and (tile := self._tile_axis(block, axis)) is not None})

    def _fold(self, block: Block, statement: Reduce) -> Ref:
        whole = [axis for axis in statement.over if axis in self.tiling.whole]
        loops = [axis for axis in statement.over if axis in self.tiling.loops]
        start = identity(statement.kind, statement.dtype)
        kept = self._result_axes(block, statement.axes)
        inner = [str(block.index[axis]) for axis in whole]
        lanes: list[str] = []
        value: Value
        if loops:
            lanes, value = self._accumulate(block, statement, whole, loops, start)
        else:
            value = block.spread(self._masked(block, statement.value, whole, start), (*kept, *inner))
        for axis in (*(reversed(inner) if self._folds_lanes(statement) else inner), *lanes):
            left = tuple(a for a in value.type.axes if a != axis)
            value = TileReduce(statement.kind, axis, value, TileType(statement.dtype, left))
        block.axes = [axis for axis in block.axes if axis not in lanes]
        return block.let(statement.name, value)

    def _folds_lanes(self, statement: Reduce) -> bool:
        """Whether memory is read along folded axes alone: a thread holds neighbours along the last of them, and adds those up first."""
        scores = contiguous_axes(self.region, (statement,))
        return all(scores[axis] <= 0 for axis in statement.axes if self.tiling.grid.get(axis) is not None)

    def _accumulate(
        self, block: Block, statement: Reduce, whole: list[str], loops: list[str], start: bool | int | float
    ) -> tuple[list[str], Ref]:
        """Loops that fold into one accumulator for each lane; returns the axes of these lanes and the accumulator."""
        lanes = {axis: block.axis("v", 0, step, step) for axis in loops if (step := self.tiling.loops[axis]) > 1}
        inner = [str(block.index[axis]) for axis in whole]
        axes = block.ordered({*self._result_axes(block, statement.axes), *inner, *lanes.values()})
        # Each lane has a sum of its own.
        extents = [dims.ceil_div(self.region.axis(axis).extent, self.tiling.loops[axis]) for axis in loops]
        total = open_total(block, f"{statement.name}_lanes", statement.kind, statement.dtype, axes, extents)

        def add() -> None:
            value = self._masked(block, statement.value, (*whole, *lanes), start)
            names = {str(block.index[axis]): lane for axis, lane in lanes.items()}
            if total.lost is None and statement.kind == "sum" and _is_product(value):
                factors = [_renamed(block, factor, names) for factor in value.args]
                block.rebind(total.value, block.apply("fma", *factors, total.value))
            else:
                total.take(block, _renamed(block, value, names))

        self._walk(block, loops, add, total.carries)
        return list(lanes.values()), total.value

    def _walk(self, block: Block, axes: Sequence[str], body: Callable[[], None], carries: tuple[Ref, ...] = ()) -> None:
        """Loops over `axes` in their steps around what `body()` adds."""
        loops, out = self.tiling.loops, self.tiling.written_out
        walks = [Walk(axis, loops[axis], ((0, self.region.axis(axis).extent, False),), out) for axis in axes]
        walk(block, walks, lambda _: body(), carries)

    # --- argmax and argmin ----------------------------------------------------------------------------------------------

    def _extreme(self, block: Block, statement: Reduce) -> Ref:
        """The index of the first extreme along one axis; of the last by walking the axis from its end."""
        (over,) = statement.over
        if over in self.tiling.whole:
            _, place = self._chunk(block, statement, over)
            return block.let(statement.name, self._from_end(block, statement, place))
        kept = self._result_axes(block, statement.axes)
        dtype = i32 if statement.value.dtype == boolean else statement.value.dtype
        extreme = open_extreme(block, statement, dtype, kept, f"{statement.name}_place", from_end=True)

        def update() -> None:
            chunk, index = self._chunk(block, statement, over)
            value = block.let("candidate", chunk)
            tile = self._tile_axis(block, over)
            start = dims.symbol(f"{tile}.first") if tile is not None else block.index[over]
            beginning = block.index_value(start)
            index = block.let("place", beginning if tile is None else block.apply("add", index, beginning))
            extreme.take(block, value, index)

        self._walk(block, [over], update, extreme.carries)
        return block.let(statement.name, self._from_end(block, statement, extreme.place))

    def _chunk(self, block: Block, statement: Reduce, over: str) -> tuple[Value, Value]:
        """(extreme, its lane) along the tile axis of `over`; the value itself where that is one index."""
        kind, fold = ("argmax", "max") if is_highest(statement.kind) else ("argmin", "min")
        forward = block.index[over]
        tile = self._tile_axis(block, over)
        saved = dict(block.readers)
        if statement.kind.endswith("_last"):
            self._inline(block, over)
            block.index[over] = self.region.axis(over).extent - 1 - forward
        block.outside = True
        value = block.lower(statement.value)
        block.outside = False
        block.index[over], block.readers = forward, saved
        if value.type.dtype == boolean:
            value = block.apply("cast", value, dtype=i32)
        kept = self._result_axes(block, [a for a in statement.axes if a != over])
        if tile is None:
            return block.spread(value, kept), block.index_value(0)
        extent = self.region.axis(over).extent
        if not is_covered(extent, self.tiling.whole.get(over) or self.tiling.loops[over], self.problem.symbols):
            value = block.inside(forward, extent, value, identity(kind, value.type.dtype))
        value = block.let("values", block.spread(value, (*kept, tile)))
        left = tuple(a for a in value.type.axes if a != tile)
        best = TileReduce(fold, tile, value, TileType(value.type.dtype, left))
        return best, TileReduce(kind, tile, value, TileType(i64, left))

    def _from_end(self, block: Block, statement: Reduce, place: Value) -> Value:
        if not statement.kind.endswith("_last"):
            return place
        return block.apply("sub", block.index_value(self.region.axis(statement.over[0]).extent - 1), place)

    def _inline(self, block: Block, axis: str) -> None:
        """Compute named values that vary over `axis` again where they are read, at the index that holds there."""
        for let in self.lets.values():
            if axis in let.axes:
                block.later(let)

    # --- scans ----------------------------------------------------------------------------------------------------------

    def _scan(self, block: Block, statement: Scan) -> Ref:
        """A running fold along a whole axis in registers, or along what a program has of it; an exclusive one folds the values one place
        before.
        """
        along = statement.along
        if along not in self.tiling.whole:
            raise InternalError(f"region {self.region.name}: scan %{statement.name} along {along}, which is not whole")
        start = identity(SCANS[statement.kind], statement.dtype)
        place = block.index[along]
        saved = dict(block.readers)
        shifted: Dim = 0
        if statement.exclusive:
            self._inline(block, along)
            shifted = 1 if statement.reverse else -1
            block.index[along] = place + shifted
        block.outside = True
        value = block.lower(statement.value)
        block.outside = False
        block.index[along], block.readers = place, saved
        extent, first = self.region.axis(along).extent, self.tiling.begin.get(along, 0)
        end = dims.minimum(extent, first + self.tiling.whole[along]) if along in self.tiling.begin else extent
        value = block.inside(place + shifted if shifted else place, end, value, start)
        if shifted == -1:
            before = block.apply("le", block.index_value(first + 1), block.index_value(place))
            value = block.apply("where", before, value, block.full(start, statement.dtype))
        axes = (*self._result_axes(block, [a for a in statement.axes if a != along]), str(place))
        value = block.spread(value, axes)
        return block.let(statement.name, TileScan(SCANS[statement.kind], str(place), value, value.type, statement.reverse))


def _is_product(value: Value) -> TypeGuard[TileApply]:
    """Whether a value is a product of floats, which is then rounded when it is added, and not before."""
    return isinstance(value, TileApply) and value.primitive == "mul" and value.type.dtype.is_float


def _renamed(block: Block, value: Value, names: Mapping[str, str]) -> Value:
    """The same elements with axes called otherwise."""
    for before, after in names.items():
        if before in value.type.axes:
            value = block.rename(value, before, after)
    return value


def can_shift(statements: Sequence[Let | Reduce | Scan], value: Scalar, axis: str) -> bool:
    """Whether a value can be computed at another index of `axis`: it reads no fold that varies over the axis."""
    folds = {s.name for s in statements if not isinstance(s, Let) and axis in s.axes}
    lets = {s.name: s for s in statements if isinstance(s, Let)}
    pending = [part.name for part in parts_of(value) if isinstance(part, ScalarRef)]
    while pending:
        name = pending.pop()
        if name in folds:
            return False
        if name in lets:
            pending += references(lets[name])
    return True
