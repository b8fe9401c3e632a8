"""Every scalar primitive in C against its meaning in numpy, on edge values, for every dtype that has arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

from ourcc.codegen.c.printer import SourceFile
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir import dims, scalar
from ourcc.ir.errors import UnsupportedError
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.target import AVX2, CpuLevel
from ourcc.ir.tile.program import GridAxis, Launch, Load, Param, Store, TileApply, TileProgram, TileType
from ourcc.ir.types import DTYPES, DType, TensorType, boolean, f8e4m3, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0, f32
from ourcc.passes.regions.spell_out import INSTRUCTIONS
from ourcc.runtime.engine import Engine

Array = Any
HERE = dims.symbol("i")
LANES = 16
"""Two registers of f32 or four of f64 with AVX2, one or two with AVX-512."""

ELEMENTARY = (
    *("exp", "exp2", "expm1", "log", "log2", "log1p", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan", "atan2"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma", "pow"),
)
NARROW = {"exp2_narrow": 2.0**-13, "sigmoid_narrow": 2.0**-12, "gelu_narrow": 2.0**-10}
"""How far what is read as 16 bits may be off, relatively."""
FLOAT_ONLY = {*ELEMENTARY, *NARROW, "sqrt", "div_narrow"} - {"pow"}
INTEGER_ONLY = {"bit_and", "bit_or", "bit_xor", "bit_not", "shift_left", "shift_right"}
BOOL = (
    "add",
    "sub",
    "mul",
    "max",
    "min",
    "eq",
    "ne",
    "lt",
    "le",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bit_not",
    "where",
    "is_nan",
    "is_inf",
    "abs",
)
FLOATS = ("f64", "f32", "f16", "bf16")
SMALL = ("f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "f8e8m0")
INTEGERS = ("i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8")


def edges(dtype: DType) -> Array:
    """Values at which arithmetic goes wrong, and ordinary ones."""
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.is_float and dtype.bits <= 8:
        return np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy)
    if dtype.is_float:
        info = {
            "f64": (5e-324, 2.2e-308, 1.79e308),
            "f32": (1e-45, 1.2e-38, 3.4e38),
            "f16": (6e-8, 6.2e-5, 65504.0),
            "bf16": (1e-40, 1.2e-38, 3.38e38),
        }
        tiny, normal, huge = info[dtype.name]
        special = [
            0.0,
            -0.0,
            math.inf,
            -math.inf,
            math.nan,
            1.0,
            -1.0,
            0.5,
            -0.5,
            1.5,
            2.5,
            -2.5,
            3.0,
            -7.0,
            88.7,
            -103.0,
            1e-3,
            0.99,
            -0.99,
        ]
        drawn = np.random.default_rng(7).standard_normal(24) * np.geomspace(1e-3, 30, 24)
        return (
            np.array([*special, tiny, -tiny, normal, -normal, huge, -huge, *drawn])
            .astype(np.float32 if dtype.bits < 64 else np.float64)
            .astype(dtype.numpy)
        )
    low, high = (0, (1 << dtype.bits) - 1) if dtype.kind == "uint" else (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)
    signed = [-1, -2, -3, -7, -13] if dtype.kind == "int" else []
    return np.array([low, low + 1, high, high - 1, 0, 1, 2, 3, 5, 7, 8, 31, 63, 100, *signed]).astype(dtype.numpy)


def tuples(dtype: DType, arity: int) -> list[Array]:
    """Operands: all pairs of edges; the third of three is shifted against the first."""
    values = edges(dtype)
    grids = [grid.reshape(-1) for grid in np.meshgrid(*[values] * min(arity, 2), indexing="ij")]
    return grids if arity <= 2 else [*grids, np.roll(grids[0], 5)]


def names_for(dtype: DType) -> list[str]:
    if dtype.kind == "bool":
        return list(BOOL)
    skip = INTEGER_ONLY if dtype.is_float else FLOAT_ONLY | {"floor", "ceil", "trunc", "round_even"}
    skip = skip | INSTRUCTIONS | {"cast", "round", "bitcast"}  # what processors have no instruction for is spelled out before
    return [name for name in scalar.PRIMITIVES if name not in skip]


def pointwise(dtypes: list[DType], result: DType, primitive: str, name: str) -> Launch:
    """y[i] = primitive(x0[i], x1[i], ...)."""
    size = (("i", dims.symbol("N")),)
    inputs = tuple(Param(f"x{n}", dtype, size) for n, dtype in enumerate(dtypes))
    loads = tuple(Load(param.name, (HERE,), TileType(param.dtype, ("i",))) for param in inputs)
    value = TileApply(primitive, loads, result, type=TileType(result, ("i",)))
    output = Param("y", result, size, "out")
    return Launch(name, (*inputs, output), (GridAxis("i", 0, dims.symbol("N"), LANES),), (Store("y", (HERE,), value),))


def operands(name: str, dtype: DType) -> tuple[list[DType], list[Array]]:
    arity = scalar.PRIMITIVES[name].arity
    if name == "where":
        values = tuples(dtype, 2)
        return [boolean, dtype, dtype], [np.arange(len(values[0])) % 3 == 0, *values]
    return [dtype] * arity, tuples(dtype, arity)


def rename(launches: list[tuple[str, Launch, list[Array], Array]]) -> tuple[TileProgram, dict[str, Array], dict[str, Array]]:
    """Many one-operand-set launches as one program: operands get the case's name."""
    programs, arrays, wanted = [], {}, {}
    for case, launch, inputs, expected in launches:
        params = tuple(Param(f"{case}_{p.name}", p.dtype, (("i", len(inputs[0])),), p.role) for p in launch.params)
        store = launch.body[0]
        assert isinstance(store, Store) and isinstance(store.value, TileApply)
        args = tuple(Load(f"{case}_x{n}", (HERE,), arg.type) for n, arg in enumerate(store.value.args))
        body = (Store(f"{case}_y", (HERE,), TileApply(store.value.primitive, args, store.value.dtype, type=store.value.type)),)
        programs.append(Launch(case, params, (GridAxis("i", 0, len(inputs[0]), LANES),), body))
        arrays.update({f"{case}_x{n}": array for n, array in enumerate(inputs)})
        wanted[f"{case}_y"] = expected
    return TileProgram("cases", tuple(programs)), arrays, wanted


