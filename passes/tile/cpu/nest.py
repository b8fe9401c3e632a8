"""The strategy `nest`: a region as loops over its axes, one of them in vector lanes.

One launch for the stores of the region that go together. The axes that all of their statements share become the grid; the other
statements run inside a grid point, in order: reductions sweep their axes with vector accumulators, named values that
vary inside are kept in a cache tile where their size is bounded and small, and computed again where it is not. A fold
that varies inside is always kept, and so must be bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ....ir import dims
from ....ir.dims import Dim
from ....ir.errors import InternalError
from ....ir.expression import Constant
from ....ir.region import Let, Load, Reduce, Ref, Region, Scan, Store, subscripted, values_of, walk
from ....ir.region.cost import EXPENSIVE
from ....ir.region.stores import Fold, needed, parallel_axes, together
from ....ir.target import CpuLevel
from ....ir.tile.program import GridAxis, Launch, TileProgram, TileType, Value
from ....ir.tile.program import Reduce as TileReduce
from ....ir.tile.program import Ref as TileRef
from ....ir.types import boolean, i64
from ..lower import COMBINE, Block, identity, is_long, upper_bound, used_parameters, zero
from ..schedule import Match, Order, Problem, Refusal, Schedule, folds_floats
from .price import Priced

LOCAL_LIMIT = 16_384
"""Elements of a named value that may be kept in a cache tile."""
TURNED = 16
"""Elements of an axis that the lanes stride across, taken together: so many f32 fill a line of memory."""
Kernels = tuple[tuple[Store, ...], ...]
"""The stores of each launch."""


@dataclass(frozen=True)
class Nest(Priced):
    """Loops over the region's axes: `lanes` is the number of elements in a vector step, `block` those of a grid tile."""

    name: str = "nest"

    def match(self, problem: Problem, target: CpuLevel) -> Match[Kernels] | Refusal:
        """It takes every region whose folds vary over what is bounded, or over the grid alone."""
        kernels = together(problem.region)
        reasons = (_why_not(problem, stores) for stores in kernels)
        why = next((reason for reason in reasons if reason is not None), None)
        return Match(self, problem, kernels) if why is None else Refusal(why)

    def space(self, match: Match[Kernels], target: CpuLevel) -> Iterator[Schedule]:
        """One to four vectors at a time."""
        for vectors in (4, 2, 1):
            yield Schedule(self.name, (("vectors", vectors), ("block", 1024)))

    def order(self, match: Match[Kernels], schedule: Schedule, target: CpuLevel) -> Order:
        """A fold goes along its axes one by one, or over the lanes in steps and then across them."""
        if not folds_floats(match.problem.region):
            return ()
        return self.name, *(_Nest(match.problem, schedule, target, stores, "").order() for stores in match.found)

    def tile(self, match: Match[Kernels], schedule: Schedule, target: CpuLevel) -> TileProgram:
        """One launch for stores that go together."""
        problem, kernels = match.problem, match.found
        launches = tuple(
            _Nest(problem, schedule, target, stores, f"{n}" if len(kernels) > 1 else "").launch() for n, stores in enumerate(kernels)
        )
        return TileProgram(problem.region.name, launches, symbols=tuple(problem.symbols.ranges))


def grid_axes(region: Region, stores: Sequence[Store], statements: Sequence[Fold]) -> tuple[str, ...]:
    """Axes that every statement varies over; of a scatter, whose points may meet, those that keep its points apart."""
    shared = parallel_axes(statements, *stores)
    for store in stores:
        if store.gathers:
            shared &= {str(subscript) for subscript in store.subscripts if not isinstance(subscript, int)}
    return tuple(axis.name for axis in region.axes if axis.name in shared)


def _why_not(problem: Problem, stores: Sequence[Store]) -> str | None:
    """Why the launch of stores cannot be made; None if it can."""
    region, statements = problem.region, needed(problem.region, *stores)
    folds = [statement for statement in statements if isinstance(statement, Reduce)]
    scans = [statement for statement in statements if isinstance(statement, Scan)]
    if len(scans) > 1 or (scans and folds):
        return f"%{scans[0].name} is a running fold, which goes with no other fold"
    grid = grid_axes(region, stores, statements)
    for fold in folds:
        free = [name for name in fold.axes if name not in grid and upper_bound(region.axis(name).extent, problem.symbols) is None]
        if free:
            return f"%{fold.name} varies over {', '.join(free)}, which has no bound"
    return None


