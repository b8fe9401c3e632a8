"""Fusion: which values of a graph are written to memory, and the groups that compute them.

Walking from the outputs to the inputs, every op is either *materialised* (its result is a buffer, it ends a group) or
*inlined* (computed inside the groups that read it). A value is inlined when that costs no extra work worth a buffer:

- movement (reshape, transpose, slice ...) is a change of subscripts and goes into whoever reads it
- a pointwise op goes into its one reading group
- a reduction goes into the pointwise or reduction group that reads it
- a contraction goes into the pointwise group that reads each of its elements once (an epilogue)

A pointwise value or a reduction that several groups read, or the caller, can be *stored beside* the results of the first group that reads
it: that computes it and stores it for the others. So a group may have several results.

A group has at most `GROUP_OPS` ops. Whatever fails when a group is made one kernel is a choice of the compiler's own:
some of its values are kept in memory after all, with the reason, down to one op in each group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ..ir import dims
from ..ir.dims import Dim
from ..ir.errors import is_own, reason
from ..ir.expression import Apply
from ..ir.graph import Graph, Module, Op, Value
from ..ir.ops.structure import region_of
from ..ir.region import Axis, Load, Reduce, Region, Scan, Store, subscripted, walk
from ..ir.region_stores import together
from .compose import CannotInline, Group, compose, plain_axes, viewed
from .hoist_scales import hoist_scales
from .shadows import copy_out, seen_outside, shadows_of
from .simplify_region import simplify_region
from .split_groups import split_groups
from .weights import STORED

EXPENSIVE = frozenset(
    (
        "div pow exp exp2 expm1 log log2 log1p sqrt rsqrt sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf erfc lgamma"
    ).split()
)


GROUP_OPS = 128
"""At most so many ops are computed by one kernel; by then arithmetic, not memory, is what takes its time."""

RESULTS = 8
"""At most so many values are stored beside the results of one group: each is one more place that is written at once."""

T = TypeVar("T")


@dataclass(frozen=True)
class HostOp:
    """An op that runs as a host step."""

    op: Op


@dataclass
class _Facts:
    """What fusion asks of one op: its region, its kind, and whether others can read it inlined."""

    region: Region | None
    kind: str
    inlinable: bool


def partition(module: Module, graph: Graph, orders: Mapping[Value, tuple[int, ...]] | None = None) -> list[Group | HostOp]:
    """The kernels and host steps of a graph, in an order that respects data flow; `orders` as in `compose`."""
    return Fusion(module, graph, orders or {}).units(lambda group: group)


def has_kernel(op: Op) -> bool:
    """Whether an op is computed by kernels: it has a region, and so have its dtypes; others are host steps."""
    types = (*op.types, *(result.type for result in op.results))
    return op.definition.has_region and all(t is None or t.dtype.has_kernels for t in types)


def classify(region: Region | None) -> str:
    """opaque, movement (a load is stored), map, reduce, scan, contract (a sum of products of two operands) or scatter."""
    if region is None:
        return "opaque"
    stores = [s for s in region.body if isinstance(s, Store)]
    if any(s.gathers or s.combine for s in stores):
        return "scatter"
    if any(is_contraction(s) for s in region.body if isinstance(s, Reduce)):
        return "contract"
    if any(isinstance(s, Scan) for s in region.body):
        return "scan"
    if any(isinstance(s, Reduce) for s in region.body):
        return "reduce"
    return "movement" if len(region.body) == 1 and isinstance(stores[0].value, Load) else "map"


def is_contraction(statement: Reduce) -> bool:
    """Whether a reduction sums products of two factors that vary over different axes."""
    value = statement.value
    if statement.kind != "sum" or not (isinstance(value, Apply) and value.primitive == "mul"):
        return False
    # Subscripts may name symbols as well, which are no axes.
    left, right = (subscripted(arg) & {*statement.axes, *statement.over} for arg in value.args)
    over = set(statement.over)
    return bool(over & left and over & right and left - right - over and right - left - over) or bool(
        over <= left & right and left != right
    )


@dataclass
class Fusion:
    """The choices of one graph; `sinks` are the group roots that an op's results end up in.

    `kept` says of values that could have been computed in their readers why they are in memory. A value that has an
    order of its own although callers or host steps see it has a *shadow*: kernels write and read that, one more copies it.
    """

    module: Module
    graph: Graph
    orders: Mapping[Value, tuple[int, ...]] = field(default_factory=dict)
    kept: dict[Value, str] = field(default_factory=dict)
    facts: dict[Op, _Facts] = field(default_factory=dict)
    inlined: set[Value] = field(default_factory=set)
    beside: dict[Value, Op] = field(default_factory=dict)
    sinks: dict[Op, frozenset[Op]] = field(default_factory=dict)
    group_kinds: dict[Op, str] = field(default_factory=dict)
    views: dict[Op, tuple[Op, ...]] = field(default_factory=dict)
    shadows: dict[Value, Value] = field(default_factory=dict)
    group_rows: dict[Op, Dim | None] = field(default_factory=dict)
    places: dict[Op, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for op in self.graph:
            self.facts[op] = self._describe(op)
        outputs = set(self.graph.outputs)
        self.places = {op: place for place, op in enumerate(self.graph)}
        for op in self.graph.reversed():
            self._decide(op, outputs)
        self._bound_groups()
        hosted = frozenset(op for op, facts in self.facts.items() if facts.region is None)
        self.shadows = shadows_of(self.orders, seen_outside(self.graph, hosted))

    def _bound_groups(self) -> None:
        """Keep values in memory where a group has too many ops: of what an op reads, that which is made of the most."""
        made_of: dict[Op, frozenset[Op]] = {}
        for op in self.graph:
            read = {v: made_of[v.op] for v in op.operands if v is not None and self._is_inside(v, self.sinks[op]) and v.op is not None}
            while len(cone := frozenset({op}).union(*read.values())) > GROUP_OPS:
                largest = max(read, key=lambda value: len(read[value]))
                self._keep_in_memory(largest, f"with it the kernel that reads it would have more than {GROUP_OPS} ops")
                del read[largest]
            made_of[op] = cone

    def units(self, make: Callable[[Group], T]) -> list[T | HostOp]:
        """What `make` gives for each group, and the host steps, in an order that respects data flow.

        Where it fails for a reason of the compiler's own the group is made smaller; only a group of one op may not fail.
        """
        seen = {view for views in self.views.values() for view in views}
        found: list[T | HostOp] = []
        for op in self.graph.reversed():
            if op in seen or any(result in self.inlined or result in self.beside for result in op.results):
                continue
            if self.facts[op].region is None:
                found.append(HostOp(op))
                continue
            views = self.views.get(op, ())
            made = self._attempt(op, make)
            # What was to be stored through views that are gone is moved by kernels of their own.
            found += [self._attempt(view, make) for view in reversed(views) if op not in self.views]
            ends = views[-1:] if op in self.views else (op,)
            shadowed = [(end, result) for end in ends for result in end.results if result in self.shadows]
            found += [make(copy_out(end, v, self.shadows[v], self.orders, self.module.facts)) for end, v in shadowed]
            found.append(made)
        return found[::-1]

    def _attempt(self, op: Op, make: Callable[[Group], T]) -> T:
        """One kernel that ends in `op`, of as many ops as can be."""
        attempts = 0
        while True:
            try:
                return make(self._group(op))
            except CannotInline as refused:
                self._keep_in_memory(refused.value, refused.why)
            except Exception as failure:
                if not is_own(failure) or not self._shrink(op, attempts, reason(failure)):
                    raise
                attempts += 1

    def _keep_in_memory(self, value: Value, why: str) -> None:
        if value in self.beside:
            # It has a kernel of its own, as without that group.
            del self.beside[value]
        else:
            self.inlined.remove(value)
            self.kept[value] = why
        for read in self._read_too_early(value):
            if read in self.beside:
                self._keep_in_memory(read, why)

    def _read_too_early(self, value: Value) -> list[Value]:
        """What a value's own kernel, which has its op's place, reads and only a later group would store: that has its own kernel too."""
        found: list[Value] = []
        pending = [value.op]
        for op in pending:
            for read in dict.fromkeys(op.operands) if op is not None else ():
                if read in self.inlined and read.op not in pending:
                    pending.append(read.op)
                elif read in self.beside and value.op is not None and self.places[self.beside[read]] >= self.places[value.op]:
                    found.append(read)
        return found

    def _is_inside(self, value: Value, groups: frozenset[Op]) -> bool:
        """Whether a value is computed inside of one of these groups that reads it."""
        return value in self.inlined or self.beside.get(value) in groups

    def _shrink(self, op: Op, attempts: int, failure: str) -> bool:
        """Keep values of a group that failed in memory; False if it is one op already.

        First what is folded inside of it, then a value in its middle, then ever more: the parts are tried on their own.
        """
        members = self._members(op)
        chosen = [value for value in members if value.op is not None and self.facts[value.op].kind not in ("map", "movement")]
        if attempts or not chosen:
            count = min(len(members), 1 << attempts)
            chosen = [members[len(members) * (2 * n + 1) // (2 * count)] for n in range(count)]
        if not chosen and op not in self.views:
            return False
        for value in chosen:
            self._keep_in_memory(value, f"in one kernel with what reads it: {failure}")
        if not chosen:
            self.kept |= {view.result: f"as another view of %{op.result.name}: {failure}" for view in self.views.pop(op)}
        return True

    def _members(self, op: Op) -> list[Value]:
        """The inlined values that a group computes, those near its end first."""
        found: dict[Value, None] = {}
        pending = [op]
        for reader in pending:
            fresh = [v for v in reader.operands if v is not None and self._is_inside(v, frozenset({op})) and v not in found]
            found.update(dict.fromkeys(fresh))
            pending += [value.op for value in dict.fromkeys(fresh) if value.op is not None]
        return list(found)

    def _describe(self, op: Op) -> _Facts:
        region = region_of(op.definition, op.types, op.attrs, symbols=self.module.facts.ranges) if has_kernel(op) else None
        kind = classify(region)
        inlinable = region is not None and len(op.results) == 1 and kind not in ("scatter", "scan") and plain_axes(region) is not None
        return _Facts(region, kind, inlinable)

    def _group(self, op: Op) -> Group:
        here, beside = frozenset({op}), [value for value, root in self.beside.items() if root is op]
        regions, views = (lambda o: self.facts[o].region), self.views.get(op, ())
        group = compose(op, regions, lambda value: self._is_inside(value, here), self.module.facts, self.orders, views, beside)
        region = hoist_scales(split_groups(simplify_region(group.region, self.module.facts), self.module.facts))
        if beside and len(together(region)) > 1:
            raise CannotInline(beside[-1], "the kernel that reads it would run along fewer axes in parallel, or twice")
        inputs, outputs = (tuple(self.shadows.get(v, v) for v in values) for values in (group.inputs, group.outputs))
        return Group(region, inputs, outputs, group.ops)

    def _decide(self, op: Op, outputs: set[Value]) -> None:
        facts = self.facts[op]
        readers = frozenset(sink for result in op.results for user in result.uses for sink in self.sinks[user])
        value = op.results[0] if op.results else None
        if value is None or not facts.inlinable or not readers:
            self._keep(op)
            return
        first = min(readers, key=self.places.__getitem__)
        if (value in outputs or len(readers) > 1) and not self._stays_small(op) and self._may_store_beside(op, value, first):
            self.beside[value] = first
            self._compute_in(op, frozenset({first}))
            return
        if value in outputs:
            self._keep(op)
            return
        sums = facts.kind in ("contract", "reduce")
        if sums and all(self.group_kinds[root] == "movement" for root in readers):
            # Stored through what only moves it an op keeps its axes, by which strategies know it.
            self._view(op)
        if op in self.views or not self._may_inline(op, value, readers):
            self._keep(op)
            if sums and op not in self.views:
                self._view(op)
            return
        self.inlined.add(value)
        self._compute_in(op, readers)

    def _compute_in(self, op: Op, groups: frozenset[Op]) -> None:
        """The op is computed by the groups that read it."""
        self.sinks[op] = groups
        if self.facts[op].kind in ("contract", "reduce"):
            for sink in groups:
                self.group_kinds[sink] = self.facts[op].kind
                self.group_rows[sink] = self._rows(op)

    def _keep(self, op: Op) -> None:
        """The op is computed by a group of its own."""
        self.sinks[op] = frozenset({op})
        self.group_kinds[op] = self.facts[op].kind
        self.group_rows[op] = self._rows(op)

    def _view(self, op: Op) -> None:
        """Let the group of `op` store through the reshapes and transposes that alone read it, if it ends in one."""
        region = self.facts[op].region
        store = region.body[-1] if region is not None else None
        if region is None or not isinstance(store, Store):
            return
        facts, subscripts, value, views = region.facts(self.module.facts), store.subscripts, op.result, []
        while len(value.uses) == 1:
            (user,) = value.uses
            if user.name not in ("reshape", "transpose"):
                return
            views.append(user)
            subscripts = viewed(subscripts, user, facts)
            if any(map(dims.has_division, subscripts)):
                return
            value = user.result
            if value not in self.inlined:
                self.inlined -= {view.result for view in views}
                self.views[op] = tuple(views)
                return

    def _may_inline(self, op: Op, value: Value, readers: frozenset[Op]) -> bool:
        kind = self.facts[op].kind
        if not all(self._reads_plainly(user, value) for user in value.uses):
            return False
        if kind == "movement":
            return self._movement_pays(op, value, readers)
        if len(readers) != 1:
            return kind == "map" and self._stays_small(op)
        (root,) = readers
        if kind == "map":
            return self._map_pays(op, value, root)
        if self.group_kinds[root] not in ("map", "movement") and not (kind == "reduce" and self.group_kinds[root] == "reduce"):
            return False
        if kind == "reduce":
            return self._keeps_parallelism(op) and self._shares_rows(op, root)
        same_size = dims.equal(value.type.elements, root.results[0].type.elements) is True
        moves = not self._is_chained(op)
        return same_size and len(root.results) == 1 and self._path_is_pointwise(value, root, moves)

    def _stays_small(self, op: Op) -> bool:
        """A weight's narrow form is what is kept in memory, however many kernels read it."""
        return all(v is None or v.constant is not None for v in op.operands) and (not op.operands or op.name in STORED)

    def _may_store_beside(self, op: Op, value: Value, root: Op) -> bool:
        """Whether the first group that reads a value should store it as well; its root comes before those of all others.

        The end of a contraction is stored by that contraction, and what is dear is not computed once for each fold.
        """
        kind, group = self.facts[op].kind, self.group_kinds[root]
        if kind not in ("map", "reduce") or group not in ("map", "movement", "reduce") or value in self.orders:
            return False
        if self.facts[root].region is None or sum(other is root for other in self.beside.values()) >= RESULTS:
            return False
        if kind == "reduce" and not (self._keeps_parallelism(op) and self._shares_rows(op, root)):
            return False
        if any(self._comes_from_contraction(operand, value) for operand in op.operands):
            return False
        users = [user for user in value.uses if root in self.sinks[user]]
        if not all(self._reads_plainly(user, value) for user in users):
            return False
        return kind == "reduce" or group != "reduce" or not self._is_expensive(op) or _grows(value, [root])

    def _is_chained(self, op: Op) -> bool:
        """Whether sums are made of sums, as in attention: strategies know it by its axes, which a movement would mix."""
        region = self.facts[op].region
        return region is not None and sum(isinstance(statement, Reduce) for statement in region.body) > 1

    def _path_is_pointwise(self, value: Value, root: Op, moves: bool) -> bool:
        """Whether `value` reaches `root` once, through pointwise ops and, if `moves`, movements that keep every element.

        Movements that together take an axis apart would leave a contraction without rows and columns.
        """
        start, moved = value, list[Op]()
        while True:
            if len(value.uses) != 1 or next(iter(value.uses.values())) != 1:
                return len(value.uses) == 1 and next(iter(value.uses)) is root and self.facts[root].kind == "map"
            (user,) = value.uses
            if (
                self.facts[user].kind not in (("map", "movement") if moves else ("map",))
                or dims.equal(user.results[0].type.elements, value.type.elements) is not True
            ):
                return False
            moved += [user] if self.facts[user].kind == "movement" else []
            if user is root:
                folds = start.op is None or self.facts[start.op].kind != "contract"
                return (folds or self._keeps_axes(moved)) and (self.facts[root].kind == "map" or not self._is_strided(user))
            value = user.results[0]

    def _keeps_axes(self, moved: list[Op]) -> bool:
        """Whether an element's place before movements has no divisions in it, as a function of its place after them."""
        if not moved:
            return True
        # No symbol of the graph is called so.
        axes = tuple(Axis(f"${n}", size) for n, size in enumerate(moved[-1].results[0].shape))
        facts = Region("", (), (), axes, ()).facts(self.module.facts)
        places: tuple[Dim, ...] = tuple(dims.symbol(axis.name) for axis in axes)
        for op in reversed(moved):
            region = self.facts[op].region
            load = region.body[-1].value if region is not None else None
            along = plain_axes(region) if region is not None else None
            if along is None or not isinstance(load, Load) or len(places) != len(op.results[0].shape):
                return False
            mapping = {axis: places[dimension] for axis, dimension in along.items()}
            places = tuple(dims.simplify(dims.substitute(s, mapping), facts) for s in load.subscripts)
        return not any(map(dims.has_division, places))

    def _is_strided(self, op: Op) -> bool:
        """Whether a movement changes the innermost axis (writing an epilogue through it would scatter)."""
        region = self.facts[op].region
        if region is None or not isinstance(region.body[-1], Store) or not isinstance(region.body[-1].value, Load):
            return True
        source, target = region.body[-1].value.subscripts, region.body[-1].subscripts
        return not (source and target and source[-1] == target[-1])

    def _reads_plainly(self, user: Op, value: Value) -> bool:
        """Whether every load of `value` in `user` is inside the operand and not a gather."""
        facts = self.facts[user]
        if facts.region is None:
            return False
        names = {f"x{n}" for n, operand in enumerate(user.operands) if operand is value}
        for statement in facts.region.body:
            values = [statement.value, *(g for _, g in statement.gathers)] if isinstance(statement, Store) else [statement.value]
            for part in (p for v in values for p in walk(v)):
                if not isinstance(part, Load) or part.operand not in names:
                    continue
                if part.gathers or (part.other is not None and (facts.kind not in ("map", "movement") or not self._is_plain(value))):
                    return False
        return True

    def _is_plain(self, value: Value) -> bool:
        """Whether a value is one expression of its operands, without named parts."""
        facts = self.facts[value.op] if value.op is not None else None
        return facts is not None and facts.kind in ("map", "movement") and facts.region is not None and len(facts.region.body) == 1

    def _movement_pays(self, op: Op, value: Value, readers: frozenset[Op]) -> bool:
        """Into a contraction only where every subscript stays free of divisions and the innermost stride stays."""
        if not any(self.facts[user].kind == "contract" for user in value.uses):
            return not any(self.facts[user].kind == "scatter" for user in value.uses)
        region = self.facts[op].region
        if region is None:
            return False
        store = region.body[-1]
        load = store.value
        if not isinstance(store, Store) or not isinstance(load, Load) or load.gathers or load.other is not None:
            return False
        simple = simplify_region(region, self.module.facts).body[-1].value
        affine = isinstance(simple, Load) and not any(map(dims.has_division, (*simple.subscripts, *load.subscripts)))
        resolved = affine or self._resolves(op, value)
        return resolved and not self._is_strided(op)

    def _resolves(self, op: Op, value: Value) -> bool:
        """Whether a reshape's divisions vanish: it only splits or merges whole dimensions."""
        region = self.facts[op].region
        if region is None:
            return False
        facts = region.facts(self.module.facts)
        load = region.body[-1].value
        if not isinstance(load, Load):
            return False
        return not any(dims.has_division(dims.simplify(s, facts)) for s in load.subscripts)

    def _map_pays(self, op: Op, value: Value, root: Op) -> bool:
        users = list(value.uses)
        if any(self.facts[user].kind == "contract" for user in users) and op.name not in STORED:
            return self.facts[op].kind == "map" and self._is_attention_side(users, value)
        if any(self.facts[user].kind == "scatter" for user in users):
            return False
        if self._is_expensive(op) and _grows(value, users):
            return False
        return not self._ends_contraction(op, value, root)

    def _ends_contraction(self, op: Op, value: Value, root: Op) -> bool:
        """Whether the op is better the end of a contraction's group than a part of its reader's."""
        takes = self.group_kinds[root] in ("map", "movement") and dims.equal(value.type.elements, root.results[0].type.elements) is True
        return not takes and any(self._comes_from_contraction(operand, value) for operand in op.operands)

    def _comes_from_contraction(self, operand: Value | None, value: Value) -> bool:
        while operand is not None and operand.op is not None and len(operand.uses) == 1:
            if dims.equal(operand.type.elements, value.type.elements) is not True:
                return False
            kind = self.facts[operand.op].kind
            if kind not in ("movement", "map"):
                return kind == "contract"
            operand = next((v for v in operand.op.operands if v is not None and v.constant is None), None)
        return False

    def _is_attention_side(self, users: list[Op], value: Value) -> bool:
        """A mask read by attention may be computed where it is used."""
        return all(user.name == "attention" and user.operands[3:4] == (value,) for user in users) and len(users) == 1

    def _is_expensive(self, op: Op) -> bool:
        region = self.facts[op].region
        if region is None:
            return True
        return any(isinstance(p, Apply) and p.primitive in EXPENSIVE for s in region.body for p in walk(s.value))

    def _rows(self, op: Op) -> Dim | None:
        """How many results an op's first reduction has; None if it has none."""
        region = self.facts[op].region
        for statement in region.body if region is not None else ():
            if isinstance(statement, Reduce):
                return dims.product(region.axis(name).extent for name in statement.axes) if region is not None else None
        return None

    def _shares_rows(self, op: Op, root: Op) -> bool:
        """Whether the group's reductions run over the same rows: one loop over rows serves them all."""
        rows, present = self._rows(op), self.group_rows.get(root)
        return present is None or (rows is not None and dims.equal(rows, present) is True)

    def _keeps_parallelism(self, op: Op) -> bool:
        """Whether the reduction leaves an axis to run in parallel (a full reduction inside a map would run in a row)."""
        region = self.facts[op].region
        return region is not None and any(isinstance(s, Reduce) and s.axes for s in region.body)


def _grows(value: Value, users: list[Op]) -> bool:
    """Whether some reader has more elements than the value (it would be computed again and again)."""
    for user in users:
        bigger: Dim = user.results[0].type.elements
        if dims.equal(bigger, value.type.elements) is not True and dims.at_most(bigger, value.type.elements) is not True:
            return True
    return False
