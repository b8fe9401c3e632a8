"""Rules of reductions, scans and softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .....ir import dims
from .....ir.graph import Value
from .....ir.types import boolean, f64
from ...moves import with_place
from ..context import Node, Rule, cast, rule

# The opset since which a reduction's axes are an operand.
_AXES_OPERAND = {"ReduceSum": 13}


def _axes(n: Node) -> tuple[int, ...] | None:
    """The axes to reduce; None where the node asks for none at all."""
    rank = n.rank()
    if n.opset < _AXES_OPERAND.get(n.op_type, 18):
        axes = n.attr_ints("axes")
    else:
        axes = n.integers(1, "the axes") if n.given(1) else None
    if axes is None or not axes:
        if axes is not None and not axes and n.opset < 13:
            return tuple(range(rank))
        return None if n.attr_flag("noop_with_empty_axes") else tuple(range(rank))
    return n.axes(axes, rank)


def _reduction(
    compute: Callable[[Node, Value, tuple[int, ...], bool], Value], identity: Callable[[Node, Value], Value] = lambda n, x: x
) -> Callable[[Node], Value]:
    def apply(n: Node) -> Value:
        axes = _axes(n)
        # Without axes the op still maps its elements (ReduceSumSquare squares them).
        return identity(n, n.x()) if axes is None else compute(n, n.x(), axes, n.attr_flag("keepdims", True))

    return apply


def _named(name: str) -> Callable[[Node, Value, tuple[int, ...], bool], Value]:
    def compute(n: Node, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
        result: Value = getattr(n.b, name)(x, axes=axes, keepdims=keepdims)
        return result

    return compute


def _extreme(name: str, on_bool: str) -> Callable[[Node, Value, tuple[int, ...], bool], Value]:
    def compute(n: Node, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
        result: Value = getattr(n.b, on_bool if x.dtype == boolean else name)(x, axes=axes, keepdims=keepdims)
        return result

    return compute


def _summed(map_element: Callable[[Node, Value], Value], finish: Callable[[Node, Value], Value]) -> Callable[[Node], Value]:
    def compute(n: Node, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
        return finish(n, n.b.sum(map_element(n, x), axes=axes, keepdims=keepdims))

    return _reduction(compute, lambda n, x: finish(n, map_element(n, x)))


def _in_floats(reduce: Callable[[Node], Value]) -> Rule:
    """A reduction with roots or logarithms; of integers it is computed in f64, and what it gives lies within them, cut off."""

    def apply(n: Node) -> Value:
        if not n.x().dtype.is_integer:
            return reduce(n)
        result = reduce(replace(n, inputs=[cast(n, n.x(), f64), *n.inputs[1:]]))
        return cast(n, result, n.x().dtype)

    return apply


def _same(n: Node, x: Value) -> Value:
    return x


def _square(n: Node, x: Value) -> Value:
    result: Value = n.b.mul(x, x)
    return result


def _applied(name: str) -> Callable[[Node, Value], Value]:
    return lambda n, x: getattr(n.b, name)(x)


rule("ReduceSum")(_reduction(_named("sum")))
rule("ReduceMean")(_reduction(_named("mean")))
rule("ReduceProd")(_reduction(_named("prod")))
rule("ReduceMax")(_reduction(_extreme("reduce_max", "any")))
rule("ReduceMin")(_reduction(_extreme("reduce_min", "all")))
rule("ReduceL1")(_summed(_applied("abs"), _same))
rule("ReduceL2")(_in_floats(_summed(_square, _applied("sqrt"))))
rule("ReduceSumSquare")(_summed(_square, _same))
rule("ReduceLogSum")(_in_floats(_summed(_same, _applied("log"))))
rule("ReduceLogSumExp")(_in_floats(_reduction(_named("logsumexp"))))


def _arg(name: str) -> Rule:
    def apply(n: Node) -> Value:
        axis = n.axis(n.attr_int("axis"), n.x().type.rank)
        x = with_place(n.b, n.x(), axis)
        result: Value = getattr(n.b, name)(x, axis=axis, keepdims=n.attr_flag("keepdims", True), last=n.attr_flag("select_last_index"))
        return result

    return apply


rule("ArgMax")(_arg("argmax"))
rule("ArgMin")(_arg("argmin"))


def _scan(name: str) -> Rule:
    def apply(n: Node) -> Value:
        x = n.x()
        axis = n.axis(n.integers(1, "the axis")[0], x.type.rank)
        result: Value = getattr(n.b, name)(x, axis=axis, exclusive=n.attr_flag("exclusive"), reverse=n.attr_flag("reverse"))
        return cast(n, result, x.dtype)

    return apply


rule("CumSum")(_scan("cumsum"))
rule("CumProd")(_scan("cumprod"))


def softmax(n: Node, x: Value, name: str, opset: int) -> Value:
    """(log_)softmax as an opset defines it: before 13 the axes from `axis` on were one."""
    axis = n.axis(n.attr_int("axis", -1 if opset >= 13 else 1), x.type.rank)
    if opset >= 13 or axis == x.type.rank - 1:
        result: Value = getattr(n.b, name)(x, axis=axis)
        return result
    flat = n.b.reshape(x, shape=(dims.product(x.shape[:axis]), dims.product(x.shape[axis:])))
    result = n.b.reshape(getattr(n.b, name)(flat, axis=1), shape=x.shape)
    return result


rule("Softmax")(lambda n: softmax(n, n.x(), "softmax", n.opset))
rule("LogSoftmax")(lambda n: softmax(n, n.x(), "log_softmax", n.opset))
