"""Sizes of inputs tell symbols: what is found gives back the values that the sizes were made of, in an order that can be followed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ourcc.ir import dims
from ourcc.ir.sizes import solves_of

NAMES = "ABC"


@st.composite
def sizes(draw: st.DrawFn) -> dims.Dim:
    found: dims.Dim = draw(st.integers(0, 9))
    for name in draw(st.sets(st.sampled_from(NAMES), max_size=2)):
        found = found + dims.symbol(name) * draw(st.integers(1, 4))
    return dims.maximum(found, dims.symbol("A")) if draw(st.integers(0, 4)) == 0 else found


@given(st.lists(st.lists(sizes(), max_size=3), max_size=3), st.fixed_dictionaries({name: st.integers(0, 50) for name in NAMES}))
def test_what_is_told_is_what_sizes_were_made_of(shapes: list[list[dims.Dim]], values: dict[str, int]) -> None:
    told = {"C": values["C"]}
    for solve in solves_of(shapes, ["C"]):
        assert solve.symbol not in told
        size = dims.evaluate(shapes[solve.place][solve.axis], values)
        told[solve.symbol] = (size - dims.evaluate(solve.rest, told)) // solve.factor
    assert told.items() <= values.items()


def test_a_size_that_hides_its_symbol_tells_nothing() -> None:
    a, b = dims.symbol("A"), dims.symbol("B")
    assert list(solves_of([[dims.maximum(a, 4), a * b, a // 2]], [])) == []
    assert [solve.symbol for solve in solves_of([[a + b, 2 * a + 1]], [])] == ["A", "B"]
