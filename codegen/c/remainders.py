"""Remainders and whole quotients of floats: exact for f32 on vectors where quotients are small, through libm elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from .library import LibraryFunction

# A rounded quotient below 2**23 is off by less than 1, and what it leaves of x is exact: once more y if it was too much.
_TRUNC_MOD_BODY = """
f32x@N a = abs_f32_@N(x), b = abs_f32_@N(y), q = a / b;
f32x@N r = fma_f32_@N(-trunc_f32_@N(q), b, a);
r = select_f32_@N(r < 0.0f, r + b, r);
r = copysign_f32_@N(select_f32_@N(a < b, a, r), x);
i32x@N far = ~(q < 8388608.0f);
if (__builtin_expect(any_i32_@N(far), 0)) r = far_trunc_mod_f32_@N(far, x, y, r);
return r;
"""
_FLOOR_MOD_BODY = """
f32x@N r = trunc_mod_f32_@N(x, y);
r = select_f32_@N((r != 0.0f) & ((y < 0.0f) ^ (r < 0.0f)), r + y, r);
return select_f32_@N((r == 0.0f) & (y != 0.0f), copysign_f32_@N(r, y), r);
"""
_FLOOR_DIV_BODY = """
f32x@N r = trunc_mod_f32_@N(x, y), whole = x / y, q = (x - r) / y;
q = select_f32_@N((r != 0.0f) & ((y < 0.0f) ^ (r < 0.0f)), q - 1.0f, q);
f32x@N f = floor_f32_@N(q);
f = select_f32_@N(q - f > 0.5f, f + 1.0f, f);
f = select_f32_@N(q == 0.0f, copysign_f32_@N(q, whole), f);
return select_f32_@N(y == 0.0f, whole, f);
"""


def remainders() -> Iterator[tuple[str, LibraryFunction]]:
    """The functions by name."""
    pair = ("f32x@N x", "f32x@N y")
    for name, body in (("trunc_mod", _TRUNC_MOD_BODY), ("floor_mod", _FLOOR_MOD_BODY), ("floor_div", _FLOOR_DIV_BODY)):
        yield f"{name}_f32", LibraryFunction("f32x@N", pair, body, halves=True)
    lane = "far ? __builtin_fmodf(x, y) : z"
    yield "far_trunc_mod_f32", LibraryFunction("f32x@N", ("i32x@N far", *pair, "f32x@N z"), lane=lane, rare=True)
    pair = ("f64x@N x", "f64x@N y")
    yield "ourcc_mod_f64", LibraryFunction("", (), raw=_MOD_F64)
    yield "ourcc_floor_div_f64", LibraryFunction("", (), raw=_FLOOR_DIV_F64)
    yield "floor_mod_f64", LibraryFunction("f64x@N", pair, lane="ourcc_mod_f64(x, y)")
    yield "floor_div_f64", LibraryFunction("f64x@N", pair, lane="ourcc_floor_div_f64(x, y)")
    yield "trunc_mod_f64", LibraryFunction("f64x@N", pair, lane="__builtin_fmod(x, y)")


_MOD_F64 = """static inline double ourcc_mod_f64(double x, double y) {
    double r = __builtin_fmod(x, y);
    if (r != 0) return (y < 0) != (r < 0) ? r + y : r;
    return y == 0 ? r : __builtin_copysign(0, y);
}"""
_FLOOR_DIV_F64 = """static inline double ourcc_floor_div_f64(double x, double y) {
    if (y == 0) return x / y;
    double r = __builtin_fmod(x, y), q = (x - r) / y;
    if (r != 0 && (y < 0) != (r < 0)) q -= 1;
    if (q == 0) return __builtin_copysign(0, x / y);
    double f = __builtin_floor(q);
    return q - f > (double)0.5 ? f + 1 : f;
}"""
