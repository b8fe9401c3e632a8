"""Angles on vectors of f32 against numpy's extended precision: drawn values, every exponent, all quadrants."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ourcc.codegen.c.toolchain import Compiler
from ourcc.ir.target import CpuLevel
from ourcc.ir.types import DTYPES

from .conftest import Functions, same_signs
from .test_primitives import ulps

NUMPY = {"sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan}
SPECIAL = (0.0, 0.5, 1.0, 2.0, 1e-45, 1.17549435e-38, 3.4028235e38, 1e6, math.inf, math.nan)


@pytest.fixture
def functions(level: CpuLevel, compiler: Compiler) -> Functions:
    return Functions.of({**dict.fromkeys(NUMPY, 1), "atan2": 2}, level, compiler)


@pytest.mark.parametrize("name", NUMPY)
def test_functions_are_within_two_ulp(name: str, functions: Functions) -> None:
    rng = np.random.default_rng(13)
    every = (np.arange(1 << 16, dtype=np.uint32) << 16) + rng.integers(0, 1 << 16, 1 << 16, dtype=np.uint32)
    multiples = np.arange(-30_000, 30_000) * (math.pi / 2)
    parts = [every.view(np.float32), rng.uniform(-1, 1, 60_000), rng.uniform(-10, 10, 40_000), multiples, SPECIAL, np.negative(SPECIAL)]
    with np.errstate(all="ignore"):
        values = np.concatenate(parts).astype(np.float32)
        wanted = NUMPY[name](values.astype(np.longdouble))
    result = functions(name, values)
    error = ulps(result, wanted, DTYPES["f32"])
    assert error.max() <= 2, f"{error.max()} ulp at {values[error.argmax()]}"
    assert same_signs(result, wanted, wanted == 0)


def test_atan2_in_all_quadrants(functions: Functions) -> None:
    rng = np.random.default_rng(14)
    signed = [*SPECIAL, *np.negative(SPECIAL)]
    edges = [grid.reshape(-1) for grid in np.meshgrid(signed, signed)]
    drawn = [[rng.uniform(-2, 2, 100_000), np.exp2(rng.uniform(-149, 128, 50_000)) * rng.choice([-1, 1], 50_000)] for _ in range(2)]
    y, x = (np.concatenate([edge, *parts]).astype(np.float32) for edge, parts in zip(edges, drawn, strict=True))
    wanted = np.arctan2(y.astype(np.longdouble), x.astype(np.longdouble))
    result = functions("atan2", y, x)
    error = ulps(result, wanted, DTYPES["f32"])
    assert error.max() <= 2, f"{error.max()} ulp at {y[error.argmax()]}, {x[error.argmax()]}"
    assert same_signs(result, wanted, wanted == 0)
