"""How activations are rounded while an engine runs, by name: to codes of which class, and what each token or block of it is divided by.

The codes of MXFP4 and NVFP4 are written as twice their value, which is an integer from -12 to 12: so products of them are sums of integers.
Where instructions take the formats of weights on both sides (`in_format`), what has scales of 8 bits is stored as weights are.
Sources: OCP Microscaling Formats (MX) v1.0, sections 5 and 6.3; DeepSeek-V3 (arXiv 2412.19437), section 3.3, for blocks of 1 x 128;
NVFP4 as NVIDIA's cuBLAS describes it, with the scale of the tensor taken for each token, so that a result does not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import ml_dtypes

from ...ir import dims
from ...ir.dims import Dim
from ...ir.formats import format_of, sparse_name
from ...ir.graph import Builder, Op, Value
from ...ir.types import DType, f4e2m1, f8e4m3, f8e8m0, f32, i8
from ..match import operand, producer
from . import SCALES, activation_name
from .rows import LEAST, row_scales

Scales = Callable[[Builder, Value, tuple[Dim, Dim]], Value]
BLOCK = 32
"""Numbers of a token that share a scale in int8, where those of a weight's channel do not all share one either; at most."""
EXPONENTS = {f8e4m3: 8, f4e2m1: 2}
"""The exponent of the largest number of a dtype: MX's shared scale brings a block's largest number to it."""


@dataclass(frozen=True)
class Rounding:
    """Codes in `dtype` with a scale for each `block` numbers of a token, or for all of them (0); of e2m1 the doubled codes.

    `scales(b, rows f32[tokens * blocks, numbers], (tokens, blocks))` gives f32[tokens * blocks], powers of two if it `has_powers`;
    weights are of the `format`.
    """

    dtype: DType
    block: int
    scales: Scales
    format: str | None = None
    has_powers: bool = False

    @property
    def is_integer(self) -> bool:
        """Whether codes are multiplied as integers."""
        return self.dtype != f8e4m3


def _largest(largest: float) -> Scales:
    return lambda b, rows, _: row_scales(b, rows, largest, keepdims=False)


def _shared(dtype: DType) -> Scales:
    """MX's scale of a block, halved for codes of twice their value."""
    halves = dtype == f4e2m1
    return lambda b, rows, _: _powers(b, _sizes(b, rows), EXPONENTS[dtype] + halves, LEAST * 0.5**halves)


def _powers(b: Builder, size: Value, exponent: int, least: float) -> Value:
    """The greatest power of two that is at most each of the largest magnitudes, by 2^-`exponent`."""
    # The logarithm of a number beside a power of two may be that of its neighbour: of the largest ones it is 128.
    power = b.exp2(b.minimum(b.floor(b.log2(size)), 127.0))
    power = b.where(b.gt(power, size), b.mul(power, 0.5), power)
    power = b.where(b.le(b.mul(power, 2.0), size), b.mul(power, 2.0), power)
    result: Value = b.maximum(b.mul(power, 2.0**-exponent), least)
    return result


def _two_levels(b: Builder, rows: Value, shape: tuple[Dim, Dim]) -> Value:
    """NVFP4's: a scale in e4m3 for each block, times one in f32 for the token, which is halved for codes of twice their value."""
    sizes = b.reshape(_sizes(b, rows), shape=shape)
    half = row_scales(b, sizes, 2.0 * 6.0 * 448.0, keepdims=False, least=LEAST / 2)
    held = b.quantize(b.div(sizes, 6.0), b.mul(half, 2.0), axis=0, dtype=f8e4m3)
    result: Value = b.reshape(b.dequantize(held, half, axis=0, dtype=f32), shape=(rows.shape[0],))
    return result


def _sizes(b: Builder, rows: Value) -> Value:
    size = b.reduce_max(b.abs(rows), axes=(1,), keepdims=False)
    result: Value = size if size.dtype == f32 else b.cast(size, dtype=f32)
    return result


