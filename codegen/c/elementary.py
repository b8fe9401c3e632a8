"""Elementary functions of the library: vectorised for f32 where models use them much, through libm elsewhere.

The polynomials are minimax fits made for this file; each comment gives the fitted function and its largest error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from .angles import angles
from .library import ELEMENTS, LibraryFunction, horner
from .pieces import gelu_in_pieces
from .powers import powers
from .remainders import remainders

V = "f32x@N"


def elementary() -> dict[str, LibraryFunction]:
    """All of them by name."""
    groups = (_vectorised(), angles(), powers(), remainders(), _through_libm(), _arithmetic(), _integers())
    return {name: function for group in groups for name, function in group}


# (exp(r) - 1 - r) / r**2 on +-ln2/2, 5e-11
_EXP = ("1.991937995e-04f", "1.394722492e-03f", "8.333262638e-03f", "4.166625376e-02f", "1.666666687e-01f", "5.000000083e-01f")
# (2**r - 1) / r on +-1/2, 2e-8 of 2**r
_EXP2 = (
    *("1.535336341e-04f", "1.339887385e-03f", "9.618436918e-03f", "5.550332367e-02f", "2.402264774e-01f", "6.931471825e-01f"),
    "1.0f",
)
# (2**r - 1) / r on [0, 1], 9e-5 of 2**r
_EXP2_NARROW = ("7.706705481e-02f", "2.276449800e-01f", "6.951167583e-01f", "1.0f")
# (log(1 + f) - f + f**2/2) / f**3 on [sqrt(1/2) - 1, sqrt(2) - 1], 8e-10
_LOG = (
    *("6.746601322e-02f", "-1.167564130e-01f", "1.188817460e-01f", "-1.240559142e-01f", "1.421955091e-01f"),
    *("-1.666799567e-01f", "2.000211873e-01f", "-2.500000960e-01f", "3.333331260e-01f"),
)
_ROUND = "12582912.0f"  # 1.5 * 2**23: adding and taking it away rounds to the nearest integer

_REST = f"""
{V} r = fma_f32_@N(n, splat_f32_@N(-6.93145752e-1f), c);
r = fma_f32_@N(n, splat_f32_@N(-1.42860677e-6f), r);
{horner("r", "p", *_EXP)}
p = fma_f32_@N(p, r * r, r);
"""
_REDUCE = f"{V} n = fma_f32_@N(c, splat_f32_@N(1.4426950408889634f), splat_f32_@N({_ROUND})) - {_ROUND};{_REST}"
_CLAMP = "{V} c = max_number_f32_@N(splat_f32_@N({low}), min_number_f32_@N(splat_f32_@N({high}), x));\n"

# What is 0 in any case, as masked scores are, is not computed: processors take a hundred cycles for a result below the normal range.
_CLAMP_ABOVE = "{V} c = min_number_f32_@N(splat_f32_@N({high}), some_f32_@N(x, {low}));\n"
_SOME_BODY = "return select_f32_@N(x < low, splat_f32_@N(0.0f), x);"

_SCALE = "return scale_some_f32_@N(p, n, x, {low});"
_SCALE_SOME_BODY = "return select_f32_@N(x < low, splat_f32_@N(0.0f), scale_f32_@N(p, n));"

# p * 2**n in two factors, so that results below the normal range are rounded once more and not lost.
_SCALE_BODY = """
i32x@N e = __builtin_convertvector(n, i32x@N);
i32x@N h = e >> 1;
return p * (f32x@N)((h + 127) << 23) * (f32x@N)((e - h + 127) << 23);
"""

# Where instructions scale by powers of two, and for what is beyond the normal range elsewhere.
_EXP_SCALED = _CLAMP_ABOVE.format(V=V, high="89.0f", low="-104.0f") + _REDUCE + "p = p + 1.0f;\n" + _SCALE.format(low="-104.0f")

_EXP2_SCALED = (
    _CLAMP_ABOVE.format(V=V, high="129.0f", low="-150.0f")
    + f"""
{V} n = (c + {_ROUND}) - {_ROUND};
{V} r = c - n;
{horner("r", "p", *_EXP2)}
"""
    + _SCALE.format(low="-150.0f")
)

# The sum with 1.5 * 2**23 + 127 has the exponent of 2**n as its lowest bits: 0 for n = -127, to which all below is raised. Only what
# is above the normal range, or below it and not 0 in any case, is computed again.
_BIASED = "12583039.0f"
_NORMAL = """
i32x@N far = abs_f32_@N(x) > {beyond};
if (__builtin_expect(any_i32_@N(far), 0) && any_i32_@N(far & (x > {low}))) y = far_{name}_f32_@N(x);
return y;
"""

_EXP_BODY = f"""
{V} c = max_number_f32_@N(splat_f32_@N(-88.0f), x);
{V} t = fma_f32_@N(c, splat_f32_@N(1.4426950408889634f), splat_f32_@N({_BIASED}));
{V} n = t - {_BIASED}, s = (f32x@N)((i32x@N)t << 23);{_REST}
{V} y = fma_f32_@N(p, s, s);{_NORMAL.format(beyond="87.0f", low="-104.0f", name="exp")}
"""

# With 128 in place of 127, so that ties are rounded to the same side, and half of the polynomial.
_EXP2_BODY = f"""
{V} c = max_number_f32_@N(splat_f32_@N(-128.0f), x);
{V} t = c + 12583040.0f;
{V} r = c - (t - 12583040.0f);
{horner("r", "p", *(f"0.5f * {coefficient}" for coefficient in _EXP2))}
{V} y = p * (f32x@N)((i32x@N)t << 23);{_NORMAL.format(beyond="126.0f", low="-150.0f", name="exp2")}
"""

# The same: one instruction takes what lies beside the nearest integer.
_EXP2_16 = f"""
f32x16 r = (f32x16)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT);
{horner("r", "p", *_EXP2).replace("@N", "16")}
return scale_some_f32_16(p, x - r, x, -150.0f);
"""

# Without a fraction it is exact: the highest score of a row weighs 1.
_EXP2_NARROW_BODY = (
    _CLAMP_ABOVE.format(V=V, high="129.0f", low="-126.0f")
    + f"""
{V} n = floor_f32_@N(c);
{V} r = c - n;
{horner("r", "p", *_EXP2_NARROW)}
"""
    + _SCALE.format(low="-126.0f")
)

# The same: one instruction takes the fraction, and one scales by the rest.
_EXP2_NARROW_16 = f"""
f32x16 r = (f32x16)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF);
{horner("r", "p", *_EXP2_NARROW).replace("@N", "16")}
return scale_some_f32_16(p, x, x, -126.0f);
"""

# 2**n (exp(r) - 1) + (2**n - 1), with half of 2**n so that n = 128 stays finite.
_EXPM1_BODY = (
    _CLAMP.format(V=V, high="89.0f", low="-30.0f")
    + _REDUCE
    + f"""
