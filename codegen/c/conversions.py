"""Library functions that take elements of one type to another: numbers, small floats as f32 and back, and their codes.

What gcc would take apart is written by its instructions: vectors of bytes and words that are widened or narrowed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ...ir.types import DTYPES
from .library import ELEMENTS, LibraryFunction

_SMALL = {
    # name: exponent bits, mantissa bits, bias, has infinity, has negative zero
    "f8e4m3": (4, 3, 7, False, True),
    "f8e5m2": (5, 2, 15, True, True),
    "f8e4m3fnuz": (4, 3, 8, False, False),
    "f8e5m2fnuz": (5, 2, 16, False, False),
}

_ENCODE = """
static inline uint8_t ourcc_encode_f8(
    float x, int mantissa, int bias, uint32_t largest, uint32_t infinite, uint32_t nan, int negative_zero) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t sign = bits >> 31, magnitude = bits & 0x7fffffffu, code;
    if (magnitude > 0x7f800000u) return (uint8_t)(nan == 0x80u ? nan : (sign << 7) | nan);
    int exponent = (int)(magnitude >> 23) - 127, lowest = 1 - bias;
    int shift = 23 - mantissa + (exponent < lowest ? lowest - exponent : 0);
    uint32_t full = (magnitude & 0x7fffffu) | 0x800000u;
    if (shift > 25) code = 0;
    else {
        uint32_t kept = full >> shift, rest = full & ((1u << shift) - 1), half = 1u << (shift - 1);
        kept += rest > half || (rest == half && (kept & 1));
        code = exponent < lowest ? kept : kept + ((uint32_t)(exponent + bias - 1) << mantissa);
    }
    if (magnitude == 0) code = 0;
    if (magnitude >= 0x7f800000u || code > largest) code = infinite;
    if (code == 0x80u) return (uint8_t)code;
    if (code == 0 && !negative_zero) return 0;
    return (uint8_t)((sign << 7) | code);
}
"""


def _encoded(mantissa: int, bias: int, largest: int, infinite: int, nan: int, negative_zero: bool) -> str:
    """`ourcc_encode_f8` for a vector: below the least normal number an addition rounds, as the sum has as many digits as the code."""
    cut, least = 23 - mantissa, (128 - bias) << 23
    magic = (127 + 1 - bias + cut) << 23
    # Where 0 has one sign, its negative is NaN.
    signed = "code | sign" if negative_zero else "(u32x@N)select_f32_@N((code & 0x7fu) == 0u, (f32x@N)code, (f32x@N)(code | sign))"
    return f"""
