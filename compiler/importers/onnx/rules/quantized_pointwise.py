"""Rules of quantized ops that are no products: their codes are read as floats, computed with, and written back."""

from __future__ import annotations

from collections.abc import Callable

from .....ir.graph import Value
from ..context import Node, rule
from .movement import transpose
from .quantization import MICROSOFT, read, written
from .reduction import softmax
from .window import average_pool


def _binary(name: str) -> Callable[[Node], Value]:
    def apply(n: Node) -> Value:
        return written(n, getattr(n.b, name)(read(n, 0), read(n, 3)), 6, n.x(0).dtype)

    return apply


def _unary(compute: Callable[[Node, Value], Value]) -> Callable[[Node], Value]:
    def apply(n: Node) -> Value:
        return written(n, compute(n, read(n, 0)), 3, n.x(0).dtype)

    return apply


def _last_channels(compute: Callable[[Node, Value], Value]) -> Callable[[Node, Value], Value]:
    """The same on [batch, spatial ..., channels], where the node says so."""

    def apply(n: Node, x: Value) -> Value:
        return channels_last(n, x, lambda moved: compute(n, moved)) if n.attr_flag("channels_last") else compute(n, x)

    return apply


def channels_last(n: Node, x: Value, compute: Callable[[Value], Value]) -> Value:
    """What `compute` makes of [batch, channels, spatial ...], for x and a result whose channels stand last."""
    rank = x.type.rank
    y = compute(transpose(n, x, (0, rank - 1, *range(1, rank - 1))))
    return transpose(n, y, (0, *range(2, rank), 1))


def _average(n: Node, x: Value) -> Value:
    return average_pool(n, x, n.attr_flag("count_include_pad"))


def _global_average(n: Node, x: Value) -> Value:
    if x.type.rank < 3:
        raise n.fail(f"input has rank {x.type.rank}, expected at least 3")
    result: Value = n.b.mean(x, axes=tuple(range(2, x.type.rank)), keepdims=True)
    return result


def _mean(n: Node, x: Value) -> Value:
    axes = n.axes(n.attr_ints("axes") or tuple(range(x.type.rank)), x.type.rank)
    result: Value = n.b.mean(x, axes=axes, keepdims=n.attr_flag("keepdims", True))
    return result


def _softmax(n: Node, x: Value) -> Value:
    if not n.has("opset"):
        raise n.fail("attribute 'opset' is missing")
    return softmax(n, x, "softmax", n.attr_int("opset"))


rule("QLinearAdd", domain=MICROSOFT)(_binary("add"))
rule("QLinearMul", domain=MICROSOFT)(_binary("mul"))
rule("QLinearSigmoid", domain=MICROSOFT)(_unary(lambda n, x: n.b.sigmoid(x)))
rule("QLinearLeakyRelu", domain=MICROSOFT)(_unary(lambda n, x: n.b.leaky_relu(x, alpha=n.attr_float("alpha", 0.01))))
rule("QLinearAveragePool", domain=MICROSOFT)(_unary(_last_channels(_average)))
rule("QLinearGlobalAveragePool", domain=MICROSOFT)(_unary(_last_channels(_global_average)))
rule("QLinearReduceMean", domain=MICROSOFT)(_unary(_mean))
rule("QLinearSoftmax", domain=MICROSOFT)(_unary(_softmax))


@rule("QLinearConcat", domain=MICROSOFT)
def _concat(n: Node) -> Value:
    if len(n.inputs) < 5 or len(n.inputs) % 3 != 2:
        raise n.fail(f"got {len(n.inputs)} inputs, expected a scale, a zero point and three for each tensor")
    parts = [read(n, position) for position in range(2, len(n.inputs), 3)]
    axis = n.axis(n.attr_int("axis", 1), parts[0].type.rank)
    return written(n, n.b.concat(*parts, axis=axis) if len(parts) > 1 else parts[0], 0, n.x(2).dtype)


@rule("QLinearWhere", domain=MICROSOFT)
def _where(n: Node) -> Value:
    return written(n, n.b.where(n.x(0), read(n, 1), read(n, 4)), 7, n.x(1).dtype)