i32x@N e = __builtin_convertvector(n, i32x@N);
{V} s = (f32x@N)((e + 126) << 23);
{V} y = fma_f32_@N(s, p, s - 0.5f) * 2.0f;
return select_f32_@N(e == 0, select_f32_@N(abs_f32_@N(x) < 1e-7f, x, p), y);
"""
)

_SPLIT = f"""
i32x@N tiny = (x < 1.17549435e-38f);
{V} v = select_f32_@N(tiny, x * 8388608.0f, x);
i32x@N b = (i32x@N)v - 0x3f3504f3;
i32x@N k = b >> 23;
{V} e = __builtin_convertvector(k + (tiny & -23), f32x@N);
{V} f = (f32x@N)((b & 0x7fffff) + 0x3f3504f3) - 1.0f;
{horner("f", "p", *_LOG)}
{V} z = f * f;
{V} y = p * f * z;
"""

_LOG_LIMITS = """
r = select_f32_@N(x == 0.0f, splat_f32_@N(-INFINITY), r);
r = select_f32_@N(x == INFINITY, x, r);
return select_f32_@N(x >= 0.0f, r, splat_f32_@N(NAN));
"""

_LOG_BODY = (
    _SPLIT
    + f"""
y = fma_f32_@N(e, splat_f32_@N(-2.12194440e-4f), y);
y = fma_f32_@N(splat_f32_@N(-0.5f), z, y);
{V} r = fma_f32_@N(e, splat_f32_@N(0.693359375f), f + y);
"""
    + _LOG_LIMITS
)

_LOG2_BODY = (
    _SPLIT
    + f"""
