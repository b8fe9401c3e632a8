"""Softmax written out."""

from __future__ import annotations

import pytest

from ourcc.passes.recognize.softmax import Quotient, RecognizeSoftmax

HEAD = "module @m {\n  func @main(%x: f32[4, 64]) -> f32[4, 64] {\n"
KEPT = "{axes = [1], keepdims = true}"
LARGEST, SHIFTED, POWER = f"%m = reduce_max(%x) {KEPT} : f32[4, 1]", "%d = sub(%x, %m) : f32[4, 64]", "%e = exp(%d) : f32[4, 64]"
TOTAL, QUOTIENT = f"%s = sum(%e) {KEPT} : f32[4, 1]", "%y = div(%e, %s) : f32[4, 64]"
SOFTMAX = "%y = softmax(%x) {axis = 1} : f32[4, 64]"


def program(*lines: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in lines) + "    return %y\n  }\n}\n"


@pytest.mark.parametrize(
    "lines",
    [
        (LARGEST, SHIFTED, POWER, TOTAL, QUOTIENT),
        (LARGEST, SHIFTED, POWER, "%e2 = exp(%d) : f32[4, 64]", TOTAL.replace("%e)", "%e2)"), QUOTIENT),
        (LARGEST, SHIFTED, POWER, TOTAL, "%r = reciprocal(%s) : f32[4, 1]", "%y = mul(%r, %e) : f32[4, 64]"),
        ("%l = log_softmax(%x) {axis = 1} : f32[4, 64]", "%y = exp(%l) : f32[4, 64]"),
    ],
)
def test_spellings(check_pass, lines):
    check_pass(RecognizeSoftmax(), program(*lines), program(SOFTMAX))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("%e = exp(%x) : f32[4, 64]", TOTAL, QUOTIENT), "the largest is not subtracted before exp"),
        (
            (LARGEST.replace("reduce_max", "reduce_min"), SHIFTED, POWER, TOTAL, QUOTIENT),
            "what is subtracted before exp is not the largest of the scores",
        ),
        (
            (LARGEST.replace("[1]", "[0]").replace("[4, 1]", "[1, 64]"), SHIFTED, POWER, TOTAL, QUOTIENT),
            "the largest is of another dimension than the sum",
        ),
        (
            (LARGEST, SHIFTED, POWER, TOTAL.replace("[1]", "[0, 1]").replace("[4, 1]", "[1, 1]"), QUOTIENT),
            "the sum is not along one dimension that it keeps",
        ),
        ((LARGEST, SHIFTED, POWER, TOTAL, "%y = div(%d, %s) : f32[4, 64]"), "no quotient of powers by their sum"),
    ],
)
def test_what_is_no_softmax_says_why(check_pass, lines, reason):
    module = check_pass(RecognizeSoftmax(), program(*lines), None)
    assert (Quotient().check(module.main.last, module) or "").startswith(reason)
