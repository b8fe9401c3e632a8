"""From region expressions to tile values: what every strategy shares.

A `Block` collects statements; it knows which tile axes are open (outermost first, the last one is the lanes), what
each region axis is as an index expression, and how each named value of the region can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ...ir import dims
from ...ir.dims import Dim
from ...ir.expression import Apply, Constant
from ...ir.expression import Index as ScalarIndex
from ...ir.layout import Factor, Layout
from ...ir.region import Let as ScalarLet
from ...ir.region import Load as ScalarLoad
from ...ir.region import Operand, Region, Scalar, accesses, walk
from ...ir.region import Ref as ScalarRef
from ...ir.region import Statement as RegionStatement
from ...ir.region import Store as RegionStore
from ...ir.scalar import PRIMITIVES
from ...ir.summation import LONG
from ...ir.tile.program import (
    AxisDecl,
    For,
    Full,
    If,
    Index,
    Let,
    Load,
    Local,
    Param,
    Ref,
    Rename,
    Statement,
    Store,
    TileApply,
    TileType,
    Value,
)
from ...ir.types import DType, i64
from .schedule import Problem

Reader = Callable[["Block"], Value]
WEIGHT = 32
"""A named value of the region with more primitives is computed once in a scope; a lighter one wherever it is read."""


@dataclass
class _Bound:
    """A named value of the region where it is now a tile: the indices and the masking that it was computed under."""

    index: tuple[Dim | None, ...]
    outside: bool
    ref: Ref


def is_long(extents: Sequence[Dim], symbols: dims.Facts, most: int = LONG) -> bool:
    """Whether a sum over axes of these extents may have more than `most` terms."""
    bound = upper_bound(dims.product(extents), symbols)
    return bound is None or bound > most


@dataclass
class Block:
    """Statements under construction, in one scope of axes and values. Loads get the `hints` that are set."""

    problem: Problem
    axes: list[str] = field(default_factory=list)
    index: dict[str, Dim] = field(default_factory=dict)
    readers: dict[str, Reader] = field(default_factory=dict)
    body: list[Statement] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    types: dict[str, TileType] = field(default_factory=dict)
    outside: bool = False
    hints: tuple[str, ...] = ()
    bound: dict[str, _Bound] = field(default_factory=dict)
    deferred: dict[str, tuple[Reader, ScalarLet]] = field(default_factory=dict)
    heavy: frozenset[str] | None = None

    def unique(self, name: str) -> str:
        """A name not used yet in this launch."""
        count = self.names.get(name, 0)
        self.names[name] = count + 1
        return name if count == 0 else f"{name}_{count}"

    # --- statements ---

    def let(self, name: str, value: Value) -> Ref:
        """Name a value; the name is made unique."""
        unique = self.unique(name)
        self.body.append(Let(unique, value))
        return Ref(unique, value.type)

    def rebind(self, ref: Ref, value: Value) -> None:
        """Give a carried name its next value."""
        self.body.append(Let(ref.name, value))

    def lost(self, total: Ref) -> Ref:
        """The companion of a running sum that `add_to` keeps: what its roundings have added too much."""
        return self.let(f"{total.name}_lost", self.full(0.0, total.type.dtype, total.type.axes))

    def add_to(self, total: Ref, lost: Ref | None, value: Value) -> None:
        """total += value; with `lost` compensated (Kahan), so that the error does not grow with the number of terms."""
        if lost is None:
            self.rebind(total, self.apply("add", total, value))
            return
        term = self.let("term", self.apply("sub", value, lost))
        following = self.let("following", self.apply("add", total, term))
        error = self.let("error", self.apply("sub", self.apply("sub", following, total), term))
        # Once the sum is infinite the error is infinite or NaN, and would turn the sum into NaN.
        finite = self.apply("eq", self.apply("sub", error, error), self.full(0.0, total.type.dtype))
        self.rebind(lost, self.apply("where", finite, error, self.full(0.0, total.type.dtype)))
        self.rebind(total, following)

    def store(self, operand: str, subscripts: Sequence[Dim], value: Value, atomic: str | None = None, hints: tuple[str, ...] = ()) -> None:
        """operand[subscripts] = value."""
        self.body.append(Store(operand, tuple(subscripts), value, atomic, hints))

    def store_all(
        self, operand: str, subscripts: Sequence[Dim], value: Value, atomic: str | None = None, hints: tuple[str, ...] = ()
    ) -> None:
        """operand[subscripts] = value, which is repeated along the axes that the subscripts alone vary over."""
        self.store(operand, subscripts, self.spread(value, self.ordered(self.axes_in(*subscripts))), atomic, hints)

    def local(self, name: str, dtype: DType, extents: Sequence[tuple[str, int]], factors: Sequence[Factor] = ()) -> str:
        """Declare an addressable tile, whose elements lie in the order of its axes or of `factors`, and return its name."""
        unique = self.unique(name)
        layout = Layout(tuple(axis for axis, _ in extents), tuple(factors)) if factors else None
        self.body.append(Local(unique, dtype, tuple(extents), "cache", layout))
        return unique

    def axis(self, name: str, low: Dim, high: Dim, extent: int) -> str:
        """Open a tile axis without a loop; its name."""
        unique = self.unique(name)
        self.body.append(AxisDecl(unique, low, high, extent))
        self.axes.append(unique)
        return unique

    @contextmanager
    def loop(
        self,
        name: str,
        kind: str,
        low: Dim,
        high: Dim,
        step: int,
        *,
        carries: Sequence[Ref] = (),
        parent: str | None = None,
        tail: tuple[int, ...] = (),
        hints: tuple[tuple[str, int], ...] = (),
    ) -> Iterator[str]:
        """Statements added inside go into a loop; yields the axis' unique name."""
        unique = self.unique(name)
        outer, axes = self.body, self.axes
        self.body, self.axes = [], [*axes, unique] if kind != "scalar" else list(axes)
        saved = dict(self.index), dict(self.readers), dict(self.bound)
        try:
            yield unique
        finally:
            inner, self.body, self.axes = self.body, outer, axes
            self.index, self.readers, self.bound = saved
        self.body.append(For(unique, kind, low, high, step, tuple(inner), parent, tail, tuple(ref.name for ref in carries), hints))

    @contextmanager
    def condition(self, value: Value, seldom: bool = False, carries: Sequence[Ref] = ()) -> Iterator[None]:
        """Statements added inside run only where the scalar condition holds; elsewhere `carries` stay what they are."""
        outer, self.body, bound = self.body, [], dict(self.bound)
        try:
            yield
        finally:
            inner, self.body, self.bound = self.body, outer, bound
        self.body.append(If(value, tuple(inner), carries=tuple(ref.name for ref in carries), seldom=seldom))

    @contextmanager
    def either(self, value: Value, carries: Sequence[Ref]) -> Iterator[Callable[[], None]]:
        """Statements added inside run where the scalar condition holds, those after a call of what is yielded where it does not."""
        outer, self.body, bound = self.body, [], dict(self.bound)
        sides = [self.body]

        def otherwise() -> None:
            self.body, self.bound = [], dict(bound)
            sides.append(self.body)

        try:
            yield otherwise
        finally:
            self.body, self.bound = outer, bound
        body, rest = sides
        self.body.append(If(value, tuple(body), tuple(rest), tuple(ref.name for ref in carries)))

    # --- values ---

    def ordered(self, axes: set[str] | frozenset[str]) -> tuple[str, ...]:
        """Tile axes in register order: as they were opened."""
        return tuple(name for name in self.axes if name in axes)

    def axes_in(self, *expressions: Dim) -> set[str]:
        """The open tile axes that index expressions vary over."""
        names = {name for e in expressions for name in dims.symbols(e)}
        found = {name for name in self.axes if name in names or f"{name}.lane" in names}
        for name in names:
            if name.startswith("%"):
                found |= set(self.types[name[1:]].axes)
        return found

    def apply(self, primitive: str, *args: Value, dtype: DType | None = None) -> Value:
        """A primitive on tile values; the result varies over all their axes."""
        axes = self.ordered({a for arg in args for a in arg.type.axes})
        result = dtype or PRIMITIVES[primitive].result_of(args[-1].type.dtype)
        return TileApply(primitive, args, result, type=TileType(result, axes))

    def full(self, value: bool | int | float | complex, dtype: DType, axes: Sequence[str] = ()) -> Value:
        """A constant tile."""
        return Full(Constant(value, dtype), TileType(dtype, tuple(axes)))

    def index_value(self, value: Dim, dtype: DType = i64) -> Value:
        """An index expression as data."""
        return Index(value, TileType(dtype, self.ordered(self.axes_in(value))))

    def spread(self, value: Value, axes: Sequence[str]) -> Value:
        """The value over all of `axes`: repeated along those that it does not vary over."""
        if set(axes) <= set(value.type.axes):
            return value
        nothing = self.full(zero(value.type.dtype), value.type.dtype, self.ordered(set(axes)))
        always = self.apply("le", self.index_value(0), self.index_value(0))
        return self.apply("where", always, value, nothing)

    def inside(self, index: Dim, extent: Dim, value: Value, otherwise: bool | int | float) -> Value:
        """`value` where index < extent, else a constant."""
        mask = self.apply("lt", self.index_value(index), self.index_value(extent))
        return self.apply("where", mask, value, self.full(otherwise, value.type.dtype))

    def load(self, operand: str, subscripts: Sequence[Dim], dtype: DType, other: Constant | None = None) -> Value:
        """A load of every element of the axes in its subscripts."""
        return Load(operand, tuple(subscripts), TileType(dtype, self.ordered(self.axes_in(*subscripts))), other, self.hints)

    def rename(self, value: Value, before: str, after: str) -> Value:
        """The same elements with axis `before` called `after`."""
        axes = self.ordered({after if a == before else a for a in value.type.axes})
        return Rename(value, (before,), (after,), TileType(value.type.dtype, axes))

    def lower(self, value: Scalar) -> Value:
        """A region expression at the current indices. With `outside` set, loads give 0 for masked lanes."""
        if isinstance(value, Constant):
            return Full(value, TileType(value.dtype))
        if isinstance(value, ScalarIndex):
            return self.index_value(dims.substitute(value.value, self.index), value.dtype)
        if isinstance(value, ScalarRef):
            return self.readers[value.name](self)
        if isinstance(value, ScalarLoad):
            return self._load(value)
        args = tuple(self.lower(arg) for arg in value.args)
        return self.apply(value.primitive, *args, dtype=value.dtype)

    def later(self, let: ScalarLet) -> None:
        """Compute a named value of the region where it is read; a heavy one once in each scope, as a tile of its own."""
        heavy = let.name in self._heavy_lets()
        read: Reader = (lambda inner: inner._shared(let)) if heavy else (lambda inner: inner.lower(let.value))
        self.readers[let.name] = read
        self.deferred[let.name] = (read, let)
        self.bound.pop(let.name, None)

    def _heavy_lets(self) -> frozenset[str]:
        if self.heavy is None:
            self.heavy = _heavy(self.problem.region)
        return self.heavy

    def _shared(self, let: ScalarLet) -> Value:
        """The tile of a heavy named value; before it those that it reads, so that long chains do not nest."""
        wanted, pending = {let.name: let}, [let]
        for reader in pending:
            names = {part.name for part in walk(reader.value) if isinstance(part, ScalarRef)} - wanted.keys()
            for name in sorted(names & self.deferred.keys()):
                read, found = self.deferred[name]
                if self.readers.get(name) is read and self._tile_of(found) is None:
                    wanted[name] = found
                    pending.append(found)
        for statement in self.problem.region.body:
            if isinstance(statement, ScalarLet) and statement.name in wanted and statement.name in self._heavy_lets():
                self._bind(wanted[statement.name])
        return self._bind(let)

    def _tile_of(self, let: ScalarLet) -> Ref | None:
        """The tile that holds a named value here, if there is one."""
        known = self.bound.get(let.name)
        return known.ref if known is not None and known.index == self._place_of(let) and known.outside == self.outside else None

    def _place_of(self, let: ScalarLet) -> tuple[Dim | None, ...]:
        return tuple(self.index.get(axis) for axis in let.axes)

    def _bind(self, let: ScalarLet) -> Ref:
        ref = self._tile_of(let)
        if ref is None:
            ref = self.let(let.name, self.lower(let.value))
            self.bound[let.name] = _Bound(self._place_of(let), self.outside, ref)
        return ref

    def place(self, ref: Ref) -> Dim:
        """A named integer, or a tile of them, in index expressions."""
        self.types[ref.name] = ref.type
        return dims.symbol(f"%{ref.name}")

    def subscripts(self, subscripts: Sequence[Dim], gathers: Sequence[tuple[str, Scalar]]) -> tuple[Dim, ...]:
        """Subscripts at the current indices; gathered ones are loaded into named values first: a lane that is masked needs none."""
        mapping = dict(self.index)
        for placeholder, gather in gathers:
            outside, self.outside = self.outside, False
            ref = self.let("g", self.lower(gather))
            self.outside = outside
            mapping[placeholder] = self.place(ref)
        return tuple(dims.substitute(s, mapping) for s in subscripts)

    def _load(self, load: ScalarLoad) -> Value:
        subscripts = self.subscripts(load.subscripts, load.gathers)
        other = load.other
        if other is None and self.outside:
            other = Constant(zero(load.dtype), load.dtype)
        return self.load(load.operand, subscripts, load.dtype, other)