def ulps(result: Array, exact: Array, dtype: DType) -> Array:
    """The error in units in the last place of the dtype, 0 where both are not finite alike."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float64 if dtype.bits == 64 else np.float32).astype(dtype.numpy).astype(np.longdouble)
        near = np.asarray(np.nextafter(np.abs(rounded).astype(np.float64), np.inf), dtype=np.longdouble)
        bits = {"f64": 52, "f32": 23, "f16": 10, "bf16": 7}[dtype.name]
        lowest = {"f64": -1074, "f32": -149, "f16": -24, "bf16": -133}[dtype.name]
        exponent = np.floor(np.log2(np.maximum(np.abs(near), np.longdouble(2.0) ** lowest)))
        spacing = np.longdouble(2.0) ** np.maximum(exponent - bits, lowest)
        error = np.abs(result.astype(np.longdouble) - np.where(np.isfinite(rounded), exact, rounded)) / spacing
    same = (np.isnan(result.astype(np.longdouble)) & np.isnan(exact.astype(np.longdouble))) | (result.astype(np.longdouble) == rounded)
    return np.where(same, 0, np.where(np.isnan(error), np.inf, error))


EXACT = {"rsqrt": lambda x: 1 / np.sqrt(x)}


def log_gamma(x: float) -> float:
    """log |gamma(x)| rounded once; Python's own is off by many units beside its zeros."""
    if not math.isfinite(x) or (x <= 0 and x == math.floor(x)):
        return math.nan if math.isnan(x) else math.inf
    try:
        return float(mpmath.re(mpmath.loggamma(mpmath.mpf(x))))
    except OverflowError:
        return math.inf