class _Nest:
    """Builds the launch of stores that go together; the last of them has the most axes."""

    def __init__(self, problem: Problem, schedule: Schedule, target: CpuLevel, stores: Sequence[Store], suffix: str) -> None:
        self.problem = problem
        self.region = problem.region
        self.stores = tuple(stores)
        self.statements = needed(problem.region, *stores)
        self.step = target.lanes * schedule["vectors"]
        self.narrow = target.lanes
        self.block_size = schedule["block"]
        self.suffix = suffix
        self.scans = [s for s in self.statements if isinstance(s, Scan)]
        self.parallel = grid_axes(problem.region, stores, self.statements)
        self.lane = self._lane()
        self.turned = self._turned()

    def order(self) -> Order:
        """Of each fold: its axes in the order of their loops, the lanes' step, and whether roundings are carried along."""
        return tuple(
            (s.name, self._loop_order(s), self._fold_step(s), self._is_compensated(s)) if isinstance(s, Reduce) else (s.name,)
            for s in self.statements
            if not isinstance(s, Let)
        )

    def launch(self) -> Launch:
        block = Block(self.problem, names={axis.name: 1 for axis in self.region.axes})
        grid = []
        walked = self.lane if self.lane in self.parallel else None
        for name in self.parallel:
            step = self._grid_step(name) if name == walked else TURNED if name == self.turned else None
            grid.append(GridAxis(name, 0, self.region.axis(name).extent, step))
            block.index[name] = dims.symbol(name)
        if walked is not None:
            block.axes.append(walked)
            with block.loop(walked, "walk", 0, 0, self.step, parent=walked, tail=self._tail(walked)) as inner:
                block.axes.remove(walked)
                block.index[walked] = dims.symbol(inner)
                self._turn(block)
        else:
            self._statements(block)
        name = f"{self.region.name}.nest{self.suffix}"
        combined = frozenset(store.output for store in self.stores if store.combine)
        return Launch(name, used_parameters(self.problem, (*self.statements, *self.stores), combined), tuple(grid), tuple(block.body))

    def _turn(self, block: Block) -> None:
        """The statements; for each element of a block of the turned axis, if there is one."""
        if self.turned is None:
            self._statements(block)
            return
        lanes = block.axes[-1]
        block.axes.append(self.turned)
        with block.loop(self.turned, "walk", 0, 0, 1, parent=self.turned) as inner:
            block.axes = [inner, lanes]
            block.index[self.turned] = dims.symbol(inner)
            self._statements(block)

    def _turned(self) -> str | None:
        """The axis along which something is read contiguously that the lanes stride through.

        Lines of memory hold neighbours along that axis: a block of them is taken where the lines were just read.
        """
        if self.lane not in self.parallel:
            return None
        for operand, subscripts, _ in self._accesses():
            shape = self.region.operand(operand).type.shape
            strides = {name: _stride(subscripts, shape, name) for name in self.parallel}
            along = [name for name, stride in strides.items() if stride == 1]
            if strides[self.lane] == 2 and along and dims.at_most(TURNED, self.region.axis(along[0]).extent, self.problem.symbols) is True:
                return along[0]
        return None

    def _side_by_side(self, store: Store) -> set[str]:
        """The axes of a scatter along which its points lie inside and side by side, wherever the others put them."""
        moved = {name for _, gather in store.gathers for name in subscripted(gather)}
        shape = self.region.operand(store.output).type.shape
        plain = {str(own) for own, size in zip(store.subscripts, shape, strict=True) if self._is_inside(own, size)}
        return (plain & set(self.parallel)) - moved

    def _accesses(self) -> list[tuple[str, tuple[Dim, ...], frozenset[str]]]:
        """Every operand with the subscripts that it is stored or read at, and the axes along which loaded ones jump about."""
        found = [(store.output, store.subscripts, frozenset[str]()) for store in self.stores]
        for statement in (*self.statements, *self.stores):
            for value in values_of(statement):
                loads = [part for part in walk(value) if isinstance(part, Load)]
                jumps = [frozenset(name for _, gather in part.gathers for name in subscripted(gather)) for part in loads]
                found += [(part.operand, part.subscripts, along) for part, along in zip(loads, jumps, strict=True)]
        return found

    def _grid_step(self, name: str) -> int:
        extent = upper_bound(self.region.axis(name).extent, self.problem.symbols)
        whole = self.block_size if len(self.parallel) == 1 else min(self.block_size, 256)
        return max(self.narrow, min(whole, -(-extent // self.narrow) * self.narrow)) if extent is not None else whole

    def _tail(self, name: str) -> tuple[int, ...]:
        extent = self.region.axis(name).extent
        return () if self.step == self.narrow or dims.divides(self.step, extent, self.problem.symbols) else (self.narrow,)

    def _lane(self) -> str | None:
        """The axis that most accesses step through with stride 1, one that fills a vector if there is one; None where nothing gains."""
        if self.stores[-1].gathers:
            banned = set(self.region.extents) - self._side_by_side(self.stores[-1])
        elif self.scans or any(isinstance(s, Reduce) and s.kind.startswith("arg") for s in self.statements):
            banned = set(self.region.extents) - set(self.parallel)
        else:
            banned = set()
        scores: dict[str, int] = {}
        for operand, subscripts, gathered in dict.fromkeys(self._accesses()):
            shape = self.region.operand(operand).type.shape
            strides = {axis.name: 2 if axis.name in gathered else _stride(subscripts, shape, axis.name) for axis in self.region.axes}
            # What varies over few axes is read where they are looped over, not at every point.
            often = sum(stride != 0 for stride in strides.values())
            for name, stride in strides.items():
                scores[name] = scores.get(name, 0) + often * (0, 3, -2)[stride]
        best: tuple[bool, int] | None = None
        found: str | None = None
        for axis in self.region.axes:
            extent = upper_bound(axis.extent, self.problem.symbols)
            if axis.name in banned or (extent is not None and extent < 4) or scores.get(axis.name, 0) <= 0:
                continue
            rank = extent is None or extent >= self.narrow, scores[axis.name]
            if best is None or rank >= best:
                best, found = rank, axis.name
        return found

    # --- statements inside a grid point ---

    def _statements(self, block: Block) -> None:
        if self.scans:
            self._scan(block)
            return
        for statement in self.statements:
            if isinstance(statement, Reduce):
                self._reduction(block, statement)
            elif isinstance(statement, Let):
                self._named(block, statement)
        rests = [self._rest(store.axes) for store in self.stores]
        for n, rest in enumerate(rests):
            if rest not in rests[:n]:
                stores = [store for store, own in zip(self.stores, rests, strict=True) if own == rest]
                self._sweep(block, rest, lambda stores=stores: self._write(block, stores))  # type: ignore[misc]

    def _rest(self, axes: tuple[str, ...]) -> list[str]:
        """The axes that are not the grid's, the lane axis last."""
        rest = [name for name in axes if name not in self.parallel]
        return sorted(rest, key=lambda name: name == self.lane)

    def _write(self, block: Block, stores: Sequence[Store]) -> None:
        (*others, last) = stores
        if last.gathers:
            subscripts = block.subscripts(last.subscripts, last.gathers)
            with block.condition(self._lies_inside(block, last, subscripts)):
                self._put(block, last, subscripts, block.lower(last.value))
            return
        # Nothing is written before all is read: the C compiler cannot tell that no store changes what the next one needs.
        values = [block.let("stored", block.lower(store.value)) for store in others]
        for store, value in zip(stores, (*values, block.lower(last.value)), strict=True):
            self._put(block, store, block.subscripts(store.subscripts, ()), value)

    def _lies_inside(self, block: Block, store: Store, subscripts: tuple[Dim, ...]) -> Value:
        """Whether a scattered element lies inside the output; one that does not is not written."""
        shape = self.region.operand(store.output).type.shape
        inside: Value | None = None
        for size, own, subscript in zip(shape, store.subscripts, subscripts, strict=True):
            if self._is_inside(own, size):
                continue
            place = block.index_value(subscript)
            both = block.apply("bit_and", block.apply("le", block.index_value(0), place), block.apply("lt", place, block.index_value(size)))
            inside = both if inside is None else block.apply("bit_and", inside, both)
        return inside if inside is not None else block.full(True, boolean)

    def _is_inside(self, subscript: Dim, size: Dim) -> bool:
        facts = self.region.facts(self.problem.symbols)
        return dims.at_most(0, subscript, facts) is True and dims.at_most(subscript + 1, size, facts) is True

    def _put(self, block: Block, store: Store, subscripts: tuple[Dim, ...], value: Value) -> None:
        if store.combine:
            shape = self.region.operand(store.output).type
            present = block.load(store.output, subscripts, shape.dtype)
            value = block.apply(store.combine, present, value)
        block.store(store.output, subscripts, self._spread(block, value, subscripts))

    def _spread(self, block: Block, value: Value, subscripts: tuple[Dim, ...]) -> Value:
        """A value that does not vary over the lanes, where the store does, broadcast to them."""
        wanted = block.ordered(block.axes_in(*subscripts))
        if set(wanted) <= set(value.type.axes):
            return value
        nothing = block.full(zero(value.type.dtype), value.type.dtype, wanted)
        true = block.apply("le", block.index_value(0), block.index_value(0))
        return block.apply("where", true, value, nothing)

    def _sweep(self, block: Block, axes: list[str], body: Callable[[], None]) -> None:
        """Loops over `axes`, the lane axis in vector steps, around what `body()` adds."""
        if not axes:
            body()
            return
        name, extent = axes[0], self.region.axis(axes[0]).extent
        if name == self.lane:
            for low, high, _ in self._stretches(extent):
                with block.loop(name, "tile", low, high, self._inner_step(extent)) as inner:
                    block.index[name] = dims.symbol(inner)
                    self._sweep(block, axes[1:], body)
        else:
            with block.loop(name, "scalar", 0, extent, 1) as inner:
                block.index[name] = dims.symbol(inner)
                self._sweep(block, axes[1:], body)

    def _stretches(self, extent: Dim) -> Iterator[tuple[Dim, Dim, bool]]:
        """The lane axis in two stretches, where its size is no known multiple of the step: whole steps, and what is left, masked."""
        step, symbols = self._inner_step(extent), self.problem.symbols
        if dims.divides(step, extent, symbols) is True:
            yield 0, extent, True
            return
        whole = dims.simplify(extent // step * step, symbols)
        if dims.at_most(whole, 0, symbols) is not True:
            yield 0, whole, True
        yield whole, extent, False

    def _inner_step(self, extent: Dim) -> int:
        bound = upper_bound(extent, self.problem.symbols)
        return self.step if bound is None else max(self.narrow, min(self.step, -(-bound // self.narrow) * self.narrow))

    def _named(self, block: Block, statement: Let) -> None:
        """A named value: at once where it does not vary inside, in a cache tile where that fits, else at each use."""
        rest = self._rest(statement.axes)
        if not rest:
            value = block.let(statement.name, block.lower(statement.value))
            block.readers[statement.name] = lambda _: value
            return
        extents = [upper_bound(self.region.axis(name).extent, self.problem.symbols) for name in rest]
        size = 1
        for extent in extents:
            size = size * extent if extent is not None and size is not None else None  # type: ignore[assignment]
        if size is None or size > LOCAL_LIMIT or not self._is_costly(statement):
            block.later(statement)
            return
        self._keep(block, statement, rest, [e or 1 for e in extents], lambda: block.lower(statement.value))

    def _keep(self, block: Block, statement: Let | Reduce, rest: list[str], extents: list[int], value: Callable[[], Value]) -> None:
        """Keep a value in a cache tile over its axes `rest`, and over the lanes where the grid's lanes are its own."""
        dtype = statement.dtype if isinstance(statement, Reduce) else statement.value.dtype
        sizes = [(name, -(-e // self.step) * self.step if name == self.lane else e) for name, e in zip(rest, extents, strict=True)]
        lanes = str(block.index[self.lane]) if self.lane in self.parallel and self.lane in statement.axes else None
        if lanes is not None:
            sizes.append((lanes, self.step))
        local = block.local(statement.name, dtype, sizes)

        def places(inner: Block) -> list[Dim]:
            own = [inner.index[name] for name in rest]
            return own if lanes is None else [*own, dims.symbol(f"{lanes}.lane")]

        def fill() -> None:
            subscripts = places(block)
            block.store(local, subscripts, self._spread(block, value(), tuple(subscripts)))

        self._sweep(block, rest, fill)
        block.readers[statement.name] = lambda inner: inner.load(
            local, places(inner), dtype, Constant(zero(dtype), dtype) if inner.outside else None
        )

    @cached_property
    def uses(self) -> Counter[str]:
        """How often each named value is read."""
        values = (value for statement in (*self.statements, *self.stores) for value in values_of(statement))
        return Counter(part.name for value in values for part in walk(value) if isinstance(part, Ref))

    def _is_costly(self, statement: Let) -> bool:
        parts = (getattr(part, "primitive", "") for part in walk(statement.value))
        return self.uses[statement.name] > 1 and any(part in EXPENSIVE for part in parts)

    def _reduction(self, block: Block, statement: Reduce) -> None:
        rest = self._rest(statement.axes)
        if rest:
            self._reduction_tile(block, statement, rest)
            return
        value = self._fold(block, statement)
        block.readers[statement.name] = lambda _: value

    def _reduction_tile(self, block: Block, statement: Reduce, rest: list[str]) -> None:
        """A reduction that varies inside the grid point: one fold for each element of a cache tile."""
        extents = [upper_bound(self.region.axis(name).extent, self.problem.symbols) for name in rest]
        if any(extent is None for extent in extents):
            raise InternalError(f"region {self.region.name}: %{statement.name} varies over {', '.join(rest)} without a bound")
        self._keep(block, statement, rest, [e or 1 for e in extents], lambda: self._fold(block, statement))

    def _fold(self, block: Block, statement: Reduce) -> TileRef:
        if statement.kind.startswith("arg"):
            return self._extreme(block, statement)
        over = self._loop_order(statement)
        combine, start = COMBINE[statement.kind], identity(statement.kind, statement.dtype)
        lanes = self.lane if self.lane in over else None
        current = tuple(
            block.ordered({a for v in block.index.values() for a in block.axes_in(v)} & set(self._value_axes(block, statement)))
        )
        if lanes is None:
            acc = block.let(statement.name, block.full(start, statement.dtype, current))
            lost = self._lost(block, statement, acc)
            self._loops(block, over, acc, lambda _: self._combine(block, combine, acc, lost, block.lower(statement.value)), _given(lost))
            return acc
        extent = self.region.axis(lanes).extent
        step = self._fold_step(statement)
        vector = block.axis("v", 0, step, step)
        acc = block.let(statement.name, block.full(start, statement.dtype, (*current, vector)))
        lost = self._lost(block, statement, acc)

        def add(is_whole: bool) -> None:
            block.outside = not is_whole
            value = block.lower(statement.value)
            block.outside = False
            place = block.index[lanes]
            if not is_whole:
                value = block.inside(place, extent, value, start)
            if str(place) in value.type.axes:
                value = block.rename(value, str(place), vector)
            self._combine(block, combine, acc, lost, value)

        self._loops(block, over, acc, add, _given(lost))
        block.axes.remove(vector)
        return block.let(statement.name, TileReduce(statement.kind, vector, acc, TileType(statement.dtype, current)))

    def _loop_order(self, statement: Reduce) -> tuple[str, ...]:
        """The folded axes, the lane axis last."""
        return tuple(sorted(statement.over, key=lambda name: name == self.lane))

    def _fold_step(self, statement: Reduce) -> int:
        """The elements that a fold takes at once along its last axis: several where that lies in the lanes."""
        return self._inner_step(self.region.axis(self.lane).extent) if self.lane in statement.over and self.lane is not None else 1

    def _is_compensated(self, statement: Reduce) -> bool:
        """Whether a float sum is so long that it carries along what its roundings lose."""
        long = is_long([self.region.axis(name).extent for name in statement.over], self.problem.symbols)
        return statement.kind == "sum" and statement.dtype.is_float and long

    def _lost(self, block: Block, statement: Reduce, acc: TileRef) -> TileRef | None:
        """The companion of a long float sum."""
        return block.lost(acc) if self._is_compensated(statement) else None

    def _combine(self, block: Block, combine: str, acc: TileRef, lost: TileRef | None, value: Value) -> None:
        if lost is None:
            block.rebind(acc, block.apply(combine, acc, value))
        else:
            block.add_to(acc, lost, value)

    def _value_axes(self, block: Block, statement: Reduce) -> set[str]:
        """The open tile axes that a reduction's result varies over."""
        return {axis for name in statement.axes for axis in block.axes_in(block.index[name])}

    def _loops(
        self,
        block: Block,
        over: Sequence[str],
        acc: TileRef,
        body: Callable[[bool], None],
        others: tuple[TileRef, ...] = (),
        is_whole: bool = True,
    ) -> None:
        """Loops over `over` that carry `acc`, the lane axis in vector steps; `body` is told whether all of a step lies inside."""
        if not over:
            body(is_whole)
            return
        extent = self.region.axis(over[0]).extent
        kind, step = ("tile", self._inner_step(extent)) if over[0] == self.lane else ("scalar", 1)
        for low, high, whole in self._stretches(extent) if kind == "tile" else [(0, extent, True)]:
            with block.loop(over[0], kind, low, high, step, carries=(acc, *others)) as inner:
                block.index[over[0]] = dims.symbol(inner)
                self._loops(block, over[1:], acc, body, others, is_whole and whole)

    def _extreme(self, block: Block, statement: Reduce) -> TileRef:
        """argmax and argmin: the best value and its index, NaN first of all."""
        (over,) = statement.over
        dtype = statement.value.dtype
        current = block.ordered(self._value_axes(block, statement))
        first = identity("max" if statement.kind.startswith("argmax") else "min", dtype)
        best = block.let(f"{statement.name}_best", block.full(first, dtype, current))
        place = block.let(statement.name, block.full(0, i64, current))

        def update(_: bool) -> None:
            value = block.let("candidate", block.lower(statement.value))
            ahead, behind = (best, value) if statement.kind.startswith("argmax") else (value, best)
            better = block.apply("lt", ahead, behind)
            index = block.index_value(block.index[over])
            start = block.apply("eq", index, block.index_value(0))
            if statement.kind.endswith("_last"):
                better = block.apply("bit_or", better, block.apply("eq", value, best))
            better = block.apply("bit_or", better, start)
            if dtype.is_float:
                known = block.apply("is_nan", best)
                fresh = block.apply("is_nan", value)
                if statement.kind.endswith("_last"):
                    better = block.apply("bit_or", block.apply("bit_and", better, block.apply("bit_not", known)), fresh)
                else:
                    better = block.apply("bit_or", better, fresh)
                    better = block.apply("bit_and", better, block.apply("bit_or", block.apply("bit_not", known), start))
            chosen = block.let("better", better)
            block.rebind(place, block.apply("where", chosen, index, place))
            block.rebind(best, block.apply("where", chosen, value, best))

        self._loops(block, [over], best, update, (place,))
        return place

    def _scan(self, block: Block) -> None:
        """A running fold: one loop along its axis that also does what follows from it."""
        (scan,) = self.scans
        along, extent = scan.along, self.region.axis(scan.along).extent
        others = [name for name in self._rest(self.stores[-1].axes) if name != along]

        def run() -> None:
            dtype = scan.dtype
            start = identity({"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}[scan.kind], dtype)
            axes = block.ordered({a for name in scan.axes if name in block.index for a in block.axes_in(block.index[name])})
            acc = block.let(scan.name, block.full(start, dtype, axes))
            long = scan.kind == "cumsum" and dtype.is_float and is_long([extent], self.problem.symbols)
            lost = block.lost(acc) if long else None
            with block.loop(along, "scalar", 0, extent, 1, carries=(acc, *_given(lost))) as inner:
                place: Dim = dims.symbol(inner)
                block.index[along] = extent - 1 - place if scan.reverse else place
                before = block.let("before", acc)
                following = False
                for statement in self.statements:
                    if statement is scan:
                        self._combine(block, COMBINE[scan.kind], acc, lost, block.lower(scan.value))
                        block.readers[scan.name] = (lambda _: before) if scan.exclusive else (lambda _: acc)
                        following = True
                    elif isinstance(statement, Let):
                        value = block.let(statement.name, block.lower(statement.value))
                        block.readers[statement.name] = lambda _, value=value: value  # type: ignore[misc]
                    else:
                        raise InternalError(f"region {self.region.name}: a reduction {'after' if following else 'before'} a scan")
                self._write(block, self.stores)

        self._sweep(block, others, run)


def _given(lost: TileRef | None) -> tuple[TileRef, ...]:
    return () if lost is None else (lost,)


def _stride(subscripts: tuple[Dim, ...], shape: tuple[Dim, ...], axis: str) -> int:
    """0 if the axis does not move the address, 1 if it steps by one element, else 2."""
    for place, subscript in enumerate(reversed(subscripts)):
        if axis in dims.symbols(subscript):
            moved = dims.substitute(subscript, {axis: dims.symbol(axis) + 1}) - subscript
            inner = dims.product(shape[len(shape) - place :])
            return 1 if moved == 1 and inner == 1 else 2
    return 0
