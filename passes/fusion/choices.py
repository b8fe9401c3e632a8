"""What is decided so far of one graph, from its end towards its start: where values are computed, and in which groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...ir import dims
from ...ir.dims import Dim
from ...ir.graph import Graph, Module, Op, Value
from ...ir.region import Store
from ..regions.compose import viewed
from ..regions.facts import OpFacts, describe

PARTS = 16
"""What is made of more values than this is reckoned with as one."""


@dataclass
class Choices:
    """The choices of one graph; `sinks` are the group roots that an op's results end up in.

    A value is `inlined` in the groups that read it, or stored `beside` the results of a root, or neither: then its op has
    a group of its own, which may store it through `views`. `why` has a sentence for each; `kept` has those of values
    that could have been computed in their readers, or stored by them. `reads` is what groups read, as far as that is decided or was
    `before`, in an earlier attempt at the same graph; sizes are those of the workload. Of what is `weighed` the costs decided.
    Where factors are multiplied as `narrow` as they are, products compute what scales of their codes are made of.
    """

    module: Module
    graph: Graph
    orders: Mapping[Value, tuple[int, ...]]
    sizes: Mapping[str, int] = field(default_factory=dict)
    narrow: bool = False
    before: Choices | None = None
    facts: dict[Op, OpFacts] = field(default_factory=dict)
    places: dict[Op, int] = field(default_factory=dict)
    outputs: set[Value] = field(default_factory=set)
    inlined: set[Value] = field(default_factory=set)
    beside: dict[Value, Op] = field(default_factory=dict)
    stored: dict[Op, dict[Value, None]] = field(default_factory=dict)
    """What is beside, by its root."""
    views: dict[Op, tuple[Op, ...]] = field(default_factory=dict)
    sinks: dict[Op, frozenset[Op]] = field(default_factory=dict)
    group_kinds: dict[Op, str] = field(default_factory=dict)
    group_rows: dict[Op, Dim | None] = field(default_factory=dict)
    reads: dict[Op, set[Value]] = field(default_factory=dict)
    made_of: dict[Value, frozenset[Value]] = field(default_factory=dict)
    weighed: set[Value] = field(default_factory=set)
    why: dict[Value, str] = field(default_factory=dict)
    kept: dict[Value, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.facts = {op: describe(op, self.module.facts) for op in self.graph} if self.before is None else self.before.facts
        self.places = {op: place for place, op in enumerate(self.graph)}
        self.outputs = set(self.graph.outputs)
        for value in (op.result for op in self.graph if self.before is not None and len(op.results) == 1):
            read = self.behind(value.op.operands) if value.op is not None else set()
            if self.before is not None and value in self.before.inlined and len(read) <= PARTS:
                self.made_of[value] = frozenset(read)

    def readers(self, op: Op) -> frozenset[Op]:
        """The roots of the groups that read an op's results."""
        return frozenset(sink for result in op.results for user in result.uses for sink in self.sinks[user])

    def first(self, readers: frozenset[Op]) -> Op:
        """Of some roots the one that comes first."""
        return min(readers, key=self.places.__getitem__)

    def groups(self) -> dict[Op, frozenset[Op]]:
        """The roots of the groups that compute each op, by what was chosen in the end; users come before what they use."""
        viewed = {view: root for root, views in self.views.items() for view in views}
        found: dict[Op, frozenset[Op]] = {}
        for op in self.graph.reversed():
            value = op.results[0] if len(op.results) == 1 else None
            if value is not None and value in self.inlined:
                found[op] = frozenset(root for user in value.uses for root in found[user])
            elif value is not None and value in self.beside:
                found[op] = frozenset({self.beside[value]})
            else:
                found[op] = frozenset({viewed.get(op, op)})
        return found

    def is_inside(self, value: Value, groups: frozenset[Op]) -> bool:
        """Whether a value is computed inside of one of these groups that reads it."""
        return value in self.inlined or self.beside.get(value) in groups

    def behind(self, values: Iterable[Value | None]) -> set[Value]:
        """What has to be read for some values: themselves, or what an earlier attempt made them of where they are read."""
        return {read for value in values if value is not None for read in self.made_of.get(value, (value,))}

    # --- what may be chosen -------------------------------------------------------------------------------------------

    def inline(self, value: Value, op: Op, readers: frozenset[Op], why: str) -> None:
        """The value is computed by each group that reads it."""
        self.inlined.add(value)
        self._compute_in(op, readers)
        self.why[value] = why

    def store_beside(self, value: Value, op: Op, root: Op, why: str) -> None:
        """The value is computed by a group that reads it, which stores it for all others."""
        self.beside[value] = root
        self.stored.setdefault(root, {})[value] = None
        self._compute_in(op, frozenset({root}))
        self.why[value] = why

    def keep(self, op: Op, why: str) -> None:
        """The op is computed by a group of its own."""
        self.sinks[op] = frozenset({op})
        self.group_kinds[op] = self.facts[op].kind
        self.group_rows[op] = self.facts[op].rows
        self.reads[op] = self.behind(op.operands)
        self.why |= dict.fromkeys(op.results, why)

    def _compute_in(self, op: Op, groups: frozenset[Op]) -> None:
        self.sinks[op] = groups
        for sink in groups:
            self.reads[sink] |= self.behind(op.operands)
        if self.facts[op].sums:
            for sink in groups:
                self.group_kinds[sink] = self.facts[op].kind
                # Those of what is folded last: parts of them are folded on the way.
                present = self.group_rows.get(sink)
                self.group_rows[sink] = self.facts[op].rows if present is None else present

    def view(self, op: Op) -> None:
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
                why = f"its kernel writes it in the shape of %{value.name} at once"
                self.why |= dict.fromkeys([op.result, *(view.result for view in views[:-1])], why)
                return

    # --- what is taken back -------------------------------------------------------------------------------------------

    def keep_in_memory(self, value: Value, why: str) -> None:
        """A value that was to be computed where it is read, or beside, has a kernel of its own, if another has not led to that."""
        if value in self.beside:
            # It has a kernel of its own, as without that group.
            del self.stored[self.beside.pop(value)][value]
        elif value in self.inlined:
            self.inlined.remove(value)
        else:
            return
        self.kept[value] = self.why[value] = why
        for read in self._read_too_early(value):
            self.keep_in_memory(read, why)

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

    def keep_views(self, op: Op, why: str) -> None:
        """What `op` was to store through views is moved by kernels of their own."""
        views = self.views.pop(op)
        self.why[op.result] = why
        self.kept |= {view.result: why for view in views}
        self.why |= {view.result: why for view in views}


__all__ = ["Choices"]
