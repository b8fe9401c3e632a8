"""Causal masks become the attribute; what else a mask says stays, in its own shape."""

from __future__ import annotations

import pytest

from ourcc.passes.recognize.causal import CausalMask, RecognizeCausal

INPUTS = "%q: f32[B, 2, S, 4], %k: f32[B, 2, S, 4], %v: f32[B, 2, S, 4], %pad: bool[B, S]"
POSITIONS = """    %i = iota() {shape = [S], axis = 0, dtype = i64} : i64[S]
    %r = reshape(%i) {shape = [S, 1]} : i64[S, 1]
"""


def program(body: str, mask: str = "%m", attrs: str = "", size: str = "S") -> str:
    head = "module @m symbols { B in 1..4, S in 1..8 } {\n  const @tri : bool[2, 2] = [true, false, true, true]\n"
    head += "  const @one : i64[] = 1\n"
    text = f"{head}  func @main({INPUTS}) -> f32[B, 2, S, 4] {{\n{body}"
    text += f"    %y = attention(%q, %k, %v, {mask}) {{scale = 0.5{attrs}}} : f32[B, 2, S, 4]\n    return %y\n  }}\n}}\n"
    return text.replace("S,", f"{size},").replace("S]", f"{size}]").replace(f"B in 1..4, {size} in", "B in 1..4, S in")


@pytest.mark.parametrize(
    "comparison",
    [
        "    %m = le(%i, %r) : bool[S, S]\n",
        "    %m = ge(%r, %i) : bool[S, S]\n",
        "    %p = add(%r, @one) : i64[S, 1]\n    %m = lt(%i, %p) : bool[S, S]\n",
        "    %p = add(%r, @one) : i64[S, 1]\n    %m = gt(%p, %i) : bool[S, S]\n",
    ],
)
def test_positions_alone(check_pass, comparison):
    module = check_pass(RecognizeCausal(), program(POSITIONS + comparison), program("", "_", ", causal = true"))
    assert len(module.main) == 1


def test_padding_stays_in_its_own_shape(check_pass):
    before = (
        POSITIONS
        + """    %c = le(%i, %r) : bool[S, S]
    %p = reshape(%pad) {shape = [B, 1, S]} : bool[B, 1, S]
    %a = logical_and(%c, %p) : bool[B, S, S]
    %m = reshape(%a) {shape = [B, 1, S, S]} : bool[B, 1, S, S]
"""
    )
    after = "    %m = reshape(%pad) {shape = [B, 1, 1, S]} : bool[B, 1, 1, S]\n"
    check_pass(RecognizeCausal(), program(before), program(after, "%m", ", causal = true"))


def test_a_constant_triangle(check_pass):
    before = """    %p = reshape(%pad) {shape = [B, 1, 1, S]} : bool[B, 1, 1, S]
    %m = logical_and(%p, @tri) : bool[B, 1, S, S]
"""
    after = "    %p = reshape(%pad) {shape = [B, 1, 1, S]} : bool[B, 1, 1, S]\n"
    # The reshape is read through, so it is built anew.
    check_pass(RecognizeCausal(), program(before, size="2"), program(after, "%p", ", causal = true", size="2"))


@pytest.mark.parametrize(
    ("comparison", "reason"),
    [
        ("    %m = lt(%i, %r) : bool[S, S]\n", "no condition of the mask is column <= row"),
        ("    %m = le(%r, %i) : bool[S, S]\n", "no condition of the mask is column <= row"),
        ("    %c = le(%i, %r) : bool[S, S]\n    %m = logical_or(%c, %c) : bool[S, S]\n", "no condition of the mask is column <= row"),
        ("    %m = cast(%i) {dtype = f32} : f32[S]\n", "there is no bool mask, or the attention is causal"),
    ],
)
def test_says_why_not(check_pass, comparison, reason):
    module = check_pass(RecognizeCausal(), program(POSITIONS + comparison), None)
    assert CausalMask().check(module.main.last, module) == reason


def test_one_row_that_looks_like_a_triangle_stands_for_every_row(check_pass):
    triangle, row = "const @tri : bool[2, 2] = [true, false, true, true]", "const @row : bool[1, 2] = [true, false]"
    text = program("", "@row", size="2").replace(triangle, row)
    check_pass(RecognizeCausal(), text, None)
