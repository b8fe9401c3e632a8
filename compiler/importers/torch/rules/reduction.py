"""Rules for reductions, scans and softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .....ir import dims
from .....ir.dims import Dim
from .....ir.graph import Value
from .....ir.ops.table import OPS
from .....ir.types import boolean, f32, f64, i64, u8
from ..context import Node, aten


def _fold(n: Node, op: str, x: Value, axes: Any, keepdims: bool) -> Value:
    folded = n.axes(axes, x.type.rank)
    if not folded:
        return x
    return n.b.build(OPS[op], (x,), {"axes": folded, "keepdims": keepdims})[0]


@aten("sum", "nansum")
def _sum(n: Node, x: Value, axes: Any = None, keepdims: bool = False, *, dtype: Any = None) -> Value:
    x = n.cast(x, n.dtype)
    if n.operator.startswith("aten.nansum") and x.dtype.is_float:
        x = n.b.where(n.b.is_nan(x), n.value(0, x.dtype), x)
    return _fold(n, "sum", x, axes, keepdims)


@aten("mean")
def _mean(n: Node, x: Value, axes: Any = None, keepdims: bool = False, *, dtype: Any = None) -> Value:
    return _fold(n, "mean", n.cast(x, n.dtype), axes, keepdims)


@aten("prod")
def _prod(n: Node, x: Value, axes: Any = None, keepdims: bool = False, *, dtype: Any = None) -> Value:
    return _fold(n, "prod", n.cast(x, n.dtype), axes, keepdims)


def _filled(n: Node, x: Value, axes: Any) -> Value:
    """x, whose axes must not be empty: eager knows no extreme of nothing."""
    for axis in n.axes(axes, x.type.rank):
        x = n.with_place(x, axis)
    return x


def _extreme(op: str) -> Callable[..., Value]:
    def rule(n: Node, x: Value, axes: Any = None, keepdims: bool = False) -> Value:
        return n.cast(_fold(n, op, _ordered(n, _filled(n, x, axes)), axes, keepdims), n.dtype)

    return rule


for _name, _op in {"amax": "reduce_max", "amin": "reduce_min", "max.default": "reduce_max", "min.default": "reduce_min"}.items():
    aten(_name)(_extreme(_op))


def _ordered(n: Node, x: Value) -> Value:
    """Bools have no largest element in the op table: 8-bit integers stand for them."""
    return n.cast(x, u8) if x.dtype == boolean else x


def _extreme_with_index(fold: str, index: str) -> Callable[..., tuple[Value | None, ...]]:
    def rule(n: Node, x: Value, axis: int, keepdims: bool = False) -> tuple[Value | None, ...]:
        if not x.type.rank:
            return x, n.b.full(shape=(), value=0, dtype=i64)
        axis = n.axis(axis, x.type.rank)
        ordered = _ordered(n, n.with_place(x, axis))
        place = n.b.build(OPS[index], (ordered,), {"axis": axis, "keepdims": keepdims})[0] if n.needs(1) else None
        return n.cast(_fold(n, fold, ordered, axis, keepdims), x.dtype), place

    return rule


aten("max.dim")(_extreme_with_index("reduce_max", "argmax"))
aten("min.dim")(_extreme_with_index("reduce_min", "argmin"))


def _index_of(op: str) -> Callable[..., Value]:
    def rule(n: Node, x: Value, axis: int | None = None, keepdims: bool = False) -> Value:
        if not x.type.rank:
            first: Value = n.b.full(shape=n.shape, value=0, dtype=i64)
            return first
        ordered = _ordered(n, _filled(n, x, axis))
        if axis is None:
            flat = n.reshape(ordered, (x.type.elements,))
            return n.reshape(n.b.build(OPS[op], (flat,), {"axis": 0})[0], n.shape)
        return n.b.build(OPS[op], (ordered,), {"axis": n.axis(axis, x.type.rank), "keepdims": keepdims})[0]

    return rule


aten("argmax")(_index_of("argmax"))
aten("argmin")(_index_of("argmin"))


@aten("any")
def _any(n: Node, x: Value, axes: Any = None, keepdims: bool = False) -> Value:
    return n.cast(_fold(n, "any", n.as_bool(x), axes, keepdims), n.dtype)


@aten("all")
def _all(n: Node, x: Value, axes: Any = None, keepdims: bool = False) -> Value:
    return n.cast(_fold(n, "all", n.as_bool(x), axes, keepdims), n.dtype)


@aten("cumsum")
def _cumsum(n: Node, x: Value, axis: int, *, dtype: Any = None) -> Value:
    x = n.cast(x, n.dtype)
    return n.b.cumsum(x, axis=n.axis(axis, x.type.rank)) if x.type.rank else x


@aten("cumprod")
def _cumprod(n: Node, x: Value, axis: int, *, dtype: Any = None) -> Value:
    """Torch multiplies float32 in float64: the roundings of a long product do not add up."""
    x = n.cast(x, n.dtype)
    if not x.type.rank:
        return x
    wide = n.cast(x, f64) if n.dtype == f32 else x
    return n.cast(n.b.cumprod(wide, axis=n.axis(axis, x.type.rank)), n.dtype)


def count_of(n: Node, x: Value, axes: tuple[int, ...]) -> Dim:
    """The number of elements that a reduction folds."""
    return dims.product(x.shape[axis] for axis in axes)


def deviations(n: Node, x: Value, axes: tuple[int, ...], correction: Any, keepdims: bool) -> tuple[Value, Value]:
    """Variance and mean over axes; the mean keeps its dimensions. Of narrow floats both are float32: neither their squares nor
    their number need have a place in them.
    """
    x = n.cast(x, x.dtype.compute)
    mean = n.b.mean(x, axes=axes, keepdims=True)
    centred = n.b.sub(x, mean)
    total = n.b.sum(n.b.mul(centred, centred), axes=axes, keepdims=keepdims)
    count = n.value(count_of(n, x, axes), x.dtype)
    return n.b.div(total, n.b.maximum(n.b.sub(count, n.value(correction, x.dtype)), n.value(0, x.dtype))), mean


@aten("var.correction", "std.correction", "var.dim", "std.dim", "var.default", "std.default")
def _var(
    n: Node, x: Value, axes: Any = None, unbiased: Any = None, keepdims: bool = False, *, correction: Any = None, keepdim: bool = False
) -> Value:
    if not x.dtype.is_float:
        raise n.fail(f"its operand is {x.type}, expected floats")
    if isinstance(axes, bool):
        axes, unbiased = None, axes
    degrees = correction if correction is not None else 1 if unbiased in (None, True) else 0
    result, _ = deviations(n, x, n.axes(axes, x.type.rank), degrees, keepdims or keepdim)
    return n.cast(n.b.sqrt(result) if n.operator.startswith("aten.std") else result, n.dtype)


@aten("var_mean.correction")
def _var_mean(n: Node, x: Value, axes: Any = None, *, correction: Any = None, keepdim: bool = False) -> tuple[Value, Value]:
    variance, mean = deviations(n, x, n.axes(axes, x.type.rank), 1 if correction is None else correction, keepdim)
    return n.cast(variance, n.dtype), n.cast(n.reshape(mean, variance.shape), n.dtype)


def _soft(op: str) -> Callable[..., Value]:
    def rule(n: Node, x: Value, axis: int, half_to_float: Any = False, **_: Any) -> Value:
        x = n.cast(x, n.dtype)
        if not x.type.rank:
            return n.reshape(n.b.build(OPS[op], (n.reshape(x, (1,)),), {"axis": 0})[0], ())
        return n.b.build(OPS[op], (x,), {"axis": n.axis(axis, x.type.rank)})[0]

    return rule


for _name, _op in {
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "softmax.int": "softmax",
    "log_softmax.int": "log_softmax",
}.items():
    aten(_name)(_soft(_op))


@aten("logsumexp")
def _logsumexp(n: Node, x: Value, axes: Any, keepdims: bool = False) -> Value:
    return _fold(n, "logsumexp", n.cast(x, n.dtype), axes, keepdims) if x.type.rank else n.cast(x, n.dtype)
