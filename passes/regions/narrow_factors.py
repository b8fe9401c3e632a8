"""Narrow factors: whether a narrow float holds all that a factor of a product can be, and which factors are rounded to it."""

from __future__ import annotations

from dataclasses import replace

from ...ir.expression import Apply
from ...ir.ops.rounding import holds
from ...ir.region import Reduce, Region, Scalar
from ...ir.types import DType
from .contraction import with_float_sums
from .digits import digits_of, held_by
from .hoist_scales import factors_of, is_scale


def narrow_factors(region: Region) -> Region:
    """The region whose products round a factor where that makes it as narrow as the other one, and nowhere else; the numbers change.

    Every `round` of a factor may be dropped here. Where scales leave the sum (`hoist_scales`) and codes are left that the narrow float
    holds, nothing is lost without it; beside a wide factor nothing is gained by it.

    Before: sum k: mul(cast(x[i, k] : bf16), cast(round(mul(cast(w[j, k]), scale[j]))))
    After:  sum k: mul(cast(x[i, k] : bf16), mul(cast(w[j, k]), scale[j]))
    """
    return replace(region, body=tuple(_narrowed(s) if isinstance(s, Reduce) and s.kind == "sum" else s for s in region.body))


def wide_factors(region: Region) -> Region:
    """The region whose sums of products round no factor that they widen again: arithmetic in f32 gains nothing by it; the numbers change.

    Before: sum k: mul(cast(x[i, k] : bf16), cast(round(mul(cast(w[j, k]), scale[j, k / 32]))))
    After:  sum k: mul(cast(x[i, k] : bf16), mul(cast(w[j, k]), scale[j, k / 32]))
    """
    return with_float_sums(region, _unrounded)


def _unrounded(value: Scalar) -> Scalar | None:
    if not (isinstance(value, Apply) and value.primitive == "cast"):
        return None
    rounded = value.args[0]
    is_widened = isinstance(rounded, Apply) and rounded.primitive == "round" and rounded.args[0].dtype == value.dtype
    return rounded.args[0] if is_widened and isinstance(rounded, Apply) else None


def _narrowed(statement: Reduce) -> Reduce:
    value = statement.value
    if not (isinstance(value, Apply) and value.primitive == "mul"):
        return statement
    left, right = value.args
    return replace(statement, value=replace(value, args=(_factor(left, right, statement.over), _factor(right, left, statement.over))))


def _factor(value: Scalar, other: Scalar, over: tuple[str, ...]) -> Scalar:
    """A factor beside another one, with or without its rounding."""
    if not (isinstance(value, Apply) and value.primitive == "cast"):
        return value
    rounded = value.args[0]
    if not (isinstance(rounded, Apply) and rounded.primitive == "round" and rounded.args[0].dtype == value.dtype):
        return value
    wide = rounded.args[0]
    left = [factor for factor in factors_of(wide, value.dtype.name) if not is_scale(factor, over)]
    whole = len(left) == 1 and is_exact(left[0], rounded.dtype)
    return wide if whole or not is_exact(other, rounded.dtype) else value


def is_exact(value: Scalar, dtype: DType) -> bool:
    """Whether a narrow float holds every number that a factor can be."""
    if holds(dtype, value.dtype):
        return True
    found = digits_of(value)
    return found is not None and found.is_within(held_by(dtype))


def holds_normal(value: Scalar, dtype: DType) -> bool:
    """Whether a narrow float holds every number that a factor can be and that is normal in float32; smaller ones may lose digits there."""
    found = None if holds(dtype, value.dtype) else digits_of(value)
    return is_exact(value, dtype) or (found is not None and found.normal().is_within(held_by(dtype)))


def within(value: Scalar) -> Scalar | None:
    """What a cast widens, if it loses nothing."""
    if not (isinstance(value, Apply) and value.primitive == "cast"):
        return None
    inner = value.args[0]
    is_exact_integer = value.dtype.is_float and inner.dtype.is_integer and is_exact(inner, value.dtype)
    return inner if holds(value.dtype, inner.dtype) or is_exact_integer else None
