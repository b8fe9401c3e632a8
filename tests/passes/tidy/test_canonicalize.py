"""Canonicalization rules: what they rewrite, and what they must leave alone."""

from __future__ import annotations

import pytest

from ourcc.ir.ops.table import OPS
from ourcc.passes.rules import arithmetic, casts, movement
from ourcc.passes.rules.arithmetic import AbsOfNeg
from ourcc.passes.tidy.canonicalize import Canonicalize

CONSTANTS = {
    "one": "f32[] = 1.0",
    "ones": "f32[3] = [1.0, 1.0, 1.0]",
    "column": "f32[2, 1] = [1.0, 1.0]",
    "zero": "f32[] = 0.0",
    "minus_zero": "f32[] = -0.0",
    "minus_one": "f32[] = -1.0",
    "two": "f32[] = 2.0",
    "three": "f32[] = 3.0",
    "half": "f32[] = 0.5",
    "infinity": "f32[] = inf",
    "integer_zero": "i32[] = 0",
    "integer_one": "i32[] = 1",
    "long_two": "i64[] = 2",
    "yes": "bool[] = true",
    "no": "bool[] = false",
    "row": "f32[3] = [1.0, 2.0, 3.0]",
}
INPUTS = "%x: f32[B, 3], %z: f32[B, 3], %n: i32[B, 3], %b: bool[B, 3], %c: bool[3], %r: f32[3], %t: f32[2, 3, 4]"


def program(body: str, result: str = "f32[B, 3]") -> str:
    constants = "".join(f"  const @{name} : {text}\n" for name, text in CONSTANTS.items())
    lines = "".join(f"    {line.strip()}\n" for line in body.strip().splitlines())
    return f"module @m symbols {{ B in 1..8 }} {{\n{constants}  func @main({INPUTS}) -> {result} {{\n{lines}  }}\n}}\n"


SIMPLE = [
    ("mul(%x, @one)", "%x"),
    ("mul(@ones, %x)", "%x"),
    ("div(%x, @one)", "%x"),
    ("sub(%x, @zero)", "%x"),
    ("add(%x, @minus_zero)", "%x"),
    ("add(@minus_zero, %x)", "%x"),
    ("pow(%x, @one)", "%x"),
    ("minimum(%x, @infinity)", "%x"),
    ("maximum(%x, %x)", "%x"),
    ("minimum(%x, %x)", "%x"),
    ("clip(%x, _, _)", "%x"),
    ("where(@yes, %x, %z)", "%x"),
    ("where(@no, %x, %z)", "%z"),
    ("where(%b, %x, %x)", "%x"),
    ("cast(%x) {dtype = f32}", "%x"),
    ("reshape(%x) {shape = [B, 3]}", "%x"),
    ("broadcast_to(%x) {shape = [B, 3]}", "%x"),
    ("transpose(%x) {permutation = [0, 1]}", "%x"),
    ("concat(%x) {axis = 0}", "%x"),
    ("slice(%x) {starts = [0, 0], sizes = [B, 3], steps = [1, 1]}", "%x"),
    ("pad(%x) {before = [0, 0], after = [0, 0]}", "%x"),
]


@pytest.mark.parametrize(("expression", "kept"), SIMPLE, ids=[row[0] for row in SIMPLE])
def test_changes_nothing(check_pass, expression, kept):
    check_pass(Canonicalize(), program(f"%y = {expression} : f32[B, 3]\nreturn %y"), program(f"return {kept}"))


@pytest.mark.parametrize(
    "expression",
    [
        "add(%x, @zero)",
        "sub(%x, @minus_zero)",
        "mul(%x, @zero)",
        "div(%x, @three)",
        "pow(%x, @three)",
        "pow(%x, @half)",
        "eq(%x, %x)",
        "sub(%x, %x)",
    ],
)
def test_not_exact_stays(check_pass, expression):
    result = "bool[B, 3]" if expression.startswith("eq") else "f32[B, 3]"
    check_pass(Canonicalize(), program(f"%y = {expression} : {result}\nreturn %y", result), None)


