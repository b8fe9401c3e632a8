"""Rules of quantized values: QuantizeLinear, DequantizeLinear, dynamic quantization, quantized convolutions."""

from __future__ import annotations

from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.types import DType, f32, u8
from ..context import Node, cast, rule
from ..tensors import element_type

CONTAINERS = ("u8", "i8", "u16", "i16", "u4", "i4", "u2", "i2", "i32", "f8e4m3", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f4e2m1")


def _axis(n: Node, x: Value, scale: Value, block: int) -> int | None:
    """The quantized axis; None for one scale."""
    if scale.type.rank == 0 or (scale.shape == (1,) and x.type.rank != 1 and not block):
        return None
    return n.axis(n.attr_int("axis", 1), x.type.rank)


def _parameters(n: Node, scale: Value, zero: Value | None, axis: int | None) -> tuple[Value, Value | None]:
    """Scale and zero point as scalars where there is one of each."""
    if axis is not None or not scale.type.rank:
        return scale, zero
    return n.b.reshape(scale, shape=()), None if zero is None else n.b.reshape(zero, shape=())


def quantized(n: Node, x: Value, scale: Value, zero: Value | None, axis: int | None, block: int = 0, dtype: DType | None = None) -> Value:
    """x / scale, rounded and saturated, around the zero point."""
    dtype = dtype or (zero.dtype if zero is not None else u8)
    if dtype.name not in CONTAINERS:
        raise UnsupportedError(f"quantizes to {dtype}", hint=f"supported are {', '.join(CONTAINERS)}")
    scale, zero = _parameters(n, scale, zero, axis)
    result: Value = n.b.quantize(x, scale, zero, axis=axis, block=block, dtype=dtype)
    return result


def dequantized(n: Node, x: Value, scale: Value, zero: Value | None, axis: int | None, block: int = 0, dtype: DType | None = None) -> Value:
    """(x - zero point) * scale."""
    scale, zero = _parameters(n, scale, zero, axis)
    result: Value = n.b.dequantize(x, scale, zero, axis=axis, block=block, dtype=dtype or scale.dtype)
    return result


def _number(n: Node, name: str) -> DType | None:
    number = n.attr_int(name)
    return element_type(number, n.source) if number else None


@rule("QuantizeLinear")
def _quantize(n: Node) -> Value:
    x, scale, zero = n.x(0), n.x(1), n.optional(2)
    block = n.attr_int("block_size")
    dtype = zero.dtype if zero is not None else _number(n, "output_dtype") or u8
    if not n.attr_flag("saturate", True) and dtype.is_float:
        raise UnsupportedError("quantizes without saturation", hint="set saturate to 1")
    return quantized(n, x, scale, zero, _axis(n, x, scale, block), block, dtype)


@rule("DequantizeLinear")
def _dequantize(n: Node) -> Value:
    x, scale = n.x(0), n.x(1)
    block = n.attr_int("block_size")
    return dequantized(n, x, scale, n.optional(2), _axis(n, x, scale, block), block, _number(n, "output_dtype"))


@rule("DynamicQuantizeLinear")
def _dynamic(n: Node) -> tuple[Value, Value, Value]:
    x = n.x()
    axes = tuple(range(x.type.rank))
    low = n.b.minimum(n.b.reduce_min(x, axes=axes, keepdims=False), 0.0)
    high = n.b.maximum(n.b.reduce_max(x, axes=axes, keepdims=False), 0.0)
    span = n.b.sub(high, low)
    # Zeros have no span; any scale gives them back, and ONNX Runtime's is 1.
    scale = n.b.where(n.b.eq(span, 0.0), n.b.scalar(1.0, f32), n.b.div(span, 255.0))
    zero = n.b.clip(n.b.round(n.b.div(n.b.neg(low), scale)), n.b.scalar(0.0, f32), n.b.scalar(255.0, f32))
    zero = cast(n, zero, u8)
    return quantized(n, x, scale, zero, None), scale, zero
