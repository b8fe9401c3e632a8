"""Checks of indices and divisors: dropped where they are known to hold, else a reduction and a step, equal ones once."""

from __future__ import annotations

import pytest

from ourcc.ir import dims
from ourcc.ir.graph.parse import parse_module
from ourcc.passes.checks.index_range import Bounds, bounds_of
from ourcc.passes.checks.place_index_checks import DropIndexChecks, PlaceIndexChecks

HEAD = """module @m symbols { B in 1..8 } {
  const @few : i64[3] = [0, 4, -5]
"""


def program(body: str, result: str = "f32[B, 3]") -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{HEAD}  func @main(%x: f32[5, 3], %ids: i64[B], %n: u8[B]) -> {result} {{\n{lines}    return %y\n  }}\n}}\n"


CHECKED = "%i = check_index(%ids) {size = 5} : i64[B]\n%y = take(%x, %i) {axis = 0} : f32[B, 3]"
PLACED = """%w = worst_index(%ids) {size = 5} : i64[]
refuse_index(%w) {size = 5, subject = "input 'ids'"}
%y = take(%x, %ids) {axis = 0} : f32[B, 3]"""


def names_after(step, text: str) -> list[str]:
    from ourcc.passes.manager import PassManager

    module = parse_module(text)
    PassManager([step]).run(module)
    return [op.name for op in module.main]


def test_what_is_not_known_becomes_a_step():
    from ourcc.ir.graph.compare import difference
    from ourcc.passes.manager import PassManager

    module = parse_module(program(CHECKED))
    PassManager([PlaceIndexChecks()], strict=True).run(module)
    assert difference(module, parse_module(program(PLACED))) is None


def test_equal_checks_are_one():
    twice = """%i = check_index(%ids) {size = 5} : i64[B]
%j = check_index(%ids) {size = 5} : i64[B]
%a = take(%x, %i) {axis = 0} : f32[B, 3]
%b = take(%x, %j) {axis = 0} : f32[B, 3]
%y = add(%a, %b) : f32[B, 3]"""
    assert names_after(PlaceIndexChecks(), program(twice)) == ["worst_index", "refuse_index", "take", "take", "add"]


def test_a_place_that_an_axis_may_not_have_becomes_a_step():
    """`%n` has B elements, 1 to 8: its place 0 is known to be there, its place 1 is not."""
    body = (
        "%a = check_place(%n) {axis = 0} : u8[B]\n%b = check_place(%a) {axis = 0, place = 1} : u8[B]\n%y = cast(%b) {dtype = i32} : i32[B]"
    )
    text = program(body, "i32[B]")
    assert names_after(PlaceIndexChecks(), text) == ["refuse_place", "cast"]
    assert names_after(DropIndexChecks(), text) == ["check_place", "check_place", "cast"], "kernels that write there rely on it"


def test_checks_can_be_left_out():
    assert names_after(DropIndexChecks(), program(CHECKED)) == ["take"]


@pytest.mark.parametrize(
    "known",
    [
        "%k = slice(@few) {starts = [0], sizes = [2], steps = [1]} : i64[2]\n%i = check_index(%k) {size = 5} : i64[2]",
        "%k = iota() {shape = [B], axis = 0, dtype = i64} : i64[B]\n%i = check_index(%k) {size = B + 1} : i64[B]",
        "%k = argmax(%x) {axis = 0} : i64[3]\n%i = check_index(%k) {size = 5, negative = false} : i64[3]",
        "%c = cast(%n) {dtype = i64} : i64[B]\n%i = check_index(%c) {size = 256, negative = false} : i64[B]",
        "%a = check_index(%ids) {size = 5, negative = false} : i64[B]\n%i = check_index(%a) {size = 6} : i64[B]",
    ],
)
def test_what_is_known_needs_no_check(known: str):
    result = "i64[2]" if "i64[2]" in known else "i64[3]" if "i64[3]" in known else "i64[B]"
    text = program(f"{known}\n%y = neg(%i) : {result}", result)
    assert names_after(PlaceIndexChecks(), text).count("refuse_index") == known.count("%ids")


def test_divisors():
    text = "%d = check_divisor(%ids) : i64[B]\n%y = mod(%ids, %d) : i64[B]"
    assert names_after(PlaceIndexChecks(), program(text, "i64[B]")) == ["worst_divisor", "refuse_index", "mod"]
    text = "%a = check_divisor(@few) : i64[3]\n%y = neg(%a) : i64[3]"
    assert "refuse_index" in names_after(PlaceIndexChecks(), program(text, "i64[3]"))
    text = "%a = iota() {shape = [B], axis = 0, dtype = i64} : i64[B]\n%b = mul(%a, %a) : i64[B]\n%y = check_divisor(%b) : i64[B]"
    assert "refuse_index" in names_after(PlaceIndexChecks(), program(text, "i64[B]"))


def test_a_narrow_sum_that_may_wrap_has_the_bounds_of_its_type():
    module = parse_module(program("%s = add(%n, %n) : u8[B]\n%y = cast(%s) {dtype = i64} : i64[B]", "i64[B]"))
    assert bounds_of(module.main.outputs[0], module.facts) == Bounds(0, 255)
    assert bounds_of(module.main.inputs[1], module.facts) == Bounds()
    assert not Bounds(0, dims.symbol("B")).within(0, 7, module.facts)
