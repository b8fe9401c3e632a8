"""What rules ask of values."""

from __future__ import annotations

import math

import pytest

from ourcc.ir.errors import InternalError
from ourcc.ir.graph import Module
from ourcc.ir.graph.parse import parse_module
from ourcc.passes.match import is_number, matched, operand, uniform

TEXT = """module @m symbols { S in 1..8 } {
  const @ones : f32[2, 2] = [1.0, 1.0, 1.0, 1.0]
  const @mixed : f32[2] = [0.0, -0.0]
  const @nans : f32[2] = [nan, nan]
  const @empty : f32[0] = []
  const @texts : string[1] = ["a"]
  const @three : i8[1] = [3]
  const @large : f32[20]   # sha256:9f2c4a1b9f2c4a1b9f2c4a1b9f2c4a1b9f2c4a1b9f2c4a1b9f2c4a1b9f2c4a1b
  func @main(%x: f32[2]) -> f32[2] {
    %b = broadcast_to(@three) {shape = [4, S]} : i8[4, S]
    %c = cast(%b) {dtype = bool} : bool[4, S]
    %f = full() {shape = [S], value = 0.1, dtype = f16} : f16[S]
    %i = iota() {shape = [2, S], axis = -1, dtype = i64} : i64[2, S]
    %s = slice(%i) {starts = [0, 2], sizes = [2, 1], steps = [1, 3]} : i64[2, 1]
    %r = reshape(%i) {shape = [2, 1, S]} : i64[2, 1, S]
    %j = reshape(%i) {shape = [2*S]} : i64[2*S]
    %n = cast(%i) {dtype = i8} : i8[2, S]
    %y = clip(%x, _, _) : f32[2]
    return %y
  }
}
"""


@pytest.fixture
def module() -> Module:
    return parse_module(TEXT)


def value(module: Module, name: str):
    return next(op for op in module.main if op.result.name == name).result


def test_uniform(module):
    found = {name: uniform(constant) for name, constant in module.constants.items()}
    assert math.isnan(found.pop("nans"))
    assert found == {"ones": 1.0, "mixed": None, "empty": None, "texts": None, "three": 3, "large": None}
    assert uniform(None) is None and uniform(module.main.inputs[0]) is None
    assert uniform(value(module, "b")) == 3
    assert uniform(value(module, "c")) is True
    assert uniform(value(module, "f")) == 0.0999755859375


def test_a_number_is_its_sign_and_its_kind_too(module):
    assert is_number(module.constants["ones"], 1.0)
    assert not is_number(value(module, "c"), 1)
    assert is_number(value(module, "c"), True)
    assert not is_number(module.constants["nans"], math.nan)


def test_what_a_check_has_not_shown_is_our_bug(module):
    with pytest.raises(InternalError, match=r"%x: f32\[2\] is not made by neg or abs, which the check of the rule has shown"):
        matched(module.main.inputs[0], "neg", "abs")
    with pytest.raises(InternalError, match="clip has no operand 1"):
        operand(module.main.last, 1)
