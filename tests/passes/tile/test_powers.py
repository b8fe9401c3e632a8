"""Exponentials of an online softmax as powers of two: weights far out, and factors of rows that keep their base."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ourcc.ir.expression import Apply, Constant
from ourcc.ir.region import Ref as Name
from ourcc.ir.scalar import evaluate
from ourcc.ir.types import f32
from ourcc.passes.tile.powers import Words, powers_of

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("highest", [0.0, -7.3, 1e5, 1e8, 1e9, -3e12, 1e30])
def test_weights_of_a_fused_product_stay_at_most_one(highest: float) -> None:
    """The base of a far row is rounded by more than a weight holds, and a fused product is not: interpreters round both."""

    def fused(x: Array, y: Array, z: Array) -> Array:
        return (x.astype(np.longdouble) * y + z).astype(np.float32)

    def apply(primitive: str, *args: Array) -> Array:
        return fused(*args) if primitive == "fma" else np.asarray(evaluate(primitive, *args))

    score = Apply("mul", (Name("p", f32), Constant(0.08838834764831843, f32)), f32)
    powers = powers_of(score, ())
    assert powers.rate is not None
    words = Words[Array](apply, np.float32, lambda _, value: value)
    scores = np.float32(highest) - np.abs(np.float32(highest)) * np.arange(4, dtype=np.float32) - np.arange(4, dtype=np.float32)
    base = powers.base(words, scores[0])
    weights = powers.weight(words, scores, base)
    assert 0.5 <= weights[0] <= 2.0 and np.isfinite(weights).all() and (np.diff(weights) <= 0).all()
    assert powers.factor(words, scores[0], base) == 1.0
