"""Attention is recognised in the spellings that exporters write, and only where it is one."""

from __future__ import annotations

import pytest

from ourcc.passes.recognize.attention import Attention, RecognizeAttention

INPUTS = "%q: f32[B, 4, S, 8], %k: f32[B, 4, S, 8], %v: f32[B, 4, S, 8]"
HEAD = """module @m symbols { B in 1..4, S in 1..16 } {
  const @scale : f32[] = 0.25
  const @four : f32[] = 4.0
  const @half : f32[1] = [0.5]
  const @zero : f32[] = 0.0
  const @minus : f32[] = -inf
  const @lowest : f32[] = -3.4028234663852886e+38
"""


def program(body: str, inputs: str = INPUTS, result: str = "f32[B, 4, S, 8]") -> str:
    return f"{HEAD}  func @main({inputs}) -> {result} {{\n{body}\n    return %y\n  }}\n}}\n"


AFTER = program("    %y = attention(%q, %k, %v, _) {scale = 0.25} : f32[B, 4, S, 8]")
SCORES = """
    %t = transpose(%k) {permutation = [0, 1, 3, 2]} : f32[B, 4, 8, S]
    %s = matmul(%q, %t) : f32[B, 4, S, S]"""
PRODUCT = """
    %p = softmax(%a) {axis = -1} : f32[B, 4, S, S]
    %y = matmul(%p, %v) : f32[B, 4, S, 8]"""


@pytest.mark.parametrize(
    "body",
    [
        SCORES + "\n    %a = mul(%s, @scale) : f32[B, 4, S, S]" + PRODUCT,
        SCORES + "\n    %a = div(%s, @four) : f32[B, 4, S, S]" + PRODUCT.replace("-1", "3"),
        "    %q1 = mul(%q, @scale) : f32[B, 4, S, 8]\n    %a = matmul(%q1, %k) {transpose_b = true} : f32[B, 4, S, S]" + PRODUCT,
        "    %q1 = mul(%q, @half) : f32[B, 4, S, 8]\n    %t = transpose(%k) {permutation = [0, 1, 3, 2]} : f32[B, 4, 8, S]\n"
        "    %k1 = mul(%t, @half) : f32[B, 4, 8, S]\n    %a = matmul(%q1, %k1) : f32[B, 4, S, S]" + PRODUCT,
    ],
    ids=["multiplied", "divided", "on q", "on both"],
)
def test_scale_wherever_it_stands(check_pass, body):
    check_pass(RecognizeAttention(), program(body), AFTER)


def test_transposes_of_both_are_one(check_pass):
    inputs = "%q: f32[B, S, 4, 8], %k: f32[B, S, 4, 8], %v: f32[B, 4, S, 8]"
    before = """    %q1 = transpose(%q) {permutation = [0, 2, 1, 3]} : f32[B, 4, S, 8]
    %t = transpose(%k) {permutation = [0, 2, 3, 1]} : f32[B, 4, 8, S]
    %a = matmul(%q1, %t) : f32[B, 4, S, S]"""
    after = """    %q1 = transpose(%q) {permutation = [0, 2, 1, 3]} : f32[B, 4, S, 8]
    %k1 = transpose(%k) {permutation = [0, 2, 1, 3]} : f32[B, 4, S, 8]
    %y = attention(%q1, %k1, %v, _) {scale = 1.0} : f32[B, 4, S, 8]"""
    check_pass(RecognizeAttention(), program(before + PRODUCT, inputs), program(after, inputs))


def test_added_mask_before_it_was_repeated(check_pass):
    inputs = f"{INPUTS}, %mask: f32[B, 1, 1, S]"
    before = (
        SCORES
        + """
    %c = mul(%s, @scale) : f32[B, 4, S, S]
    %m = broadcast_to(%mask) {shape = [B, 1, S, S]} : f32[B, 1, S, S]
    %a = add(%m, %c) : f32[B, 4, S, S]"""
    )
    after = "    %y = attention(%q, %k, %v, %mask) {scale = 0.25} : f32[B, 4, S, 8]"
    check_pass(RecognizeAttention(), program(before + PRODUCT, inputs), program(after, inputs))


def test_added_zero_or_infinity_is_a_bool_mask(check_pass):
    inputs = f"{INPUTS}, %mask: bool[B, 1, S, S]"
    before = (
        SCORES
        + """
    %m = where(%mask, @zero, @minus) : f32[B, 1, S, S]
    %a = add(%s, %m) : f32[B, 4, S, S]"""
    )
    after = "    %y = attention(%q, %k, %v, %mask) {scale = 1.0} : f32[B, 4, S, 8]"
    check_pass(RecognizeAttention(), program(before + PRODUCT, inputs), program(after, inputs))
    swapped = before.replace("where(%mask, @zero, @minus)", "where(%mask, @minus, @zero)")
    after = "    %n = logical_not(%mask) : bool[B, 1, S, S]\n    %y = attention(%q, %k, %v, %n) {scale = 1.0} : f32[B, 4, S, 8]"
    check_pass(RecognizeAttention(), program(swapped + PRODUCT, inputs), program(after, inputs))


