"""Modules that the generator once found compiled wrongly or not at all; each is kept as small as it was reduced to."""

from __future__ import annotations

import numpy as np
from generator import Case
from harness import failures

from ourcc.ir.graph import Module
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import Array, concrete

FOUND = {
    # A fold in front of a running fold cannot share its loop.
    "reduction_before_a_scan": """
module @case {
  func @main(%x: f32[3, 4, 5, 6]) -> f32[3, 4, 3, 6] {
    %a = avg_pool(%x) {window = [3, 2], strides = [2, 1], dilations = [1, 1], before = [1, 1], after = [1, 0]} : f32[3, 4, 3, 6]
    %y = cumsum(%a) {axis = 1, exclusive = true} : f32[3, 4, 3, 6]
    return %y
  }
}""",
    # Infinity times terms of both signs is NaN, times their sum it is not.
    "infinite_scales": """
module @case {
  const @t : f32[] = 0.03125
  const @s : f32[3] = [0.5, inf, nan]
  const @b : f32[2, 2] = [-inf, 2.0, 1.0, 0.5]
  func @main(%x: f32[3, 4, 8], %w: f32[3, 8, 6], %g: f32[2, 8], %h: f32[8, 5]) -> (f32[3, 4, 6], f32[2, 5]) {
    %c = quantize(%x, @t) {dtype = i8} : i8[3, 4, 8]
    %v = dequantize(%c, @s) {axis = 0, dtype = f32} : f32[3, 4, 8]
    %y = matmul(%v, %w) : f32[3, 4, 6]
    %d = quantize(%g, @t) {dtype = i8} : i8[2, 8]
    %u = dequantize(%d, @b) {axis = 1, block = 4, dtype = f32} : f32[2, 8]
    %z = matmul(%u, %h) : f32[2, 5]
    return %y, %z
  }
}""",
    "infinite_factor_of_channels": """
module @case {
  const @w : f32[2, 3, 1] = [1.0, -2.0, 3.0, 0.5, 1.0, -1.0]
  const @scale : f32[2] = [inf, 1.0]
  const @shift : f32[2] = [0.5, 1.0]
  const @mean : f32[2] = [0.25, -0.75]
  const @variance : f32[2] = [4.0, 0.5]
  const @g : f32[3] = [0.0, 1.0, 2.0]
  const @h : f32[3] = [0.5, 0.25, 0.125]
  func @main(%x: f32[2, 3, 9]) -> (f32[2, 2, 9], f32[2, 3, 9]) {
    %c = conv(%x, @w) {strides = [1], dilations = [1], before = [0], after = [0]} : f32[2, 2, 9]
    %y = batch_norm(%c, @scale, @shift, @mean, @variance) {epsilon = 0.001} : f32[2, 2, 9]
    %n = batch_norm(%x, @h, @h, @h, @g) {epsilon = 0.0} : f32[2, 3, 9]
    return %y, %n
  }
}""",
    # Storing through a view of nothing must not divide by a size of nothing.
    "view_of_nothing": """
module @case {
  func @main(%q: f32[2, 2, 0, 4], %k: f32[2, 2, 4, 4], %v: f32[2, 2, 4, 3]) -> f32[4, 0, 3] {
    %a = attention(%q, %k, %v) {scale = 0.5, causal = true} : f32[2, 2, 0, 3]
    %y = reshape(%a) {shape = [4, 0, 3]} : f32[4, 0, 3]
    return %y
  }
}""",
    # A symbol that can only be 0 must not give blocks of 0 rows.
    "rows_that_never_are": """
module @case symbols { S in 0..0 } {
  func @main(%q: f32[2, 2, S, 4], %k: f32[2, 2, 5, 4], %v: f32[2, 2, 5, 3]) -> f32[2, 2, S, 3] {
    %y = attention(%q, %k, %v) {scale = 0.5} : f32[2, 2, S, 3]
    return %y
  }
}""",
    # Causal with more keys than one row block looks at: the scores beyond were never written.
    "causal_with_many_keys": """
module @case {
  func @main(%q: f32[1, 4, 2, 8], %k: f32[1, 1, 40, 8], %v: f32[1, 1, 40, 3]) -> f32[1, 4, 2, 3] {
    %y = attention(%q, %k, %v) {scale = 0.5, causal = true} : f32[1, 4, 2, 3]
    return %y
  }
}""",
    # A normalization inside a concat folds its own channels, not the concat's.
    "fold_inside_a_concat": """
module @case symbols { B in 1..20 } {
  func @main(%x: f32[B, 6, 1, 1], %z: f32[B, 40, 1, 1]) -> f32[B, 46, 1, 1] {
    %n = group_norm(%x) {groups = 1, epsilon = 1e-05} : f32[B, 6, 1, 1]
    %y = concat(%n, %z) {axis = 1} : f32[B, 46, 1, 1]
    return %y
  }
}""",
    # The last rung of a ladder of row blocks starts anywhere, not at multiples of the rung before.
    "rows_of_merged_heads": """
module @case {
  func @main(%q: f32[1, 2, 17, 4], %k: f32[1, 1, 8, 4]) -> f32[34, 4] {
    %a = attention(%q, %k, %k) {scale = 0.5, causal = true} : f32[1, 2, 17, 4]
    %y = reshape(%a) {shape = [34, 4]} : f32[34, 4]
    return %y
  }
}""",
    # One row [true, false, false] stands for every row: it is no lower triangle.
    "one_row_of_a_mask": """
module @case {
  const @m : bool[1, 3] = [true, false, false]
  func @main(%q: f32[1, 2, 3, 8]) -> f32[1, 2, 3, 8] {
    %y = attention(%q, %q, %q, @m) {scale = 0.5} : f32[1, 2, 3, 8]
    return %y
  }
}""",
    # The negative of an unsigned number is another one.
    "magnitude_of_unsigned": """
module @case {
  func @main(%x: f32[5]) -> u8[5] {
    %s = mul(%x, %x) : f32[5]
    %u = cast(%s) {dtype = u8} : u8[5]
    %n = neg(%u) : u8[5]
    %y = abs(%n) : u8[5]
    return %y
  }
}""",
}

