"""Programs that are equal, and programs that are another with sizes in the place of symbols."""

from __future__ import annotations

import pytest

from ourcc.ir import dims
from ourcc.ir import ops as _ops  # noqa: F401  (declares every op)
from ourcc.ir.graph import Module
from ourcc.ir.graph.compare import difference, specialization
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.verify import verify


def program(symbols: str, *sizes: str, factor: str = "2.0", axis: int = 2, more: str = "") -> Module:
    """x[B, S, 4] flattened to rows, scaled, and summed; `sizes` stand for B, S and B*S."""
    b, s, rows = sizes
    declared = f" symbols {{ {symbols} }}" if symbols else ""
    module = parse_module(f"""module @m{declared} {{
  const @factor : f32[] = {factor}
  func @main(%x: f32[{b}, {s}, 4]) -> f32[{b}, {s}] {{
    %r = reshape(%x) {{shape = [{rows}, 4]}} : f32[{rows}, 4]
    %m = mul(%r, @factor) : f32[{rows}, 4]
    %k = reshape(%m) {{shape = [{b}, {s}, 4]}} : f32[{b}, {s}, 4]
    %y = sum(%k) {{axes = [{axis}], keepdims = false}} : f32[{b}, {s}]
    return %y{more}
  }}
}}
""")
    verify(module)
    return module


GENERAL = program("B in 1..8, S in 1.. divisor 1", "B", "S", "B*S")


@pytest.mark.parametrize(
    ("special", "sizes"),
    [
        (program("S in 2..64", "1", "S", "S"), {"B": 1, "S": dims.symbol("S")}),
        (program("n in 2..8", "n", "1", "n"), {"B": dims.symbol("n"), "S": 1}),
        (program("", "3", "5", "15"), {"B": 3, "S": 5}),
        (program("n in 1..8", "n", "n", "n*n"), {"B": dims.symbol("n"), "S": dims.symbol("n")}),
        (program("n in 1..4", "n", "n + 1", "n*n + n"), {"B": dims.symbol("n"), "S": dims.symbol("n") + 1}),
        (program("B in 1..8, S in 1..", "B", "S", "B*S"), {"B": dims.symbol("B"), "S": dims.symbol("S")}),
    ],
)
def test_a_program_with_sizes_in_the_place_of_symbols(special: Module, sizes: dict[str, dims.Dim]) -> None:
    assert specialization(GENERAL, special) == sizes


@pytest.mark.parametrize(
    "special",
    [
        program("S in 2..64", "9", "S", "9*S"),
        program("n in 1..", "n", "1", "n"),
        program("n in 0..8", "n", "1", "n"),
        program("S in 2..64", "1", "S", "S", factor="2.5"),
        parse_module("module @m {\n  func @main(%x: f32[1, 2, 4]) -> f32[1, 2, 4] {\n    return %x\n  }\n}\n"),
    ],
    ids=["too large", "without an end", "may be empty", "another constant", "fewer ops"],
)
def test_what_the_general_program_is_not_made_for(special: Module) -> None:
    assert specialization(GENERAL, special) is None


def test_a_divisor_must_be_kept() -> None:
    general = program("B in 1..8 divisor 2, S in 1..", "B", "S", "B*S")
    assert specialization(general, program("", "4", "3", "12")) == {"B": 4, "S": 3}
    assert specialization(general, program("", "3", "3", "9")) is None


def test_attributes_and_types_are_compared_at_the_sizes() -> None:
    """The rows of the special program are grouped otherwise, with the same count at one size only."""
    assert specialization(GENERAL, program("", "2", "2", "4")) is not None
    other = parse_module(module_of("f32[2, 2, 4]", "[4, 4]", "[2, 4, 2]"))
    same = parse_module(module_of("f32[B, 2, 4]", "[2*B, 4]", "[B, 2, 4]", "B in 1..8"))
    assert specialization(same, other) is None
    assert specialization(same, parse_module(module_of("f32[2, 2, 4]", "[4, 4]", "[2, 2, 4]"))) == {"B": 2}


def module_of(given: str, rows: str, shape: str, symbols: str = "") -> str:
    declared = f" symbols {{ {symbols} }}" if symbols else ""
    lines = (f"%r = reshape(%x) {{shape = {rows}}} : f32{rows}", f"%y = reshape(%r) {{shape = {shape}}} : f32{shape}", "return %y")
    return f"module @m{declared} {{\n  func @main(%x: {given}) -> f32{shape} {{\n" + "".join(f"    {x}\n" for x in lines) + "  }\n}\n"


def test_a_symbol_that_no_input_gives_has_no_size() -> None:
    general = parse_module("module @m symbols { B in 1.. } {\n  func @main(%x: f32[2*B]) -> f32[2*B] {\n    return %x\n  }\n}\n")
    special = parse_module("module @m {\n  func @main(%x: f32[4]) -> f32[4] {\n    return %x\n  }\n}\n")
    assert specialization(general, special) is None


def test_a_division_by_zero_is_no_program() -> None:
    text = "module @m{} {{\n  func @main(%x: f32[{}], %z: f32[{}]) -> f32[{}] {{\n    return %x\n  }}\n}}\n"
    general = parse_module(text.format(" symbols { B in 0.., S in 0.. }", "B", "S, S // B", "B"))
    assert specialization(general, parse_module(text.format("", "0", "4, 0", "0"))) is None
    assert specialization(general, parse_module(text.format("", "2", "4, 2", "2"))) == {"B": 2, "S": 4}


def test_equal_programs_differ_in_nothing() -> None:
    assert difference(GENERAL, program("B in 1..8, S in 1.. divisor 1", "B", "S", "B*S")) is None
    found = difference(GENERAL, program("B in 1..8, S in 1.. divisor 1", "B", "S", "B*S", factor="3.0"))
    assert found is not None and "ops differ: %m = mul" in found
