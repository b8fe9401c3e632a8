"""Numbers as text: ASCII digits alone, at every place that reads one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ourcc.compiler.environment import parse_threads, said_columns
from ourcc.compiler.importers.onnx.symbols import _wish
from ourcc.compiler.requests import parse_duration, parse_measuring, parse_shape
from ourcc.ir.digits import is_whole, whole_number
from ourcc.ir.dims_text import parse_dim
from ourcc.ir.errors import CompilerError
from ourcc.ir.expression import parse_literal
from ourcc.ir.scan import parse_type
from ourcc.ir.workload import parse_workload

OTHER_DIGITS = ("１", "١", "२", "²")
"""One in full width, in Arabic, two in Devanagari, and a superscript."""


def test_whole_numbers() -> None:
    assert (whole_number("0"), whole_number("042"), whole_number("123456", 6)) == (0, 42, 123456)
    for text in ("", "-1", "+1", "1_0", " 1", "1.0", "1" * 19, *OTHER_DIGITS):
        assert whole_number(text) is None
    assert is_whole("1" * 40)
    assert not is_whole("1²")


@pytest.mark.parametrize("digit", OTHER_DIGITS)
@pytest.mark.parametrize(
    ("read", "text"),
    [
        (lambda text: parse_workload([text]), "B=#"),
        (lambda text: parse_workload([text]), "B=1:0.#"),
        (parse_shape, "x=#"),
        (parse_shape, "x=1..#"),
        (parse_shape, "x=B:#..4"),
        (parse_shape, "x=1|#"),
        (parse_dim, "B*#"),
        (parse_type, "f32[#]"),
        (parse_threads, "#"),
        (parse_measuring, "#"),
        (parse_duration, "#s"),
        (lambda text: _wish("B", text), "1..#"),
    ],
)
def test_digits_of_other_scripts_are_no_numbers(read: Callable[[str], Any], text: str, digit: str) -> None:
    read(text.replace("#", "2"))
    with pytest.raises(CompilerError):
        read(text.replace("#", digit))


@pytest.mark.parametrize("text", ["１", "-１", "１.5", "(１+2j)", "１j"])
def test_literals_have_ascii_digits(text: str) -> None:
    with pytest.raises(ValueError, match="digits"):
        parse_literal(text)


def test_a_width_in_other_digits_is_none() -> None:
    assert said_columns({"COLUMNS": "80"}) == 80
    assert [said_columns({"COLUMNS": text}) for text in ("８０", "0", "wide", "100000")] == [None] * 4
