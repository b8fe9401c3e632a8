"""Rules of quantized ops that ONNX Runtime adds: convolutions and pools whose channels stand last, tables in blocks."""

from __future__ import annotations

import numpy as np

from .....ir import dims
from .....ir.dims import Dim
from .....ir.graph import Value
from .....ir.types import DTYPES, u8
from ... import moves
from ..context import Node, rule
from .pointwise import constant
from .quantization import MICROSOFT, Parameters, dequantized
from .quantized_pointwise import channels_last
from .quantized_products import convolve_codes, unpacked
from .window import max_pool


@rule("QLinearConv", domain=MICROSOFT)
def _conv(n: Node) -> Value:
    x = n.x(0)
    return channels_last(n, x, lambda moved: convolve_codes(n, moved)) if n.attr_flag("channels_last") else convolve_codes(n, x)


@rule("NhwcMaxPool", domain=MICROSOFT)
def _max_pool(n: Node) -> Value:
    return channels_last(n, n.x(), lambda moved: max_pool(n, moved))


# --- tables in blocks -------------------------------------------------------------------------------------------------


@rule("GatherBlockQuantized", domain=MICROSOFT)
def _gather_blocks(n: Node) -> Value:
    data, zero = _codes(n)
    rank = data.type.rank
    along, gathered = n.axis(n.attr_int("quantize_axis", 1), rank), n.axis(n.attr_int("gather_axis", 0), rank)
    size = data.shape[along]
    block: Dim = n.attr_int("block_size", 128) or size
    if not isinstance(block, int) or block < 1 or n.x(2).type.rank != rank:
        raise n.fail(f"got blocks of {block} with scales {n.x(2).type} for {data.type}, expected a positive size and one rank")
    blocks = tuple(dims.ceil_div(size, block) if axis == along else have for axis, have in enumerate(data.shape))
    scale = moves.broadcast(n.b, n.x(2), blocks)
    table = dequantized(n, data, Parameters(scale, zero, along, block))
    return _rows(n, table, n.x(1), gathered)


def _codes(n: Node) -> tuple[Value, Value | None]:
    """The codes and their zero points: as they are, or packed in bytes along the last axis, the first in the lowest bits."""
    data, zero = n.x(0), n.optional(3)
    if data.dtype != u8:
        return data, zero
    bits, shape = n.attr_int("bits", 4), n.static_shape(data, "the table")
    if bits not in (2, 4, 8):
        raise n.fail(f"got {bits} bits, expected 2, 4 or 8")
    dtype, each = DTYPES[f"u{bits}"], 8 // bits
    codes = _wide(n, 0, bits, shape[-1] * each).astype(dtype.numpy)
    places = n.static_shape(n.x(2), "the scales")
    middle = np.full(places, 1 << (bits - 1), np.uint8) if zero is None else _wide(n, 3, bits, places[-1])
    return constant(n, codes), constant(n, middle.astype(dtype.numpy))


def _wide(n: Node, position: int, bits: int, columns: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """An operand of packed bytes as numbers, `columns` of them along the last axis."""
    packed = n.array(position, "the table" if position == 0 else "the zero points")
    rows = int(np.prod(packed.shape[:-1]))
    numbers = unpacked(n, packed, bits, max(rows, 1))
    if numbers.shape[-1] < columns:
        raise n.fail(f"got {n.x(position).type}, expected {columns} numbers of {bits} bits in each row")
    return np.ascontiguousarray(numbers[:, :columns]).reshape(*packed.shape[:-1], columns)


def _rows(n: Node, table: Value, indices: Value, axis: int) -> Value:
    """What stands at the indices along an axis; zeros where one is out of range."""
    size = table.shape[axis]
    if not isinstance(size, int):
        raise n.fail(f"got a table {table.type}, expected {size} to be a number")
    inside = n.b.logical_and(n.b.ge(indices, -size), n.b.lt(indices, size))
    place = n.b.where(inside, indices, n.b.scalar(0, indices.dtype))
    found = n.b.take(table, place, axis=axis)
    shape = (*indices.shape, *(1,) * (table.type.rank - axis - 1))
    result: Value = n.b.where(n.b.reshape(inside, shape=shape), found, n.b.scalar(0.0, table.dtype))
    return result
