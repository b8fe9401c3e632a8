"""Every scalar primitive, printed and run in Triton's interpreter, against its meaning on numpy arrays."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.codegen.triton import print_launch
from ourcc.codegen.triton.compile import compile_kernel
from ourcc.codegen.triton.interpret import interpret
from ourcc.codegen.triton.primitives import apply, language_type
from ourcc.ir import dims
from ourcc.ir.errors import UnsupportedError
from ourcc.ir.expression import Constant
from ourcc.ir.scalar import PRIMITIVES, convert, evaluate
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.program import Full, GridAxis, Launch, Load, Param, Store, TileApply, TileType
from ourcc.ir.types import DTYPES, DType, bf16, boolean, f16, f32, f64, i8, i32, i64, u8

LANES = dims.symbol("i")
NUMBER = 512

EXACT_FLOAT = (
    *("add", "sub", "mul", "div", "neg", "abs", "sign", "min", "max", "sqrt", "floor", "ceil", "trunc", "round_even"),
    *("eq", "ne", "lt", "le", "is_nan", "is_inf", "floor_div", "floor_mod", "trunc_mod"),
)
ELEMENTARY = (
    *("exp", "exp2", "expm1", "log", "log2", "log1p", "rsqrt", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "pow"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma", "fma"),
)
INTEGER = (
    *("add", "sub", "mul", "div", "floor_div", "floor_mod", "trunc_mod", "neg", "abs", "sign", "min", "max", "pow", "fma"),
    *("eq", "ne", "lt", "le", "bit_and", "bit_or", "bit_xor", "bit_not", "shift_left", "shift_right"),
)
BOOLEAN = ("add", "sub", "mul", "min", "max", "bit_and", "bit_or", "bit_xor", "bit_not", "eq", "ne")


def launch_of(names: tuple[str, ...], dtype: DType) -> Launch:
    """A launch that stores every primitive of x, y and z to an output of its own."""
    params = [Param(name, dtype, (("i", NUMBER),)) for name in "xyz"]
    body = []
    for name in names:
        entry = PRIMITIVES[name]
        result = entry.result_of(dtype)
        loads = tuple(Load(operand, (LANES,), TileType(dtype, ("i",))) for operand in "xyz"[: entry.arity])
        params.append(Param(f"out_{name}", result, (("i", NUMBER),), "out"))
        body.append(Store(f"out_{name}", (LANES,), TileApply(name, loads, result, type=TileType(result, ("i",)))))
    return Launch("primitives", tuple(params), (GridAxis("i", 0, NUMBER, 128),), tuple(body))


def floats(seed: int, dtype: DType) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = np.concatenate([random.standard_normal(150) * 3, random.standard_normal(150) * 1e-3, random.uniform(-90, 90, 150)])
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, -3.0]
    special += [1e-30, -1e-30, 3e38, 1e5, 8388609.0, -0.4, 0.999]
    values = np.concatenate([values, special, random.integers(-9, 9, NUMBER - 450 - len(special)).astype(float)])
    with np.errstate(over="ignore"):
        return random.permutation(values).astype(np.float32).astype(dtype.numpy)


def integers(seed: int, dtype: DType) -> np.ndarray:
    random = np.random.default_rng(seed)
    limits = np.iinfo(dtype.numpy)
    edge = [0, 1, limits.min, limits.max, limits.max - 1] + ([-1, -2, -7] if limits.min < 0 else [2, 7])
    small = random.integers(max(limits.min, -9), 10, 200)
    wide = random.integers(limits.min, limits.max, NUMBER - 200 - len(edge), dtype=dtype.numpy, endpoint=True)
    return random.permutation(np.concatenate([np.array(edge).astype(dtype.numpy), small.astype(dtype.numpy), wide]))


def run(names: tuple[str, ...], dtype: DType, operands: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    launch = launch_of(names, dtype)
    outputs = {param.name: np.zeros(NUMBER, param.dtype.numpy) for param in launch.params if param.role == "out"}
    result = interpret(print_launch(launch), operands | outputs, {})
    return {name: result[f"out_{name}"] for name in names}


def same(result: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Equal bits, any NaN equal to any other."""
    nan = np.isnan(expected.astype(np.float64)) if expected.dtype.kind not in "biu" else np.zeros(expected.shape, bool)
    bits = f"u{expected.dtype.itemsize}"
    return (result.view(bits) == expected.view(bits)) | (nan & np.isnan(result.astype(np.float64)) if nan.any() else nan)


