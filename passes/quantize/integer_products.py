"""Integer products: products of dequantized numbers become exact sums of their codes, scaled once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...ir import dims
from ...ir.codes import FOUR, MOST_TERMS
from ...ir.dims import Dim
from ...ir.errors import InternalError, UsageError
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ...ir.types import DTYPES, DType, i32
from ..base import RulePass
from ..match import Replacement, operand, uniform
from ..weights.weights import constant_of
from .activation_products import ActivationProduct
from .coded_factors import Array, Codes, beside, numbers_of, read_codes, scaled, spread, with_sign

NO_CODES = "the factors are not 8-bit codes"


@dataclass(frozen=True)
class IntegerProducts(RulePass):
    """Multiply codes as integers where both factors of a matmul or a convolution are codes of 8 bits; on GPUs if the right one is constant.

    Before: %xf = dequantize(%x, %sx, %zx)   %wf = dequantize(@w, @sw) {axis = 0}   %y = conv(%xf, %wf)
    After:  %t = conv(%x, @w) : i32   %y = mul(cast(sub(%t, mul(%zx, sum(@w)))), mul(%sx, @sw))

    sum (x - zx) w = sum x w - zx sum w, in integers and exact; it fires only where the sum is proved to fit 32 bits. A
    constant's zero points are subtracted when building, if what is left fits 8 bits. `codes` is the sign that a target's
    instructions want on the left (u8 or i8): codes of the other sign are made anew, 128 higher or lower.
    """

    codes: str = "u8"
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self) -> None:
        """The dtype is one that products have instructions for."""
        if self.codes not in ("u8", "i8"):
            raise UsageError(f"pass {self.name}: codes is {self.codes!r}, expected u8 or i8")

    def rules(self) -> Sequence[Rule]:
        """By constants; and of two activations where codes on the left are unsigned, which is to say on CPUs."""
        constant = CodedProduct(DTYPES[self.codes])
        return (constant, ActivationProduct()) if self.codes == "u8" else (constant,)


def _moved(weight: Codes, codes: Array) -> Array | None:
    """A constant factor's codes with its zero points subtracted, as i8; None if they do not fit."""
    wide = codes.astype(np.int32)
    if weight.zero is not None:
        zero = constant_of(weight.zero)
        if zero is None:
            return None
        zero = zero.astype(np.int32)
        along = weight.axis is not None and zero.ndim == 1 and zero.size > 1
        wide = wide - (zero.reshape([-1 if n == weight.axis else 1 for n in range(codes.ndim)]) if along else zero.reshape(-1)[0])
    return wide.astype(np.int8) if wide.size and wide.min() >= -128 and wide.max() <= 127 else None


@dataclass(frozen=True)
class CodedProduct(Rule):
    """matmul(dequantize(x), dequantize(w)), conv(dequantize(x), dequantize(w)) -> the product of the codes, scaled"""

    codes: DType
    ops: ClassVar[tuple[str, ...]] = ("matmul", "conv")
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        return why_not(op)

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        left, right = read_codes(op.operands[0]), read_codes(op.operands[1])
        held = None if right is None else numbers_of(right.code)
        weight = None if right is None or held is None else _moved(right, held)
        if left is None or right is None or weight is None:
            raise InternalError(f"{op.name} is no product of codes, which the check of the rule has shown")
        left = left if left.code.dtype == self.codes else with_sign(left, self.codes, g)
        zero = 0 if left.zero is None else uniform(left.zero)
        x, weight, attrs = _padded(op, left.code, weight, int(zero or 0), g)
        # What lies 2:4 sparse stays so: it needs neither padding nor another sign.
        lies_sparse = right.code.constant is None and right.zero is None
        codes = right.code if lies_sparse else g.module.add_constant(_name(right.code), weight, right.code.source)
        total = g.build(op.definition, [x, codes], attrs)[0]
        channel = _axes(op)[2]
        if zero != 0 and left.zero is not None:
            others = tuple(axis for axis in range(weight.ndim) if axis != channel)
            sums = weight.sum(axis=others, dtype=np.int32).reshape(-1, *spread(op))
            moved = g.module.add_constant(f"{_name(right.code)}.sums", sums, right.code.source)
            total = g.sub(total, g.mul(beside(left.zero, i32, left.axis, op, g), moved))
        result = total if left.scale is None or right.scale is None else scaled(total, left.scale, right.scale, left.axis, op, g)
        bias = op.operands[2] if len(op.operands) > 2 else None
        if bias is not None:
            bias = g.reshape(bias, shape=(bias.shape[0], *spread(op)))
            result = g.add(result, bias if bias.dtype == result.dtype else g.cast(bias, dtype=result.dtype))
        return result if op.result.dtype == result.dtype else g.cast(result, dtype=op.result.dtype)


