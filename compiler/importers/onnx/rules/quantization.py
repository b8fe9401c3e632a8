"""How scales and zero points are read, for every op that has some; QuantizeLinear, DequantizeLinear, dynamic quantization."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.types import DType, f32, u8
from ..context import Node, cast, rule
from ..tensors import element_type

CONTAINERS = ("u8", "i8", "u16", "i16", "u4", "i4", "u2", "i2", "i32", "f8e4m3", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f4e2m1")
MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Parameters:
    """The scale and zero point of one tensor: scalars, or one for each index (or block of `block`) along `axis`."""

    scale: Value
    zero: Value | None
    axis: int | None = None
    block: int = 0


def is_single(parameter: Value) -> bool:
    """Whether there is one of it, however it is shaped: exporters write [], [1] and [1, 1]."""
    return parameter.type.elements == 1


def scalar(n: Node, value: Value) -> Value:
    """A value of one element, without its axes."""
    result: Value = value if not value.type.rank else n.b.reshape(value, shape=())
    return result


def parameters(n: Node, x: Value, scale: Value, zero: Value | None, axis: int, block: int = 0) -> Parameters:
    """One scale for the tensor, one along `axis`, or one for each block along it; the zero point may be one all the same."""
    if block:
        return Parameters(scale, zero, n.axis(axis, x.type.rank), block)
    if zero is not None and is_single(zero):
        zero = scalar(n, zero)
    if is_single(scale):
        if zero is not None and zero.type.rank:
            raise n.fail(f"got scale {scale.type} and zero point {zero.type}, expected one zero point")
        return Parameters(scalar(n, scale), zero)
    if scale.type.rank != 1:
        raise n.fail(f"got scale {scale.type}, expected one scale or a vector of them (or a block_size)")
    return Parameters(scale, zero, n.axis(axis, x.type.rank))


def quantized(n: Node, x: Value, by: Parameters, dtype: DType, saturate: bool = True) -> Value:
    """x / scale, rounded and saturated (which floats may be spared), around the zero point."""
    if dtype.name not in CONTAINERS:
        raise UnsupportedError(f"quantizes to {dtype}", hint=f"supported are {', '.join(CONTAINERS)}")
    known = None if by.zero is None or not dtype.is_float else n.b.array_of(by.zero)
    # A float's zero point only names the type: added, it would turn -0 into 0.
    zero = None if known is not None and not known.astype(np.float32).any() else by.zero
    result: Value = n.b.quantize(x, by.scale, zero, axis=by.axis, block=by.block, dtype=dtype, saturate=saturate)
    return result


def dequantized(n: Node, x: Value, by: Parameters, dtype: DType | None = None) -> Value:
    """(x - zero point) * scale."""
    result: Value = n.b.dequantize(x, by.scale, by.zero, axis=by.axis, block=by.block, dtype=dtype or by.scale.dtype)
    return result


def read(n: Node, position: int, axis: int = 0) -> Value:
    """The float tensor that three operands stand for: codes, scale, zero point."""
    x = n.x(position)
    return dequantized(n, x, parameters(n, x, n.x(position + 1), n.optional(position + 2), axis))


def written(n: Node, y: Value, position: int, like: DType) -> Value:
    """The codes of a float tensor by the scale and zero point at `position`; without a zero point they are of dtype `like`."""
    zero = n.optional(position + 1)
    return quantized(n, cast(n, y, f32), parameters(n, y, n.x(position), zero, 0), like if zero is None else zero.dtype)


def _number(n: Node, name: str) -> DType | None:
    number = n.attr_int(name)
    return element_type(number, n.source) if number else None


def _quantize(n: Node) -> Value:
    x, scale, zero = n.x(0), n.x(1), n.optional(2)
    dtype = zero.dtype if zero is not None else _number(n, "output_dtype") or u8
    saturate = n.attr_flag("saturate", True) or not dtype.is_float or dtype.bits < 8
    by = parameters(n, x, scale, zero, n.attr_int("axis", 1), n.attr_int("block_size"))
    # The division happens in the precision of the scale unless the node says otherwise.
    precision = _number(n, "precision") or (scale.dtype if x.dtype.is_float and scale.dtype.bits > x.dtype.bits else x.dtype)
    return quantized(n, cast(n, x, precision), by, dtype, saturate)


def _dequantize(n: Node) -> Value:
    x, scale = n.x(0), n.x(1)
    by = parameters(n, x, scale, n.optional(2), n.attr_int("axis", 1), n.attr_int("block_size"))
    return dequantized(n, x, by, _number(n, "output_dtype"))


for _domain in ("", MICROSOFT):
    rule("QuantizeLinear", domain=_domain)(_quantize)
    rule("DequantizeLinear", domain=_domain)(_dequantize)


@rule("DynamicQuantizeLinear")
def _dynamic(n: Node) -> tuple[Value, Value, Value]:
    return quantized_dynamically(n, n.x())


def quantized_dynamically(n: Node, x: Value) -> tuple[Value, Value, Value]:
    """The codes of x in 0..255, with the scale and zero point that its own range asks for."""
    axes = tuple(range(x.type.rank))
    low = n.b.minimum(n.b.reduce_min(x, axes=axes, keepdims=False), 0.0)
    high = n.b.maximum(n.b.reduce_max(x, axes=axes, keepdims=False), 0.0)
    span = n.b.sub(high, low)
    # Without a range (zeros only, or nothing at all) any scale will do; ONNX Runtime's is 1.
    scale = n.b.where(n.b.eq(span, 0.0), n.b.scalar(1.0, x.dtype), n.b.div(span, 255.0))
    zero = n.b.clip(n.b.round(n.b.div(n.b.neg(low), scale)), n.b.scalar(0.0, f32), n.b.scalar(255.0, f32))
    zero = cast(n, zero, u8)
    return quantized(n, x, Parameters(scale, zero), u8), scale, zero