y = fma_f32_@N(splat_f32_@N(-0.5f), z, y);
{V} r = fma_f32_@N(y, splat_f32_@N(0.44269504088896340736f), f * 0.44269504088896340736f);
r = ((r + y) + f) + e;
"""
    + _LOG_LIMITS
)

# log(u) + (x - (u - 1)) / u with u = 1 + x rounded: the second term is what the rounding lost.
_LOG1P_BODY = f"""
{V} u = x + 1.0f;
{V} lost = (x - (u - 1.0f)) / u;
{V} r = log_f32_@N(u);
r = select_f32_@N((u > 0.0f) & (u < INFINITY), r + lost, r);
return select_f32_@N(abs_f32_@N(x) < 1e-8f, x, r);
"""

_SIGMOID_NARROW_BODY = "return near_reciprocal_f32_@N(exp2_narrow_f32_@N(x * -1.4426950408889634f) + 1.0f);"
_GELU_NARROW_BODY = "return x * 0.5f * (erf_f32_@N(x * 0.70710678118f) + 1.0f);"


_SCALING = ((16, "avx512f"), (8, "avx512vl"), (4, "avx512vl"))


def _vectorised() -> Iterator[tuple[str, LibraryFunction]]:
    bodies = {
        "exp": _EXP_BODY,
        "exp2": _EXP2_BODY,
        "exp2_narrow": _EXP2_NARROW_BODY,
        "sigmoid_narrow": _SIGMOID_NARROW_BODY,
        "gelu_narrow": _GELU_NARROW_BODY,
        "expm1": _EXPM1_BODY,
        "log": _LOG_BODY,
        "log2": _LOG2_BODY,
        "log1p": _LOG1P_BODY,
    }
    fast = {
        "gelu_narrow": gelu_in_pieces(),
        "exp": dict.fromkeys(_SCALING, _EXP_SCALED),
        "exp2": {(16, "avx512dq"): _EXP2_16, **dict.fromkeys(_SCALING, _EXP2_SCALED)},
        "exp2_narrow": {(16, "avx512dq"): _EXP2_NARROW_16},
    }
    for name, body in bodies.items():
        yield f"{name}_f32", LibraryFunction(V, (f"{V} x",), body, fast=fast.get(name, {}), halves=True)
    for name, body in (("exp", _EXP_SCALED), ("exp2", _EXP2_SCALED)):
        yield f"far_{name}_f32", LibraryFunction(V, (f"{V} x",), body, halves=True, rare=True)
    near = {
        (16, "avx512f"): "(f32x16)_mm512_rcp14_ps((__m512)x)",
        (8, "avx512vl"): "(f32x8)_mm256_rcp14_ps((__m256)x)",
        (4, "avx512vl"): "(f32x4)_mm_rcp14_ps((__m128)x)",
    }
    yield "near_reciprocal_f32", LibraryFunction(V, (f"{V} x",), "return 1.0f / x;", fast=near)
    scaled = {
        (16, "avx512f"): "(f32x16)_mm512_scalef_ps((__m512)p, (__m512)n)",
        (8, "avx512vl"): "(f32x8)_mm256_scalef_ps((__m256)p, (__m256)n)",
        (4, "avx512vl"): "(f32x4)_mm_scalef_ps((__m128)p, (__m128)n)",
    }
    yield "scale_f32", LibraryFunction(V, (f"{V} p", f"{V} n"), _SCALE_BODY, fast=scaled)
    # Where lanes are left out of an instruction, nothing is computed for them, and what their other values are does not matter.
    kept = "_mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(low), _CMP_NLT_UQ)"
    some = {(16, "avx512f"): f"return (f32x16)_mm512_maskz_scalef_ps({kept}, (__m512)p, (__m512)n);"}
    yield "some_f32", LibraryFunction(V, (f"{V} x", "float low"), _SOME_BODY, fast={(16, "avx512f"): "return x;"})
    yield "scale_some_f32", LibraryFunction(V, (f"{V} p", f"{V} n", f"{V} x", "float low"), _SCALE_SOME_BODY, fast=some)


_LIBM = (
    *("exp", "exp2", "expm1", "log", "log2", "log1p", "tanh", "erf", "sin", "cos", "tan", "asin", "acos", "atan", "sinh"),
    *("cosh", "asinh", "acosh", "atanh", "erfc"),
)


_LGAMMA = """
extern long double lgammal_r(long double, int *);
static inline double ourcc_lgamma(double x) {
    int sign;
    return (double)lgammal_r(x, &sign);
}
"""


def _through_libm() -> Iterator[tuple[str, LibraryFunction]]:
    """f64 lane by lane, and f32 through f64 for what is rare or would need much more code to be within 4 ulp."""
    for name in _LIBM:
        yield f"{name}_f64", LibraryFunction("f64x@N", ("f64x@N x",), lane=f"{name}(x)")
    for name in ("pow", "atan2"):
        yield f"{name}_f64", LibraryFunction("f64x@N", ("f64x@N x", "f64x@N y"), lane=f"{name}(x, y)")
    yield "exp2_narrow_f64", LibraryFunction("f64x@N", ("f64x@N x",), lane="exp2(x)")
    yield "sigmoid_narrow_f64", LibraryFunction("f64x@N", ("f64x@N x",), lane="1.0 / (1.0 + exp(-x))")
    yield "gelu_narrow_f64", LibraryFunction("f64x@N", ("f64x@N x",), lane="x * 0.5 * erfc(x * -0.70710678118654752)")
    # lgamma of libm writes a global, lgamma_r does not; beside its zeros f64 needs the wider type to be within 4 ulp.
    yield (
        "ourcc_lgamma",
        LibraryFunction(
            "",
            (),
            raw=_LGAMMA,
        ),
    )
    yield "lgamma_f64", LibraryFunction("f64x@N", ("f64x@N x",), lane="ourcc_lgamma(x)")
    yield "lgamma_f32", LibraryFunction(V, (f"{V} x",), lane="(float)ourcc_lgamma((double)x)")


_ROUNDINGS = {"floor": 9, "ceil": 10, "trunc": 11, "round_even": 8}


def _intrinsic(name: str, pattern: str, fma: bool = False) -> dict[tuple[int, str], str]:
    """An intrinsic on floats of a type for every lane count that one register holds."""
    found = {}
    for lanes in (4, 8, 16):
        bits = lanes * ELEMENTS[name][1] * 8
        if bits <= 512:
            need = "avx512f" if bits == 512 else "fma" if fma else "avx"
            prefix, kind = "_mm" if bits == 128 else f"_mm{bits}", f"__m{bits}{'' if name == 'f32' else 'd'}"
            found[lanes, need] = pattern.replace("MM", prefix).replace("KIND", kind)
    return found


def _arithmetic() -> Iterator[tuple[str, LibraryFunction]]:
    for name, one, tail in (("f32", "f", "ps"), ("f64", "", "pd")):
        v, fast = f"{name}x@N", partial(_intrinsic, name)
        yield (
            f"fma_{name}",
            LibraryFunction(
                v,
                (f"{v} x", f"{v} y", f"{v} z"),
                lane=f"__builtin_fma{one}(x, y, z)",
                fast=fast(f"({v})MM_fmadd_{tail}((KIND)x, (KIND)y, (KIND)z)", fma=True),
            ),
        )
        yield f"sqrt_{name}", LibraryFunction(v, (f"{v} x",), lane=f"__builtin_sqrt{one}(x)", fast=fast(f"({v})MM_sqrt_{tail}((KIND)x)"))
        for rounding, code in _ROUNDINGS.items():
            call = "rint" if rounding == "round_even" else rounding
            choices = fast(f"({v})MM_round_{tail}((KIND)x, {code})")
            choices = {key: text.replace("_mm512_round_", "_mm512_roundscale_") for key, text in choices.items()}
            yield f"{rounding}_{name}", LibraryFunction(v, (f"{v} x",), lane=f"__builtin_{call}{one}(x)", fast=choices)
        yield from _extremes(name, tail)
        yield from _signs(name, one)
        yield (
            f"rsqrt_{name}",
            LibraryFunction(
                v, (f"{v} x",), f"return {'1.0' + one} / sqrt_{name}_@N(x);", scalar=f"return {'1.0' + one} / sqrt_{name}_1(x);"
            ),
        )
        yield f"sign_{name}", LibraryFunction(v, (f"{v} x",), lane="(x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x)")


def _extremes(name: str, tail: str) -> Iterator[tuple[str, LibraryFunction]]:
    v, size, fast = f"{name}x@N", ELEMENTS[name][1], partial(_intrinsic, name)
    whole = f"__m512{'' if name == 'f32' else 'd'}"
    for kind, symbol in (("max", ">"), ("min", "<")):
        # The instruction gives its second operand where either is NaN: only a NaN in the first is left to keep.
        instruction = f"{v} r = ({v})MM_{kind}_{tail}((KIND)x, (KIND)y);\nreturn select_{name}_@N({_same(name, 'x != x')}, x, r);"
        body = f"return select_{name}_@N({_same(name, f'(x {symbol} y) | (x != x)')}, x, y);"
        choices = fast(instruction)
        kept = f"_mm512_cmp_{tail}_mask(({whole})x, ({whole})x, _CMP_UNORD_Q)"
        masked = f"({v})_mm512_mask_mov_{tail}(_mm512_{kind}_{tail}(({whole})x, ({whole})y), {kept}, ({whole})x)"
        choices[64 // size, "avx512f"] = masked
        yield (
            f"{kind}_{name}",
            LibraryFunction(v, (f"{v} x", f"{v} y"), body, fast=choices, scalar=f"return x {symbol} y || x != x ? x : y;"),
        )
        # One instruction where x is a number, and a NaN of y is kept; or where y is what remains unless x is beyond it.
        body = f"return select_{name}_@N({_same(name, f'x {symbol} y')}, x, y);"
        only = fast(f"({v})MM_{kind}_{tail}((KIND)x, (KIND)y)")
        yield f"{kind}_number_{name}", LibraryFunction(v, (f"{v} x", f"{v} y"), body, fast=only, scalar=f"return x {symbol} y ? x : y;")


def _signs(name: str, one: str) -> Iterator[tuple[str, LibraryFunction]]:
    v = f"{name}x@N"
    i = "i32" if name == "f32" else "i64"
    magnitude, sign = ("0x7fffffff", "(int32_t)0x80000000") if name == "f32" else ("0x7fffffffffffffff", "(int64_t)0x8000000000000000")
    yield (
        f"abs_{name}",
        LibraryFunction(v, (f"{v} x",), f"return ({v})(({i}x@N)x & {magnitude});", scalar=f"return __builtin_fabs{one}(x);"),
    )
    yield (
        f"copysign_{name}",
        LibraryFunction(
            v,
            (f"{v} x", f"{v} y"),
            f"return ({v})((({i}x@N)x & {magnitude}) | (({i}x@N)y & {sign}));",
            scalar=f"return __builtin_copysign{one}(x, y);",
        ),
    )


def _same(name: str, comparison: str) -> str:
    """A comparison of vectors as an i32 mask."""
    return comparison if name == "f32" else f"__builtin_convertvector({comparison}, i32x@N)"


def _integers() -> Iterator[tuple[str, LibraryFunction]]:
    """Integer arithmetic that never traps: a zero divisor gives 0, the most negative by -1 wraps around."""
    for name, (c, size) in ELEMENTS.items():
        if name[0] == "f":
            continue
        signed, v, bits = name[0] == "i", f"{name}x@N", size * 8
        pair = (f"{v} x", f"{v} y")
        minus = " : y == -1 ? -x" if signed else ""
        unsigned = f"uint{bits}_t"
        lower = "\n    if (x % y != 0 && (x < 0) != (y < 0)) --q;" if signed else ""
        raised = f"\n    if (r != 0 && (r < 0) != (y < 0)) r = ({c})(r + y);" if signed else ""
        one = " || y == -1" if signed else ""
        raws = {
            "div": f"return ({c})(y == 0 ? 0{minus} : x / y);",
            "trunc_mod": f"return ({c})(y == 0{one} ? 0 : x % y);",
            "floor_div": f"if (y == 0{one}) return ({c})(y == 0 ? 0 : -x);\n    {c} q = ({c})(x / y);{lower}\n    return q;",
            "floor_mod": f"if (y == 0{one}) return 0;\n    {c} r = ({c})(x % y);{raised}\n    return r;",
            "pow": _POWER.format(
                c=c, negative="if (y < 0) return (" + c + ")(x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0);" if signed else ""
            ),
            "shift_left": f"return ({c})(y >= 0 && y < {bits} ? ({unsigned})(({unsigned})x << y) : 0);",
            "shift_right": f"return ({c})(y >= 0 && y < {bits} ? x >> y : x < 0 ? -1 : 0);",
        }
        for operator, body in raws.items():
            text = f"static inline {c} ourcc_{operator}_{name}({c} x, {c} y) {{\n    {body}\n}}"
            if not signed:
                text = text.replace("y >= 0 && ", "").replace("x < 0 ? -1 : 0", "0")
            yield f"ourcc_{operator}_{name}", LibraryFunction("", (), raw=text)
            if (operator, name) == ("shift_right", "u8"):
                yield f"{operator}_{name}", LibraryFunction(v, pair, _SHIFTED_BYTES, scalar=f"return ourcc_{operator}_{name}(x, y);")
                continue
            yield f"{operator}_{name}", LibraryFunction(v, pair, lane=f"ourcc_{operator}_{name}(x, y)")
        if name == "u8":
            for operator, symbol in (("shift_left", "<<"), ("shift_right", ">>")):
                one = f"return ({c})(x {symbol} n);"
                yield f"{operator}_alike_{name}", LibraryFunction(v, (f"{v} x", "int64_t n"), _shifted_alike(symbol), scalar=one)
        for kind, symbol in (("max", ">"), ("min", "<")):
            body = f"return select_{name}_@N(lt_{name}_@N({'y, x' if kind == 'max' else 'x, y'}), x, y);"
            fast = {}
            if bits == 64:
                # A mask as wide as what it chooses.
                body = f"const i64x@N m = x {symbol} y;\nreturn ({v})((m & (i64x@N)x) | (~m & (i64x@N)y));"
                registers = ((8, "avx512f", "_mm512", "__m512i"), (4, "avx512vl", "_mm256", "__m256i"), (2, "avx512vl", "_mm", "__m128i"))
                fast = {(n, feature): f"({v}){mm}_{kind}_ep{name}(({whole})x, ({whole})y)" for n, feature, mm, whole in registers}
            yield f"{kind}_{name}", LibraryFunction(v, pair, body, scalar=f"return x {symbol} y ? x : y;", fast=fast, halves=bits == 64)
        sign = f"return ({v})((x > 0) & 1) - ({v})((x < 0) & 1);" if signed else f"return ({v})(x > 0) & 1;"
        yield (
            f"sign_{name}",
            LibraryFunction(v, (f"{v} x",), sign, scalar="return x > 0 ? 1 : x < 0 ? -1 : 0;" if signed else "return x > 0;"),
        )
        yield (
            f"abs_{name}",
            LibraryFunction(
                v,
                (f"{v} x",),
                f"return select_{name}_@N(lt_{name}_@N(x, x - x), -x, x);" if signed else "return x;",
                scalar="return x < 0 ? -x : x;" if signed else "return x;",
            ),
        )


# No instruction shifts bytes by numbers of their own.
_SHIFTED_BYTES = """
const u32x@N wide = convert_u8_u32_@N(x) >> convert_u8_u32_@N(y & 7);
return __builtin_convertvector(__builtin_convertvector(wide, u16x@N), u8x@N) & (u8x@N)(y < 8);
"""


def _shifted_alike(sign: str) -> Callable[[int], str]:
    """All bytes by one number below 8: as halves of words, whose bits do not stay where they belong to a neighbour."""
    return lambda lanes: f"return (u8x@N)((u16x{lanes // 2})x {sign} (uint16_t)n) & (uint8_t)(255 {sign} n);"


_POWER = """{negative}
    uint64_t base = (uint64_t)x, n = (uint64_t)y, r = 1;
    for (; n; n >>= 1, base *= base) if (n & 1) r *= base;
    return ({c})r;"""
