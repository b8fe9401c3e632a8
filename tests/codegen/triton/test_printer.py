"""What the printer writes: masks where they are needed, index widths, orders, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.codegen.triton import TritonKernel, print_launch
from ourcc.codegen.triton.compile import compile_kernel
from ourcc.codegen.triton.interpret import interpret
from ourcc.ir import dims
from ourcc.ir.errors import UnsupportedError
from ourcc.ir.plan import SCALAR_LIMIT
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.parse import parse


def kernel(body: str, params: str, grid: str = "(i: 0..B step 16)", facts: dims.Facts = dims.NO_FACTS, **options: object) -> TritonKernel:
    text = f"program @p symbols {{ B, K }} {{ launch @p({params}) {{ grid {grid} {{ {body} }} }} }}"
    (launch,) = parse(text).launches
    return print_launch(launch, facts, **options)  # type: ignore[arg-type]


COPY = "store %y[i] = load %x[i] : f32[i]"
TENSORS = "%x: f32[i B], %y: out f32[i B]"


def test_masks_stand_exactly_where_the_bounds_need_them() -> None:
    assert kernel(COPY, TENSORS).source.count("mask=(i_first + lane_16 < size_B)") == 2
    assert "mask" not in kernel(COPY, TENSORS, facts=dims.Facts({}, {"B": 16})).source
    assert "mask" not in kernel(COPY, "%x: f32[i 64], %y: out f32[i 64]", "(i: 0..64 step 16)").source


def test_addresses_are_64_bits_wide_only_where_32_do_not_hold_them() -> None:
    body = "axis k in 0..64 extent 64 store %y[i, k] = load %x[i, k] : f32[i, k]"
    params = "%x: f32[i B, k 64], %y: out f32[i B, k 64]"
    small = kernel(body, params, facts=dims.Facts({"B": dims.Range(1, 1024)}, {}))
    large = kernel(body, params)
    assert "int64" not in small.source
    assert "tl.cast(i_first, tl.int64) * 64) + (lane_16[:, None] * 64" in large.source


@pytest.mark.parametrize(("extent", "is_wide"), [(2**31 - 4096, False), (2**31 - 16, True), (2**31, True), (4_900_000_000, True)])
def test_places_of_programs_are_widened_before_they_are_multiplied(extent: int, is_wide: bool) -> None:
    """The last program's first element, and all of its lanes, fit the integers that they are computed in."""
    source = kernel(COPY, f"%x: f32[i {extent}], %y: out f32[i {extent}]", f"(i: 0..{extent} step 16)").source
    (first,) = (line.strip() for line in source.splitlines() if line.strip().startswith("i_first = "))
    assert ("tl.int64) * 16" in first) is is_wide and first.endswith("* 16"), first


