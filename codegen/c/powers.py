"""Powers: pow, and what is made of exponentials and logarithms, on vectors of f32; much of it through f64, where errors do not grow.

The polynomials are minimax fits made for this file; each comment gives the fitted function and its largest error, relative to the
function's value.
"""

from __future__ import annotations

from collections.abc import Iterator

from .library import LibraryFunction, horner
from .pieces import erf_in_pieces

V, W = "f32x@N", "f64x@N"

# (atanh(s) - s) / s**3 in s**2 up to (sqrt(2) - 1)**2 / (sqrt(2) + 1)**2, 5e-12
_LOG2 = ("1.17913833402382415e-01", "1.42686390239506272e-01", "2.00001678189320242e-01", "3.33333328218218483e-01")
# 2**r on +-1/2, 5e-11
_EXP2 = (
    *("1.51961588211513884e-05", "1.54667564241401094e-04", "1.33339350493542723e-03", "9.61803813165756916e-03"),
    *("5.55041036599047480e-02", "2.40226510665648318e-01", "6.93147180704538401e-01", "1.0"),
)
# ((exp(2 r) - 1) / 2 - r) / r**2 on +-ln2/4, 1e-9; and (exp(r) - 1 - r) / r**2 on +-ln2/2, 2e-10
_EXPM1_HALF = ("1.274396386e-02f", "4.459233582e-02f", "1.333324462e-01f", "3.333317339e-01f", "6.666666865e-01f", "1.0f")
_EXPM1 = ("1.991433528e-04f", "1.394112594e-03f", "8.333273232e-03f", "4.166635498e-02f", "1.666666716e-01f", "5.000000000e-01f")
# exp(x**2) erfc(x) in (x - 3) / (x + 3) from 0 to 10.1, 6e-10
_ERFC = (
    *("5.06621860048209008e-06", "6.66806060712376084e-05", "3.10399725764738232e-05", "-6.02580642520601415e-04"),
    *("7.12283204644665875e-04", "4.27108128630437119e-03", "-2.43932163825424896e-02", "7.16655853075589960e-02"),
    *("-1.50115882316832039e-01", "2.45603812243770953e-01", "-3.26233561350668055e-01", "1.79001151121655100e-01"),
)
# (log(erfc(x)) + 2 x / sqrt(pi)) / x**2 up to 3.93, 4e-9 of erf; then what the nearest float lacks of -2 / sqrt(pi)
_LOG_ERFC = (
    *("9.340969882e-06f", "-1.184280045e-04f", "6.357652601e-04f", "-1.672647893e-03f", "1.663547882e-04f", "1.914959773e-02f"),
    *("-1.027768031e-01f", "-6.366195083e-01f", "5.863538344e-08f"),
)
# (sinh(x) - x) / x**3 in x**2 up to 1/4, 1e-10
_SINH = ("1.997402869e-04f", "8.333140984e-03f", "1.666666716e-01f")

# Of normal numbers: log2(2**k m) = k + 2 atanh((m - 1) / (m + 1)) / ln2. The exponent becomes a number by standing in one of 2**52.
_LOG2_WIDE = f"""
i64x@N b = (i64x@N)x - 0x3fe6a09e667f3bcd + 0x3ff0000000000000;
{W} k = ({W})(i64x@N)(((u64x@N)b >> 52) | 0x4330000000000000) - 4503599627371519.0;
{W} m = ({W})((b & 0xfffffffffffff) + 0x3fe6a09e667f3bcd);
{W} s = (m - 1.0) / (m + 1.0);
{W} z = s * s;
{horner("z", "p", *_LOG2, dtype="f64")}
s = s * 2.8853900817779268;
return fma_f64_@N(p, z * s, s) + k;
"""
# 2**52 * 1.5 + 1023: what is added to it is rounded to an integer, whose lowest bits are the exponent. f32 is 0 or inf beyond 200.
_EXP2_WIDE = f"""
{W} c = max_number_f64_@N(splat_f64_@N(-200.0), min_number_f64_@N(splat_f64_@N(200.0), x));
{W} n = c + 6755399441056767.0;
{W} r = c - (n - 6755399441056767.0);
{horner("r", "p", *_EXP2, dtype="f64")}
return p * ({W})((i64x@N)n << 52);
"""
_WIDE = {
    "log2": _LOG2_WIDE,
    "exp2": _EXP2_WIDE,
    "asinh": "return wide_log2_f64_@N(x + sqrt_f64_@N(x * x + 1.0)) * 0.69314718055994531;",
    "acosh": "return wide_log2_f64_@N(x + sqrt_f64_@N(x * x - 1.0)) * 0.69314718055994531;",
    "atanh": "return wide_log2_f64_@N((1.0 + x) / (1.0 - x)) * 0.34657359027997265;",
    "erfc": f"""
{W} a = min_number_f64_@N(splat_f64_@N(11.0), x);
{W} u = (a - 3.0) / (a + 3.0);
{horner("u", "p", *_ERFC, dtype="f64")}
return p * wide_exp2_f64_@N(a * a * -1.4426950408889634);
""",
}

