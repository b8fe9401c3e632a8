"""Normalizations; statistics are computed in f32 for narrow floats, variances from centred values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import dims, scalar
from ..dims import Dim
from ..errors import VerifyError
from ..scalar import Traced
from ..summation import total
from ..types import TensorType, f16, f32, i32
from .reduction import Folding, expect_numbers, normalized, number_of
from .sampling import bf16, draw, refused
from .structure import RegionBuilder
from .table import Sample, broadcast, same_dtype, structured

Tensor = np.ndarray[Any, Any]


def _placed(parameter: Tensor, axes: Sequence[int], rank: int) -> Tensor:
    """A parameter over `axes` with its dimensions at their places in a tensor of this rank."""
    shape = [1] * rank
    for axis, size in zip(axes[len(axes) - parameter.ndim :], parameter.shape, strict=True):
        shape[axis] = size
    return parameter.reshape(shape)


def _average(x: Tensor, axes: Sequence[int]) -> Tensor:
    """The mean over `axes`, which stay with size 1."""
    return np.asarray(total(x, axes, keepdims=True) / x.dtype.type(np.prod([x.shape[axis] for axis in axes])))


def _check_parameters(op: str, x: TensorType, axes: tuple[int, ...], *parameters: TensorType | None) -> None:
    expect_numbers(op, x, ("float",), "floats")
    folded = normalized(op, axes, x.rank)
    if not folded or list(folded) != sorted(folded):
        raise VerifyError(f"{op}: got axes {list(axes)}, expected one or more in ascending order")
    same_dtype(op, x, *parameters)
    sizes = tuple(x.shape[n] for n in folded)
    for parameter in parameters:
        if parameter is not None and (parameter.rank > len(sizes) or broadcast(op, parameter.shape, sizes) != sizes):
            raise VerifyError(
                f"{op}: parameter {parameter} does not broadcast to the normalized sizes [{', '.join(str(d) for d in sizes)}]"
            )


# --- layer and root-mean-square normalization -------------------------------------------------------------------------


@structured()
def layer_norm(x: Tensor, scale: Tensor | None = None, bias: Tensor | None = None, /, *, axes: tuple[int, ...], epsilon: float) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, with mean and variance over `axes`.

    `scale` and `bias` broadcast to the sizes of `axes`.
    """
    places = [axis % x.ndim for axis in axes]
    centred = x - _average(x, axes)
    variance = _average(centred * centred, axes)
    result = centred / np.sqrt(variance + x.dtype.type(epsilon))
    result = result if scale is None else result * _placed(scale, places, x.ndim)
    return np.asarray(result if bias is None else result + _placed(bias, places, x.ndim))


@layer_norm.infers
def _(
    x: TensorType, scale: TensorType | None = None, bias: TensorType | None = None, *, axes: tuple[int, ...], epsilon: float
) -> TensorType:
    _check_parameters("layer_norm", x, axes, scale, bias)
    return x


@layer_norm.region
def _(
    r: RegionBuilder,
    x: TensorType,
    scale: TensorType | None = None,
    bias: TensorType | None = None,
    *,
    axes: tuple[int, ...],
    epsilon: float,
) -> None:
    fold = Folding(r, x, axes)
    value = r.let(r.load(0, fold.all), fold.all)
    total = r.reduce("sum", fold.over, value, fold.kept)
    mean = r.let(scalar.div(total, number_of(r, fold.count, total)), fold.kept)
    centred = r.let(scalar.sub(value, mean), fold.all)
    squares = r.reduce("sum", fold.over, scalar.mul(centred, centred), fold.kept)
    variance = scalar.div(squares, number_of(r, fold.count, squares))
    factor = r.let(scalar.rsqrt(scalar.add(variance, epsilon)), fold.kept)
    result = scalar.mul(centred, factor)
    r.store(0, fold.all, _with_parameters(r, result, scale, bias, fold.over))


def _with_parameters(
    r: RegionBuilder, value: Traced, scale: TensorType | None, bias: TensorType | None, subscripts: Sequence[Dim]
) -> Traced:
    if scale is not None:
        value = scalar.mul(value, r.broadcast_load(1, subscripts))
    return value if bias is None else scalar.add(value, r.broadcast_load(2, subscripts))


