"""Rules for matrix products and convolutions."""

from __future__ import annotations

from typing import Any

from .....ir.graph import Value
from ..context import Node, aten


def product(n: Node, a: Value, b: Value) -> Value:
    """a @ b in the result's dtype."""
    result = n.b.matmul(n.cast(a, n.dtype), n.cast(b, n.dtype))
    return n.cast(result, n.dtype)


@aten("mm", "bmm", "matmul")
def _mm(n: Node, a: Value, b: Value, *_: Any) -> Value:
    left = a if a.type.rank > 1 else n.reshape(a, (1, *a.shape))
    right = b if b.type.rank > 1 else n.reshape(b, (*b.shape, 1))
    return n.reshape(product(n, left, right), n.shape)


@aten("addmm", "baddbmm")
def _addmm(n: Node, bias: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    result = product(n, a, b)
    if alpha != 1:
        result = n.b.mul(result, n.value(alpha, n.dtype))
    if beta == 0:
        return result
    added = n.cast(bias, n.dtype)
    if beta != 1:
        added = n.b.mul(added, n.value(beta, n.dtype))
    total: Value = n.b.add(result, added)
    return total


@aten("linear")
def _linear(n: Node, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if weight.type.rank != 2 or not x.type.rank:
        raise n.fail("the weight is not a matrix")
    rows = x if x.type.rank > 1 else n.reshape(x, (1, *x.shape))
    result = n.reshape(n.b.matmul(rows, weight, transpose_b=True), n.shape)
    return result if bias is None else n.b.add(result, bias)


@aten("mv")
def _mv(n: Node, a: Value, b: Value) -> Value:
    return n.reshape(product(n, a, n.reshape(b, (*b.shape, 1))), n.shape)


@aten("dot")
def _dot(n: Node, a: Value, b: Value) -> Value:
    return n.reshape(product(n, n.reshape(a, (1, *a.shape)), n.reshape(b, (*b.shape, 1))), ())


@aten("convolution")
def _convolution(
    n: Node,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: tuple[int, ...],
    padding: tuple[Any, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[Any, ...],
    groups: int,
) -> Value:
    rank = weight.type.rank - 2
    if x.type.rank != weight.type.rank:
        raise n.fail(f"got {x.type} and {weight.type}, expected one rank")
    strides, amounts, dilations, extra = (_each(values, rank) for values in (stride, padding, dilation, output_padding))
    attrs = {"strides": strides, "dilations": dilations, "before": amounts, "after": amounts, "groups": groups}
    if transposed:
        result: Value = n.b.conv_transpose(x, weight, bias, output_padding=extra, **attrs)
        return result
    result = n.b.conv(x, weight, bias, **attrs)
    return result


def _each(values: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    return tuple(values) * rank if len(values) == 1 else tuple(values)