def exact_values(name: str, inputs: list[Array]) -> Array:
    wide = [x.astype(np.longdouble) for x in inputs]
    with np.errstate(all="ignore"):
        if name == "lgamma":
            return np.array([log_gamma(float(x)) for x in inputs[0].astype(np.float64)]).astype(np.longdouble)
        if name in ("erf", "erfc", "gelu_narrow"):
            return np.asarray(scalar.PRIMITIVES[name].run(*[x.astype(np.float64) for x in inputs])).astype(np.longdouble)
        return np.asarray(EXACT.get(name, scalar.PRIMITIVES[name].run)(*wide))


def assert_same(case: str, result: Array, expected: Array) -> None:
    """Equal, NaN where NaN; the sign of a zero is not compared."""
    if result.dtype.kind in "biu":
        assert np.array_equal(result, expected), f"{case}: {result[result != expected][:5]} instead of {expected[result != expected][:5]}"
        return
    a, b = result.astype(np.float64), expected.astype(np.float64)
    wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    assert not wrong.any(), f"{case}: {a[wrong][:5]} instead of {b[wrong][:5]} at {np.flatnonzero(wrong)[:5]}"


def assert_near(name: str, result: Array, exact: Array, share: float, floor: float) -> None:
    """Within a share of the exact value, or of a floor; what is not finite alike."""
    found, wanted = result.astype(np.longdouble), exact.astype(result.dtype).astype(np.longdouble)
    with np.errstate(all="ignore"):
        near = np.abs(found - exact) <= share * np.abs(exact) + floor
        wrong = ~(near | (found == wanted) | (np.isnan(found) & np.isnan(wanted)))
    assert not wrong.any(), f"{name}: {found[wrong][:5]} instead of {exact[wrong][:5]}"


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
def test_primitives_agree_with_numpy(dtype: str, level: CpuLevel, run_c: Callable[..., dict[str, Array]]) -> None:
    kind = DTYPES[dtype]
    launches = []
    for name in names_for(kind):
        dtypes, inputs = operands(name, kind)
        result = boolean if scalar.PRIMITIVES[name].result == "bool" else kind
        launches.append((name, pointwise(dtypes, result, name, name), inputs, scalar.evaluate(name, *inputs)))
    program, arrays, wanted = rename(launches)
    outputs = run_c(program, arrays, {}, level)
    for name, _, inputs, _ in launches:
        result = outputs[f"{name}_y"]
        if kind.is_float and name in ELEMENTARY:
            error = ulps(result, exact_values(name, inputs), kind)
            # Values that f16 and bf16 hold are computed in f32 and rounded once.
            limit = 4 if kind.bits >= 32 else 0.502
            assert error.max() <= limit, f"{name}: {error.max()} ulp at {[float(x[error.argmax()]) for x in inputs]}"
        elif kind.is_float and name in NARROW:
            # What is below the normal range may be 0, and f16 and bf16 are rounded after it.
            assert_near(
                name,
                result,
                exact_values(name, inputs),
                NARROW[name] + (0 if kind.bits >= 32 else 2.0 ** -(8 if kind.name == "bf16" else 11)),
                7e-5 if kind.name == "f16" else 1e-7 if name == "gelu_narrow" else 1.2e-38,
            )
        elif name == "fma" and kind.is_float:
            twice, once = wanted["fma_y"], fused(inputs, kind)
            assert (
                np.isclose(result.astype(np.float64), twice.astype(np.float64), rtol=0, atol=0, equal_nan=True) | (result == once)
            ).all()
        else:
            assert_same(name, result, wanted[f"{name}_y"])