@pytest.mark.parametrize(
    ("expression", "kept"),
    [
        ("add(%n, @integer_zero)", "%n"),
        ("sub(%n, @integer_zero)", "%n"),
        ("mul(%n, @integer_one)", "%n"),
        ("shift_left(%n, @integer_zero)", "%n"),
        ("bit_or(%n, %n)", "%n"),
    ],
)
def test_integers(check_pass, expression, kept):
    check_pass(Canonicalize(), program(f"%y = {expression} : i32[B, 3]\nreturn %y", "i32[B, 3]"), program(f"return {kept}", "i32[B, 3]"))


@pytest.mark.parametrize(
    ("expression", "kept"), [("logical_and(%b, @yes)", "%b"), ("logical_or(%b, @no)", "%b"), ("logical_and(%b, %b)", "%b")]
)
def test_bools(check_pass, expression, kept):
    check_pass(Canonicalize(), program(f"%y = {expression} : bool[B, 3]\nreturn %y", "bool[B, 3]"), program(f"return {kept}", "bool[B, 3]"))


PAIRS = [
    ("%y = mul(@row, %x) : f32[B, 3]", "%y = mul(%x, @row) : f32[B, 3]", "f32[B, 3]"),
    ("%y = mul(%x, @minus_one) : f32[B, 3]", "%y = neg(%x) : f32[B, 3]", "f32[B, 3]"),
    ("%y = div(%x, @two) : f32[B, 3]", "%y = mul(%x, @half) : f32[B, 3]", "f32[B, 3]"),
    ("%y = pow(%x, @two) : f32[B, 3]", "%y = mul(%x, %x) : f32[B, 3]", "f32[B, 3]"),
    ("%a = neg(%z) : f32[B, 3]\n%y = add(%x, %a) : f32[B, 3]", "%y = sub(%x, %z) : f32[B, 3]", "f32[B, 3]"),
    ("%a = neg(%x) : f32[B, 3]\n%y = abs(%a) : f32[B, 3]", "%y = abs(%x) : f32[B, 3]", "f32[B, 3]"),
    ("%a = relu(%x) : f32[B, 3]\n%y = relu(%a) : f32[B, 3]", "%y = relu(%x) : f32[B, 3]", "f32[B, 3]"),
    ("%a = floor(%x) : f32[B, 3]\n%y = floor(%a) : f32[B, 3]", "%y = floor(%x) : f32[B, 3]", "f32[B, 3]"),
    ("%a = eq(%x, %z) : bool[B, 3]\n%y = logical_not(%a) : bool[B, 3]", "%y = ne(%x, %z) : bool[B, 3]", "bool[B, 3]"),
    ("%a = lt(%n, %n) : bool[B, 3]\n%y = logical_not(%a) : bool[B, 3]", "%y = ge(%n, %n) : bool[B, 3]", "bool[B, 3]"),
    ("%a = cast(%b) {dtype = i32} : i32[B, 3]\n%y = eq(%a, @integer_zero) : bool[B, 3]", "%y = logical_not(%b) : bool[B, 3]", "bool[B, 3]"),
    ("%a = logical_not(%b) : bool[B, 3]\n%y = where(%a, %x, %z) : f32[B, 3]", "%y = where(%b, %z, %x) : f32[B, 3]", "f32[B, 3]"),
    ("%y = where(@yes, %r, %z) : f32[B, 3]", "%y = broadcast_to(%r) {shape = [B, 3]} : f32[B, 3]", "f32[B, 3]"),
    ("%a = cast(%n) {dtype = i64} : i64[B, 3]\n%y = cast(%a) {dtype = i8} : i8[B, 3]", "%y = cast(%n) {dtype = i8} : i8[B, 3]", "i8[B, 3]"),
    (
        "%a = cast(%x) {dtype = f64} : f64[B, 3]\n%y = cast(%a) {dtype = bf16} : bf16[B, 3]",
        "%y = cast(%x) {dtype = bf16} : bf16[B, 3]",
        "bf16[B, 3]",
    ),
    (
        "%a = reshape(%x) {shape = [3, B]} : f32[3, B]\n%y = reshape(%a) {shape = [3*B]} : f32[3*B]",
        "%y = reshape(%x) {shape = [3*B]} : f32[3*B]",
        "f32[3*B]",
    ),
    (
        "%a = transpose(%t) {permutation = [1, 2, 0]} : f32[3, 4, 2]\n%y = transpose(%a) {permutation = [1, 2, 0]} : f32[4, 2, 3]",
        "%y = transpose(%t) {permutation = [2, 0, 1]} : f32[4, 2, 3]",
        "f32[4, 2, 3]",
    ),
    (
        "%a = reshape(%t) {shape = [2, 1, 12]} : f32[2, 1, 12]\n%y = transpose(%a) {permutation = [1, 0, 2]} : f32[1, 2, 12]",
        "%y = reshape(%t) {shape = [1, 2, 12]} : f32[1, 2, 12]",
        "f32[1, 2, 12]",
    ),
    (
        "%a = broadcast_to(%r) {shape = [1, 3]} : f32[1, 3]\n%y = broadcast_to(%a) {shape = [B, 3]} : f32[B, 3]",
        "%y = broadcast_to(%r) {shape = [B, 3]} : f32[B, 3]",
        "f32[B, 3]",
    ),
    ("%a = broadcast_to(%r) {shape = [B, 3]} : f32[B, 3]\n%y = add(%x, %a) : f32[B, 3]", "%y = add(%x, %r) : f32[B, 3]", "f32[B, 3]"),
    ("%a = reshape(%r) {shape = [1, 3]} : f32[1, 3]\n%y = add(%x, %a) : f32[B, 3]", "%y = add(%x, %r) : f32[B, 3]", "f32[B, 3]"),
    (
        "%a = concat(%x, %z) {axis = 1} : f32[B, 6]\n%y = concat(%a, %x) {axis = -1} : f32[B, 9]",
        "%y = concat(%x, %z, %x) {axis = -1} : f32[B, 9]",
        "f32[B, 9]",
    ),
    (
        "%a = slice(%t) {starts = [1, 0, 3], sizes = [1, 3, 4], steps = [1, 1, -1]} : f32[1, 3, 4]\n"
        "%y = slice(%a) {starts = [0, 1, 1], sizes = [1, 2, 2], steps = [1, 1, 2]} : f32[1, 2, 2]",
        "%y = slice(%t) {starts = [1, 1, 2], sizes = [1, 2, 2], steps = [1, 1, -2]} : f32[1, 2, 2]",
        "f32[1, 2, 2]",
    ),
    (
        "%a = concat(%x, %z) {axis = 1} : f32[B, 6]\n%y = slice(%a) {starts = [0, 4], sizes = [B, 2], steps = [1, 1]} : f32[B, 2]",
        "%y = slice(%z) {starts = [0, 1], sizes = [B, 2], steps = [1, 1]} : f32[B, 2]",
        "f32[B, 2]",
    ),
    (
        "%a = slice(%x) {starts = [0, 0], sizes = [B, 1], steps = [1, 1]} : f32[B, 1]\n"
        "%d = slice(%x) {starts = [0, 1], sizes = [B, 2], steps = [1, 1]} : f32[B, 2]\n%y = concat(%a, %d) {axis = 1} : f32[B, 3]",
        "",
        "f32[B, 3]",
    ),
    (
        "%a = dim() {value = B} : i64[]\n%y = mul(%a, @long_two) : i64[]",
        "%y = dim() {value = 2*B} : i64[]",
        "i64[]",
    ),
]


