"""Composition: the region of a fused group, made by inlining producers into the loads of their consumer.

A producer can be inlined when its region writes its one result once, at plain axes. Its axes are replaced by the
consumer's subscripts; its reductions keep their own axes under fresh names. What is read twice, or is deep, is a named
value: the expressions of a region are shallow trees, however many ops it is made of. The steps wait on a stack of their
own, not on Python's, so that a group may be as deep as it likes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ...ir import dims
from ...ir.dims import Dim
from ...ir.expression import Apply, Constant, Index
from ...ir.graph import Op, Value
from ...ir.ops.contraction import MULTIPLYING
from ...ir.region import Axis, Let, Load, Operand, Reduce, Ref, Region, Scalar, Scan, Statement, Store, walk
from ...ir.types import TensorType, boolean, i32, i64
from ..match import uniform
from ..progressions import Progression, progression
from .round_trips import without_code
from .roundings import Roundings

DEPTH = 24
"""How deep an expression may be; what is deeper gets a name."""
COPIES = 8
"""At how many places of its reader a value may be computed: `concat(v, v)` reads v at two."""
NODES = 8192
"""How many primitives the statements of one group may hold."""
TERMS = 100
"""How many parts an index expression may have: reshapes of sizes that are not known pile up divisions."""
DIGITS = 7
"""Binary digits that a float may have which is written into kernels: 127 has as many, what was trained as a rule more."""
KEPT_INSIDE = 16_384
"""How many results of an inlined reduction a kernel may hold at once."""

Steps: TypeAlias = "Generator[Steps, Any, Any]"
"""A computation that yields the ones it waits for; `_run` sends it their results."""


class CannotInline(Exception):
    """A value that has to be a buffer, and why."""

    def __init__(self, value: Value, why: str) -> None:
        super().__init__(f"%{value.name} cannot be inlined where it is read: {why}")
        self.value = value
        self.why = why


class TooLarge(Exception):
    """A group that computes more than one kernel should."""


@dataclass(frozen=True)
class Group:
    """One kernel to be: its region, the graph values behind the region's operands, and the ops it computes."""

    region: Region
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    ops: tuple[Op, ...]


def plain_axes(region: Region) -> dict[str, int] | None:
    """Axis -> dimension of the one result that the region writes at plain distinct axes (size 1 at 0), else None."""
    stores = [s for s in region.body if isinstance(s, Store)]
    if len(region.outputs) != 1 or len(stores) != 1 or stores[0].gathers or stores[0].combine:
        return None
    places: dict[str, int] = {}
    for dimension, subscript in enumerate(stores[0].subscripts):
        if subscript == 0 and region.outputs[0].type.shape[dimension] == 1:
            continue
        name = dims.name_of(subscript)
        if name is None or name in places:
            return None
        places[name] = dimension
    return places if set(stores[0].axes) <= places.keys() else None


def compose(
    root: Op,
    regions: Callable[[Op], Region | None],
    is_inlined: Callable[[Value], bool],
    facts: dims.Facts,
    orders: Mapping[Value, tuple[int, ...]],
    views: Sequence[Op] = (),
    beside: Sequence[Value] = (),
    keeps: Callable[[Value], bool] = lambda value: False,
) -> Group:
    """The group that ends in `root`: every operand for which `is_inlined` holds is computed inside.

    `views` are movements that follow the root: what is stored is the last one's result. The values `beside` it are
    computed inside and stored as well.

    `orders` gives the memory order of buffers that are not row-major, slowest dimension first; the region sees their
    dimensions in that order. Values for which `keeps` holds are rounded although they need not be.
    """
    return _Composer(regions, is_inlined, facts, orders, tuple(beside), keeps).compose(root, views)


