"""Rules of products of quantized numbers: exact sums of integers, scaled once at their end."""

from __future__ import annotations

from typing import Any

import numpy as np

from .....ir.errors import UnsupportedError
from .....ir.formats import format_of
from .....ir.formats.affine import WHOLE_RUN, offset_name, pack_codes
from .....ir.graph import Value
from .....ir.types import DTYPES, DType, f32, from_numpy, i32
from ..context import Node, cast, rule
from .contraction import product
from .pointwise import constant
from .quantization import MICROSOFT, Parameters, dequantized, is_single, quantized, quantized_dynamically, scalar
from .shape import unsqueeze
from .window import convolve

Codes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
INT8_LEVEL = 4
"""The `accuracy_level` of nodes that allow a factor of floats to be rounded to int8."""


def along(n: Node, parameter: Value, trailing: int) -> Value:
    """A parameter that broadcasts against a tensor: a scalar, or its vector with `trailing` axes of size 1 behind it."""
    if is_single(parameter):
        return scalar(n, parameter)
    if parameter.type.rank != 1:
        return parameter
    result: Value = parameter if not trailing else unsqueeze(n, parameter, tuple(range(1, trailing + 1)))
    return result


def shifted(n: Node, x: Value, zero: Value | None, trailing: int) -> Value:
    """x - zero point as 32-bit integers."""
    wide = cast(n, x, i32)
    if zero is None:
        return wide
    result: Value = n.b.sub(wide, along(n, cast(n, zero, i32), trailing))
    return result


def factor(n: Node, *scales: Value) -> Value:
    """The product of scales in f32."""
    result = cast(n, scales[0], f32)
    for scale in scales[1:]:
        result = n.b.mul(result, cast(n, scale, f32))
    return result


def requantized(n: Node, total: Value, by: Value, position: int, like: DType) -> Value:
    """An exact sum times its scales, divided by the result's scale (at `position`, the zero point behind it)."""
    zero = n.optional(position + 1)
    by = n.b.div(by, scalar(n, cast(n, n.x(position), f32)))
    parameters = Parameters(n.b.scalar(1.0, f32), None if zero is None else scalar(n, zero))
    return quantized(n, n.b.mul(cast(n, total, f32), by), parameters, like if zero is None else zero.dtype)


# --- matrices ---------------------------------------------------------------------------------------------------------


@rule("MatMulInteger")
def _matmul_integer(n: Node) -> Value:
    return integer_product(n, (n.x(0), n.optional(2)), (n.x(1), n.optional(3)))


def integer_product(n: Node, left: tuple[Value, Value | None], right: tuple[Value, Value | None]) -> Value:
    """The product of (codes, zero point) by row and (codes, zero point) by column, in 32-bit integers."""
    a = shifted(n, *left, trailing=1 if left[0].type.rank > 1 else 0)
    return cast(n, product(n, a, shifted(n, *right, trailing=0)), i32)


@rule("QLinearMatMul")
def _quantized_matmul(n: Node) -> Value:
    a, b = n.x(0), n.x(3)
    total = integer_product(n, (a, n.optional(2)), (b, n.optional(5)))
    rows = along(n, n.x(1), 1 if a.type.rank > 1 and b.type.rank > 1 else 0)
    return requantized(n, total, factor(n, rows, along(n, n.x(4), 0)), 6, a.dtype)


@rule("QGemm", domain=MICROSOFT)
def _quantized_gemm(n: Node) -> Value:
    a, b = n.x(0), n.x(3)
    if a.type.rank != 2 or b.type.rank != 2:
        raise n.fail(f"operands are {a.type} and {b.type}, expected matrices")
    transposed = n.attr_flag("transA"), n.attr_flag("transB")
    # A vector of zero points belongs to the rows of the left and the columns of the right operand, as they are multiplied.
    left, right = shifted(n, a, n.optional(2), int(not transposed[0])), shifted(n, b, n.optional(5), int(transposed[1]))
    total = cast(n, n.b.matmul(left, right, transpose_a=transposed[0], transpose_b=transposed[1]), i32)
    if n.given(6):
        total = n.b.add(total, cast(n, n.x(6), i32))
    by = factor(n, along(n, n.x(1), 1), along(n, n.x(4), 0))
    alpha = n.attr_float("alpha", 1.0)
    by = by if alpha == 1.0 else n.b.mul(by, alpha)
    if n.given(7):
        return requantized(n, total, by, 7, a.dtype)
    result: Value = n.b.mul(cast(n, total, f32), by)
    return result


@rule("MatMulIntegerToFloat", domain=MICROSOFT)
def _matmul_integer_to_float(n: Node) -> Value:
    total = integer_product(n, (n.x(0), n.optional(4)), (n.x(1), n.optional(5)))
    return scaled(n, total, factor(n, along(n, n.x(2), 1), along(n, n.x(3), 0)), n.optional(6), n.x(2).dtype)


def scaled(n: Node, total: Value, by: Value, bias: Value | None, dtype: DType) -> Value:
    """An exact sum as a float."""
    result = cast(n, n.b.mul(cast(n, total, f32), by), dtype)
    return result if bias is None else n.b.add(result, bias)


@rule("DynamicQuantizeMatMul", domain=MICROSOFT)
def _dynamic_matmul(n: Node) -> Value:
    return dynamic_product(n, n.x(0), n.x(1), n.x(2), n.optional(3), n.optional(4))