@layer_norm.samples
def _() -> Iterator[Sample]:
    yield Sample((draw(3, 4, 6), draw(6), draw(6, seed=1)), {"axes": (-1,), "epsilon": 0.5})
    yield Sample((draw(3, 4, 6), draw(4, 6), None), {"axes": (1, 2), "epsilon": 1e-5})
    yield Sample((draw(3, 4, 6), draw(3), draw(3)), {"axes": (0,), "epsilon": 1e-3})
    yield Sample((draw(3, 4, 6), draw(6), draw(4, 1)), {"axes": (1, 2), "epsilon": 1e-3})
    yield Sample((draw(5),), {"axes": (0,), "epsilon": 0.0})
    yield Sample((draw(2, 1),), {"axes": (1,), "epsilon": 1e-5})
    yield Sample((draw(0, 4), draw(4)), {"axes": (1,), "epsilon": 1e-5})
    yield Sample((draw(3, 40, dtype=f16), draw(40, dtype=f16), draw(40, dtype=f16)), {"axes": (1,), "epsilon": 1e-5})
    yield Sample((draw(3, 40, dtype=bf16), draw(40, dtype=bf16), None), {"axes": (1,), "epsilon": 1e-5})
    yield Sample((draw(3, 4, low=1000.0, high=1001.0),), {"axes": (1,), "epsilon": 1e-5})
    yield refused((draw(3, 4), draw(3)), "sizes 3 and 4 do not broadcast", axes=(1,), epsilon=1e-5)
    yield refused((draw(3, 4), draw(3, 4)), "parameter f32[3, 4] does not broadcast to the normalized sizes [4]", axes=(1,), epsilon=1e-5)
    yield refused((draw(3, 4), draw(4, dtype=f16)), "operand dtypes differ: got f32 and f16", axes=(1,), epsilon=1e-5)
    yield refused((draw(3, 4, dtype=i32),), "got i32[3, 4], expected floats", axes=(1,), epsilon=1e-5)
    yield refused((draw(3, 4),), "got axes [1, 0], expected one or more in ascending order", axes=(1, 0), epsilon=1e-5)


@structured()
def rms_norm(x: Tensor, scale: Tensor | None = None, /, *, axes: tuple[int, ...], epsilon: float) -> Tensor:
    """x / sqrt(mean of x * x over `axes` + epsilon) * scale."""
    places = [axis % x.ndim for axis in axes]
    result = x / np.sqrt(_average(x * x, axes) + x.dtype.type(epsilon))
    return np.asarray(result if scale is None else result * _placed(scale, places, x.ndim))


@rms_norm.infers
def _(x: TensorType, scale: TensorType | None = None, *, axes: tuple[int, ...], epsilon: float) -> TensorType:
    _check_parameters("rms_norm", x, axes, scale)
    return x


@rms_norm.region
def _(r: RegionBuilder, x: TensorType, scale: TensorType | None = None, *, axes: tuple[int, ...], epsilon: float) -> None:
    fold = Folding(r, x, axes)
    value = r.let(r.load(0, fold.all), fold.all)
    squares = r.reduce("sum", fold.over, scalar.mul(value, value), fold.kept)
    average = scalar.div(squares, number_of(r, fold.count, squares))
    factor = r.let(scalar.rsqrt(scalar.add(average, epsilon)), fold.kept)
    r.store(0, fold.all, _with_parameters(r, scalar.mul(value, factor), scale, None, fold.over))


@rms_norm.samples
def _() -> Iterator[Sample]:
    yield Sample((draw(3, 4, 6), draw(6)), {"axes": (-1,), "epsilon": 0.5})
    yield Sample((draw(3, 4, 6),), {"axes": (1, 2), "epsilon": 1e-5})
    yield Sample((draw(0, 4), draw(4)), {"axes": (1,), "epsilon": 1e-5})
    yield Sample((draw(3, 40, dtype=bf16), draw(40, dtype=bf16)), {"axes": (1,), "epsilon": 1e-5})
    yield refused((draw(3, 4), draw(3)), "sizes 3 and 4 do not broadcast", axes=(1,), epsilon=1e-5)
    yield refused((draw(),), "got axes [], expected one or more in ascending order", axes=(), epsilon=1e-5)


# --- batch normalization ----------------------------------------------------------------------------------------------