BATCHED_WEIGHT = """
module @case {
  const @w : f32[3, 4, 8, 5]   # sha256:DIGEST
  func @main(%x: f32[3, 4, 6, 8]) -> f32[3, 4, 6, 5] {
    %y = matmul(%x, @w) : f32[3, 4, 6, 5]
    return %y
  }
}"""


def case(text: str, constants: dict[str, Array] | None = None) -> Case:
    module: Module = parse_module(text, constants)
    random = np.random.default_rng(0)
    runs = []
    for position in (0.0, 1.0):
        ranges = module.facts.ranges
        sizes = {
            name: int((bounds.low or 0) + position * ((8 if bounds.high is None else bounds.high) - (bounds.low or 0)))
            for name, bounds in ranges.items()
        }
        shapes = [concrete(value.type, sizes).shape for value in module.main.inputs]
        runs.append(tuple(random.standard_normal(shape).astype(np.float32) for shape in shapes))
    return Case(module, tuple(runs))


def test_what_was_found_stays_right() -> None:
    weight = np.random.default_rng(1).standard_normal((3, 4, 8, 5)).astype(np.float32)
    # A constant whose leading dimensions a region merges is packed as the merged tensor.
    batched = batched_weight(weight)
    cases = [*(case(text) for text in FOUND.values()), batched]
    wrong = {[*FOUND, "batched_weight"][n]: why for n, why in failures(cases).items()}
    assert wrong == {}


def batched_weight(weight: Array) -> Case:
    module = Module("other")
    digest = module.add_constant("w", weight).constant.digest
    return case(BATCHED_WEIGHT.replace("DIGEST", digest), {digest: weight})
