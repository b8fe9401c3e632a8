"""Batch norm into convolutions, and biases into them; group norm decomposed."""

from __future__ import annotations

import pytest

from ourcc.ir.graph.parse import parse_module
from ourcc.passes.base import PassContext
from ourcc.passes.tidy.decompose import Decompose
from ourcc.passes.tidy.fold_batch_norm import BatchNormOfConv, FoldBatchNorm
from ourcc.passes.tidy.fold_constants import FoldConstants

CONV = "{strides = [1, 1], dilations = [1, 1], before = [0, 0], after = [0, 0], groups = 1}"
HEAD = """module @m symbols { B in 1..8 } {
  const @w : f32[2, 3, 1, 1] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
  const @b : f32[2] = [0.5, -0.5]
  const @b4 : f32[1, 2, 1, 1] = [0.5, -0.5]
  const @scale : f32[2] = [1.5, 2.5]
  const @shift : f32[2] = [1.0, 2.0]
  const @mean : f32[2] = [0.25, -0.75]
  const @variance : f32[2] = [4.0, 0.5]
"""
FACTOR = """    %e = full() {shape = [], value = 0.001, dtype = f32} : f32[]
    %a = add(@variance, %e) : f32[2]
    %r = sqrt(%a) : f32[2]
    %f = div(@scale, %r) : f32[2]
    %p = mul(@mean, %f) : f32[2]
    %s = sub(@shift, %p) : f32[2]
"""


def program(body: str, inputs: str = "%x: f32[B, 3, 4, 4]", result: str = "f32[B, 2, 4, 4]") -> str:
    return f"{HEAD}  func @main({inputs}) -> {result} {{\n{body}    return %y\n  }}\n}}\n"


BATCH_NORM = "    %y = batch_norm(%c, @scale, @shift, @mean, @variance) {epsilon = 0.001} : f32[B, 2, 4, 4]\n"


def test_into_a_convolution_with_a_bias(check_pass):
    before = f"    %c = conv(%x, @w, @b) {CONV} : f32[B, 2, 4, 4]\n{BATCH_NORM}"
    after = f"""{FACTOR}    %k = reshape(%f) {{shape = [2, 1, 1, 1]}} : f32[2, 1, 1, 1]
    %w2 = mul(@w, %k) : f32[2, 3, 1, 1]
    %b1 = mul(@b, %f) : f32[2]
    %b2 = add(%s, %b1) : f32[2]
    %y = conv(%x, %w2, %b2) {CONV} : f32[B, 2, 4, 4]
"""
    module = check_pass(FoldBatchNorm(), program(before), program(after))
    assert FoldConstants().run(module, PassContext())
    assert [op.name for op in module.main] == ["conv"]


def test_without_a_convolution(check_pass):
    after = f"""{FACTOR}    %k = reshape(%f) {{shape = [2, 1, 1]}} : f32[2, 1, 1]
    %m = mul(%c, %k) : f32[B, 2, 4, 4]
    %t = reshape(%s) {{shape = [2, 1, 1]}} : f32[2, 1, 1]
    %y = add(%m, %t) : f32[B, 2, 4, 4]
"""
    check_pass(FoldBatchNorm(), program(BATCH_NORM, "%c: f32[B, 2, 4, 4]"), program(after, "%c: f32[B, 2, 4, 4]"))


def test_bias_into_a_convolution(check_pass):
    before = f"    %c = conv(%x, @w) {CONV} : f32[B, 2, 4, 4]\n    %y = add(%c, @b4) : f32[B, 2, 4, 4]\n"
    after = f"    %b = reshape(@b4) {{shape = [2]}} : f32[2]\n    %y = conv(%x, @w, %b) {CONV} : f32[B, 2, 4, 4]\n"
    check_pass(FoldBatchNorm(), program(before), program(after))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (f"    %c = conv(%x, @w) {CONV} : f32[B, 2, 4, 4]\n    %d = relu(%c) : f32[B, 2, 4, 4]\n", "the convolution has other users"),
        (
            "    %c = slice(%x) {starts = [0, 0, 0, 0], sizes = [B, 2, 4, 4], steps = [1, 1, 1, 1]} : f32[B, 2, 4, 4]\n",
            "the operand is no conv",
        ),
    ],
)
def test_says_why_not(body, reason):
    module = parse_module(program(f"{body}{BATCH_NORM}"))
    assert BatchNormOfConv().check(module.main.last, module) == reason


def test_group_norm(check_pass):
    inputs = "%c: f32[B, 2, 4, 4]"
    before = "    %y = group_norm(%c, @scale, @shift) {groups = 2, epsilon = 0.001} : f32[B, 2, 4, 4]\n"
    after = """    %g = reshape(%c) {shape = [B, 2, 16]} : f32[B, 2, 16]
    %n = layer_norm(%g) {axes = [2], epsilon = 0.001} : f32[B, 2, 16]
    %r = reshape(%n) {shape = [B, 2, 4, 4]} : f32[B, 2, 4, 4]
    %s = reshape(@scale) {shape = [2, 1, 1]} : f32[2, 1, 1]
    %m = mul(%r, %s) : f32[B, 2, 4, 4]
    %t = reshape(@shift) {shape = [2, 1, 1]} : f32[2, 1, 1]
    %y = add(%m, %t) : f32[B, 2, 4, 4]
"""
    check_pass(Decompose(), program(before, inputs), program(after, inputs))
