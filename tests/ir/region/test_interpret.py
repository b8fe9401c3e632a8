"""The region interpreter: what each statement means, symbols, and accesses that are refused."""

import ml_dtypes
import numpy as np
import pytest

from ourcc.ir.errors import InputError, VerifyError
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.text import parse_region
from ourcc.ir.scalar import convert
from ourcc.ir.types import DTYPES

X = np.arange(20, dtype=np.float32).reshape(4, 5)


def run(text, symbols=None, **arrays):
    return run_region(parse_region(text), arrays, symbols)


def vector(body, x=X, **arrays):
    """The output %y: f32[N] of a region with the input %x: f32[N, K], axes i, k."""
    return run("region @r(%x: f32[N, K]) -> %y: f32[N] {\n  axes i: N, k: K\n" + body + "}\n", x=x, **arrays)["y"]


@pytest.mark.parametrize(("kind", "fold"), [("sum", np.sum), ("prod", np.prod), ("max", np.max), ("min", np.min)])
def test_reductions(kind, fold):
    np.testing.assert_array_equal(vector(f"  %t = {kind} k: %x[i, k] : f32[i]\n  %y[i] = %t\n"), fold(X, axis=1))


@pytest.mark.parametrize(("kind", "expected"), [("sum", 0), ("prod", 1), ("max", -np.inf), ("min", np.inf)])
def test_reductions_of_nothing(kind, expected):
    assert (vector(f"  %t = {kind} k: %x[i, k] : f32[i]\n  %y[i] = %t\n", X[:, :0]) == expected).all()


@pytest.mark.parametrize(("kind", "expected"), [("argmax", 1), ("argmax_last", 3), ("argmin", 0), ("argmin_last", 2)])
def test_index_of_the_extreme(kind, expected):
    x = np.asarray([[0, 7, 0, 7]] * 2, dtype=np.float32)
    assert (vector(f"  %t = {kind} k: %x[i, k] : i64[i]\n  %y[i] = cast(%t, f32)\n", x) == expected).all()


def test_index_of_the_extreme_of_nothing():
    with pytest.raises(VerifyError, match="argmax over an empty axis has no index, expected 1 or more elements"):
        vector("  %t = argmax k: %x[i, k] : i64[i]\n  %y[i] = cast(%t, f32)\n", X[:, :0])


def test_large_sums_of_products_equal_small_ones():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(40, 50)).astype(np.float32), rng.normal(size=(50, 60)).astype(np.float32)
    text = (
        "region @r(%a: f32[40, 50], %b: f32[50, 60]) -> %y: f32[40, 60] {\n  axes i: 40, j: 60, k: 50, z: 3\n"
        "  %t = sum k, z: mul(%a[i, k], %b[k, j]) : f32[i, j]\n  %y[i, j] = %t\n}\n"
    )
    np.testing.assert_allclose(run(text, a=a, b=b)["y"], 3 * a.astype(np.float64) @ b, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("flags", "expected"), [("", [1, 3, 6]), (" exclusive", [0, 1, 3]), (" reverse", [6, 5, 3]), (" exclusive reverse", [5, 3, 0])]
)
def test_scans(flags, expected):
    x = np.asarray([[1.0], [2.0], [3.0]], dtype=np.float32)
    np.testing.assert_array_equal(vector(f"  %t = cumsum i{flags}: %x[i, 0] : f32[i]\n  %y[i] = %t\n", x), expected)


@pytest.mark.parametrize(("kind", "expected"), [("cummax", [-np.inf, 2, 2]), ("cummin", [np.inf, 2, 1]), ("cumprod", [1, 2, 2])])
def test_exclusive_scans_begin_with_the_identity(kind, expected):
    x = np.asarray([[2.0], [1.0], [3.0]], dtype=np.float32)
    np.testing.assert_array_equal(vector(f"  %t = {kind} i exclusive: %x[i, 0] : f32[i]\n  %y[i] = %t\n", x), expected)


@pytest.mark.parametrize(("kind", "expected"), [("cummax", [2, 2, 3]), ("cummin", [2, 1, 1]), ("cumprod", [2, 2, 6])])
def test_other_scans(kind, expected):
    x = np.asarray([[2.0], [1.0], [3.0]], dtype=np.float32)
    np.testing.assert_array_equal(vector(f"  %t = {kind} i: %x[i, 0] : f32[i]\n  %y[i] = %t\n", x), expected)


def test_loads_outside_give_their_value():
    np.testing.assert_array_equal(vector("  %y[i] = %x[i - 1, 0] else 9.5\n"), [9.5, 0, 5, 10])
    np.testing.assert_array_equal(vector("  %y[i] = %x[i, 0] else 1.0\n", X), X[:, 0])


def test_loads_outside_without_a_value_are_refused():
    with pytest.raises(VerifyError, match="region r: a load of %x leaves it, and has no value for outside"):
        vector("  %y[i] = %x[i - 1, 0]\n")


