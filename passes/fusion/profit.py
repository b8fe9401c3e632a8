"""Profit: which values are better kept in memory although a kernel that reads them could compute them, and what is at stake."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ...ir import dims
from ...ir.dims import Dim
from ...ir.graph import Op, Value
from ...ir.region import Load, Reduce, Region, Store, walk
from ...ir.region.cost import cost_of
from ...ir.workload import size_at
from ..weights.weights import STORED
from . import legality
from .choices import Choices
from .legality import Question, Rule, refusal

SHORT_ROW = 16
"""Rows of fewer elements are not worth a loop of their own."""

# --- computed where it is read ----------------------------------------------------------------------------------------


def computed_again(q: Question) -> str | None:
    """In several kernels only what costs less to compute again than memory takes for it."""
    if q.kind == "movement" or q.is_everywhere or len(q.readers) == 1:
        return None
    q.choices.weighed.add(q.value)
    if Profit(q.choices).pays(q, _may_store_beside(q)):
        return None
    return f"{len(q.readers)} kernels read it, and to compute it in each costs more than memory does"


def dear_again(q: Question) -> str | None:
    """What is dear is not computed for each of several elements that read one."""
    again = q.kind == "map" and not q.is_everywhere and q.facts.is_expensive and _grows(q.value, q.users)
    return "it is expensive, and each of its elements would be computed every time that it is read" if again else None


def end_of_product(q: Question) -> str | None:
    """A pointwise op is better the end of a product's group than a part of its reader's, but for what makes numbers of codes again."""
    if q.kind != "map" or q.is_everywhere or not q.readers or q.op.name in STORED:
        return None
    root = q.first
    same = dims.equal(q.value.type.elements, root.results[0].type.elements) is True
    takes = q.choices.group_kinds[root] in ("map", "movement") and same
    return "the kernel of the product before it computes it at no cost" if not takes and _ends_product(q) else None


# --- stored beside ----------------------------------------------------------------------------------------------------


def stored_by_product(q: Question) -> str | None:
    """The end of a contraction is stored by that contraction."""
    return "the kernel of the product before it writes it" if q.kind == "map" and _ends_product(q) else None


def dear_in_folds(q: Question) -> str | None:
    """What is dear is not computed once for each fold."""
    folds = q.kind != "reduce" and q.choices.group_kinds[q.first] == "reduce"
    again = folds and q.facts.is_expensive and not _grows(q.value, [q.first])
    return "it is expensive, and the first kernel that reads it would compute it once for each of its sums" if again else None


WHERE_READ: tuple[Rule, ...] = (computed_again, dear_again, end_of_product)
"""Where one refuses, a buffer costs less than computing the value in all groups that read it."""

BESIDE: tuple[Rule, ...] = (stored_by_product, dear_in_folds)
"""Where one refuses, a kernel of its own costs less than storing the value beside the first group's results."""


def _may_store_beside(q: Question) -> bool:
    return refusal(q.of_first, (*legality.BESIDE, *BESIDE)) is None


# --- what the rules ask -----------------------------------------------------------------------------------------------


def ends_chain(q: Question) -> bool:
    """Whether a value is made of a chain of sums (attention), which keeps its axes, by pointwise ops alone, and only moved from there."""
    if q.kind != "map" or q.user_kinds() != {"movement"}:
        return False
    return any(q.choices.facts[product].is_chained for product in _products_behind(q, ("map",)))


def repeats_rows(q: Question) -> bool:
    """Whether rows are repeated and then lie in one row: read from there, each element would be found by a division."""
    if q.op.name != "broadcast_to" or any(user.name != "reshape" for user in q.value.uses):
        return False
    (source,), shape = q.op.operands, q.value.shape
    before = (1,) * (len(shape) - source.type.rank) + source.shape if source is not None else ()
    repeated = [n for n, (size, wanted) in enumerate(zip(before, shape, strict=True)) if size == 1 and wanted != 1]
    if not repeated or any(len(user.result.shape) >= len(shape) for user in q.value.uses):
        return False
    row = dims.product(shape[repeated[-1] + 1 :])
    return dims.at_most(SHORT_ROW, row, q.choices.module.facts) is True and all(row not in user.result.shape for user in q.value.uses)


def _ends_product(q: Question) -> bool:
    return bool(_products_behind(q))


def _products_behind(q: Question, through: tuple[str, ...] = ("movement", "map")) -> list[Op]:
    """The products that a value is made of by nothing but ops of these kinds, and nothing else is."""
    facts, places, elements = q.choices.facts, q.choices.places, q.value.type.elements
    inside, products, pending = {q.op}, list[Op](), set(_makers(q.op))
    while pending:
        # Whatever reads its result and could be inside came before it.
        op = max(pending, key=places.__getitem__)
        pending.remove(op)
        if len(op.results) != 1 or not inside.issuperset(op.result.uses) or dims.equal(op.result.type.elements, elements) is not True:
            continue
        if facts[op].kind == "contract":
            products.append(op)
        elif facts[op].kind in through:
            inside.add(op)
            pending |= _makers(op)
    return products


def _makers(op: Op) -> set[Op]:
    """The ops that made what an op reads."""
    return {value.op for value in op.operands if value is not None and value.op is not None}


def _grows(value: Value, users: list[Op]) -> bool:
    """Whether some reader has more elements than the value (it would be computed again and again)."""
    for user in users:
        bigger: Dim = user.results[0].type.elements
        if dims.equal(bigger, value.type.elements) is not True and dims.at_most(bigger, value.type.elements) is not True:
            return True
    return False


# --- what is at stake -------------------------------------------------------------------------------------------------