def why_not(op: Op) -> str | None:
    """Why a matmul or a convolution is not made of codes by a constant; None if it is to be."""
    left, right = read_codes(op.operands[0]), read_codes(op.operands[1])
    if left is None or right is None:
        return NO_CODES
    if (left.scale is None) != (right.scale is None):
        return "one factor is scaled, the other is not"
    codes = numbers_of(right.code)
    if codes is None:
        return "the right factor is not constant"
    return _why_not_axes(op, left, right) or ("the right factor does not fit 8 bits" if _moved(right, codes) is None else None)


def _why_not_axes(op: Op, left: Codes, right: Codes) -> str | None:
    depth, contracted, channel = _axes(op)
    if not isinstance(depth, int) or depth > MOST_TERMS or depth == 0:
        return "the sum is not known to fit 32 bits"
    if right.axis is not None and right.axis != channel:
        return "the right factor's scales vary along the sum"
    if op.name == "conv" and left.axis not in (None, 0):
        return "the image has scales for each channel"
    if op.name == "conv" and op.attrs["groups"] != 1 and dims.divides(FOUR, operand(op, 1).shape[1]) is not True:
        return f"the channels of a group are no multiple of {FOUR}"
    if left.axis in contracted:
        return "the left factor's scales vary along the sum"
    for codes in (left, right):
        numbers = constant_of(codes.scale)
        if numbers is not None and not np.isfinite(numbers).all():
            return "a scale is not finite"
    pads = op.name == "conv" and any(dims.equal(amount, 0) is not True for amount in (*op.attrs["before"], *op.attrs["after"]))
    if pads and left.zero is not None and uniform(left.zero) is None:
        return "what pads the left factor is known only at run time"
    return None


def _axes(op: Op) -> tuple[Dim | None, frozenset[int], int]:
    """How many products a sum has, the axes of the left factor that it runs along, and the right one's axis of results."""
    left, right = operand(op, 0).type, operand(op, 1).type
    if op.name == "conv":
        return dims.product(right.shape[1:]), frozenset(range(1, left.rank)), 0
    if right.rank != 2:
        return None, frozenset(), 0
    channel = 0 if op.attrs["transpose_b"] else 1
    return right.shape[1 - channel], frozenset({left.rank - 2 if op.attrs["transpose_a"] else left.rank - 1}), channel


def _name(code: Value) -> str:
    return f"{code.name}.codes"


def _padded(op: Op, x: Value, weight: Array, zero: int, g: Builder) -> tuple[Value, Array, dict[str, Any]]:
    """Both factors with the contracted axis a multiple of four, and the left one with what the convolution pads it with."""
    attrs, rank = dict(op.attrs), x.type.rank
    _, contracted, channel = _axes(op)
    along, other = (1, 1) if op.name == "conv" else (*contracted, 1 - channel)
    more = -weight.shape[other] % FOUR
    before, after = [0] * rank, [more if axis == along else 0 for axis in range(rank)]
    if op.name == "conv" and zero:
        before[2:], after[2:] = attrs["before"], attrs["after"]
        attrs |= {"before": (0,) * (rank - 2), "after": (0,) * (rank - 2)}
    if any(before) or any(after):
        x = g.pad(x, before=tuple(before), after=tuple(after), value=float(zero))
    return x, np.pad(weight, [(0, more if axis == other else 0) for axis in range(weight.ndim)]), attrs
