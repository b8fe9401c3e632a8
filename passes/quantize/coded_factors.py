"""Factors of products as codes: what they are made of, with the sign that instructions want, and the scales of their sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...ir import dims
from ...ir.codes import FOUR
from ...ir.dims import Dim
from ...ir.formats import format_of
from ...ir.graph import Builder, Op, Value
from ...ir.ops.quantization import limits
from ...ir.types import DType, f32, i8, i32, u8
from ..match import operand, producer, uniform
from ..weights.weights import constant_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Codes:
    """A factor as (code - zero) * scale; `zero` is an i32 that broadcasts against the factor, `scale` None for integers."""

    code: Value
    zero: Value | None
    scale: Value | None
    axis: int | None = None


def read_codes(value: Value | None) -> Codes | None:
    """What a factor is made of, if it is 8-bit codes."""
    dequantized = producer(value, "dequantize")
    if dequantized is not None:
        code, scale = operand(dequantized, 0), operand(dequantized, 1)
        if dequantized.attrs["block"] or code.dtype not in (i8, u8):
            return None
        zero = dequantized.operands[2] if len(dequantized.operands) > 2 else None
        axis = dequantized.attrs["axis"] if any(each is not None and each.type.elements != 1 for each in (scale, zero)) else None
        return Codes(code, zero, scale, None if axis is None else axis % code.type.rank)
    if value is None or value.dtype != i32:
        return None
    moved = producer(value, "sub")
    inner: Value = value if moved is None else operand(moved, 0)
    zero = None if moved is None else operand(moved, 1)
    cast = producer(inner, "cast")
    if cast is None or operand(cast, 0).dtype not in (i8, u8):
        return None
    code = operand(cast, 0)
    if zero is None:
        return Codes(code, None, None)
    along = _varies_along(zero, code.type.rank)
    is_one_axis = value.shape == code.shape and len(along) <= 1 and _are_codes(zero, code.dtype)
    return Codes(code, zero, None, *along) if is_one_axis else None


def _varies_along(zero: Value, rank: int) -> tuple[int, ...]:
    """The axes of a factor of this rank along which integers vary that broadcast against it."""
    return tuple(rank - zero.type.rank + n for n, size in enumerate(zero.shape) if dims.equal(size, 1) is not True)


def _are_codes(zero: Value, dtype: DType) -> bool:
    """Whether integers are some of the codes, as far as they are known."""
    low, high = limits(dtype)
    known = constant_of(zero)
    number = uniform(zero) if known is None else None
    if known is not None and known.size:
        return low <= int(known.min()) and int(known.max()) <= high
    return number is None or low <= number <= high


def numbers_of(code: Value) -> Array | None:
    """The integers of a constant factor, those of a 2:4 sparse one with the zeros between them."""
    sparse = producer(code, "decode")
    if sparse is None:
        return constant_of(code)
    format = format_of(sparse.attrs["format"])
    fields = zip(format.fields, map(constant_of, sparse.operands), strict=True)
    held = {field.name: array for field, array in fields if array is not None}
    return format.decoded(held, sparse.attrs["axis"]) if len(held) == len(format.fields) else None


def lies_apart(op: Op) -> bool:
    """Whether the channels of a group are not made of fours, and cannot be padded to them: no instruction takes them four at once."""
    return op.name == "conv" and op.attrs["groups"] != 1 and dims.divides(FOUR, operand(op, 1).shape[1]) is not True


def scaled(total: Value, left: Value, right: Value, axis: int | None, op: Op, g: Builder) -> Value:
    """A sum of products of codes in f32, times both scales."""
    scale = g.cast(right, dtype=f32) if right.dtype != f32 else right
    scale = g.reshape(scale, shape=() if scale.type.elements == 1 else (scale.shape[0], *spread(op)))
    rows = beside(left, f32, axis, op, g)
    result: Value = g.cast(total, dtype=f32)
    if _is_normal(left, right):
        result = g.mul(result, g.mul(rows, scale))
        return result
    # The left scale is known only at run time: what makes the sum smaller comes before it, what makes it larger behind it.
    before, behind = _halves(right, scale, g)
    for factor in (*before, rows, *behind):
        result = g.mul(result, factor)
    return result


def spread(op: Op) -> tuple[int, ...]:
    """The sizes of what follows the channels of a product."""
    return (1,) * (op.result.type.rank - 2) if op.name == "conv" else ()


def _is_normal(left: Value, right: Value) -> bool:
    """Whether the products of two scales are known to be as precise as f32 is: neither so small nor so large that it has fewer digits."""
    first, second = constant_of(left), constant_of(right)
    if first is None or second is None or not first.size or not second.size:
        return False
    sizes = [np.abs(scales.astype(np.float64)) for scales in (first, second)]
    least, most = (float(np.prod([end(scales[scales > 0], initial=1.0) for scales in sizes])) for end in (np.min, np.max))
    return float(np.finfo(np.float32).tiny) <= least and most <= float(np.finfo(np.float32).max)


def _halves(scales: Value, shaped: Value, g: Builder) -> tuple[list[Value], list[Value]]:
    """Scales as what makes smaller and what makes larger: all of them one of the two, or each a part that is 1 elsewhere."""
    held = constant_of(scales)
    large = np.zeros(0, np.bool_) if held is None else np.abs(held.astype(np.float64)) > 1
    if held is None or not large.any():
        return [shaped], []
    if large.all():
        return [], [shaped]
    one = np.float32(1)
    parts = (np.where(large, one, held.astype(np.float32)), np.where(large, held.astype(np.float32), one))
    below, above = (g.reshape(g.module.add_constant(f"{scales.name}.part", part, scales.source), shape=shaped.shape) for part in parts)
    return [below], [above]


def with_sign(left: Codes, dtype: DType, g: Builder) -> Codes:
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


def beside(parameter: Value, dtype: DType, axis: int | None, op: Op, g: Builder) -> Value:
    """A parameter of the left factor where it multiplies the product: one number, or one for each row."""
    value: Value = parameter if parameter.dtype == dtype else g.cast(parameter, dtype=dtype)
    if axis is None or value.type.elements == 1:
        shape: tuple[Dim, ...] = ()
    else:
        rank = operand(op, 0).type.rank
        size = next(size for size in parameter.shape if dims.equal(size, 1) is not True)
        shape = tuple(size if n == min(axis, rank - 2) else 1 for n in range(rank))
    result: Value = value if value.shape == shape else g.reshape(value, shape=shape)
    return result