def zero(dtype: DType) -> bool | int | float | complex:
    """Zero as a literal of a dtype."""
    return False if dtype.kind == "bool" else 0.0 if dtype.is_float else 0j if dtype.kind == "complex" else 0


def _heavy(region: Region) -> frozenset[str]:
    """The named values of a region that are too much to compute wherever they are read, what they read in turn included."""
    weights: dict[str, int] = {}
    found: set[str] = set()
    for statement in region.body:
        if not isinstance(statement, ScalarLet):
            continue
        weight = 0
        for part in walk(statement.value):
            weight += 1 if isinstance(part, Apply) else weights.get(part.name, 0) if isinstance(part, ScalarRef) else 0
        if weight > WEIGHT:
            found.add(statement.name)
            weight = 0
        weights[statement.name] = weight
    return frozenset(found)


def parameters(problem: Problem, combined: frozenset[str] = frozenset()) -> tuple[Param, ...]:
    """The region's operands as launch parameters; dimensions are labelled d0, d1 ...

    Outputs in `combined` are read before they are written.
    """
    region = problem.region

    def param(operand: Operand, role: str) -> Param:
        labelled = tuple((f"d{n}", size) for n, size in enumerate(operand.type.shape))
        return Param(operand.name, operand.type.dtype, labelled, role, problem.layouts.get(operand.name))

    outputs = tuple(param(o, "inout" if o.name in combined else "out") for o in region.outputs)
    return (*(param(o, "in") for o in region.inputs), *outputs)


def used_parameters(problem: Problem, statements: Sequence[RegionStatement], combined: frozenset[str] = frozenset()) -> tuple[Param, ...]:
    """The launch parameters that statements of the region touch; those in `combined`, or that a store combines into, are read too."""
    used = {operand for operand, _ in accesses(statements)}
    combined |= {statement.output for statement in statements if isinstance(statement, RegionStore) and statement.combine}
    return tuple(param for param in parameters(problem, combined) if param.name in used)


def upper_bound(dim: Dim, symbols: dims.Facts) -> int | None:
    """The largest value a size can have, None if unknown."""
    return dims.range_of(dim, symbols).high


__all__ = ["Block", "is_long", "parameters", "replace", "upper_bound", "used_parameters", "zero"]
