"""Reading a region as attention: scores, softmax along one axis, and a second product that folds the same axis.

A sum of terms that hold exp(score - maximum) may be computed piece by piece: a new maximum rescales what was summed
by exp(old - new). From this come the online and the split forms of the strategies.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...ir import dims
from ...ir.expression import Apply
from ...ir.region import Let, Reduce, Ref, Region, Scalar, Statement, Store, walk
from ...ir.types import DType
from ..regions.contraction import axes_of
from .limits import Limit, limits_of


@dataclass(frozen=True)
class Attention:
    """result = sum over `column` of exp(score - max) * value, total = sum of the same exponentials.

    `query` varies over the row axis, `key` does not; `row` is None where there is one row. `before` are the named
    values under the score, `score` is what the maximum is taken of, `after` follows the sums. `weights` is what the exponentials
    are rounded to for the product. Columns count within `limits`.
    """

    batch: tuple[str, ...]
    row: str | None
    column: str
    inner: tuple[str, ...]
    feature: str
    product: Reduce
    query: Scalar
    key: Scalar
    before: tuple[Let, ...]
    score: Scalar
    result: Reduce
    value: Scalar
    weights: DType
    total: Reduce
    after: tuple[Let, ...]
    store: Store
    limits: tuple[Limit, ...]

    @property
    def is_causal(self) -> bool:
        """Whether columns beyond the row's index do not count."""
        if self.row is None:
            return False
        place = dims.symbol(self.row) - dims.symbol(self.column)
        return any(limit.place == place for limit in self.limits)


def read_attention(region: Region) -> Attention | str:
    """The attention that a region is, or why it is not one."""
    reduces = [s for s in region.body if isinstance(s, Reduce)]
    stores = [s for s in region.body if isinstance(s, Store)]
    if [r.kind for r in reduces] != ["sum", "max", "sum", "sum"] or len(stores) != 1 or stores[0].gathers:
        return "the region is not a product, a maximum and two sums that end in one result"
    product, highest, *sums = reduces
    if len(highest.over) != 1 or any(s.over != highest.over for s in sums):
        return "the sums do not fold the axis of the maximum"
    (column,) = highest.over
    weight = _weight(region, highest)
    if weight is None:
        return "there is no exp(score - maximum)"
    totals = [s for s in sums if s.value == Ref(weight.name, weight.value.dtype)]
    results = [s for s in sums if s not in totals]
    if len(totals) != 1 or len(results) != 1:
        return "the two sums are not of the exponentials and of their product with a value"
    second = _weighted(results[0].value, weight)
    factors = _factors(product.value)
    features = [name for name in results[0].axes if name not in highest.axes]
    if second is None or factors is None or len(features) != 1:
        return "the second sum is not a product of the exponentials with a value of one more axis"
    return _assemble(region, product, highest, totals[0], results[0], weight, second, factors, features[0], stores[0], column)


def _assemble(
    region: Region,
    product: Reduce,
    highest: Reduce,
    total: Reduce,
    result: Reduce,
    weight: Let,
    second: tuple[Scalar, DType],
    factors: tuple[Scalar, Scalar],
    feature: str,
    store: Store,
    column: str,
) -> Attention | str:
    value, rounded = second
    query, key = factors if column in axes_of(factors[1]) else factors[::-1]
    if column in axes_of(query) or column not in axes_of(key):
        return "the first product does not have one factor that varies over the folded axis"
    rows = [name for name in highest.axes if name in axes_of(query) and name not in axes_of(key) | axes_of(value)]
    lets = [s for s in region.body if isinstance(s, Let)]
    place = region.body.index(highest)
    before = tuple(s for s in lets if region.body.index(s) < place)
    inner = {highest.name, weight.name}
    after = []
    for let in (s for s in lets if region.body.index(s) > place and s is not weight):
        if any(isinstance(p, Ref) and p.name in inner for p in walk(let.value)):
            inner.add(let.name)
        else:
            after.append(let)
    following: tuple[Statement, ...] = (*after, store)
    if any(isinstance(p, Ref) and p.name in inner for s in following for p in walk(s.value)):
        return "the maximum is read outside of the exponentials"
    batch = tuple(name for name in highest.axes if name not in rows[-1:])
    row = rows[-1] if rows else None
    score = highest.value
    return Attention(
        batch, row, column, product.over, feature, product, query, key, before, score, result, value, rounded, total, tuple(after), store,
        limits_of(score, before),
    )  # fmt: skip


def _weight(region: Region, highest: Reduce) -> Let | None:
    """The named exp(score - maximum); the maximum may have been made finite first."""
    safe = {highest.name}
    for statement in region.body:
        if not isinstance(statement, Let):
            continue
        value = statement.value
        if isinstance(value, Apply) and value.primitive == "where" and any(isinstance(p, Ref) and p.name in safe for p in walk(value)):
            safe.add(statement.name)
        if isinstance(value, Apply) and value.primitive == "exp":
            (difference,) = value.args
            if isinstance(difference, Apply) and difference.primitive == "sub" and difference.args[0] == highest.value:
                subtrahend = difference.args[1]
                if isinstance(subtrahend, Ref) and subtrahend.name in safe:
                    return statement
    return None


def _factors(value: Scalar) -> tuple[Scalar, Scalar] | None:
    if isinstance(value, Apply) and value.primitive == "mul":
        left, right = value.args
        return left, right
    return None


def _weighted(value: Scalar, weight: Let) -> tuple[Scalar, DType] | None:
    """What a weight is multiplied with, and the type that it is rounded to for that."""
    factors = _factors(value)
    for own, other in (factors, factors[::-1]) if factors is not None else ():
        rounded = own.args[0] if isinstance(own, Apply) and own.primitive == "cast" else own
        read = rounded.args[0] if isinstance(rounded, Apply) and rounded.primitive == "round" else own
        if read == Ref(weight.name, weight.value.dtype):
            return other, own.dtype if read is own else rounded.dtype
    return None
