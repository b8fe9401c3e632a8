"""Ranges of drawn expressions hold what they give, and lanes beyond an axis are known only where loads there are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.expression import Constant
from ourcc.ir.scalar import PRIMITIVES, evaluate
from ourcc.ir.tile.program import Full, Load, Ref, TileApply, TileType, Value
from ourcc.ir.tile.ranges import ANYTHING, beyond, range_of
from ourcc.ir.types import boolean, f32, f64

KIND = TileType(f32, ("i",))
X = Load("x", (dims.symbol("i"),), KIND, Constant(0.0, f32))


def full(value: float) -> Value:
    return Full(Constant(value, f32), TileType(f32, ()))


def apply(name: str, *args: Value) -> Value:
    dtype = PRIMITIVES[name].result_of(f32)
    return TileApply(name, args, dtype, type=TileType(dtype, ("i",)))


def drawn(random: np.random.Generator, depth: int) -> Value:
    if depth == 0 or random.random() < 0.1:
        return (X, full(float(np.float32(random.normal() * 9))), full(float(random.integers(-9, 9))))[random.integers(0, 3)]
    name = str(random.choice(["abs", "min", "max", "mul", "round_even", "floor", "where", "add"]))
    args = [drawn(random, depth - 1) for _ in range(2)]
    if name == "where":
        return TileApply("where", (apply("lt", X, full(1.0)), *args), f32, type=KIND)
    return apply(name, *args[: PRIMITIVES[name].arity])


def computed(value: Value, x: np.ndarray) -> np.ndarray:
    if isinstance(value, Full):
        return np.full(x.shape, value.value.value, np.float32)
    if isinstance(value, Load):
        return x
    assert isinstance(value, TileApply)
    with np.errstate(all="ignore"):
        return np.asarray(evaluate(value.primitive, *(computed(arg, x) for arg in value.args)))


@pytest.mark.parametrize("seed", range(200))
def test_what_is_computed_lies_in_its_range(seed: int) -> None:
    random = np.random.default_rng(seed)
    value = drawn(random, 5)
    x = np.concatenate(
        [random.standard_normal(500) * 10.0 ** random.integers(-6, 6, 500), [0, -0.0, np.inf, -np.inf, 3e38, -1e-45, np.nan]]
    )
    result = computed(value, x.astype(np.float32)).astype(np.float64)
    low, high = range_of(value, {})
    numbers = result[~np.isnan(result)]
    assert ((low <= numbers) & (numbers <= high)).all(), (value, low, high)


def test_ranges_that_are_known() -> None:
    held = apply("min", apply("max", X, full(-6.0)), full(6.0))
    assert range_of(held, {}) == (-6.0, 6.0)
    assert range_of(apply("abs", held), {}) == (0.0, 6.0)
    assert range_of(apply("mul", held, full(0.5)), {}) == (-3.0, 3.0)
    assert range_of(apply("round_even", apply("mul", held, full(0.25))), {}) == (-2.0, 2.0)
    assert range_of(apply("mul", X, full(0.0)), {}) == ANYTHING
    assert range_of(Ref("t", KIND), {}) == ANYTHING
    assert range_of(apply("neg", held), {}) == ANYTHING
    assert range_of(Ref("t", KIND), {"t": (1.0, 2.0)}) == (1.0, 2.0)
    assert range_of(TileApply("cast", (held,), f64, type=TileType(f64, ("i",))), {}) == (-6.0, 6.0)


def test_lanes_beyond_an_axis() -> None:
    assert beyond(X, "i") == 0.0
    assert beyond(apply("mul", apply("abs", X), full(3.0)), "i") == 0.0
    assert beyond(apply("lt", X, full(1.0)), "i") is True and apply("lt", X, X).type.dtype == boolean
    assert beyond(apply("exp", X), "i") == 1.0
    negative = beyond(apply("mul", X, full(-1.0)), "i")
    assert negative == 0.0 and math.copysign(1.0, float(negative)) == -1.0
    assert beyond(X, "j") is None, "loads along other axes may be anything"
    assert beyond(Load("x", (dims.symbol("i"),), KIND), "i") is None, "poison is no number"
    assert beyond(Load("x", (dims.symbol("i.lane"),), KIND, Constant(0.0, f32)), "i") is None, "a lane is never masked"
    assert beyond(apply("mul", X, Ref("t", KIND)), "i") is None, "0 by infinity is NaN"
