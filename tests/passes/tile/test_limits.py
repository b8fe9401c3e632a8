"""Limits of scores as ranges of columns: every column that counts is looked at, and in the plain range all of them count."""

from __future__ import annotations

import itertools
import random

import pytest

from ourcc.ir import dims
from ourcc.ir.dims import Dim, Facts
from ourcc.ir.expression import Apply, Constant, Index
from ourcc.ir.region import Let, Ref, Scalar
from ourcc.ir.types import boolean, f32, i64
from ourcc.passes.tile.limits import Block, Limit, factored, limits_of, looked_at, share_looked_at, spans_of, without

ROW, COLUMN = dims.symbol("i"), dims.symbol("j")
LOWEST = Constant(float("-inf"), f32)


def index(value: Dim) -> Scalar:
    return Index(value, i64)


def limit(place: Dim) -> Limit:
    return Limit(Apply("le", (index(0), index(place)), boolean), place)


def numbers(span: tuple[Dim, Dim], values: dict[str, int]) -> range:
    low, high = (dims.evaluate(end, values) for end in span)
    return range(low, max(low, high))


@pytest.mark.parametrize("seed", range(60))
def test_spans_hold_every_column_that_counts(seed: int) -> None:
    draw = random.Random(seed)
    step, rows, count = draw.choice((4, 8)), draw.choice((1, 4, 8, 16)), draw.randint(1, 40)
    places = [ROW - COLUMN + draw.randint(-9, 9), COLUMN - ROW + draw.randint(-3, 20), 30 - COLUMN, COLUMN - 5, COLUMN + ROW - 12]
    if draw.random() < 0.4:
        # Rows of several heads beside each other share their places.
        places = [dims.substitute(place, {"i": ROW // draw.choice((2, 3, 4))}) for place in places]
    limits = [limit(place) for place in draw.sample(places, draw.randint(0, 3))]
    columns: Dim = dims.symbol("S") if draw.random() < 0.5 else count
    facts = Facts({"S": dims.Range(1, 40)}).with_range("i.first", 0, None, rows).with_range("part", 0, 3)
    chunk = dims.ceil_div(columns, 4 * step) * step
    part = (dims.symbol("part") * chunk, dims.symbol("part") * chunk + chunk) if draw.random() < 0.4 else None
    spans, known = spans_of(Block("i", dims.symbol("i.first"), rows, "j", columns, step, part), limits, facts)
    assert set(known) <= set(limits)
    whole = looked_at(Block("i", dims.symbol("i.first"), rows, "j", columns, step), limits, facts)
    for first, number in itertools.product(range(0, 40, rows), range(4)):
        values = {"i.first": first, "part": number, "S": count}
        looked = [column for span in (*spans.edges, spans.plain) for column in numbers(span, values)]
        assert len(set(looked)) == len(looked)
        taken = numbers(part, values) if part is not None else range(count)
        for row in range(first, first + rows):
            counts = {c for c in range(count) if all(dims.evaluate(each.place, {"i": row, "j": c}) >= 0 for each in limits)}
            assert counts & set(taken) <= set(looked)
            assert counts <= set(numbers(whole, values)) and dims.evaluate(whole[0], values) % step == 0
            assert set(numbers(spans.plain, values)) <= {
                c for c in range(count) if all(dims.evaluate(each.place, {"i": row, "j": c}) >= 0 for each in known)
            }
        for span in (*spans.edges, spans.plain):
            assert all(end % step == 0 for end in (dims.evaluate(end, values) for end in span)) or not numbers(span, values)


def test_below_the_diagonal_one_block_is_an_edge() -> None:
    facts = Facts().with_range("i.first", 0, 4096 - 128, 128)
    spans, _ = spans_of(Block("i", dims.symbol("i.first"), 128, "j", 4096, 64), [limit(ROW - COLUMN)], facts)
    first = dims.symbol("i.first")
    assert spans.edges == ((first, first + 128),) and spans.plain == (0, first)
    everything, _ = spans_of(Block("i", first, 128, "j", 4096, 64), [], facts)
    assert everything.edges == () and everything.plain == (0, 4096)


def test_rows_of_heads_share_their_edge() -> None:
    facts = Facts().with_range("i.first", 0, 4096 - 64, 64)
    first = dims.symbol("i.first")
    spans, known = spans_of(Block("i", first, 64, "j", 4096, 16), [limit(ROW // 4 - COLUMN)], facts)
    assert len(known) == 1 and spans.plain[0] == 0 and dims.evaluate(spans.plain[1], {"i.first": 128}) == 32
    assert [[dims.evaluate(end, {"i.first": 128}) for end in edge] for edge in spans.edges] == [[32, 48]]
    for place in (ROW % 4 - COLUMN, ROW // 4 + ROW - COLUMN, ROW // 4 + ROW // 2 - COLUMN):
        assert spans_of(Block("i", first, 64, "j", 4096, 16), [limit(place)], facts)[1] == ()


def test_conditions_are_found_and_dropped_one_by_one() -> None:
    product = Ref("p", f32)
    below, near = Apply("le", (index(COLUMN), index(ROW)), boolean), Apply("lt", (index(ROW), index(COLUMN + 100)), boolean)
    given = Ref("mask", boolean)
    scaled = Apply("mul", (product, Constant(0.125, f32)), f32)
    lets = (Let("both", (), Apply("bit_and", (below, Apply("mul", (near, given), boolean)), boolean)),)
    score = Apply("where", (Ref("both", boolean), scaled, LOWEST), f32)
    limits = limits_of(score, lets)
    assert [each.place for each in limits] == [ROW - COLUMN, COLUMN - ROW + 99]
    assert without(score, lets, limits) == Apply("where", (given, scaled, LOWEST), f32)
    assert factored(score, lets) == (Apply("where", (Ref("both", boolean), product, LOWEST), f32), 0.125)
    assert factored(Apply("add", (scaled, given), f32), lets)[1] == 1.0


@pytest.mark.parametrize(
    ("limits", "share"),
    [
        ([], 1.0),
        ([limit(ROW - COLUMN)], 0.5),
        ([limit(ROW - COLUMN), limit(COLUMN - ROW + 127)], 128 / 4096),
        ([limit(ROW + dims.symbol("past") - COLUMN)], 1.0),
    ],
)
def test_the_share_of_the_columns_that_rows_look_at(limits: list[Limit], share: float) -> None:
    found = share_looked_at(Block("i", 0, 1, "j", 4096, 32), 4096, limits)
    assert found == pytest.approx(share, rel=0.2)
    assert share_looked_at(Block("i", 0, 1, "j", dims.symbol("S"), 32), 4096, limits) == 1.0


INSIDE = [ROW - COLUMN, COLUMN - ROW + 62]


def negated(value: Scalar) -> Scalar:
    return Apply("bit_not", (value,), boolean)


def comparison(primitive: str, left: Scalar, right: Scalar) -> Scalar:
    return Apply(primitive, (left, right), boolean)


DIFFERENCE = Apply("sub", (index(ROW), index(COLUMN)), i64)
ABOVE, FAR = comparison("lt", index(ROW), index(COLUMN)), comparison("lt", index(COLUMN), index(ROW - 62))


@pytest.mark.parametrize(
    "condition",
    [
        negated(Apply("bit_or", (ABOVE, FAR), boolean)),
        negated(negated(Apply("bit_and", (negated(ABOVE), negated(FAR)), boolean))),
        Apply("bit_and", (comparison("le", Constant(0, i64), DIFFERENCE), comparison("lt", DIFFERENCE, Constant(63, i64))), boolean),
        Apply("bit_and", (comparison("le", Constant(0, i64), Ref("d", i64)), comparison("le", Ref("d", i64), Constant(62, i64))), boolean),
    ],
)
def test_conditions_are_read_however_they_are_written(condition: Scalar) -> None:
    lets = (Let("d", (), DIFFERENCE),)
    score = Apply("where", (condition, Ref("p", f32), LOWEST), f32)
    limits = limits_of(score, lets)
    assert [each.place for each in limits] == INSIDE
    assert without(score, lets, limits) == Ref("p", f32)


def test_what_is_no_comparison_of_indices_stays_as_it_is_denied() -> None:
    given, narrow = Ref("mask", boolean), comparison("lt", Ref("x", f32), Ref("y", f32))
    score = Apply("where", (negated(Apply("bit_or", (given, narrow), boolean)), Ref("p", f32), LOWEST), f32)
    assert limits_of(score, ()) == () and without(score, (), ()) == score
