"""Sums of a few products of small integers, made of floats where no instruction takes several of these at once.

Floats hold every partial sum, so that not a bit is lost, and processors have multiply-adds of floats but not of integers of 32 bits.
"""

from __future__ import annotations

from dataclasses import replace

from ...ir import dims
from ...ir.codes import bounds
from ...ir.expression import Apply
from ...ir.ops.rounding import FLOATS
from ...ir.region import Reduce, Ref, Region, Scalar, Statement, transform
from ...ir.types import f32, i32
from .contraction import Contraction, read_contraction
from .hoist_scales import fresh

DIGITS: int = FLOATS["f32"][0]
"""Bits of the greatest integer up to which f32 holds all of them."""


def exact_floats(region: Region, symbols: dims.Facts) -> Region:
    """The region with a sum of integers made of floats, as in a depthwise convolution of codes; the same numbers.

    Before: %t = sum l, m: mul(cast(x[i, j+l, k+m], i32), cast(w[i, l, m], i32)) : i32
    After:  %t = cast(sum l, m: mul(cast(x[i, j+l, k+m], f32), cast(w[i, l, m], f32)) : f32, i32)

    It is done where both factors vary along one axis of the result and the right one along no axis of its own: a product of matrices
    is made by instructions that multiply bytes.
    """
    if not any(isinstance(statement, Reduce) and statement.dtype == i32 for statement in region.body):
        return region
    found = read_contraction(region)
    if isinstance(found, str) or found.block is not None or found.columns or not found.batch or not _is_exact(region, found, symbols):
        return region
    old = found.reduce
    total = Ref(fresh(old.name, {getattr(statement, "name", "") for statement in region.body}), f32)
    value = Apply("mul", (_float(found.left), _float(found.right)), f32)
    made = replace(old, name=total.name, value=value, dtype=f32)
    return replace(region, body=tuple(made if s is old else _reading(s, old, total) for s in region.body))


def _is_exact(region: Region, found: Contraction, symbols: dims.Facts) -> bool:
    sides = [bounds(side) for side in (found.left, found.right)]
    if found.reduce.dtype != i32 or any(side is None for side in sides):
        return False
    largest = 1
    for low, high in filter(None, sides):
        largest *= max(-low, high)
    terms = dims.product(region.axis(name).extent for name in found.reduce.over)
    return dims.at_most(terms * largest, 1 << DIGITS, symbols) is True


def _float(value: Scalar) -> Scalar:
    """A small integer as a float, without a wider integer between."""
    inner = value.args[0] if isinstance(value, Apply) and value.primitive == "cast" and value.args[0].dtype.is_integer else value
    return Apply("cast", (inner,), f32)


def _reading(statement: Statement, old: Reduce, total: Ref) -> Statement:
    """A statement that reads the new sum, as a float where it is made one."""

    def is_old(part: Scalar) -> bool:
        return isinstance(part, Ref) and part.name == old.name

    def changed(part: Scalar) -> Scalar | None:
        if is_old(part):
            return Apply("cast", (total,), i32)
        is_float_again = isinstance(part, Apply) and part.primitive == "cast" and part.dtype == f32 and is_old(part.args[0])
        return total if is_float_again else None

    return replace(statement, value=transform(statement.value, changed))