def test_the_numbers_of_a_given_attention_s_mask_are_a_bool(check_pass):
    inputs = f"{INPUTS}, %mask: bool[B, 1, S, S]"
    before = """    %m = where(%mask, {}) : f32[B, 1, S, S]
    %b = broadcast_to(%m) {{shape = [B, 4, S, S]}} : f32[B, 4, S, S]
    %y = attention(%q, %k, %v, %b) {{scale = 1.0}} : f32[B, 4, S, 8]"""
    after = "    %y = attention(%q, %k, %v, %mask) {scale = 1.0} : f32[B, 4, S, 8]"
    check_pass(RecognizeAttention(), program(before.format("@zero, @minus"), inputs), program(after, inputs))
    after = "    %n = logical_not(%mask) : bool[B, 1, S, S]\n    %y = attention(%q, %k, %v, %n) {scale = 1.0} : f32[B, 4, S, 8]"
    check_pass(RecognizeAttention(), program(before.format("@minus, @zero"), inputs), program(after, inputs))
    for others in ("@zero, @lowest", "@four, @minus", "@zero, @zero"):
        check_pass(RecognizeAttention(), program(before.format(others), inputs), None)


def test_mask_put_in_by_where(check_pass):
    inputs = f"{INPUTS}, %mask: bool[S, S]"
    before = (
        SCORES
        + """
    %c = mul(%s, @scale) : f32[B, 4, S, S]
    %a = where(%mask, %c, @minus) : f32[B, 4, S, S]"""
    )
    after = "    %y = attention(%q, %k, %v, %mask) {scale = 0.25} : f32[B, 4, S, 8]"
    check_pass(RecognizeAttention(), program(before + PRODUCT, inputs), program(after, inputs))


def test_lowest_number_put_in_by_where_is_added(check_pass):
    inputs = f"{INPUTS}, %mask: bool[S, S]"
    before = SCORES + "\n    %a = where(%mask, @lowest, %s) : f32[B, 4, S, S]"
    after = """    %m = where(%mask, @lowest, @zero) : f32[S, S]
    %y = attention(%q, %k, %v, %m) {scale = 1.0} : f32[B, 4, S, 8]"""
    check_pass(RecognizeAttention(), program(before + PRODUCT, inputs), program(after, inputs))


def test_safe_softmax(check_pass):
    inputs = f"{INPUTS}, %mask: bool[B, 1, S, S]"
    before = (
        SCORES
        + """
    %a = where(%mask, %s, @minus) : f32[B, 4, S, S]
    %p = softmax(%a) {axis = 3} : f32[B, 4, S, S]
    %n = is_nan(%p) : bool[B, 4, S, S]
    %w = where(%n, @zero, %p) : f32[B, 4, S, S]
    %y = matmul(%w, %v) : f32[B, 4, S, 8]"""
    )
    after = "    %y = attention(%q, %k, %v, %mask) {scale = 1.0, safe = true} : f32[B, 4, S, 8]"
    check_pass(RecognizeAttention(), program(before, inputs), program(after, inputs))


def test_grouped_heads(check_pass):
    inputs = "%q: f32[B, 4, S, 8], %k: f32[B, 2, S, 8], %v: f32[B, 2, S, 8]"
    repeat = "\n".join(
        f"""    %{x}1 = reshape(%{x}) {{shape = [B, 2, 1, S, 8]}} : f32[B, 2, 1, S, 8]
    %{x}2 = broadcast_to(%{x}1) {{shape = [B, 2, 2, S, 8]}} : f32[B, 2, 2, S, 8]
    %{x}3 = reshape(%{x}2) {{shape = [B, 4, S, 8]}} : f32[B, 4, S, 8]"""
        for x in "kv"
    )
    before = (
        repeat
        + """
    %t = transpose(%k3) {permutation = [0, 1, 3, 2]} : f32[B, 4, 8, S]
    %a = matmul(%q, %t) : f32[B, 4, S, S]"""
        + PRODUCT.replace("%v", "%v3")
    )
    after = """    %k1 = reshape(%k) {shape = [B, 2, 1, S, 8]} : f32[B, 2, 1, S, 8]
    %v1 = reshape(%v) {shape = [B, 2, 1, S, 8]} : f32[B, 2, 1, S, 8]
    %k2 = reshape(%k1) {shape = [B, 2, S, 8]} : f32[B, 2, S, 8]
    %v2 = reshape(%v1) {shape = [B, 2, S, 8]} : f32[B, 2, S, 8]
    %y = attention(%q, %k2, %v2, _) {scale = 1.0} : f32[B, 4, S, 8]"""
    check_pass(RecognizeAttention(), program(before, inputs), program(after, inputs))


