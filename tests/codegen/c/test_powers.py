"""Powers on vectors of f32 against numpy's extended precision: drawn values, every exponent, and what C says of special operands."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ourcc.codegen.c.toolchain import Compiler
from ourcc.ir.target import CpuLevel
from ourcc.ir.types import DTYPES

from .conftest import Functions, same_signs
from .test_primitives import ulps

Array = Any
ONE = ("exp", "exp2", "tanh", "erf", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc")
SPECIAL = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 3.5, 1e-45, 1.17549435e-38, 3.4028235e38, 16777215.0, 16777216.0, math.inf, math.nan)


@pytest.fixture
def functions(level: CpuLevel, compiler: Compiler) -> Functions:
    return Functions.of({**dict.fromkeys(ONE, 1), "pow": 2}, level, compiler)


def drawn() -> Array:
    """Values of both signs at every exponent, beside 1, and where functions leave the range of numbers."""
    rng = np.random.default_rng(11)
    every = (np.arange(1 << 16, dtype=np.uint32) << 16) + rng.integers(0, 1 << 16, 1 << 16, dtype=np.uint32)
    parts = [every.view(np.float32), rng.uniform(-110, 110, 40_000), rng.uniform(-4, 4, 60_000), 1 + rng.uniform(-1e-3, 1e-3, 5_000)]
    ends = [end + rng.uniform(-0.01, 0.01, 500) for end in (87.0, 88.3762, 88.7228, 89.416, -87.336, -88.0, -103.97, -104.0, 10.05, 3.92)]
    with np.errstate(invalid="ignore"):  # what is no number keeps being none
        return np.concatenate([*parts, *ends, SPECIAL, np.negative(SPECIAL)]).astype(np.float32)


def exact(name: str, values: Array) -> Array:
    with np.errstate(all="ignore"):
        if name in ("erf", "erfc"):
            return np.array([getattr(math, name)(x) for x in values.tolist()]).astype(np.longdouble)
        return getattr(np, {"asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh"}.get(name, name))(values.astype(np.longdouble))


@pytest.mark.parametrize("name", ONE)
def test_functions_are_within_two_ulp(name: str, functions: Functions) -> None:
    values = drawn()
    result, wanted = functions(name, values), exact(name, values)
    error = ulps(result, wanted, DTYPES["f32"])
    assert error.max() <= 2, f"{error.max()} ulp at {values[error.argmax()]}"
    assert same_signs(result, wanted, wanted == 0)


def test_pow_is_within_an_ulp(functions: Functions) -> None:
    rng = np.random.default_rng(12)
    count = 60_000
    bases = [np.exp2(rng.uniform(-149, 128, count)), rng.uniform(0, 8, count), 1 + rng.uniform(-1e-3, 1e-3, count)]
    exponents = [rng.uniform(-3, 3, count), rng.uniform(-60, 60, count), rng.uniform(-1e5, 1e5, count)]
    bases, exponents = [*bases, rng.uniform(-9, 9, count)], [*exponents, rng.integers(-40, 40, count)]
    x, y = np.concatenate(bases).astype(np.float32), np.concatenate(exponents).astype(np.float32)
    with np.errstate(all="ignore"):
        error = ulps(functions("pow", x, y), np.power(x.astype(np.longdouble), y.astype(np.longdouble)), DTYPES["f32"])
    assert error.max() <= 1, f"{error.max()} ulp at {x[error.argmax()]}, {y[error.argmax()]}"


def test_pow_of_special_operands_is_what_c_says(functions: Functions) -> None:
    signed = np.array([*SPECIAL, *np.negative(SPECIAL)], np.float32)
    x, y = (grid.reshape(-1) for grid in np.meshgrid(signed, signed))
    with np.errstate(all="ignore"):
        wanted = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    result = functions("pow", x, y)
    assert ulps(result, wanted.astype(np.longdouble), DTYPES["f32"]).max() <= 1
    assert same_signs(result, wanted, ~np.isnan(wanted))
    assert (functions("pow", np.ones_like(signed), signed) == 1).all() and (functions("pow", signed, np.zeros_like(signed)) == 1).all()