def test_gathers_and_index_functions():
    text = (
        "region @r(%x: f32[4], %n: i32[3]) -> %y: f32[3] {\n  axes i: 3\n"
        "  %y[i] = add(%x[%g0] with (%g0 = %n[i]), cast(index(max(i, 1) + i // 2 + min(i % 2, 7)), f32))\n}\n"
    )
    result = run(text, x=np.asarray([10, 20, 30, 40], dtype=np.float32), n=np.asarray([3, 0, 1], dtype=np.int32))["y"]
    np.testing.assert_array_equal(result, [41, 12, 23])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32])
@pytest.mark.parametrize(("combine", "expected"), [("add", [1, 6]), ("mul", [1, 6]), ("max", [1, 3]), ("min", [1, 1])])
def test_scatters_combine(combine, expected, dtype):
    name = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32"}[np.dtype(dtype).name]
    text = (
        f"region @r(%x: {name}[2], %n: i64[3], %u: {name}[3]) -> %y: {name}[2] {{\n  axes i: 2, u: 3\n"
        f"  %y[i] = %x[i]\n  %y[%g0] with (%g0 = %n[u]) combine {combine} over (u) = %u[u]\n}}\n"
    )
    arrays = {"x": np.ones(2, dtype), "n": np.asarray([1, 1, 7]), "u": np.asarray([2, 3, 9]).astype(dtype)}
    start = {"add": 1, "mul": 1, "max": 1, "min": 1}[combine]
    assert run(text, **arrays)["y"].astype(np.float64).tolist() == [start, *expected[1:]]


def test_a_scalar_output_and_the_last_write_wins():
    text = "region @r(%x: f32[3]) -> %y: f32[] {\n  axes i: 3\n  %y[] over (i) = %x[i]\n}\n"
    assert run(text, x=np.asarray([1, 2, 3], dtype=np.float32))["y"] == 3
    assert run(text.replace("over", "combine add over"), x=np.asarray([1, 2, 3], dtype=np.float32), y=np.asarray(10, np.float32))["y"] == 16


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f8e4m3", "f8e5m2"])
def test_a_rounding_is_the_cast_to_its_type(dtype):
    text = f"region @r(%x: f32[7]) -> %y: {dtype}[7] {{\n  axes i: 7\n  %y[i] = round(%x[i], {dtype})\n}}\n"
    x = np.asarray([1e6, -70000.0, 1.0009765, 449.0, 3e-8, 0.3, np.nan], np.float32)
    expected = convert(x, DTYPES[dtype])
    assert run(text, x=x)["y"].tobytes() == expected.tobytes()
    assert run(text.replace("round(", "cast("), x=x)["y"].tobytes() == expected.tobytes()


def test_bitcast():
    text = "region @r(%x: f32[2]) -> %y: u32[2] {\n  axes i: 2\n  %y[i] = bitcast(%x[i], u32)\n}\n"
    assert run(text, x=np.asarray([1.0, -0.0], dtype=np.float32))["y"].tolist() == [0x3F800000, 0x80000000]


def test_what_an_output_held_before_is_combined_into():
    text = "region @r(%x: f32[3]) -> %y: f32[3] {\n  axes i: 3\n  %y[i] combine add = %x[i]\n}\n"
    x = np.asarray([1, 2, 3], dtype=np.float32)
    np.testing.assert_array_equal(run(text, x=x, y=x)["y"], 2 * x)
    np.testing.assert_array_equal(x, [1, 2, 3])


def test_elements_never_written_are_an_error():
    with pytest.raises(VerifyError, match=r"region r: element \[3\] of %y is never written"):
        vector("  %y[i - 1] over (i) = %x[i, 0]\n")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (None, "input %x is missing, expected f32\\[N, N\\]"),
        (X.astype(np.float64), "got f64\\[4, 5\\], expected f32\\[N, N\\]"),
        (X[0], "got f32\\[5\\], expected f32\\[N, N\\]"),
        (X, "got f32\\[4, 5\\], expected f32\\[N, N\\] with sizes \\[4, 4\\]"),
    ],
)
def test_inputs_must_fit(x, message):
    with pytest.raises(InputError, match=message):
        run("region @r(%x: f32[N, N]) -> %y: f32[N] {\n  axes i: N\n  %y[i] = %x[i, i]\n}\n", **({} if x is None else {"x": x}))


def test_names_without_a_value_here():
    with pytest.raises(VerifyError, match="region r: symbol Z has no value here"):
        vector("  %y[i] = %x[i, Z]\n")
    with pytest.raises(VerifyError, match="region r: axis k has no value here"):
        vector("  %y[i] = %x[i, k]\n")
    with pytest.raises(VerifyError, match="%t varies over k, which is not an axis of its reader"):
        vector("  %t = %x[i, k] : f32[i, k]\n  %y[i] = %t\n")
