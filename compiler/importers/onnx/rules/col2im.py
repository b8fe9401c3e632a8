"""The rule of Col2Im: blocks laid over an image, added up where they meet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .....ir.dims import Dim
from .....ir.graph import Value
from ..context import Node, rule
from .movement import transpose
from .pointwise import constant

MOST_TAPS = 64
"""Blocks of more elements are scattered one by one."""


@dataclass(frozen=True)
class _Blocks:
    """Along each axis: the size of a block, how many there are, how far they and their elements lie apart, and the image they fill."""

    block: tuple[int, ...]
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padded: tuple[int, ...]


@rule("Col2Im")
def _col2im(n: Node) -> Value:
    x = n.x(0)
    image, block = n.integers(1, "the image shape"), n.integers(2, "the block shape")
    rank = len(image)
    strides = n.attr_ints("strides") or (1,) * rank
    dilations = n.attr_ints("dilations") or (1,) * rank
    pads = n.attr_ints("pads") or (0,) * (2 * rank)
    batch, channels = x.shape[0], x.shape[1] // math.prod(block)
    padded = tuple(image[a] + pads[a] + pads[a + rank] for a in range(rank))
    counts = tuple((padded[a] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1 for a in range(rank))
    blocks = _Blocks(tuple(block), counts, tuple(strides), tuple(dilations), padded)
    apart = n.b.reshape(x, shape=(batch, channels, *block, *counts))
    if blocks.strides == blocks.block and set(dilations) == {1}:
        total = _side_by_side(n, apart, blocks)
    elif math.prod(block) <= MOST_TAPS:
        total = _added(n, apart, blocks)
    else:
        total = _scattered(n, apart, blocks)
    # What lands in the padding is cut off.
    result: Value = n.b.slice(total, starts=(0, 0, *pads[:rank]), sizes=(batch, channels, *image), steps=(1,) * (rank + 2))
    return result


def _side_by_side(n: Node, x: Value, blocks: _Blocks) -> Value:
    """Blocks that do not meet: each element has a place of its own."""
    rank = len(blocks.block)
    order = (0, 1, *(axis for a in range(rank) for axis in (2 + rank + a, 2 + a)))
    sizes = [count * size for count, size in zip(blocks.counts, blocks.block, strict=True)]
    whole = n.b.reshape(transpose(n, x, order), shape=(*x.shape[:2], *sizes))
    return _grown(n, whole, (0,) * rank, blocks.padded)


def _added(n: Node, x: Value, blocks: _Blocks) -> Value:
    """The sum of the images of one element of all blocks each; elements that lie alike beside the strides first."""
    rank, lead = len(blocks.block), x.shape[:2]
    lengths = [-(-size // stride) for size, stride in zip(blocks.padded, blocks.strides, strict=True)]
    parts: dict[tuple[int, ...], Value] = {}
    for tap in itertools.product(*map(range, blocks.block)):
        offsets = [place * dilation for place, dilation in zip(tap, blocks.dilations, strict=True)]
        beside = tuple(offset % stride for offset, stride in zip(offsets, blocks.strides, strict=True))
        starts, sizes = (0, 0, *tap, *(0,) * rank), (*lead, *(1,) * rank, *blocks.counts)
        one = n.b.slice(x, starts=starts, sizes=sizes, steps=(1,) * (2 + 2 * rank))
        before = [offset // stride for offset, stride in zip(offsets, blocks.strides, strict=True)]
        placed = _grown(n, n.b.reshape(one, shape=(*lead, *blocks.counts)), before, lengths)
        parts[beside] = n.b.add(parts[beside], placed) if beside in parts else placed
    for axis in reversed(range(rank)):
        parts = _woven(n, parts, axis, blocks.strides[axis], (*lead, *lengths))
        lengths[axis] *= blocks.strides[axis]
    (total,) = parts.values()
    result: Value = n.b.slice(total, starts=(0,) * (rank + 2), sizes=(*lead, *blocks.padded), steps=(1,) * (rank + 2))
    return result


def _woven(n: Node, parts: dict[tuple[int, ...], Value], axis: int, stride: int, shape: tuple[Dim, ...]) -> dict[tuple[int, ...], Value]:
    """Images of every stride-th place along an axis as one; places where nothing is are 0."""
    if stride == 1:
        return {beside[:axis]: part for beside, part in parts.items()}
    apart = (*shape[: axis + 3], 1, *shape[axis + 3 :])
    whole = (*shape[: axis + 2], shape[axis + 2] * stride, *shape[axis + 3 :])
    woven = {}
    for lead in dict.fromkeys(beside[:axis] for beside in parts):
        found = [parts.get((*lead, place)) for place in range(stride)]
        dtype = next(part for part in found if part is not None).dtype
        lines = [n.b.full(shape=apart, value=0.0, dtype=dtype) if part is None else n.b.reshape(part, shape=apart) for part in found]
        woven[lead] = n.b.reshape(n.b.concat(*lines, axis=axis + 3), shape=whole)
    return woven


def _scattered(n: Node, x: Value, blocks: _Blocks) -> Value:
    """Every element added at its place."""
    rank, lead = len(blocks.block), x.shape[:2]
    place = np.zeros((*blocks.block, *blocks.counts), dtype=np.int64)
    for axis in range(rank):
        offset = np.arange(blocks.block[axis]).reshape([-1 if a == axis else 1 for a in range(2 * rank)]) * blocks.dilations[axis]
        start = np.arange(blocks.counts[axis]).reshape([-1 if a == axis + rank else 1 for a in range(2 * rank)]) * blocks.strides[axis]
        place = place * blocks.padded[axis] + offset + start
    flat = n.b.reshape(x, shape=(*lead, place.size))
    zero = n.b.full(shape=(*lead, math.prod(blocks.padded)), value=0.0, dtype=x.dtype)
    index = n.b.broadcast_to(constant(n, place.reshape(1, 1, -1)), shape=(*lead, place.size))
    result: Value = n.b.reshape(n.b.scatter_along_axis(zero, index, flat, axis=2, combine="add"), shape=(*lead, *blocks.padded))
    return result


def _grown(n: Node, x: Value, before: Sequence[int], sizes: Sequence[int]) -> Value:
    """An image with zeros around it, of these sizes."""
    after = [size - low - have for size, low, have in zip(sizes, before, x.shape[2:], strict=True)]
    if not any(before) and not any(after):
        return x
    result: Value = n.b.pad(x, before=(0, 0, *before), after=(0, 0, *after), mode="constant", value=0.0)
    return result
