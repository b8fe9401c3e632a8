"""Gathers with known indices, masks before they are repeated, products of flattened rows."""

from __future__ import annotations

import pytest

from ourcc.ir.graph.parse import parse_module
from ourcc.passes.manager import PassManager
from ourcc.passes.tidy.canonicalize import Canonicalize
from ourcc.passes.tidy.unflatten_products import UnflattenProducts

HEAD = """module @m symbols { B in 1..4, S in 1..6 } {
  const @places : i64[1, 8] = [0, 1, 2, 3, 4, 5, 6, 7]
  const @zeros : i64[1, 8] = [0, 0, 0, 0, 0, 0, 0, 0]
  const @even : i64[3] = [0, 2, 4]
  const @odd : i64[3] = [0, 3, 4]
  const @twice : i64[6] = [1, 1, 4, 4, 7, 7]
  const @unequal : i64[6] = [1, 1, 2, 2, 2, 3]
  const @late : i64[6] = [6, 6, 7, 7, 8, 8]
  const @far : i64[3] = [6, 7, 8]
  const @below : i64[3] = [-1, -1, -1]
  const @across : i64[3] = [-2, -1, 0]
  const @grid : i64[2, 2, 2] = [0, 0, 0, 1, 1, 0, 1, 1]
  const @flat : bool[] = true
  const @first : i64[1] = [0]
  const @second : i64[1] = [1]
  const @bias : f32[4] = [1.0, 2.0, 3.0, 4.0]
  const @bias2 : f32[1, 4] = [1.0, 2.0, 3.0, 4.0]
  const @square : f32[4, 4] = [2.0, 1.0, 0.0, 0.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.0, 2.0, 1.0, 1.0, 0.0, 0.0, 2.0]
  const @w : f32[3, 4] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 1.0, 1.5, 2.5]
"""
INPUTS = (
    "%x: f32[8, 3], %p: f32[B, S], %r: f32[2, 2], %q: f32[B, 2, S, 4], %m: bool[B, 1, 1, S], "
    "%t: f32[B, S, 3], %o1: f32[1, S], %u: f32[S, 4], %v: f32[1, S, 4]"
)


def program(body: str, result: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{HEAD}  func @main({INPUTS}) -> {result} {{\n{lines}    return %y\n  }}\n}}\n"


