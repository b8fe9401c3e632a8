"""Canonical regions: equal problems under other names, sizes and unit dimensions are equal, and mean what they meant."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.text import parse_region, print_region
from ourcc.ir.region.verify import verify_region
from ourcc.passes.regions.own_symbols import canonical

B, S = dims.symbol("B"), dims.symbol("S")
FACTS = dims.Facts().with_range("B", 2, 32).with_range("S", 2, 512, 16)
ROWS = """region @r(%x0: f32[AXIS SIZE, k 8], %x1: f32[k 8, j 4]) -> %y0: f32[AXIS SIZE, j 4] {
  axes AXIS: SIZE, j: 4, k: 8
  %t0 = sum k: mul(%x0[AXIS, k], %x1[k, j]) : f32[AXIS, j]
  %y0[AXIS, j] = %t0
}
"""


def rows(size: str, axis: str = "i") -> str:
    return ROWS.replace("SIZE", size).replace("AXIS", axis)


def text(region: str, facts: dims.Facts = FACTS) -> str:
    return print_region(canonical(parse_region(region), facts).region)


@pytest.mark.parametrize(("size", "axis"), [("B*S", "i"), ("B", "m"), ("B*S", "rows"), ("2*B + 1", "i")])
def test_a_whole_size_becomes_one_symbol_whatever_it_is(size: str, axis: str) -> None:
    found = canonical(parse_region(rows(size, axis)), FACTS)
    assert print_region(found.region) == rows("N0")
    assert {name: str(dim) for name, dim in found.binding.items()} == {"N0": size}


def test_a_symbol_knows_whether_it_can_be_zero_its_upper_end_and_powers_of_two() -> None:
    found = canonical(parse_region(rows("B*S")), FACTS)
    assert found.symbols.ranges == {"N0": dims.Range(1, 32 * 512)} and found.symbols.divisors == {"N0": 16}
    empty = canonical(parse_region(rows("B")), dims.Facts().with_range("B", 0, None, 192))
    assert empty.symbols.ranges == {"N0": dims.Range(0, None)} and empty.symbols.divisors == {"N0": 64}


def test_a_size_whose_symbol_stands_elsewhere_stays_an_expression() -> None:
    split = """region @r(%x0: f32[B, S]) -> %y0: f32[i B*S] {
  axes i: B*S
  %y0[i] = %x0[(i // S), (i % S)]
}
"""
    found = canonical(parse_region(split), FACTS)
    assert print_region(found.region) == split.replace("B", "N0").replace("S", "N1")
    assert found.binding == {"N0": B, "N1": S}


def test_dimensions_of_size_one_go_and_those_that_are_read_elsewhere_stay() -> None:
    unit = """region @r(%x0: f32[1, i B, 1], %x1: f32[1]) -> %y0: f32[i B, 1] {
  axes i: B
  %y0[i, 0] = add(%x0[0, i, 0], %x1[%g0] with (%g0 = i64(0)))
}
"""
    expected = """region @r(%x0: f32[i N0], %x1: f32[1]) -> %y0: f32[i N0] {
  axes i: N0
  %y0[i] = add(%x0[i], %x1[%g0] with (%g0 = i64(0)))
}
"""
    assert text(unit) == expected


def test_what_proves_that_an_access_stays_inside_is_kept() -> None:
    window = """region @r(%x0: f32[B + 2]) -> %y0: f32[i B] {
  axes i: B
  %y0[i] = add(%x0[i], %x0[i + 2])
}
"""
    assert text(window) == window.replace("B", "N0")


def test_a_canonical_region_is_its_own_canonical_form_and_verifies() -> None:
    for size in ("B*S", "B", "7"):
        found = canonical(parse_region(rows(size, "q")), FACTS)
        verify_region(found.region, found.symbols)
        assert canonical(found.region, found.symbols).region == found.region


@pytest.mark.parametrize("names", [("i", "j"), ("j", "i"), ("k", "i"), ("N1", "N0"), ("i", "N0"), ("N0", "i")])
def test_symbols_of_the_graph_may_have_the_names_of_axes_and_of_symbols_here(names: tuple[str, str]) -> None:
    plain = """region @r(%x0: f32[b B, s S], %x1: f32[s S]) -> %y0: f32[s S, b B] {
  axes s: S, b: B
  %y0[s, b] = add(%x0[b, s], cast(index(B*s + S), f32))
}
"""
    turned = plain.replace("B", "$").replace("S", names[1]).replace("$", names[0])
    facts = dims.Facts().with_range(names[0], 2, 32).with_range(names[1], 2, 512, 16)
    found, other = canonical(parse_region(plain), FACTS), canonical(parse_region(turned), facts)
    assert (found.region, found.symbols) == (other.region, other.symbols)
    assert [str(dim) for dim in found.binding.values()] == ["B", "S"] and [str(dim) for dim in other.binding.values()] == list(names)


def test_it_computes_what_it_did() -> None:
    region = parse_region(rows("B*S", "q"))
    x, w = np.random.default_rng(0).standard_normal((6, 8), np.float32), np.ones((8, 4), np.float32)
    found = canonical(region, FACTS)
    before = run_region(region, {"x0": x, "x1": w}, {"B": 2, "S": 3})["y0"]
    own = {name: dims.evaluate(dim, {"B": 2, "S": 3}) for name, dim in found.binding.items()}
    np.testing.assert_array_equal(run_region(found.region, {"x0": x, "x1": w}, own)["y0"], before)