def fused(inputs: list[Array], dtype: DType) -> Array:
    """x * y + z rounded once."""
    rounded = []
    for x, y, z in zip(*(array.astype(np.float64).tolist() for array in inputs), strict=True):
        if not all(map(math.isfinite, (x, y, z))):
            rounded.append(x * y + z)
            continue
        total = Fraction(x) * Fraction(y) + Fraction(z)
        try:
            rounded.append(float(total))
        except OverflowError:
            rounded.append(math.inf if total > 0 else -math.inf)
    with np.errstate(over="ignore"):
        return np.array(rounded).astype(np.float64 if dtype.bits == 64 else np.float32).astype(dtype.numpy)


def in_range(values: Array, target: DType) -> Array:
    """What a cast to an integer defines: the truncated value fits."""
    if not target.is_integer:
        return np.ones(values.shape, bool)
    wide = np.trunc(values.astype(np.longdouble))
    low, high = (0, 2 ** min(target.bits, 64) - 1) if target.kind == "uint" else (-(2 ** (target.bits - 1)), 2 ** (target.bits - 1) - 1)
    with np.errstate(invalid="ignore"):
        return np.isfinite(wide) & (wide >= low) & (wide <= high)


TARGETS = (*FLOATS, *SMALL, *INTEGERS, "bool")


@pytest.mark.parametrize("source", [*FLOATS, *SMALL, *INTEGERS, "bool"])
def test_casts_agree_with_numpy(source: str, level: CpuLevel, run_c: Callable[..., dict[str, Array]]) -> None:
    launches = []
    for target in TARGETS:
        kind, values = DTYPES[target], edges(DTYPES[source])
        if DTYPES[source].is_float:
            values = values[in_range(values, kind)]
        launches.append((f"to_{target}", pointwise([DTYPES[source]], kind, "cast", "cast"), [values], scalar.convert(values, kind)))
    program, arrays, wanted = rename(launches)
    outputs = run_c(program, arrays, {}, level)
    for name, expected in wanted.items():
        assert_same(f"{source} {name}", outputs[name], expected)


def test_roundings_are_the_casts_to_their_type(level: CpuLevel, run_c: Callable[..., dict[str, Array]]) -> None:
    launches, values = [], edges(DTYPES["f32"])
    for target in ("f16", "bf16", "f8e4m3", "f8e5m2"):
        kind = DTYPES[target]
        launches.append((f"to_{target}", pointwise([DTYPES["f32"]], kind, "round", "round"), [values], scalar.convert(values, kind)))
    program, arrays, wanted = rename(launches)
    outputs = run_c(program, arrays, {}, level)
    for name, expected in wanted.items():
        assert_same(name, outputs[name], expected)


@pytest.mark.parametrize(
    ("source", "target"), [("f32", "i32"), ("i32", "f32"), ("f64", "u64"), ("f16", "u16"), ("u16", "bf16"), ("bf16", "i16")]
)
def test_bitcasts_keep_the_bits(source: str, target: str, level: CpuLevel, run_c: Callable[..., dict[str, Array]]) -> None:
    values = edges(DTYPES[source])
    values = values[values == values]  # the bits of a NaN may change on the way through f32
    launch = pointwise([DTYPES[source]], DTYPES[target], "bitcast", "bitcast")
    program, arrays, wanted = rename([("bitcast", launch, [values], scalar.bitcast(values, DTYPES[target]))])
    result = run_c(program, arrays, {}, level)["bitcast_y"]
    raw = f"u{DTYPES[target].bits // 8}"
    assert np.array_equal(result.view(raw), wanted["bitcast_y"].view(raw))