def viewed(subscripts: tuple[Dim, ...], view: Op, facts: dims.Facts) -> tuple[Dim, ...]:
    """Where a reshape or a transpose puts the element at `subscripts` of its operand."""
    if view.name == "transpose":
        return tuple(subscripts[n] for n in view.attrs["permutation"])
    source, target = view.operands[0], view.result
    place: Dim = 0
    for size, subscript in zip(source.shape if source is not None else (), subscripts, strict=True):
        place = place * size + subscript
    result: list[Dim] = []
    for n, size in enumerate(target.shape):
        inner = dims.product(target.shape[n + 1 :])
        if 0 in (size, inner):
            # Nothing is stored, and there is no size to divide by.
            result.append(0)
            continue
        whole = dims.simplify(place // inner, facts)
        result.append(whole if n == 0 else dims.simplify(whole % size, facts))
    return tuple(result)


def in_order(value: Value, orders: Mapping[Value, tuple[int, ...]]) -> TensorType:
    """The type of a value's buffer, its dimensions in memory order."""
    order = orders.get(value)
    return value.type if order is None else value.type.with_shape(tuple(value.shape[n] for n in order))


@dataclass
class _Inlined:
    """One region on its way into the group: where its operands come from, what its axes and its values have become."""

    op: Op
    region: Region
    operands: dict[str, Value]
    axis_map: dict[str, Dim]
    anywhere: bool
    loads: dict[Value, int] = field(default_factory=dict)
    refs: dict[str, Ref] = field(default_factory=dict)
    folds: list[Reduce] = field(default_factory=list)


@dataclass
class _Composer:
    """Builds one group's region; owns the naming of its axes, values and operands."""

    regions: Callable[[Op], Region | None]
    is_inlined: Callable[[Value], bool]
    facts: dims.Facts
    orders: Mapping[Value, tuple[int, ...]]
    beside: tuple[Value, ...] = ()
    keeps: Callable[[Value], bool] = lambda value: False
    axes: list[Axis] = field(default_factory=list)
    body: list[Statement] = field(default_factory=list)
    inputs: dict[Value, Operand] = field(default_factory=dict)
    ops: dict[Op, None] = field(default_factory=dict)
    within: frozenset[Op] = frozenset()
    value_axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    known: dict[tuple[Value, tuple[Dim, ...], bool], Scalar] = field(default_factory=dict)
    copies: dict[Value, int] = field(default_factory=dict)
    counts: dict[Value, Progression | Constant | None] = field(default_factory=dict)
    depths: dict[int, tuple[Scalar, int]] = field(default_factory=dict)
    inlined: list[_Inlined] = field(default_factory=list)
    roundings: Roundings = field(init=False)

    def __post_init__(self) -> None:
        # What is stored is rounded, and so is what reads it here.
        self.roundings = Roundings(self.regions, lambda value: self.is_inlined(value) and value not in self.beside)

    def compose(self, root: Op, views: Sequence[Op]) -> Group:
        self.within = self._reached(root)
        region = self._region(root)
        results = views[-1].results if views else root.results
        outputs = tuple(Operand(f"y{n}", in_order(result, self.orders)) for n, result in enumerate(results))
        values = dict(zip((o.name for o in region.outputs), results, strict=True))
        renamed = dict(zip((o.name for o in region.outputs), outputs, strict=True))
        axis_map = {axis.name: self._axis(axis.name, axis.extent) for axis in region.axes}
        stores = _run(self._inline(_Inlined(root, region, self._operands(root, region), axis_map, anywhere=False)))
        extra = tuple(Operand(f"y{len(results) + n}", value.type) for n, value in enumerate(self.beside))
        self.body += [self._store_beside(value, operand) for value, operand in zip(self.beside, extra, strict=True)]
        for statement in stores:
            subscripts = tuple(self._simplify(dims.substitute(s, axis_map)) for s in statement.subscripts)
            for view in views:
                subscripts = viewed(subscripts, view, self.facts)
            subscripts = self._ordered(values[statement.output], subscripts)
            axes = tuple(str(axis_map[a]) for a in statement.axes)
            self.body.append(replace(statement, output=renamed[statement.output].name, axes=axes, subscripts=subscripts))
        self._check_folds()
        result = Region(results[0].name, tuple(self.inputs.values()), (*outputs, *extra), tuple(self.axes), tuple(self.body))
        return Group(result, tuple(self.inputs), (*results, *self.beside), (*reversed(self.ops), *views))

    def _reached(self, root: Op) -> frozenset[Op]:
        """The ops that the group computes: what has several readers among them gets a name when it is met first."""
        found, pending = {root}, [root]
        while pending:
            for value in pending.pop().operands:
                if value is not None and value.op is not None and value.op not in found and self.is_inlined(value):
                    found.add(value.op)
                    pending.append(value.op)
        return frozenset(found)

    def _store_beside(self, value: Value, operand: Operand) -> Store:
        """The store of a value that is computed inside, at a place where all of its elements pass once."""
        extents = {axis.name: axis.extent for axis in self.axes}
        for (known, subscripts, anywhere), element in self.known.items():
            names = [dims.name_of(subscript) for subscript in subscripts if subscript != 0]
            sizes = [extents.get(dims.name_of(subscript) or "", 1) for subscript in subscripts]
            if known is value and not anywhere and len(set(names)) == len(names) and set(names) <= extents.keys():
                if all(dims.equal(size, own, self.facts) is True for size, own in zip(sizes, value.shape, strict=True)):
                    return Store(operand.name, self._names(subscripts), subscripts, element)
        raise CannotInline(value, "the kernel that reads it would not write each of its elements exactly once")

    def _region(self, op: Op) -> Region:
        region = self.regions(op)
        if region is None:
            raise ValueError(f"{op.name} has no region")
        self.ops[op] = None
        return region

    def _operands(self, op: Op, region: Region) -> dict[str, Value]:
        present = {f"x{n}": value for n, value in enumerate(op.operands) if value is not None}
        return {operand.name: present[operand.name] for operand in region.inputs}

    def _axis(self, name: str, extent: Dim) -> Dim:
        taken = {axis.name for axis in self.axes}
        unique = name if name not in taken else next(f"{name}_{n}" for n in range(1, 10_000) if f"{name}_{n}" not in taken)
        self.axes.append(Axis(unique, extent))
        self.facts = self.facts.with_axis(unique, extent)
        return dims.symbol(unique)

    def _folded(self, name: str, extent: Dim, axis_map: Mapping[str, Dim]) -> Dim:
        """An axis for a fold to run along: one of the group's that its results do not vary over, so that what it folds is computed once.

        Of a product that would take an axis from its rows, columns or terms, which are walked each in a way of its own.
        """
        taken = {symbol for own in axis_map.values() for symbol in dims.symbols(own)}
        multiplies = any(op.name in MULTIPLYING for op in self.within)
        for axis in () if multiplies else self.axes:
            if axis.name not in taken and dims.equal(axis.extent, extent, self.facts) is True:
                return dims.symbol(axis.name)
        return self._axis(name, extent)

    def _simplify(self, dim: Dim) -> Dim:
        return dims.simplify(dim, self.facts)

    # --- statements ---------------------------------------------------------------------------------------------------

    def _inline(self, inlined: _Inlined) -> Steps:
        """Emit the statements of a region under an axis map; gives its stores with their values rewritten."""
        self.inlined.append(inlined)
        inlined.loads = _count_loads(inlined)
        axis_map, stores = inlined.axis_map, []
        for statement in inlined.region.body:
            value = yield self._rewrite(statement.value, inlined)
            if isinstance(statement, Store):
                gathers = yield self._gathers(statement.gathers, inlined)
                stores.append(replace(statement, value=value, gathers=gathers))
                continue
            over = statement.over if isinstance(statement, Reduce) else (statement.along,) if isinstance(statement, Scan) else ()
            for name in over:
                if name not in axis_map:
                    axis_map[name] = self._folded(name, inlined.region.axis(name).extent, axis_map)
            inlined.refs[statement.name] = self._emit(statement, value, inlined)
        return stores

    def _emit(self, statement: Let | Reduce | Scan, value: Scalar, inlined: _Inlined) -> Ref:
        axis_map, name = inlined.axis_map, f"t{len(self.value_axes)}"
        axes = self._names(axis_map[axis] for axis in statement.axes)
        changed: Statement
        if isinstance(statement, Reduce):
            changed = replace(statement, name=name, axes=axes, value=value, over=tuple(str(axis_map[a]) for a in statement.over))
            inlined.folds.append(changed)
        elif isinstance(statement, Scan):
            changed = replace(statement, name=name, axes=axes, value=value, along=str(axis_map[statement.along]))
        else:
            changed = replace(statement, name=name, axes=axes, value=value)
        self.body.append(changed)
        self.value_axes[name] = axes
        return Ref(name, changed.dtype if isinstance(changed, (Reduce, Scan)) else value.dtype)

    def _names(self, subscripts: Iterable[Dim]) -> tuple[str, ...]:
        """The axes that index expressions vary over, in the region's order."""
        found: set[str] = set()
        for subscript in subscripts:
            found |= dims.symbols(subscript)
        return tuple(axis.name for axis in self.axes if axis.name in found)

    def _check_folds(self) -> None:
        """CannotInline where fusion takes axes from an inlined reduction that it would run along by itself, too many to hold.

        In softmax(x, -1).sum(1) the sum folds the rows of the softmax: each result would need the sums of all rows.
        """
        shared = self._parallel_axes()
        for inlined in self.inlined[1:]:
            own = set.intersection(*({*fold.axes} for fold in inlined.folds)) if inlined.folds else set()
            lost = [axis for axis in self.axes if axis.name in own - shared]
            high = [dims.range_of(axis.extent, self.facts).high for axis in lost]
            held = 1
            for size in high:
                held = held * size if size is not None else KEPT_INSIDE + 1
            if held > KEPT_INSIDE:
                names = ", ".join(axis.name for axis in lost)
                raise CannotInline(inlined.op.result, f"a kernel that computes it would hold sums for all of {names} at once")

    def _parallel_axes(self) -> set[str]:
        """The axes that every reduction, scan and store varies over: a kernel may run along them in parallel."""
        shared = {axis.name for axis in self.axes}
        for statement in self.body:
            if not isinstance(statement, Let):
                shared &= set(statement.axes) - ({statement.along} if isinstance(statement, Scan) else set())
        return shared

    # --- values -------------------------------------------------------------------------------------------------------

    def _rewrite(self, value: Scalar, inlined: _Inlined) -> Steps:
        """An expression of a region as one of the group."""
        if isinstance(value, Constant):
            return value
        if isinstance(value, Index):
            return replace(value, value=self._simplify(dims.substitute(value.value, inlined.axis_map)))
        if isinstance(value, Ref):
            return inlined.refs[value.name]
        if isinstance(value, Load):
            return (yield self._load(value, inlined))
        args = []
        for arg in value.args:
            args.append((yield self._rewrite(arg, inlined)))
        return self._grown(without_code(_needed(replace(value, args=tuple(self._shallow(arg) for arg in args)))))

    def _gathers(self, gathers: tuple[tuple[str, Scalar], ...], inlined: _Inlined) -> Steps:
        found = []
        for name, gather in gathers:
            found.append((name, (yield self._rewrite(gather, inlined))))
        return tuple(found)

    def _grown(self, value: Scalar) -> Scalar:
        """The value, its depth noted."""
        if isinstance(value, Apply) and id(value) not in self.depths:
            self.depths[id(value)] = value, 1 + max((self._depth(arg) for arg in value.args), default=0)
            if len(self.depths) > NODES and len(self.ops) > 1:
                raise TooLarge(f"the group holds more than {NODES} primitives")
        return value

    def _depth(self, value: Scalar) -> int:
        return self.depths[id(value)][1] if id(value) in self.depths else 0

    def _shallow(self, value: Scalar) -> Scalar:
        """The value, by name where it is as deep as an expression may be."""
        return self._named(value) if self._depth(value) >= DEPTH else value

    def _named(self, value: Scalar) -> Ref:
        name = f"t{len(self.value_axes)}"
        axes = self._axes_of(value)
        self.body.append(Let(name, axes, value))
        self.value_axes[name] = axes
        return Ref(name, value.dtype)

    def _load(self, load: Load, inlined: _Inlined) -> Steps:
        value = inlined.operands[load.operand]
        subscripts = tuple(self._simplify(dims.substitute(s, inlined.axis_map)) for s in load.subscripts)
        counted = self._counted(value, subscripts, load, inlined)
        if counted is not None:
            return counted
        if not self.is_inlined(value):
            operand = self.inputs.setdefault(value, Operand(f"x{len(self.inputs)}", in_order(value, self.orders)))
            gathers = yield self._gathers(load.gathers, inlined)
            other = Constant(ZERO[load.dtype.kind], load.dtype) if load.other is None and inlined.anywhere else load.other
            return Load(operand.name, self._ordered(value, subscripts), load.dtype, other, gathers)
        if any(_parts(subscript) > TERMS for subscript in subscripts):
            raise CannotInline(value, f"the places where it is read would be sums of more than {TERMS} parts")
        inside = None if load.other is None else self._inside(value, subscripts)
        anywhere = inlined.anywhere or inside is not None
        element = yield self._element(value, subscripts, anywhere, shared=inlined.loads[value] > 1)
        if inside is None or load.other is None:
            return element
        # An element that was not rounded is as wide as it was computed.
        beside = replace(load.other, dtype=element.dtype)
        if isinstance(element, Load) and not element.gathers and self._ends_alike(element, value, subscripts):
            return replace(element, other=beside)
        return self._grown(Apply("where", (inside, self._shallow(element), beside), element.dtype))

    def _counted(self, value: Value, subscripts: tuple[Dim, ...], load: Load, inlined: _Inlined) -> Scalar | None:
        """What is read of a constant that is a number or counts along an axis, as a number or an index expression: strategies see by
        it what is never looked at, and kernels need not wait for it.
        """
        if value.constant is None or load.gathers or load.other is not None or inlined.anywhere:
            return None
        if value.dtype not in (i32, i64):
            return self._short(value)
        if value not in self.counts:
            number = uniform(value)
            self.counts[value] = progression(value) if number is None else Constant(int(number), value.dtype)
        found = self.counts[value]
        if isinstance(found, Progression):
            return Index(self._simplify(found.start + subscripts[found.axis] * found.step), value.dtype)
        return found

    def _short(self, value: Value) -> Constant | None:
        """The one float that a constant holds, if it has few digits: one with many was measured or trained, and is another in each layer
        of a network, whose layers share their kernels.
        """
        if not value.dtype.is_float or value.type.elements != 1:
            return None
        number = uniform(value)
        if not isinstance(number, float) or not math.isfinite(number) or not (math.frexp(number)[0] * 2**DIGITS).is_integer():
            return None
        return Constant(number, value.dtype)

    def _ends_alike(self, element: Load, value: Value, subscripts: tuple[Dim, ...]) -> bool:
        """Whether an element that was moved lies inside of what is loaded just where it lies inside the value: as after a transpose."""
        held = next(operand.type.shape for operand in self.inputs.values() if operand.name == element.operand)
        left = [*zip(held, element.subscripts, strict=True)]
        for pair in zip(value.shape, subscripts, strict=True):
            if pair not in left:
                return False
            left.remove(pair)
        return not left

    def _inside(self, value: Value, subscripts: tuple[Dim, ...]) -> Scalar | None:
        """Whether the subscripts lie inside a value; None if they always do."""
        inside: Scalar | None = None
        for size, subscript in zip(value.shape, subscripts, strict=True):
            tests: list[Scalar] = []
            if dims.at_most(0, subscript, self.facts) is not True:
                tests.append(Apply("le", (Index(0, i64), Index(subscript, i64)), boolean))
            if dims.at_most(subscript + 1, size, self.facts) is not True:
                tests.append(Apply("lt", (Index(subscript, i64), Index(size, i64)), boolean))
            for test in tests:
                inside = self._grown(test if inside is None else Apply("bit_and", (inside, test), boolean))
        return inside

    def _ordered(self, value: Value, subscripts: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Subscripts of a buffer in its memory order."""
        order = self.orders.get(value)
        return subscripts if order is None else tuple(subscripts[n] for n in order)

    def _element(self, value: Value, subscripts: tuple[Dim, ...], anywhere: bool, shared: bool) -> Steps:
        """One element of an inlined value, by name where others read it; computed once for each place it is read at.

        With `anywhere` the subscripts may lie outside the value: loads then give zero outside of their operand.
        """
        key = value, subscripts, anywhere
        if key in self.known:
            return self.known[key]
        element: Scalar = yield self._computed(value, subscripts, anywhere)
        if _is_work(element):
            self.copies[value] = self.copies.get(value, 0) + 1
            if self.copies[value] > COPIES:
                raise CannotInline(value, f"one kernel reads it in more than {COPIES} ways, and would compute it in each")
            inside = sum(count for user, count in value.uses.items() if user in self.within)
            if shared or inside > 1 or value in self.beside:
                element = self._named(element)
        self.known[key] = element
        return element

    def _computed(self, value: Value, subscripts: tuple[Dim, ...], anywhere: bool) -> Steps:
        """The expression of one element of an inlined value."""
        op = value.op
        if op is None:
            raise ValueError(f"%{value.name} has no producer to inline")
        region = self._region(op)
        places = plain_axes(region)
        if places is None:
            raise ValueError(f"{op.name} cannot be inlined")
        axis_map = {axis: subscripts[dimension] for axis, dimension in places.items()}
        folded = {name for statement in region.body if isinstance(statement, Reduce) for name in statement.over}
        for axis in region.axes:
            if axis.extent == 1 and axis.name not in folded:
                axis_map.setdefault(axis.name, 0)
        for statement in region.body:
            for name in statement.over if isinstance(statement, Reduce) else ():
                extent = region.axis(name).extent
                if name not in axis_map:
                    axis_map[name] = self._folded(name, extent, axis_map)
                elif not any(axis.name == dims.name_of(axis_map[name]) and dims.equal(axis.extent, extent) is True for axis in self.axes):
                    # A piece of the folded axis, or (in a concat) an axis that reaches beyond it.
                    raise CannotInline(value, f"it sums along the axis {name}, which the kernel that reads it takes in pieces")
        (store,) = yield self._inline(_Inlined(op, region, self._operands(op, region), axis_map, anywhere))
        rounds = isinstance(store.value, Apply) and store.value.primitive == "round"
        if isinstance(store.value, Apply) and rounds and not self.keeps(value) and self.roundings.may_stay_wide(value):
            return store.value.args[0]
        return store.value

    def _axes_of(self, value: Scalar) -> tuple[str, ...]:
        found: set[str] = set()
        for part in walk(value):
            if isinstance(part, Ref):
                found |= set(self.value_axes[part.name])
            elif isinstance(part, Load):
                found |= {name for s in part.subscripts for name in dims.symbols(s)}
            elif isinstance(part, Index):
                found |= dims.symbols(part.value)
        return tuple(axis.name for axis in self.axes if axis.name in found)


def _run(steps: Steps) -> Any:
    """The result of a computation; those that wait for others stand on a stack."""
    waiting, result = [steps], None
    while True:
        try:
            waiting.append(waiting[-1].send(result))
            result = None
        except StopIteration as finished:
            waiting.pop()
            result = finished.value
            if not waiting:
                return result


def _count_loads(inlined: _Inlined) -> dict[Value, int]:
    """How often a region loads each of its operands."""
    found = dict.fromkeys(inlined.operands.values(), 0)
    for statement in inlined.region.body:
        gathered = [gather for _, gather in statement.gathers] if isinstance(statement, Store) else []
        for part in (part for value in (statement.value, *gathered) for part in walk(value)):
            if isinstance(part, Load):
                found[inlined.operands[part.operand]] += 1
    return found


def _parts(dim: Dim) -> int:
    """How many atoms an index expression is made of."""
    found, pending = 0, [dim]
    while pending:
        part = pending.pop()
        for monomial, _ in () if isinstance(part, int) else part.terms:
            found += 1
            for atom in monomial:
                if isinstance(atom, dims.Function):
                    pending += (atom.left, atom.right)
    return found


ZERO: dict[str, bool | int | float] = {"bool": False, "int": 0, "uint": 0, "float": 0.0}


def _is_work(value: Scalar) -> bool:
    """Whether an expression is worth a name: anything but a leaf or a cast of one."""
    while isinstance(value, Apply) and value.primitive in ("cast", "round"):
        value = value.args[0]
    return isinstance(value, Apply)


def _needed(value: Apply[Scalar]) -> Scalar:
    """A value without the cast that widens an operand, where the operand stayed wide."""
    return value.args[0] if value.primitive == "cast" and value.args[0].dtype == value.dtype else value


__all__ = ["CannotInline", "Group", "TooLarge", "compose", "in_order", "plain_axes", "viewed"]