OPERATIONS = 2
"""So many operations take as long as moving a byte, most of what is moved between kernels being in some cache."""
DEAR = 16
"""A dear function takes as long as so many operations."""
LAUNCH = 16_384
"""Memory moves so many bytes while a kernel starts."""


@dataclass(frozen=True)
class Stakes:
    """What memory moves for a value that is kept, one write and all reads, and the operations that its readers compute again if not."""

    bytes: int
    operations: int


@dataclass(frozen=True)
class Profit:
    """What choices cost at the sizes of the workload, in bytes that memory could move meanwhile."""

    choices: Choices

    def pays(self, q: Question, beside: bool) -> bool:
        """Whether computing a value in all groups that read it costs less than memory: a kernel of its own, or the store of the first."""
        size, count = self._bytes(q.value), len(q.readers)
        own = self._fresh(q.op, set()) + size * (1 + count) + LAUNCH
        first = self._fresh(q.op, self.choices.reads[q.first]) + size * count
        again = sum(self._fresh(q.op, self.choices.reads[root]) for root in q.readers)
        return again + self._work(q.op) * (self._repeats(q) - 1) < (min(own, first) if beside else own)

    def total(self) -> float:
        """What all groups of a graph cost: what they read and write, what they compute, and that there are so many."""
        groups, times = self.choices.groups(), dict[tuple[Op, Op], float]()
        reads: dict[Op, set[Value]] = {}
        cost = 0.0
        for op, roots in groups.items():
            for root in roots:
                own = [(user, result) for result in op.results for user in result.uses if root in groups[user] and user is not op]
                inside = [times[user, root] * self._times(user, result) for user, result in own if self._is_inside(result, root, op)]
                times[op, root] = max(inside, default=1.0)
                cost += self._work(op) * times[op, root]
                reads.setdefault(root, set()).update(v for v in op.operands if v is not None and not self._is_inside(v, root, op))
            cost += sum(self._bytes(result) for result in op.results if result not in self.choices.inlined)
        return cost + sum(LAUNCH + sum(map(self._bytes, found)) for found in reads.values())

    def _is_inside(self, value: Value, root: Op, op: Op) -> bool:
        viewed = value.op is not None and root is value.op and op in self.choices.views.get(root, ())
        return viewed or self.choices.is_inside(value, frozenset({root}))

    def _bytes(self, value: Value) -> int:
        return size_at(value.type.nbytes, self.choices.sizes)

    def _fresh(self, op: Op, known: set[Value]) -> int:
        """The bytes of what an op reads and a group does not already."""
        return sum(map(self._bytes, self.choices.behind(op.operands) - known))

    def _work(self, op: Op) -> float:
        dear = DEAR if self.choices.facts[op].is_expensive else 1
        return self._operations(op) * dear / OPERATIONS

    def _repeats(self, q: Question) -> float:
        """How often each element is computed if all groups that read it do."""
        return sum(max(max(1.0, self._times(user, q.value)) for user in q.users if root in self.choices.sinks[user]) for root in q.readers)

    def stakes(self, value: Value, groups: Mapping[Op, frozenset[Op]]) -> Stakes:
        """What is at stake for a value; `groups` are the roots of the groups that compute each op."""
        times: dict[Op, float] = {}
        for user in value.uses:
            for root in groups[user]:
                # A group computes what its ops read at one place once.
                times[root] = max(times.get(root, 0.0), self._times(user, value))
        writes = 0 if value in self.choices.outputs else 1
        moved = size_at(value.type.nbytes, self.choices.sizes) * (writes + len(times))
        return Stakes(moved, round(self._operations(value.op) * max(0.0, sum(times.values()) - 1)))

    def _operations(self, op: Op | None) -> float:
        region = self.choices.facts[op].region if op is not None else None
        return 0.0 if region is None else cost_of(region, self._extents(region)).operations

    def _times(self, user: Op, value: Value) -> float:
        """How often an op reads each element of a value, on average; at least once each, as a kernel would that computes all."""
        region, elements = self.choices.facts[user].region, size_at(value.type.elements, self.choices.sizes)
        # A kernel folds each row once, however often it reads the sum.
        if region is None or not elements or (value.op is not None and self.choices.facts[value.op].kind == "reduce"):
            return 1.0
        names = {f"x{n}" for n, operand in enumerate(user.operands) if operand is value}
        sizes = self._extents(region)
        return max((_points(region, axes, sizes) for axes in _reading(region, names)), default=0.0) / elements

    def _extents(self, region: Region) -> Mapping[str, int]:
        named = {name for axis in region.axes for name in dims.symbols(axis.extent)}
        named |= {name for operand in (*region.inputs, *region.outputs) for size in operand.type.shape for name in dims.symbols(size)}
        return {name: size_at(dims.symbol(name), self.choices.sizes) for name in named}


def _reading(region: Region, names: set[str]) -> list[tuple[str, ...]]:
    """The axes of each statement that loads one of some operands."""
    found = []
    for statement in region.body:
        parts = [statement.value, *(g for _, g in statement.gathers)] if isinstance(statement, Store) else [statement.value]
        if any(isinstance(part, Load) and part.operand in names for value in parts for part in walk(value)):
            found.append((*statement.axes, *(statement.over if isinstance(statement, Reduce) else ())))
    return found


def _points(region: Region, axes: tuple[str, ...], sizes: Mapping[str, int]) -> float:
    return math.prod(float(dims.evaluate(region.axis(name).extent, sizes)) for name in axes)


__all__ = ["BESIDE", "WHERE_READ", "Profit", "Stakes"]
