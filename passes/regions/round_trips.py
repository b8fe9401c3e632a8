"""Numbers that become codes and are read back in one kernel: they stay whole numbers in float32, and nothing is packed or unpacked."""

from __future__ import annotations

from ...ir.expression import Apply, Constant
from ...ir.region import Scalar
from ...ir.types import DType, f32, i32

MOST_BITS = 16
"""Of codes whose differences are whole numbers that float32 holds."""


def without_code(value: Scalar) -> Scalar:
    """An expression without the code in it, where it is a code's whole number in f32; any other as it is.

    Before: cast(sub(cast(cast(x, u8), i32), cast(z, i32)), f32)    After: sub(x, cast(z, f32))   (x whole, in the range of u8)

    What is no number has no code that is defined (docs/ops.md), and stays none.
    """
    if not (isinstance(value, Apply) and value.primitive == "cast" and value.dtype == f32):
        return value
    (inner,) = value.args
    zero = None
    if isinstance(inner, Apply) and inner.primitive == "sub" and inner.dtype == i32:
        inner, zero = inner.args
        zero = _narrow(zero)
        if zero is None:
            return value
    code = _narrow(inner)
    if code is None or not isinstance(code, Apply) or code.primitive != "cast" or not _is_whole(code.args[0], code.dtype):
        return value
    return code.args[0] if zero is None else Apply("sub", (code.args[0], Apply("cast", (zero,), f32)), f32)


def _narrow(value: Scalar) -> Scalar | None:
    """A code before it was widened to i32, if it was."""
    if not (isinstance(value, Apply) and value.primitive == "cast" and value.dtype == i32):
        return None
    (code,) = value.args
    return code if code.dtype.is_integer and code.dtype.bits <= MOST_BITS else None


def _is_whole(value: Scalar, code: DType) -> bool:
    """Whether an expression in f32 is a whole number that a code holds: rounded, moved by a zero point, and held in a range."""
    ends: list[float] = []
    for primitive in ("min", "max"):
        if not (isinstance(value, Apply) and value.primitive == primitive and value.dtype == f32):
            return False
        value, end = value.args
        if not (isinstance(end, Constant) and isinstance(end.value, int | float)):
            return False
        ends.append(float(end.value))
    high, low = ends
    least = -(1 << (code.bits - 1)) if code.kind == "int" else 0
    if not (low.is_integer() and high.is_integer() and least <= low <= high < least + (1 << code.bits)):
        return False
    if isinstance(value, Apply) and value.primitive == "add":
        value, moved = value.args
        if not (isinstance(moved, Apply) and moved.primitive == "cast" and moved.args[0].dtype.is_integer):
            return False
    return isinstance(value, Apply) and value.primitive == "round_even"