def test_flattened_heads(check_pass):
    inputs = "%q: f32[8, S, 8], %k: f32[8, S, 8], %v: f32[8, S, 8], %mask: f32[2, 1, 1, S]"
    before = """    %s = matmul(%q, %k) {transpose_b = true} : f32[8, S, S]
    %u = reshape(%s) {shape = [2, 4, S, S]} : f32[2, 4, S, S]
    %a = add(%u, %mask) : f32[2, 4, S, S]
    %p = softmax(%a) {axis = 3} : f32[2, 4, S, S]
    %w = reshape(%p) {shape = [8, S, S]} : f32[8, S, S]
    %y = matmul(%w, %v) : f32[8, S, 8]"""
    after = """    %q1 = reshape(%q) {shape = [2, 4, S, 8]} : f32[2, 4, S, 8]
    %k1 = reshape(%k) {shape = [2, 4, S, 8]} : f32[2, 4, S, 8]
    %v1 = reshape(%v) {shape = [2, 4, S, 8]} : f32[2, 4, S, 8]
    %o = attention(%q1, %k1, %v1, %mask) {scale = 1.0} : f32[2, 4, S, 8]
    %y = reshape(%o) {shape = [8, S, 8]} : f32[8, S, 8]"""
    check_pass(RecognizeAttention(), program(before, inputs, "f32[8, S, 8]"), program(after, inputs, "f32[8, S, 8]"))


def test_softmax_over_another_axis_stays(check_pass):
    module = check_pass(RecognizeAttention(), program(SCORES + PRODUCT.replace("-1", "2").replace("%a", "%s")), None)
    assert Attention().check(module.main.last, module) == "the softmax is over dimension 2, expected the last, 3"


def test_a_plain_product_stays(check_pass):
    body = "    %y = matmul(%q, %k) {transpose_b = true} : f32[B, 4, S, S]"
    check_pass(RecognizeAttention(), program(body, result="f32[B, 4, S, S]"), None)


def test_mask_under_a_scale_stays(check_pass):
    inputs = f"{INPUTS}, %mask: f32[B, 1, 1, S]"
    before = (
        SCORES
        + """
    %c = add(%s, %mask) : f32[B, 4, S, S]
    %a = mul(%c, @scale) : f32[B, 4, S, S]"""
    )
    module = check_pass(RecognizeAttention(), program(before + PRODUCT, inputs), None)
    assert Attention().check(module.main.last, module) == "the mask is scaled"


def test_two_masks_stay(check_pass):
    inputs = f"{INPUTS}, %mask: f32[B, 1, 1, S]"
    before = (
        SCORES
        + """
    %c = add(%s, %mask) : f32[B, 4, S, S]
    %a = add(%c, %mask) : f32[B, 4, S, S]"""
    )
    module = check_pass(RecognizeAttention(), program(before + PRODUCT, inputs), None)
    assert Attention().check(module.main.last, module) == "there are two masks, or the mask has another rank"


@pytest.mark.parametrize("size", ["S", "1024"])
def test_heads_that_no_kernel_keeps_stay(check_pass, size):
    sides = ", ".join(f"%{side}: f32[B, 4, S, {size}]" for side in "qkv")
    body = f"""    %a = matmul(%q, %k) {{transpose_b = true}} : f32[B, 4, S, S]
    %p = softmax(%a) {{axis = -1}} : f32[B, 4, S, S]
    %y = matmul(%p, %v) : f32[B, 4, S, {size}]"""
    text = program(body, sides, f"f32[B, 4, S, {size}]")
    check_pass(RecognizeAttention(), text, None)


NARROW = "%q: f16[B, 4, S, 8], %k: f16[B, 4, S, 8], %v: f16[B, 4, S, 8]"
WIDENED = """    %s = matmul(%q, %k) {transpose_b = true} : f16[B, 4, S, S]
    %a = cast(%s) {dtype = f32} : f32[B, 4, S, S]
    %p = softmax(%a) {axis = -1} : f32[B, 4, S, S]
    %w = cast(%p) {dtype = f16} : f16[B, 4, S, S]
    %y = matmul(%w, %v) : f16[B, 4, S, 8]"""


def test_softmax_in_f32_is_what_attention_computes(check_pass):
    after = "    %y = attention(%q, %k, %v, _) {scale = 1.0} : f16[B, 4, S, 8]"
    check_pass(RecognizeAttention(), program(WIDENED, NARROW, "f16[B, 4, S, 8]"), program(after, NARROW, "f16[B, 4, S, 8]"))


@pytest.mark.parametrize(
    ("value", "name", "narrow"),
    [("%s", "%a", "f16"), ("%s", "%a", "f8e4m3"), ("%p", "%w", "f8e5m2")],
    ids=["scores", "scores of 8 bits", "weights of 8 bits"],
)
def test_conversions_that_attention_does_not_make_stay(check_pass, value, name, narrow):
    there = f"    %n = cast({value}) {{dtype = {narrow}}} : {narrow}[B, 4, S, S]\n"
    back = f"    {name} = cast(%n) {{dtype = f32}} : f32[B, 4, S, S]\n"
    if value == "%s":
        body = SCORES[1:] + "\n" + there + back[:-1] + PRODUCT
    else:
        product = f"\n    %p = softmax(%s) {{axis = -1}} : f32[B, 4, S, S]\n{there}{back}    %y = matmul(%w, %v) : f32[B, 4, S, 8]"
        body = SCORES[1:] + product
    check_pass(RecognizeAttention(), program(body), None)