@pytest.mark.parametrize("name", ["exp", "tanh", "erf", "log", "sin", "cos", "expm1", "log1p", "exp2", "log2", "rsqrt"])
def test_vectorised_functions_stay_within_two_ulp(name: str, level: CpuLevel, run_c: Callable[..., dict[str, Array]]) -> None:
    rng = np.random.default_rng(3)
    parts = [rng.standard_normal(4000) * size for size in (1e-6, 0.1, 1.0, 10.0, 60.0)]
    values = np.concatenate([*parts, np.linspace(-4, 4, 40_001), np.exp2(rng.uniform(-149, 127, 4000))]).astype(np.float32)
    kind = DTYPES["f32"]
    program, arrays, _ = rename([(name, pointwise([kind], kind, name, name), [values], values)])
    result = run_c(program, arrays, {}, level)[f"{name}_y"]
    error = ulps(result, exact_values(name, [values]), kind)
    assert error.max() <= 2, f"{error.max()} ulp at {values[error.argmax()]}"


@pytest.mark.parametrize("name", NARROW)
def test_narrow_functions_are_as_near_as_they_say(name: str, level: CpuLevel, run_c: Callable[..., dict[str, Array]]) -> None:
    rng = np.random.default_rng(4)
    values = np.concatenate([*(rng.standard_normal(4000) * size for size in (1e-6, 0.1, 1.0, 3.0, 10.0, 60.0)), np.linspace(-7, 7, 9001)])
    kind, values = DTYPES["f32"], values.astype(np.float32)
    program, arrays, _ = rename([(name, pointwise([kind], kind, name, name), [values], values)])
    result = run_c(program, arrays, {}, level)[f"{name}_y"]
    assert_near(name, result, exact_values(name, [values]), NARROW[name], 1e-7 if name == "gelu_narrow" else 1.2e-38)


@pytest.mark.parametrize(
    ("primitive", "dtype", "message"),
    [
        ("shift_left", "f32", "the c printer has no shift_left for f32"),
        ("exp", "i32", "the c printer has no exp for i32"),
        ("neg", "bool", "the c printer has no neg for bool"),
        ("exp", "c64", "the c printer has no arithmetic for c64"),
        ("wobble", "f32", "the c printer does not know primitive 'wobble'"),
    ],
)
def test_what_has_no_meaning_in_c_is_refused(primitive: str, dtype: str, message: str) -> None:
    kind = DTYPES[dtype]
    arity = scalar.PRIMITIVES[primitive].arity if primitive in scalar.PRIMITIVES else 1
    with pytest.raises(UnsupportedError, match=message):
        SourceFile(AVX2).add(pointwise([kind] * arity, kind, primitive, "refused"), "refused", ("N",))


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("f32", "f4e2m1", "the c printer does not round to f4e2m1"),
    ],
)
def test_formats_without_rounding_are_refused(source: str, target: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        SourceFile(AVX2).add(pointwise([DTYPES[source]], DTYPES[target], "cast", "refused"), "refused", ("N",))


def test_bitcast_between_widths_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="does not bitcast f32 to i64"):
        SourceFile(AVX2).add(pointwise([DTYPES["f32"]], DTYPES["i64"], "bitcast", "refused"), "refused", ("N",))


@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize("dtype", [f8e4m3, f8e5m2, f8e4m3fnuz, f8e5m2fnuz, f8e8m0], ids=str)
def test_every_rounding_to_eight_bits(dtype: DType, target: str) -> None:
    """Of each number of 16 upper bits: it, its neighbours, the middle of it and the next one, and those beside that."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    x = np.concatenate([upper + np.uint32(lower) for lower in (0, 1, 0x4000, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(np.float32)
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    codes = b.cast(graph.add_input("x", TensorType(f32, x.shape)), dtype=dtype)
    graph.set_outputs([codes, b.cast(codes, dtype=f32)])
    stored, read = (np.asarray(part) for part in Engine(compile_module(module, build_options({"target": target})), threads=1)(x))
    with np.errstate(all="ignore"):
        expected = x.astype(dtype.numpy)
    np.testing.assert_array_equal(read, expected.astype(np.float32))
    number = ~np.isnan(read)
    np.testing.assert_array_equal(stored.view(np.uint8)[number], expected.view(np.uint8)[number])
    assert np.isnan(stored.view(dtype.numpy)[~number].astype(np.float32)).all()
