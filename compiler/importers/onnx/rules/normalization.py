"""Rules of normalizations."""

from __future__ import annotations

from .....ir import dims
from .....ir.dims import Dim
from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.types import f32
from ... import moves
from ..context import Node, cast, rule
from ..tensors import element_type
from .shape import unsqueeze


def expect_stash(n: Node) -> None:
    """Refuse statistics in anything but f32."""
    number = n.attr_int("stash_type", 1)
    if element_type(number, n.source) != f32:
        raise UnsupportedError(f"statistics in {element_type(number, n.source)}", hint="set stash_type to 1 (float32)")


@rule("LayerNormalization")
def _layer_norm(n: Node) -> list[Value]:
    x, scale, bias = n.x(0), n.optional(1), n.optional(2)
    axis = n.axis(n.attr_int("axis", -1), x.type.rank)
    axes = tuple(range(axis, x.type.rank))
    epsilon = n.attr_float("epsilon", 1e-5)
    expect_stash(n)
    shape = x.shape[axis:]
    scale, bias = (None if v is None else moves.broadcast(n.b, v, shape) for v in (scale, bias))
    y: Value = n.b.layer_norm(x, scale, bias, axes=axes, epsilon=epsilon)
    if len(n.outputs) < 2:
        return [y]
    wide = cast(n, x, f32)
    mean = n.b.mean(wide, axes=axes, keepdims=True)
    return [y, mean, reciprocal_deviation(n, n.b.sub(wide, mean), axes, epsilon)]


def reciprocal_deviation(n: Node, x: Value, axes: tuple[int, ...], epsilon: float) -> Value:
    """1 / sqrt(mean(x * x) + epsilon)."""
    result: Value = n.b.rsqrt(n.b.add(n.b.mean(n.b.mul(x, x), axes=axes, keepdims=True), epsilon))
    return result


@rule("RMSNormalization")
def _rms_norm(n: Node) -> Value:
    x, scale = n.x(0), n.optional(1)
    axis = n.axis(n.attr_int("axis", -1), x.type.rank)
    expect_stash(n)
    shape = x.shape[axis:]
    if scale is not None and scale.shape != shape:
        scale = n.b.broadcast_to(scale, shape=shape)
    result: Value = n.b.rms_norm(x, scale, axes=tuple(range(axis, x.type.rank)), epsilon=n.attr_float("epsilon", 1e-5))
    return result


@rule("BatchNormalization")
def _batch_norm(n: Node) -> list[Value]:
    x, scale, bias, mean, variance = (n.x(k) for k in range(5))
    training = n.attr_flag("training_mode") if n.opset >= 14 else False
    if n.opset < 7 and not n.attr_flag("is_test"):
        raise UnsupportedError("training mode", hint="export the model for inference")
    epsilon = n.attr_float("epsilon", 1e-5)
    if x.type.rank > 1 and scale.type.rank == 1:
        n.fix(x.shape[1], scale.shape[0])
    if not training:
        return [n.b.batch_norm(x, scale, bias, mean, variance, epsilon=epsilon)]
    momentum = n.attr_float("momentum", 0.9)
    axes = (0, *range(2, x.type.rank))
    now = n.b.mean(x, axes=axes, keepdims=True)
    centered = n.b.sub(x, now)
    spread = n.b.mean(n.b.mul(centered, centered), axes=axes, keepdims=False)
    now = n.b.reshape(now, shape=(x.shape[1],))
    y: Value = n.b.batch_norm(x, scale, bias, now, spread, epsilon=epsilon)
    running = [n.b.add(n.b.mul(old, momentum), n.b.mul(new, 1.0 - momentum)) for old, new in ((mean, now), (variance, spread))]
    return [y, *running]