@pytest.mark.parametrize(("before", "after", "result"), PAIRS, ids=[row[0].splitlines()[-1] for row in PAIRS])
def test_rewrites(check_pass, before, after, result):
    check_pass(Canonicalize(), program(f"{before}\nreturn %y", result), program(f"{after}\nreturn {'%y' if after else '%x'}", result))


STAYS = [
    ("%a = cast(%x) {dtype = f16} : f16[B, 3]\n%y = cast(%a) {dtype = f32} : f32[B, 3]", "f32[B, 3]"),
    ("%a = cast(%x) {dtype = i32} : i32[B, 3]\n%y = cast(%a) {dtype = f32} : f32[B, 3]", "f32[B, 3]"),
    ("%a = cast(%n) {dtype = f64} : f64[B, 3]\n%y = cast(%a) {dtype = i8} : i8[B, 3]", "i8[B, 3]"),
    ("%a = lt(%x, %z) : bool[B, 3]\n%y = logical_not(%a) : bool[B, 3]", "bool[B, 3]"),
    ("%y = mul(%r, @column) : f32[2, 3]", "f32[2, 3]"),
    (
        "%a = concat(%x, %z) {axis = 1} : f32[B, 6]\n%y = slice(%a) {starts = [0, 2], sizes = [B, 2], steps = [1, 1]} : f32[B, 2]",
        "f32[B, 2]",
    ),
    ("%a = broadcast_to(%r) {shape = [B, 3]} : f32[B, 3]\n%y = add(%a, %r) : f32[B, 3]", "f32[B, 3]"),
]


