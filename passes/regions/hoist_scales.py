"""Hoisting of scales: a factor that is the same for every term of a sum of products multiplies the sum instead."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ...ir import dims
from ...ir.expression import Apply
from ...ir.region import Let, Load, Reduce, Ref, Region, Scalar, Statement, Store, walk
from .digits import digits_of

MOST = 32
"""Factors that a product is taken apart into."""
SMALL = 65536.0
"""Scales of at most this bring no sum of codes beyond what f32 holds."""


def hoist_scales(region: Region) -> Region:
    """The region with loads that do not vary along a sum moved behind it; the numbers of the sum change (REASSOCIATES).

    Before: s = sum k: mul(x[i, k], mul(cast(w[j, k]), scale[j]))
    After:  t = sum k: mul(x[i, k], cast(w[j, k]))   s = mul(t, scale[j])

    Scales of the right factor come first: weights bring a sum of codes down before the scales of activations, which may be of any size,
    bring it up. For the same reason they stay in the sum where activations have scales for blocks of it that may be of any size, and
    cannot leave it.
    """
    taken = {statement.name for statement in region.body if not isinstance(statement, Store)}
    body: list[Statement] = []
    for statement in region.body:
        scales = _scales(statement) if isinstance(statement, Reduce) else []
        rest = _without(statement.value, scales) if scales else None
        if not isinstance(statement, Reduce) or rest is None:
            body.append(statement)
            continue
        name = fresh(statement.name, taken)
        taken.add(name)
        body.append(replace(statement, name=name, value=rest))
        value: Scalar = Ref(name, statement.dtype)
        for scale in reversed(scales):
            value = Apply("mul", (value, scale), statement.dtype)
        body.append(Let(statement.name, statement.axes, value))
    return replace(region, body=tuple(body))


def fresh(name: str, taken: Collection[str]) -> str:
    """The name with the first number behind it that makes it a new one."""
    return next(n for n in (f"{name}_{k}" for k in range(len(taken) + 1)) if n not in taken)


def _scales(statement: Reduce) -> list[Scalar]:
    """The factors of a float sum that stay the same along it, if at least two others are left: a product of tensors."""
    if statement.kind != "sum" or not statement.dtype.is_float:
        return []
    factors = factors_of(statement.value, statement.dtype.name)
    movable = factors
    if isinstance(statement.value, Apply) and statement.value.primitive == "mul":
        left = factors_of(statement.value.args[0], statement.dtype.name)
        movable = left if any(_is_of_blocks(factor, statement.over) for factor in left) else factors
    fixed = [factor for factor in movable if is_scale(factor, statement.over)]
    return fixed if len(factors) - len(fixed) >= 2 else []


def factors_of(value: Scalar, dtype: str) -> list[Scalar]:
    """The factors of nested products in one dtype; the value itself where there are more than `MOST`, as of a square of squares."""
    found: list[Scalar] = []
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, Apply) and part.primitive == "mul" and part.dtype.name == dtype:
            pending += reversed(part.args)
        else:
            found.append(part)
        if len(found) + len(pending) > MOST:
            return [value]
    return found


def is_scale(value: Scalar, over: tuple[str, ...]) -> bool:
    """Whether a factor is one loaded number, under conversions, at subscripts that do not vary along the sum."""
    load = _loaded(value)
    return load is not None and not any(dims.symbols(subscript) & set(over) for subscript in load.subscripts)


def _is_of_blocks(value: Scalar, over: tuple[str, ...]) -> bool:
    """Whether a factor is one loaded number of any size for each of several neighbours along the sum."""
    load = _loaded(value)
    if load is None or is_scale(value, over) or _is_small(load):
        return False
    first, second = (dict.fromkeys(over, place) for place in (0, 1))
    return all(dims.substitute(subscript, first) == dims.substitute(subscript, second) for subscript in load.subscripts)


def _is_small(load: Load) -> bool:
    found = digits_of(load)
    return found is not None and found.most <= SMALL


def _loaded(value: Scalar) -> Load | None:
    """The one number that is loaded, under conversions alone."""
    parts = list(walk(value))
    loads = [part for part in parts if isinstance(part, Load)]
    plain = all(isinstance(part, Load) or (isinstance(part, Apply) and part.primitive in ("cast", "round")) for part in parts)
    if not plain or len(loads) != 1 or loads[0].gathers or loads[0].other is not None:
        return None
    return loads[0]


def _without(value: Scalar, scales: list[Scalar]) -> Scalar | None:
    """The product without some of its factors; None if nothing is left."""
    if any(value is scale for scale in scales):
        return None
    if not (isinstance(value, Apply) and value.primitive == "mul"):
        return value
    left, right = (_without(arg, scales) for arg in value.args)
    if left is None or right is None:
        return right if left is None else left
    return replace(value, args=(left, right))