@structured()
def batch_norm(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, /, *, epsilon: float) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, each given per channel (dimension 1)."""
    scale, bias, mean, variance = (_placed(p, (1,), x.ndim) for p in (scale, bias, mean, variance))
    return np.asarray((x - mean) / np.sqrt(variance + x.dtype.type(epsilon)) * scale + bias)


@batch_norm.infers
def _(x: TensorType, scale: TensorType, bias: TensorType, mean: TensorType, variance: TensorType, *, epsilon: float) -> TensorType:
    expect_numbers("batch_norm", x, ("float",), "floats")
    if x.rank < 2:
        raise VerifyError(f"batch_norm: got {x}, expected rank 2 or more")
    same_dtype("batch_norm", x, scale, bias, mean, variance)
    for parameter in (scale, bias, mean, variance):
        _check_channels("batch_norm", x, parameter)
    return x


def _check_channels(op: str, x: TensorType, parameter: TensorType) -> None:
    if parameter.rank != 1 or dims.equal(parameter.shape[0], x.shape[1]) is not True:
        raise VerifyError(f"{op}: got parameter {parameter}, expected one value for each of the {x.shape[1]} channels of {x}")


@batch_norm.region
def _(
    r: RegionBuilder, x: TensorType, scale: TensorType, bias: TensorType, mean: TensorType, variance: TensorType, *, epsilon: float
) -> None:
    axes = r.grid(x.shape)
    factors = [r.load(n, (axes[1],)) for n in range(1, 5)]
    factor = scalar.rsqrt(scalar.add(factors[3], epsilon))
    centred = scalar.mul(scalar.sub(r.load(0, axes), factors[2]), factor)
    r.store(0, axes, scalar.add(scalar.mul(centred, factors[0]), factors[1]))


@batch_norm.samples
def _() -> Iterator[Sample]:
    yield Sample((draw(2, 3), draw(3), draw(3), draw(3), draw(3, low=0.1)), {"epsilon": 0.5})
    for dtype in (f32, f16, bf16):
        for shape in ((2, 3, 4, 5), (2, 3), (0, 3, 4), (1, 3, 7)):
            parameters = [draw(3, dtype=dtype, seed=n) for n in range(3)]
            yield Sample((draw(*shape, dtype=dtype), *parameters, draw(3, dtype=dtype, low=0.1, high=4.0)), {"epsilon": 1e-5})
    yield refused(
        (draw(2, 3), draw(3), draw(4), draw(3), draw(3)),
        "got parameter f32[4], expected one value for each of the 3 channels",
        epsilon=1e-5,
    )
    yield refused((draw(3), draw(3), draw(3), draw(3), draw(3)), "got f32[3], expected rank 2 or more", epsilon=1e-5)
    yield refused((draw(2, 3), draw(3), draw(3), draw(3)), "got 4 operands, expected 5", epsilon=1e-5)


# --- group normalization ----------------------------------------------------------------------------------------------


@structured()
def group_norm(x: Tensor, scale: Tensor | None = None, bias: Tensor | None = None, /, *, groups: int, epsilon: float) -> Tensor:
    """Channels (dimension 1) in `groups`; each group with its spatial dimensions is normalized, then scaled per channel."""
    grouped = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    axes = tuple(range(2, grouped.ndim))
    centred = grouped - _average(grouped, axes)
    variance = _average(centred * centred, axes)
    result = (centred / np.sqrt(variance + x.dtype.type(epsilon))).reshape(x.shape)
    result = result if scale is None else result * _placed(scale, (1,), x.ndim)
    return np.asarray(result if bias is None else result + _placed(bias, (1,), x.ndim))


@group_norm.infers
def _(x: TensorType, scale: TensorType | None = None, bias: TensorType | None = None, *, groups: int, epsilon: float) -> TensorType:
    expect_numbers("group_norm", x, ("float",), "floats")
    if x.rank < 2:
        raise VerifyError(f"group_norm: got {x}, expected rank 2 or more")
    if groups < 1 or dims.divides(groups, x.shape[1]) is not True:
        raise VerifyError(f"group_norm: {x.shape[1]} channels of {x} are not known to be a multiple of {groups} groups")
    same_dtype("group_norm", x, scale, bias)
    for parameter in (scale, bias):
        if parameter is not None:
            _check_channels("group_norm", x, parameter)
    return x


@group_norm.region
def _(
    r: RegionBuilder, x: TensorType, scale: TensorType | None = None, bias: TensorType | None = None, *, groups: int, epsilon: float
) -> None:
    members = x.shape[1] // groups
    image, group = r.axis(x.shape[0], "i"), r.axis(groups, "g")
    member = () if members == 1 else (r.axis(members, "c"),)
    channel = group * members + (member[0] if member else 0)
    spatial = r.grid(x.shape[2:], "k")
    kept, over = (image, group), (*member, *spatial)
    everything = (*kept, *over)
    count = number_of(r, dims.product((members, *x.shape[2:])), r.constant(1.0, x.dtype.compute))
    value = r.let(r.load(0, (image, channel, *spatial)), everything)
    # A group of one element has nothing to fold.
    total = r.reduce("sum", over, value, kept) if over else value
    centred = r.let(scalar.sub(value, r.let(scalar.div(total, count), kept)), everything)
    squares = scalar.mul(centred, centred)
    variance = scalar.div(r.reduce("sum", over, squares, kept) if over else squares, count)
    factor = r.let(scalar.rsqrt(scalar.add(variance, epsilon)), kept)
    result = _with_parameters(r, scalar.mul(centred, factor), scale, bias, (channel,))
    r.store(0, (image, channel, *spatial), result, axes=everything)


@group_norm.samples
def _() -> Iterator[Sample]:
    for dtype in (f32, f16, bf16):
        yield Sample((draw(2, 6, 4, 5, dtype=dtype), draw(6, dtype=dtype), draw(6, dtype=dtype)), {"groups": 3, "epsilon": 1e-5})
    yield Sample((draw(2, 6, 4),), {"groups": 6, "epsilon": 0.5})
    yield Sample((draw(2, 6, 4), None, draw(6)), {"groups": 1, "epsilon": 1e-5})
    yield Sample((draw(2, 6),), {"groups": 6, "epsilon": 1e-5})
    yield Sample((draw(0, 6, 2), draw(6)), {"groups": 2, "epsilon": 1e-5})
    yield refused((draw(2, 6, 4),), "6 channels of f32[2, 6, 4] are not known to be a multiple of 4 groups", groups=4, epsilon=1e-5)
    yield refused((draw(6),), "got f32[6], expected rank 2 or more", groups=2, epsilon=1e-5)
    yield refused((draw(2, 6), draw(3)), "got parameter f32[3], expected one value for each of the 6 channels", groups=2, epsilon=1e-5)
