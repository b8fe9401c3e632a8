"""Rules for normalization layers, with the statistics that training keeps."""

from __future__ import annotations

from typing import Any

from .....ir import dims
from .....ir.graph import Value
from ..context import Node, aten
from .reduction import deviations


@aten("native_layer_norm")
def _layer_norm(
    n: Node, x: Value, shape: tuple[Any, ...], weight: Value | None, bias: Value | None, epsilon: float
) -> tuple[Value | None, ...]:
    axes = tuple(range(x.type.rank - len(shape), x.type.rank))
    result = n.b.layer_norm(x, weight, bias, axes=axes, epsilon=float(epsilon))
    if not n.needs(1) and not n.needs(2):
        return result, None, None
    variance, mean = deviations(n, x, axes, 0, True)
    return result, n.as_result(1, mean), n.as_result(2, n.b.rsqrt(n.b.add(variance, n.value(epsilon, x.dtype))))


@aten("native_group_norm")
def _group_norm(
    n: Node, x: Value, weight: Value | None, bias: Value | None, batch: Any, channels: Any, size: Any, groups: int, epsilon: float
) -> tuple[Value | None, ...]:
    result = n.b.group_norm(x, weight, bias, groups=groups, epsilon=float(epsilon))
    if not n.needs(1) and not n.needs(2):
        return result, None, None
    rows = n.reshape(x, (batch, groups, dims.product(x.shape[1:]) // groups))
    variance, mean = deviations(n, rows, (2,), 0, True)
    return result, n.as_result(1, mean), n.as_result(2, n.b.rsqrt(n.b.add(variance, n.value(epsilon, x.dtype))))


@aten("_native_batch_norm_legit_no_training")
def _batch_norm(
    n: Node, x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value, momentum: float, epsilon: float
) -> tuple[Value | None, ...]:
    channels = (x.shape[1],)
    scale = weight if weight is not None else n.b.full(shape=channels, value=1.0, dtype=x.dtype)
    shift = bias if bias is not None else n.b.full(shape=channels, value=0.0, dtype=x.dtype)
    operands = [n.cast(value, x.dtype) for value in (scale, shift, mean, variance)]
    result = n.b.batch_norm(x, *operands, epsilon=float(epsilon))
    empty = [
        n.b.full(shape=r.shape, value=0.0, dtype=r.dtype) if r is not None and n.needs(k) else None for k, r in enumerate(n.results) if k
    ]
    return result, *empty
