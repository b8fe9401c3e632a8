"""Layer norm and rms norm in their spellings."""

from __future__ import annotations

import pytest

from ourcc.passes.recognize.normalization import RecognizeNormalization

HEAD = """module @m symbols { B in 1..8 } {
  const @epsilon : f32[] = 1e-05
  const @two : f32[] = 2.0
  const @one : f32[] = 1.0
  const @count : f32[] = 8.0
  const @scale : f32[8] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
  const @scale3 : f32[1, 1, 8] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
  const @bias : f32[8] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -8.0]
"""
TYPES = {"m": "f32[B, 3, 1]", "v": "f32[B, 3, 1]", "e": "f32[B, 3, 1]", "r": "f32[B, 3, 1]", "k": "f32[1, 8]"}


def program(*lines: str, inputs: str = "%x: f32[B, 3, 8]", result: str = "f32[B, 3, 8]") -> str:
    body = "".join(f"    {line} : {TYPES.get(line[1], 'f32[B, 3, 8]')}\n" if " : " not in line else f"    {line}\n" for line in lines)
    return f"{HEAD}  func @main({inputs}) -> {result} {{\n{body}    return %y\n  }}\n}}\n"


MEAN = "mean(%x) {axes = [-1], keepdims = true}"
CENTRED = (f"%m = {MEAN}", "%d = sub(%x, %m)", "%s = mul(%d, %d)", "%v = mean(%s) {axes = [2], keepdims = true}", "%e = add(%v, @epsilon)")
NORM = "layer_norm(%x, _, _) {axes = [2], epsilon = 9.999999747378752e-06}"


@pytest.mark.parametrize(
    "lines",
    [
        (*CENTRED, "%r = sqrt(%e)", "%y = div(%d, %r)"),
        (*CENTRED, "%r = rsqrt(%e)", "%y = mul(%d, %r)"),
        (*CENTRED, "%r = sqrt(%e)", "%r1 = reciprocal(%r)", "%y = mul(%r1, %d)"),
        (*(line.replace("mul(%d, %d)", "pow(%d, @two)") for line in CENTRED), "%r = sqrt(%e)", "%y = div(%d, %r)"),
        (
            *(f"%m = {MEAN}", f"%m1 = {MEAN}", "%d = sub(%x, %m)", "%d1 = sub(%x, %m1)", "%s = mul(%d, %d)"),
            *("%v = mean(%s) {axes = [2], keepdims = true}", "%e = add(%v, @epsilon)", "%r = sqrt(%e)", "%y = div(%d1, %r)"),
        ),
        (
            *("%m = sum(%x) {axes = [2], keepdims = true}", "%m1 = div(%m, @count)", "%d = sub(%x, %m1)", "%s = mul(%d, %d)"),
            *(
                "%v = sum(%s) {axes = [2], keepdims = true}",
                "%v1 = div(%v, @count)",
                "%e = add(%v1, @epsilon)",
                "%r = sqrt(%e)",
                "%y = div(%d, %r)",
            ),
        ),
    ],
    ids=["div sqrt", "mul rsqrt", "reciprocal", "pow", "not shared", "sum"],
)
def test_bare_layer_norm(check_pass, lines):
    check_pass(RecognizeNormalization(), program(*lines), program(f"%y = {NORM}".replace(", _, _", "")))


def test_scale_and_bias_become_operands(check_pass):
    lines = (*CENTRED, "%r = sqrt(%e)", "%n = div(%d, %r)", "%p = mul(@scale, %n)", "%y = add(%p, @bias)")
    check_pass(RecognizeNormalization(), program(*lines), program(f"%y = {NORM}".replace("_, _", "@scale, @bias")))


def test_leading_ones_of_a_parameter_go(check_pass):
    lines = ("%n = rms_norm(%x) {axes = [-1], epsilon = 0.001}", "%y = mul(%n, @scale3)")
    after = ("%k = reshape(@scale3) {shape = [8]} : f32[8]", "%y = rms_norm(%x, %k) {axes = [-1], epsilon = 0.001}")
    check_pass(RecognizeNormalization(), program(*lines), program(*after))


def test_rms_norm(check_pass):
    lines = ("%s = pow(%x, @two)", "%v = mean(%s) {axes = [-1], keepdims = true}", "%e = add(%v, @epsilon)", "%r = rsqrt(%e)")
    after = "%y = rms_norm(%x, @scale) {axes = [2], epsilon = 9.999999747378752e-06}"
    check_pass(RecognizeNormalization(), program(*lines, "%n = mul(%x, %r)", "%y = mul(@scale, %n)"), program(after))


def test_casts_around_a_norm_stay(check_pass):
    inputs, result = "%x: f16[B, 3, 8]", "f16[B, 3, 8]"
    before = (
        "%a = cast(%x) {dtype = f32}",
        "%n = rms_norm(%a) {axes = [-1], epsilon = 0.001}",
        "%y = cast(%n) {dtype = f16} : f16[B, 3, 8]",
    )
    # The norm's own rounding to f16 could be dropped before a scale, the cast that the model wrote may not.
    check_pass(RecognizeNormalization(), program(*before, inputs=inputs, result=result), None)


@pytest.mark.parametrize(
    "lines",
    [
        (*CENTRED, "%r = sqrt(%v)", "%y = div(%d, %r)"),
        (*(line.replace("axes = [2]", "axes = [1]").replace("%v = mean", "%w = mean") for line in CENTRED[:4]), "%y = exp(%d)"),
        ("%n = rms_norm(%x) {axes = [-1], epsilon = 0.001}", "%y = mul(%n, %x)"),
        ("%n = rms_norm(%x) {axes = [-1], epsilon = 0.001}", "%p = mul(%n, @scale)", "%y = add(%n, %p)"),
        ("%n = rms_norm(%x) {axes = [1], epsilon = 0.001}", "%y = mul(%n, @scale)"),
    ],
    ids=["no epsilon", "no quotient", "scaled by a value", "two users", "another axis"],
)
def test_stays(check_pass, lines):
    lines = tuple(f"{line} : f32[B, 1, 8]" if line.startswith("%w") else line for line in lines)
    check_pass(RecognizeNormalization(), program(*lines), None)
