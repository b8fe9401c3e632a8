"""Functions of one code: what is computed from an 8-bit code alone, to an 8-bit code, is looked up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...ir.errors import InternalError
from ...ir.expression import Apply
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Rule
from ...ir.ops.structure import region_of
from ...ir.ops.table import OPS, run
from ...ir.region.region import walk
from ...ir.target import VECTOR_CYCLES
from ...ir.types import TensorType, u8
from ..base import RulePass
from ..match import Replacement, operand, same_shape, uniform

Array = np.ndarray[Any, Any]
CODES = 256
MOST_OPS = 64
CODING = ("quantize", "dequantize")


@dataclass(frozen=True)
class TabulateCodes(RulePass):
    """Look up what a chain of pointwise ops makes of a code, in a table of what it makes of each of the 256.

    Before: %x = dequantize(%c, @s, @z)   %y = tanh(%x)   %d = quantize(%y, @t, @u)
    After:  %d = take(@table, %c) {axis = 0}

    The table is what the ops' reference bodies give, as for any constant. Chains that take fewer than `worth` cycles on a vector
    of floats stay as they are: that long its elements take to look up, each by a load.
    """

    worth: float = 40.0

    def rules(self) -> Sequence[Rule]:
        """One, for wherever a code is made."""
        return (FunctionOfCode(self.worth),)


@dataclass(frozen=True)
class FunctionOfCode(Rule):
    """quantize(f(dequantize(c))) -> take(table, c), where all else is constant"""

    worth: float
    ops: ClassVar[tuple[str, ...]] = ("quantize", "take", *(name for name, definition in OPS.items() if definition.kind == "pointwise"))

    def check(self, op: Op, module: Module) -> str | None:
        if not _is_code(op.result):
            return "the result is no code of 8 bits"
        chain = _chain_to(op)
        if chain is None:
            return "it is not computed from one code"
        if not same_shape(chain.code.shape, op.result.shape, module):
            return "a dimension is broadcast"
        cycles = 0.0 if len(chain.ops) == 1 and op.name == "take" else sum(map(_cycles, chain.ops))
        return None if cycles >= self.worth else f"it takes {cycles:g} cycles, less than the {self.worth:g} of a lookup"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        chain = _chain_to(op)
        if chain is None:
            raise InternalError(f"{op.name} is no function of a code, which the check of the rule has shown")
        known = g.module.add_constant(f"{op.result.name}.by_code", chain.table(), op.source)
        return g.take(known, chain.code if chain.code.dtype == u8 else g.cast(chain.code, dtype=u8), axis=0)


@dataclass(frozen=True)
class _Chain:
    """A code, and the ops that make something of it and of constants, in their order."""

    code: Value
    ops: tuple[Op, ...]

    def table(self) -> Array:
        """What they make of each code; negative ones stand where their bits as an unsigned number say."""
        held = {self.code: np.arange(CODES).astype(np.uint8).view(self.code.dtype.numpy)}
        for op in self.ops:
            given = tuple(None if value is None else held[value] if value in held else _constant(value) for value in op.operands)
            varies = any(value in held for value in op.operands)
            attrs = {**op.attrs, "axis": None} if op.name in CODING else op.attrs
            made = TensorType(op.result.dtype, (CODES,) if varies else (1,))
            (held[op.result],) = run(op.definition, given, attrs, (made,), wide=False)
        return held[self.ops[-1].result]


def _chain_to(last: Op) -> _Chain | None:
    """What ends in an op, from the farthest code that all of it is computed from; None if there is none."""
    if not _is_alike(last):
        return None
    for code in reversed(list(_codes_behind(last))):
        ops: dict[Op, None] = {}
        if _reaches(last, code, ops):
            return _Chain(code, tuple(ops))
    return None


def _codes_behind(last: Op) -> Iterator[Value]:
    """Codes that an op may be computed from, the nearest first."""
    pending, seen = [last], {last}
    for op in pending:
        for value in _varying(op):
            if _is_code(value):
                yield value
            if value.op is not None and value.op not in seen and len(seen) < MOST_OPS and _is_alike(value.op):
                seen.add(value.op)
                pending.append(value.op)


def _reaches(op: Op, code: Value, ops: dict[Op, None]) -> bool:
    """Whether an op is computed from a code and from constants alone; collects what lies between, operands first."""
    for value in _varying(op):
        if value is code or (value.op in ops):
            continue
        if value.op is None or not _is_alike(value.op) or len(ops) >= MOST_OPS or not _reaches(value.op, code, ops):
            return False
    ops[op] = None
    return True


def _varying(op: Op) -> Iterator[Value]:
    """The operands that are not one number, nor the table of a lookup."""
    for position, value in enumerate(op.operands):
        if value is not None and not (op.name == "take" and position == 0) and uniform(value) is None:
            yield value


def _constant(value: Value) -> Array:
    """What an operand that does not vary holds: a table, or one element."""
    if value.constant is not None and value.type.shape == (CODES,):
        return value.constant.array
    return np.asarray([uniform(value)]).astype(value.dtype.numpy)


def _is_alike(op: Op) -> bool:
    """Whether an op does the same to every element: pointwise, codes by one scale and one zero point, a lookup in a table."""
    if op.name in CODING:
        return not op.attrs.get("block", 0) and all(value is None or value.type.elements == 1 for value in op.operands[1:])
    if op.name == "take":
        known, by = operand(op, 0), operand(op, 1)
        return known.constant is not None and known.constant.available and known.type.shape == (CODES,) and by.dtype == u8
    return op.definition.kind == "pointwise" and op.definition.is_pure and len(op.results) == 1


def _is_code(value: Value) -> bool:
    return value.dtype.is_integer and value.dtype.bits == 8


def _cycles(op: Op) -> float:
    """Cycles of an op on a vector of floats."""
    region = region_of(op.definition, op.types, op.attrs)
    values = [] if region is None else [value for statement in region.body for value in walk(statement.value)]
    return sum(VECTOR_CYCLES.get(value.primitive, 1.0) for value in values if isinstance(value, Apply))
