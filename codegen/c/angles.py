"""Angles: the trigonometric functions and their inverses on vectors of f32.

The polynomials are minimax fits made for this file; each comment gives the fitted function and its largest error, relative to the
function's value.
"""

from __future__ import annotations

from collections.abc import Iterator

from .library import LibraryFunction, horner

V = "f32x@N"

# (sin(r) - r) / r**3 and (cos(r) - 1 + r**2/2) / r**4 in r**2 on +-pi/4, 5e-12 and 1e-13
_SIN = ("2.717568130e-06f", "-1.983925702e-04f", "8.333329145e-03f", "-1.666666664e-01f")
_COS = ("-2.720333771e-07f", "2.479943682e-05f", "-1.388888344e-03f", "4.166666662e-02f")
# (tan(r) - r) / r**3 in r**2 on +-pi/4, 1.4e-9
_TAN = (
    *("4.41511729921974933e-03", "7.07951712425006489e-06", "1.09042308061142023e-02", "2.12542743801350624e-02"),
    *("5.40656706244515978e-02", "1.33326088409967292e-01", "3.33333514720815183e-01"),
)
# (atan(w) - w) / w**3 in w**2 up to 1, 2.6e-9
_ATAN = (
    *("-1.793634845e-03f", "1.091466658e-02f", "-3.117796592e-02f", "5.795772001e-02f", "-8.403458446e-02f", "1.095218882e-01f"),
    *("-1.426424235e-01f", "1.999854892e-01f", "-3.333329856e-01f"),
)
# (asin(w) - w) / w**3 in w**2 up to 1/4, 5e-9
_ASIN = ("4.223055765e-02f", "2.414098755e-02f", "4.547834396e-02f", "7.495232671e-02f", "1.666675359e-01f")

# The argument is reduced in f64 by two parts of pi/2: exact enough up to 2**26, beyond which libm is asked.
_REDUCE = """
f64x@N n = (d * 0.63661977236758134 + 6755399441055744.0) - 6755399441055744.0;
f64x@N w = (d - n * 1.5707963267341256) - n * 6.077100506506192e-11;
"""
_FAR = """
i32x@N far = ~(abs_f32_@N(x) < 1e6f);
if (any_i32_@N(far)) y = far_LIBM_f32_@N(far, x, y);
return KEEP;
"""

_TRIGONOMETRIC = f"""
f64x@N d = __builtin_convertvector(x, f64x@N);{_REDUCE}
{V} r = __builtin_convertvector(w, f32x@N);
i32x@N q = __builtin_convertvector(n, i32x@N) + TURN;
{V} z = r * r;
{horner("z", "s", *_SIN)}
s = fma_f32_@N(s, z * r, r);
{horner("z", "c", *_COS)}
c = fma_f32_@N(c, z * z, fma_f32_@N(splat_f32_@N(-0.5f), z, splat_f32_@N(1.0f)));
{V} y = select_f32_@N(-(q & 1), c, s);
y = (f32x@N)((i32x@N)y ^ ((q & 2) << 30));{_FAR}
"""

# A pole beside a multiple of pi/2 is as steep as the reduction is exact: all of it stays in f64.
_TAN_WIDE = f"""{_REDUCE}
i64x@N odd = -((i64x@N)(n + 6755399441055744.0) & 1);
f64x@N z = w * w;
{horner("z", "t", *_TAN, dtype="f64")}
t = fma_f64_@N(t, z * w, w);
return (f64x@N)(((i64x@N)(-1.0 / t) & odd) | ((i64x@N)t & ~odd));
"""
_TAN_BODY = f"{V} y = __builtin_convertvector(wide_tan_f64_@N(__builtin_convertvector(x, f64x@N)), f32x@N);{_FAR}"

# What is beyond 1 is turned by a quarter: atan(x) = pi/2 - atan(1/x).
_ATAN_BODY = f"""
{V} a = abs_f32_@N(x);
i32x@N steep = a > 1.0f;
{V} w = select_f32_@N(steep, -1.0f / a, a);
{V} z = w * w;
{horner("z", "p", *_ATAN)}
p = fma_f32_@N(p, z * w, select_f32_@N(steep, splat_f32_@N(-4.37113883e-8f), p - p)) + w;
return copysign_f32_@N(select_f32_@N(steep, p + 1.57079637f, p), x);
"""

