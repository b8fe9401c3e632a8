"""Rules for tensors made from nothing: fills, ranges, scalars."""

from __future__ import annotations

from typing import Any

from .....ir.dims import Expr
from .....ir.graph import Value
from .....ir.types import f64, i64
from ..context import Node, Number, aten, python_number


@aten("full", "full_like", "new_full", "fill")
def _full(n: Node, like: Any, value: Any, *rest: Any, **_: Any) -> Value:
    return _filled(n, rest[0] if n.operator.startswith("aten.new_full") and rest else value)


@aten("scalar_tensor")
def _scalar_tensor(n: Node, value: Any, **_: Any) -> Value:
    return _filled(n, value)


def _filled(n: Node, value: Any) -> Value:
    if isinstance(value, (Value, Expr, Number)):
        return n.expand(n.reshape(n.value(value, n.dtype), ()), n.shape)
    return n.expand(n.value(value, n.dtype), n.shape) if not n.shape else _constant(n, value)


def _constant(n: Node, value: Any) -> Value:
    result: Value = n.b.full(shape=n.shape, value=python_number(value, n.dtype), dtype=n.dtype)
    return result


@aten("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty", "empty_strided", "empty_permuted", "new_empty_strided")
def _zeros(n: Node, *_: Any, **__: Any) -> Value:
    """Zeros; memory that torch leaves undefined is zero too, so that runs repeat."""
    return _filled(n, 0)


@aten("ones", "ones_like", "new_ones")
def _ones(n: Node, *_: Any, **__: Any) -> Value:
    return _filled(n, 1)


@aten("arange.start_step")
def _arange(n: Node, start: Any, end: Any, step: Any = 1, **_: Any) -> Value:
    return _range(n, start, step)


@aten("arange.default")
def _arange_to(n: Node, end: Any, **_: Any) -> Value:
    return _range(n, 0, 1)


@aten("arange.start")
def _arange_from(n: Node, start: Any, end: Any, **_: Any) -> Value:
    return _range(n, start, 1)


@aten("prims.iota")
def _iota(n: Node, length: Any, start: Any = 0, step: Any = 1, **_: Any) -> Value:
    return _range(n, start, step)


def _range(n: Node, start: Any, step: Any) -> Value:
    """start + step * (0, 1, 2 ...), computed wide as torch does."""
    wide = i64 if n.dtype.is_integer else f64
    result: Value = n.b.iota(shape=n.shape, axis=0, dtype=wide)
    if not (isinstance(step, int) and step == 1):
        result = n.b.mul(result, n.value(step, wide))
    if not (isinstance(start, int) and start == 0):
        result = n.b.add(result, n.value(start, wide))
    return n.cast(result, n.dtype)
