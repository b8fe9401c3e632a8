"""Library functions below arithmetic: loads, stores, splats, selects, comparisons and folds over lanes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from ...ir.codes import FOUR
from ...ir.errors import UnsupportedError
from ...ir.types import DType
from .conversions import conversions
from .library import ELEMENTS, LibraryFunction

STORAGE = {
    **{name: name for name in ELEMENTS},
    **{"f16": "u16", "bf16": "u16", "bool": "u8", "f8e4m3": "u8", "f8e5m2": "u8", "f8e4m3fnuz": "u8", "f8e5m2fnuz": "u8", "f8e8m0": "u8"},
    **{"i4": "u8", "u4": "u8", "i2": "u8", "u2": "u8", "f4e2m1": "u8"},
}
"""The integer or float that an element type is stored as; types below a byte share one."""

TURNED = ("f32", "i32", "u32")
"""Registers of 32 bits, whose squares are turned: as many vectors as they have lanes, rows for columns."""

_REGISTER = {
    **dict.fromkeys(("f16", "bf16", "f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "f8e8m0", "f4e2m1"), "f32"),
    **{"bool": "i32", "i4": "i8", "i2": "i8", "u4": "u8", "u2": "u8"},
}


def register(dtype: DType) -> str:
    """The element type that `dtype` has in registers: small floats are f32 holding a representable value, bools i32."""
    name = _REGISTER.get(dtype.name, dtype.name)
    if name not in ELEMENTS:
        raise UnsupportedError(f"the c printer has no arithmetic for {dtype}", hint="lower it to real types before tiling")
    return name


def is_small_float(dtype: DType) -> bool:
    """Whether values are kept as f32 and rounded to `dtype` after every operation."""
    return dtype.is_float and dtype.bits < 32


def basics() -> dict[str, LibraryFunction]:
    """All of them by name."""
    return {**dict(_moves()), **dict(_bits()), **dict(_compare()), **dict(_folds()), **dict(conversions())}


_SPAN = """
static inline uint32_t ourcc_span(int64_t low, int64_t high, int lanes) {
    uint32_t upto = high >= lanes ? (lanes == 32 ? 0xffffffffu : (1u << lanes) - 1) : high <= 0 ? 0 : (1u << high) - 1;
    uint32_t below = low <= 0 ? 0 : low >= lanes ? 0xffffffffu : (1u << low) - 1;
    return upto & ~below;
}
"""

_MASKED = {
    # storage: (bits, intrinsic suffix, element type of the vector); f32 and f64 have types of their own
    "f32": ("ps", "float"),
    "f64": ("pd", "double"),
    "i32": ("epi32", "int"),
    "u32": ("epi32", "int"),
    "i64": ("epi64", "int"),
    "u64": ("epi64", "int"),
    "i16": ("epi16", "int"),
    "u16": ("epi16", "int"),
    "i8": ("epi8", "int"),
    "u8": ("epi8", "int"),
}


def _intrinsics(name: str) -> tuple[dict[tuple[int, str], str], dict[tuple[int, str], str]]:
    """Masked loads and stores of AVX-512 (and AVX2 for 32-bit elements), by lanes and feature."""
    suffix, kind = _MASKED[name]
    size = ELEMENTS[name][1]
    loads: dict[tuple[int, str], str] = {}
    stores: dict[tuple[int, str], str] = {}
    for lanes in (4, 8, 16):
        bits = lanes * size * 8
        if bits not in (128, 256, 512):
            continue
        prefix = "_mm" if bits == 128 else f"_mm{bits}"
        register_type = f"__m{bits}" + {"float": "", "double": "d", "int": "i"}[kind]
        span = f"ourcc_span(low, high, {lanes})"
        loads[lanes, "avx512vl"] = f"({name}x{lanes}){prefix}_mask_loadu_{suffix}(({register_type})other, {span}, p)"
        stores[lanes, "avx512vl"] = f"{prefix}_mask_storeu_{suffix}(p, {span}, ({register_type})x); return;"
    if name in ("f32", "i32", "u32"):
        low, high = (f"(int32_t)({side} < 0 ? 0 : {side} > 8 ? 8 : {side})" for side in ("low", "high"))
        mask = f"i32x8 l = {{0, 1, 2, 3, 4, 5, 6, 7}};\ni32x8 m = (l >= {low}) & (l < {high});"
        vector, cast = ("ps", "__m256") if kind == "float" else ("epi32", "__m256i")
        pointer = "const float *" if kind == "float" else "const int *"
        loads[8, "avx2"] = (
            f"{mask}\n{name}x8 r = ({name}x8)_mm256_maskload_{vector}(({pointer})p, (__m256i)m);\nreturn select_{name}_8(m, r, other);"
        )
        stores[8, "avx2"] = f"{mask}\n_mm256_maskstore_{vector}(({pointer[6:]})p, (__m256i)m, ({cast})x);\nreturn;"
    return loads, stores


def _moves() -> Iterator[tuple[str, LibraryFunction]]:
    yield "ourcc_span", LibraryFunction("", (), raw=_SPAN)
    for name, (element, _) in ELEMENTS.items():
        loads, stores = _intrinsics(name)
        v = f"{name}x@N"
        yield f"load_{name}", LibraryFunction(v, (f"const {element} *p",), f"return *(const {name}x@Nu *)p;", scalar="return *p;")
        yield f"store_{name}", LibraryFunction("void", (f"{element} *p", f"{v} x"), f"*({name}x@Nu *)p = x;", scalar="*p = x;")
        second = functools.partial(_every_second, name)
        part = functools.partial(_every_second_part, name)
        span = (f"const {element} *p", "int64_t low", "int64_t high", f"{v} other")
        yield f"load_second_part_{name}", LibraryFunction(v, span, part, scalar="return low <= 0 && high >= 1 ? *p : other;")
        yield f"load_second_{name}", LibraryFunction(v, (f"const {element} *p",), second, scalar="return *p;")
        yield (
            f"load_part_{name}",
            LibraryFunction(
                v,
                (f"const {element} *p", "int64_t low", "int64_t high", f"{v} other"),
                f"if (low <= 0 && high >= @N) return load_{name}_@N(p);\n"
                "for (int l = 0; l < @N; ++l) if (l >= low && l < high) other[l] = p[l];\nreturn other;",
                scalar="return low <= 0 && high >= 1 ? *p : other;",
                fast=loads,
            ),
        )
        yield (
            f"store_part_{name}",
            LibraryFunction(
                "void",
                (f"{element} *p", "int64_t low", "int64_t high", f"{v} x"),
                f"if (low <= 0 && high >= @N) {{ store_{name}_@N(p, x); return; }}\n"
                "for (int l = 0; l < @N; ++l) if (l >= low && l < high) p[l] = x[l];",
                scalar="if (low <= 0 && high >= 1) *p = x;",
                fast=stores,
            ),
        )
        yield f"splat_{name}", LibraryFunction(v, (f"{element} x",), functools.partial(_listed, v, "x"), scalar="return x;")
        mask = _mask(name, "m")
        yield (
            f"select_{name}",
            LibraryFunction(
                v,
                ("i32x@N m", f"{v} x", f"{v} y"),
                f"{_integer(name)}x@N w = {mask};\nreturn ({v})((w & ({_integer(name)}x@N)x) | (~w & ({_integer(name)}x@N)y));",
                scalar="return m ? x : y;",
            ),
        )
        yield f"iota_{name}", LibraryFunction(v, (), functools.partial(_listed, v, ""), scalar="return 0;")
    for name in TURNED:
        yield f"turn_{name}", LibraryFunction("void", (f"{name}x@N *v",), _turn)
    for name in ("i8", "u8"):
        yield f"turn_words_{name}", LibraryFunction("void", (f"{name}x@N *v", "i32x@N *w"), _turn_words)
        words = " | ".join(f"(u32x@N)convert_u8_i32_@N((u8x@N){byte}) << {8 * n}" for n, byte in enumerate("abcd"))
        yield f"join_{name}", LibraryFunction("i32x@N", tuple(f"{name}x@N {byte}" for byte in "abcd"), f"return (i32x@N)({words});")


def _turn(lanes: int) -> str:
    """As many vectors as they have lanes, the rows of a square, become its columns."""
    lines, columns = _turned([f"v[{row}]" for row in range(lanes)], 1)
    return "\n".join([*lines, *(f"v[{row}] = {column};" for row, column in enumerate(columns))])


def _turned(rows: Sequence[str], width: int) -> tuple[list[str], list[str]]:
    """(lines, the names of the columns) of a square of blocks of `width` lanes: those off the diagonal change places, then halves do."""
    lines, side, found = [], len(rows), list(rows)
    size = side // 2
    while size:
        kept = [block if not block & size else side + block - size for block in range(side)]
        given = [block + size if not block & size else side + block for block in range(side)]
        orders = [", ".join(str(width * block + lane) for block in order for lane in range(width)) for order in (kept, given)]
        for row in (row for row in range(side) if not row & size):
            pair = found[row], found[row + size]
            for place, order in zip((row, row + size), orders, strict=True):
                found[place] = f"r{size}_{place}"
                words = f"(i32x{side * width}){{{order}}}"
                lines.append(f"const __typeof__({pair[0]}) {found[place]} = __builtin_shuffle({pair[0]}, {pair[1]}, {words});")
        size //= 2
    return lines, found


def _turn_words(lanes: int) -> str:
    """As many vectors of bytes as they have lanes, the rows of a square: each four neighbours of a row become a word of a column."""
    lines, words, rows = [], lanes // FOUR, []
    for number in range(words):
        texts = [f"v[{FOUR * number + row}]" for row in range(FOUR)]
        while len(texts) > 1:
            order = ", ".join(map(str, range(2 * lanes * FOUR // len(texts))))
            texts = [f"__builtin_shufflevector({left}, {right}, {order})" for left, right in zip(texts[::2], texts[1::2], strict=True)]
        lines.append(f"const i32x{lanes} a{number} = (i32x{lanes}){texts[0]};")
        rows.append(f"b{number}")
        order = ", ".join(str(row * words + word) for word in range(words) for row in range(FOUR))
        lines.append(f"const i32x{lanes} b{number} = __builtin_shuffle(a{number}, (i32x{lanes}){{{order}}});")
    turned, columns = _turned(rows, FOUR)
    return "\n".join([*lines, *turned, *(f"w[{word}] = {column};" for word, column in enumerate(columns))])


def _every_second(name: str, lanes: int) -> str:
    """p[0], p[2], p[4], ... from two vectors that read nothing past the last of them."""
    order = _second_order(lanes)
    loads = f"load_{name}_{lanes}(p), load_{name}_{lanes}(p + {lanes - 1})"
    return f"return __builtin_shufflevector({loads}, {order});"


def _second_order(lanes: int) -> str:
    return ", ".join(str(2 * lane if lane < lanes // 2 else 2 * lane + 1) for lane in range(lanes))


def _every_second_part(name: str, lanes: int) -> str:
    """The same for low <= lane < high; nothing else is read, other lanes keep `other`."""
    part = f"load_part_{name}_{lanes}"
    return f"""{name}x@N a = {part}(p, 2 * low, 2 * high - 1, other);
{name}x@N b = {part}(p + {lanes - 1}, 2 * low - {lanes - 1}, 2 * high - {lanes}, other);
i32x@N l = iota_i32_@N(), from = splat_i32_@N(low < 0 ? 0 : low > 99 ? 99 : (int32_t)low);
i32x@N m = (l >= from) & (l < splat_i32_@N(high < 0 ? 0 : high > 99 ? 99 : (int32_t)high));
return select_{name}_@N(m, __builtin_shufflevector(a, b, {_second_order(lanes)}), other);""".replace("@N", str(lanes))


def _listed(vector: str, element: str, lanes: int) -> str:
    """A vector of `lanes` copies of `element`, or of 0, 1, 2, ..."""
    return f"return ({vector}){{{', '.join(element or str(lane) for lane in range(lanes))}}};"


def _integer(name: str) -> str:
    """The signed integer type as wide as `name`."""
    return f"i{ELEMENTS[name][1] * 8}"


def _mask(name: str, mask: str) -> str:
    """An i32 mask as wide as the elements of `name`."""
    wide = _integer(name)
    return mask if wide == "i32" else f"__builtin_convertvector({mask}, {wide}x@N)"


def _bits() -> Iterator[tuple[str, LibraryFunction]]:
    for source in ELEMENTS:
        for target in ELEMENTS:
            if source != target and ELEMENTS[source][1] == ELEMENTS[target][1]:
                yield (
                    f"bits_{source}_{target}",
                    LibraryFunction(
                        f"{target}x@N",
                        (f"{source}x@N x",),
                        f"return ({target}x@N)x;",
                        scalar=f"{ELEMENTS[target][0]} r;\nmemcpy(&r, &x, sizeof r);\nreturn r;",
                    ),
                )


def _compare() -> Iterator[tuple[str, LibraryFunction]]:
    for name in ELEMENTS:
        for operator, symbol in (("lt", "<"), ("le", "<="), ("eq", "=="), ("ne", "!=")):
            body = f"return x {symbol} y;" if _integer(name) == "i32" else f"return __builtin_convertvector(x {symbol} y, i32x@N);"
            pair = (f"{name}x@N x", f"{name}x@N y")
            yield f"{operator}_{name}", LibraryFunction("i32x@N", pair, body, scalar=f"return -(x {symbol} y);", halves=True)


def _folds() -> Iterator[tuple[str, LibraryFunction]]:
    """Folds over the lanes as a tree of halves: one order for each lane count."""

    def steps(name: str, step: str, lanes: int) -> str:
        lines, half = [], lanes // 2
        while half:
            order = ", ".join(str((lane + half) % lanes) for lane in range(lanes))
            lines += [f"y = __builtin_shufflevector(x, x, {order});", f"x = {step};"]
            half //= 2
        return "\n".join([f"{name}x@N y;", *lines, "return x[0];"])

    def tree(name: str, step: str, kind: str = "") -> LibraryFunction:
        fast = {}
        if kind and name in ("f32", "f64"):
            # Where no lane is NaN, which one instruction tells, one keeps the larger of two.
            lanes, tail, type_ = (16, "ps", "__m512") if name == "f32" else (8, "pd", "__m512d")
            test = f"if (__builtin_expect(_mm512_cmp_{tail}_mask(({type_})x, ({type_})x, _CMP_UNORD_Q), 0)) return NAN;\n"
            fast = {(lanes, "avx512f"): test + steps(name, f"{kind}_number_{name}_@N(x, y)", lanes)}
        return LibraryFunction(ELEMENTS[name][0], (f"{name}x@N x",), functools.partial(steps, name, step), scalar="return x;", fast=fast)

    for name in ELEMENTS:
        yield f"fold_sum_{name}", tree(name, "x + y")
        yield f"fold_prod_{name}", tree(name, "x * y")
        yield f"fold_max_{name}", tree(name, f"max_{name}_@N(x, y)", "max")
        yield f"fold_min_{name}", tree(name, f"min_{name}_@N(x, y)", "min")
    yield "fold_any_i32", tree("i32", "x | y")
    yield "fold_all_i32", tree("i32", "x & y")
    # Whether a lane of a mask is set: a number that is not 0.
    signs = {(8, "avx2"): "_mm256_movemask_ps((__m256)x)", (4, "avx2"): "_mm_movemask_ps((__m128)x)"}
    signs[16, "avx512dq"] = "_mm512_movepi32_mask((__m512i)x)"
    yield "any_i32", LibraryFunction("int", ("i32x@N x",), "return fold_any_i32_@N(x);", scalar="return x;", fast=signs)
