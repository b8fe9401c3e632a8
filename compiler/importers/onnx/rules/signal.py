"""Rules of signal processing: Fourier transforms as products with constant matrices, mel filters as constants."""

from __future__ import annotations

import math

import numpy as np

from .....ir import dims
from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.types import f32
from ..context import Node, cast, rule
from ..tensors import element_type
from .movement import slice_axis, transpose
from .pointwise import constant
from .shape import unsqueeze

POINTS = 8192


@rule("DFT")
def _dft(n: Node) -> Value:
    x = n.x(0)
    rank = x.type.rank
    if n.opset >= 20:
        axis = n.integers(2, "the axis")[0] if n.given(2) else -2
    else:
        axis = n.attr_int("axis", 1)
    axis = n.axis(axis, rank)
    if rank < 2 or axis == rank - 1 or all(dims.equal(x.shape[-1], parts, n.facts) is False for parts in (1, 2)):
        raise n.fail(f"got {x.type} and axis {axis}, expected real or complex numbers along the last axis")
    if not isinstance(x.shape[-1], int):
        raise UnsupportedError(
            f"the last axis of {x.type} is symbolic", hint="fix it at import (shapes): 1 for real numbers, 2 for complex"
        )
    inverse, onesided = n.attr_flag("inverse"), n.attr_flag("onesided")
    if n.given(1):
        length = n.integers(1, "the length")[0]
    else:
        size = n.static_shape(x, "the signal")[axis]
        length = 2 * (size - 1) if inverse and onesided else size
    if not 1 <= length <= POINTS:
        raise UnsupportedError(f"transform of {length} points", hint=f"1 to {POINTS} points are supported")
    if inverse and onesided:
        # Half a spectrum of a real signal: the other half is its mirrored conjugate.
        return _real_inverse(n, x, axis, length)
    return transform(n, _fitted(n, x, axis, length), axis, length, inverse, onesided)


def _fitted(n: Node, x: Value, axis: int, length: int) -> Value:
    """x cut or filled with zeros to `length` along `axis`."""
    size = x.shape[axis]
    if not isinstance(size, int):
        raise UnsupportedError(f"transforms the symbolic size {size}", hint="fix it at import (shapes)")
    if size > length:
        return slice_axis(n, x, axis, 0, length)
    after = tuple(length - size if a == axis else 0 for a in range(x.type.rank))
    return n.b.pad(x, before=(0,) * x.type.rank, after=after, mode="constant", value=0.0) if size < length else x


def transform(n: Node, x: Value, axis: int, length: int, inverse: bool, onesided: bool) -> Value:
    """The Fourier transform along `axis` of numbers whose last axis holds real and imaginary parts."""
    bins = length // 2 + 1 if onesided else length
    angle = (2 if inverse else -2) * np.pi * ((np.arange(length)[:, None] * np.arange(bins)[None, :]) % length) / length
    scale = 1 / length if inverse else 1.0
    real, imaginary = (constant(n, (part * scale).astype(x.dtype.numpy)) for part in (np.cos(angle), np.sin(angle)))
    # The transformed axis goes last, beside it the parts of the number in front.
    order = (*(a for a in range(x.type.rank - 1) if a != axis), axis)
    parts = []
    for place in range(dims.number(x.shape[-1])):
        part = slice_axis(n, x, x.type.rank - 1, place, 1)
        parts.append(transpose(n, n.b.reshape(part, shape=x.shape[:-1]), order))
    results = [n.b.matmul(_matrix(n, parts[0]), matrix) for matrix in (real, imaginary)]
    if len(parts) == 2:
        crossed = [n.b.matmul(_matrix(n, parts[1]), matrix) for matrix in (real, imaginary)]
        results = [n.b.sub(results[0], crossed[1]), n.b.add(results[1], crossed[0])]
    shape = (*parts[0].shape[:-1], bins)
    back = tuple(int(a) for a in np.argsort(order))
    joined = [unsqueeze(n, transpose(n, n.b.reshape(cast(n, r, x.dtype), shape=shape), back), (x.type.rank - 1,)) for r in results]
    result: Value = n.b.concat(*joined, axis=x.type.rank - 1)
    return result


