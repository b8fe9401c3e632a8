"""Sums of many numbers in numpy whose error does not grow with their count: what the reference and the interpreters add with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
BLOCK = 16
LONG = 4096
"""A sum of more terms, or of unknown length, is compensated in kernels; a shorter one is a plain running sum."""


def total(x: Array, axes: Sequence[int], keepdims: bool = False) -> Array:
    """The sum over `axes` in x's dtype, pairwise: numpy adds in pairs only along an axis that is contiguous."""
    folded = sorted(axis % x.ndim for axis in axes)
    kept = [axis for axis in range(x.ndim) if axis not in folded]
    sizes = [x.shape[axis] for axis in kept]
    # Copied in C order, so that all that is folded lies side by side.
    flat = np.ascontiguousarray(x.transpose(*kept, *folded)).reshape(*sizes, int(np.prod([x.shape[axis] for axis in folded])))
    result = np.asarray(flat.sum(axis=-1, dtype=x.dtype))
    return result.reshape([1 if axis in folded else size for axis, size in enumerate(x.shape)]) if keepdims else result


PART = 64
"""Products that are added up plainly in a long sum of them."""


def product(a: Array, b: Array) -> Array:
    """The matrix product in the operands' dtype; a long sum in parts, which are added up in twice the digits."""
    depth = a.shape[-1]
    if a.dtype != np.float32 or depth <= LONG:
        return np.asarray(np.matmul(a, b))
    parts = (np.matmul(a[..., first : first + PART], b[..., first : first + PART, :]) for first in range(0, depth, PART))
    result = next(parts).astype(np.float64)
    for part in parts:
        result += part
    return np.asarray(result).astype(a.dtype)


def running(x: Array, axis: int) -> Array:
    """The running sum along an axis in x's dtype; that of blocks is added to the one inside of each."""
    size = x.shape[axis]
    if x.dtype.kind not in "fc" or size <= 2 * BLOCK:
        return np.asarray(np.cumsum(x, axis=axis, dtype=x.dtype))
    last = np.moveaxis(x, axis, -1)
    blocks = -(-size // BLOCK)
    padded = np.zeros((*last.shape[:-1], blocks * BLOCK), x.dtype)
    padded[..., :size] = last
    inside = np.cumsum(padded.reshape(*last.shape[:-1], blocks, BLOCK), axis=-1, dtype=x.dtype)
    before = np.zeros((*last.shape[:-1], blocks), x.dtype)
    before[..., 1:] = running(inside[..., -1], -1)[..., :-1]
    whole = (inside + before[..., None]).reshape(*last.shape[:-1], blocks * BLOCK)[..., :size]
    return np.ascontiguousarray(np.moveaxis(whole, -1, axis))
