"""Plans as JSON: what is damaged is named, however large or deep it is; `tests/property/test_plans.py` damages every field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ourcc.ir.errors import ParseError
from ourcc.ir.plan import from_json, to_json
from ourcc.ir.plan.parse import parse_plan

DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]


def broken(place: tuple[Any, ...], value: Any) -> str:
    data = json.loads(json.dumps(to_json(parse_plan((Path(__file__).parent / "plans" / "every_step.plan").read_text()))))
    held = data
    for key in place[:-1]:
        held = held[key]
    held[place[-1]] = value
    with pytest.raises(ParseError) as error:
        from_json(data)
    return error.value.message


def test_what_is_damaged_is_named() -> None:
    assert broken(("target",), 3) == "plan.target: got 3, expected text"
    assert broken(("inputs",), DEEP) == "plan.inputs[0]: got a list of 1, expected a list of 2"
    assert (
        broken(("symbols", "ranges", 0, 1, "low"), 2**63)
        == "plan.symbols.ranges[0][1].low: got 9223372036854775808, expected an integer of 64 bits"
    )
    assert "got an integer of 16610 bits, expected an integer of 64 bits" in broken(("symbols", "ranges", 0, 1, "low"), 10**5000)
    assert broken(("buffers", 0, "type", "shape", 0), 10**18).endswith("expected a size, and at most 999999999999999999")
    assert broken(("buffers", 0, "type", "shape", 0), "B//S" + "//S" * 90).endswith("dimension is nested more than 64 deep")
    assert (
        broken(("buffers", 0, "storage"), "disk")
        == "plan.buffers[0].storage: got 'disk', expected one of the kinds input, output, constant, arena, dynamic, state, alias, verdict"
    )
    assert broken(("steps", 4, "attrs", 0, 1), DEEP).endswith("attribute is nested more than 32 deep")
    assert broken(("steps", 4, "attrs", 0, 1), 2**65).endswith("got an integer of 66 bits, expected an integer of 64 bits")
    assert broken(("steps", 4, "attrs", 0, 1), {"dim": "9" * 30}).endswith("got an object of 1, expected an attribute")
    assert broken(("steps", 4, "attrs", 0, 1), {"complex": "1"}).endswith("got an object of 1, expected an attribute")
    assert "layout d1/16 d0 d1%8: the factors of axis d1 do not cover it exactly once" in broken(
        ("buffers", 3, "storage", "layout", "factors", 2, "modulus"), 8
    )
