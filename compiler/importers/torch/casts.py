"""Casts as torch makes them: what goes through float32 on the way, and which narrow floats saturate in this release."""

from __future__ import annotations

import functools

import numpy as np

from ....ir.graph import Builder, Value
from ....ir.ops.quantization import limits
from ....ir.types import DType, f16, f32, f64
from ....runtime.arrays import torch_dtype
from .. import moves
from ..saturate import saturating_cast


@functools.cache
def saturates(dtype: DType) -> bool:
    """Whether a number too large becomes the largest one: torch 2.13 does so for float8_e4m3fn, and it alone is asked."""
    if not dtype.is_float or dtype.bits != 8 or dtype.name == "f8e8m0":
        return False
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    # Within a capture, tensors are fake and have no numbers.
    with _disable_current_modes():
        largest = torch.finfo(torch_dtype(dtype)).max
        beyond = torch.tensor([4 * largest], dtype=torch.float32, device="cpu").to(torch_dtype(dtype))
        return bool(beyond.float()[0] == largest)


def cast(b: Builder, x: Value, dtype: DType) -> Value:
    """x in a dtype; itself where it has it."""
    if x.dtype == dtype:
        return x
    if saturates(dtype):
        return saturating_cast(b, x, dtype)
    if x.dtype == f64 and dtype == f16:
        # Torch's conversion rounds twice.
        x = b.cast(x, dtype=f32)
    return moves.cast(b, x, dtype)


def rounded(number: float, dtype: DType) -> float:
    """A Python number as a tensor of that dtype is filled with it, where that is another number than a plain rounding."""
    if saturates(dtype) and number == number:
        low, high = limits(dtype)
        return min(max(number, low), high)
    with np.errstate(over="ignore"):
        return float(np.float32(number)) if dtype == f16 else number
