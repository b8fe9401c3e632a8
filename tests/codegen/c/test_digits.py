"""Positions that are divided, as loops over their digits; shifts by numbers that are alike in all lanes: the interpreter's bits."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ourcc.codegen.c import print_launch
from ourcc.codegen.c.digits import numbers
from ourcc.codegen.c.library import Library
from ourcc.codegen.c.writer import Writer
from ourcc.ir.target import AVX512, CpuLevel
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.parse import parse
from ourcc.ir.types import DTYPES

Array = np.ndarray[Any, Any]

COLUMNS = 40


def blocks(extent: int, block: int, half: int) -> str:
    """Products with codes of 4 bits, two halves of a block in one byte, a scale for each block."""
    bytes_, scales = -(-extent // block) * half, -(-extent // block)
    shifted = (
        f"shift_right(load %w[k % {half} + {half}*(k // {block}), j] : u8[k, j], index(4*((k % {block}) // {half})) : u8[k]) : u8[k, j]"
    )
    code = f"cast(bit_and({shifted}, full(15) : u8) : u8[k, j]) : f32[k, j]"
    return f"""
program @p {{
  launch @p(%x: f32[i 3, k {extent}], %w: u8[b {bytes_}, j {COLUMNS}], %d: f32[b {scales}, j {COLUMNS}], %y: out f32[i 3, j {COLUMNS}]) {{
    grid (i: 0..3 step 3, j: 0..{COLUMNS} step 16) {{
      axis k in 0..{extent} extent {extent}
      %z = full(0.0) : f32[i, j]
      %s = dot(load %x[i, k] : f32[i, k], mul({code}, load %d[k // {block}, j] : f32[k, j]) : f32[k, j], %z) : f32[i, j]
      store %y[i, j] = %s
    }}
  }}
}}
"""


@pytest.mark.parametrize(("bits", "amounts"), [(4, (0, 4)), (2, (0, 2, 4, 6)), (1, (0, 3, 7)), (3, (0, 4, 5)), (6, (1, 2))])
@pytest.mark.parametrize("form", ["add({p}, {m})", "add({m}, {p})", "sub({p}, {m})", "sub({m}, {p})"])
def test_scaled_bits_and_what_is_added_to_them(
    bits: int, amounts: tuple[int, ...], form: str, level: CpuLevel, run_c: Callable[..., dict[str, Array]]
) -> None:
    """Products of few bits by scales in 16 bits are exact: in one step with what is added to them they have the same bits, extremes of
    f16 among them.
    """
    random = np.random.default_rng(bits)
    stores, typed = [], "f32[i, j]"
    for n, amount in enumerate(amounts):
        code = f"shift_right(load %w[i, j] : u8[i, j], full({amount}) : u8) : u8[i, j]" if amount else "load %w[i, j] : u8[i, j]"
        code = f"cast(bit_and({code}, full({(1 << bits) - 1}) : u8) : u8[i, j]) : {typed}"
        product = f"mul({code}, cast(load %d[i, j] : f16[i, j]) : {typed}) : {typed}"
        stores.append(f"store %y[{n}, i, j] = {form.format(p=product, m=f'cast(load %m[i, j] : f16[i, j]) : {typed}')} : {typed}")
    lines = "\n      ".join(stores)
    program = parse(f"""
program @p {{
  launch @p(%w: u8[i 3, j 40], %d: f16[i 3, j 40], %m: f16[i 3, j 40], %y: out f32[n {len(amounts)}, i 3, j 40]) {{
    grid (i: 0..3 step 3, j: 0..40 step 16) {{
      {lines}
    }}
  }}
}}
""")
    scales = random.standard_normal((2, 3, 40)).astype(np.float16)
    scales[:, 0, ::3] = [[65504], [-65504]]
    scales[:, 1, ::3] = [[6e-8], [-6e-8]]
    scales[0, 2, :4] = [np.inf, np.nan, 0, -0.0]
    arrays = {"w": random.integers(0, 256, (3, 40)).astype(np.uint8), "d": scales[0], "m": scales[1]}
    expected = run(program, arrays, {})["y"]
    np.testing.assert_array_equal(run_c(program, arrays, {}, level)["y"], expected)


@pytest.mark.parametrize(("extent", "block", "half"), [(192, 32, 16), (32, 32, 16), (100, 20, 10), (96, 64, 32), (90, 6, 3), (70, 32, 16)])
def test_blocks_have_the_bits_of_the_interpreter(
    extent: int, block: int, half: int, level: CpuLevel, run_c: Callable[..., dict[str, Array]]
) -> None:
    program, random = parse(blocks(extent, block, half)), np.random.default_rng(extent)
    arrays = {
        "x": random.standard_normal((3, extent)).astype(np.float32),
        "w": random.integers(0, 256, (-(-extent // block) * half, COLUMNS)).astype(np.uint8),
        "d": random.standard_normal((-(-extent // block), COLUMNS)).astype(np.float32),
    }
    np.testing.assert_array_equal(run_c(program, arrays, {}, level)["y"], run(program, arrays, {})["y"])


def test_what_a_digit_tells_stands_in_its_loop() -> None:
    """Blocks, then both halves written one after the other, then the codes of a half; no position is divided."""
    source = print_launch(parse(blocks(192, 32, 16)).launches[0], AVX512, ())[0].source
    body = source[source.index("f32x16 a") :]
    assert re.findall(r"for \(int64_t p\d+ = 0; p\d+ < (\d+);", body) == ["6", "16", "16"]
    assert not re.search(r"p\d+ [/%]", source) and "shift_right_u8" not in source


def test_sizes_that_blocks_do_not_divide_are_counted_as_they_are() -> None:
    source = print_launch(parse(blocks(70, 32, 16)).launches[0], AVX512, ())[0].source
    assert "< 70; " in source


@pytest.mark.parametrize("dtype", ["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"])
@pytest.mark.parametrize("operator", ["shift_left", "shift_right"])
def test_all_lanes_are_shifted_by_one_number(operator: str, dtype: str, level: CpuLevel, run_c: Callable[..., dict[str, Array]]) -> None:
    """By numbers that are known when printing, by those of a loop below the bits, and by those of one that passes them."""
    kind = DTYPES[dtype]
    bits = kind.bits
    amounts = [f"{operator}(%v, full({n}) : {dtype}) : {dtype}[j]" for n in (0, 1, bits // 2, bits - 1)]
    stores = "\n".join(f"store %y[{n}, j] = {text}" for n, text in enumerate(amounts))
    text = f"""
program @p {{
  launch @p(%x: {dtype}[j 37], %y: out {dtype}[n {4 + 2 * bits}, j 37]) {{
    grid (j: 0..37 step 16) {{
      %v = load %x[j] : {dtype}[j]
      {stores}
      for n in 0..{bits} by 1 {{
        store %y[n + 4, j] = {operator}(%v, index(n) : {dtype}) : {dtype}[j]
        store %y[n + {4 + bits}, j] = {operator}(%v, index(2*n) : {dtype}) : {dtype}[j]
      }}
    }}
  }}
}}
"""
    program = parse(text)
    info = np.iinfo(kind.numpy)
    arrays = {"x": np.random.default_rng(bits).integers(info.min, info.max, 37, kind.numpy, endpoint=True)}
    np.testing.assert_array_equal(run_c(program, arrays, {}, level)["y"], run(program, arrays, {})["y"])


@pytest.mark.parametrize(
    ("sizes", "loops", "bodies"),
    [([6, 2, 16], 2, 2), ([2, 2, 16], 1, 4), ([3, 4, 2, 32], 3, 2), ([4, 32], 1, 4), ([5, 3, 1, 8], 2, 3), ([7], 1, 1), ([3, 8, 4], 3, 1)],
)
def test_few_bodies_are_written_out(sizes: list[int], loops: int, bodies: int) -> None:
    """However few values each digit has: all of them together, next to the last loop, are at most four."""
    values = SimpleNamespace(writer=Writer(Library(AVX512, {})))
    values.writer.open("")
    found = list(numbers(values, sizes))  # type: ignore[arg-type]
    values.writer.close()
    text = "\n".join(values.writer.blocks[0].lines)
    assert len(found) == bodies and text.count("for (") == (loops - 1) + bodies
