"""Integer products: products of dequantized numbers become exact sums of their codes, scaled once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...ir import dims
from ...ir.codes import BYTE, EXACT_TERMS, FOUR, MOST_TERMS
from ...ir.dims import Dim
from ...ir.errors import InternalError, UsageError
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ...ir.types import DTYPES, DType, i32
from ..base import RulePass
from ..match import Replacement, operand, uniform
from ..weights.weights import constant_of
from .activation_products import MOST, ActivationProduct, alone
from .coded_factors import Array, Codes, beside, lies_apart, numbers_of, read_codes, scaled, spread, with_sign

NO_CODES = "the factors are not 8-bit codes"


@dataclass(frozen=True)
class IntegerProducts(RulePass):
    """Multiply codes as integers where both factors of a matmul or a convolution are codes of 8 bits; on GPUs if the right one is constant.

    Before: %xf = dequantize(%x, %sx, %zx)   %wf = dequantize(@w, @sw) {axis = 0}   %y = conv(%xf, %wf)
    After:  %t = conv(%x, @w) : i32   %y = mul(cast(sub(%t, mul(%zx, sum(@w)))), mul(%sx, @sw))

    sum (x - zx) w = sum x w - zx sum w, in integers and exact; it fires only where the sum is proved to fit 32 bits. A
    constant's zero points are subtracted when building, if what is left fits 8 bits; else they are outside as well:
    sum (x - zx) (w - zw) = sum x w - zw sum x - zx sum (w - zw). `codes` is the sign that a target's
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


@dataclass(frozen=True)
class Weight:
    """A constant factor as `codes - zero`, in i8; the zero points are 0 (None), one number, or one for each channel of results."""

    codes: Array
    zero: Array | None = None


def _right(op: Op) -> Codes | None:
    """The right factor: 8-bit codes, or constant integers, as which codes less their zero points may have been written."""
    value = operand(op, 1)
    return read_codes(value) or (Codes(value, None, None) if value.dtype == i32 and value.constant is not None else None)


def _weight(right: Codes, codes: Array, channel: int) -> Weight | str:
    """A constant factor with its zero points subtracted from its codes, and with others if that does not fit 8 bits; or why it is none."""
    along = [-1 if n == channel else 1 for n in range(codes.ndim)]
    wide = codes.astype(np.int32, copy=False) if codes.dtype != np.int8 or right.zero is not None else codes
    if right.zero is not None:
        known = constant_of(right.zero)
        if known is None:
            return "the right factor's zero points are known only at run time"
        wide = wide - known.astype(np.int32).reshape(along)
    if not wide.size or (wide.min() >= -128 and wide.max() <= 127):
        return Weight(wide.astype(np.int8, copy=False))
    others = tuple(n for n in range(codes.ndim) if n != channel)
    for axes in (None, others) if wide.min() >= -BYTE and wide.max() <= BYTE else ():
        low, high = wide.min(axis=axes), wide.max(axis=axes)
        if (high - low).max() <= BYTE:
            moved = -(low + 128).reshape(-1)
            return Weight((wide + moved.reshape(along)).astype(np.int8), moved)
    return "the right factor does not fit 8 bits"