def dynamic_product(n: Node, a: Value, b: Value, scale: Value, zero: Value | None, bias: Value | None = None) -> Value:
    """A float matrix, quantized by its own range, times a quantized one."""
    codes, a_scale, a_zero = quantized_dynamically(n, a)
    total = integer_product(n, (codes, a_zero), (b, zero))
    return scaled(n, total, factor(n, a_scale, along(n, scale, 0)), bias, a.dtype)


# --- weights of few bits ----------------------------------------------------------------------------------------------


@rule("MatMulNBits", domain=MICROSOFT)
def _matmul_bits(n: Node) -> Value:
    """x times the transpose of a weight [N, K] of `bits` bits, packed low bits first, one scale for each block along K.

    x stays as it is, whatever the least accuracy is that the node allows.
    """
    x, rows, depth = n.x(0), n.attr_int("N"), n.attr_int("K")
    bits, block = n.attr_int("bits", 4), n.attr_int("block_size")
    if n.given(4):
        raise UnsupportedError("reorders the weight (g_idx)", hint="quantize without act_order")
    if n.attr_int("weight_prepacked"):
        raise UnsupportedError(
            f"attribute 'weight_prepacked' is {n.attr_int('weight_prepacked')}", hint="keep the weight as it was quantized"
        )
    if bits not in (2, 4, 8) or block < 1 or rows < 1 or depth < 1:
        raise n.fail(f"got {bits} bits, blocks of {block}, N = {rows}, K = {depth}, expected 2, 4 or 8 bits and positive sizes")
    blocks = -(-depth // block)
    _expect(n, 1, "the weight has", rows * blocks * -(-block * bits // 8))
    _expect(n, 2, "the scales have", rows * blocks)
    if n.given(3):
        whole = n.x(3).dtype.is_float
        _expect(n, 3, "the zero points have", rows * (blocks if whole else -(-blocks * bits // 8)))
    codes = unpacked(n, n.array(1, "the weight"), bits, rows)[:, :depth]
    value: Value
    if n.given(3) and n.x(3).dtype.is_float:
        value = _with_offsets(n, codes, n.array(3, "the zero points").reshape(rows, blocks), bits, block)
    else:
        packed = unpacked(n, n.array(3, "the zero points"), bits, rows)[:, :blocks] if n.given(3) else None
        zero = np.full((rows, blocks), 1 << (bits - 1), np.uint8) if packed is None else packed
        dtype, scale = DTYPES[f"u{bits}"].numpy, n.b.reshape(n.x(2), shape=(rows, blocks))
        by = Parameters(scale, constant(n, zero.astype(dtype)), 1, block)
        value = dequantized(n, constant(n, codes.astype(dtype)), by)
    if n.attr_int("accuracy_level") == INT8_LEVEL:
        n.b.module.allowed["a8"] += 1
    result: Value = n.b.matmul(x, cast(n, value, x.dtype), transpose_b=True)
    return result if not n.given(5) else n.b.add(result, n.x(5))


def _with_offsets(n: Node, codes: Codes, zeros: np.ndarray[Any, Any], bits: int, block: int) -> Value:
    """(code - zero) * scale where zero points are floats: each block's offset is -zero * scale."""
    depth, scales = codes.shape[1], n.array(2, "the scales").reshape(zeros.shape)
    offsets = -zeros.astype(np.float32) * scales.astype(np.float32)
    if depth % block or block % 8:
        # No whole groups of bytes: the numbers themselves.
        wide = [each.astype(np.float32).repeat(block, axis=1)[:, :depth] for each in (scales, offsets)]
        return constant(n, (codes * wide[0] + wide[1]).astype(scales.dtype))
    format = format_of(offset_name(bits, block, from_numpy(scales.dtype)))
    fields = {**pack_codes(codes, bits, format.fields[0].per or WHOLE_RUN), "scale": scales, "offset": offsets}
    held = [constant(n, np.ascontiguousarray(fields[field.name])) for field in format.fields]
    result: Value = n.b.decode(*held, format=format.name, axis=1, dtype=from_numpy(scales.dtype))
    return result


def _expect(n: Node, position: int, what: str, count: int) -> None:
    """Refuse an operand that does not have as many elements as the attributes say."""
    elements = n.x(position).type.elements
    if elements != count:
        raise n.fail(f"{what} {elements} elements, expected {count}")


def unpacked(n: Node, data: Codes, bits: int, rows: int) -> Codes:
    """Bytes as rows of numbers of `bits` bits, the first in the lowest bits."""
    if data.dtype != np.uint8 or data.size % rows:
        raise n.fail(f"got {data.dtype}{list(data.shape)}, expected bytes for {rows} rows")
    fields = data.reshape(rows, -1, 1) >> np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(fields & np.uint8((1 << bits) - 1)).reshape(rows, -1)


# --- convolutions -----------------------------------------------------------------------------------------------------


@rule("ConvInteger")
def _conv_integer(n: Node) -> Value:
    x, w = n.x(0), n.x(1)
    return cast(n, convolve(n, shifted(n, x, n.optional(2), 0), shifted(n, w, n.optional(3), w.type.rank - 1), None), i32)


@rule("QLinearConv")
def _quantized_conv(n: Node) -> Value:
    return convolve_codes(n, n.x(0))


def convolve_codes(n: Node, x: Value) -> Value:
    """QLinearConv of these codes, channels first, with this node's other operands."""
    w = n.x(3)
    wide = shifted(n, x, n.optional(2), 0), shifted(n, w, n.optional(5), w.type.rank - 1)
    total = cast(n, convolve(n, *wide, n.optional(8)), i32)
    return requantized(n, total, factor(n, scalar(n, n.x(1)), along(n, n.x(4), w.type.rank - 2)), 6, x.dtype)
