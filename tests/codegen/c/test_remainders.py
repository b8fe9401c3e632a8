"""Remainders on vectors of f32: exactly those of the C library, where quotients are small, large, beside integers, or not numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ourcc.codegen.c.toolchain import Compiler
from ourcc.ir import scalar
from ourcc.ir.target import CpuLevel

from .conftest import Functions

Array = Any
SPECIAL = (0.0, 0.5, 1.0, 3.0, 1e-45, 1.17549435e-38, 3.4028235e38, 8388607.5, 8388608.0, 16777215.0, math.inf, math.nan)


@pytest.fixture
def functions(level: CpuLevel, compiler: Compiler) -> Functions:
    return Functions.of(dict.fromkeys(("trunc_mod", "floor_mod", "floor_div"), 2), level, compiler)


def pairs() -> tuple[Array, Array]:
    rng = np.random.default_rng(15)
    signed = [*SPECIAL, *np.negative(SPECIAL)]
    edges = [grid.reshape(-1) for grid in np.meshgrid(signed, signed)]
    y = (np.exp2(rng.uniform(-149, 100, 200_000)) * rng.choice([-1, 1], 200_000)).astype(np.float32)
    quotients = np.floor(np.exp2(rng.uniform(0, 25, y.size)))
    near = (y * quotients).astype(np.float32)
    near = np.where(
        rng.random(y.size) < 0.5, near, np.nextafter(near, np.float32(math.inf) * rng.choice([-1, 1], y.size).astype(np.float32))
    )
    with np.errstate(over="ignore"):
        far = (y * np.exp2(rng.uniform(-3, 40, y.size))).astype(np.float32)
    plain = rng.standard_normal((2, 100_000))
    x = np.concatenate([edges[0], near, far, plain[0]]).astype(np.float32)
    return x, np.concatenate([edges[1], y, y, plain[1]]).astype(np.float32)


def test_what_is_left_of_a_truncated_quotient_is_exact(functions: Functions) -> None:
    x, y = pairs()
    with np.errstate(all="ignore"):
        wanted = np.fmod(x, y)
    result, number = functions("trunc_mod", x, y), ~np.isnan(wanted)
    assert np.array_equal(np.isnan(result), ~number)
    assert np.array_equal(result[number].view(np.uint32), wanted[number].view(np.uint32))


@pytest.mark.parametrize("name", ["floor_mod", "floor_div"])
def test_floored_ones_are_those_of_numpy(name: str, functions: Functions) -> None:
    x, y = pairs()
    with np.errstate(all="ignore"):
        wanted = scalar.evaluate(name, x, y)
    np.testing.assert_array_equal(functions(name, x, y), wanted)
