"""Constant folding: one generic rule that runs an op's reference body on constant operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir.dims import Expr
from ..ir.errors import CompilerError
from ..ir.graph import Builder, ConstantData, Module, Op, Value
from ..ir.ops import table
from ..ir.ops.table import OPS
from ..ir.rewrite import Rule
from ..ir.types import TensorType
from .base import RulePass

# Kept as they are: they say that a weight is stored narrow, and folding them would store it wide.
STORED_NARROW = frozenset({"dequantize", "decompress_2to4"})
EAGER_ELEMENTS = 4096


@dataclass(frozen=True)
class FoldConstants(RulePass):
    """Run ops whose operands are all constant, and keep the result as a constant with the op's source.

    Before: const @w   %t = transpose(@w) {permutation = [1, 0]}   %y = matmul(%x, %t)
    After:  const @t   %y = matmul(%x, @t)

    A result may be at most `growth` bytes larger than its operands and has at most `limit` elements; large results are
    computed when somebody asks for their values.
    """

    limit: int = 1 << 27
    growth: int = 1 << 16

    def rules(self) -> Sequence[Rule]:
        """The one rule."""
        return (FoldOp(self.limit, self.growth),)


class FoldOp(Rule):
    """op(constants) -> constant"""

    ops = tuple(OPS)

    def __init__(self, limit: int, growth: int) -> None:
        self.limit = limit
        self.growth = growth

    def check(self, op: Op, module: Module) -> str | None:
        """Pure, constant operands, known sizes, and not too large."""
        if any(value is not None and value.constant is None for value in op.operands):
            return "an operand is not constant"
        if not op.definition.is_pure or op.bodies:
            return f"{op.name} is not pure"
        if op.name in STORED_NARROW:
            return f"{op.name} says how a constant is stored"
        if not all(result.type.is_static for result in op.results) or _is_symbolic(tuple(op.attrs.values())):
            return "a size is symbolic"
        if any(value is not None and value.constant is not None and not value.constant.available for value in op.operands):
            return "the values of an operand are not given"
        return self._check_size(op)

    def _check_size(self, op: Op) -> str | None:
        given = sum(_bytes(value.type) for value in op.operands if value is not None)
        made = sum(_bytes(value.type) for value in op.results)
        if made > given + self.growth:
            return f"the result has {made} bytes, its operands have {given}"
        elements = sum(_elements(value.type) for value in op.results)
        return f"the result has {elements} elements, more than {self.limit}" if elements > self.limit else None

    def rewrite(self, op: Op, g: Builder) -> Sequence[Value]:
        """Constants named as the results were."""
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


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, Expr) or (isinstance(value, tuple) and any(_is_symbolic(part) for part in value))


def _elements(type: TensorType) -> int:
    return type.elements if isinstance(type.elements, int) else 0


def _bytes(type: TensorType) -> int:
    return type.nbytes if isinstance(type.nbytes, int) else 0