# Where a base is not a positive number or an exponent not finite, this is what C says of them.
_POW_BODY = f"""
{W} l = __builtin_convertvector(abs_f32_@N(x), {W}), e = __builtin_convertvector(y, {W});
{V} r = __builtin_convertvector(wide_pow_f64_@N(l, e), {V});
i32x@N edge = ~((x > 0.0f) & (x < INFINITY) & (abs_f32_@N(y) < INFINITY));
if (__builtin_expect(any_i32_@N(edge), 0)) r = edge_pow_f32_@N(x, y, r);
return r;
"""
_EDGE_POW_BODY = f"""
{V} a = abs_f32_@N(x), half = y * 0.5f;
{V} limit = select_f32_@N((y < 0.0f) ^ (a == INFINITY), splat_f32_@N(INFINITY), splat_f32_@N(0.0f));
{V} r = select_f32_@N((a == 0.0f) | (a == INFINITY), limit, p);
i32x@N whole = trunc_f32_@N(y) == y, odd = whole & (trunc_f32_@N(half) != half);
r = ({V})((i32x@N)r ^ (odd & (i32x@N)x & (int32_t)0x80000000));
r = select_f32_@N((x < 0.0f) & (a < INFINITY) & ~whole, splat_f32_@N(NAN), r);
r = select_f32_@N((x == x) & (y == y), r, x + y);
return select_f32_@N((x == 1.0f) | (y == 0.0f) | ((a == 1.0f) & (abs_f32_@N(y) == INFINITY)), splat_f32_@N(1.0f), r);
"""

_LOGARITHMS = {
    # Near 0 the sum with 1 loses what the first two terms of the series have.
    "asinh": f"""
{V} a = abs_f32_@N(x);
{V} r = select_f32_@N(a < 1e-3f, fma_f32_@N(a * a * a, splat_f32_@N(-0.166666667f), a), WIDE(a));
return copysign_f32_@N(select_f32_@N(a < INFINITY, r, a), x);
""",
    "acosh": f"""
{V} r = WIDE(x);
return select_f32_@N(x >= 1.0f, select_f32_@N(x < INFINITY, r, x), splat_f32_@N(NAN));
""",
    "atanh": f"""
{V} a = abs_f32_@N(x);
{V} r = select_f32_@N(a < 1e-3f, fma_f32_@N(a * a * a, splat_f32_@N(0.333333333f), a), WIDE(a));
r = select_f32_@N(a < 1.0f, r, select_f32_@N(a == 1.0f, splat_f32_@N(INFINITY), splat_f32_@N(NAN)));
return copysign_f32_@N(r, x);
""",
    "erfc": f"""
{V} r = WIDE(abs_f32_@N(x));
return select_f32_@N(x < 0.0f, 2.0f - r, r);
""",
}


def _exponent(bias: int, log2e: str, parts: tuple[str, ...], least: str = "") -> str:
    """Statements that set n, s = 2**(n + bias) and r = c - n times the sum of the parts: the lowest bits of t are the exponent."""
    magic = f"{12582912 + 127 + bias}.0f"
    lines = [f"{V} t = fma_f32_@N(c, splat_f32_@N({log2e}), splat_f32_@N({magic}));"]
    lines += [f"t = max_number_f32_@N(splat_f32_@N({magic} {least}), t);"] if least else []
    lines += [f"{V} n = t - {magic}, r = fma_f32_@N(n, splat_f32_@N({parts[0]}), c), s = ({V})((i32x@N)t << 23);"]
    return "\n".join([*lines, *(f"r = fma_f32_@N(n, splat_f32_@N({part}), r);" for part in parts[1:])])


# Where 2**n is small what it stands beside is not: a float for ln2 is near enough.
_EXPONENT = _exponent(0, "1.4426950408889634f", ("-0.693147181f",), "- 24.0f")
_EXPONENT_HALF = _exponent(0, "2.8853900817779268f", ("-0.346573590f",))
_EXPONENT_QUARTER = _exponent(-2, "1.4426950408889634f", ("-6.93145752e-1f", "-1.42860677e-6f"))

