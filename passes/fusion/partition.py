"""The driver of fusion: choices from the end of a graph to its start, bounds on groups, and the groups one by one.

A group has at most `GROUP_OPS` ops. Whatever fails when a group is made one kernel is a choice of the compiler's own:
some of its values are kept in memory after all, with the reason, down to one op in each group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ...ir.errors import InternalError, is_own, reason
from ...ir.graph import Graph, Module, Op, Value
from ...ir.region import Region
from ...ir.region.stores import together
from ...ir.workload import Workload, default_workload
from ..faults import Faults
from ..regions.compose import CannotInline, Group, compose
from ..regions.exact_floats import exact_floats
from ..regions.hoist_scales import hoist_scales
from ..regions.narrow_factors import narrow_factors
from ..regions.narrow_functions import narrow_functions
from ..regions.shadows import copy_in, copy_out, seen_outside, shadows_of
from ..regions.simplify_region import simplify_region
from ..regions.spell_out import spell_out
from ..regions.split_groups import split_groups
from ..weights.weights import STORED
from . import legality, profit
from .choices import Choices
from .legality import Question, refusal
from .profit import Profit

GROUP_OPS = 128
"""At most so many ops are computed by one kernel; by then arithmetic, not memory, is what takes its time."""

T = TypeVar("T")


@dataclass(frozen=True)
class HostOp:
    """An op that runs as a host step."""

    op: Op


def partition(module: Module, graph: Graph, orders: Mapping[Value, tuple[int, ...]] | None = None) -> list[Group | HostOp]:
    """The kernels and host steps of a graph, in an order that respects data flow; `orders` as in `compose`."""
    return Fusion(module, graph, orders or {}).units(lambda group: group)


def choose(
    module: Module, graph: Graph, orders: Mapping[Value, tuple[int, ...]], sizes: Mapping[str, int], narrow: bool = False
) -> Choices:
    """The better of two attempts, where costs decide: the second knows what the first computes where it is read."""
    first = decided(Choices(module, graph, orders, sizes, narrow))
    if not first.weighed:
        return first
    second = decided(Choices(module, graph, orders, sizes, narrow, before=first))
    return min(first, second, key=lambda choices: Profit(choices).total())


def decided(choices: Choices) -> Choices:
    """The choices for every op of a graph, from its end to its start."""
    for op in choices.graph.reversed():
        _decide(choices, op)
    return choices


def _decide(choices: Choices, op: Op) -> None:
    if not op.results:
        choices.keep(op, "")
        return
    question = Question(choices, op, op.results[0], choices.readers(op))
    why = refusal(question, legality.OF_THE_OP)
    if why is not None:
        choices.keep(op, why)
        return
    wanted = (question.value in choices.outputs or len(question.readers) > 1) and not question.stays_small
    not_beside = refusal(question.of_first, (*legality.BESIDE, *profit.BESIDE)) if wanted else None
    why = refusal(question, (*legality.WHERE_READ, *profit.WHERE_READ))
    if wanted and not_beside is None and why is not None:
        choices.store_beside(question.value, op, question.first, _stored(question))
        return
    keeps_axes = question.facts.sums or profit.ends_chain(question) or profit.repeats_rows(question)
    if question.value not in choices.outputs and keeps_axes and _is_only_moved(question):
        # Stored through what only moves it an op keeps its axes, by which strategies know it.
        choices.view(op)
    if op not in choices.views and why is None:
        choices.inline(question.value, op, question.readers, _computed(question))
        return
    _keep(choices, op, question, why, not_beside)


def _keep(choices: Choices, op: Op, question: Question, why: str | None, not_beside: str | None) -> None:
    """The op has a group of its own, which stores a sum through the views of it that follow."""
    told = choices.why[question.value] if op in choices.views else f"{why}; {not_beside}" if not_beside is not None else str(why)
    choices.keep(op, told)
    if question.value not in choices.outputs and question.facts.sums and op not in choices.views:
        choices.view(op)


def _is_only_moved(question: Question) -> bool:
    return all(question.choices.group_kinds[root] == "movement" for root in question.readers)


def _computed(question: Question) -> str:
    """Why a value is computed where it is read."""
    if question.kind == "movement":
        return "a movement is a change of subscripts in what reads it"
    if question.is_everywhere:
        return f"it is made of less than it holds: each of the {len(question.readers)} kernels that read it computes it"
    if len(question.readers) > 1:
        return f"to compute it in each of the {len(question.readers)} kernels that read it costs less than memory does"
    if question.kind == "contract":
        return "the product's kernel computes what reads it as well, before anything is written"
    return "one kernel reads it, and sums it up on its way" if question.kind == "reduce" else "one kernel reads it, and computes it itself"


def _stored(question: Question) -> str:
    """Why a value is stored beside the results of what reads it."""
    if len(question.readers) == 1:
        return "the kernel that reads it computes it, and writes it for the caller too"
    return f"the first of the {len(question.readers)} kernels that read it computes it, and writes it for the others"


@dataclass
class Fusion:
    """The choices of one graph and the groups that they give.

    A value that has an order of its own although callers or host steps see it has a *shadow*: kernels write and read
    that, one more copies it. Where `narrow` factors make faster products, decoded ones are rounded as their op declares. Functions
    of which 16 bits are read are computed in those `short` forms, among which stand those that a target has instructions for. Groups
    are products of their own unless vectors are `shared` by several.
    """

    module: Module
    graph: Graph
    orders: Mapping[Value, tuple[int, ...]] = field(default_factory=dict)
    workload: Workload | None = None
    narrow: bool = False
    short: frozenset[str] = frozenset()
    shared: Callable[[Region], bool] = lambda region: False
    choices: Choices = field(init=False)
    shadows: dict[Value, Value] = field(init=False)
    faults: Faults = field(default_factory=Faults, init=False)

    def __post_init__(self) -> None:
        workload = self.workload or default_workload(self.module.facts)
        self.choices = choose(self.module, self.graph, self.orders, workload.sizes, self.narrow)
        self._bound_groups()
        hosted = frozenset(op for op, facts in self.choices.facts.items() if facts.region is None)
        self.shadows = shadows_of(self.orders, seen_outside(self.graph, hosted))

    @property
    def kept(self) -> Mapping[Value, str]:
        """Of values that could have been computed in their readers why they are in memory."""
        return self.choices.kept

    def _bound_groups(self) -> None:
        """Keep values in memory where a group has too many ops: of what an op reads, that which is made of the most."""
        made_of: dict[Op, frozenset[Op]] = {}
        for op in self.graph:
            read = {
                v: made_of[v.op]
                for v in op.operands
                if v is not None and self.choices.is_inside(v, self.choices.sinks[op]) and v.op is not None
            }
            while len(cone := frozenset({op}).union(*read.values())) > GROUP_OPS:
                largest = max(read, key=lambda value: len(read[value]))
                self.choices.keep_in_memory(largest, f"the kernel that reads it would have more than {GROUP_OPS} ops if it computed it too")
                del read[largest]
            made_of[op] = cone

    def units(self, make: Callable[[Group], T]) -> list[T | HostOp]:
        """What `make` gives for each group, and the host steps, in an order that respects data flow.

        Where it fails for a reason of the compiler's own the group is made smaller; only a group of one op may not fail.
        """
        seen = {view for views in self.choices.views.values() for view in views}
        found: list[T | HostOp] = []
        for op in self.graph.reversed():
            if op in seen or any(result in self.choices.inlined or result in self.choices.beside for result in op.results):
                continue
            if self.choices.facts[op].region is None:
                found += [make(self._copy_in(result)) for result in op.results if result in self.shadows]
                found.append(HostOp(op))
                continue
            views = self.choices.views.get(op, ())
            made = self._attempt(op, make)
            # What was to be stored through views that are gone is moved by kernels of their own.
            found += [self._attempt(view, make) for view in reversed(views) if op not in self.choices.views]
            ends = views[-1:] if op in self.choices.views else (op,)
            shadowed = [(end, result) for end in ends for result in end.results if result in self.shadows]
            found += [make(copy_out(end, v, self.shadows[v], self.orders, self.module.facts)) for end, v in shadowed]
            found.append(made)
        found += [make(self._copy_in(value)) for value in self.graph.inputs if value in self.shadows]
        return found[::-1]

    def _copy_in(self, value: Value) -> Group:
        return copy_in(value, self.shadows[value], self.orders, self.module.facts)

    def _attempt(self, op: Op, make: Callable[[Group], T]) -> T:
        """One kernel that ends in `op`, of as many ops as can be."""
        attempts = 0
        while True:
            try:
                return make(self._group(op))
            except CannotInline as refused:
                self.choices.keep_in_memory(refused.value, refused.why)
            except Exception as failure:
                if not is_own(failure) or not self._shrink(op, attempts, reason(failure)):
                    raise
                if not isinstance(failure, InternalError):  # which says that no strategy takes the group: what failed in one is noted there
                    self.faults.add(
                        f"the kernel that ends in {op.name} %{op.results[0].name}" + (f" at {op.source}" if op.source else ""), failure
                    )
                attempts += 1

    def _shrink(self, op: Op, attempts: int, failure: str) -> bool:
        """Keep values of a group that failed in memory; False if it is one op already.

        First what is folded inside of it, then a value in its middle, then ever more: the parts are tried on their own.
        """
        members = self._members(op)
        chosen = [value for value in members if value.op is not None and self.choices.facts[value.op].kind not in ("map", "movement")]
        if attempts or not chosen:
            count = min(len(members), 1 << attempts)
            chosen = [members[len(members) * (2 * n + 1) // (2 * count)] for n in range(count)]
        if not chosen and op not in self.choices.views:
            return False
        for value in chosen:
            self.choices.keep_in_memory(value, f"it could not be made one kernel with what reads it: {failure}")
        if not chosen:
            self.choices.keep_views(op, f"it could not be written in the shape of %{op.result.name}: {failure}")
        return True

    def _members(self, op: Op) -> list[Value]:
        """The inlined values that a group computes, those near its end first."""
        found: dict[Value, None] = {}
        pending = [op]
        for reader in pending:
            fresh = [v for v in reader.operands if v is not None and self.choices.is_inside(v, frozenset({op})) and v not in found]
            found.update(dict.fromkeys(fresh))
            pending += [value.op for value in dict.fromkeys(fresh) if value.op is not None]
        return list(found)

    def _group(self, op: Op) -> Group:
        here, beside = frozenset({op}), list(self.choices.stored.get(op, ()))
        regions, views = (lambda o: self.choices.facts[o].region), self.choices.views.get(op, ())
        group = compose(
            op,
            regions,
            lambda value: self.choices.is_inside(value, here),
            self.module.facts,
            self.orders,
            views,
            beside,
            self._keeps_rounding,
        )
        region = simplify_region(group.region, self.module.facts)
        region = region if self.shared(region) else split_groups(region, self.module.facts)
        region = exact_floats(hoist_scales(narrow_factors(region) if self.narrow else region), self.module.facts)
        region = spell_out(narrow_functions(region, self.short) if self.short else region, self.short)
        if beside and len(together(region)) > 1:
            raise CannotInline(beside[-1], _why_apart(beside[-1], self.choices.graph))
        inputs, outputs = (tuple(self.shadows.get(v, v) for v in values) for values in (group.inputs, group.outputs))
        return Group(region, inputs, outputs, group.ops)

    def _keeps_rounding(self, value: Value) -> bool:
        """Whether a value is decoded for nothing but products, which decide on its rounding (`narrow_factors`)."""
        is_decoded = self.narrow and value.op is not None and value.op.name in STORED
        return is_decoded and all(user.name in ("matmul", "conv") for user in value.uses)


def _why_apart(value: Value, graph: Graph) -> str:
    """Why a value that is in memory is not computed in the kernel that reads it."""
    if any(value is after for _, _, after in graph.ties):
        return "a state keeps it, and it has no axis along which the kernel that reads it could write it in parallel"
    return "the kernel that reads it would compute it twice, or run along fewer axes in parallel, if it wrote it too"


__all__ = ["GROUP_OPS", "Fusion", "HostOp", "choose", "decided", "partition"]
