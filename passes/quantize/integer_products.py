"""Integer products: products of dequantized numbers become exact sums of their codes, scaled once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ...ir import dims
from ...ir.codes import FOUR, MOST_TERMS
from ...ir.dims import Dim
from ...ir.errors import InternalError, UsageError
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ...ir.ops.quantization import limits
from ...ir.types import DTYPES, DType, f32, i8, i32, u8
from ..base import RulePass
from ..match import Replacement, operand, producer, uniform
from ..weights.weights import values_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class IntegerProducts(RulePass):
    """Multiply codes as integers where both factors of a matmul or a convolution are codes of 8 bits, the right one constant.

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
        """One rule."""
        return (CodedProduct(DTYPES[self.codes]),)


@dataclass(frozen=True)
class _Codes:
    """A factor as (code - zero) * scale; `zero` is an i32 that broadcasts against the factor, `scale` None for integers."""

    code: Value
    zero: Value | None
    scale: Value | None
    axis: int | None = None


def _read(value: Value | None) -> _Codes | None:
    """What a factor is made of, if it is 8-bit codes."""
    dequantized = producer(value, "dequantize")
    if dequantized is not None:
        code, scale = operand(dequantized, 0), operand(dequantized, 1)
        if dequantized.attrs["block"] or code.dtype not in (i8, u8):
            return None
        zero = dequantized.operands[2] if len(dequantized.operands) > 2 else None
        axis = dequantized.attrs["axis"] if any(each is not None and each.type.elements != 1 for each in (scale, zero)) else None
        return _Codes(code, zero, scale, None if axis is None else axis % code.type.rank)
    if value is None or value.dtype != i32:
        return None
    moved = producer(value, "sub")
    inner: Value = value if moved is None else operand(moved, 0)
    zero = None if moved is None else operand(moved, 1)
    cast = producer(inner, "cast")
    if cast is None or operand(cast, 0).dtype not in (i8, u8):
        return None
    code = operand(cast, 0)
    return _Codes(code, zero, None) if zero is None or (value.shape == code.shape and _is_code(zero, code.dtype)) else None


def _is_code(zero: Value, dtype: DType) -> bool:
    """Whether an integer is one number, and one of the codes if it is known."""
    low, high = limits(dtype)
    number = uniform(zero)
    return zero.type.elements == 1 and (number is None or low <= number <= high)


def _constant(value: Value | None) -> Array | None:
    """The numbers of a constant, through casts of it."""
    cast = producer(value, "cast")
    held = operand(cast, 0) if cast is not None else value
    return values_of(held) if held is not None and held.constant is not None and held.constant.available else None


def _moved(weight: _Codes) -> Array | None:
    """A constant factor's codes with its zero points subtracted, as i8; None if they do not fit."""
    codes = _constant(weight.code)
    if codes is None:
        return None
    wide = codes.astype(np.int32)
    if weight.zero is not None:
        zero = _constant(weight.zero)
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
        left, right = _read(op.operands[0]), _read(op.operands[1])
        if left is None or right is None:
            return "the factors are not 8-bit codes"
        if (left.scale is None) != (right.scale is None):
            return "one factor is scaled, the other is not"
        if _constant(right.code) is None:
            return "the right factor is not constant"
        return self._why_not_axes(op, left, right, module) or ("the right factor does not fit 8 bits" if _moved(right) is None else None)

    def _why_not_axes(self, op: Op, left: _Codes, right: _Codes, module: Module) -> str | None:
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
            numbers = _constant(codes.scale)
            if numbers is not None and not np.isfinite(numbers).all():
                return "a scale is not finite"
        pads = op.name == "conv" and any(dims.equal(amount, 0) is not True for amount in (*op.attrs["before"], *op.attrs["after"]))
        if pads and left.zero is not None and uniform(left.zero) is None:
            return "what pads the left factor is known only at run time"
        return None

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        left, right = _read(op.operands[0]), _read(op.operands[1])
        weight = _moved(right) if right is not None else None
        if left is None or right is None or weight is None:
            raise InternalError(f"{op.name} is no product of codes, which the check of the rule has shown")
        left = left if left.code.dtype == self.codes else _with_sign(left, self.codes, g)
        zero = 0 if left.zero is None else uniform(left.zero)
        x, weight, attrs = _padded(op, left.code, weight, int(zero or 0), g)
        total = g.build(op.definition, [x, g.module.add_constant(_name(right.code), weight, right.code.source)], attrs)[0]
        channel = _axes(op)[2]
        if zero != 0 and left.zero is not None:
            others = tuple(axis for axis in range(weight.ndim) if axis != channel)
            sums = weight.sum(axis=others, dtype=np.int32).reshape(-1, *_spread(op))
            moved = g.module.add_constant(f"{_name(right.code)}.sums", sums, right.code.source)
            total = g.sub(total, g.mul(_beside(left.zero, i32, left.axis, op, g), moved))
        result = total if left.scale is None or right.scale is None else self._scaled(total, left.scale, right.scale, left.axis, op, g)
        bias = op.operands[2] if len(op.operands) > 2 else None
        if bias is not None:
            bias = g.reshape(bias, shape=(bias.shape[0], *_spread(op)))
            result = g.add(result, bias if bias.dtype == result.dtype else g.cast(bias, dtype=result.dtype))
        return result if op.result.dtype == result.dtype else g.cast(result, dtype=op.result.dtype)

    def _scaled(self, total: Value, left: Value, right: Value, axis: int | None, op: Op, g: Builder) -> Value:
        """A sum of products of codes in f32, times both scales."""
        scale = g.cast(right, dtype=f32) if right.dtype != f32 else right
        scale = g.reshape(scale, shape=() if scale.type.elements == 1 else (scale.shape[0], *_spread(op)))
        rows = _beside(left, f32, axis, op, g)
        result: Value = g.cast(total, dtype=f32)
        if _is_normal(left, right):
            result = g.mul(result, g.mul(rows, scale))
            return result
        # The left scale is known only at run time: what makes the sum smaller comes before it, what makes it larger behind it.
        before, behind = _halves(right, scale, g)
        for factor in (*before, rows, *behind):
            result = g.mul(result, factor)
        return result


