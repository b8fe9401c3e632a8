"""Products in groups, four of 8-bit integers or two of bf16 or f16 at a time: what a dot streams that lies so, as 32-bit lanes.

Bytes on the right may be computed from what is loaded, four at once as well (lanes.py).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...ir.codes import FOUR, bounds, dtype_of
from ...ir.dims import Dim
from ...ir.tile.program import Dot, Expand2to4, Load, TileApply, Value
from ...ir.types import DType, bf16, f16, f32, i8, i32, u8
from .access import Spot
from .lanes import are_bytes, lie_together, neighbours, spread
from .library import LibraryFunction
from .values import Values

_PAIR = """
f32x@N r = fma_f32_@N((f32x@N)(x << 16), (f32x@N)(w << 16), acc);
return fma_f32_@N((f32x@N)(x & 0xffff0000), (f32x@N)(w & 0xffff0000), r);
"""
_PAIR_WIDE = """
f32x@N r = fma_f32_@N(x, (f32x@N)(w << 16), acc);
return fma_f32_@N(y, (f32x@N)(w & 0xffff0000), r);
"""
_PAIR_F16 = """
f32x@N r = fma_f32_@N(decode_f16_@N(convert_i32_u16_@N(x)), decode_f16_@N(convert_i32_u16_@N(w)), acc);
return fma_f32_@N(decode_f16_@N(convert_i32_u16_@N(x >> 16)), decode_f16_@N(convert_i32_u16_@N(w >> 16)), r);
"""
# As the manual has it: the upper product first; what is smaller than normal numbers is read and written as 0.
_DOT = """
f32x@N r = fma_f32_@N(flush_f32_@N((f32x@N)(x & 0xffff0000)), flush_f32_@N((f32x@N)(w & 0xffff0000)), flush_f32_@N(acc));
return flush_f32_@N(fma_f32_@N(flush_f32_@N((f32x@N)(x << 16)), flush_f32_@N((f32x@N)(w << 16)), flush_f32_@N(r)));
"""
_FLUSH = """
i32x@N b = (i32x@N)x;
return (f32x@N)(b & (0x80000000 | ((b & 0x7f800000) != 0)));
"""

WIDE = "pair_wide"
"""What multiplies pairs of bf16 by floats that are none."""
PAIRS = "pairs"
"""The precision of products whose sums of two fit 16 bits, whatever each of them is."""
SMALL = 127
"""The greatest unsigned byte of which two products by signed ones always fit 16 bits."""


def functions() -> dict[str, LibraryFunction]:
    """What adds four products of bytes to each 32-bit lane, exactly; unsigned (`dot4_u8`), small (`dot4_u7`) or signed ones (`dot4_i8`)
    on the left, or unsigned ones that are said to fit in pairs (`dot4_pairs`).

    Where there is no instruction for it, even and odd bytes are widened to 16 bits and multiplied in pairs; small ones need not be
    widened, since two products of them fit 16 bits (`vpmaddubsw` saturates others). Two products of
    bf16 or f16 are added one after the other (`pair_bf16`, `pair_f16`; `pair_wide`, where the left ones are wide already), or those of
    bf16 as the instruction does it (`vdpbf16ps`, with its model).
    """
    found = {}
    for dtype in ("u8", "u7", PAIRS, "i8"):
        fast: dict[tuple[int, str], str] = {}
        if dtype != "i8":
            fast = {(lanes, "avx512_vnni"): _accumulated("vpdpbusd") for lanes in (16, 8)}
            # Its encoding of AVX-512 is what assemblers take where they may.
            fast[8, "avx_vnni"] = _accumulated("%{vex%} vpdpbusd")
        for lanes, prefix, register, feature in ((16, "_mm512", "__m512i", "avx512bw"), (8, "_mm256", "__m256i", "avx2")):
            even = f"{prefix}_srai_epi16({prefix}_slli_epi16(%s, 8), 8)"
            odd = f"{prefix}_srai_epi16(%s, 8)"
            left = (even % "l", odd % "l")
            if dtype == "u8":
                left = (f"{prefix}_and_si{prefix[3:]}(l, {prefix}_set1_epi16(255))", f"{prefix}_srli_epi16(l, 8)")
            if dtype in ("u7", PAIRS):
                pairs = f"{prefix}_maddubs_epi16(({register})x, ({register})w)"
                fast[lanes, feature] = f"return acc + (i32x{lanes}){prefix}_madd_epi16({pairs}, {prefix}_set1_epi16(1));"
                continue
            fast[lanes, feature] = (
                f"{register} l = ({register})x, r = ({register})w;\n"
                f"{register} a = {prefix}_madd_epi16({left[0]}, {even % 'r'});\n"
                f"{register} b = {prefix}_madd_epi16({left[1]}, {odd % 'r'});\n"
                f"return acc + (i32x{lanes})a + (i32x{lanes})b;"
            )
        found[f"dot4_{dtype}"] = LibraryFunction(
            "i32x@N", ("i32x@N acc", "i32x@N x", "i32x@N w"), functools.partial(_plain, dtype != "i8"), fast=fast
        )
    vectors = ("f32x@N acc", "i32x@N x", "i32x@N w")
    dots = {(lanes, "avx512_bf16"): _accumulated("vdpbf16ps") for lanes in (16, 8, 4)}
    found["pair_bf16"] = LibraryFunction("f32x@N", vectors, _PAIR)
    found[WIDE] = LibraryFunction("f32x@N", ("f32x@N acc", "f32x@N x", "f32x@N y", "i32x@N w"), _PAIR_WIDE)
    found["pair_f16"] = LibraryFunction("f32x@N", vectors, _PAIR_F16)
    found["vdpbf16ps"] = LibraryFunction("f32x@N", vectors, _DOT, fast=dots)
    for dtype, *features in (("f32", "avx512_bf16"), ("i32", "avx512_vnni", "avx_vnni")):
        kept = {(lanes, feature): '__asm__("" : "+v"(x));\nreturn x;' for feature in features for lanes in (16, 8, 4)}
        found[f"settled_{dtype}"] = LibraryFunction(f"{dtype}x@N", (f"{dtype}x@N x",), "return x;", fast=kept)
    found["flush_f32"] = LibraryFunction("f32x@N", ("f32x@N x",), _FLUSH)
    return found


def _accumulated(instruction: str) -> str:
    """An instruction that adds to `acc`. gcc keeps accumulators of its intrinsics in memory, those of assembly in registers."""
    return f'__asm__("{instruction} %2, %1, %0" : "+v"(acc) : "v"(x), "v"(w));\nreturn acc;'


def _plain(unsigned: bool, lanes: int) -> str:
    """The products one after the other, in whatever vectors there are."""
    lines = []
    for byte in range(FOUR):
        left = f"(x >> {8 * byte} & 255)" if unsigned else f"(x << {24 - 8 * byte} >> 24)"
        lines.append(f"acc += {left} * (w << {24 - 8 * byte} >> 24);")
    return "\n".join([*lines, "return acc;"])


@dataclass(frozen=True)
class Quads:
    """A dot that is taken in groups of `count`: its two sides, and the function of the library that multiplies them.

    Instructions want unsigned bytes first: where these are on the right the sides are `turned`.
    """

    left: Load
    right: Value
    function: str
    count: int
    turned: bool = False


def read_quads(values: Values, value: Dot) -> Quads | None:
    """The sides of a dot of 8-bit integers in 32 bits, one of them signed, or of bf16 or f16 in f32; None if it is another."""
    left, right = widened_load(value.left), widened_load(value.right)
    if left is None:
        return None
    codes = _widened(value.right)
    types = left.type.dtype, None if right is None else right.type.dtype, value.type.dtype
    if right is not None and types == (bf16, bf16, f32):
        has_dots = any(each.name == "vdpbf16ps" for each in values.library.level.instructions)
        return Quads(left, right, "vdpbf16ps" if has_dots else "pair_bf16", 2)
    if right is not None and types == (f32, bf16, f32):
        return Quads(left, right, WIDE, 2)
    if right is not None and types == (f16, f16, f32):
        return Quads(left, right, "pair_f16", 2)
    if right is not None and types[0] in (i8, u8) and types[1:] == (i8, i32):
        return Quads(left, right, f"dot4_{PAIRS if value.precision == PAIRS else left.type.dtype}", FOUR)
    if types[0] in (i8, u8) and value.type.dtype == i32 and isinstance(codes, Expand2to4) and codes.type.dtype == i8:
        return Quads(left, codes, f"dot4_{left.type.dtype}", FOUR)
    if types[0] != i8 or value.type.dtype != i32 or dtype_of(codes) != u8 or not are_bytes(values, codes):
        return None
    known = bounds(codes)
    return Quads(left, codes, "dot4_u7" if known is not None and known[1] <= SMALL else "dot4_u8", FOUR, turned=True)


def _widened(value: Value) -> Value:
    """What the cast that widens it is of."""
    return value.args[0] if isinstance(value, TileApply) and value.primitive == "cast" else value


def widened_load(value: Value) -> Load | None:
    """The load behind the cast that widens it."""
    inner = _widened(value)
    return inner if isinstance(inner, Load) else None


def fits(values: Values, found: Quads, spots: Sequence[Spot], axis: str, first: Dim) -> bool:
    """Whether both factors have neighbours in memory from `first` on, whole and under the same tests, at all spots; or the one that has
    to have them.
    """
    sides = (found.right,) if found.function == WIDE else (found.left, found.right)
    return all(lie_together(values, side, [(spot, first) for spot in spots], axis, found.count) for side in sides)


def multiply(values: Values, found: Quads, spots: Sequence[Spot], names: Sequence[str], axis: str, first: Dim) -> None:
    """Add a group of products to each lane of each running vector."""
    for spot, name in zip(spots, names, strict=True):
        right = spread(values, neighbours(values, found.right, spot, axis, first, found.count), spot.lanes)
        if found.function == WIDE:
            places = [replace(spot, positions={**spot.positions, axis: first + n}) for n in range(found.count)]
            wide = [values.spread(f32, values.vector(found.left, place), spot.lanes) for place in places]
            values.writer.line(f"{name} = {values.library.call(found.function, spot.lanes, name, *wide, right)};")
            continue
        left = spread(values, neighbours(values, found.left, spot, axis, first, found.count), spot.lanes)
        sides = (right, left) if found.turned else (left, right)
        values.writer.line(f"{name} = {values.library.call(found.function, spot.lanes, name, *sides)};")


def settle(values: Values, dtype: DType, spots: Sequence[Spot], names: Sequence[str]) -> None:
    """Say after the loop that sums of this dtype stay as they are; else gcc joins them with what is made of them, in memory."""
    for spot, name in zip(spots, names, strict=True):
        values.writer.line(f"{name} = {values.library.call(f'settled_{dtype}', spot.lanes, name)};")
