"""Rows as codes: those of the format, whatever the rows."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.formats import format_of
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.reference import interpret
from ourcc.ir.types import TensorType, f32
from ourcc.passes.quantize.rows import row_scales

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def coded(rows: Array, name: str) -> tuple[Array, Array]:
    format, module, graph = format_of(name), Module("m"), Graph("main")
    module.functions["main"] = graph
    x = graph.add_input("x", TensorType(f32, rows.shape))
    b = Builder(module, graph)
    scale = row_scales(b, x, format.most, keepdims=True)
    codes = b.quantize(x, scale, axis=1, block=rows.shape[1], dtype=format.fields[0].dtype)
    graph.set_outputs([codes, scale], ["codes", "scale"])
    first, second = interpret(module, [rows])
    return first, second


@pytest.mark.parametrize("name", ["int8", "fp8.e4m3", "fp8.e5m2"])
def test_codes_are_those_of_the_format(name: str) -> None:
    random = np.random.default_rng(1)
    rows = (random.standard_normal((64, 24)) * 10.0 ** random.integers(-30, 30, (64, 1))).astype(np.float32)
    rows[3, 5:] = 0
    codes, scale = coded(rows, name)
    expected = format_of(name).encoded(rows)
    np.testing.assert_array_equal(codes, expected["codes"])
    np.testing.assert_array_equal(scale, expected["scale"])


@pytest.mark.parametrize("name", ["int8", "fp8.e4m3"])
def test_zeros_and_what_is_no_number(name: str) -> None:
    rows = np.zeros((3, 8), np.float32)
    rows[1, 2], rows[2, 2] = np.nan, 1e-44
    codes, scale = coded(rows, name)
    found = format_of(name).decoded({"codes": codes, "scale": scale})
    assert not found[0].any() and np.isnan(found[1]).any() and np.isfinite(found[2]).all()
    assert abs(found[2] - rows[2]).max() < 2.0**-126
