"""Constant folding: one generic rule that runs an op's reference body on constant operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...ir.dims import Expr
from ...ir.errors import CompilerError
from ...ir.graph import Builder, ConstantData, Module, Op, Value
from ...ir.graph.rewrite import Rule
from ...ir.ops import table
from ...ir.ops.structure import region_of
from ...ir.ops.table import OPS
from ...ir.region.cost import iterations
from ...ir.types import TensorType
from ..base import PassContext, RulePass
from ..regions.facts import has_kernel

# Kept as they are, but for a single number: they say that a weight is stored narrow, and folding them would store it wide.
STORED_NARROW = frozenset({"dequantize", "decode"})
GATHERS = frozenset({"take", "take_along_axis", "gather_nd"})
EAGER_ELEMENTS = 4096
GATHERED = 1 << 22
"""Bytes that what is gathered by constants may be larger by: it would be gathered again in each call."""
OVERHEAD = 10_000
"""Calling an op at all takes as long as so many operations."""


@dataclass(frozen=True)
class FoldConstants(RulePass):
    """Run ops whose operands are all constant, and keep the result as a constant with the op's source.

    Before: const @w   %t = transpose(@w) {permutation = [1, 0]}   %y = matmul(%x, %t)
    After:  const @t   %y = matmul(%x, @t)

    A result may be at most `growth` bytes larger than its operands and has at most `limit` elements; large results are
    computed when somebody asks for their values. All of it together takes at most `work` element operations, and eight
    for each element of a weight; what is over that is computed when the engine runs, and a note says so.
    """

    limit: int = 1 << 27
    growth: int = 1 << 16
    work: int = 1 << 30

    def rules(self) -> Sequence[Rule]:
        """The one rule, with a budget for a program without weights."""
        return (FoldOp(self.limit, self.growth, self.work),)

    def run(self, module: Module, context: PassContext) -> bool:
        """Fold what the budget allows."""
        weights = sum(_elements(value.type) for value in module.constants.values())
        rule = FoldOp(self.limit, self.growth, self.work + 8 * weights)
        changed = context.apply(module, [rule])
        if rule.left:
            first, count = next(iter(rule.left)), len(rule.left)
            what = f"{first.name} at {first.source or 'its place'}" + (f" and {count - 1} more" if count > 1 else "")
            context.notes.append(f"left to run time: {what}, on constants alone; folding may take {self.work} operations")
        return changed


class FoldOp(Rule):
    """op(constants) -> constant"""

    ops = tuple(OPS)

    def __init__(self, limit: int, growth: int, work: int) -> None:
        self.limit = limit
        self.growth = growth
        self.work = work
        self.left: dict[Op, None] = {}

    def check(self, op: Op, module: Module) -> str | None:
        """Pure, constant operands, known sizes, and not too large."""
        if any(value is not None and value.constant is None for value in op.operands):
            return "an operand is not constant"
        if not op.definition.is_pure:
            return f"{op.name} is not pure"
        if op.name in STORED_NARROW and op.result.type.elements != 1:
            return f"{op.name} says how a constant is stored"
        if not all(result.type.is_static for result in op.results) or _is_symbolic(tuple(op.attrs.values())):
            return "a size is symbolic"
        if any(value is not None and value.constant is not None and not value.constant.available for value in op.operands):
            return "the values of an operand are not given"
        return self._check_size(op) or self._check_work(op)

    def _check_work(self, op: Op) -> str | None:
        work = _work(op)
        if work > self.work:
            self.left[op] = None
            return f"computing it takes {work} operations, {self.work} are left of the budget"
        return None

    def _check_size(self, op: Op) -> str | None:
        given = sum(_bytes(value.type) for value in op.operands if value is not None)
        made = sum(_bytes(value.type) for value in op.results)
        if made > given + (max(self.growth, GATHERED) if op.name in GATHERS else self.growth):
            return f"the result has {made} bytes, its operands have {given}"
        elements = sum(_elements(value.type) for value in op.results)
        return f"the result has {elements} elements, more than {self.limit}" if elements > self.limit else None

    def rewrite(self, op: Op, g: Builder) -> Sequence[Value]:
        """Constants named as the results were."""
        self.work -= _work(op)
        folded = _Folded(op)
        results = enumerate(op.results)
        return [g.module.add_constant(value.name, folded.result(n), value.source, value.type) for n, value in results]


class _Folded:
    """The results of one op, computed once, when the first of them is asked for."""

    def __init__(self, op: Op) -> None:
        self._definition = op.definition
        self._source = op.source
        self._attrs = dict(op.attrs)
        self._types = tuple(result.type for result in op.results)
        self._operands: tuple[ConstantData | None, ...] | None = tuple(None if value is None else value.constant for value in op.operands)
        self._arrays: tuple[np.ndarray[Any, Any], ...] = ()
        # Small ones at once: a chain of postponed ones would be computed by a recursion as long as the chain.
        small = all(_elements(type) <= EAGER_ELEMENTS for type in self._types)
        if small or any(data is not None and not data.loaded and data.origin == "folded" for data in self._operands):
            self._compute()

    def result(self, position: int) -> ConstantData:
        """The data of one result."""
        if self._operands is None:
            return ConstantData(self._arrays[position], origin="folded")
        return ConstantData(load=lambda: self._compute()[position], origin="folded")

    def _compute(self) -> tuple[np.ndarray[Any, Any], ...]:
        if self._operands is not None:
            arrays = tuple(None if data is None else data.array for data in self._operands)
            try:
                self._arrays = table.run(self._definition, arrays, self._attrs, self._types, wide=False)
            except CompilerError as error:
                error.source = error.source or self._source
                raise
            self._operands = None
        return self._arrays


def _work(op: Op) -> int:
    """Element operations of an op: the points of its loops, or what it reads and writes where it has none."""
    moved = sum(_elements(type) for type in (*op.types, *(result.type for result in op.results)) if type is not None)
    if moved <= EAGER_ELEMENTS and op.definition.kind == "pointwise":
        return moved + OVERHEAD
    region = region_of(op.definition, op.types, op.attrs) if has_kernel(op) else None
    if region is None:
        return 16 * moved + OVERHEAD
    return max(moved, iterations(region)) + OVERHEAD


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, Expr) or (isinstance(value, tuple) and any(_is_symbolic(part) for part in value))


def _elements(type: TensorType) -> int:
    return type.elements if isinstance(type.elements, int) else 0


def _bytes(type: TensorType) -> int:
    return type.nbytes if isinstance(type.nbytes, int) else 0