# Of a point at height x: the angle in the first octant, and how far the octant is turned. A zero's sign counts, as C has it.
_ATAN2_BODY = f"""
{V} a = abs_f32_@N(x), b = abs_f32_@N(y);
i32x@N steep = a > b, left = (i32x@N)y >> 31;
{V} more = select_f32_@N(steep, a, b), less = select_f32_@N(steep, b, a);
{V} w = select_f32_@N(less == more, splat_f32_@N(1.0f), less / more);
w = select_f32_@N(more == 0.0f, more, w);
{V} z = w * w;
{horner("z", "p", *_ATAN)}
p = fma_f32_@N(p, z * w, w);
p = (f32x@N)((i32x@N)p ^ ((steep ^ left) & (int32_t)0x80000000));
{V} turned = select_f32_@N(steep, splat_f32_@N(1.57079637f), (f32x@N)(left & (i32x@N)splat_f32_@N(3.14159274f)));
{V} lost = select_f32_@N(steep, splat_f32_@N(-4.37113883e-8f), (f32x@N)(left & (i32x@N)splat_f32_@N(-8.74227766e-8f)));
{V} r = select_f32_@N(steep | left, turned + (p + lost), p);
return select_f32_@N((x == x) & (y == y), copysign_f32_@N(r, x), x + y);
"""

# Beyond 1/2: asin(a) = pi/2 - 2 asin(w) with w = sqrt((1 - a) / 2).
_HALF_ANGLE = f"""
{V} a = abs_f32_@N(x);
i32x@N steep = a > 0.5f;
{V} z = select_f32_@N(steep, fma_f32_@N(a, splat_f32_@N(-0.5f), splat_f32_@N(0.5f)), a * a);
{V} w = select_f32_@N(steep, sqrt_f32_@N(z), a);
{horner("z", "p", *_ASIN)}
p = p * (z * w);
"""
_ASIN_BODY = f"""{_HALF_ANGLE}
{V} beyond = fma_f32_@N(splat_f32_@N(-2.0f), w, splat_f32_@N(1.57079637f));
{V} lost = fma_f32_@N(splat_f32_@N(-2.0f), w, 1.57079637f - beyond) - 4.37113883e-8f;
beyond = beyond + fma_f32_@N(splat_f32_@N(-2.0f), p, lost);
return copysign_f32_@N(select_f32_@N(steep, beyond, w + p), x);
"""
_ACOS_BODY = f"""{_HALF_ANGLE}
i32x@N left = (i32x@N)x >> 31;
{V} q = (f32x@N)((i32x@N)p ^ (left & (int32_t)0x80000000)), v = (f32x@N)((i32x@N)w ^ (left & (int32_t)0x80000000));
{V} near = 1.57079637f - (v + (q + 4.37113883e-8f));
{V} beyond = (v + v) + (q + q);
beyond = select_f32_@N(left, 3.14159274f + (beyond - 8.74227766e-8f), beyond);
return select_f32_@N(steep, beyond, near);
"""


def angles() -> Iterator[tuple[str, LibraryFunction]]:
    """The functions by name."""
    bodies = {
        "sin": _TRIGONOMETRIC.replace("TURN", "0").replace("LIBM", "sin").replace("KEEP", "select_f32_@N(x == 0.0f, x, y)"),
        "cos": _TRIGONOMETRIC.replace("TURN", "1").replace("LIBM", "cos").replace("KEEP", "y"),
        "tan": _TAN_BODY.replace("LIBM", "tan").replace("KEEP", "y"),
        "atan": _ATAN_BODY,
        "asin": _ASIN_BODY,
        "acos": _ACOS_BODY,
    }
    for name, body in bodies.items():
        yield f"{name}_f32", LibraryFunction(V, (f"{V} x",), body, halves=True)
    yield "atan2_f32", LibraryFunction(V, (f"{V} x", f"{V} y"), _ATAN2_BODY, halves=True)
    yield "wide_tan_f64", LibraryFunction("f64x@N", ("f64x@N d",), _TAN_WIDE, halves=True)
    for name in ("sin", "cos", "tan"):
        yield (
            f"far_{name}_f32",
            LibraryFunction(V, ("i32x@N far", f"{V} x", f"{V} y"), lane=f"far ? (float){name}((double)x) : y", rare=True),
        )
