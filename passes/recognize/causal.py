"""Recognition of causal masks: what a mask says of positions alone becomes the attribute of attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...ir import dims
from ...ir.dims import Dim
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ..base import RulePass
from ..match import UNIFORM_LIMIT, Replacement, operand, producer
from ..progressions import progression

MAXIMUM_PARTS = 16


@dataclass(frozen=True)
class RecognizeCausal(RulePass):
    """Take the condition column <= row out of an attention's bool mask.

    Before: %c = le(%columns, %rows)   %m = logical_and(%c, %padding)   %y = attention(%q, %k, %v, %m)
    After:  %y = attention(%q, %k, %v, %padding) {causal = true}

    What is left of the mask keeps its own shape: a mask of padding is never repeated for every row.
    """

    numerics: ClassVar[Numerics] = "EXACT"

    def rules(self) -> Sequence[Rule]:
        """The one rule."""
        return (CausalMask(),)


@dataclass(frozen=True)
class Part:
    """One condition of a mask, and the shape in which it broadcasts against the mask."""

    value: Value
    shape: tuple[Dim, ...]


class CausalMask(Rule):
    """attention(q, k, v, (column <= row) and mask) -> attention(q, k, v, mask) {causal = true}"""

    ops = ("attention",)

    def check(self, op: Op, module: Module) -> str | None:
        mask = op.operands[3] if len(op.operands) > 3 else None
        if mask is None or mask.dtype.kind != "bool" or op.attrs["causal"]:
            return "there is no bool mask, or the attention is causal"
        return None if any(_is_causal(part, op) for part in conditions(mask)) else "no condition of the mask is column <= row"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        left: Value | None = None
        for part in conditions(operand(op, 3)):
            if _is_causal(part, op):
                continue
            condition = part.value if part.value.shape == part.shape else g.reshape(part.value, shape=part.shape)
            left = condition if left is None else g.logical_and(left, condition)
        return g.build(op.definition, (*op.operands[:3], left), {**op.attrs, "causal": True})


def conditions(mask: Value) -> list[Part]:
    """The conditions whose conjunction a mask is, those furthest left first."""
    found: list[Part] = []
    pending = [Part(mask, mask.shape)]
    while pending:
        part = pending.pop()
        op = producer(part.value, "logical_and", "reshape", "broadcast_to")
        inner = None if op is None or len(pending) + len(found) > MAXIMUM_PARTS else _inner(op, part)
        if inner is None:
            found.append(part)
        else:
            pending += reversed(inner)
    return found


def _inner(op: Op, part: Part) -> list[Part] | None:
    """The parts that an op puts together, in the shape that `part` has; None where it does more than that."""
    if op.name == "reshape":
        source = operand(op, 0)
        plain = [size for size in source.shape if size != 1] == [size for size in op.result.shape if size != 1]
        return [Part(source, part.shape)] if plain else None
    if part.value.shape != part.shape and op.name != "logical_and":
        return None
    parts = [operand(op, n) for n in range(len(op.operands))]
    shapes = [_placed(value.shape, part) for value in parts]
    return [Part(value, shape) for value, shape in zip(parts, shapes, strict=True) if shape is not None] if None not in shapes else None


def _placed(shape: tuple[Dim, ...], part: Part) -> tuple[Dim, ...] | None:
    """The shape of an operand of `part.value`, with the dimensions of size 1 that `part.shape` has beyond it."""
    whole = part.value.shape
    aligned = [1] * (len(whole) - len(shape)) + list(shape)
    kept = [size for n, size in enumerate(aligned) if whole[n] != 1]
    result: list[Dim] = []
    for size in part.shape:
        result.append(1 if size == 1 else kept.pop(0) if kept else 0)
    return None if kept or 0 in result else tuple(result)


def _is_causal(part: Part, attention: Op) -> bool:
    """Whether the condition is column <= row, the last dimension and the one before, for all scores of an attention."""
    if len(part.shape) < 2 or part.value.type.rank < 2 or any(size != 1 for size in part.shape[:-2]):
        return False
    scores = (operand(attention, 0).shape[-2], operand(attention, 1).shape[-2])
    if any(dims.equal(size, wanted) is not True for size, wanted in zip(part.shape[-2:], scores, strict=True)):
        # One row of a mask stands for every row of scores.
        return False
    if part.value.constant is not None:
        return _is_lower_triangle(part.value)
    op = producer(part.value, "le", "ge", "lt", "gt")
    if op is None:
        return False
    left, right = (progression(value) for value in op.operands)
    if op.name in ("ge", "gt"):
        left, right = right, left
    if left is None or right is None or (left.step, right.step) != (1, 1):
        return False
    rank = part.value.type.rank
    sides = operand(op, 0 if op.name in ("le", "lt") else 1), operand(op, 1 if op.name in ("le", "lt") else 0)
    columns, rows = (side.axis + rank - value.type.rank for side, value in zip((left, right), sides, strict=True))
    offset = left.start + (op.name in ("lt", "gt")) - right.start
    return (columns, rows, offset) == (rank - 1, rank - 2, 0)


def _is_lower_triangle(value: Value) -> bool:
    elements = value.type.elements
    if value.constant is None or not value.constant.available or not isinstance(elements, int) or not 0 < elements <= UNIFORM_LIMIT:
        return False
    array = np.asarray(value.constant.array)
    return bool(np.array_equal(array.reshape(array.shape[-2:]), np.tri(*array.shape[-2:], dtype=bool)))