@dataclass(frozen=True)
class CodedProduct(Rule):
    """matmul(dequantize(x), dequantize(w)), conv(dequantize(x), dequantize(w)) -> the product of the codes, scaled"""

    codes: DType
    ops: ClassVar[tuple[str, ...]] = ("matmul", "conv")
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        return why_not(op)

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        left, right = read_codes(op.operands[0]), _right(op)
        held = None if right is None else numbers_of(right.code)
        channel = _axes(op)[2]
        made = None if right is None or held is None else _weight(right, held, channel)
        if left is None or right is None or not isinstance(made, Weight):
            raise InternalError(f"{op.name} is no product of codes, which the check of the rule has shown")
        left = left if left.code.dtype == self.codes else with_sign(left, self.codes, g)
        zero = 0 if left.zero is None else uniform(left.zero)
        x, weight, attrs = _padded(op, left, made.codes, g)
        # What lies 2:4 sparse stays so: it needs neither padding nor another sign.
        lies_sparse = right.code.constant is None and right.zero is None
        codes = right.code if lies_sparse else g.module.add_constant(_name(right.code), weight, right.code.source)
        total = g.build(op.definition, [x, codes], attrs)[0]
        if made.zero is not None:
            zeros = g.module.add_constant(f"{_name(right.code)}.zeros", made.zero.reshape(-1, *spread(op)), right.code.source)
            total = g.sub(total, g.mul(_summed(op, x, weight, attrs, g), zeros))
        if zero != 0 and left.zero is not None:
            others = tuple(axis for axis in range(weight.ndim) if axis != channel)
            sums = weight.sum(axis=others, dtype=np.int32)
            if made.zero is not None:
                # What fills up the sums of a convolution is the left factor's zero point, that of a product of matrices is 0.
                counted = weight if op.name == "conv" else made.codes
                sums = sums - made.zero * np.int32(counted.size // max(1, counted.shape[channel]))
            moved = g.module.add_constant(f"{_name(right.code)}.sums", sums.reshape(-1, *spread(op)), right.code.source)
            total = g.sub(total, g.mul(beside(left.zero, i32, left.axis, op, g), moved))
        result = total if left.scale is None or right.scale is None else scaled(total, left.scale, right.scale, left.axis, op, g)
        bias = op.operands[2] if len(op.operands) > 2 else None
        if bias is not None:
            bias = g.reshape(bias, shape=(bias.shape[0], *spread(op)))
            result = g.add(result, bias if bias.dtype == result.dtype else g.cast(bias, dtype=result.dtype))
        return result if op.result.dtype == result.dtype else g.cast(result, dtype=op.result.dtype)


def why_not(op: Op) -> str | None:
    """Why a matmul or a convolution is not made of codes by a constant; None if it is to be."""
    left, right = read_codes(op.operands[0]), _right(op)
    if left is None or right is None:
        return NO_CODES
    if (left.scale is None) != (right.scale is None):
        return "one factor is scaled, the other is not"
    codes = numbers_of(right.code)
    if codes is None:
        return "the right factor is not constant"
    why = _why_not_axes(op, left, right)
    if why is not None:
        return why
    depth, _, channel = _axes(op)
    made = _weight(right, codes, channel)
    if isinstance(made, str):
        return made
    fits = made.zero is None or (isinstance(depth, int) and depth <= MOST)
    return None if fits else f"the right factor does not fit 8 bits, and a sum of {depth} terms is not known to fit 32 bits"


def _why_not_axes(op: Op, left: Codes, right: Codes) -> str | None:
    depth, contracted, channel = _axes(op)
    if not isinstance(depth, int) or depth > MOST_TERMS or depth == 0:
        return "the sum is not known to fit 32 bits"
    if right.axis is not None and right.axis != channel:
        return "the right factor's scales vary along the sum"
    if op.name == "conv" and left.axis not in (None, 0):
        return "the image has scales for each channel"
    if lies_apart(op) and depth > EXACT_TERMS:
        return f"the channels of a group are no multiple of {FOUR}, and floats add up no {depth} products of codes exactly"
    if left.axis in contracted:
        return "the left factor's scales vary along the sum"
    for codes in (left, right):
        numbers = constant_of(codes.scale)
        if numbers is not None and not np.isfinite(numbers).all():
            return "a scale is not finite"
    if op.name == "conv" and left.zero is not None and left.zero.type.elements != 1:
        return "an image's zero points vary"
    return None


def _pads(op: Op) -> bool:
    """Whether a convolution sees something outside of its image."""
    return op.name == "conv" and any(dims.equal(amount, 0) is not True for amount in (*op.attrs["before"], *op.attrs["after"]))


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


def _padded(op: Op, left: Codes, weight: Array, g: Builder) -> tuple[Value, Array, dict[str, Any]]:
    """Both factors with the contracted axis a multiple of four where it can be, and the left one with what the convolution pads it with."""
    attrs, x, rank = dict(op.attrs), left.code, left.code.type.rank
    _, contracted, channel = _axes(op)
    along, other = (1, 1) if op.name == "conv" else (*contracted, 1 - channel)
    more = 0 if lies_apart(op) else -weight.shape[other] % FOUR
    before, after = [0] * rank, [more if axis == along else 0 for axis in range(rank)]
    zero = 0 if left.zero is None or op.name == "matmul" else uniform(left.zero)
    if _pads(op) and zero != 0:
        before[2:], after[2:] = attrs["before"], attrs["after"]
        attrs |= {"before": (0,) * (rank - 2), "after": (0,) * (rank - 2)}
    if any(before) or any(after):
        x = g.pad(x, before=tuple(before), after=tuple(after), value=float(zero)) if zero is not None else _around(left, before, after, g)
    return x, np.pad(weight, [(0, more if axis == other else 0) for axis in range(weight.ndim)]), attrs


def _summed(op: Op, x: Value, weight: Array, attrs: Mapping[str, Any], g: Builder) -> Value:
    """What the codes of the left factor add up to, without another factor: for each result, or each group of them."""
    if op.name == "matmul":
        return alone(op, x, 0, g)
    groups, batch, places = attrs["groups"], x.shape[0], x.shape[2:]
    # Channels first, once: windows are then folded over one image for each group.
    if weight.shape[1] > 1:
        apart = g.reshape(g.cast(x, dtype=i32), shape=(batch, groups, weight.shape[1], *places))
        x = g.sum(apart, axes=(2,), keepdims=False)
    ones = g.module.add_constant("ones", np.ones((groups, 1, *weight.shape[2:]), np.int8 if x.dtype != i32 else np.int32))
    total: Value = g.build(op.definition, [x, ones], attrs)[0]
    if groups in (1, weight.shape[0]):
        return total
    each = weight.shape[0] // groups
    apart = g.reshape(total, shape=(batch, groups, 1, *total.shape[2:]))
    wide = g.broadcast_to(apart, shape=(batch, groups, each, *total.shape[2:]))
    result: Value = g.reshape(wide, shape=(batch, weight.shape[0], *total.shape[2:]))
    return result


def _around(left: Codes, before: Sequence[Dim], after: Sequence[Dim], g: Builder) -> Value:
    """Codes with their zero point around them, which is known only at run time: 0 is what is left of it where it is taken out twice."""
    assert left.zero is not None
    zero = g.reshape(left.zero if left.zero.dtype == left.code.dtype else g.cast(left.zero, dtype=left.code.dtype), shape=())
    result: Value = g.bit_xor(g.pad(g.bit_xor(left.code, zero), before=tuple(before), after=tuple(after), value=0.0), zero)
    return result
