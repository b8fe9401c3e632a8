"""Stores whose lanes lie apart in memory: squares are turned in registers, neighbours of 16 bits joined in words, bytes moved as words."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.codegen.c import print_launch
from ourcc.ir.target import CpuLevel
from ourcc.ir.tile.parse import parse

DTYPES = ("f32", "i32", "u32", "bf16", "f16", "f8e4m3", "bool", "i8", "u16", "f64", "i64")
"""Those of 32 bits in registers are turned, others are stored one by one."""
IN_REGISTERS = ("f32", "i32", "u32", "bf16", "f16", "f8e4m3", "bool")


def program(dtype: str, rows: str = "N", tail: str = " tail (1)", width: int = 48, step: int = 16) -> str:
    """Rows in steps of 16, or one by one behind the last whole step, as columns of another tensor."""
    return f"""program @p symbols {{ N }} {{
  launch @p(%x: {dtype}[i N, j {width}], %y: out {dtype}[j {width}, i N]) {{
    grid (a: 0..1) {{
      for i in 0..{rows} step {step}{tail} {{
        for j in 0..{width} step {step} {{
          store %y[j, i] = load %x[i, j] : {dtype}[i, j]
        }}
      }}
    }}
  }}
}}
"""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [16, 1, 35, 64])
def test_every_element_is_where_it_belongs(run_c, level: CpuLevel, dtype: str, rows: int) -> None:
    made = parse(program(dtype))
    kind = made.launches[0].params[0].dtype.numpy
    x = np.random.default_rng(rows).integers(-100, 100, (rows, 48)).astype(kind)
    got = run_c(made, {"x": x}, {"N": rows}, level)["y"]
    np.testing.assert_array_equal(got.view(np.uint8), np.ascontiguousarray(x.T).view(np.uint8))


@pytest.mark.parametrize("rows", [16, 5, 33])
def test_rows_that_are_not_there_are_not_written(run_c, level: CpuLevel, rows: int) -> None:
    """Without a rung of single rows the last square is masked."""
    made = parse(program("f32", tail=""))
    x = np.random.default_rng(rows).standard_normal((rows, 48)).astype(np.float32)
    got = run_c(made, {"x": x}, {"N": rows}, level)["y"]
    np.testing.assert_array_equal(got, x.T)


@pytest.mark.parametrize("dtype", DTYPES)
def test_squares_are_turned_where_they_fit_registers(level: CpuLevel, dtype: str) -> None:
    source = print_launch(parse(program(dtype)).launches[0], level, ("N",))[0].source
    assert (f"_{level.lanes}(q" in source and "turn_" in source) == (dtype in IN_REGISTERS)


@pytest.mark.parametrize(("width", "step"), [(40, 20), (48, 12)])
def test_what_is_no_whole_square_is_stored_one_by_one(run_c, level: CpuLevel, width: int, step: int) -> None:
    made = parse(program("f32", width=width, step=step))
    assert "turn_" not in print_launch(made.launches[0], level, ("N",))[0].source
    x = np.random.default_rng(step).standard_normal((2 * step, width)).astype(np.float32)
    np.testing.assert_array_equal(run_c(made, {"x": x}, {"N": 2 * step}, level)["y"], x.T)


def grouped(dtype: str, along: str, last: int, width: int = 48) -> str:
    """x as it lies in a cache tile in pairs along one axis, and back."""
    order = "i/2 j i%2" if along == "i" else "j/2 i j%2"
    return f"""program @p symbols {{ N }} {{
  launch @p(%x: {dtype}[i N, j {width}], %y: out {dtype}[i N, j {width}]) {{
    grid (a: 0..1) {{
      for r in 0..N step 32 {{
        local %l: {dtype}[i 32, j {width}] in cache as {order}
        for i in 0..32 step 16 {{
          for j in 0..{width} step {last} {{
            store %l[i, j] = load %x[r.first + i, j] else {"0" if dtype == "i16" else "0.0"} : {dtype}[i, j]
          }}
        }}
        for s in r step 1 {{
          axis k in 0..{width} extent {width}
          store %y[s, k] = load %l[s.first - r.first, k] : {dtype}[s, k]
        }}
      }}
    }}
  }}
}}
"""


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "i16"])
@pytest.mark.parametrize("along", ["i", "j"])
@pytest.mark.parametrize(("rows", "last"), [(32, 16), (7, 16), (50, 16), (33, 24), (32, 48)])
def test_pairs_are_where_they_belong(run_c, level: CpuLevel, dtype: str, along: str, rows: int, last: int) -> None:
    made = parse(grouped(dtype, along, last))
    x = np.random.default_rng(rows).integers(-100, 100, (rows, 48)).astype(made.launches[0].params[0].dtype.numpy)
    got = run_c(made, {"x": x}, {"N": rows}, level)["y"]
    np.testing.assert_array_equal(got.view(np.uint8), x.view(np.uint8))


@pytest.mark.parametrize("along", ["i", "j"])
@pytest.mark.parametrize(("dtype", "is_joined"), [("bf16", True), ("f16", True), ("f32", False), ("i16", False)])
def test_pairs_of_narrow_floats_are_stored_as_words(level: CpuLevel, along: str, dtype: str, is_joined: bool) -> None:
    source = print_launch(parse(grouped(dtype, along, level.lanes)).launches[0], level, ("N",))[0].source
    assert ("join_" in source) == is_joined and ("turn_" in source) == (is_joined and along == "j")


def in_fours(dtype: str, last: int) -> str:
    """x as it lies in a cache tile in fours along its rows, as attention packs codes of keys, and back."""
    return grouped(dtype, "j", last).replace("j/2 i j%2", "j/4 i j%4").replace("else 0.0", "else 0")


@pytest.mark.parametrize("dtype", ["i8", "u8"])
@pytest.mark.parametrize(("rows", "last"), [(32, 16), (7, 16), (50, 16), (33, 24), (32, 48), (48, 8)])
def test_bytes_in_fours_are_where_they_belong(run_c, level: CpuLevel, dtype: str, rows: int, last: int) -> None:
    made = parse(in_fours(dtype, last))
    x = np.random.default_rng(rows).integers(0, 256, (rows, 48)).astype(np.uint8).view(made.launches[0].params[0].dtype.numpy)
    got = run_c(made, {"x": x}, {"N": rows}, level)["y"]
    np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_bytes_that_are_neighbours_are_turned_as_words(level: CpuLevel, dtype: str) -> None:
    source = print_launch(parse(in_fours(dtype, level.lanes)).launches[0], level, ("N",))[0].source
    assert f"turn_words_{dtype}" in source
