"""Quantization between floats and narrow dtypes with scales and zero points.

A scale is one number, one for each index along `axis`, or with `block` one for each block of so many along `axis`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import dims, scalar
from ..dims import Dim
from ..errors import VerifyError
from ..scalar import Traced
from ..types import DType, TensorType, f8e4m3, f8e5m2, f16, f32, from_numpy, i4, i8, i16, i32, u2, u4, u8
from .reduction import expect_numbers
from .sampling import array, bf16, draw, refused
from .structure import RegionBuilder
from .table import Sample, axis_of, structured

Tensor = np.ndarray[Any, Any]


def limits(dtype: DType) -> tuple[float, float]:
    """The least and the greatest value of a dtype that values are quantized to."""
    if dtype.is_integer:
        low = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
        return float(low), float((1 << (dtype.bits - (dtype.kind == "int"))) - 1)
    import ml_dtypes

    greatest = float(ml_dtypes.finfo(dtype.numpy).max)
    return -greatest, greatest


def _spread(parameter: Tensor, x: Tensor, axis: int | None, block: int) -> Tensor:
    """Scales or zero points at every element of x."""
    if axis is None or parameter.ndim == 0:
        return parameter.reshape(())
    if block:
        return parameter.take(np.arange(x.shape[axis]) // block, axis=axis)
    return parameter.reshape([-1 if n == axis % x.ndim else 1 for n in range(x.ndim)])


def _parameter_subscripts(x: TensorType, parameter: TensorType, axes: tuple[Dim, ...], axis: int | None, block: int) -> tuple[Dim, ...]:
    if axis is None or parameter.rank == 0:
        return (0,) * parameter.rank
    axis %= x.rank
    if block:
        return (*axes[:axis], axes[axis] // block, *axes[axis + 1 :])
    return (axes[axis],)


def _check_parameters(
    op: str, x: TensorType, scale: TensorType | None, zero_point: TensorType | None, axis: int | None, block: int
) -> None:
    if scale is not None:
        expect_numbers(op, scale, ("float",), "float scales")
    expected: tuple[Dim, ...] = ()
    if axis is not None:
        place = axis_of(op, axis, x.rank)
        expected = (x.shape[place],)
        if block:
            expected = (*x.shape[:place], dims.ceil_div(x.shape[place], block), *x.shape[place + 1 :])
    elif block:
        raise VerifyError(f"{op}: got blocks of {block} without an axis")
    for what, parameter in (("scale", scale), ("zero point", zero_point)):
        if parameter is None or (axis is None and parameter.shape in ((), (1,))) or (not block and parameter.rank == 0):
            continue
        if len(expected) != parameter.rank or any(dims.equal(a, b) is not True for a, b in zip(parameter.shape, expected, strict=True)):
            raise VerifyError(f"{op}: got {what} {parameter}, expected sizes [{', '.join(str(d) for d in expected)}] for {x}")


@structured(traits=("converts",))
def quantize(
    x: Tensor,
    scale: Tensor | None = None,
    zero_point: Tensor | None = None,
    /,
    *,
    axis: int | None = None,
    block: int = 0,
    dtype: DType,
    saturate: bool = True,
) -> Tensor:
    """x / scale, rounded to the nearest even, plus zero point, held in the range of `dtype`; NaN is undefined for integers.

    Without a scale nothing is divided. Without `saturate`, which floats of 8 bits may do without, a number too large becomes what `cast`
    makes of it.
    """
    scaled = x if scale is None else x / _spread(scale, x, axis, block).astype(x.dtype)
    if dtype.is_integer:
        scaled = np.round(scaled)
    if zero_point is not None:
        scaled = scaled + _spread(zero_point.astype(np.float32).astype(x.dtype), x, axis, block)
    if saturate:
        low, high = limits(dtype)
        scaled = np.minimum(np.maximum(scaled, x.dtype.type(low)), x.dtype.type(high))
    return scalar.convert(np.asarray(scaled), dtype)


@quantize.infers
def _(
    x: TensorType,
    scale: TensorType | None = None,
    zero_point: TensorType | None = None,
    *,
    axis: int | None,
    block: int,
    dtype: DType,
    saturate: bool,
) -> TensorType:
    expect_numbers("quantize", x, ("float", "int"), "floats")
    _check_parameters("quantize", x, scale, zero_point, axis, block)
    if dtype.kind not in ("float", "int", "uint") or dtype.bits > 16 or (dtype.is_float and dtype.bits == 16):
        raise VerifyError(f"quantize: got dtype {dtype}, expected an integer of at most 16 bits or a float of at most 8")
    if zero_point is not None and zero_point.dtype != dtype:
        raise VerifyError(f"quantize: got zero point {zero_point}, expected {dtype}")
    if not saturate and not (dtype.is_float and dtype.bits == 8):
        raise VerifyError(f"quantize: got dtype {dtype} without saturation, expected a float of 8 bits")
    return x.with_dtype(dtype)


@quantize.region
def _(
    r: RegionBuilder,
    x: TensorType,
    scale: TensorType | None = None,
    zero_point: TensorType | None = None,
    *,
    axis: int | None,
    block: int,
    dtype: DType,
    saturate: bool,
) -> None:
    axes = r.grid(x.shape)
    value = _as_float(r.load(0, axes))
    if scale is not None:
        divisor = scalar.cast(r.load(1, _parameter_subscripts(x, scale, axes, axis, block)), value.dtype)
        value = scalar.div(value, divisor)
    if dtype.is_integer:
        value = scalar.round_even(value)
    if zero_point is not None:
        offset = r.load(2, _parameter_subscripts(x, zero_point, axes, axis, block), compute=False)
        value = scalar.add(value, scalar.cast(offset, value.dtype))
    if saturate:
        low, high = limits(dtype)
        value = scalar.min(scalar.max(value, low), high)
    r.store(0, axes, scalar.cast(value, dtype))


def _as_float(value: Traced) -> Traced:
    return value if value.dtype.is_float else scalar.cast(value, f32)


@structured()
def dequantize(
    x: Tensor, scale: Tensor, zero_point: Tensor | None = None, /, *, axis: int | None = None, block: int = 0, dtype: DType
) -> Tensor:
    """(x - zero point) * scale in `dtype`.

    A scale that only a run knows is finite: where it is not, a product of the result is not either, and may be NaN or infinite.
    """
    compute = dtype.compute.numpy
    value = _integers_or_floats(x, compute)
    if zero_point is not None:
        value = value - _spread(_integers_or_floats(zero_point, compute), x, axis, block)
    return value.astype(compute) * _spread(scale.astype(compute), x, axis, block)


def _integers_or_floats(x: Tensor, compute: np.dtype[Any]) -> Tensor:
    kind = from_numpy(x.dtype)
    return x.astype(np.int32) if kind.is_integer else x.astype(compute)


@dequantize.infers
def _(x: TensorType, scale: TensorType, zero_point: TensorType | None = None, *, axis: int | None, block: int, dtype: DType) -> TensorType:
    expect_numbers("dequantize", x, ("float", "int", "uint"), "quantized numbers")
    _check_parameters("dequantize", x, scale, zero_point, axis, block)
    if not dtype.is_float or dtype.bits < 16:
        raise VerifyError(f"dequantize: got dtype {dtype}, expected a float of 16 bits or more")
    if zero_point is not None and zero_point.dtype != x.dtype:
        raise VerifyError(f"dequantize: got zero point {zero_point}, expected {x.dtype}")
    return x.with_dtype(dtype)


@dequantize.region
def _(
    r: RegionBuilder, x: TensorType, scale: TensorType, zero_point: TensorType | None = None, *, axis: int | None, block: int, dtype: DType
) -> None:
    axes = r.grid(x.shape)
    compute = dtype.compute
    wide = i32 if x.dtype.is_integer else compute
    value = scalar.cast(r.load(0, axes, compute=False), wide)
    if zero_point is not None:
        offset = r.load(2, _parameter_subscripts(x, zero_point, axes, axis, block), compute=False)
        value = scalar.sub(value, scalar.cast(offset, wide))
    factor = scalar.cast(r.load(1, _parameter_subscripts(x, scale, axes, axis, block)), compute)
    r.store(0, axes, scalar.mul(scalar.cast(value, compute), factor))


def _quantized(dtype: DType, *shape: int) -> Tensor:
    low, high = limits(dtype)
    return draw(*shape, dtype=dtype, low=max(low, -60000.0), high=min(high, 60000.0))


@quantize.samples
def _() -> Iterator[Sample]:
    x, scale = draw(4, 6, low=-9.0, high=9.0), array(0.05).reshape(())
    for dtype in (i8, u8, i4, u4, i16):
        yield Sample((x, scale), {"dtype": dtype})
        yield Sample((x, draw(6, low=0.02, high=0.2), _quantized(dtype, 6)), {"dtype": dtype, "axis": 1})
    for dtype in (f8e4m3, f8e5m2):
        yield Sample((x, scale), {"dtype": dtype})
    far = array(0.0, 3.3, 464.0, 465.0, -1e4, 61440.0, float("inf"), -float("inf"), float("nan"))
    for saturate in (True, False):
        for dtype in (f8e4m3, f8e5m2):
            yield Sample((far, array(1.0)), {"dtype": dtype, "saturate": saturate})
    yield Sample((x, draw(4, 3, low=0.02, high=0.2)), {"dtype": i4, "axis": -1, "block": 2})
    yield Sample((x, draw(2, 6, low=0.02, high=0.2), _quantized(i8, 2, 6)), {"dtype": i8, "axis": 0, "block": 3})
    yield Sample((array(0.5, 1.5, 2.5, -0.5, float("inf"), -float("inf")), array(1.0)), {"dtype": i8})
    yield Sample((draw(5, dtype=f16), array(0.1, dtype=f16)), {"dtype": u8})
    yield Sample((draw(0, 3), scale), {"dtype": i8})
    yield Sample((draw(), scale), {"dtype": i8})
    yield refused((x, draw(4, low=0.1)), "got scale f32[4], expected sizes [6] for f32[4, 6]", axis=1, dtype=i8)
    yield refused((x, draw(2, 4, low=0.1)), "got scale f32[2, 4], expected sizes [2, 6]", axis=0, block=2, dtype=i8)
    yield refused((x, scale), "got blocks of 2 without an axis", block=2, dtype=i8)
    yield refused((x, scale), "got dtype i32, expected an integer of at most 16 bits or a float of at most 8", dtype=i32)
    yield refused((x, scale, _quantized(u8)), "got zero point u8[], expected i8", dtype=i8)
    yield refused((x, scale), "got dtype i8 without saturation, expected a float of 8 bits", dtype=i8, saturate=False)
    yield refused((x, array(1, dtype=i32)), "got i32[1], expected float scales", dtype=i8)


@dequantize.samples
def _() -> Iterator[Sample]:
    scale = array(0.05).reshape(())
    for dtype in (i8, u8, i4, u4, i16, i32, u2):
        yield Sample((_quantized(dtype, 4, 6), scale), {"dtype": f32})
        yield Sample((_quantized(dtype, 4, 6), draw(4, low=0.01), _quantized(dtype, 4)), {"dtype": f32, "axis": 0})
    for dtype in (f8e4m3, f8e5m2):
        yield Sample((draw(4, 6, dtype=dtype), draw(6, low=0.01)), {"dtype": bf16, "axis": 1})
    yield Sample((_quantized(i4, 4, 6), draw(4, 2, low=0.01), _quantized(i4, 4, 2)), {"dtype": f16, "axis": 1, "block": 3})
    yield Sample((_quantized(i8, 0, 6), scale), {"dtype": f32})
    yield Sample((_quantized(i8), scale), {"dtype": f16})
    yield refused((_quantized(i8, 4), scale), "got dtype i8, expected a float of 16 bits or more", dtype=i8)
    yield refused((_quantized(i8, 4), scale, _quantized(u8)), "got zero point u8[], expected i8", dtype=f32)
    yield refused((_quantized(i8, 4), draw(3)), "got scale f32[3], expected sizes [4] for i8[4]", axis=0, dtype=f32)
