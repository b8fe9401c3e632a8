"""Sample operands that ops are tested with: seeded arrays of any dtype, edge shapes and special values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import scalar
from ..types import DType, boolean, f16, f32
from ..types import bf16 as bf16
from .table import Sample

EDGE_SHAPES: tuple[tuple[int, ...], ...] = ((3, 5), (), (0, 3), (1,))
SPECIALS = (float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1.0, -1.5, 3.0e4, 1.0e-30, 0.5, 2.5)


def draw(*shape: int, dtype: DType = f32, low: float = -3.0, high: float = 3.0, seed: int = 0) -> np.ndarray[Any, Any]:
    """A seeded array: uniform in low..high, integers included at both ends (unsigned from 0), bools as coin flips."""
    generator = np.random.default_rng((seed, *shape))
    if dtype == boolean:
        return np.asarray(generator.integers(0, 2, shape), dtype=np.bool_)
    if dtype.is_integer:
        least = 0 if dtype.kind == "uint" else int(low)
        return scalar.convert(np.asarray(generator.integers(least, int(high) + 1, shape), dtype=np.int64), dtype)
    values = generator.uniform(low, high, shape)
    if dtype.kind == "complex":
        return scalar.convert(np.asarray(values + 1j * generator.uniform(low, high, shape)), dtype)
    return scalar.convert(np.asarray(values, dtype=np.float64), dtype)


def array(*values: Any, dtype: DType = f32) -> np.ndarray[Any, Any]:
    """A vector of these values; bools, integers or floats."""
    return scalar.convert(np.asarray(values), dtype)


def specials(dtype: DType = f32) -> np.ndarray[Any, Any]:
    """NaN, infinities, both zeros and a few plain values."""
    return scalar.convert(np.asarray(SPECIALS, dtype=np.float64), dtype)


def float_arrays(low: float = -3.0, high: float = 3.0) -> Iterator[np.ndarray[Any, Any]]:
    """Float arrays at edge shapes, in both narrow types, and with special values."""
    for seed, shape in enumerate(EDGE_SHAPES):
        yield draw(*shape, low=low, high=high, seed=seed)
    yield draw(4, 3, dtype=f16, low=low, high=high)
    yield draw(4, 3, dtype=bf16, low=low, high=high)
    yield specials()


def unary(**attrs: Any) -> Iterator[Sample]:
    """Samples of a unary op on floats."""
    for values in float_arrays():
        yield Sample((values,), attrs)


def refused(operands: tuple[np.ndarray[Any, Any] | None, ...], error: str, **attrs: Any) -> Sample:
    """A failing sample: type inference must raise a VerifyError that contains `error`."""
    return Sample(operands, attrs, error)
