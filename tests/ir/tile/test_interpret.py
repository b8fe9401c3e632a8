"""The interpreter: poison, stores, counters, atomics, locals, and the meaning of every structured value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ourcc.ir.dims import NO_FACTS
from ourcc.ir.errors import InputError, VerifyError
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.parse import parse

Array = Any
SYMBOLS = {"B": 5}
X = np.arange(1, 6, dtype=np.float32)


def execute(
    body: str, params: str, arrays: dict[str, Array], symbols: dict[str, int] = SYMBOLS, grid: str = "i: 0..B step 4"
) -> dict[str, Array]:
    names = "B" if "B" in symbols else ""
    source = f"program @p symbols {{ {names} }} {{ launch @l({params}) {{ counter %f: i32[4] = 0 grid ({grid}) {{ {body} }} }} }}"
    return run(parse(source), arrays, symbols)


def one(body: str, result: str, **arrays: Array) -> Array:
    """A program of one grid point over constant axes i 4, j 8, k 4, u 2: what it stores to %y."""
    params = ", ".join(
        f"%{name}: {TYPES[a.dtype.name]}[{', '.join(f'd{n} {s}' for n, s in enumerate(a.shape))}]" for name, a in arrays.items()
    )
    axes = "axis i in 0..4 extent 4 axis j in 0..8 extent 8 axis k in 0..4 extent 4 axis u in 0..2 extent 2 "
    return execute(axes + body, f"{params}, %y: out {result}", arrays, {}, "")["y"]


TYPES = {"float32": "f32", "int32": "i32", "uint8": "u8", "int8": "i8", "bool": "bool", "bfloat16": "bf16", "int64": "i64"}
IO = "%x: f32[i B], %y: out f32[i B]"


def test_a_masked_lane_may_be_computed_with_but_not_stored() -> None:
    out = execute("store %y[i] = neg(load %x[i] : f32[i]) : f32[i]", IO, {"x": X})
    assert np.array_equal(out["y"], -X)
    with pytest.raises(VerifyError, match="store of poison to %y: 1 lanes of the domain have no value") as caught:
        execute("%t = reduce sum i (load %x[i] : f32[i]) : f32 store %y[i] = add(%t, full(0) : f32[i]) : f32[i]", IO, {"x": X})
    assert "in launch @l: store %y[i]" in str(caught.value)


def test_poison_of_integers_is_found_too() -> None:
    body = "%t = reduce max i (load %x[i] : i32[i]) : i32 store %y[i] = add(%t, full(0) : i32[i]) : i32[i]"
    with pytest.raises(VerifyError, match="store of poison to %y"):
        execute(body, "%x: i32[i B], %y: out i32[i B]", {"x": X.astype(np.int32)})
    fixed = body.replace("load %x[i] : i32[i]", "load %x[i] else -7 : i32[i]")
    assert execute(fixed, "%x: i32[i B], %y: out i32[i B]", {"x": X.astype(np.int32)})["y"].tolist() == [4, 4, 4, 4, 5]


def test_where_drops_the_poison_that_is_not_chosen() -> None:
    body = """%in = lt(index(i) : i32[i], index(B) : i32) : bool[i]
              %t = reduce sum i (where(%in, load %x[i] : f32[i], full(0) : f32) : f32[i]) : f32
              store %y[i] = add(%t, full(0) : f32[i]) : f32[i]"""
    assert execute(body, IO, {"x": X})["y"].tolist() == [10, 10, 10, 10, 5]


def test_a_store_outside_the_operand_is_an_error() -> None:
    with pytest.raises(VerifyError, match="store to %y: 1 lanes of the domain lie outside the operand"):
        execute("store %y[i + 1] = load %x[i] : f32[i]", IO, {"x": X})


def test_an_output_that_is_not_written_whole_is_an_error() -> None:
    with pytest.raises(VerifyError, match="output %y: 1 of 5 elements are written by no grid point"):
        execute("store %y[i] = load %x[i] : f32[i]", IO, {"x": X}, grid="i: 0..B - 1 step 4")


def test_an_unwritten_local_is_poison() -> None:
    with pytest.raises(VerifyError, match="store of poison to %y: 4 lanes"):
        execute("local %t: f32[r 4] in cache store %y[i] = load %t[i.lane] : f32[i]", IO, {"x": X})


def test_a_local_lives_for_one_block_and_copies_carry_poison() -> None:
    body = """local %a: f32[r 4] in tensor local %b: f32[r 4] in cache store %a[i.lane] = load %x[i] : f32[i] copy %b = %a
              store %y[i] = load %b[i.lane] : f32[i]"""
    assert np.array_equal(execute(body, IO, {"x": X})["y"], X)


def test_poison_in_conditions_bounds_and_subscripts_is_an_error() -> None:
    point = "axis r in 9..9 extent 1 %p = reduce max r (load %n[r] : i32[r]) : i32 "
    params, arrays = "%n: i32[n 4], %x: f32[i B], %y: out f32[i B]", {"n": np.arange(4, dtype=np.int32), "x": X}
    with pytest.raises(VerifyError, match="condition is poison"):
        execute(point + "if (lt(%p, full(1) : i32) : bool) { }", params, arrays)
    with pytest.raises(VerifyError, match="index expression %p reads %p, which is poison"):
        execute(point + "for s in 0..%p { }", params, arrays)
    with pytest.raises(VerifyError, match="store to %y at a subscript that is poison"):
        execute(point + "store %y[%p] = full(1) : f32", params, arrays)
    with pytest.raises(VerifyError, match="store of poison to %y"):
        execute(point + "%t = load %x[%p] else 0 : f32 store %y[i] = add(%t, full(0) : f32[i]) : f32[i]", params, arrays)


def test_a_wait_that_no_earlier_point_answers_is_an_error() -> None:
    params = "%y: out f32[i 4]"
    body = "if (lt(full(0) : i32, index(p) : i32) : bool) { wait %f[p - 1] >= 1 } store %y[p] = full(1) : f32 signal %f[p]"
    assert execute(body, params, {}, {}, "p: 0..4")["y"].tolist() == [1, 1, 1, 1]
    with pytest.raises(VerifyError, match="wait for %f never ends: it is 1 after all earlier grid points, expected 2"):
        execute(body.replace(">= 1", ">= 2"), params, {}, {}, "p: 0..4")
    with pytest.raises(VerifyError, match=r"counter %f\[4\] is outside its 4 elements"):
        execute("signal %f[p + 1]", params, {}, {}, "p: 0..4")


def test_atomics_add_every_lane_and_a_scatter_drops_what_lies_outside() -> None:
    params, arrays = "%b: i32[i B], %c: inout i32[n 3]", {"b": np.array([0, 2, 2, -1, 2], np.int32), "c": np.array([10, 20, 30], np.int32)}
    out = execute("%at = load %b[i] : i32[i] atomic add %c[%at] = full(1) : i32[i]", params, arrays)
    assert out["c"].tolist() == [11, 20, 33] and arrays["c"].tolist() == [10, 20, 30]
    out = execute("for s in 0..B { %at = load %b[s] : i32 atomic add %c[%at] = full(1) : i32 }", params, arrays, grid="")
    assert out["c"].tolist() == [11, 20, 33]
    out = execute("atomic max %c[i.lane] = full(25) : i32[i]", params, arrays, grid="i: 0..3 step 3")
    assert out["c"].tolist() == [25, 25, 30]


def test_a_gather_takes_its_domain_from_its_index() -> None:
    body = "%at = load %n[i] else 0 : i32[i] %t = load %x[%at] else 7 : f32[i] {}"
    params, arrays = (
        "%n: i32[i B], %x: f32[i B], %y: inout f32[n 8]",
        {"n": np.array([4, 3, 9, 1, 0], np.int32), "x": X, "y": np.zeros(8, np.float32)},
    )
    out = execute(body.format("store %y[i.first + i.lane] = %t"), params, arrays, grid="i: 0..B step 8")
    assert out["y"].tolist() == [5, 4, 7, 2, 1, 7, 7, 7]


def test_a_gather_needs_no_index_where_it_is_masked() -> None:
    body = "%at = load %n[{index}] : i32[i] store %y[i.first + i.lane] = load %x[%at] else 7 : f32[i]"
    params, arrays = (
        "%n: i32[i 5], %x: f32[i B], %y: inout f32[n 8]",
        {"n": np.array([4, 3, 0, 1, 2], np.int32), "x": X, "y": np.zeros(8, np.float32)},
    )
    out = execute(body.replace("{index}", "i"), params, arrays, grid="i: 0..B step 8")
    assert out["y"].tolist() == [5, 4, 1, 2, 3, 7, 7, 7]
    # Inside its domain it does.
    with pytest.raises(VerifyError, match="store of poison"):
        execute(body.replace("{index}", "i + 1"), params, arrays, grid="i: 0..B step 8")


def test_dot_forgives_poison_only_outside_the_domain_and_beside_a_zero() -> None:
    params = "%x: f32[i B], %w: f32[i B], %y: out f32[n 1]"
    arrays = {"x": X, "w": X + 1}
    body = "%t = dot(load %x[i]{X} : f32[i], load %w[i]{W} : f32[i], full(0) : f32) : f32 store %y[0] = %t"

    def total(left: str, right: str) -> float:
        return float(execute(body.replace("{X}", left).replace("{W}", right), params, arrays, grid="i: 0..B step 8")["y"][0])

    assert total(" else 0", "") == total("", " else 0") == float(X @ (X + 1))
    for left, right in (("", ""), (" else 1", ""), (" else 1", " else 2")):
        with pytest.raises(VerifyError, match="store of poison"):
            total(left, right)


def test_dot_in_three_tf32_products_is_nearly_f32_and_one_is_not() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((4, 8)).astype(np.float32) for _ in range(2))
    text = "store %y[i, k] = dot(load %a[i, j] : f32[i, j], load %b[k, j] : f32[k, j], full(0) : f32[i, k], precision = {}) : f32[i, k]"
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    error = {p: np.abs(one(text.format(p), "f32[i 4, k 4]", a=a, b=b) - exact).max() for p in ("exact", "tf32", "tf32x3")}
    assert error["tf32x3"] < 4e-6 < 1e-4 < error["tf32"] < 1e-2 and error["exact"] < 4e-6
    # An infinity stays one: what is left below it is none.
    a[1, 2], b[3, 0] = np.inf, -np.inf
    for precision in error:
        got = one(text.format(precision), "f32[i 4, k 4]", a=a, b=b)
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(np.isnan(got), np.isnan(a @ b.T))


def test_dot_contracts_several_axes_keeps_common_ones_and_scales() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4, 8, 2)).astype(np.float32), rng.standard_normal((4, 8, 2)).astype(np.float32)
    body = "store %y[i] = dot(load %a[i, j, u] : f32[i, j, u], load %b[i, j, u] : f32[j, i, u], full(1) : f32[i]) : f32[i]"
    assert np.allclose(one(body, "f32[i 4]", a=a, b=b), 1 + (a * b).sum(axis=(1, 2)), rtol=1e-5)
    scale = np.arange(1, 5, dtype=np.float32)
    scaled = body.replace("full(1) : f32[i])", "full(0) : f32[i], left_scale = load %s[i] : f32[i])")
    assert np.allclose(one(scaled, "f32[i 4]", a=a, b=b, s=scale), scale * (a * b).sum(axis=(1, 2)), rtol=1e-5)


def test_scales_of_blocks_along_a_sum() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4, 8)).astype(np.float32), rng.standard_normal((4, 8)).astype(np.float32)
    s, t = rng.standard_normal((4, 2)).astype(np.float32), rng.standard_normal((2,)).astype(np.float32)
    body = """store %y[i, k] = dot(load %a[i, j] : f32[i, j], load %b[k, j] : f32[k, j], full(0) : f32[i, k],
                                   left_scale = load %s[i, u] : f32[u, i], right_scale = load %t[u] : f32[u]) : f32[i, k]"""
    wide = np.repeat(s, 4, 1) * a, np.repeat(t, 4) * b
    assert np.allclose(one(body, "f32[i 4, k 4]", a=a, b=b, s=s, t=t), wide[0] @ wide[1].T, rtol=1e-5)


def test_pairs_of_four_bits_are_floats() -> None:
    codes = np.random.default_rng(0).integers(0, 256, (4, 4), np.uint8)
    numbers = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    expected = numbers[np.stack([codes & 15, codes >> 4], -1).reshape(4, 8)]
    body = """%p = unpack(load %x[i, k] : u8[i, k], k -> j, 4 low first) : f4e2m1[i, j]
              store %y[i, j] = cast(%p) : f32[i, j]"""
    assert np.array_equal(one(body, "f32[i 4, j 8]", x=codes), expected)
    dot = """%p = unpack(load %x[i, k] : u8[i, k], k -> j, 4 low first) : f4e2m1[i, j]
             %q = unpack(load %x[u, k] : u8[u, k], k -> j, 4 low first) : f4e2m1[u, j]
             store %y[i, u] = dot(%p, %q, full(0) : f32[i, u]) : f32[i, u]"""
    assert np.array_equal(one(dot, "f32[i 4, u 2]", x=codes), expected @ expected[:2].T)


def test_integer_dot_wraps_in_its_accumulator() -> None:
    a = np.full((4, 8), 127, np.int8)
    body = "store %y[i] = dot(load %a[i, j] : i8[i, j], load %a[i, j] : i8[i, j], full(2147483647) : i32[i]) : i32[i]"
    assert one(body, "i32[i 4]", a=a).tolist() == [-(2**31) + 127 * 127 * 8 - 1] * 4


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "argmax", "argmin"])
def test_reductions_agree_with_numpy(kind: str) -> None:
    x = np.random.default_rng(1).integers(-4, 5, (4, 8)).astype(np.float32)
    dtype = "i32" if kind.startswith("arg") else "f32"
    got = one(f"store %y[i] = reduce {kind} j (load %x[i, j] : f32[j, i]) : {dtype}[i]", f"{dtype}[i 4]", x=x)
    assert np.array_equal(got, getattr(np, kind)(x, axis=1))


def test_reductions_of_bools_and_narrow_floats() -> None:
    flags = np.array([[True, False] * 4, [False] * 8, [True] * 8, [False] * 7 + [True]])
    assert np.array_equal(one("store %y[i] = reduce any j (load %x[i, j] : bool[i, j]) : bool[i]", "bool[i 4]", x=flags), flags.any(axis=1))
    assert np.array_equal(one("store %y[i] = reduce all j (load %x[i, j] : bool[i, j]) : bool[i]", "bool[i 4]", x=flags), flags.all(axis=1))
    import ml_dtypes

    x = np.full((4, 8), 1 / 3, ml_dtypes.bfloat16)
    got = one("store %y[i] = reduce sum j (load %x[i, j] : bf16[i, j]) : bf16[i]", "bf16[i 4]", x=x)
    assert np.array_equal(got, x.astype(np.float32).sum(axis=1).astype(ml_dtypes.bfloat16))


def test_scans_run_both_ways() -> None:
    x = np.random.default_rng(1).integers(-4, 5, (4, 8)).astype(np.float32)
    text = "store %y[i, j] = scan {} (load %x[i, j] : f32[i, j]) : f32[i, j]"
    assert np.array_equal(one(text.format("sum j"), "f32[i 4, j 8]", x=x), np.cumsum(x, axis=1))
    assert np.array_equal(one(text.format("max j reverse"), "f32[i 4, j 8]", x=x), np.maximum.accumulate(x[:, ::-1], axis=1)[:, ::-1])


def test_a_scan_is_poison_from_the_first_poison_lane_on() -> None:
    body = "%s = scan sum i (load %x[i] : f32[i]) : f32[i] store %y[i] = %s"
    assert execute(body, IO, {"x": X}, grid="i: 0..B step 8")["y"].tolist() == [1, 3, 6, 10, 15]
    with pytest.raises(VerifyError, match="store of poison to %y: 5 lanes"):
        execute(body.replace("scan sum i", "scan sum i reverse"), IO, {"x": X}, grid="i: 0..B step 8")


def test_axes_are_split_merged_and_joined() -> None:
    x = np.arange(8, dtype=np.float32)
    split = one("store %y[k, u] = split j -> (k, u) (load %x[j] : f32[j]) : f32[u, k]", "f32[k 4, u 2]", x=x)
    assert np.array_equal(split, x.reshape(4, 2))
    merged = one("store %y[j] = merge (k, u) -> j (load %x[k, u] : f32[u, k]) : f32[j]", "f32[j 8]", x=x.reshape(4, 2))
    assert np.array_equal(merged, x)
    swapped = one("store %y[j] = merge (u, k) -> j (load %x[k, u] : f32[k, u]) : f32[j]", "f32[j 8]", x=x.reshape(4, 2))
    assert np.array_equal(swapped, x.reshape(4, 2).T.reshape(-1))
    body = "%a = load %x[k] : f32[k] store %y[k, u] = join u (%a, neg(%a) : f32[k]) : f32[k, u]"
    assert np.array_equal(one(body, "f32[k 4, u 2]", x=x[:4]), np.stack([x[:4], -x[:4]], axis=1))


def test_a_slice_is_one_of_equal_parts() -> None:
    x = np.arange(8, dtype=np.float32)
    for part in range(4):
        body = f"store %y[u] = slice {part} of j -> u (load %x[j] : f32[j]) : f32[u]"
        assert np.array_equal(one(body, "f32[u 2]", x=x), x[2 * part :][:2])


def test_packed_fields_come_low_first_and_signed_if_asked() -> None:
    x = np.array([0x21, 0x43, 0xF5, 0x87], np.uint8)
    text = "store %y[j] = unpack(load %x[k] : u8[k], k -> j, 4 low first) : {}[j]"
    assert one(text.format("u8"), "u8[j 8]", x=x).tolist() == [1, 2, 3, 4, 5, 15, 7, 8]
    assert one(text.format("i32"), "i32[j 8]", x=x).tolist() == [1, 2, 3, 4, 5, -1, 7, -8]


def test_an_unknown_position_spoils_its_group_of_four() -> None:
    params = "%v: f32[h B], %p: u8[h B], %y: inout f32[j 12]"
    arrays = {"v": np.arange(1, 6, dtype=np.float32), "p": np.array([0, 3, 1, 2, 0], np.uint8), "y": np.zeros(12, np.float32)}
    body = """axis h in 0..B extent 6 axis j in 0..{} extent 12
              store %y[j] = expand_2to4(load %v[h] else 0 : f32[h], load %p[h] : u8[h], h -> j) : f32[j]"""
    assert execute(body.format(8), params, arrays, grid="")["y"].tolist() == [1, 0, 0, 2, 0, 3, 4, 0, 0, 0, 0, 0]
    with pytest.raises(VerifyError, match="store of poison to %y: 4 lanes"):
        execute(body.format(12), params, arrays, grid="")


def test_conditions_and_carries() -> None:
    body = """%s = full(0) : f32
      for q in 0..B by 2 carry (%s) { if (lt(index(q) : i32, full(3) : i32) : bool) carry (%s) { %s = add(%s, load %x[q] : f32) : f32 }
      else { %s = full(100) : f32 } } store %y[0] = %s"""
    assert execute(body, "%x: f32[i B], %y: out f32[n 1]", {"x": X}, grid="")["y"][0] == 100
    assert execute(body.replace("full(3)", "full(9)"), "%x: f32[i B], %y: out f32[n 1]", {"x": X}, grid="")["y"][0] == 9


def test_inputs_that_do_not_fit_are_refused() -> None:
    body = "store %y[i] = load %x[i] : f32[i]"
    with pytest.raises(InputError, match="operand %x is missing"):
        execute(body, IO, {})
    with pytest.raises(InputError, match=r"operand %x is float64\[5\], expected float32\[5\]"):
        execute(body, IO, {"x": X.astype(np.float64)})
    with pytest.raises(InputError, match=r"operand %x is float32\[4\], expected float32\[5\]"):
        execute(body, IO, {"x": X[:4]})
    with pytest.raises(InputError, match="symbol B has no value"):
        run(parse("program @p symbols { B } { launch @l() { grid () { } } }"), {}, {})
    facts = NO_FACTS.with_range("B", 8, 16, divisor=8)
    for size in (0, 12, 24):
        with pytest.raises(InputError, match=f"symbol B is {size}, expected 8..16 and a multiple of 8"):
            run(parse("program @p symbols { B } { launch @l() { grid () { } } }"), {}, {"B": size}, facts)


def test_empty_sizes_run() -> None:
    assert execute("store %y[i] = load %x[i] : f32[i]", IO, {"x": X[:0]}, {"B": 0})["y"].shape == (0,)
    body = "axis r in 0..B extent 4 %t = reduce sum r (load %x[r] else 0 : f32[r]) : f32 store %y[0] = %t"
    assert execute(body, "%x: f32[i B], %y: out f32[n 1]", {"x": X[:0]}, {"B": 0}, "")["y"][0] == 0
