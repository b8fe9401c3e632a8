"""How activations are rounded while an engine runs, by name: to codes of which class, and what each token or block of it is divided by.

The codes of MXFP4 and NVFP4 are written as twice their value, which is an integer from -12 to 12: so products of them are sums of integers.
Sources: OCP Microscaling Formats (MX) v1.0, sections 5 and 6.3; DeepSeek-V3 (arXiv 2412.19437), section 3.3, for blocks of 1 x 128;
NVFP4 as NVIDIA's cuBLAS describes it, with the scale of the tensor taken for each token, so that a result does not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ...ir import dims
from ...ir.dims import Dim
from ...ir.formats import format_of, sparse_name
from ...ir.graph import Builder, Op, Value
from ...ir.types import DType, f4e2m1, f8e4m3, f32, i8
from ..match import operand, producer
from . import activation_name
from .rows import LEAST, row_scales

Scales = Callable[[Builder, Value, tuple[Dim, Dim]], Value]
BLOCK = 32
"""Numbers of a token that share a scale in int8, where those of a weight's channel do not all share one either; at most."""
EXPONENTS = {f8e4m3: 8, f4e2m1: 2}
"""The exponent of the largest number of a dtype: MX's shared scale brings a block's largest number to it."""


@dataclass(frozen=True)
class Rounding:
    """Codes in `dtype` with a scale for each `block` numbers of a token, or for all of them (0); of e2m1 the doubled codes.

    `scales(b, rows f32[tokens * blocks, numbers], (tokens, blocks))` gives f32[tokens * blocks]; weights are of the `format`.
    """

    dtype: DType
    block: int
    scales: Scales
    format: str | None = None

    @property
    def is_integer(self) -> bool:
        """Whether codes are multiplied as integers."""
        return self.dtype != f8e4m3


def _largest(largest: float) -> Scales:
    return lambda b, rows, _: row_scales(b, rows, largest, keepdims=False)


def _shared(dtype: DType) -> Scales:
    """MX's scale of a block: the greatest power of two that is at most its largest magnitude, over that of the dtype."""

    def scales(b: Builder, rows: Value, shape: tuple[Dim, Dim]) -> Value:
        size = _sizes(b, rows)
        # The logarithm of a number beside a power of two may be that of its neighbour: of the largest ones it is 128.
        power = b.exp2(b.minimum(b.floor(b.log2(size)), 127.0))
        power = b.where(b.gt(power, size), b.mul(power, 0.5), power)
        power = b.where(b.le(b.mul(power, 2.0), size), b.mul(power, 2.0), power)
        halves = dtype == f4e2m1
        result: Value = b.maximum(b.mul(power, 2.0 ** -(EXPONENTS[dtype] + halves)), LEAST * 0.5**halves)
        return result

    return scales


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
        "mxfp8": Rounding(f8e4m3, 32, _shared(f8e4m3), "mxfp8.e4m3"),
        "mxfp4": Rounding(f4e2m1, 32, _shared(f4e2m1), "mxfp4"),
        "nvfp4": Rounding(f4e2m1, 16, _two_levels, "nvfp4"),
    }
)


def rounded(b: Builder, x: Value, name: str, block: int) -> Value:
    """The rows of x [.., K] as codes and back, [count, K]: a scale for each row, or for each block of so many numbers of one."""
    how = ROUNDINGS[name]
    count, width = dims.product(x.shape[:-1]), x.shape[-1]
    if how.format is not None and x.dtype != f32:
        x = b.cast(x, dtype=f32)
    rows = b.reshape(x, shape=(count * width // block, block) if block else (count, width))
    scale = how.scales(b, rows, (count, width // block if block else 1))
    codes = _doubled(b, rows, scale) if how.dtype == f4e2m1 else b.quantize(rows, scale, axis=0, dtype=how.dtype)
    result: Value
    if not block:
        result = b.dequantize(codes, scale, axis=0, dtype=x.dtype if how.format is None else f32)
        return result
    codes, scale = b.reshape(codes, shape=(count, width)), b.reshape(scale, shape=(count, width // block))
    result = b.dequantize(codes, scale, axis=1, block=block, dtype=f32)
    return result


def _doubled(b: Builder, rows: Value, scale: Value) -> Value:
    """Twice the nearest number of e2m1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives), ties to the even code, as i8.

    The scale is of these codes, half of that of the numbers.
    """
    # A block of numbers that are too small for its scale is 0, whatever they are divided by.
    divisor = b.reshape(b.maximum(b.mul(scale, 2.0), LEAST), shape=(rows.shape[0], 1))
    number = b.clip(b.div(rows, divisor), -6.0, 6.0)
    size = b.abs(number)
    half, one, two = (b.full(shape=(), value=value, dtype=f32) for value in (0.5, 1.0, 2.0))
    step = b.where(b.lt(size, two), half, b.where(b.lt(size, 4.0), one, two))
    result: Value = b.cast(b.mul(b.round(b.div(number, step)), b.mul(step, 2.0)), dtype=i8)
    return result


def block_of(name: str, group: int | None) -> int:
    """The numbers of a token that share a scale, beside weights with a scale for each `group`; None where a channel has one."""
    if name != "int8":
        return ROUNDINGS[name].block
    if group is None:
        return 0
    return group if group < BLOCK and BLOCK % group == 0 else BLOCK


def rounded_as(made: Op) -> str | None:
    """What the contract calls the rounding that a `dequantize` reads the codes of; None if it is no such."""
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