PAIRS = [
    (
        "%i = slice(@places) {starts = [0, 1], sizes = [1, S], steps = [1, 1]} : i64[1, S]\n%y = take(%x, %i) {axis = 0} : f32[1, S, 3]",
        "%s = slice(%x) {starts = [1, 0], sizes = [S, 3], steps = [1, 1]} : f32[S, 3]\n%y = reshape(%s) {shape = [1, S, 3]} : f32[1, S, 3]",
        "f32[1, S, 3]",
    ),
    (
        "%i = iota() {shape = [S], axis = 0, dtype = i64} : i64[S]\n%j = broadcast_to(%i) {shape = [B, S]} : i64[B, S]\n"
        "%y = take(%x, %j) {axis = 0} : f32[B, S, 3]",
        "%s = slice(%x) {starts = [0, 0], sizes = [S, 3], steps = [1, 1]} : f32[S, 3]\n"
        "%t1 = reshape(%s) {shape = [1, S, 3]} : f32[1, S, 3]\n%y = broadcast_to(%t1) {shape = [B, S, 3]} : f32[B, S, 3]",
        "f32[B, S, 3]",
    ),
    (
        "%y = take(%x, @even) {axis = 0} : f32[3, 3]",
        "%y = slice(%x) {starts = [0, 0], sizes = [3, 3], steps = [2, 1]} : f32[3, 3]",
        "f32[3, 3]",
    ),
    (
        "%y = take(%x, @twice) {axis = 0} : f32[6, 3]",
        "%s = slice(%x) {starts = [1, 0], sizes = [3, 3], steps = [3, 1]} : f32[3, 3]\n"
        "%a = reshape(%s) {shape = [3, 1, 3]} : f32[3, 1, 3]\n%b = broadcast_to(%a) {shape = [3, 2, 3]} : f32[3, 2, 3]\n"
        "%y = reshape(%b) {shape = [6, 3]} : f32[6, 3]",
        "f32[6, 3]",
    ),
    (
        "%i = slice(@zeros) {starts = [0, 0], sizes = [1, S], steps = [1, 1]} : i64[1, S]\n"
        "%j = broadcast_to(%i) {shape = [B, S]} : i64[B, S]\n%y = take(%x, %j) {axis = 0} : f32[B, S, 3]",
        "%s = slice(%x) {starts = [0, 0], sizes = [1, 3], steps = [1, 1]} : f32[1, 3]\n"
        "%t1 = reshape(%s) {shape = [1, 1, 3]} : f32[1, 1, 3]\n%y = broadcast_to(%t1) {shape = [B, S, 3]} : f32[B, S, 3]",
        "f32[B, S, 3]",
    ),
    ("%g = gather_nd(%r, @grid) {batch_dims = 0} : f32[2, 2]\n%y = neg(%g) : f32[2, 2]", "%y = neg(%r) : f32[2, 2]", "f32[2, 2]"),
    (
        "%i = iota() {shape = [B, S, 1], axis = 0, dtype = i64} : i64[B, S, 1]\n%s = iota() {shape = [S], axis = 0, dtype = i64} : i64[S]\n"
        "%k = broadcast_to(%s) {shape = [B, S]} : i64[B, S]\n%j = reshape(%k) {shape = [B, S, 1]} : i64[B, S, 1]\n"
        "%c = concat(%i, %j) {axis = 2} : i64[B, S, 2]\n%g = gather_nd(%p, %c) {batch_dims = 0} : f32[B, S]\n%y = neg(%g) : f32[B, S]",
        "%y = neg(%p) : f32[B, S]",
        "f32[B, S]",
    ),
    (
        "%z = broadcast_to(@first) {shape = [1, S]} : i64[1, S]\n%i = reshape(%z) {shape = [1, S, 1]} : i64[1, S, 1]\n"
        "%j = iota() {shape = [1, S, 1], axis = 1, dtype = i64} : i64[1, S, 1]\n"
        "%c = concat(%i, %j) {axis = 2} : i64[1, S, 2]\n%g = gather_nd(%o1, %c) {batch_dims = 0} : f32[1, S]\n%y = neg(%g) : f32[1, S]",
        "%y = neg(%o1) : f32[1, S]",
        "f32[1, S]",
    ),
    (
        "%a = reshape(%u) {shape = [1, S, 4]} : f32[1, S, 4]\n%y = add(%a, %v) : f32[1, S, 4]",
        "%y = add(%u, %v) : f32[1, S, 4]",
        "f32[1, S, 4]",
    ),
    (
        "%i = iota() {shape = [8], axis = 0, dtype = i64} : i64[8]\n%y = slice(%i) {starts = [0], sizes = [S], steps = [1]} : i64[S]",
        "%y = iota() {shape = [S], axis = 0, dtype = i64} : i64[S]",
        "i64[S]",
    ),
    (
        "%n = broadcast_to(%m) {shape = [B, 1, S, S]} : bool[B, 1, S, S]\n%y = attention(%q, %q, %q, %n) {scale = 0.5} : f32[B, 2, S, 4]",
        "%y = attention(%q, %q, %q, %m) {scale = 0.5} : f32[B, 2, S, 4]",
        "f32[B, 2, S, 4]",
    ),
    (
        "%a = reshape(%q) {shape = [2*B, S, 4]} : f32[2*B, S, 4]\n%b = transpose(%a) {permutation = [0, 2, 1]} : f32[2*B, 4, S]\n"
        "%y = reshape(%b) {shape = [B, 2, 4, S]} : f32[B, 2, 4, S]",
        "%y = transpose(%q) {permutation = [0, 1, 3, 2]} : f32[B, 2, 4, S]",
        "f32[B, 2, 4, S]",
    ),
    (
        "%a = broadcast_to(@flat) {shape = [1, 1, S]} : bool[1, 1, S]\n%y = logical_and(%a, %m) : bool[B, 1, 1, S]",
        "",
        "bool[B, 1, 1, S]",
    ),
]


@pytest.mark.parametrize(("before", "after", "result"), PAIRS, ids=[row[0].splitlines()[-1] for row in PAIRS])
def test_rewrites(check_pass, before, after, result):
    expected = program(after, result) if after else program("", result).replace("return %y", "return %m")
    check_pass(Canonicalize(), program(before, result), expected)


