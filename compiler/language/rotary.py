"""Rotary position embedding on the graph builder: angles of every scaling kind, once a call for all layers.

Su et al., RoFormer (2021); the scalings as `transformers` (modeling_rope_utils) defines them. All in f32, as there.
"""

from __future__ import annotations

import math

import numpy as np

from ...ir.graph import Builder, Value
from ...ir.types import f32
from .config import Rotation, yarn_amplitude

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def frequencies(rotation: Rotation) -> tuple[Array, Array, float]:
    """Radians a position for each pair, up to the original context and past it, and what cosine and sine are multiplied by."""
    plain = _plain(rotation)
    if rotation.scaling == "linear":
        plain = _divided(plain, rotation.long) / np.float32(rotation.factor)
        return plain, plain, 1.0
    if rotation.scaling == "llama3":
        plain = _llama3(rotation, plain)
    if rotation.scaling == "yarn":
        return _yarn(rotation, plain)
    if rotation.scaling == "longrope":
        return _divided(plain, rotation.short), _divided(plain, rotation.long), _amplitude_of_longrope(rotation)
    shared = _divided(plain, rotation.long)
    return shared, shared, 1.0


def angles(b: Builder, rotation: Rotation, positions: Value, length: Value) -> tuple[Value, Value]:
    """Cosine and sine f32[.., D] for positions i64[..]; `length` (i64[], or [.., 1, 1]) is how many positions a call sees."""
    near, far, amplitude = frequencies(rotation)
    if rotation.scaling == "dynamic":
        used = b.where(b.gt(length, rotation.original), _dynamic(b, rotation, length), near)
    elif np.array_equal(near, far):
        used = b.value(near)
    else:
        used = b.where(b.gt(length, rotation.original), far, near)
    turned = b.mul(b.reshape(b.cast(positions, dtype=f32), shape=(*positions.shape, 1)), used)
    both = b.concat(turned, turned, axis=len(positions.shape))
    cosine, sine = b.cos(both), b.sin(both)
    return (cosine, sine) if amplitude == 1.0 else (b.mul(cosine, amplitude), b.mul(sine, amplitude))


def rotated(b: Builder, x: Value, cosine: Value, sine: Value) -> Value:
    """x [.., D] with its halves turned as pairs, numbers past the rotated ones as they are."""
    size, whole = cosine.shape[-1], x.shape[-1]
    assert isinstance(size, int) and isinstance(whole, int)
    turned = x if size == whole else _part(b, x, 0, size)
    low, high = _part(b, turned, 0, size // 2), _part(b, turned, size // 2, size - size // 2)
    result: Value = b.add(b.mul(turned, cosine), b.mul(b.concat(b.neg(high), low, axis=len(x.shape) - 1), sine))
    return result if size == whole else b.concat(result, _part(b, x, size, whole - size), axis=len(x.shape) - 1)


def _part(b: Builder, x: Value, start: int, size: int) -> Value:
    rank = len(x.shape)
    part: Value = b.slice(x, starts=(0,) * (rank - 1) + (start,), sizes=(*x.shape[:-1], size), steps=(1,) * rank)
    return part


def _plain(rotation: Rotation, base: float | None = None) -> Array:
    exponents = np.arange(0, rotation.size, 2, dtype=np.int64).astype(np.float32) / np.float32(rotation.size)
    result: Array = (np.float32(1) / np.power(np.float32(base or rotation.base), exponents)).astype(np.float32)
    return result


def _divided(plain: Array, divisors: tuple[float, ...]) -> Array:
    return plain if not divisors else (plain / np.asarray(divisors, np.float32)).astype(np.float32)


def _llama3(rotation: Rotation, plain: Array) -> Array:
    lengths = 2 * math.pi / plain
    longest, shortest = rotation.original / rotation.low, rotation.original / rotation.high
    smooth = (rotation.original / lengths - rotation.low) / (rotation.high - rotation.low)
    between = (1 - smooth) * plain / rotation.factor + smooth * plain
    slow = np.where(lengths > longest, plain / rotation.factor, plain)
    return np.where((lengths <= longest) & (lengths >= shortest), between, slow).astype(np.float32)


def _yarn(rotation: Rotation, plain: Array) -> tuple[Array, Array, float]:
    def place(turns: float) -> float:
        return rotation.size * math.log(rotation.original / (turns * 2 * math.pi)) / (2 * math.log(rotation.base))

    low = max(math.floor(place(rotation.fast)), 0)
    high = min(math.ceil(place(rotation.slow)), rotation.size - 1)
    ramp = np.clip((np.arange(rotation.size // 2, dtype=np.float32) - low) / (max(high - low, 0.001)), 0, 1)
    kept = 1 - ramp
    mixed = (plain / np.float32(rotation.factor) * (1 - kept) + plain * kept).astype(np.float32)
    amplitude = rotation.amplitude
    if amplitude is None:
        amplitude = yarn_amplitude(rotation.factor)
    return mixed, mixed, amplitude


def _amplitude_of_longrope(rotation: Rotation) -> float:
    if rotation.amplitude is not None:
        return rotation.amplitude
    return 1.0 if rotation.factor <= 1 else math.sqrt(1 + math.log(rotation.factor) / math.log(rotation.original))


def _dynamic(b: Builder, rotation: Rotation, length: Value) -> Value:
    """Frequencies of a base that grows with the length."""
    ratio = b.mul(b.cast(length, dtype=f32), rotation.factor / rotation.original)
    power = rotation.size / (rotation.size - 2)
    base = b.mul(b.pow(b.sub(ratio, rotation.factor - 1), power), rotation.base)
    exponents = np.arange(0, rotation.size, 2, dtype=np.int64).astype(np.float32) / np.float32(rotation.size)
    result: Value = b.reciprocal(b.pow(base, exponents))
    return result