def test_floor_division_of_what_may_be_negative() -> None:
    body = "store %y[i] = load %x[0 - (0 - i) // 4] : f32[i]"
    printed = kernel(body, "%x: f32[i 8], %y: out f32[i 16]", "(i: 0..16 step 16)")
    assert "floor_div_index(" in printed.source
    values = np.arange(8, dtype=np.float32)
    result = interpret(printed, {"x": values, "y": np.zeros(16, np.float32)}, {})["y"]
    assert np.array_equal(result, values[-(-np.arange(16) // 4)])


def test_symbols_divisible_by_16_are_promised() -> None:
    body = "for k in 0..K step 64 { store %y[i, k] = load %x[i, k] : bf16[i, k] }"
    params = "%x: bf16[i B, k K], %y: out bf16[i B, k K]"
    free = kernel(body, params)
    bound = kernel(body, params, facts=dims.Facts({}, {"K": 16}))
    assert free.divisible == (0, 1)
    assert bound.divisible == (0, 1, 3)
    assert kernel(body, params, aligned=frozenset({"y"})).divisible == (1,)
    loads = [compile_kernel(k, gpu_target("sm_90a")).resources.instructions for k in (free, bound)]
    assert "global load 16" not in loads[0] and "global load 2" in loads[0]
    assert loads[1]["global load 16"] > 0 and "global load 2" not in loads[1]


def test_a_value_kept_under_another_name_does_not_follow_its_loop() -> None:
    body = """%m = full(0) : f32[i] for s in 0..3 carry (%m) { %old = %m : f32[i] %m = add(%m, full(1) : f32) : f32[i]
              store %y[s, i] = sub(%m, %old) : f32[i] }"""
    printed = kernel(body, "%y: out f32[s 3, i 16]", "(i: 0..16 step 16)")
    assert np.array_equal(interpret(printed, {"y": np.zeros((3, 16), np.float32)}, {})["y"], np.ones((3, 16), np.float32))


def test_names_that_python_or_the_language_use_are_replaced() -> None:
    body = "%lambda = load %x[i] : f32[i] %tl = add(%lambda, full(1) : f32) : f32[i] store %y[i] = %tl"
    printed = kernel(body, TENSORS)
    result = interpret(printed, {"x": np.ones(3, np.float32), "y": np.zeros(3, np.float32)}, {"B": 3})["y"]
    assert np.array_equal(result, np.full(3, 2, np.float32))


def test_reductions_of_bools_and_bf16() -> None:
    body = """axis k in 0..8 extent 8 %v = load %x[i, k] : bf16[i, k]
              store %s[i] = reduce sum k(%v) : bf16[i]
              store %a[i] = reduce any k(lt(full(2) : bf16, %v) : bool[i, k]) : bool[i]"""
    printed = kernel(body, "%x: bf16[i 16, k 8], %s: out bf16[i 16], %a: out bool[i 16]", "(i: 0..16 step 16)")
    bf16 = parse("program @p { launch @p(%x: bf16[i 1]) { grid () { } } }").launches[0].params[0].dtype.numpy
    x = np.random.default_rng(0).standard_normal((16, 8)).astype(bf16)
    result = interpret(printed, {"x": x, "s": np.zeros(16, bf16), "a": np.zeros(16, bool)}, {})
    assert np.array_equal(result["s"], x.astype(np.float32).sum(1).astype(bf16))
    assert np.array_equal(result["a"], (x > 2).any(1))
    assert compile_kernel(printed, gpu_target("sm_90a")).resources.spill_stores == 0


def test_where_on_a_narrow_float_keeps_its_type() -> None:
    body = "store %y[i] = where(lt(full(0) : f16, load %x[i] : f16[i]) : bool[i], load %x[i] : f16[i], full(0.1) : f16) : f16[i]"
    printed = kernel(body, "%x: f16[i B], %y: out f16[i B]")
    x = np.array([-1, 2, 0.3], np.float16)
    result = interpret(printed, {"x": x, "y": np.zeros(3, np.float16)}, {"B": 3})["y"]
    assert np.array_equal(result, np.array([0.1, 2, 0.3], np.float16))
    assert compile_kernel(printed, gpu_target("sm_90a")).resources.spill_stores == 0


def test_launches_named_like_a_helper_get_another_name() -> None:
    (launch,) = parse(f"program @p {{ launch @exp_f32({TENSORS.replace('B', '16')}) {{ grid (i: 0..16 step 16) {{ {COPY} }} }} }}").launches
    assert print_launch(launch).name == "exp_f32_2"


def test_nan_is_the_largest_of_a_row() -> None:
    body = """axis k in 0..8 extent 8 %v = load %x[i, k] : f32[i, k]
              store %s[i] = reduce max k(%v) : f32[i] store %a[i] = reduce argmax k(%v) : i64[i]"""
    printed = kernel(body, "%x: f32[i 2, k 8], %s: out f32[i 2], %a: out i64[i 2]", "(i: 0..2 step 2)")
    x = np.array([[1, 5, 2, np.nan, 7, np.nan, 0, 1], [3, 3, 2, 1, 3, 0, 0, 0]], np.float32)
    result = interpret(printed, {"x": x, "s": np.zeros(2, np.float32), "a": np.zeros(2, np.int64)}, {})
    assert np.isnan(result["s"][0]) and result["s"][1] == 3
    assert result["a"].tolist() == [3, 0]


def test_axes_are_split_merged_and_renamed() -> None:
    body = """axis k in 0..8 extent 8 axis a in 0..4 extent 4 axis b in 0..2 extent 2
              %v = load %x[i, k] : f32[i, k]
              %s = split k -> (a, b) (%v) : f32[i, a, b]
              store %y[i, b, a] = %s"""
    printed = kernel(body, "%x: f32[i 2, k 8], %y: out f32[i 2, b 2, a 4]", "(i: 0..2 step 2)")
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    result = interpret(printed, {"x": x, "y": np.zeros((2, 2, 4), np.float32)}, {})["y"]
    assert np.array_equal(result, x.reshape(2, 4, 2).transpose(0, 2, 1))


def test_a_register_tile_is_stored_and_read_whole() -> None:
    body = """local %t: f32[a 16] in register store %t[i.lane] = load %x[i] : f32[i]
              local %u: f32[a 16] in register copy %u = %t store %y[i] = load %u[i.lane] : f32[i]"""
    printed = kernel(body, TENSORS)
    x = np.arange(20, dtype=np.float32)
    assert np.array_equal(interpret(printed, {"x": x, "y": np.zeros(20, np.float32)}, {"B": 20})["y"], x)


def test_grouped_order_visits_every_tile_once() -> None:
    body = "atomic add %y[i.first // 16, j.first // 16] = index(1) : i32"
    printed = kernel(body, "%y: inout i32[a 5, b 3]", "(i: 0..B step 16, j: 0..48 step 16) order grouped(2)")
    assert np.array_equal(interpret(printed, {"y": np.zeros((5, 3), np.int32)}, {"B": 80})["y"], np.ones((5, 3), np.int32))


@pytest.mark.parametrize(
    ("body", "params", "grid", "message"),
    [
        (COPY, TENSORS, "(i: 0..B step 12)", "axis i has extent 12, expected a power of two"),
        (COPY, TENSORS, "(i: 0..B step 16) order spiral", "grid order 'spiral' is not known, expected plain, reversed or grouped"),
        (COPY, TENSORS, "(i: 0..B step 16) handout lottery", "handout 'lottery' is not known, expected static, queue or persistent"),
        (COPY, TENSORS, "(i: 0..B step 16) warps many", "hint warps is 'many', expected a positive number"),
        (
            "axis k in 0..131072 extent 131072 store %y[i, k] = load %x[i, k] : f32[i, k]",
            "%x: f32[i B, k 131072], %y: out f32[i B, k 131072]",
            "(i: 0..B step 16)",
            "a tile over i, k has 2097152 elements, expected at most 1048576",
        ),
        ("local %t: f32[a 16] in workspace", TENSORS, "(i: 0..B step 16)", "local t in a workspace is not supported"),
        ("local %t: f32[a 12] in register", TENSORS, "(i: 0..B step 16)", "axis a has extent 12, expected a power of two"),
        ("local %t: f32[a B] in register", TENSORS, "(i: 0..B step 16)", "local t has extent B, expected a constant"),
        (
            "local %t: f32[a 16] in register store %y[i] = load %t[i.lane // 2] : f32[i]",
            TENSORS,
            "(i: 0..B step 16)",
            r"local t is accessed at \[.*\], expected the lanes of axes with extents 16",
        ),
        ("copy %u = %t", TENSORS, "(i: 0..B step 16)", "copy of u, which is no local here"),
        ("store %y[0] = load %x[i] : f32[i]", TENSORS, "(i: 0..B step 16)", "a store to y writes one element for every i"),
        ("atomic add %y[i] = load %x[i] : f32[i]", TENSORS, "(i: 0..B step 16)", "atomic add of f32 is not supported"),
        ("store %y[i] = load %z[i] : f32[i]", TENSORS, "(i: 0..B step 16)", "load from z, which is no operand"),
        ("store %z[i] = load %x[i] : f32[i]", TENSORS, "(i: 0..B step 16)", "store to z, which is no operand"),
        (
            "if (lt(load %x[i] : f32[i], full(0) : f32) : bool[i]) { }",
            TENSORS,
            "(i: 0..B step 16)",
            "an if depends on i, expected one condition",
        ),
        ("for k in 0..i step 4 { }", TENSORS, "(i: 0..B step 16)", "varies over i, expected one number"),
        ("store %y[i] = load %x[%gone] : f32[i]", TENSORS, "(i: 0..B step 16)", "value %gone is not known here"),
        ("%s = reduce median i(load %x[i] : f32[i]) : f32", TENSORS, "(i: 0..B step 16)", "reduction median is not supported"),
        (
            "%s = unpack(load %x[i] : u8[i], i -> j, 3 low first) : u8[j]",
            "%x: u8[i B], %y: out f32[i B]",
            "(i: 0..B step 16)",
            "unpack of 3-bit fields from u8 is not supported",
        ),
        (COPY, "%x: i4[i B], %y: out f32[i B]", "(i: 0..B step 16)", "element type i4 has no Triton type"),
        (
            "%a = dot(load %x[i, k] : f32[i, k], load %x[k, i] : f32[k, i], full(0) : f32[i], precision = bf16x9) : f32[i]",
            TENSORS,
            "(i: 0..B step 16, k: 0..B step 16)",
            "dot precision 'bf16x9' is not supported in Triton kernels, expected one of: exact, tf32, tf32x3",
        ),
        (
            "%a = dot(load %x[i] : f32[i], load %x[i] : f32[i], full(0) : f32, left_scale = load %x[i] : f32[i]) : f32",
            TENSORS,
            "(i: 0..B step 16)",
            "scaled dot of f32 and f32 over i is not supported",
        ),
    ],
)
def test_what_cannot_be_printed_is_refused_with_its_reason(body: str, params: str, grid: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        kernel(body, params, grid)


def test_block_scaled_products() -> None:
    body = """axis j in 0..16 extent 16 axis k in 0..64 extent 64 axis g in 0..2 extent 2
              %a = dot(load %x[i, k] : f8e4m3[i, k], load %w[j, k] : f8e4m3[j, k], full(0) : f32[i, j],
                       left_scale = load %s[i, g] : f8e8m0[i, g], right_scale = load %t[j, g] : f8e8m0[j, g]) : f32[i, j]
              store %y[i, j] = %a"""
    params = "%x: f8e4m3[i 16, k 64], %w: f8e4m3[j 16, k 64], %s: f8e8m0[i 16, g 2], %t: f8e8m0[j 16, g 2], %y: out f32[i 16, j 16]"
    printed = kernel(body, params, "(i: 0..16 step 16)")
    (launch,) = parse(f"program @p {{ launch @p({params}) {{ grid () {{ }} }} }}").launches
    types = {param.name: param.dtype.numpy for param in launch.params}
    random = np.random.default_rng(0)
    x, w = (random.standard_normal((16, 64)).astype(types["x"]) for _ in range(2))
    s, t = (random.integers(120, 134, (16, 2)).astype(np.uint8) for _ in range(2))
    result = interpret(printed, {"x": x, "w": w, "s": s, "t": t, "y": np.zeros((16, 16), np.float32)}, {})["y"]
    wide = [v.astype(np.float64) * np.repeat(2.0 ** (e.astype(float) - 127), 32, 1) for v, e in ((x, s), (w, t))]
    assert np.allclose(result, wide[0] @ wide[1].T, rtol=1e-5, atol=1e-5)
    assert compile_kernel(printed, gpu_target("sm_100a")).resources.spill_stores == 0


SMALL = """axis j in 0..128 extent 128 axis k in 0..128 extent 128 axis b in 0..64 extent 64 axis g in 0..{0} extent {0}
           %a = dot(unpack(load %x[i, b] : u8[i, b], b -> k, 4 low first) : f4e2m1[i, k],
                    unpack(load %w[j, b] : u8[j, b], b -> k, 4 low first) : f4e2m1[j, k], full(0) : f32[{2}],
                    left_scale = load %s[i, g] : {1}[i, g], right_scale = load %t[j, g] : {1}[j, g]) : f32[{2}]
           store %y[{2}] = %a"""
OPERANDS = "%x: u8[i 128, b 64], %w: u8[j 128, b 64], %s: {1}[i 128, g {0}], %t: {1}[j 128, g {0}], %y: out f32[a 128, c 128]"


@pytest.mark.parametrize("order", ["i, j", "j, i"])
@pytest.mark.parametrize(("blocks", "dtype"), [(4, "f8e8m0"), (8, "f8e4m3")])
def test_products_of_four_bits_stay_in_pairs(blocks: int, dtype: str, order: str) -> None:
    body, params = SMALL.format(blocks, dtype, order), OPERANDS.format(blocks, dtype)
    printed = kernel(body, params, "(i: 0..128 step 128)")
    instructions = compile_kernel(printed, gpu_target("sm_100a")).resources
    assert instructions.spill_stores == 0
    program = parse(f"program @p {{ launch @p({params}) {{ grid (i: 0..128 step 128) {{ {body} }} }} }}")
    types = {param.name: param.dtype.numpy for param in program.launches[0].params}
    random = np.random.default_rng(0)
    x, w = (random.integers(0, 256, (128, 64), np.uint8) for _ in range(2))
    s, t = (2.0 ** random.integers(-3, 4, (128, blocks)) for _ in range(2))
    arrays = {"x": x, "w": w, "s": s.astype(types["s"]), "t": t.astype(types["t"])}
    numbers = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    left, right = (
        numbers[np.stack([codes & 15, codes >> 4], -1).reshape(128, 128)] * np.repeat(scale, 128 // blocks, 1)
        for codes, scale in ((x, s), (w, t))
    )
    expected = left @ right.T if order == "i, j" else (left @ right.T).T
    assert np.allclose(run(program, arrays, {})["y"], expected, rtol=1e-5, atol=1e-4)
    if dtype == "f8e8m0":  # Triton's interpreter knows no other scales
        bits = {name: array.view(np.uint8) for name, array in arrays.items()}
        result = interpret(printed, {**bits, "y": np.zeros((128, 128), np.float32)}, {})["y"]
        assert np.allclose(result, expected, rtol=1e-5, atol=1e-4)


def test_sizes_have_a_limit_that_keeps_indices_in_32_bits() -> None:
    assert SCALAR_LIMIT + 2**17 < 2**31
