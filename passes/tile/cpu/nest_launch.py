"""One launch of `nest`: the grid's loops, and inside a grid point the folds, the kept values and the stores of a region, in order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, partial

from ....ir import dims
from ....ir.dims import Dim
from ....ir.errors import InternalError
from ....ir.expression import Constant
from ....ir.region import Let, Reduce, Ref, Scan, Store, values_of
from ....ir.region import walk as parts_of
from ....ir.region.cost import EXPENSIVE
from ....ir.region.stores import grouped, needed
from ....ir.tile.program import GridAxis, Launch, TileType, Value
from ....ir.tile.program import Reduce as TileReduce
from ....ir.tile.program import Ref as TileRef
from ..accesses import lies_inside
from ..folds import identity, is_compensated, open_extreme, open_total, running_fold
from ..lower import Block, upper_bound, used_parameters, zero
from ..schedule import Order, Problem
from ..walk import walk
from .nest_axes import NestAxes

LOCAL_LIMIT = 16_384
"""Elements of a named value that may be kept in a cache tile."""


class NestLaunch:
    """Builds the launch of stores that go together; the last of them has the most axes."""

    def __init__(self, problem: Problem, stores: Sequence[Store], axes: NestAxes) -> None:
        self.problem = problem
        self.region = problem.region
        self.stores = tuple(stores)
        self.statements = needed(problem.region, *stores)
        self.scans = [s for s in self.statements if isinstance(s, Scan)]
        self.axes = axes

    def order(self) -> Order:
        """Of each fold: its axes in the order of their loops, the lanes' step, and whether roundings are carried along."""
        return tuple(
            (s.name, tuple(self.axes.lane_last(s.over)), self._fold_step(s), self._is_compensated(s))
            if isinstance(s, Reduce)
            else (s.name,)
            for s in self.statements
            if not isinstance(s, Let)
        )

    def launch(self, name: str) -> Launch:
        """The kernel."""
        block = Block(self.problem, names={axis.name: 1 for axis in self.region.axes})
        grid = []
        for axis in self.axes.grid:
            grid.append(GridAxis(axis, 0, self.region.axis(axis).extent, self.axes.grid_step(axis)))
            block.index[axis] = dims.symbol(axis)
        walked = self.axes.walked
        if walked is None:
            self._statements(block)
        else:
            block.axes.append(walked)
            with block.loop(walked, "walk", 0, 0, self.axes.step, parent=walked, tail=self.axes.tail(walked)) as inner:
                block.axes.remove(walked)
                block.index[walked] = dims.symbol(inner)
                self._turn(block)
        return Launch(name, used_parameters(self.problem, (*self.statements, *self.stores)), tuple(grid), tuple(block.body))

    def _turn(self, block: Block) -> None:
        """The statements; for each element of a block of the turned axis, if there is one."""
        turned = self.axes.turned
        if turned is None:
            self._statements(block)
            return
        # What is the same for all elements of the block is computed once, before them.
        alike = [s for s in self.statements if isinstance(s, Let) and turned not in s.axes] if not self.scans else []
        for statement in alike:
            self._named(block, statement, often=True)
        lanes = block.axes[-1]
        block.axes.append(turned)
        with block.loop(turned, "walk", 0, 0, 1, parent=turned) as inner:
            block.axes = [inner, lanes]
            block.index[turned] = dims.symbol(inner)
            self._statements(block, alike)

    def _walk(self, block: Block, axes: Sequence[str], body: Callable[[bool], None], carries: tuple[TileRef, ...] = ()) -> None:
        """Loops over `axes`, the lane axis in vector steps, around what `body` adds, which is told whether all of a step lies inside."""
        walk(block, [self.axes.walk(name) for name in axes], body, carries)

    # --- statements inside a grid point ---

    def _statements(self, block: Block, done: Sequence[Let] = ()) -> None:
        if self.scans:
            self._scan(block)
            return
        for statement in self.statements:
            if statement in done:
                continue
            if isinstance(statement, Reduce):
                self._reduction(block, statement)
            elif isinstance(statement, Let):
                self._named(block, statement)
        for rest, stores in grouped(self.stores, lambda store: tuple(self.axes.rest(store.axes))).items():
            self._walk(block, rest, lambda _, stores=stores: self._write(block, stores))  # type: ignore[misc]

    def _write(self, block: Block, stores: Sequence[Store]) -> None:
        (*others, last) = stores
        if last.gathers:
            subscripts = block.subscripts(last.subscripts, last.gathers)
            with block.condition(lies_inside(block, last, subscripts)):
                self._put(block, last, subscripts, block.lower(last.value))
            return
        # Nothing is written before all is read: the C compiler cannot tell that no store changes what the next one needs.
        values = [block.let("stored", block.lower(store.value)) for store in others]
        for store, value in zip(stores, (*values, block.lower(last.value)), strict=True):
            self._put(block, store, block.subscripts(store.subscripts, ()), value)

    def _put(self, block: Block, store: Store, subscripts: tuple[Dim, ...], value: Value) -> None:
        if store.combine:
            shape = self.region.operand(store.output).type
            present = block.load(store.output, subscripts, shape.dtype)
            value = block.apply(store.combine, present, value)
        block.store_all(store.output, subscripts, value)

    # --- named values ---

    def _named(self, block: Block, statement: Let, often: bool = False) -> None:
        """A named value: at once where it does not vary inside, in a cache tile where that fits and pays, else at each use."""
        rest = self.axes.rest(statement.axes)
        if not rest:
            value = block.let(statement.name, block.lower(statement.value))
            block.readers[statement.name] = lambda _: value
            return
        extents = self._bounds(rest)
        if extents is None or math.prod(extents) > LOCAL_LIMIT or not (often or self._is_costly(statement)):
            block.later(statement)
            return
        self._keep(block, statement, rest, extents, lambda: block.lower(statement.value))

    def _bounds(self, names: Sequence[str]) -> list[int] | None:
        """The largest extents that axes can have; None if one is not known."""
        bounds = [upper_bound(self.region.axis(name).extent, self.problem.symbols) for name in names]
        known = [bound for bound in bounds if bound is not None]
        return known if len(known) == len(bounds) else None

    def _keep(self, block: Block, statement: Let | Reduce, rest: list[str], extents: list[int], value: Callable[[], Value]) -> None:
        """Keep a value in a cache tile over its axes `rest`, and over the lanes where the grid's lanes are its own."""
        dtype = statement.dtype if isinstance(statement, Reduce) else statement.value.dtype
        step, walked = self.axes.step, self.axes.walked
        sizes = [(name, -(-e // step) * step if name == self.axes.lane else max(1, e)) for name, e in zip(rest, extents, strict=True)]
        lanes = str(block.index[walked]) if walked is not None and walked in statement.axes else None
        if lanes is not None:
            sizes.append((lanes, step))
        local = block.local(statement.name, dtype, sizes)

        def places(inner: Block) -> list[Dim]:
            own = [inner.index[name] for name in rest]
            return own if lanes is None else [*own, dims.symbol(f"{lanes}.lane")]

        self._walk(block, rest, lambda _: block.store_all(local, places(block), value()))
        block.readers[statement.name] = lambda inner: inner.load(
            local, places(inner), dtype, Constant(zero(dtype), dtype) if inner.outside else None
        )

    @cached_property
    def uses(self) -> Counter[str]:
        """How often each named value is read."""
        values = (value for statement in (*self.statements, *self.stores) for value in values_of(statement))
        return Counter(part.name for value in values for part in parts_of(value) if isinstance(part, Ref))

    def _is_costly(self, statement: Let) -> bool:
        parts = (getattr(part, "primitive", "") for part in parts_of(statement.value))
        return self.uses[statement.name] > 1 and any(part in EXPENSIVE for part in parts)

    # --- folds ---

    def _reduction(self, block: Block, statement: Reduce) -> None:
        """A fold: once where it does not vary inside the grid point, else once for each element of a cache tile."""
        rest = self.axes.rest(statement.axes)
        if not rest:
            value = self._fold(block, statement)
            block.readers[statement.name] = lambda _: value
            return
        extents = self._bounds(rest)
        if extents is None:
            raise InternalError(f"region {self.region.name}: %{statement.name} varies over {', '.join(rest)} without a bound")
        self._keep(block, statement, rest, extents, lambda: self._fold(block, statement))

    def _fold(self, block: Block, statement: Reduce) -> TileRef:
        if statement.kind.startswith("arg"):
            return self._extreme(block, statement)
        over, start = self.axes.lane_last(statement.over), identity(statement.kind, statement.dtype)
        current = tuple(
            block.ordered({a for v in block.index.values() for a in block.axes_in(v)} & set(self._value_axes(block, statement)))
        )
        lane = self.axes.lane if self.axes.lane in over else None
        step = self._fold_step(statement)
        vector = block.axis("v", 0, step, step) if lane is not None else None
        lanes = (vector,) if vector is not None else ()
        extents = [self.region.axis(name).extent for name in statement.over]
        total = open_total(block, statement.name, statement.kind, statement.dtype, (*current, *lanes), extents)

        def add(is_whole: bool) -> None:
            block.outside = not is_whole
            value = block.lower(statement.value)
            block.outside = False
            if lane is not None and vector is not None:
                place = block.index[lane]
                if not is_whole:
                    value = block.inside(place, self.region.axis(lane).extent, value, start)
                if str(place) in value.type.axes:
                    value = block.rename(value, str(place), vector)
            total.take(block, value)

        self._walk(block, over, add, total.carries)
        if vector is None:
            return total.value
        block.axes.remove(vector)
        return block.let(statement.name, TileReduce(statement.kind, vector, total.value, TileType(statement.dtype, current)))

    def _fold_step(self, statement: Reduce) -> int:
        """The elements that a fold takes at once along its last axis: several where that lies in the lanes."""
        return max((self.axes.inner_step(name) for name in statement.over), default=1)

    def _is_compensated(self, statement: Reduce) -> bool:
        extents = [self.region.axis(name).extent for name in statement.over]
        return is_compensated(statement.kind, statement.dtype, extents, self.problem.symbols)

    def _value_axes(self, block: Block, statement: Reduce) -> set[str]:
        """The open tile axes that a reduction's result varies over."""
        return {axis for name in statement.axes for axis in block.axes_in(block.index[name])}

    def _extreme(self, block: Block, statement: Reduce) -> TileRef:
        """argmax and argmin: the best value and its index, NaN first of all."""
        (over,) = statement.over
        extreme = open_extreme(block, statement, statement.value.dtype, block.ordered(self._value_axes(block, statement)), statement.name)

        def update(_: bool) -> None:
            value = block.let("candidate", block.lower(statement.value))
            index = block.index_value(block.index[over])
            extreme.take(block, value, index)

        self._walk(block, [over], update, extreme.carries)
        return extreme.place

    def _scan(self, block: Block) -> None:
        """A running fold: one loop along its axis that also does what follows from it."""
        (scan,) = self.scans
        others = [name for name in self.axes.rest(self.stores[-1].axes) if name != scan.along]
        self._walk(block, others, partial(self._run, block, scan))

    def _run(self, block: Block, scan: Scan, _: bool) -> None:
        axes = block.ordered({a for name in scan.axes if name in block.index for a in block.axes_in(block.index[name])})
        with running_fold(block, scan, axes) as take:
            for statement in self.statements:
                if statement is scan:
                    take(block.lower(scan.value))
                elif isinstance(statement, Let):
                    value = block.let(statement.name, block.lower(statement.value))
                    block.readers[statement.name] = lambda _, value=value: value  # type: ignore[misc]
                else:
                    raise InternalError(f"region {self.region.name}: a reduction goes with the scan %{scan.name}")
            self._write(block, self.stores)
