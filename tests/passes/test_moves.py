"""Transposes into products, casts to where fewer bytes move."""

from __future__ import annotations

import pytest

from ourcc.passes.tidy.merge_transposes import MergeTransposes
from ourcc.passes.tidy.sink_casts import SinkCasts


def program(*lines: str, inputs: str = "%x: f32[B, 3, 4], %w: f32[5, 4], %h: f16[B, 6]", result: str = "f32[B, 3, 5]") -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"module @m symbols {{ B in 1..8 }} {{\n  func @main({inputs}) -> {result} {{\n{body}    return %y\n  }}\n}}\n"


def test_transposed_operands(check_pass):
    before = program("%t = transpose(%w) {permutation = [1, 0]} : f32[4, 5]", "%y = matmul(%x, %t) : f32[B, 3, 5]")
    check_pass(MergeTransposes(), before, program("%y = matmul(%x, %w) {transpose_b = true} : f32[B, 3, 5]"))
    before = program(
        "%t = transpose(%x) {permutation = [0, 2, 1]} : f32[B, 4, 3]",
        "%y = matmul(%t, %w) {transpose_a = true, transpose_b = true} : f32[B, 3, 5]",
    )
    check_pass(MergeTransposes(), before, program("%y = matmul(%x, %w) {transpose_b = true} : f32[B, 3, 5]"))


def test_transposed_product(check_pass):
    before = program(
        "%p = matmul(%x, %w) {transpose_b = true} : f32[B, 3, 5]",
        "%y = transpose(%p) {permutation = [0, 2, 1]} : f32[B, 5, 3]",
        result="f32[B, 5, 3]",
    )
    check_pass(MergeTransposes(), before, program("%y = matmul(%w, %x) {transpose_b = true} : f32[B, 5, 3]", result="f32[B, 5, 3]"))


def test_another_permutation_stays(check_pass):
    inputs = "%x: f32[3, B, 4], %w: f32[4, 5]"
    check_pass(
        MergeTransposes(),
        program("%t = transpose(%x) {permutation = [1, 0, 2]} : f32[B, 3, 4]", "%y = matmul(%t, %w) : f32[B, 3, 5]", inputs=inputs),
        None,
    )


@pytest.mark.parametrize(
    ("before", "after", "result"),
    [
        (
            ("%a = cast(%h) {dtype = f32} : f32[B, 6]", "%y = transpose(%a) {permutation = [1, 0]} : f32[6, B]"),
            ("%a = transpose(%h) {permutation = [1, 0]} : f16[6, B]", "%y = cast(%a) {dtype = f32} : f32[6, B]"),
            "f32[6, B]",
        ),
        (
            ("%a = cast(%h) {dtype = f32} : f32[B, 6]", "%y = slice(%a) {starts = [0, 1], sizes = [B, 2], steps = [1, 1]} : f32[B, 2]"),
            ("%a = slice(%h) {starts = [0, 1], sizes = [B, 2], steps = [1, 1]} : f16[B, 2]", "%y = cast(%a) {dtype = f32} : f32[B, 2]"),
            "f32[B, 2]",
        ),
        (
            ("%a = broadcast_to(%w) {shape = [B, 5, 4]} : f32[B, 5, 4]", "%y = cast(%a) {dtype = f16} : f16[B, 5, 4]"),
            ("%a = cast(%w) {dtype = f16} : f16[5, 4]", "%y = broadcast_to(%a) {shape = [B, 5, 4]} : f16[B, 5, 4]"),
            "f16[B, 5, 4]",
        ),
    ],
)
def test_casts_move(check_pass, before, after, result):
    check_pass(SinkCasts(), program(*before, result=result), program(*after, result=result))


@pytest.mark.parametrize(
    ("lines", "result"),
    [
        (
            (
                "%a = cast(%h) {dtype = f32} : f32[B, 6]",
                "%b = reshape(%a) {shape = [6*B]} : f32[6*B]",
                "%c = reshape(%a) {shape = [B, 2, 3]} : f32[B, 2, 3]",
                "%d = exp(%b) : f32[6*B]",
                "%y = exp(%c) : f32[B, 2, 3]",
            ),
            "f32[B, 2, 3]",
        ),
        (
            ("%a = slice(%w) {starts = [0, 0], sizes = [1, 4], steps = [1, 1]} : f32[1, 4]", "%y = cast(%a) {dtype = f16} : f16[1, 4]"),
            "f16[1, 4]",
        ),
        (("%a = cast(%w) {dtype = f16} : f16[5, 4]", "%y = reshape(%a) {shape = [20]} : f16[20]"), "f16[20]"),
    ],
    ids=["two users", "slice drops elements first", "narrow already"],
)
def test_casts_stay(check_pass, lines, result):
    check_pass(SinkCasts(), program(*lines, result=result), None)