STAYS = [
    # Rows of a product are split into one batch as into many.
    (
        "%o = matmul(%u, @square) : f32[S, 4]\n%b = add(%o, @bias) : f32[S, 4]\n"
        "%a = reshape(%b) {shape = [1, S, 4]} : f32[1, S, 4]\n%y = add(%a, %v) : f32[1, S, 4]",
        "f32[1, S, 4]",
    ),
    ("%y = take(%x, @odd) {axis = 0} : f32[3, 3]", "f32[3, 3]"),
    ("%y = take(%x, @far) {axis = 0} : f32[3, 3]", "f32[3, 3]"),
    ("%y = take(%x, @unequal) {axis = 0} : f32[6, 3]", "f32[6, 3]"),
    ("%y = take(%x, @late) {axis = 0} : f32[6, 3]", "f32[6, 3]"),
    ("%y = take(%x, @across) {axis = 0} : f32[3, 3]", "f32[3, 3]"),
    ("%y = take(%x, @below) {axis = 0} : f32[3, 3]", "f32[3, 3]"),
    ("%y = take(%p, @even) {axis = 1} : f32[B, 3]", "f32[B, 3]"),
    (
        "%a = reshape(%q) {shape = [B, 8, S]} : f32[B, 8, S]\n%b = transpose(%a) {permutation = [0, 2, 1]} : f32[B, S, 8]\n"
        "%y = reshape(%b) {shape = [B, 2, S, 4]} : f32[B, 2, S, 4]",
        "f32[B, 2, S, 4]",
    ),
]


@pytest.mark.parametrize(("body", "result"), STAYS, ids=[row[0].splitlines()[-1] for row in STAYS])
def test_stays(check_pass, body, result):
    check_pass(Canonicalize(), program(body, result), None)


def test_another_place_along_an_axis_of_one_is_an_error_that_stays():
    """Index 1 of size 1: the interpreter refuses it, so the rewrite would hide it."""
    body = (
        "%z = broadcast_to(@second) {shape = [1, S]} : i64[1, S]\n%i = reshape(%z) {shape = [1, S, 1]} : i64[1, S, 1]\n"
        "%j = iota() {shape = [1, S, 1], axis = 1, dtype = i64} : i64[1, S, 1]\n"
        "%c = concat(%i, %j) {axis = 2} : i64[1, S, 2]\n%g = gather_nd(%o1, %c) {batch_dims = 0} : f32[1, S]\n%y = neg(%g) : f32[1, S]"
    )
    module = parse_module(program(body, "f32[1, S]"))
    PassManager([Canonicalize()]).run(module)
    assert "gather_nd" in [op.name for op in module.main]


FLAT = "%f = reshape(%t) {shape = [B*S, 3]} : f32[B*S, 3]\n%o = matmul(%f, @w) : f32[B*S, 4]\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (FLAT + "%y = reshape(%o) {shape = [B, S, 4]} : f32[B, S, 4]", "%y = matmul(%t, @w) : f32[B, S, 4]"),
        (
            FLAT + "%a = add(%o, @bias) : f32[B*S, 4]\n%e = tanh(%a) : f32[B*S, 4]\n%y = reshape(%e) {shape = [B, S, 4]} : f32[B, S, 4]",
            "%o = matmul(%t, @w) : f32[B, S, 4]\n%a = add(%o, @bias) : f32[B, S, 4]\n%y = tanh(%a) : f32[B, S, 4]",
        ),
        (
            FLAT + "%a = add(%o, @bias2) : f32[B*S, 4]\n%y = reshape(%a) {shape = [B, S, 4]} : f32[B, S, 4]",
            "%o = matmul(%t, @w) : f32[B, S, 4]\n%b = reshape(@bias2) {shape = [4]} : f32[4]\n%y = add(%o, %b) : f32[B, S, 4]",
        ),
    ],
)
def test_flattened_rows(check_pass, before, after):
    check_pass(UnflattenProducts(), program(before, "f32[B, S, 4]"), program(after, "f32[B, S, 4]"))


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (
            FLAT + "%a = neg(%o) : f32[B*S, 4]\n%b = exp(%o) : f32[B*S, 4]\n%c = add(%a, %b) : f32[B*S, 4]\n"
            "%d = add(%c, %o) : f32[B*S, 4]\n%y = reshape(%d) {shape = [B, 2*S, 2]} : f32[B, 2*S, 2]",
            "f32[B, 2*S, 2]",
        ),
        (FLAT + "%y = reshape(%o) {shape = [B, S, 2, 2]} : f32[B, S, 2, 2]", "f32[B, S, 2, 2]"),
        (FLAT + "%y = reshape(%o) {shape = [S, B, 4]} : f32[S, B, 4]", "f32[S, B, 4]"),
    ],
)
def test_rows_split_otherwise_stay(check_pass, body, result):
    check_pass(UnflattenProducts(), program(body, result), None)
