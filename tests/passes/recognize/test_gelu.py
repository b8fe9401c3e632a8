"""Gelu in its spellings."""

from __future__ import annotations

import pytest

from ourcc.passes.recognize.gelu import Gelu, RecognizeGelu

HEAD = """module @m {
  const @half : f32[] = 0.5
  const @one : f32[] = 1.0
  const @two : f32[] = 2.0
  const @three : f32[] = 3.0
  const @sqrt2 : f32[] = 1.4142135381698608
  const @inverse : f32[] = 0.70710677
  const @outer : f32[] = 0.7978845834732056
  const @inner : f32[] = 0.044714998453855515
  const @short : f32[] = 1.41421
  const @nearly : f32[] = 1.4135
  const @more : f32[] = 0.5004
  func @main(%x: f32[4, 64]) -> f32[4, 64] {
"""


def program(*lines: str) -> str:
    return HEAD + "".join(f"    {line} : f32[4, 64]\n" for line in lines) + "    return %y\n  }\n}\n"


ERF = ("%a = div(%x, @sqrt2)", "%b = erf(%a)", "%c = add(%b, @one)")
CUBE = ("%p = pow(%x, @three)",)
TANH = ("%q = mul(%p, @inner)", "%r = add(%x, %q)", "%s = mul(%r, @outer)", "%u = tanh(%s)", "%c = add(%u, @one)")


@pytest.mark.parametrize(
    ("lines", "approximate"),
    [
        ((*ERF, "%d = mul(%x, %c)", "%y = mul(%d, @half)"), ""),
        ((*ERF, "%d = mul(%c, @half)", "%y = mul(%x, %d)"), ""),
        ((*ERF, "%d = mul(@half, %x)", "%y = mul(%d, %c)"), ""),
        ((*ERF, "%d = mul(%x, %c)", "%y = div(%d, @two)"), ""),
        (("%a = mul(@inverse, %x)", "%b = erf(%a)", "%c = add(@one, %b)", "%d = mul(%x, %c)", "%y = mul(@half, %d)"), ""),
        (("%a = div(%x, @short)", *ERF[1:], "%d = mul(%x, %c)", "%y = mul(%d, @half)"), ""),
        ((*CUBE, *TANH, "%d = mul(%x, @half)", "%y = mul(%d, %c)"), ' {approximate = "tanh"}'),
        (("%o = mul(%x, %x)", "%p = mul(%o, %x)", *TANH, "%d = mul(%x, %c)", "%y = mul(%d, @half)"), ' {approximate = "tanh"}'),
        (
            (
                *("%o = mul(%x, %x)", "%p = mul(%o, @inner)", "%q = add(@one, %p)", "%r = mul(%x, %q)", "%s = mul(%r, @outer)"),
                *("%u = tanh(%s)", "%c = add(%u, @one)", "%d = mul(%x, %c)", "%y = mul(%d, @half)"),
            ),
            ' {approximate = "tanh"}',
        ),
    ],
)
def test_spellings(check_pass, lines, approximate):
    check_pass(RecognizeGelu(), program(*lines), program(f"%y = gelu(%x){approximate}"))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ((*ERF, "%y = mul(%x, %c)"), "no product of 0.5 and two factors"),
        ((*ERF, "%d = mul(%x, %c)", "%y = mul(%d, @more)"), "no product of 0.5 and two factors"),
        (("%a = div(%x, @nearly)", *ERF[1:], "%d = mul(%x, %c)", "%y = mul(%d, @half)"), "the argument of erf is another"),
        ((*ERF, "%o = exp(%x)", "%d = mul(%o, %c)", "%y = mul(%d, @half)"), "the argument of erf is another"),
        (
            ("%a = mul(%x, @half)", "%b = erf(%a)", "%c = add(%b, @one)", "%d = mul(%x, %c)", "%y = mul(%d, @half)"),
            "the argument of erf is another",
        ),
        (
            (*CUBE, *(line.replace("@inner", "@half") for line in TANH), "%d = mul(%x, @half)", "%y = mul(%d, %c)"),
            "the argument of tanh is another",
        ),
        (("%b = erf(%x)", "%d = mul(%x, %b)", "%y = mul(%d, @half)"), "no factor is 1 + erf or 1 + tanh"),
    ],
)
def test_says_why_not(check_pass, lines, reason):
    module = check_pass(RecognizeGelu(), program(*lines), None)
    assert Gelu().check(module.main.last, module) == reason