@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
def test_exact_primitives_of_floats(dtype: DType) -> None:
    operands = {name: floats(seed, dtype) for seed, name in enumerate("xyz")}
    results = run(EXACT_FLOAT, dtype, operands)
    for name, result in results.items():
        args = [operands[operand].astype(np.float32) for operand in "xyz"[: PRIMITIVES[name].arity]]
        wanted = evaluate(name, *args)
        wanted = wanted if wanted.dtype == bool else convert(wanted, dtype)
        wrong = ~same(result, wanted)
        assert not wrong.any(), (name, [a[wrong][:4] for a in args], result[wrong][:4], wanted[wrong][:4])


def test_two_numbers_in_a_byte() -> None:
    operands = {name: floats(seed, f32) for seed, name in enumerate("xyz")}
    halves = np.arange(-40, 41, dtype=np.float32) / 4
    for name, near in (("x", halves), ("y", np.nextafter(halves, np.float32(0)))):
        operands[name][: len(halves)] = near
    result = run(("e2m1x2",), f32, operands)["e2m1x2"]
    np.testing.assert_array_equal(result, evaluate("e2m1x2", operands["x"], operands["y"]))


def of_any_size(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Numbers of every exponent, quarters of small integers, and special ones."""
    wide = np.ldexp(random.uniform(1, 2, shape), random.integers(-149, 128, shape)) * random.choice((-1.0, 1.0), shape)
    near = random.integers(-40, 40, shape) * np.ldexp(1.0, random.integers(-3, 3, shape))
    special = random.choice(floats(int(random.integers(99)), f32), shape)
    return np.choose(random.integers(0, 3, shape), [wide, near, special]).astype(np.float32)


def is_quotient(x: np.ndarray, y: np.ndarray, found: np.ndarray) -> None:
    """Quotients are the nearest numbers; what is left over of the smallest is rounded: they may be off by one place."""
    with np.errstate(all="ignore"):
        wanted = x / y
    right = same(found, wanted)
    small = np.isfinite(wanted) & (np.minimum(np.abs(x), np.abs(wanted)) < 2.0**-100)
    assert right[~small].all(), (x[~small & ~right][:4], found[~small & ~right][:4], wanted[~small & ~right][:4])
    assert (np.abs(found[small].astype(np.float64) - wanted[small]) <= np.spacing(np.abs(wanted[small]))).all()


@pytest.mark.parametrize("seed", range(4))
def test_division_by_one_number_of_many_is_exact(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, columns = 128, 1024
    x, y = of_any_size(random, rows, columns), of_any_size(random, rows)
    params = (
        Param("x", f32, (("i", rows), ("j", columns))),
        Param("y", f32, (("i", rows),)),
        Param("z", f32, (("i", rows), ("j", columns)), "out"),
    )
    i, j = dims.symbol("i"), dims.symbol("j")
    of = TileType(f32, ("i", "j"))
    value = TileApply("div", (Load("x", (i, j), of), Load("y", (i,), TileType(f32, ("i",)))), f32, type=of)
    printed = print_launch(
        Launch("divided", params, (GridAxis("i", 0, rows, 8), GridAxis("j", 0, columns, 128)), (Store("z", (i, j), value),))
    )
    found = interpret(printed, {"x": x, "y": y, "z": np.zeros_like(x)}, {})["z"]
    is_quotient(x, y[:, None], found)


@pytest.mark.parametrize("seed", range(4))
def test_division_by_literals_is_exact(seed: int) -> None:
    random = np.random.default_rng(seed)
    powers = np.ldexp(random.choice((-1.0, 1.0), 12), random.integers(-149, 128, 12))
    divisors = [*of_any_size(random, 24).tolist(), *powers.tolist(), *(float(n) for n in random.integers(1, 70_000, 12))]
    x = of_any_size(random, 1024)
    i, of = dims.symbol("i"), TileType(f32, ("i",))
    names = [f"y{n}" for n in range(len(divisors))]
    params = (Param("x", f32, (("i", 1024),)), *(Param(name, f32, (("i", 1024),), "out") for name in names))
    quotients = [TileApply("div", (Load("x", (i,), of), Full(Constant(by, f32), of)), f32, type=of) for by in divisors]
    body = tuple(Store(name, (i,), value) for name, value in zip(names, quotients, strict=True))
    printed = print_launch(Launch("divided", params, (GridAxis("i", 0, 1024, 128),), body))
    assert printed.source.count("div_by_f32(") > 12 and printed.source.count("div_f32(") > 1
    found = interpret(printed, {"x": x, **{name: np.zeros_like(x) for name in names}}, {})
    for name, divisor in zip(names, divisors, strict=True):
        is_quotient(x, np.float32(divisor), found[name])


@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary_functions_are_within_four_ulp(name: str, elementary: dict[str, tuple[list[np.ndarray], np.ndarray]]) -> None:
    args, result = elementary[name]
    with np.errstate(all="ignore"):
        exact = np.asarray(PRIMITIVES[name].run(*[arg.astype(np.float64) for arg in args]), dtype=np.float64)
        rounded = exact.astype(np.float32)
    assert np.array_equal(np.isnan(result), np.isnan(rounded)), (args[0][np.isnan(result) != np.isnan(rounded)],)
    infinite = np.isinf(rounded)
    assert np.array_equal(result[infinite], rounded[infinite])
    finite = np.isfinite(rounded)
    # Below the smallest normal number hardware may flush to zero.
    ulp = np.maximum(np.spacing(np.abs(rounded[finite])), np.float32(2.0**-126))
    error = np.abs(result[finite].astype(np.float64) - exact[finite]) / ulp
    worst = int(np.argmax(error))
    assert error[worst] <= 4, (error[worst], [a[finite][worst] for a in args], result[finite][worst], exact[finite][worst])


def test_narrow_functions_are_as_near_as_they_say() -> None:
    operands = {name: floats(seed, f32) for seed, name in enumerate("xyz")}
    for name, bound in {"sigmoid_narrow": 2.0**-12, "exp2_narrow": 2.0**-13, "div_narrow": 2.0**-13}.items():
        found = run((name,), f32, operands)[name].astype(np.float64)
        with np.errstate(all="ignore"):
            exact = PRIMITIVES[name].run(*[operands[each].astype(np.float64) for each in "xyz"[: PRIMITIVES[name].arity]])
            wanted = exact.astype(np.float32).astype(np.float64)
        assert np.array_equal(np.isnan(found), np.isnan(wanted))
        assert np.array_equal(found[np.isinf(wanted)], wanted[np.isinf(wanted)])
        some = np.isfinite(wanted)
        assert (np.abs(found[some] - exact[some]) <= bound * np.abs(exact[some]) + 2.0**-126).all(), name


@pytest.fixture(scope="module")
def elementary() -> dict[str, tuple[list[np.ndarray], np.ndarray]]:
    operands = {name: floats(seed, f32) for seed, name in enumerate("xyz")}
    results = run(ELEMENTARY, f32, operands)
    return {name: ([operands[o] for o in "xyz"[: PRIMITIVES[name].arity]], results[name]) for name in ELEMENTARY}


@pytest.mark.parametrize("dtype", [i8, u8, i32, i64], ids=str)
def test_integers(dtype: DType) -> None:
    operands = {name: integers(seed, dtype) for seed, name in enumerate("xyz")}
    for name, result in run(INTEGER, dtype, operands).items():
        wanted = evaluate(name, *[operands[operand] for operand in "xyz"[: PRIMITIVES[name].arity]])
        wrong = ~same(result, wanted)
        args = [operands[o][wrong][:4] for o in "xyz"[: PRIMITIVES[name].arity]]
        assert not wrong.any(), (name, args, result[wrong][:4], wanted[wrong][:4])


def test_bools() -> None:
    random = np.random.default_rng(0)
    operands = {name: random.integers(0, 2, NUMBER).astype(bool) for name in "xyz"}
    for name, result in run(BOOLEAN, boolean, operands).items():
        wanted = evaluate(name, *[operands[operand] for operand in "xyz"[: PRIMITIVES[name].arity]])
        assert np.array_equal(result, wanted), name


CASTS = [("f32", n) for n in ("f16", "bf16", "f8e4m3", "f8e5m2", "f8e8m0", "bool", "f64")]
CASTS += [("bf16", "f32"), ("f16", "bf16"), ("bf16", "f8e4m3"), ("f8e4m3", "f32"), ("f8e5m2", "f16"), ("f64", "f32"), ("f64", "bf16")]
CASTS += [("i32", n) for n in ("i8", "u8", "f32", "f16", "bf16", "bool", "i64")]
CASTS += [("i8", "i32"), ("u8", "f32"), ("bool", "f32"), ("bool", "i32"), ("i64", "f32"), ("bf16", "f8e8m0")]


ROUNDINGS = [("round", "f32", name) for name in ("f16", "bf16", "f8e4m3", "f8e5m2")]


@pytest.mark.parametrize(("primitive", "source", "target"), [*(("cast", *pair) for pair in CASTS), *ROUNDINGS])
def test_casts(primitive: str, source: str, target: str) -> None:
    before, after = DTYPES[source], DTYPES[target]
    if before.kind == "bool":
        values = np.arange(NUMBER) % 3 == 0
    else:
        values = floats(1, before) if before.is_float else integers(1, before)
        if target.startswith("f8"):
            edges = [464, 465, 448, 61439, 61440, -61440, np.inf, np.nan]
            values = np.concatenate([np.linspace(-600, 600, NUMBER - 8), edges]).astype(before.numpy)
        if target == "f8e8m0":
            powers = np.ldexp(np.linspace(0.4, 2.2, NUMBER // 2), np.arange(NUMBER // 2) % 278 - 149)
            ends = [0.0, -0.0, 2.0**-127, 1.5 * 2.0**-127, 2.0**-149, 1.5, 1.5 * 2.0**127, 1.4375 * 2.0**127, np.inf, -np.inf, np.nan]
            values = np.concatenate([values[: NUMBER - NUMBER // 2 - len(ends)], powers, ends]).astype(before.numpy)
    load = Load("x", (LANES,), TileType(before, ("i",)))
    store = Store("y", (LANES,), TileApply(primitive, (load,), after, type=TileType(after, ("i",))))
    params = (Param("x", before, (("i", NUMBER),)), Param("y", after, (("i", NUMBER),), "out"))
    kernel = print_launch(Launch("cast", params, (GridAxis("i", 0, NUMBER, 512),), (store,)))
    result = interpret(kernel, {"x": values, "y": np.zeros(NUMBER, after.numpy)}, {})["y"]
    wanted = convert(values, after)
    wrong = ~same(result, wanted)
    assert not wrong.any(), (values[wrong][:5], result[wrong][:5], wanted[wrong][:5])


@pytest.mark.parametrize("dtype", [f32, f64, bf16, i32, i8], ids=str)
def test_all_primitives_compile(dtype: DType) -> None:
    names = EXACT_FLOAT if dtype == bf16 else (EXACT_FLOAT + ELEMENTARY) if dtype == f32 else INTEGER
    if dtype == f64:
        names = ("add", "div", "min", "max", "exp", "log", "sqrt", "rsqrt", "erf", "tan", "trunc", "round_even", "sign")
    compiled = compile_kernel(print_launch(launch_of(tuple(names), dtype)), gpu_target("sm_90a"))
    assert compiled.cubin.startswith(b"\x7fELF")


def test_what_has_no_text_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="primitive lgamma on f64 is not supported in Triton kernels"):
        apply("lgamma", (), f64, set())
    with pytest.raises(UnsupportedError, match="primitive add on c64 is not supported in Triton kernels"):
        apply("add", (), DTYPES["c64"], set())
    with pytest.raises(UnsupportedError, match="element type i4 has no Triton type, expected one of: f64, f32"):
        language_type(DTYPES["i4"])
