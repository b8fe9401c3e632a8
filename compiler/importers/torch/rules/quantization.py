"""Rules for `quantized_decomposed`, in which torch's and torchao's quantizers (PT2E) write graphs: codes, scales and zero points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .....ir import dims
from .....ir.graph import Value
from .....ir.ops.quantization import limits
from .....ir.types import DType, f32
from ..context import QUANTIZED, Node, Rule, aten
from ..tensors import dtype_of


def _rule(name: str) -> Callable[[Rule], Rule]:
    return aten(f"{QUANTIZED}.{name}")


@_rule("quantize_per_tensor")
def _quantize_per_tensor(n: Node, x: Value, scale: Any, zero: Any, least: int, most: int, dtype: Any) -> Value:
    return _quantized(n, x, scale, zero, least, most, dtype)


@_rule("dequantize_per_tensor")
def _dequantize_per_tensor(n: Node, x: Value, scale: Any, zero: Any, least: int, most: int, dtype: Any, *, out_dtype: Any = None) -> Value:
    return _dequantized(n, x, scale, zero, out_dtype)


@_rule("quantize_per_channel")
def _quantize_per_channel(n: Node, x: Value, scales: Value, zeros: Value, axis: int, least: int, most: int, dtype: Any) -> Value:
    return _quantized(n, x, scales, zeros, least, most, dtype, axis=axis % x.type.rank)


@_rule("dequantize_per_channel")
def _dequantize_per_channel(
    n: Node, x: Value, scales: Value, zeros: Value | None, axis: int, least: int, most: int, dtype: Any, *, out_dtype: Any = None
) -> Value:
    return _dequantized(n, x, scales, zeros, out_dtype, axis=axis % x.type.rank)


@_rule("dequantize_per_channel_group")
def _dequantize_per_channel_group(
    n: Node, x: Value, scales: Value, zeros: Value | None, least: int, most: int, dtype: Any, group: int, out_dtype: Any = None
) -> Value:
    return _dequantized(n, x, scales, zeros, out_dtype, axis=x.type.rank - 1, block=int(group))


@_rule("quantize_per_token")
def _quantize_per_token(n: Node, x: Value, scales: Value, zeros: Value, least: int, most: int, dtype: Any) -> Value:
    rows, scales, zeros = _by_rows(n, x, scales, zeros)
    return n.reshape(_quantized(n, rows, scales, zeros, least, most, dtype, axis=0), x.shape)


@_rule("dequantize_per_token")
def _dequantize_per_token(n: Node, x: Value, scales: Value, zeros: Value, least: int, most: int, dtype: Any, out_dtype: Any) -> Value:
    rows, scales, zeros = _by_rows(n, x, scales, zeros)
    return n.reshape(_dequantized(n, rows, scales, zeros, out_dtype, axis=0), x.shape)


@_rule("choose_qparams.tensor")
def _choose(n: Node, x: Value, least: int, most: int, epsilon: float, dtype: Any) -> tuple[Value, Value]:
    """The scale and zero point that the range of x asks for, 0 inside of it: f64 and i64, as torch has them."""
    axes, wide = tuple(range(x.type.rank)), n.cast(x, f32)
    low = n.b.minimum(n.b.reduce_min(wide, axes=axes, keepdims=False), 0.0)
    high = n.b.maximum(n.b.reduce_max(wide, axes=axes, keepdims=False), 0.0)
    scale = n.b.maximum(n.b.div(n.b.sub(high, low), float(most - least)), float(epsilon))
    zero = n.b.sub(float(least), n.b.round(n.b.div(low, scale)))
    zero = n.b.clip(zero, n.value(least, f32), n.value(most, f32))
    return n.as_result(0, scale), n.as_result(1, zero)


@_rule("choose_qparams_per_token")
def _choose_per_token(n: Node, x: Value, dtype: Any) -> tuple[Value, Value]:
    """The scale that the largest magnitude of each row asks for, and zeros."""
    size = n.b.reduce_max(n.b.abs(n.cast(x, f32)), axes=(x.type.rank - 1,), keepdims=True)
    scale = n.b.div(n.b.maximum(size, 1e-5), float(limits(dtype_of(dtype))[1]))
    return n.as_result(0, scale), n.as_result(1, n.b.mul(scale, 0.0))


def _by_rows(n: Node, x: Value, *parameters: Value) -> list[Value]:
    """x as rows, and what there is one of for each of them."""
    count = dims.product(x.shape[:-1])
    return [n.reshape(x, (count, x.shape[-1])), *(n.reshape(each, (count,)) for each in parameters)]


def _quantized(n: Node, x: Value, scale: Any, zero: Any, least: Any, most: Any, dtype: Any, axis: int | None = None) -> Value:
    """Codes in a dtype, and of these the ones between `least` and `most`."""
    kind = dtype_of(dtype)
    if kind.bits > 16:
        raise n.fail(f"codes in {kind}, expected at most 16 bits")
    if isinstance(least, Value) or isinstance(most, Value):
        raise n.fail("the least and the greatest code are known only at run time")
    codes: Value = n.b.quantize(n.cast(x, f32), _parameter(n, scale, f32, axis), _parameter(n, zero, kind, axis), axis=axis, dtype=kind)
    if (least, most) != limits(kind):
        codes = n.b.minimum(n.b.maximum(codes, n.value(least, kind)), n.value(most, kind))
    return codes


def _dequantized(n: Node, x: Value, scale: Any, zero: Any, dtype: Any, axis: int | None = None, block: int = 0) -> Value:
    kind = f32 if dtype is None else dtype_of(dtype)
    moved = None if zero is None else _parameter(n, zero, x.dtype, axis)
    result: Value = n.b.dequantize(x, _parameter(n, scale, f32, axis), moved, axis=axis, block=block, dtype=kind)
    return result


def _parameter(n: Node, parameter: Any, dtype: DType, axis: int | None) -> Value:
    """A scale or zero point: one number, or one for each index along an axis."""
    value = n.value(parameter, dtype)
    return n.reshape(value, ()) if axis is None else value
