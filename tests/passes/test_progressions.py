"""Which integers count along an axis: those that ops make, and constants that say so."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.graph import ConstantData, Module, Value
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.types import TensorType, i64
from ourcc.passes.progressions import LONGEST, Progression, progression

TEXT = """module @m symbols { S in 1..8 } {
  const @four : i64[1] = [4]
  func @main(%x: i64[2]) -> i64[2] {
    %i = iota() {shape = [2, S], axis = -1, dtype = i64} : i64[2, S]
    %s = slice(%i) {starts = [0, 2], sizes = [2, 1], steps = [1, 3]} : i64[2, 1]
    %r = reshape(%i) {shape = [2, 1, S]} : i64[2, 1, S]
    %j = reshape(%i) {shape = [2*S]} : i64[2*S]
    %n = cast(%i) {dtype = i8} : i8[2, S]
    %a = add(%i, @four) : i64[2, S]
    %y = neg(%x) : i64[2]
    return %y
  }
}
"""


@pytest.fixture
def module() -> Module:
    return parse_module(TEXT)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("i", Progression(1, 0, 1)),
        ("s", Progression(1, 2, 3)),
        ("r", Progression(2, 0, 1)),
        ("a", Progression(1, 4, 1)),
        ("j", None),
        ("n", None),
        ("y", None),
    ],
)
def test_what_ops_make(module: Module, name: str, expected: Progression | None) -> None:
    value = next(op for op in module.main if op.result.name == name).result
    assert progression(value) == expected


def constant(module: Module, array: object) -> Value:
    values = np.asarray(array, np.int64)
    return module.add_constant("c", ConstantData(values), None, TensorType(i64, values.shape))


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.arange(7), Progression(0, 0, 1)),
        (np.arange(7)[None, :, None] * -3 + 5, Progression(1, 5, -3)),
        (np.broadcast_to(np.arange(4)[:, None], (4, 3)), Progression(0, 0, 1)),
        (np.arange(200_000), Progression(0, 0, 1)),
        (np.arange(12).reshape(3, 4), None),
        ([3, 3, 3], None),
        ([0, 1, 3], None),
        ([5], None),
        ([], None),
    ],
)
def test_what_constants_say(module: Module, array: object, expected: Progression | None) -> None:
    assert progression(constant(module, array)) == expected


def test_a_constant_too_long_or_not_at_hand_is_not_looked_at(module: Module) -> None:
    def load() -> np.ndarray:
        raise AssertionError("it was asked for")

    long = module.add_constant("c", ConstantData(load=load), None, TensorType(i64, (LONGEST + 1,)))
    assert progression(long) is None and progression(None) is None