ROUNDINGS: Mapping[str, Rounding] = MappingProxyType(
    {
        "int8": Rounding(i8, 0, _largest(127.0)),
        "fp8": Rounding(f8e4m3, 0, _largest(448.0), "fp8.e4m3"),
        "fp8-block": Rounding(f8e4m3, 128, _largest(448.0), "fp8.e4m3.block"),
        "mxfp8": Rounding(f8e4m3, 32, _shared(f8e4m3), "mxfp8.e4m3", True),
        "mxfp4": Rounding(f4e2m1, 32, _shared(f4e2m1), "mxfp4", True),
        "nvfp4": Rounding(f4e2m1, 16, _two_levels, "nvfp4"),
    }
)


def rounded(b: Builder, x: Value, name: str, block: int, stored: str = "") -> Value:
    """The rows of x [.., K] as codes and back, [count, K]: a scale for each row, or for each block of so many numbers of one.

    Powers of two are stored as such where `stored` says that scales are.
    """
    how = ROUNDINGS[name]
    count, width = dims.product(x.shape[:-1]), x.shape[-1]
    if how.format is not None and x.dtype != f32:
        x = b.cast(x, dtype=f32)
    rows = b.reshape(x, shape=(count * width // block, block) if block else (count, width))
    scale = how.scales(b, rows, (count, width // block if block else 1))
    wide = scale
    if stored == SCALES and how.has_powers:
        scale = b.cast(scale, dtype=f8e8m0)
        wide = b.cast(scale, dtype=f32)
    codes = _doubled(b, rows, wide) if how.dtype == f4e2m1 else b.quantize(rows, wide, axis=0, dtype=how.dtype)
    result: Value
    if not block:
        result = b.dequantize(codes, scale, axis=0, dtype=x.dtype if how.format is None else f32)
        return result
    codes, scale = b.reshape(codes, shape=(count, width)), b.reshape(scale, shape=(count, width // block))
    result = b.dequantize(codes, scale, axis=1, block=block, dtype=f32)
    return result


def in_format(b: Builder, x: Value, name: str) -> tuple[Value, Value | None]:
    """The same rows [count, K] in the format of the weights, and what is left of the scale of each: f32[count, 1], or None.

    Before: dequantize(quantize(%rows, %s), %s) {block = 32}
    After:  decode(quantize(%rows, %s), cast(%s) : f8e8m0) {format = "mxfp8.e4m3"}
    """
    how = ROUNDINGS[name]
    assert how.format is not None and how.block
    count, width = dims.product(x.shape[:-1]), x.shape[-1]
    x = x if x.dtype == f32 else b.cast(x, dtype=f32)
    # Tokens and blocks are axes of their own, so that the kernel that writes codes finds the scales of both.
    rows = b.reshape(x, shape=(count, width // how.block, how.block))
    parts = _halves(b, rows) if how.dtype == f4e2m1 else (rows,)
    size = b.abs(parts[0])
    for part in parts[1:]:
        size = b.maximum(size, b.abs(part))
    sizes = b.reduce_max(size, axes=(2,), keepdims=False)
    rest: Value | None = None
    one: tuple[Value, ...] = ()
    if not how.has_powers:
        token = row_scales(b, sizes, 6.0 * 448.0, keepdims=False)
        stored = b.quantize(b.div(sizes, 6.0), token, axis=0, dtype=f8e4m3)
        scale = b.dequantize(stored, token, axis=0, dtype=f32)
        rest, one = b.reshape(token, shape=(count, 1)), (b.full(shape=(1, 1), value=1.0, dtype=f32),)
    else:
        # One kernel finds scales and divides by them where the other readers want what it stores.
        stored = b.cast(_powers(b, sizes, EXPONENTS[how.dtype], LEAST), dtype=f8e8m0)
        scale = b.cast(stored, dtype=f32)
    if how.dtype == f4e2m1:
        # In the order of the formats (ir/formats): the first half of a block in the low bits.
        low, high = (_scaled(b, part, scale) for part in parts)
        codes = b.reshape(b.e2m1x2(low, high), shape=(count, width // 2))
    else:
        codes = b.reshape(b.cast(_in_range(b, rows, scale, how.dtype), dtype=how.dtype), shape=(count, width))
    return b.decode(codes, stored, *one, format=how.format, axis=1, dtype=f32), rest


def _doubled(b: Builder, rows: Value, scale: Value) -> Value:
    """Twice the nearest number of e2m1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives), ties to the even code, as i8.

    The scale is of these codes, half of that of the numbers.
    """
    number = _in_range(b, rows, b.mul(scale, 2.0), f4e2m1)
    steps = b.round(b.mul(number, _by_size(b, number, 2.0, 1.0, 0.5)))
    result: Value = b.cast(b.mul(steps, _by_size(b, number, 1.0, 2.0, 4.0)), dtype=i8)
    return result


def _by_size(b: Builder, number: Value, *values: float) -> Value:
    """What is true of numbers of e2m1 below 2, where they are 0.5 apart, below 4, where they are 1 apart, and above, where it is 2."""
    size = b.abs(number)
    small, middle, large = (b.full(shape=(), value=value, dtype=f32) for value in values)
    result: Value = b.where(b.lt(size, 2.0), small, b.where(b.lt(size, 4.0), middle, large))
    return result


def _in_range(b: Builder, rows: Value, scale: Value, dtype: DType) -> Value:
    """Rows by their scales, within what a dtype holds."""
    most = float(ml_dtypes.finfo(dtype.numpy).max)
    result: Value = b.clip(_scaled(b, rows, scale), -most, most)
    return result


def _scaled(b: Builder, rows: Value, scale: Value) -> Value:
    """Rows by the inverse of their scales: of powers of two nothing is lost, and NVFP4 is encoded so (arXiv 2509.25149)."""
    # A block of numbers that are too small for its scale is 0, whatever they are divided by.
    inverse = b.reshape(b.div(1.0, b.maximum(scale, LEAST)), shape=(*scale.shape, 1))
    result: Value = b.mul(rows, inverse)
    return result


def _halves(b: Builder, rows: Value) -> tuple[Value, ...]:
    """The first half of each row, and the second."""
    *counts, width = rows.shape
    half, first, steps = dims.number(width) // 2, (0,) * len(counts), (1,) * len(rows.shape)
    return tuple(b.slice(rows, starts=(*first, at), sizes=(*counts, half), steps=steps) for at in (0, half))


def block_of(name: str, group: int | None) -> int:
    """The numbers of a token that share a scale, beside weights with a scale for each `group`; None where a channel has one."""
    if name != "int8":
        return ROUNDINGS[name].block
    if group is None:
        return 0
    return group if group < BLOCK and BLOCK % group == 0 else BLOCK


def rounded_as(made: Op) -> str | None:
    """What the contract calls the rounding that a `dequantize` or `decode` reads the codes of; None if it is no such."""
    if made.name == "decode":
        return next((activation_name(name) for name, each in ROUNDINGS.items() if each.format == made.attrs["format"]), None)
    codes, block = operand(made, 0), int(made.attrs["block"])
    dtype = f4e2m1 if _is_doubled(codes) else codes.dtype
    if dtype == i8:
        return activation_name("int8")
    return next((activation_name(name) for name, each in ROUNDINGS.items() if (each.dtype, each.block) == (dtype, block)), None)


def _is_doubled(codes: Value) -> bool:
    """Whether `_doubled` wrote the codes."""
    while (moved := producer(codes, "reshape")) is not None:
        codes = operand(moved, 0)
    written = producer(codes, "cast")
    product = None if written is None else producer(operand(written, 0), "mul")
    return product is not None and any(producer(value, "round") is not None for value in product.operands)


def why_not_in_format(name: str, format: str | None) -> str | None:
    """Why weights of a format (None: of none) are not multiplied by activations that are rounded so, or None."""
    wanted = ROUNDINGS[name].format
    if wanted is None or format in (wanted, sparse_name(wanted)):
        return None
    return f"the weight is {'in no format' if format is None else format_of(format).name}, expected {wanted}"
