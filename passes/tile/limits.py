"""Limits of scores: the conditions on indices under which a score counts, and the columns that a block of rows looks at by them.

Below the diagonal, or in a window around it, most blocks of columns count as a whole or not at all. Those at an edge look at
every score; the others need not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ...ir import dims
from ...ir.dims import Dim, Facts
from ...ir.expression import Apply, Constant, Index
from ...ir.region import Let, Ref, Scalar
from ...ir.tile import Scope, simplify
from ...ir.types import boolean

LOOKED = 16
"""Blocks of rows, spread over all, that stand for the others where their columns are counted."""


@dataclass(frozen=True)
class Limit:
    """A condition of a score that holds where `place`, an index expression, is at least 0."""

    condition: Scalar
    place: Dim


@dataclass(frozen=True)
class Block:
    """Rows `first` .. first + count of the axis `row` (None: one row), which look at columns in steps of `step`.

    `columns` is how many there are; of these the block takes those of `part`, whose ends are multiples of the step.
    """

    row: str | None
    first: Dim
    count: int
    column: str
    columns: Dim
    step: int
    part: tuple[Dim, Dim] | None = None


@dataclass(frozen=True)
class Spans:
    """Ranges of columns whose ends are multiples of the step: at `edges` scores may not count, in `plain` all of them do."""

    edges: tuple[tuple[Dim, Dim], ...]
    plain: tuple[Dim, Dim]


# --- conditions -------------------------------------------------------------------------------------------------------


def resolved(value: Scalar, lets: Sequence[Let]) -> Scalar:
    """What a named value is, if it is one of `lets`."""
    named = {let.name: let.value for let in lets}
    while isinstance(value, Ref) and value.name in named:
        value = named[value.name]
    return value


def limits_of(score: Scalar, lets: Sequence[Let]) -> tuple[Limit, ...]:
    """The comparisons of indices among the conditions without which a score is -inf."""
    found = []
    value = resolved(score, lets)
    while isinstance(value, Apply) and value.primitive == "where" and _is_lowest(value.args[2]):
        for condition in _conjuncts(value.args[0], lets):
            place = _place(condition, lets)
            if place is not None:
                found.append(Limit(condition, place))
        value = resolved(value.args[1], lets)
    return tuple(found)


def without(score: Scalar, lets: Sequence[Let], limits: Sequence[Limit]) -> Scalar:
    """The score where these limits are known to hold."""
    value = resolved(score, lets)
    if not (isinstance(value, Apply) and value.primitive == "where" and _is_lowest(value.args[2])):
        return value
    known = [limit.condition for limit in limits]
    inner = without(value.args[1], lets, limits)
    every = [*_conjuncts(value.args[0], lets)]
    left = [condition for condition in every if condition not in known]
    for condition in left if len(left) < len(every) else (value.args[0],):
        inner = Apply("where", (condition, inner, value.args[2]), value.dtype)
    return inner


def factored(score: Scalar, lets: Sequence[Let]) -> tuple[Scalar, float]:
    """(a score, a positive number it is to be multiplied with): -inf, where a score does not count, stays what it is."""
    value = resolved(score, lets)
    if isinstance(value, Apply) and value.primitive == "where" and _is_lowest(value.args[2]):
        inner, factor = factored(value.args[1], lets)
        return Apply("where", (value.args[0], inner, value.args[2]), value.dtype), factor
    if isinstance(value, Apply) and value.primitive == "mul":
        for left, right in (value.args, value.args[::-1]):
            if isinstance(right, Constant) and isinstance(right.value, float) and right.value > 0:
                return left, right.value
    return value, 1.0


def _is_lowest(value: Scalar) -> bool:
    return isinstance(value, Constant) and value.value == float("-inf")


def _conjuncts(condition: Scalar, lets: Sequence[Let]) -> Iterator[Scalar]:
    """Conditions that hold together where this one does."""
    condition = resolved(condition, lets)
    if isinstance(condition, Apply) and condition.primitive in ("mul", "min", "bit_and") and condition.dtype == boolean:
        for part in condition.args:
            yield from _conjuncts(part, lets)
    elif isinstance(condition, Apply) and condition.primitive == "bit_not":
        yield from _denied(resolved(condition.args[0], lets), lets)
    else:
        yield condition


def _denied(condition: Scalar, lets: Sequence[Let]) -> Iterator[Scalar]:
    """Conditions that hold together where this one does not."""
    if isinstance(condition, Apply) and condition.primitive == "bit_not":
        yield from _conjuncts(condition.args[0], lets)
    elif isinstance(condition, Apply) and condition.primitive in ("add", "max", "bit_or") and condition.dtype == boolean:
        for part in condition.args:
            yield from _denied(resolved(part, lets), lets)
    elif isinstance(condition, Apply) and condition.primitive in OPPOSITE and condition.args[0].dtype.is_integer:
        yield Apply(OPPOSITE[condition.primitive], condition.args[::-1], boolean)
    else:
        yield Apply("bit_not", (condition,), boolean)


OPPOSITE = {"le": "lt", "lt": "le"}
"""What holds of two integers, the other way round, where a comparison does not."""


def _place(condition: Scalar, lets: Sequence[Let]) -> Dim | None:
    if not (isinstance(condition, Apply) and condition.primitive in ("le", "lt")):
        return None
    left, right = (_index(part, lets) for part in condition.args)
    if left is None or right is None:
        return None
    return right - left - (1 if condition.primitive == "lt" else 0)


def _index(value: Scalar, lets: Sequence[Let]) -> Dim | None:
    """A value as an index expression, if it is one; sums that may come near the end of 32 bits, where they wrap, are none."""
    value = resolved(value, lets)
    found: Dim | None = None
    if isinstance(value, Index):
        found = value.value
    elif not value.dtype.is_integer or value.dtype.bits < 32:
        return None
    elif isinstance(value, Constant):
        found = int(value.value.real)
    elif isinstance(value, Apply) and value.primitive in ("add", "sub", "cast"):
        parts = [_index(part, lets) for part in value.args]
        if parts[0] is not None and parts[-1] is not None:
            found = parts[0] if len(parts) == 1 else parts[0] + parts[-1] if value.primitive == "add" else parts[0] - parts[-1]
    return None if found is None or dims.magnitude(found) > FARTHEST else found


FARTHEST = 1 << 29
"""How far from an axis an index may lie: sizes are taken to be smaller too, so that sums of two such stay within 32 bits."""


# --- columns ----------------------------------------------------------------------------------------------------------


def spans_of(block: Block, limits: Sequence[Limit], facts: Facts) -> tuple[Spans, tuple[Limit, ...]]:
    """The columns that a block of rows looks at, and the limits that hold in all that are plain."""
    lows, highs, known = _ends(block, limits)
    scope = Scope(facts)

    def down(value: Dim) -> Dim:
        return _down(value, block.step, scope)

    def up(value: Dim) -> Dim:
        return down(value + (block.step - 1))

    start, end = looked_at(block, limits, facts)
    plain_start: Dim = 0
    last = block.columns
    for _, sure in lows:
        plain_start = dims.maximum(plain_start, up(sure))
    for _, sure in highs:
        last = dims.minimum(last, sure)
    is_ragged = bool(highs) or dims.divides(block.step, block.columns, facts) is not True
    end, last = up(end), down(last)
    if block.part is not None:
        start, plain_start = dims.maximum(start, block.part[0]), dims.maximum(plain_start, block.part[0])
        end, last = dims.minimum(end, block.part[1]), dims.minimum(last, block.part[1])
    start, plain_start, end, last = (simplify(scope, value) for value in (start, plain_start, end, last))
    edges = []
    if lows:
        plain_start = simplify(scope, dims.minimum(plain_start, end))
        edges.append((start, plain_start))
    if is_ragged:
        edges.append((simplify(scope, dims.maximum(plain_start, last)), end))
    return Spans(tuple(edges), (plain_start, last if is_ragged else end)), known


def looked_at(block: Block, limits: Sequence[Limit], facts: Facts) -> tuple[Dim, Dim]:
    """The first column that a block of rows looks at, a multiple of the step, and where the columns end that count in some row."""
    lows, highs, _ = _ends(block, limits)
    scope = Scope(facts)
    start: Dim = 0
    for possible, _ in lows:
        start = dims.maximum(start, _down(possible, block.step, scope))
    end = block.columns
    for possible, _ in highs:
        end = dims.minimum(end, possible)
    return simplify(scope, start), simplify(scope, end)


def share_looked_at(block: Block, rows: float, limits: Sequence[Limit]) -> float:
    """The share of the columns, a number, that blocks of rows look at on average where there are so many `rows`."""
    if not isinstance(block.columns, int) or block.row is None or block.columns < 1:
        return 1.0
    total = 0.0
    for number in range(LOOKED):
        first = int((number + 0.5) * max(0.0, rows - block.count) / LOOKED)
        start, end = looked_at(replace(block, first=first), limits, Facts())
        if not (isinstance(start, int) and isinstance(end, int)):
            return 1.0
        total += max(0, end - start)
    return min(1.0, total / LOOKED / block.columns)


def _down(value: Dim, step: int, scope: Scope) -> Dim:
    beyond = simplify(scope, value % step)
    return value - beyond if isinstance(beyond, int) else value // step * step


UNUSED = "%group"
"""A symbol for groups of rows: no name of a region has such a sign."""

Ends: TypeAlias = list[tuple[Dim, Dim]]


def _ends(block: Block, limits: Sequence[Limit]) -> tuple[Ends, Ends, tuple[Limit, ...]]:
    """Where columns begin that count in some row and in every row, where they end, and the limits that say so."""
    lows: Ends = []
    highs: Ends = []
    known = []
    for limit in limits:
        bounds = _bounds(limit, block)
        if bounds is not None:
            is_high, possible, sure = bounds
            (highs if is_high else lows).append((possible, sure))
            known.append(limit)
    return lows, highs, tuple(known)


def _bounds(limit: Limit, block: Block) -> tuple[bool, Dim, Dim] | None:
    """(whether the limit is one above, where columns end that count in some row, in every row), or the same of starts."""
    place = limit.place
    rest = dims.substitute(place, {block.column: 0})
    if place == rest - dims.symbol(block.column):
        is_high = True
    elif place == rest + dims.symbol(block.column):
        is_high = False
    else:
        return None
    ends = [rest, rest]
    if block.row is not None:
        slope = _slope(rest, block.row)
        if slope is None:
            return None
        ends = [dims.substitute(rest, {block.row: row}) for row in (block.first, block.first + (block.count - 1))]
        ends = ends if slope >= 0 else ends[::-1]
    least, most = ends
    return (True, most + 1, least + 1) if is_high else (False, -most, -least)


def _slope(place: Dim, row: str) -> int | None:
    """What a place grows by with a row, or with a group of rows beside each other that share it; None where that is no constant."""
    size = max(_divisors(place, row), default=1)
    group = dims.symbol(UNUSED)
    facts = Facts().with_range(UNUSED, 0, None)
    first, last = (dims.simplify(dims.substitute(place, {row: group * size + within}), facts) for within in (0, size - 1))
    start = dims.substitute(first, {UNUSED: 0})
    slope = dims.substitute(first, {UNUSED: 1}) - start
    return slope if isinstance(slope, int) and first == last == start + group * slope else None


def _divisors(place: Dim, row: str) -> Iterator[int]:
    """The numbers that a row is divided by in a place."""
    for monomial, _ in () if isinstance(place, int) else place.terms:
        for atom in monomial:
            if isinstance(atom, dims.Function) and atom.kind == "div" and atom.left == dims.symbol(row) and isinstance(atom.right, int):
                yield atom.right
