"""Places of extremes as two folds that know parts: the extreme itself, then the first place, or the last, of what is equal to it."""

from __future__ import annotations

from dataclasses import replace

from ...ir import dims
from ...ir.expression import Apply, Constant, Index
from ...ir.region import Reduce, Ref, Region, Scalar, Statement, Store
from ...ir.types import boolean, i32, i64
from .simplify_region import unused


def in_two_folds(region: Region) -> Region:
    """The region with each fold for a place as two; the same meaning, of NaN too, which wins.

    Before: p = argmax j: x[i, j]    After: m = max j: x[i, j]; p = min j: where(x[i, j] = m or x[i, j] is NaN, j, J)
    """
    taken = {statement.name for statement in region.body if not isinstance(statement, Store)}
    body: list[Statement] = []
    for statement in region.body:
        if isinstance(statement, Reduce) and statement.kind.startswith("arg"):
            body += _folds(statement, taken)
        else:
            body.append(statement)
    return replace(region, body=tuple(body))


def _folds(fold: Reduce, taken: set[str]) -> tuple[Reduce, Reduce]:
    (axis,) = fold.over
    name = unused(f"{fold.name}_extreme", taken)
    taken.add(name)
    value: Scalar = Apply("cast", (fold.value,), i32) if fold.value.dtype == boolean else fold.value
    extreme = Reduce(name, fold.axes, "max" if fold.kind.startswith("argmax") else "min", fold.over, value, value.dtype)
    found: Scalar = Apply("eq", (value, Ref(name, value.dtype)), boolean)
    if value.dtype.is_float:
        found = Apply("bit_or", (found, Apply("bit_not", (Apply("eq", (value, value), boolean),), boolean)), boolean)
    is_last = fold.kind.endswith("_last")
    nowhere = Constant(-1, i64) if is_last else Constant(2**62, i64)
    place = Apply("where", (found, Index(dims.symbol(axis), i64), nowhere), i64)
    return extreme, replace(fold, kind="max" if is_last else "min", value=place)