const u32x@N w = (u32x@N)x, size = w & 0x7fffffffu, sign = w >> 24 & 0x80u;
const u32x@N normal = (size + {(1 << (cut - 1)) - 1}u + (size >> {cut} & 1u)) >> {cut};
const u32x@N small = (u32x@N)((f32x@N)size + (f32x@N)(size * 0u + {magic:#x}u)) - {magic:#x}u;
u32x@N code = (u32x@N)select_f32_@N(size < {least:#x}u, (f32x@N)small, (f32x@N)(normal - {(127 - bias) << mantissa}u));
code = (u32x@N)select_f32_@N((size >= 0x7f800000u) | (code > {largest}u), (f32x@N)(size * 0u + {infinite:#x}u), (f32x@N)code);
code = (u32x@N)select_f32_@N(size > 0x7f800000u, (f32x@N)(size * 0u + {nan:#x}u), (f32x@N)code);
return convert_u32_u8_@N({signed});
"""


def _table(name: str) -> str:
    """Decoding of a narrow float as a C table, printed from its own definition in numpy's terms."""
    import numpy as np

    dtype = DTYPES[name]
    codes = np.arange(1 << dtype.bits, dtype=np.uint8)
    values = codes.view(dtype.numpy).astype(np.float32).view(np.uint32)
    words = ", ".join(f"0x{int(v):08x}u" for v in values)
    function = f"""static inline float ourcc_decode_{name}(uint8_t code) {{
    float r;
    memcpy(&r, &ourcc_table_{name}[code], 4);
    return r;
}}"""
    return f"static const uint32_t ourcc_table_{name}[{len(codes)}] = {{{words}}};\n{function}"


_DECODED = {
    # By way of f16, whose exponent has another bias. The code of NaN is all ones: adding one to it reaches the exponent's first bit.
    "f8e4m3": """
const u16x@N h = (u16x@N)convert_i8_i16_@N((i8x@N)x) << 7 & 0xbf80;
return decode_f16_@N(h | ((h + 0x80) & 0x4000)) * 256.0f;
""",
    "f8e4m3fnuz": """
const f32x@N r = decode_f16_@N((u16x@N)convert_i8_i16_@N((i8x@N)x) << 7 & 0xbf80) * 128.0f;
return select_f32_@N((u32x@N)r == 0x80000000u, (f32x@N)((u32x@N)r | 0x7fc00000u), r);
""",
    "f8e5m2": "return decode_f16_@N(convert_u8_u16_@N(x) << 8);",
    # A number without an exponent gets one that is taken off again.
    "f8e5m2fnuz": """
const u32x@N w = convert_u8_u32_@N(x), bits = (w & 127) << 21;
const f32x@N small = (f32x@N)(bits + 0x38000000u) - 0x1p-15f;
const f32x@N r = select_f32_@N(bits < 0x800000u, small, (f32x@N)(bits + 0x37800000u));
const u32x@N signed_bits = (u32x@N)r | (w & 128) << 24;
return select_f32_@N(w == 128, (f32x@N)(signed_bits | 0x7fc00000u), (f32x@N)signed_bits);
""",
    "f8e8m0": """
const u32x@N w = convert_u8_u32_@N(x);
const f32x@N r = select_f32_@N(w == 0u, (f32x@N)(w + 0x400000u), (f32x@N)(w << 23));
return select_f32_@N(w == 255u, (f32x@N)(w * 0u + 0x7fc00000u), r);
""",
}
"""Vectors of 8-bit floats as f32."""


def conversions() -> Iterator[tuple[str, LibraryFunction]]:
    """The functions by name."""
    for source in ELEMENTS:
        for target in ELEMENTS:
            if source != target:
                yield f"convert_{source}_{target}", _convert(source, target)
    yield "far_f32_i64", LibraryFunction("i64x@N", ("f32x@N x",), lane="(int64_t)x", rare=True)
    yield "ourcc_encode_f8", LibraryFunction("", (), raw=_ENCODE)
    yield from _brain_floats()
    yield from _halves()
    for name in ("f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "f8e8m0", "f4e2m1"):
        yield f"ourcc_decode_{name}", LibraryFunction("", (), raw=_table(name))
        one, argument = f"ourcc_decode_{name}(x)", ("u8x@N x",)
        if name in _DECODED:
            yield f"decode_{name}", LibraryFunction("f32x@N", argument, _DECODED[name], scalar=f"return {one};")
        else:
            yield f"decode_{name}", LibraryFunction("f32x@N", argument, lane=one)
    for name, (exponent, mantissa, bias, infinite, zero) in _SMALL.items():
        top = (1 << (exponent + mantissa)) - 1
        largest = top - (1 << mantissa) if infinite else top - 1 if zero else top
        over = largest + 1 if infinite else top if zero else 0x80
        nan = over + 2 if infinite else top if zero else 0x80
        code = f"ourcc_encode_f8(x, {mantissa}, {bias}, {largest}, {over}, {nan}, {int(zero)})"
        whole = _encoded(mantissa, bias, largest, over, nan, zero)
        yield f"encode_{name}", LibraryFunction("u8x@N", ("f32x@N x",), whole, scalar=f"return {code};")
        both = f"return decode_{name}_@N(encode_{name}_@N(x));"
        yield f"round_{name}", LibraryFunction("f32x@N", ("f32x@N x",), both, scalar=f"return ourcc_decode_{name}({code});")
    yield "encode_f8e8m0", LibraryFunction("u8x@N", ("f32x@N x",), _POWER)
    both = "return decode_f8e8m0_@N(encode_f8e8m0_@N(x));"
    yield "round_f8e8m0", LibraryFunction("f32x@N", ("f32x@N x",), both)


# Halfway between two powers of two is the larger one; 0, what is negative and what is too large are NaN.
_POWER = """
const u32x@N w = (u32x@N)x;
const f32x@N small = select_f32_@N(w > 0x400000u, (f32x@N)(w * 0u + 1u), (f32x@N)(w * 0u));
const f32x@N code = select_f32_@N(w < 0x800000u, small, (f32x@N)((w + 0x400000u) >> 23));
return convert_u32_u8_@N((u32x@N)select_f32_@N((w == 0u) | (w >= 0x7f400000u), (f32x@N)(w * 0u + 255u), code));
"""
_ROUND_BF16 = """
u32x@N b = (u32x@N)x;
u32x@N r = (b + 0x7fffu + ((b >> 16) & 1)) & 0xffff0000u;
return select_f32_@N(x == x, (f32x@N)r, (f32x@N)((b | 0x400000u) & 0xffff0000u));
"""
_FROM_F16 = """
static inline float ourcc_f16(uint16_t x) {
    _Float16 h;
    memcpy(&h, &x, 2);
    return (float)h;
}
"""
_TO_F16 = """
static inline uint16_t ourcc_to_f16(float x) {
    _Float16 h = (_Float16)x;
    uint16_t r;
    memcpy(&r, &h, 2);
    return r;
}
"""


def _brain_floats() -> Iterator[tuple[str, LibraryFunction]]:
    yield (
        "decode_bf16",
        LibraryFunction(
            "f32x@N",
            ("u16x@N x",),
            "return (f32x@N)(__builtin_convertvector(x, u32x@N) << 16);",
            scalar="return bits_u32_f32_1((uint32_t)x << 16);",
            # gcc widens halves of a vector and joins them again.
            fast={
                (16, "avx512f"): "(f32x16)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)x), 16)",
                (8, "avx2"): "(f32x8)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)x), 16)",
            },
        ),
    )
    # A value that is already rounded: its upper half is the bf16.
    yield (
        "encode_bf16",
        LibraryFunction(
            "u16x@N",
            ("f32x@N x",),
            "return __builtin_convertvector((u32x@N)x >> 16, u16x@N);",
            scalar="return (uint16_t)(bits_f32_u32_1(x) >> 16);",
        ),
    )
    yield (
        "round_bf16",
        LibraryFunction(
            "f32x@N",
            ("f32x@N x",),
            _ROUND_BF16,
        ),
    )
    # Both at once. The instruction takes what is below the normal range for 0, which is rare.
    hardware = """
__m256i r = (__m256i)_mm512_cvtneps_pbh((__m512)x);
if (__builtin_expect(_mm512_fpclass_ps_mask((__m512)x, 0x20), 0)) r = (__m256i)narrow_small_bf16_16(x);
return (u16x16)r;
"""
    both = "return encode_bf16_@N(round_bf16_@N(x));"
    yield (
        "narrow_bf16",
        LibraryFunction("u16x@N", ("f32x@N x",), both, scalar=both.replace("@N", "1"), fast={(16, "avx512_bf16"): hardware}),
    )
    fast = {(16, "avx512_bf16"): "(u16x16)_mm512_cvtneps_pbh((__m512)x)"}
    yield "narrow_normal_bf16", LibraryFunction("u16x@N", ("f32x@N x",), both, scalar=both.replace("@N", "1"), fast=fast)
    yield "narrow_small_bf16", LibraryFunction("u16x@N", ("f32x@N x",), both, rare=True)
    # Two rounded values beside each other, as words.
    halves = ("f32x@N x", "f32x@N y")
    yield "join_bf16", LibraryFunction("i32x@N", halves, "return (i32x@N)((u32x@N)x >> 16 | ((u32x@N)y & 0xffff0000));")


def _halves() -> Iterator[tuple[str, LibraryFunction]]:
    words = "__builtin_convertvector(encode_f16_@N(x), u32x@N) | __builtin_convertvector(encode_f16_@N(y), u32x@N) << 16"
    yield "join_f16", LibraryFunction("i32x@N", ("f32x@N x", "f32x@N y"), f"return (i32x@N)({words});")
    zero = "_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC"
    yield (
        "decode_f16",
        LibraryFunction(
            "f32x@N",
            ("u16x@N x",),
            lane="ourcc_f16(x)",
            fast={
                (16, "avx512f"): "(f32x16)_mm512_cvtph_ps((__m256i)x)",
                (8, "f16c"): "(f32x8)_mm256_cvtph_ps((__m128i)x)",
            },
        ),
    )
    yield (
        "encode_f16",
        LibraryFunction(
            "u16x@N",
            ("f32x@N x",),
            lane="ourcc_to_f16(x)",
            fast={
                (16, "avx512f"): f"(u16x16)_mm512_cvtps_ph((__m512)x, {zero})",
                (8, "f16c"): f"(u16x8)_mm256_cvtps_ph((__m256)x, {zero})",
            },
        ),
    )
    yield (
        "round_f16",
        LibraryFunction("f32x@N", ("f32x@N x",), "return decode_f16_@N(encode_f16_@N(x));", scalar="return decode_f16_1(encode_f16_1(x));"),
    )
    yield (
        "ourcc_f16",
        LibraryFunction("", (), raw=_FROM_F16),
    )
    yield (
        "ourcc_to_f16",
        LibraryFunction(
            "",
            (),
            raw=_TO_F16,
        ),
    )
    yield "narrow_f64_f16", LibraryFunction("f32x@N", ("f64x@N x",), lane="(float)(_Float16)x")


_BY_WORDS = "return __builtin_convertvector(__builtin_convertvector(x, i32x@N), i64x@N);"


def _convert(source: str, target: str) -> LibraryFunction:
    """Float to integer truncates and never traps, through i64 so that narrow types wrap; the rest is what C does."""
    args, result = (f"{source}x@N x",), f"{target}x@N"
    plain = f"({ELEMENTS[target][0]})x"
    if source[0] == "f" and target == "u64":
        high = "x >= 9223372036854775808.0"
        return LibraryFunction(
            result, args, lane=f"({high} ? (uint64_t)(int64_t)(x - 9223372036854775808.0) + 9223372036854775808u : (uint64_t)(int64_t)x)"
        )
    if source[0] == "f" and target[0] in "iu" and (target == "u32" or (source == "f64" and target != "i64")):
        return LibraryFunction(result, args, lane=f"({ELEMENTS[target][0]})(int64_t)x")
    if source == "f32" and target in ("i8", "u8", "i16", "u16"):
        body = f"return convert_i32_{target}_@N(__builtin_convertvector(x, i32x@N));"
        return LibraryFunction(result, args, body, scalar=f"return ({ELEMENTS[target][0]})(int32_t)x;")
    if (source, target) == ("f32", "i64"):
        # By way of 32 bits but where one instruction takes it to 64, or a number does not fit.
        whole = f"return __builtin_convertvector(x, {result});"
        text = f"if (any_i32_@N(~(abs_f32_@N(x) < 2147483648.0f))) return far_f32_i64_@N(x);\n{_BY_WORDS}"
        return LibraryFunction(result, args, text, scalar=f"return {plain};", fast={(n, "avx512dq"): whole for n in (4, 8, 16)})
    if source in ("i8", "u8") and target == "f32":
        return LibraryFunction(
            result, args, f"return __builtin_convertvector(convert_{source}_i32_@N(x), f32x@N);", scalar=f"return {plain};"
        )
    fast = _WHOLE.get((source, target), {})
    if {source[1:], target[1:]} == {"8", "64"} and "f" not in (source[0], target[0]):
        # By way of 32 bits, which are narrowed and widened at once.
        narrowed = f"convert_i32_{target}_@N(__builtin_convertvector(x, i32x@N))"
        text = narrowed if target.endswith("8") else f"__builtin_convertvector(convert_{source}_i32_@N(x), {result})"
        return LibraryFunction(result, args, f"return {text};", scalar=f"return {plain};")
    if source in ("i8", "u8") and target in ("i32", "u32"):
        body = f"return __builtin_convertvector(__builtin_convertvector(x, {source[0]}16x@N), {target}x@N);"
        return LibraryFunction(result, args, body, scalar=f"return {plain};", fast=fast)
    return LibraryFunction(result, args, f"return __builtin_convertvector(x, {result});", scalar=f"return {plain};", fast=fast)


# gcc takes vectors of bytes and of words apart, in halves or element by element, when it widens or narrows them.
def _in_one_instruction() -> Iterator[tuple[tuple[str, str], dict[tuple[int, str], str]]]:
    """By source and target: the conversion of a whole register, by lanes and feature; narrow integers wrap."""
    for narrow, wide in itertools.product(("i8", "u8", "i16", "u16"), ("i16", "u16", "i32", "u32")):
        bits, more = int(narrow[1:]), int(wide[1:])
        if bits >= more:
            continue
        sign = narrow.replace("i", "epi").replace("u", "epu")
        widened, narrowed = f"cvt{sign}_epi{more}", f"cvtepi{more}_epi{bits}"
        if more == 32:
            half = {8: "_mm_loadl_epi64((const __m128i *)&x)", 16: "(__m128i)x"}[bits]
            yield (
                (narrow, wide),
                {
                    (16, "avx512f"): f"({wide}x16)_mm512_{widened}({'(__m128i)' if bits == 8 else '(__m256i)'}x)",
                    (8, "avx2"): f"({wide}x8)_mm256_{widened}({half})",
                },
            )
            yield (wide, narrow), {(16, "avx512f"): f"({narrow}x16)_mm512_{narrowed}((__m512i)x)", (8, "avx2"): _kept_bytes(narrow, 4, 8)}
        else:
            eight = f"({wide}x8)_mm_{widened}(_mm_loadl_epi64((const __m128i *)&x))"
            yield (narrow, wide), {(16, "avx2"): f"({wide}x16)_mm256_{widened}((__m128i)x)", (8, "avx2"): eight}
            by_bytes = {(16, "avx512bw"): f"({narrow}x16)_mm256_{narrowed}((__m256i)x)", (16, "avx2"): _kept_bytes(narrow, 2, 16)}
            yield (wide, narrow), by_bytes | {(8, "avx2"): _kept_bytes(narrow, 2, 8)}


def _kept_bytes(narrow: str, size: int, lanes: int) -> str:
    """The low bytes of elements of `size` bytes, brought together in each half of a register, and the halves."""
    kept, count = int(narrow[1:]) // 8, 16 // size
    places = [size * element + byte for element in range(count) for byte in range(kept)]
    control = ", ".join(map(str, places + [-1] * (16 - len(places))))
    if size * lanes == 16:
        text = f"_mm_shuffle_epi8((__m128i)x, _mm_setr_epi8({control}))"
    else:
        text = (
            f"__m256i s = _mm256_shuffle_epi8((__m256i)x, _mm256_setr_epi8({control}, {control}));\n"
            f"__m128i r = _mm_unpacklo_epi{8 * len(places)}(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));\n"
        )
        return text + (f"return ({narrow}x{lanes})r;" if kept * lanes == 16 else f"return ({narrow}x{lanes})_mm_cvtsi128_si64(r);")
    return f"return ({narrow}x{lanes})_mm_cvtsi128_si64({text});"


_WHOLE = dict(_in_one_instruction())