def _matrix(n: Node, x: Value) -> Value:
    result: Value = n.b.reshape(x, shape=(dims.product(x.shape[:-1]), x.shape[-1]))
    return result


def _real_inverse(n: Node, x: Value, axis: int, length: int) -> Value:
    bins = length // 2 + 1
    half = _fitted(n, x, axis, bins)
    rest = length - bins
    if rest:
        steps = tuple(-1 if a == axis else 1 for a in range(x.type.rank))
        starts = tuple(rest if a == axis else 0 for a in range(x.type.rank))
        sizes = tuple(rest if a == axis else s for a, s in enumerate(half.shape))
        mirrored = n.b.slice(half, starts=starts, sizes=sizes, steps=steps)
        sign = constant(n, np.array([1, -1], dtype=x.dtype.numpy))
        half = n.b.concat(half, n.b.mul(mirrored, sign), axis=axis)
    return slice_axis(n, transform(n, half, axis, length, True, False), x.type.rank - 1, 0, 1)


@rule("STFT")
def _stft(n: Node) -> Value:
    x = n.x(0)
    step = n.integers(1, "the frame step")[0]
    window = n.optional(2)
    samples = n.static_shape(x, "the signal")[1]
    if n.given(3):
        length = n.integers(3, "the frame length")[0]
    elif window is not None:
        length = n.static_shape(window, "the window")[0]
    else:
        raise n.fail("neither a window nor a frame length is given")
    if step < 1 or not 1 <= length <= min(samples, POINTS):
        raise n.fail(f"frames of {length} every {step} do not fit {samples} samples")
    if x.type.rank == 2:
        x = unsqueeze(n, x, (2,))
    count = 1 + (samples - length) // step
    places = (np.arange(count)[:, None] * step + np.arange(length)[None, :]).astype(np.int64)
    frames = n.b.take(x, constant(n, places), axis=1)
    if window is not None:
        frames = n.b.mul(frames, n.b.reshape(window, shape=(length, 1)))
    onesided = n.attr_flag("onesided", True) and x.shape[-1] == 1
    return transform(n, frames, 2, length, False, onesided)


@rule("MelWeightMatrix")
def _mel(n: Node) -> Value:
    names = ("the number of bands", "the length", "the sample rate", "the lower edge", "the upper edge")
    bands, length, rate, low, high = (float(n.array(k, what).reshape(-1)[0]) for k, what in enumerate(names))
    if not (1 <= bands <= POINTS and 1 <= length <= POINTS * 8 and rate > 0 and 0 <= low < high < math.inf):
        raise n.fail(f"got {bands:g} bands of {length:g} points at {rate:g} from {low:g} to {high:g}")
    dtype = element_type(n.attr_int("output_datatype", 1), n.source)
    spectrum, count = int(length) // 2 + 1, int(bands)
    edges = np.array([2595 * math.log10(1 + edge / 700) for edge in (low, high)])
    centres = edges[0] + np.arange(count + 2) * ((edges[1] - edges[0]) / (count + 2))
    bins = ((int(length) + 1) * (700 * (10 ** (centres / 2595) - 1)) // rate).astype(np.int64)
    weights = np.zeros((spectrum, count))
    for band in range(count):
        lower, centre, upper = (int(b) for b in bins[band : band + 3])
        for place in range(lower, min(max(upper, centre + 1), spectrum)):
            # A triangle whose top is at the centre, even where a side has no width.
            side = centre - lower if place < centre else upper - centre
            weights[place, band] = 1 - abs(place - centre) / side if place != centre else 1
    return constant(n, weights.astype((dtype if dtype.is_float else f32).numpy))