@pytest.mark.parametrize(("body", "result"), STAYS, ids=[row[0].splitlines()[-1] for row in STAYS])
def test_stays(check_pass, body, result):
    check_pass(Canonicalize(), program(f"{body}\nreturn %y", result), None)


def test_names_and_sources_of_the_model_survive(check_pass):
    before = program('%a = neg(%z) : f32[B, 3]   loc("n")\n%sum = add(%x, %a) : f32[B, 3]   loc("s")\nreturn %sum')
    module = check_pass(Canonicalize(), before, program("%y = sub(%x, %z) : f32[B, 3]\nreturn %y"))
    assert module.main.last.result.name == "sum"
    assert module.main.last.source.name == "s"
    assert module.main.output_names == ["sum"]


def test_every_rule_says_its_equation_and_reads_ops_that_exist():
    for rule in (*arithmetic.RULES, *casts.RULES, *movement.RULES):
        assert " -> " in (type(rule).__doc__ or ""), rule.name
        assert set(rule.ops) <= set(OPS), rule.name
        assert rule.numerics == "EXACT"


def test_the_negative_of_an_unsigned_number_is_another_one(check_pass):
    text = "module @m {\n  func @main(%x: u8[3]) -> u8[3] {\n    %a = neg(%x) : u8[3]\n    %y = abs(%a) : u8[3]\n    return %y\n  }\n}\n"
    module = check_pass(Canonicalize(), text, None)
    assert AbsOfNeg().check(module.main.last, module) == "the operand is unsigned: its neg wraps and is not undone by abs"


def test_places_of_an_image_with_channels_last(check_pass):
    head = "module @m symbols { B in 1..8 } {\n  func @main(%i: f32[B, 6, 4, 5]) -> f32[B, 20, 6] {\n"
    before = """    %r = reshape(%i) {shape = [B, 6, 20]} : f32[B, 6, 20]
    %y = transpose(%r) {permutation = [0, 2, 1]} : f32[B, 20, 6]
    return %y
  }
}
"""
    after = """    %t = transpose(%i) {permutation = [0, 2, 3, 1]} : f32[B, 4, 5, 6]
    %y = reshape(%t) {shape = [B, 20, 6]} : f32[B, 20, 6]
    return %y
  }
}
"""
    check_pass(Canonicalize(), head + before, head + after)
    elsewhere = before.replace("B, 6, 20", "B, 3, 40").replace("B, 20, 6", "B, 40, 3")
    check_pass(Canonicalize(), head.replace("B, 20, 6", "B, 40, 3") + elsewhere, None)