# u / (1 + u) with u = (exp(2 a) - 1) / 2, which is a itself where a is small; beyond 9.1 the result is 1. What the sum with 1 loses
# counts less where a small part is taken off u.
_TANH_BODY = f"""
{V} c = min_number_f32_@N(splat_f32_@N(9.1f), abs_f32_@N(x));
{_EXPONENT_HALF}
{horner("r", "p", *_EXPM1_HALF)}
p = fma_f32_@N(p, r * r, r);
{V} u = fma_f32_@N(s, p, fma_f32_@N(s, splat_f32_@N(0.5f), splat_f32_@N(-0.5f)));
{V} y = u / (u + 1.0f);
return copysign_f32_@N(select_f32_@N(u < 0.5f, fma_f32_@N(-u, y, u), y), x);
"""

# 1 - exp(log(erfc(a))), without a difference of what is nearly the same; 1 - 2**-24 is the last number below 1.
_ERF_BODY = f"""
{V} a = min_number_f32_@N(splat_f32_@N(3.93f), abs_f32_@N(x));
{horner("a", "h", *_LOG_ERFC)}
h = h * a;
{V} k = splat_f32_@N(-1.128379226f), c = fma_f32_@N(a, k, h), lost = fma_f32_@N(a, k, -c) + h;
{_EXPONENT}
{horner("r", "p", *_EXPM1)}
p = r + fma_f32_@N(p, r * r, lost);
return copysign_f32_@N(fma_f32_@N(-s, p, 1.0f - s), x);
"""

# A quarter of exp(a) is finite wherever the result is.
_SINH_BODY = f"""
{V} c = min_number_f32_@N(splat_f32_@N(89.5f), abs_f32_@N(x));
{_EXPONENT_QUARTER}
{horner("r", "p", *_EXPM1)}
p = fma_f32_@N(p, r * r, r);
{V} q = fma_f32_@N(s, p, s - 0.25f);
{V} y = q + q / fma_f32_@N(splat_f32_@N(4.0f), q, splat_f32_@N(1.0f));
{V} z = x * x;
{horner("z", "w", *_SINH)}
return select_f32_@N(c < 0.5f, fma_f32_@N(w, z * x, x), copysign_f32_@N(y * 2.0f, x));
"""
_COSH_BODY = f"""
{V} c = min_number_f32_@N(splat_f32_@N(89.5f), abs_f32_@N(x));
{_EXPONENT_QUARTER}
{horner("r", "p", *_EXPM1)}
p = fma_f32_@N(p, r * r, r);
{V} q = fma_f32_@N(s, p, s);
return fma_f32_@N(splat_f32_@N(2.0f), q, 0.125f / q);
"""


def powers() -> Iterator[tuple[str, LibraryFunction]]:
    """The functions by name."""
    for name, body in _WIDE.items():
        yield f"wide_{name}_f64", LibraryFunction(W, (f"{W} x",), body, halves=True)
    power = "return wide_exp2_f64_@N(wide_log2_f64_@N(x) * y);"
    yield "wide_pow_f64", LibraryFunction(W, (f"{W} x", f"{W} y"), power, halves=True)
    yield "pow_f32", LibraryFunction(V, (f"{V} x", f"{V} y"), _POW_BODY, halves=True)
    yield "edge_pow_f32", LibraryFunction(V, (f"{V} x", f"{V} y", f"{V} p"), _EDGE_POW_BODY, halves=True, rare=True)
    bodies = {"tanh": _TANH_BODY, "sinh": _SINH_BODY, "cosh": _COSH_BODY}
    for name, body in _LOGARITHMS.items():
        bodies[name] = _through_wide(name, body)
    for name, body in bodies.items():
        yield f"{name}_f32", LibraryFunction(V, (f"{V} x",), body, halves=True)
    yield "erf_f32", LibraryFunction(V, (f"{V} x",), _ERF_BODY, fast=erf_in_pieces(), halves=True)


def _through_wide(name: str, body: str) -> str:
    """A body whose WIDE(x) is the function of f64."""
    given = "abs_f32_@N(x)" if "WIDE(abs" in body else "a" if "WIDE(a)" in body else "x"
    text = f"__builtin_convertvector(wide_{name}_f64_@N(__builtin_convertvector({given}, {W})), {V})"
    return body.replace(f"WIDE({given})", text)