def _spread(op: Op) -> tuple[int, ...]:
    """The sizes of what follows the channels of a product."""
    return (1,) * (op.result.type.rank - 2) if op.name == "conv" else ()


def _axes(op: Op) -> tuple[Dim | None, frozenset[int], int]:
    """How many products a sum has, the axes of the left factor that it runs along, and the right one's axis of results."""
    left, right = operand(op, 0).type, operand(op, 1).type
    if op.name == "conv":
        return dims.product(right.shape[1:]), frozenset(range(1, left.rank)), 0
    if right.rank != 2:
        return None, frozenset(), 0
    channel = 0 if op.attrs["transpose_b"] else 1
    return right.shape[1 - channel], frozenset({left.rank - 2 if op.attrs["transpose_a"] else left.rank - 1}), channel


def _is_normal(left: Value, right: Value) -> bool:
    """Whether the products of two scales are known to be as precise as f32 is: neither so small nor so large that it has fewer digits."""
    first, second = _constant(left), _constant(right)
    if first is None or second is None or not first.size or not second.size:
        return False
    sizes = [np.abs(scales.astype(np.float64)) for scales in (first, second)]
    least, most = (float(np.prod([end(scales[scales > 0], initial=1.0) for scales in sizes])) for end in (np.min, np.max))
    return float(np.finfo(np.float32).tiny) <= least and most <= float(np.finfo(np.float32).max)


def _halves(scales: Value, shaped: Value, g: Builder) -> tuple[list[Value], list[Value]]:
    """Scales as what makes smaller and what makes larger: all of them one of the two, or each a part that is 1 elsewhere."""
    held = _constant(scales)
    large = np.zeros(0, np.bool_) if held is None else np.abs(held.astype(np.float64)) > 1
    if held is None or not large.any():
        return [shaped], []
    if large.all():
        return [], [shaped]
    one = np.float32(1)
    parts = (np.where(large, one, held.astype(np.float32)), np.where(large, held.astype(np.float32), one))
    below, above = (g.reshape(g.module.add_constant(f"{scales.name}.part", part, scales.source), shape=shaped.shape) for part in parts)
    return [below], [above]


def _name(code: Value) -> str:
    return f"{code.name}.codes"


def _with_sign(left: _Codes, dtype: DType, g: Builder) -> _Codes:
    """The same numbers as codes of the other sign, with a zero point that is as much higher or lower."""
    shift = 128 if dtype == u8 else -128
    zero = _shifted(left.zero, shift, left.code, g)
    made = producer(left.code, "quantize")
    if made is None:
        return replace(left, code=_narrow(_shifted(left.code, shift, left.code, g), dtype, g), zero=zero)
    old = made.operands[2] if len(made.operands) > 2 else None
    operands = [operand(made, 0), operand(made, 1), _narrow(_shifted(old, shift, left.code, g), dtype, g)]
    return replace(left, code=g.build(made.definition, operands, {**made.attrs, "dtype": dtype})[0], zero=zero)


def _shifted(value: Value | None, shift: int, like: Value, g: Builder) -> Value:
    """An integer, 0 for None, plus a number, in 32 bits."""
    number = 0 if value is None else uniform(value) if value.type.elements == 1 else None
    if number is not None:
        return g.module.add_constant(f"{like.name}.zero", np.asarray(int(number) + shift, np.int32), like.source)
    wide = value if value is not None and value.dtype == i32 else g.cast(value, dtype=i32)
    result: Value = g.add(wide, shift)
    return result


def _narrow(value: Value, dtype: DType, g: Builder) -> Value:
    result: Value = g.cast(value, dtype=dtype)
    return result


def _beside(parameter: Value, dtype: DType, axis: int | None, op: Op, g: Builder) -> Value:
    """A parameter of the left factor where it multiplies the product: one number, or one for each row."""
    value: Value = parameter if parameter.dtype == dtype else g.cast(parameter, dtype=dtype)
    if axis is None or value.type.elements == 1:
        shape: tuple[Dim, ...] = ()
    else:
        rank = operand(op, 0).type.rank
        shape = tuple(parameter.shape[0] if n == min(axis, rank - 2) else 1 for n in range(rank))
    result: Value = value if value.shape == shape else g.reshape(value, shape=shape)
    return result


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
