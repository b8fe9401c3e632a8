"""Leading dimensions of size 1 of constants: gone where broadcasting gives them back, kept where the result needs them."""

from __future__ import annotations

import pytest

from ourcc.passes.tidy.trim_constants import TrimConstants

HEAD = """module @m symbols { B in 1..8 } {
  const @row : f32[1, 1, 3] = [1.0, 2.0, 3.0]
  const @one : f32[1] = [2.0]
  const @column : f32[2, 1] = [1.0, 2.0]
"""


def program(body: str, result: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{HEAD}  func @main(%x: f32[B, 1, 3], %r: f32[3]) -> {result} {{\n{lines}    return %y\n  }}\n}}\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("%y = add(%x, @row) : f32[B, 1, 3]", "%c = reshape(@row) {shape = [3]} : f32[3]\n%y = add(%x, %c) : f32[B, 1, 3]"),
        ("%y = mul(@one, %x) : f32[B, 1, 3]", "%c = reshape(@one) {shape = []} : f32[]\n%y = mul(%c, %x) : f32[B, 1, 3]"),
        (
            "%y = clip(%x, @one, @row) : f32[B, 1, 3]",
            "%a = reshape(@one) {shape = []} : f32[]\n%b = reshape(@row) {shape = [3]} : f32[3]\n%y = clip(%x, %a, %b) : f32[B, 1, 3]",
        ),
    ],
)
def test_leading_ones_go(check_pass, before, after):
    check_pass(TrimConstants(), program(before, "f32[B, 1, 3]"), program(after, "f32[B, 1, 3]"))


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("%y = add(%r, @row) : f32[1, 1, 3]", "f32[1, 1, 3]"),
        ("%y = add(%x, @column) : f32[B, 2, 3]", "f32[B, 2, 3]"),
        ("%y = reshape(@row) {shape = [1, 3]} : f32[1, 3]", "f32[1, 3]"),
    ],
    ids=["the result's rank", "no leading one", "not pointwise"],
)
def test_what_the_result_needs_stays(check_pass, body, result):
    check_pass(TrimConstants(), program(body, result), None)
