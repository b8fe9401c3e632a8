"""Sizes in a `.pt2`: every constructor that torch writes is read, and nothing else; nothing is evaluated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ourcc.compiler.importers.torch.pt2.expressions import parse_size
from ourcc.ir import dims
from ourcc.ir.errors import ParseError

S, T = "Symbol('s0', positive=True, integer=True)", "Symbol('s1', integer=True)"
VALUES = {"s0": 7, "s1": 3}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Integer(5)", 5),
        ("Integer(-5)", -5),
        (" 12 ", 12),
        (S, 7),
        (f"Add({S}, {T}, Integer(1))", 11),
        (f"Mul(Integer(2), {S}, {T})", 42),
        (f"Add({S}, Mul(Integer(-1), {T}))", 4),
        (f"Pow({S}, Integer(2))", 49),
        (f"PowByNatural({S}, Integer(3))", 343),
        (f"FloorDiv({S}, Integer(2))", 3),
        (f"CleanDiv(Mul({S}, {T}), {T})", 7),
        (f"CeilDiv({S}, Integer(2))", 4),
        (f"CeilToIntDiv({S}, {T})", 3),
        (f"Mod({S}, {T})", 1),
        (f"PythonMod({S}, Integer(4))", 3),
        (f"Max(Integer(1), {T}, {S})", 7),
        (f"Min({S}, {T})", 3),
        (f"Mod(Add({S}, FloorDiv({T}, Integer(2))), Integer(5))", 3),
    ],
)
def test_what_torch_writes(text: str, expected: int) -> None:
    assert dims.evaluate(parse_size(text), VALUES) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it ends early"),
        ("Add(", "it ends early"),
        ("Add(Integer(1)", "got the end, expected ','"),
        ("Integer(1))", "got ')', expected the end"),
        ("s0", "got 's0', expected a call or a number"),
        ("'s0'", "expected an integer expression"),
        ("True", "got True, expected an integer expression"),
        ("Symbol(s0)", "got 's0', expected a call or a number"),
        ("Symbol('')", "Symbol of 1 arguments has no form here"),
        ("Symbol(Integer(1))", "Symbol of 1 arguments has no form here"),
        ("Integer('1')", "Integer of 1 arguments has no form here"),
        ("Add('a', Integer(1))", "Add of 2 arguments has no form here"),
        ("Add()", "Add of 0 arguments has no form here"),
        (f"Pow({S}, {T})", "Pow of 2 arguments has no form here"),
        (f"Pow({S}, Integer(100))", "Pow of 2 arguments has no form here"),
        (f"FloorDiv({S})", "FloorDiv of 1 arguments has no form here"),
        ("Lambda(Integer(1), Integer(2))", "Lambda of 2 arguments has no form here"),
        ("open('hacked', 'w')", "open of 2 arguments has no form here"),
        ("__import__('os').system('touch hacked')", 'cannot read ".system'),
        ("Integer(1)[0]", "cannot read"),
        ("lambda: 1", "cannot read"),
        ("1.5", "cannot read"),
        ("Integer(4611686018427387904)", "is out of range"),
        ("Add(" * 100, "nested more than 64 deep"),
        ("1" * 5000, "a size is 5000 characters long, expected text of at most 4096"),
    ],
)
def test_what_torch_does_not_write(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParseError, match=re.escape(message)):
        parse_size(text)
    assert list(tmp_path.iterdir()) == []
