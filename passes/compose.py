"""Composition: the region of a fused group, made by inlining producers into the loads of their consumer.

A producer can be inlined when its region writes its one result once, at plain axes. Its axes are replaced by the
consumer's subscripts; its reductions keep their own axes under fresh names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..ir import dims
from ..ir.dims import Dim
from ..ir.expression import Apply, Constant, Index
from ..ir.graph import Op, Value
from ..ir.region import Axis, Let, Load, Operand, Reduce, Ref, Region, Scalar, Scan, Statement, Store, transform, walk
from ..ir.types import TensorType, boolean, i64
from .roundings import Roundings


class CannotInline(Exception):
    """A value folds an axis that its reader steps through in pieces; it has to be a buffer."""

    def __init__(self, value: Value) -> None:
        super().__init__(f"%{value.name} cannot be inlined where it is read")
        self.value = value


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
        name = str(subscript)
        if isinstance(subscript, int) or dims.symbols(subscript) != {name} or name in places:
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
) -> Group:
    """The group that ends in `root`: every operand for which `is_inlined` holds is computed inside.

    `views` are movements that follow the root: what is stored is the last one's result.

    `orders` gives the memory order of buffers that are not row-major, slowest dimension first; the region sees their
    dimensions in that order.
    """
    return _Composer(regions, is_inlined, facts, orders).compose(root, views)


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
class _Composer:
    """Builds one group's region; owns the naming of its axes, values and operands."""

    regions: Callable[[Op], Region | None]
    is_inlined: Callable[[Value], bool]
    facts: dims.Facts
    orders: Mapping[Value, tuple[int, ...]]
    axes: list[Axis] = field(default_factory=list)
    body: list[Statement] = field(default_factory=list)
    inputs: dict[Value, Operand] = field(default_factory=dict)
    ops: dict[Op, None] = field(default_factory=dict)
    value_axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    known: dict[tuple[Value, tuple[Dim, ...]], Scalar] = field(default_factory=dict)
    roundings: Roundings = field(init=False)

    def __post_init__(self) -> None:
        self.roundings = Roundings(self.regions, self.is_inlined)

    def compose(self, root: Op, views: Sequence[Op]) -> Group:
        region = self._region(root)
        results = views[-1].results if views else root.results
        outputs = tuple(Operand(f"y{n}", in_order(result, self.orders)) for n, result in enumerate(results))
        values = dict(zip((o.name for o in region.outputs), results, strict=True))
        renamed = dict(zip((o.name for o in region.outputs), outputs, strict=True))
        operands = self._operands(root, region)
        axis_map = {axis.name: self._axis(axis.name, axis.extent) for axis in region.axes}
        for statement in self._inline(root, region, operands, axis_map):
            subscripts = tuple(self._simplify(dims.substitute(s, axis_map)) for s in statement.subscripts)
            for view in views:
                subscripts = viewed(subscripts, view, self.facts)
            subscripts = self._ordered(values[statement.output], subscripts)
            self.body.append(
                replace(
                    statement,
                    output=renamed[statement.output].name,
                    axes=tuple(str(axis_map[a]) for a in statement.axes),
                    subscripts=subscripts,
                )
            )
        result = Region(results[0].name, tuple(self.inputs.values()), outputs, tuple(self.axes), tuple(self.body))
        return Group(result, tuple(self.inputs), results, (*reversed(self.ops), *views))

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

    def _simplify(self, dim: Dim) -> Dim:
        return dims.simplify(dim, self.facts)

    def _inline(self, op: Op, region: Region, operands: dict[str, Value], axis_map: dict[str, Dim]) -> list[Store]:
        """Emit the statements of a region under an axis map; returns its stores with their values rewritten."""
        uses: dict[str, int] = {}
        for statement in region.body:
            gathered = [gather for _, gather in statement.gathers] if isinstance(statement, Store) else []
            for part in (part for value in (statement.value, *gathered) for part in walk(value)):
                if isinstance(part, Load):
                    uses[part.operand] = uses.get(part.operand, 0) + 1
        refs: dict[str, Ref] = {}
        stores = []

        def rewrite(value: Scalar) -> Scalar:
            if isinstance(value, Constant):
                return value
            if isinstance(value, Index):
                return replace(value, value=self._simplify(dims.substitute(value.value, axis_map)))
            if isinstance(value, Ref):
                return refs[value.name]
            if isinstance(value, Apply):
                return _needed(replace(value, args=tuple(rewrite(arg) for arg in value.args)))
            return self._load(value, operands[value.operand], axis_map, rewrite, shared=uses[value.operand] > 1)

        for statement in region.body:
            value = rewrite(statement.value)
            if isinstance(statement, Store):
                gathers = tuple((name, rewrite(gather)) for name, gather in statement.gathers)
                stores.append(replace(statement, value=value, gathers=gathers))
                continue
            over = statement.over if isinstance(statement, Reduce) else (statement.along,) if isinstance(statement, Scan) else ()
            for name in over:
                if name not in axis_map:
                    axis_map[name] = self._axis(name, region.axis(name).extent)
            refs[statement.name] = self._emit(statement, value, axis_map)
        return stores

    def _emit(self, statement: Let | Reduce | Scan, value: Scalar, axis_map: dict[str, Dim]) -> Ref:
        name = f"t{len(self.value_axes)}"
        axes = self._names(axis_map[axis] for axis in statement.axes)
        changed: Statement
        if isinstance(statement, Reduce):
            changed = replace(statement, name=name, axes=axes, value=value, over=tuple(str(axis_map[a]) for a in statement.over))
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

    def _load(self, load: Load, value: Value, axis_map: dict[str, Dim], rewrite: Callable[[Scalar], Scalar], shared: bool) -> Scalar:
        subscripts = tuple(self._simplify(dims.substitute(s, axis_map)) for s in load.subscripts)
        if not self.is_inlined(value):
            operand = self.inputs.setdefault(value, Operand(f"x{len(self.inputs)}", in_order(value, self.orders)))
            gathers = tuple((name, rewrite(gather)) for name, gather in load.gathers)
            return Load(operand.name, self._ordered(value, subscripts), load.dtype, load.other, gathers)
        if load.other is None and (value, subscripts) in self.known:
            return self.known[value, subscripts]
        element = self._element(value, subscripts)
        if load.other is not None:
            return self._guarded(value, subscripts, element, load.other)
        if (shared or len(value.uses) > 1) and _is_work(element):
            name = f"t{len(self.value_axes)}"
            axes = self._axes_of(element)
            self.body.append(Let(name, axes, element))
            self.value_axes[name] = axes
            element = Ref(name, element.dtype)
        self.known[value, subscripts] = element
        return element

    def _guarded(self, value: Value, subscripts: tuple[Dim, ...], element: Scalar, other: Constant) -> Scalar:
        """An inlined element where the subscripts lie inside its value, else `other`; its loads may then lie anywhere."""
        inside: Scalar | None = None
        for size, subscript in zip(value.shape, subscripts, strict=True):
            tests: list[Scalar] = []
            if dims.at_most(0, subscript, self.facts) is not True:
                tests.append(Apply("le", (Index(0, i64), Index(subscript, i64)), boolean))
            if dims.at_most(subscript + 1, size, self.facts) is not True:
                tests.append(Apply("lt", (Index(subscript, i64), Index(size, i64)), boolean))
            for test in tests:
                inside = test if inside is None else Apply("bit_and", (inside, test), boolean)
        if inside is None:
            return element
        # An element that was not rounded is as wide as it was computed.
        beside = replace(other, dtype=element.dtype)
        return Apply("where", (inside, transform(element, _anywhere), beside), element.dtype)

    def _ordered(self, value: Value, subscripts: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Subscripts of a buffer in its memory order."""
        order = self.orders.get(value)
        return subscripts if order is None else tuple(subscripts[n] for n in order)

    def _element(self, value: Value, subscripts: tuple[Dim, ...]) -> Scalar:
        """The expression of one element of an inlined value."""
        op = value.op
        if op is None:
            raise ValueError(f"%{value.name} has no producer to inline")
        region = self._region(op)
        places = plain_axes(region)
        if places is None:
            raise ValueError(f"{op.name} cannot be inlined")
        axis_map = {axis: subscripts[dimension] for axis, dimension in places.items()}
        for axis in region.axes:
            if axis.extent == 1:
                axis_map.setdefault(axis.name, 0)
        for statement in region.body:
            for name in statement.over if isinstance(statement, Reduce) else ():
                extent = region.axis(name).extent
                if name not in axis_map:
                    axis_map[name] = self._axis(name, extent)
                elif not any(axis.name == str(axis_map[name]) and dims.equal(axis.extent, extent) is True for axis in self.axes):
                    # A piece of the folded axis, or (in a concat) an axis that reaches beyond it.
                    raise CannotInline(value)
        (store,) = self._inline(op, region, self._operands(op, region), axis_map)
        rounds = isinstance(store.value, Apply) and store.value.primitive == "round"
        if isinstance(store.value, Apply) and rounds and self.roundings.may_stay_wide(value):
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


def _anywhere(value: Scalar) -> Scalar | None:
    """A load that gives zero outside of its operand."""
    if isinstance(value, Load) and value.other is None:
        return replace(value, other=Constant(ZERO[value.dtype.kind], value.dtype))
    return None


ZERO: dict[str, bool | int | float] = {"bool": False, "int": 0, "uint": 0, "float": 0.0}


def _is_work(value: Scalar) -> bool:
    """Whether an expression is worth a name: anything but a leaf or a cast of one."""
    while isinstance(value, Apply) and value.primitive in ("cast", "round"):
        value = value.args[0]
    return isinstance(value, Apply)


def _needed(value: Apply[Scalar]) -> Scalar:
    """A value without the cast that widens an operand, where the operand stayed wide."""
    return value.args[0] if value.primitive == "cast" and value.args[0].dtype == value.dtype else value


__all__ = ["CannotInline", "Group", "compose", "in_order", "plain_axes", "viewed"]
