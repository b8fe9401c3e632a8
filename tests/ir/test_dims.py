"""What is known of symbols: ranges sharpened by divisors, and names that are used again."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ourcc.ir import dims
from ourcc.ir.dims import NO_FACTS, Dim, Range
from ourcc.ir.dims import facts as proofs


def test_a_multiple_ends_at_the_last_multiple() -> None:
    facts = NO_FACTS.with_range("s", 1, 63, 32)
    assert dims.range_of(dims.symbol("s"), facts) == Range(32, 32)
    assert dims.at_most(dims.symbol("s") + 32, 64, facts) is True


def test_a_name_that_is_used_again_forgets_its_divisor() -> None:
    facts = NO_FACTS.with_range("s", 0, 31, 4).with_range("s", 32, 33)
    assert dims.divides(4, dims.symbol("s"), facts) is not True
    assert dims.range_of(dims.symbol("s"), facts) == Range(32, 33)


@pytest.mark.parametrize(("a", "b", "c", "d"), [(2, 2, 1, 1), (2, 3, -5, 4), (-3, 2, 2, -7), (5, 7, 0, 6), (3, -2, 1, 1)])
def test_nested_divisions_have_one_form(a: int, b: int, c: int, d: int) -> None:
    x = dims.symbol("x")
    nested = ((x + c) // a + d) // b
    assert str(nested).count("//") == (1 if b > 0 else 2)
    assert all(dims.evaluate(nested, {"x": n}) == ((n + c) // a + d) // b for n in range(-40, 40))


@given(a=st.integers(-4, 4), b=st.integers(-4, 4), c=st.integers(1, 6), r=st.integers(-30, 30), d=st.integers(1, 24))
def test_factors_that_all_terms_share_with_the_divisor_go(a: int, b: int, c: int, r: int, d: int) -> None:
    value = dims.symbol("x") * (a * c) + dims.symbol("y") * (b * c) + r
    for found, expected in ((value // (c * d), "__floordiv__"), (value % (c * d), "__mod__")):
        for x in range(-9, 10):
            for y in (-7, 0, 1, 5):
                got = dims.evaluate(found, {"x": x, "y": y})
                assert got == getattr(a * c * x + b * c * y + r, expected)(c * d)
    x = dims.symbol("x")
    assert (x * (2 * c) + 1) // (16 * c) == x // 8 and (x * (2 * c) + c) % (16 * c) == x % 8 * (2 * c) + c


@given(
    steps=st.integers(-4, 4),
    size=st.sampled_from([2, 3, 4, 6, 8]),
    more=st.integers(1, 6),
    extent=st.integers(1, 8),
    factor=st.integers(1, 3),
    start=st.integers(-2, 2),
)
def test_what_lies_within_a_step_goes(steps: int, size: int, more: int, extent: int, factor: int, start: int) -> None:
    """With 0 <= r < 4 is (4*g + r) // 32 the same as g // 8, and (4*g + r) % 32 as 4 * (g % 8) + r."""
    g, r = dims.symbol("g"), dims.symbol("r")
    facts = NO_FACTS.with_axis("r", extent)
    value, by = g * (steps * size) + r * factor + start, size * more
    for written, exact in ((value // by, int.__floordiv__), (value % by, int.__mod__)):
        found = dims.simplify(written, facts)
        for lane in range(extent):
            for place in range(-9, 10):
                assert dims.evaluate(found, {"g": place, "r": lane}) == exact(steps * size * place + factor * lane + start, by)
    four = NO_FACTS.with_axis("r", 4)
    assert dims.simplify((g * 4 + r) // 32, four) == g // 8 and dims.simplify((g * 4 + r) % 32, four) == g % 8 * 4 + r
    assert dims.simplify((g * 4 + r) // 32, NO_FACTS.with_axis("r", 5)) == (g * 4 + r) // 32


def test_sums_and_products_with_integers_keep_the_canonical_form() -> None:
    x, y = dims.symbol("x"), dims.symbol("y")
    for value in (x, x + 3, x * y - 3, y * 2 + x // 2 + 5):
        for n in (-3, 0, 1, 3):
            assert value + n - n == value and n + value == value + n
            assert value * n == -(value * -n)
            assert dims.evaluate(value + n, {"x": 7, "y": 5}) == dims.evaluate(value, {"x": 7, "y": 5}) + n
            assert dims.evaluate(value * n, {"x": 7, "y": 5}) == dims.evaluate(value, {"x": 7, "y": 5}) * n
    assert x + 3 - x == 3 and x + 3 + -3 == x and x * 0 == 0 and str(x * y - 3 + 4) == "x*y + 1"


def test_sympy_is_asked_only_of_what_may_be_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that broadcast are maxima of maxima: sympy thinks for minutes about those of different symbols."""
    asked: list[Dim] = []
    prove = proofs._sympy_zero
    monkeypatch.setattr(proofs, "_sympy_zero", lambda dim: asked.append(dim) or prove(dim))
    names = [dims.symbol(f"s{n}") for n in range(7)]

    def largest(order: Iterable[int]) -> Dim:
        return functools.reduce(dims.maximum, [names[n] for n in order])

    for left, right in ((range(6), range(1, 7)), ((0, 1, 2), (0, 1, 3)), (range(7), range(5))):
        assert dims.equal(largest(left), largest(right)) is None
    assert dims.equal(names[0], dims.minimum(names[0], 512)) is None
    assert not asked
    assert dims.equal(largest((0, 1, 2)), largest((2, 0, 1))) is True
    assert dims.equal(names[0] // 2 // 3, names[0] // 6) is True


def test_a_name_is_of_a_symbol_by_itself() -> None:
    n, m = dims.symbol("N"), dims.symbol("M")
    assert dims.name_of(n) == "N"
    assert dims.name_of(n + m - m) == "N"
    for other in (0, 3, -n, 2 * n, n + 1, n * m, n * n, n // 2, n + m):
        assert dims.name_of(other) is None


def test_one_size_of_one_symbol_makes_two_dimensions_the_same() -> None:
    s, b, c = (dims.symbol(name) for name in "SBC")
    assert dims.solved(256 * s * b, 64 * 4 * 64 * b) == ("S", 64)
    assert dims.solved(4 * b, 64) == ("B", 16) and dims.solved(s + 2, 7) == ("S", 5)
    assert dims.solved(s * s * b, 3 * s * b) == ("S", 3)
    for left, right in (
        (s, b),
        (s * s, 4),
        (3 * s, 4),
        (s + 7, 2),
        (s // 2, 3),
        (s * b, 6),
        (s * b + c, 6),
        (2, 3),
        (s, s),
        (s * s, s + 6),
    ):
        assert dims.solved(left, right) is None


def test_a_quotient_and_its_remainder_are_what_they_are_of() -> None:
    place, row = dims.symbol("p"), dims.symbol("i")
    assert dims.joined(place % 8 + place // 8 * 8) == place
    assert dims.joined(row * 256 * 8 + place // 8 * 8 + place % 8) == row * 2048 + place
    for other in (place % 8 + place // 4 * 8, place % 8, place // 8, 7):
        assert dims.joined(other) == other
    for values in ({"p": 0, "i": 3}, {"p": 29, "i": 1}, {"p": -13, "i": 0}):
        whole = row * 32 + place // 8 * 16 + place % 8 * 2
        assert dims.evaluate(dims.joined(whole), values) == dims.evaluate(whole, values)
