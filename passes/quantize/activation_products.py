"""Products of two activations: codes of 8 bits on both sides that a call brings or makes, as in a quantized attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...ir import dims
from ...ir.codes import FOUR
from ...ir.dims import Dim
from ...ir.errors import InternalError
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ...ir.types import i8, i32, u8
from ..match import Replacement, operand, uniform
from ..weights.pad_terms import contracted, missing, padded
from .coded_factors import Codes, read_codes, scaled, with_sign

MOST = 2**31 // (4 * 255 * 128)
"""Terms of a sum whose four parts, added in any order, fit 32 bits."""
LANES = 16
"""Columns of ones, which fill a vector: of the sums one is read."""


@dataclass(frozen=True)
class ActivationProduct(Rule):
    """matmul(dequantize(x), dequantize(y)) -> (x y - m sum(y) - n sum(x) + K m n) scaled, with m and n the zero points

    Sums of one factor's codes are its product with ones; what is padded to whole groups of four is 0 in both factors.
    """

    ops: ClassVar[tuple[str, ...]] = ("matmul",)
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        left, right = read_codes(op.operands[0]), read_codes(op.operands[1])
        if left is None or right is None:
            return "the factors are not 8-bit codes"
        if right.code.constant is not None or left.code.constant is not None:
            return "a factor is constant"
        if (left.scale is None) != (right.scale is None):
            return "one factor is scaled, the other is not"
        if any(value is not None and value.type.elements != 1 for codes in (left, right) for value in (codes.scale, codes.zero)):
            return "scales or zero points vary"
        known = dims.range_of(_depth(op), module.facts)
        fits = known.low is not None and known.low > 0 and known.high is not None and known.high <= MOST
        return None if fits else f"a sum of {_depth(op)} terms is not known to fit 32 bits"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        left, right = read_codes(op.operands[0]), read_codes(op.operands[1])
        depth = _depth(op)
        if left is None or right is None:
            raise InternalError("a matmul is no product of codes, which the check of the rule has shown")
        left, right = (codes if codes.code.dtype == dtype else with_sign(codes, dtype, g) for codes, dtype in ((left, u8), (right, i8)))
        x, y = (_in_fours(op, number, codes.code, depth, g) for number, codes in enumerate((left, right)))
        total: Value = g.build(op.definition, [x, y], op.attrs)[0]
        if _is_moved(left):
            total = g.sub(total, g.mul(_zero(left, g), alone(op, y, 1, g)))
        if _is_moved(right):
            total = g.sub(total, g.mul(_zero(right, g), alone(op, x, 0, g)))
        if _is_moved(left) and _is_moved(right):
            count = depth if isinstance(depth, int) else g.cast(g.dim(value=depth), dtype=i32)
            total = g.add(total, g.mul(g.mul(_zero(left, g), _zero(right, g)), count))
        result = total if left.scale is None or right.scale is None else scaled(total, left.scale, right.scale, None, op, g)
        return result if op.result.dtype == result.dtype else g.cast(result, dtype=op.result.dtype)


def _depth(op: Op) -> Dim:
    """How many products a sum has."""
    return operand(op, 1).shape[contracted(op, 1)]


def _in_fours(op: Op, number: int, code: Value, depth: Dim, g: Builder) -> Value:
    """The codes of a factor, as many along the sum as whole groups hold."""
    whole = dims.divides(FOUR, depth, g.module.facts) is True
    return code if whole else padded(g, code, contracted(op, number), missing(depth, FOUR))


def _is_moved(codes: Codes) -> bool:
    """Whether a zero point is not known to be 0."""
    return codes.zero is not None and uniform(codes.zero) != 0


def _zero(codes: Codes, g: Builder) -> Value:
    """A zero point as one number of 32 bits."""
    assert codes.zero is not None
    zero = codes.zero if codes.zero.dtype == i32 else g.cast(codes.zero, dtype=i32)
    result: Value = g.reshape(zero, shape=()) if zero.type.rank else zero
    return result


def alone(op: Op, code: Value, number: int, g: Builder) -> Value:
    """What the codes of a factor add up to along the sum, in a column for rows, in a row for columns: their product with ones.

    Where only calls know how many there are, they are added up one by one.
    """
    axis = contracted(op, number)
    depth, rank = code.shape[axis], code.type.rank
    if not isinstance(depth, int):
        sums: Value = g.sum(g.cast(code, dtype=i32), axes=(axis,), keepdims=True)
        turned = axis != (rank - 1 if number == 0 else rank - 2)
        return g.transpose(sums, permutation=(*range(rank - 2), rank - 1, rank - 2)) if turned else sums
    if number == 1:
        ones = g.module.add_constant("ones", np.ones((1, depth), np.uint8))
        result: Value = g.matmul(ones, code, transpose_b=op.attrs["transpose_b"])
        return result
    ones = g.module.add_constant("ones", np.ones((depth, LANES), np.int8))
    total = g.matmul(code, ones, transpose_a=op.attrs["transpose_a"])
    nothing = (0,) * rank
    result = g.slice(total, starts=nothing, sizes=(*total.shape[:-1], 1), steps=(1,) * rank)
    return result
