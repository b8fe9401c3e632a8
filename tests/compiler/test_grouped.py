"""Products of rows in groups in engines for CPUs: drawn ends, sizes that only calls know, what is no number in other groups."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.types import bf16, f16, f32, f64
from ourcc.runtime.engine import Engine

from ..groups import drawn_ends, drawn_factors, poison, verdict_of

MODULE = """module @m symbols {{ T in 0..4096 }} {{
  func @main(%a: {dtype}[T, {depth}], %b: {dtype}[{groups}, {depth}, {columns}], %e: i32[{groups}]) -> {dtype}[T, {columns}] {{
    %y = grouped_matmul(%a, %b, %e) : {dtype}[T, {columns}]
    return %y
  }}
}}
"""
SHAPES = ((8, 40, 3), (33, 7, 5), (130, 96, 1), (1, 64, 2), (64, 130, 16), (520, 48, 4))


@functools.cache
def engine(dtype: str, depth: int, columns: int, groups: int, level: str = "native") -> Engine:
    module = parse_module(MODULE.format(dtype=dtype, depth=depth, columns=columns, groups=groups))
    return Engine(compile_module(module, build_options({"targets": [level], "tune": "off"})), threads=2)


@pytest.mark.parametrize("dtype", [f32, bf16, f16, f64], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_drawn_groups_are_right(shape: tuple[int, int, int], dtype: Any) -> None:
    depth, columns, groups = shape
    random, built = np.random.default_rng(depth + columns), engine(dtype.name, *shape)
    for rows in (0, 1, 2, 19, 70, 200):
        for _ in range(4):
            a, b = drawn_factors(random, dtype.numpy, rows, depth, columns, groups)
            ends = drawn_ends(random, rows, groups)
            if random.integers(2):
                poison(random, a, b, ends)
            with np.errstate(all="ignore"):
                got = built(a, b, ends)
            verdict = verdict_of(got, a, b, ends)
            assert verdict.passed, f"{rows} rows, ends {ends}: {verdict.reason}"
            assert not got[ends[-1] :].any(), "rows of no group are 0"


def test_ends_that_fall_or_lie_outside_touch_nothing_else() -> None:
    """What such rows are is not said."""
    built, random = engine("f32", 64, 130, 16), np.random.default_rng(1)
    a, b = drawn_factors(random, np.float32, 70, 64, 130, 16)
    for _ in range(20):
        assert built(a, b, random.integers(-(1 << 31), 1 << 31, 16).astype(np.int32)).shape == (70, 130)
        assert built(a, b, random.integers(-5, 90, 16).astype(np.int32)).shape == (70, 130)
