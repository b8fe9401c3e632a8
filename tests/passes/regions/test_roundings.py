"""Which roundings a fused region keeps: those before anything but arithmetic, and every cast that a model wrote."""

from __future__ import annotations

import pytest

from ourcc.ir.graph.parse import parse_module
from ourcc.ir.region.text import parse_region, print_region
from ourcc.ir.region.verify import verify_region
from ourcc.passes.fusion.partition import partition
from ourcc.passes.regions.compose import Group


def groups(body: str, inputs: str, outputs: str, results: str) -> list[Group]:
    module = parse_module(f"module @m {{\n  func @main({inputs}) -> {results} {{\n{body}\n    return {outputs}\n  }}\n}}\n")
    found = [group for group in partition(module, module.main) if isinstance(group, Group)]
    for group in found:
        verify_region(group.region)
        assert print_region(parse_region(print_region(group.region))) == print_region(group.region)
    return found


def fused(body: str, inputs: str, outputs: str = "%y", results: str = "f16[9]") -> str:
    """The text of the one region that a graph becomes."""
    (group,) = groups(body, inputs, outputs, results)
    return print_region(group.region)


X, TWO = "%x: f16[9]", "%x: f16[9], %z: f16[9]"
PRODUCT = "    %a = mul(%x, %x) : f16[9]\n"


def test_arithmetic_goes_on_with_what_was_computed() -> None:
    text = fused(PRODUCT + "    %y = add(%a, %z) : f16[9]", TWO)
    assert "round(add(mul(cast(%x0[i], f32), cast(%x0[i], f32)), cast(%x1[i], f32)), f16)" in text
    assert text.count("round(") == 1


@pytest.mark.parametrize(
    ("reader", "result"),
    [
        ("cast(%a) {dtype = f32}", "f32"),
        ("cast(%a) {dtype = i32}", "i32"),
        ("cast(%a) {dtype = f8e4m3}", "f8e4m3"),
        ("is_inf(%a)", "bool"),
        ("is_nan(%a)", "bool"),
        ("lt(%a, %x)", "bool"),
        ("floor(%a)", "f16"),
        ("round(%a)", "f16"),
        ("sign(%a)", "f16"),
        ("mod(%a, %x)", "f16"),
        ("pow(%a, %x)", "f16"),
        ("sqrt(%a)", "f16"),
    ],
)
def test_what_tells_reads_what_was_declared(reader: str, result: str) -> None:
    text = fused(PRODUCT + f"    %y = {reader} : {result}[9]", X, results=f"{result}[9]")
    assert "round(mul(cast(%x0[i], f32), cast(%x0[i], f32)), f16)" in text


@pytest.mark.parametrize("reader", ["quantize(%a, %s) {dtype = i8} : i8[9]", "quantize(%a, %s) {dtype = f8e4m3} : f8e4m3[9]"])
def test_a_quantization_reads_what_was_declared(reader: str) -> None:
    text = fused(PRODUCT + f"    %y = {reader}", "%x: f16[9], %s: f16[]", results=reader.split(" : ")[1])
    assert "round(mul(cast(%x0[i], f32), cast(%x0[i], f32)), f16)" in text


@pytest.mark.parametrize(("kind", "count"), [("sum", 1), ("reduce_max", 1), ("argmax", 1)])
def test_folds(kind: str, count: int) -> None:
    attrs, result = ("{axis = 1}", "i64[3]") if kind == "argmax" else ("{axes = [1]}", "f16[3]")
    text = "\n".join(
        print_region(group.region)
        for group in groups(f"    %a = mul(%x, %x) : f16[3, 5]\n    %y = {kind}(%a) {attrs} : {result}", "%x: f16[3, 5]", "%y", result)
    )
    inside = "round(mul(" in text
    assert inside == (kind == "argmax")
    assert text.count("round(") == count


def test_one_reader_that_tells_is_enough() -> None:
    text = fused(PRODUCT + "    %t = is_inf(%a) : bool[9]\n    %b = add(%a, %x) : f16[9]\n    %y = where(%t, %b, %x) : f16[9]", X)
    assert "round(mul(cast(%x0[i], f32), cast(%x0[i], f32)), f16)" in text


def test_shared_by_arithmetic_alone_a_value_stays_wide() -> None:
    text = fused(PRODUCT + "    %b = add(%a, %x) : f16[9]\n    %y = mul(%b, %a) : f16[9]", X)
    assert text.count("round(") == 1


@pytest.mark.parametrize(("reader", "stays"), [("add(%m, %m) : f16[9, 1]", True), ("floor(%m) : f16[9, 1]", False)])
def test_readers_through_movement_are_readers(reader: str, stays: bool) -> None:
    text = fused(PRODUCT + f"    %m = reshape(%a) {{shape = [9, 1]}} : f16[9, 1]\n    %y = {reader}", X, results="f16[9, 1]")
    assert ("round(mul(" not in text) == stays


def test_padding_takes_the_width_of_what_it_surrounds() -> None:
    body = PRODUCT + "    %p = pad(%a) {before = [1], after = [2]} : f16[12]\n    %y = add(%p, %z) : f16[12]"
    text = fused(body, "%x: f16[9], %z: f16[12]", results="f16[12]")
    assert text.count("round(") == 1
    assert "f32(0.0)" in text


def test_what_is_stored_is_rounded() -> None:
    text = "\n".join(
        print_region(group.region) for group in groups(PRODUCT + "    %y = add(%a, %x) : f16[9]", X, "%a, %y", "(f16[9], f16[9])")
    )
    assert text.count("round(") == 2


def test_a_written_cast_stays_in_a_chain_of_arithmetic() -> None:
    body = (
        PRODUCT
        + """    %b = cast(%a) {dtype = f32} : f32[9]
    %c = mul(%b, %b) : f32[9]
    %d = cast(%c) {dtype = f16} : f16[9]
    %y = add(%d, %x) : f16[9]"""
    )
    text = fused(body, X)
    assert "round(mul(cast(%x0[i], f32), cast(%x0[i], f32)), f16)" in text
    assert "cast(cast(mul(" in text


def test_wider_floats_have_no_rounding() -> None:
    for dtype in ("f32", "f64"):
        body = f"    %a = mul(%x, %x) : {dtype}[9]\n    %y = floor(%a) : {dtype}[9]"
        text = fused(body, f"%x: {dtype}[9]", results=f"{dtype}[9]")
        assert "round(" not in text
        assert "cast(" not in text