@rule("InstanceNormalization")
def _instance_norm(n: Node) -> Value:
    x, scale, bias = n.x(0), n.x(1), n.x(2)
    if x.type.rank < 3:
        raise n.fail(f"input has rank {x.type.rank}, expected at least 3")
    epsilon, channels = n.attr_float("epsilon", 1e-5), x.shape[1]
    for parameter in (scale, bias):
        if parameter.type.rank != 1:
            raise n.fail(f"got parameter {parameter.type}, expected one value for each of the {channels} channels")
        n.fix(channels, parameter.shape[0])
    if isinstance(channels, int):
        result: Value = n.b.group_norm(x, scale, bias, groups=channels, epsilon=epsilon)
        return result
    if any(dims.equal(parameter.shape[0], channels) is not True for parameter in (scale, bias)):
        raise UnsupportedError(
            f"{channels} channels are scaled by {scale.type} and {bias.type}", hint="relate or fix the symbolic sizes at import (shapes)"
        )
    # As many groups as a call has channels: their statistics are those of rows.
    axes, placed = tuple(range(2, x.type.rank)), (channels, *(1,) * (x.type.rank - 2))
    wide = cast(n, x, x.dtype.compute)
    centered = n.b.sub(wide, n.b.mean(wide, axes=axes, keepdims=True))
    variance = n.b.mean(n.b.mul(centered, centered), axes=axes, keepdims=True)
    normal = n.b.mul(centered, n.b.rsqrt(n.b.add(variance, epsilon)))
    scale, bias = (n.b.reshape(cast(n, parameter, wide.dtype), shape=placed) for parameter in (scale, bias))
    return cast(n, n.b.add(n.b.mul(normal, scale), bias), x.dtype)


@rule("GroupNormalization")
def _group_norm(n: Node) -> Value:
    x, scale, bias, groups = n.x(0), n.x(1), n.x(2), n.attr_int("num_groups")
    if groups < 1 or x.type.rank < 2:
        raise n.fail(f"got {groups} groups of {x.type}, expected at least 1 and rank 2 or more")
    channels: Dim = x.shape[1]
    if n.opset >= 21 and scale.type.rank == 1:
        n.fix(channels, scale.shape[0])
    if n.opset < 21:
        # One scale for a group: repeat it for the channels of the group.
        per = dims.simplify(channels // groups, n.facts)
        scale, bias = (
            n.b.reshape(n.b.broadcast_to(unsqueeze(n, v, (1,)), shape=(groups, per)), shape=(groups * per,)) for v in (scale, bias)
        )
    if n.opset >= 21:
        expect_stash(n)
    result: Value = n.b.group_norm(x, scale, bias, groups=groups, epsilon=n.attr_float("epsilon", 1e-5))
    return result


@rule("LpNormalization")
def _lp_norm(n: Node) -> Value:
    x, p = n.x(), n.attr_int("p", 2)
    axis = n.axis(n.attr_int("axis", -1), x.type.rank)
    if p not in (1, 2):
        raise n.fail(f"p is {p}, expected 1 or 2")
    if p == 1:
        norm = n.b.sum(n.b.abs(x), axes=(axis,), keepdims=True)
    else:
        norm = n.b.sqrt(n.b.sum(n.b.mul(x, x), axes=(axis,), keepdims=True))
    # A row of zeros stays one.
    result: Value = n.b.where(n.b.eq(norm, 0.0), n.b.scalar(0.0, x.dtype), n.b.div(x, norm))
    return result


@rule("LRN")
def _local_response(n: Node) -> Value:
    x, size = n.x(), n.attr_int("size")
    if size < 1 or x.type.rank < 2:
        raise n.fail(f"got size {size} for rank {x.type.rank}, expected a positive size and rank 2 or more")
    squares = n.b.mul(x, x)
    before, after = (size - 1) // 2, size // 2
    pads = [tuple(amount if axis == 1 else 0 for axis in range(x.type.rank)) for amount in (before, after)]
    padded = n.b.pad(squares, before=pads[0], after=pads[1], mode="constant", value=0.0)
    total: Value | None = None
    for shift in range(size):
        starts = tuple(shift if axis == 1 else 0 for axis in range(x.type.rank))
        part = n.b.slice(padded, starts=starts, sizes=x.shape, steps=(1,) * x.type.rank)
        total = part if total is None else n.b.add(total, part)
    base = n.b.add(n.b.mul(total, n.attr_float("alpha", 1e-4) / size), n.attr_float("bias", 1.0))
    result: Value = n.b.div(x, n.b.pow(base, n.attr_float("beta", 0.75)))
    return result
