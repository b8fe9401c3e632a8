"""Rules for pooling."""

from __future__ import annotations

import math
from typing import Any

from .....ir import dims
from .....ir.dims import Dim
from .....ir.graph import Value
from .....ir.types import i64
from ..context import Node, aten


def _each(values: Any, rank: int) -> tuple[int, ...]:
    given = (values,) if isinstance(values, int) else tuple(values)
    return given * rank if len(given) == 1 else given


def _batched(n: Node, x: Value, rank: int) -> Value:
    """An operand without its batch dimension gets one."""
    return n.reshape(x, (1, *x.shape)) if x.type.rank == rank + 1 else x


def _after(
    x: Value, window: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...], before: tuple[int, ...], sizes: Any
) -> tuple[Dim, ...]:
    """How much padding the last window needs for the sizes that torch gives."""
    spatial = x.shape[2:]
    return tuple(
        (out - 1) * stride + (size - 1) * dilation + 1 - whole - low
        for out, stride, size, dilation, whole, low in zip(sizes, strides, window, dilations, spatial, before, strict=True)
    )


def _pool_index(n: Node, x: Value, attrs: dict[str, Any]) -> Value:
    """Where the largest element lies; torch takes the last NaN of a window that holds some."""
    index: Value = n.b.max_pool_index(x, **attrs)
    if not x.dtype.is_float:
        return index
    spatial = x.shape[2:]
    places = n.reshape(n.b.iota(shape=(dims.product(spatial),), axis=0, dtype=i64), (1, 1, *spatial))
    last = n.b.max_pool(n.b.where(n.b.is_nan(x), places, n.value(-1, i64)), **attrs)
    result: Value = n.b.where(n.b.lt(last, n.value(0, i64)), index, last)
    return result


@aten("max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(
    n: Node, x: Value, window: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Value | None, ...]:
    rank = 3 if "pool3d" in n.operator else 2
    sizes, dilations, before = _each(window, rank), _each(dilation, rank), _each(padding, rank)
    strides = _each(stride, rank) if stride not in ((), None) else sizes
    x = _batched(n, x, rank)
    spatial = n.shape[-rank:]
    symbolic = not all(isinstance(size, int) for size in (*x.shape[2:], *spatial))
    if symbolic and ceil_mode:
        raise n.fail("rounds a symbolic size up")
    after = before if symbolic else _after(x, sizes, strides, dilations, before, spatial)
    attrs = {"window": sizes, "strides": strides, "dilations": dilations, "before": before, "after": after}
    index = n.reshape(_pool_index(n, x, attrs), n.shape) if n.needs(1) else None
    return n.reshape(n.b.max_pool(x, **attrs), n.shape), index


@aten("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    n: Node,
    x: Value,
    window: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    rank = int(n.operator[len("aten.avg_pool")])
    sizes, before = _each(window, rank), _each(padding, rank)
    strides = _each(stride, rank) if stride not in ((), None) else sizes
    x = _batched(n, x, rank)
    spatial = n.shape[-rank:]
    symbolic = not all(isinstance(size, int) for size in (*x.shape[2:], *spatial))
    after = before if symbolic else _after(x, sizes, strides, (1,) * rank, before, spatial)
    if ceil_mode and symbolic:
        raise n.fail("rounds a symbolic size up")
    if divisor_override is None and count_include_pad and any(isinstance(a, int) and a > b for a, b in zip(after, before, strict=True)):
        raise n.fail("counts padding in windows that leave it")
    counts = count_include_pad or divisor_override is not None
    result = n.b.avg_pool(x, window=sizes, strides=strides, dilations=(1,) * rank, before=before, after=after, count_padding=counts)
    if divisor_override is not None:
        result = n.scaled("mul", result, math.prod(sizes) / divisor_override)
    return n.reshape(result, n.shape)


def _even(n: Node, x: Value, rank: int) -> tuple[int, ...]:
    """The windows of an adaptive pool whose sizes divide, so that all of them are alike."""
    sizes = tuple(zip(x.shape[-rank:], n.shape[-rank:], strict=True))
    if not all(isinstance(size, int) and isinstance(out, int) and out and size % out == 0 for size, out in sizes):
        raise n.fail(f"windows differ in size: {x.shape[-rank:]} into {n.shape[-rank:]}")
    return tuple(dims.number(size) // dims.number(out) for size, out in sizes)


def _side_by_side(window: tuple[int, ...]) -> dict[str, Any]:
    none = (0,) * len(window)
    return {"window": window, "strides": window, "dilations": (1,) * len(window), "before": none, "after": none}


@aten("adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max_pool(n: Node, x: Value, *_: Any) -> tuple[Value | None, ...]:
    rank = 3 if "pool3d" in n.operator else 2
    attrs = _side_by_side(_even(n, x, rank))
    x = _batched(n, x, rank)
    index = n.reshape(_pool_index(n, x, attrs), n.shape) if n.needs(1) else None
    return n.reshape(n.b.max_pool(x, **attrs), n.shape), index


@aten("_adaptive_avg_pool3d")
def _adaptive_avg_pool(n: Node, x: Value, *_: Any) -> Value:
    attrs = _side_by_side(_even(n, x, 3))
    return n.reshape(n.b.avg_pool(_batched(n, x, 3), count_padding=True, **attrs), n.shape)
