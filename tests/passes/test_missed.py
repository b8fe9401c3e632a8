"""Patterns that were nearly recognised say what was missing, and nothing else says anything."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ourcc.ir.graph.parse import parse_module
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline

HEAD = """module @m symbols { B in 1..4, S in 2..16 } {
  const @half : f32[] = 0.5
  const @one : f32[] = 1.0
  const @sqrt2 : f32[] = 1.4142135381698608
  const @epsilon : f32[] = 1e-05
  const @less : f32[] = 7.0
"""
HEADS, SQUARE, ROWS, ROW = "f32[B, 4, S, 8]", "f32[B, 4, S, S]", "f32[B, 8]", "f32[B, 1]"
SCORES = f"%a = matmul(%q, %k) {{transpose_b = true}} : {SQUARE}\n"
WEIGHTS = f"{SCORES}%p = softmax(%a) {{axis = -1}} : {SQUARE}\n"
PRODUCT = f"%y = matmul(%p, %v) : {HEADS}"
GATE = f"%a = div(%x, @sqrt2) : {ROWS}\n%b = erf(%a) : {ROWS}\n%c = add(%b, @one) : {ROWS}\n"
COLUMN, LAST = "f32[B, 4, S, 1]", "{axes = [3], keepdims = true}"
KEPT = "{axes = [1], keepdims = true}"
CENTRED = f"%m = mean(%x) {KEPT} : {ROW}\n%d = sub(%x, %m) : {ROWS}\n"
ROOT = f"%e = add(%v, @epsilon) : {ROW}\n%r = sqrt(%e) : {ROW}\n%y = div(%d, %r) : {ROWS}"

NEAR: Mapping[str, tuple[str, str, str, list[str]]] = {
    "weights are returned": ("%y, %p", f"{HEADS}, {SQUARE}", WEIGHTS + PRODUCT, ["attention: weights are also an output"]),
    "scores are returned": ("%y, %a", f"{HEADS}, {SQUARE}", WEIGHTS + PRODUCT, ["attention: scores are also an output"]),
    "weights are averaged": (
        "%y, %u",
        f"{HEADS}, f32[B, S, S]",
        f"{WEIGHTS}%u = mean(%p) {{axes = [1], keepdims = false}} : f32[B, S, S]\n{PRODUCT}",
        ["attention: weights are also read by mean"],
    ),
    "scores are capped": (
        "%y",
        HEADS,
        f"{SCORES}%c = tanh(%a) : {SQUARE}\n%p = softmax(%c) {{axis = -1}} : {SQUARE}\n{PRODUCT}",
        ["attention: between the product and the softmax stands tanh"],
    ),
    "scores are capped under a mask": (
        "%y",
        HEADS,
        f"{SCORES}%c = tanh(%a) : {SQUARE}\n%m = add(%c, %w) : {SQUARE}\n%p = softmax(%m) {{axis = -1}} : {SQUARE}\n{PRODUCT}",
        ["attention: between the product and the softmax stands tanh"],
    ),
    "softmax over columns": (
        "%y",
        HEADS,
        f"{SCORES}%p = softmax(%a) {{axis = 2}} : {SQUARE}\n{PRODUCT}",
        ["attention: the softmax is over dimension 2, expected the last, 3"],
    ),
    "weights are scaled by rows": (
        "%y",
        HEADS,
        f"{WEIGHTS}%d = mul(%p, %w) : {SQUARE}\n{PRODUCT.replace('%p', '%d')}",
        ["attention: between the softmax and the product stands mul"],
    ),
    "sigmoid for a softmax": (
        "%y",
        HEADS,
        f"{SCORES}%p = sigmoid(%a) : {SQUARE}\n{PRODUCT}",
        ["attention: the weights are made by sigmoid, expected a softmax"],
    ),
    "squares for a softmax": (
        "%y",
        HEADS,
        f"{SCORES}%r = relu(%a) : {SQUARE}\n%p = mul(%r, %r) : {SQUARE}\n{PRODUCT}",
        ["attention: the weights are made by relu, expected a softmax"],
    ),
    "a softmax without its largest": (
        "%y",
        HEADS,
        f"{SCORES}%e = exp(%a) : {SQUARE}\n%t = sum(%e) {LAST} : {COLUMN}\n%p = div(%e, %t) : {SQUARE}\n{PRODUCT}",
        [
            "softmax: the largest is not subtracted before exp: where scores are large this is infinite as written",
            "attention: the weights are made by exp, expected a softmax",
        ],
    ),
    "gelu without its half": ("%y", ROWS, f"{GATE}%y = mul(%x, %c) : {ROWS}", ["gelu: no product of 0.5 and two factors"]),
    "gelu of another": (
        "%y",
        ROWS,
        f"{GATE}%o = exp(%x) : {ROWS}\n%d = mul(%o, %c) : {ROWS}\n%y = mul(%d, @half) : {ROWS}",
        ["gelu: the argument of erf is another"],
    ),
    "variance of one less": (
        "%y",
        ROWS,
        f"{CENTRED}%s = mul(%d, %d) : {ROWS}\n%t = sum(%s) {KEPT} : {ROW}\n%v = div(%t, @less) : {ROW}\n{ROOT}",
        ["normalization: what is under the root is no mean that keeps its dimensions, plus a number"],
    ),
    "mean of something else": (
        "%y",
        ROWS,
        f"{CENTRED}%s = abs(%d) : {ROWS}\n%v = mean(%s) {KEPT} : {ROW}\n{ROOT}",
        ["normalization: the mean under the root is not of the squares of what is divided by it"],
    ),
}

FAR: Mapping[str, tuple[str, str, str]] = {
    "attention": ("%y", HEADS, WEIGHTS + PRODUCT),
    "attention whose softmax is written out": (
        "%y",
        HEADS,
        f"{SCORES}%m = reduce_max(%a) {LAST} : {COLUMN}\n%d = sub(%a, %m) : {SQUARE}\n%e = exp(%d) : {SQUARE}\n"
        f"%t = sum(%e) {LAST} : {COLUMN}\n%p = div(%e, %t) : {SQUARE}\n{PRODUCT}",
    ),
    "layers with a function between them": ("%y", ROWS, f"%a = relu(%x) : {ROWS}\n%y = sigmoid(%a) : {ROWS}"),
    "a product of what one of several results is made of": (
        "%y",
        HEADS,
        f"%p0, %i = sort(%w) {{axis = 3}} : {SQUARE}, i64[B, 4, S, S]\n%p = sigmoid(%p0) : {SQUARE}\n{PRODUCT}",
    ),
    "linear attention": ("%y", HEADS, f"{SCORES}%p = mul(%a, %w) : {SQUARE}\n{PRODUCT}"),
    "softmax of inputs": ("%y", HEADS, f"%p = softmax(%w) {{axis = -1}} : {SQUARE}\n{PRODUCT}"),
    "softmax of a product": ("%p", SQUARE, WEIGHTS),
    "sigmoid by tanh": ("%y", ROWS, f"%a = tanh(%x) : {ROWS}\n%b = add(%a, @one) : {ROWS}\n%y = mul(%b, @half) : {ROWS}"),
    "gelu": ("%y", ROWS, f"{GATE}%d = mul(%x, %c) : {ROWS}\n%y = mul(%d, @half) : {ROWS}"),
    "quotient by a root": ("%y", ROWS, f"%e = add(%x, @epsilon) : {ROWS}\n%r = sqrt(%e) : {ROWS}\n%y = div(%x, %r) : {ROWS}"),
    "norm": ("%y", ROWS, f"{CENTRED}%s = mul(%d, %d) : {ROWS}\n%v = mean(%s) {KEPT} : {ROW}\n{ROOT}"),
}


def missed(results: str, types: str, body: str) -> list[str]:
    head = f"func @main(%q: {HEADS}, %k: {HEADS}, %v0: {HEADS}, %w: {SQUARE}, %x: {ROWS}) -> ({types})"
    lines = "".join(f"    {line}\n" for line in body.replace(", %v)", ", %v0)").splitlines())
    module = parse_module(f"{HEAD}  {head} {{\n{lines}    return {results}\n  }}\n}}\n")
    records = PassManager(parse_pipeline("recognize_softmax, recognize_attention, recognize_gelu, recognize_normalization")).run(module)
    return [str(row) for record in records for row in record.missed]


@pytest.mark.parametrize("name", NEAR)
def test_what_was_missing_is_said(name: str) -> None:
    *program, expected = NEAR[name]
    assert missed(*program) == expected


@pytest.mark.parametrize("name", FAR)
def test_what_is_recognised_or_something_else_says_nothing(name: str) -> None:
    assert missed(*FAR[name]) == []


def test_scores_of_two_products_of_values_are_two_attentions() -> None:
    body = f"{WEIGHTS}{PRODUCT}\n%z = matmul(%p, %k) : {HEADS}"
    assert missed("%y, %z", f"{HEADS}, {HEADS}", body) == []
