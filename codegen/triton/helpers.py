"""The Triton functions that printed kernels may call: source text by name, with the functions each one calls.

They use only builtins of the language, never its standard library, so that a kernel's line table names no file of an
installation, and never libdevice directly, so that Triton's interpreter runs them too; it is taught the instructions
that are named (`worker.EXP2`). The rarer functions of f32 compute in f64: right to the last place, and not where time
is spent.
"""

from __future__ import annotations

import re

from .worker import E2M1X2, EXP2

_SOURCES = (
    # --- combiners of reductions and scans ---------------------------------------------------------------------------
    """
def combine_sum(x, y):
    return x + y
""",
    """
def combine_prod(x, y):
    return x * y
""",
    """
def combine_max(x, y):
    return tl.where((x > y) | (x != x), x, y)
""",
    """
def combine_min(x, y):
    return tl.where((x < y) | (x != x), x, y)
""",
    """
def combine_max_f32(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
""",
    """
def combine_min_f32(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
""",
    # NaN counts as extreme; among equals the first index wins, so the order of combination does not matter.
    """
def combine_argmax(x, i, y, j):
    equal = (x == y) | ((x != x) & (y != y))
    left = (equal & (i < j)) | (~equal & ((x != x) | (x > y)))
    return tl.where(left, x, y), tl.where(left, i, j)
""",
    """
def combine_argmin(x, i, y, j):
    equal = (x == y) | ((x != x) & (y != y))
    left = (equal & (i < j)) | (~equal & ((x != x) | (x < y)))
    return tl.where(left, x, y), tl.where(left, i, j)
""",
    # --- integers ----------------------------------------------------------------------------------------------------
    """
def floor_div_index(x, y):
    quotient = x // y
    return tl.where((quotient * y != x) & ((x < 0) != (y < 0)), quotient - 1, quotient)
""",
    """
def floor_mod_index(x, y):
    remainder = x % y
    return tl.where((remainder != 0) & ((remainder < 0) != (y < 0)), remainder + y, remainder)
""",
    """
def div_int(x, y):
    quotient = x // tl.where((y == 0) | (y == -1), 1, y)
    return tl.where(y == 0, 0, tl.where(y == -1, 0 - x, quotient))
""",
    """
def div_uint(x, y):
    return tl.where(y == 0, 0, x // tl.where(y == 0, 1, y))
""",
    """
def trunc_mod_int(x, y):
    return tl.where((y == 0) | (y == -1), 0, x % tl.where((y == 0) | (y == -1), 1, y))
""",
    """
def trunc_mod_uint(x, y):
    return tl.where(y == 0, 0, x % tl.where(y == 0, 1, y))
""",
    """
def floor_div_int(x, y):
    quotient = div_int(x, y)
    down = (y != 0) & (quotient * y != x) & ((x < 0) != (y < 0))
    return tl.where(down, quotient - 1, quotient)
""",
    """
def floor_mod_int(x, y):
    remainder = trunc_mod_int(x, y)
    return tl.where((remainder != 0) & ((remainder < 0) != (y < 0)), remainder + y, remainder)
""",
    """
def pow_int(x, y):
    power = x * 0 + 1
    square = x
    left = tl.where(y < 0, 0, y)
    for _ in tl.static_range(63):
        power = tl.where((left & 1) != 0, power * square, power)
        square = square * square
        left = left >> 1
    odd = tl.where((y & 1) == 0, x * 0 + 1, x)
    return tl.where(y < 0, tl.where((x == 1) | (x + 1 == 0), odd, 0), power)
""",
    # --- rounding ----------------------------------------------------------------------------------------------------
    """
def trunc_float(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))
""",
    # Adding and taking away 2**23 rounds to even; the sign stays, that of zero too, and so does what is whole or NaN.
    """
def round_even_f32(x):
    size = tl.abs(x)
    whole = ((size + 8388608.0) - 8388608.0).to(tl.int32, bitcast=True)
    sign = x.to(tl.int32, bitcast=True) & -2147483648
    return tl.where(size < 8388608.0, (whole | sign).to(tl.float32, bitcast=True), x)
""",
    # Products with zero keep the sign of zero and pass NaN on.
    """
def round_even_f64(x):
    size = tl.abs(x)
    whole = (size + 4503599627370496.0) - 4503599627370496.0
    whole = tl.where(size < 4503599627370496.0, whole, size)
    return tl.where(whole == 0, x * 0.0, tl.where(x < 0, whole * -1.0, whole))
""",
    """
def sign_float(x):
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, tl.where(x == 0, 0.0, x)))
""",
    # --- remainders of floats: exact, 24 bits of the quotient at a time ------------------------------------------------
    """
def fmod_f32(x, y):
    left = tl.abs(x).to(tl.float64)
    by = tl.abs(y).to(tl.float64)
    infinite = by == float("inf")
    step = tl.where(infinite, 1.0, by) * 2.9642774844752946e79
    for _ in tl.static_range(12):
        left = left - tl.floor(left / step) * step
        left = tl.where(left < 0, left + step, left)
        left = tl.where(left >= step, left - step, left)
        step = step * 5.9604644775390625e-08
    result = left.to(tl.float32)
    result = tl.where(infinite & (tl.abs(x) != float("inf")), tl.abs(x), result)
    result = tl.where(result == 0, x * 0.0, tl.where(x < 0, result * -1.0, result))
    return tl.where((y == 0) | (x != x) | (y != y) | (tl.abs(x) == float("inf")), float("nan"), result)
""",
    """
def floor_mod_f32(x, y):
    remainder = fmod_f32(x, y)
    moved = tl.where((remainder != 0) & ((remainder < 0) != (y < 0)), remainder + y, remainder)
    return tl.where(remainder == 0, tl.where(y < 0, -0.0, 0.0), moved)
""",
    """
def floor_div_f32(x, y):
    remainder = fmod_f32(x, y)
    quotient = tl.div_rn(x - remainder, y)
    quotient = tl.where((remainder != 0) & ((remainder < 0) != (y < 0)), quotient - 1.0, quotient)
    whole = tl.floor(quotient)
    whole = tl.where(quotient - whole > 0.5, whole + 1.0, whole)
    whole = tl.where(quotient == 0, tl.div_rn(x, y) * 0.0, whole)
    return tl.where(y == 0, tl.div_rn(x, y), whole)
""",
    # --- division ------------------------------------------------------------------------------------------------------
    # A divisor of many numbers is inverted once. What the quotient leaves over, which one fma finds without rounding, says
    # how far it is off: with it, it is the nearest number, unless it lies within 2^-46 of the middle of two. There is nothing
    # to go by where there are infinities, zeros or NaN, and the quotient stands. A divisor whose inverse would overflow is
    # scaled, and what it divides with it.
    """
def div_f32(x, y):
    if x.numel > y.numel:
        scale = tl.where(tl.abs(y) < 7.52316384526264e-37, 1073741824.0, 1.0)
        scaled = x * scale
        by = y * scale
        inverse = tl.div_rn(1.0, by)
        quotient = scaled * inverse
        left = tl.fma(quotient * -1.0, by, scaled)
        quotient = tl.where(tl.abs(left) < tl.abs(scaled), tl.fma(left, inverse, quotient), quotient)
    else:
        quotient = tl.div_rn(x, y)
    return quotient
""",
    # The same by a number whose inverse is known.
    """
def div_by_f32(x, y, inverse):
    quotient = x * inverse
    left = tl.fma(quotient * -1.0, y, x)
    return tl.where(tl.abs(left) < tl.abs(x), tl.fma(left, inverse, quotient), quotient)
""",
    # --- elementary functions ----------------------------------------------------------------------------------------
    # One instruction where results below the smallest normal number may be 0; to keep them takes two products and a comparison.
    f"""
def exp2_f32(x):
    return tl.inline_asm_elementwise("{EXP2}", "=f,f", [x], tl.float32, True, 1)
""",
    # The hardware's 2**t is good to 2 ulp for any t; what x * log2(e) loses by rounding is put back to first order.
    """
def exp_f32(x):
    high = x * 1.4426950216293335
    low = tl.fma(x, 1.925963033500e-08, tl.fma(x, 1.4426950216293335, 0.0 - high))
    value = exp2_f32(high)
    return tl.where(tl.abs(high) < 128.0, tl.fma(value, low * 0.6931471805599453, value), value)
""",
    """
def exp2_narrow_f32(x):
    return exp2_f32(x)
""",
    # One division for all that are divided by the same number; below the least normal one its inverse would be infinite.
    """
def div_narrow_f32(x, y):
    if x.numel > y.numel:
        scale = tl.where(tl.abs(y) < 1.1754943508222875e-38, 18446744073709551616.0, 1.0)
        quotient = (x * scale) * (1.0 / (y * scale))
    else:
        quotient = x / y
    return quotient
""",
    """
def sigmoid_narrow_f32(x):
    return 1.0 / (exp2_f32(x * -1.4426950408889634) + 1.0)
""",
    """
def expm1_f32(x):
    wide = x.to(tl.float64)
    series = wide * (1.0 + wide * (0.5 + wide * (1.0 / 6 + wide * (1.0 / 24))))
    return tl.where(tl.abs(wide) < 0.001, series, tl.exp(wide) - 1.0).to(tl.float32)
""",
    """
def log1p_f32(x):
    wide = x.to(tl.float64)
    series = wide * (1.0 - wide * (0.5 - wide * (1.0 / 3 - wide * 0.25)))
    return tl.where(tl.abs(wide) < 0.001, series, tl.log(wide + 1.0)).to(tl.float32)
""",
    """
def tanh_f32(x):
    size = tl.abs(x)
    square = x * x
    tail = 0.00205954675 * square - 0.0080854479
    tail = tail * square + 0.0216632336
    tail = tail * square - 0.0539398803
    tail = tail * square + 0.133331512
    tail = tail * square - 0.333333294
    large = 1.0 - 2.0 / (tl.exp2(size * 2.8853900817779268) + 1.0)
    large = tl.where(x < 0, large * -1.0, large)
    return tl.where(size < 0.65, x + x * (square * tail), large)
""",
    """
def tan_f32(x):
    wide = x.to(tl.float64)
    return (tl.sin(wide) / tl.cos(wide)).to(tl.float32)
""",
    # The arc tangent of 0..1: halve the angle twice, then the series.
    """
def atan_unit(x):
    x = x / (1.0 + tl.sqrt(1.0 + x * x))
    x = x / (1.0 + tl.sqrt(1.0 + x * x))
    square = x * x
    tail = 1.0 / 9 - square * (1.0 / 11 - square * (1.0 / 13))
    tail = 1.0 / 3 - square * (0.2 - square * (1.0 / 7 - square * tail))
    return 4.0 * (x - x * square * tail)
""",
    """
def atan_wide(x):
    size = tl.abs(x)
    angle = atan_unit(tl.where(size > 1.0, 1.0 / size, size))
    angle = tl.where(size > 1.0, 1.5707963267948966 - angle, angle)
    return tl.where(x == 0, x, tl.where(x < 0, angle * -1.0, angle))
""",
    """
def atan_f32(x):
    return atan_wide(x.to(tl.float64)).to(tl.float32)
""",
    """
def atan2_wide(y, x):
    across = tl.abs(x)
    up = tl.abs(y)
    both = (across == float("inf")) & (up == float("inf"))
    steep = up > across
    ratio = tl.where(steep, across, up) / tl.where(steep, up, tl.where(across == 0, 1.0, across))
    angle = atan_unit(tl.where(both, 1.0, ratio))
    angle = tl.where(steep, 1.5707963267948966 - angle, angle)
    sign = x.to(tl.int64, bitcast=True) < 0
    angle = tl.where(sign, 3.141592653589793 - angle, angle)
    angle = tl.where(y.to(tl.int64, bitcast=True) < 0, angle * -1.0, angle)
    return tl.where((x != x) | (y != y), float("nan"), angle)
""",
    """
def atan2_f32(y, x):
    return atan2_wide(y.to(tl.float64), x.to(tl.float64)).to(tl.float32)
""",
    """
def asin_f32(x):
    wide = x.to(tl.float64)
    return atan_wide(wide / tl.sqrt((1.0 - wide) * (1.0 + wide))).to(tl.float32)
""",
    """
def acos_f32(x):
    wide = x.to(tl.float64)
    return atan2_wide(tl.sqrt((1.0 - wide) * (1.0 + wide)), wide).to(tl.float32)
""",
    """
def sinh_f32(x):
    wide = x.to(tl.float64)
    power = tl.exp(wide)
    large = (power - 1.0 / power) * 0.5
    return tl.where(tl.abs(wide) < 0.001, wide + wide * wide * wide * (1.0 / 6), large).to(tl.float32)
""",
    """
def cosh_f32(x):
    power = tl.exp(tl.abs(x.to(tl.float64)))
    return ((power + 1.0 / power) * 0.5).to(tl.float32)
""",
    """
def asinh_f32(x):
    wide = x.to(tl.float64)
    size = tl.abs(wide)
    large = tl.log(size + tl.sqrt(size * size + 1.0))
    large = tl.where(wide < 0, large * -1.0, large)
    return tl.where(size < 0.001, wide - wide * wide * wide * (1.0 / 6), large).to(tl.float32)
""",
    """
def acosh_f32(x):
    wide = x.to(tl.float64)
    return tl.log(wide + tl.sqrt((wide - 1.0) * (wide + 1.0))).to(tl.float32)
""",
    """
def atanh_f32(x):
    wide = x.to(tl.float64)
    large = 0.5 * tl.log((1.0 + wide) / (1.0 - wide))
    return tl.where(tl.abs(wide) < 0.001, wide + wide * wide * wide * (1.0 / 3), large).to(tl.float32)
""",
    # Beyond 3 the continued fraction, from its twentieth step inwards.
    """
def erfc_f32(x):
    wide = x.to(tl.float64)
    size = tl.where(wide > 3.0, wide, 3.0)
    fraction = size
    for step in tl.static_range(20):
        fraction = size + (10.0 - step * 0.5) / fraction
    tail = tl.exp(-(size * size)) * 0.5641895835477563 / fraction
    tail = tl.where(size > 20.0, 0.0, tail)
    return tl.where(wide > 3.0, tail, 1.0 - tl.erf(wide)).to(tl.float32)
""",
    # Stirling's series beyond 8, reached by the recurrence; Taylor's around the zeros at 1 and 2; the reflection
    # formula below one half.
    """
def lgamma_f32(x):
    wide = x.to(tl.float64)
    z = tl.where(wide < 0.5, 1.0 - wide, wide)
    shifted = z
    product = z * 0.0 + 1.0
    for _ in tl.static_range(8):
        small = shifted < 8.0
        product = tl.where(small, product * shifted, product)
        shifted = tl.where(small, shifted + 1.0, shifted)
    inverse = 1.0 / shifted
    square = inverse * inverse
    series = 1.0 / 1260 - square * (1.0 / 1680 - square * (1.0 / 1188 - square * (691.0 / 360360)))
    series = inverse * (1.0 / 12 - square * (1.0 / 360 - square * series))
    value = (shifted - 0.5) * tl.log(shifted) - shifted + 0.9189385332046727 + series - tl.log(product)
    t = z - 1.0
    near = 0.40068563438653143 - t * (0.27058080842778454 - t * 0.20738555102867398)
    near = t * (-0.5772156649015329 + t * (0.8224670334241132 - t * near))
    value = tl.where(tl.abs(t) < 0.01, near, value)
    t = z - 2.0
    near = 0.06735230105319810 - t * (0.02058080842778454 - t * 0.00738555102867398)
    near = t * (0.42278433509846714 + t * (0.3224670334241132 - t * near))
    value = tl.where(tl.abs(t) < 0.01, near, value)
    distance = tl.abs(wide - tl.floor(wide + 0.5))
    mirrored = tl.log(3.141592653589793 / tl.sin(3.141592653589793 * distance)) - value
    value = tl.where(wide < 0.5, mirrored, value)
    pole = (tl.abs(wide) == float("inf")) | ((wide <= 0) & (tl.floor(wide) == wide))
    return tl.where(pole, float("inf"), value).to(tl.float32)
""",
    """
def pow_f32(x, y):
    base = x.to(tl.float64)
    power = y.to(tl.float64)
    size = tl.abs(base)
    value = tl.exp2(power * tl.log2(size))
    value = tl.where(size == 0, tl.where(power < 0, float("inf"), 0.0), value)
    value = tl.where((size == 1.0) & (tl.abs(power) == float("inf")), 1.0, value)
    whole = tl.floor(power) == power
    half = power * 0.5
    odd = whole & (tl.floor(half) != half)
    negative = base.to(tl.int64, bitcast=True) < 0
    value = tl.where(negative & odd, value * -1.0, value)
    value = tl.where((base < 0) & ~whole & (size != float("inf")), float("nan"), value)
    value = tl.where((base != base) | (power != power), float("nan"), value)
    return tl.where((power == 0) | (base == 1.0), 1.0, value).to(tl.float32)
""",
    # --- narrow floats: the hardware saturates where the format overflows to NaN or infinity ---------------------------
    # A power of two by its exponent: 0 is the subnormal 2^-127, 255 is NaN, as which all else comes that has no logarithm.
    """
def from_f8e8m0(x):
    bits = x.to(tl.int32)
    exponent = tl.where(bits == 0, 0x400000, bits << 23)
    return tl.where(bits == 255, 0x7FC00000, exponent).to(tl.float32, bitcast=True)
""",
    """
def to_f8e8m0(x):
    bits = x.to(tl.int32, bitcast=True)
    power = tl.where(bits < 0x800000, (bits > 0x400000).to(tl.int32), (bits + 0x400000) >> 23)
    return tl.where((bits <= 0) | (bits >= 0x7F400000), 255, power).to(tl.uint8)
""",
    """
def to_f8e4m3(x):
    return tl.where(tl.abs(x) > 464.0, float("nan"), x).to(tl.float8e4nv)
""",
    f"""
def e2m1x2_f32(x, y):
    return tl.inline_asm_elementwise("{E2M1X2}", "=r,f,f", [x, y], tl.int32, True, 1).to(tl.uint8)
""",
    """
def to_f8e5m2(x):
    bits = x.to(tl.float8e5).to(tl.uint8, bitcast=True)
    infinite = tl.where(x < 0, 252, 124).to(tl.uint8)
    return tl.where(tl.abs(x) >= 61440.0, infinite, bits).to(tl.float8e5, bitcast=True)
""",
)

SOURCES: dict[str, str] = {re.match(r"\ndef (\w+)", text).group(1): text.strip("\n") for text in _SOURCES}  # type: ignore[union-attr]


def closure(names: set[str]) -> tuple[str, ...]:
    """The helpers in `names` and all they call, callees first, in the order of this file."""
    needed: set[str] = set()
    pending = sorted(names)
    while pending:
        name = pending.pop()
        if name not in needed:
            needed.add(name)
            pending += [other for other in SOURCES if other != name and re.search(rf"\b{other}\(", SOURCES[name])]
    return tuple(name for name in SOURCES if name in needed)
