"""Tables instead of arithmetic: what is computed from a code of at most 6 bits is looked up among its numbers, and bytes among 256."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...ir.codes import LOOKUPS, mask_of, tabulate
from ...ir.tile.program import Full, Load, TileApply, TileType, Value
from ...ir.types import f32, i32
from .library import LibraryFunction

SIZE, HALF = 16, 8
"""Numbers of a register of AVX-512, or bytes of one, and of AVX2: so many lanes are looked up together."""
FEATURES = {SIZE: "avx512f", HALF: "avx2"}
"""By lanes what they are looked up with."""
DEARER = {16: 5, 32: 8, 64: 16}
"""By the numbers of a table the operations that a lookup of eight lanes stands for at least, which takes more instructions."""
BYTES = 256
"""Bytes that a byte looks one up among."""
_AMONG_BYTES = """
const __m512i *at = (const __m512i *)table;
__m512i code = _mm512_castsi256_si512(_mm256_cvtepu8_epi16((__m128i)x)), pair = _mm512_srli_epi16(code, 1);
__m512i low = _mm512_permutex2var_epi16(_mm512_loadu_si512(at), pair, _mm512_loadu_si512(at + 1));
__m512i high = _mm512_permutex2var_epi16(_mm512_loadu_si512(at + 2), pair, _mm512_loadu_si512(at + 3));
__m512i both = _mm512_mask_blend_epi16(_mm512_test_epi16_mask(pair, _mm512_set1_epi16(64)), low, high);
__m512i one = _mm512_srlv_epi16(both, _mm512_slli_epi16(_mm512_and_si512(code, _mm512_set1_epi16(1)), 3));
return (u8x16)_mm256_cvtepi16_epi8(_mm512_castsi512_si256(one));"""
"""Permutations move words: seven bits of a code say which, the lowest which half of it."""


def functions() -> dict[str, LibraryFunction]:
    """`lookup16_f32`, `lookup32_f32`, `lookup64_f32`: the elements that low bits of each lane say; `lookup16_whole_f32` and so on, where
    they are whole numbers of 8 bits; `lookup256_u8`.
    """
    pairs = [f"_mm512_permutex2var_ps((__m512){low}, (__m512i)x, (__m512){high})" for low, high in ("ab", "cd")]
    texts = {
        16: "_mm512_permutexvar_ps((__m512i)x, (__m512)a)",
        32: pairs[0],
        64: f"_mm512_mask_blend_ps(_mm512_test_epi32_mask((__m512i)x, _mm512_set1_epi32(32)), {', '.join(pairs)})",
    }
    one = {
        16: "a[x & 15]",
        32: "(x & 16 ? b : a)[x & 15]",
        64: "(x & 32 ? x & 16 ? d : c : x & 16 ? b : a)[x & 15]",
    }
    among_bytes = LibraryFunction(
        "u8x@N", ("const uint8_t *table", "u8x@N x"), lane="table[x]", fast={(SIZE, "avx512bw"): _AMONG_BYTES.strip()}
    )
    found = {f"lookup{BYTES}_u8": among_bytes}
    for count, text in texts.items():
        names = "abcd"[: count // SIZE]
        wide, narrow = ((*(f"{kind} {name}" for name in names), index) for kind, index in (("f32x16", "i32x@N x"), ("i8x16", "u8x@N x")))
        fast = {(SIZE, "avx512f"): f"return (f32x16){text};", (HALF, "avx2"): _by_halves(names)}
        found[f"lookup{count}_f32"] = LibraryFunction("f32x@N", wide, lane=one[count], fast=fast)
        whole = {(HALF, "avx2"): _by_bytes(names)}
        found[f"lookup{count}_whole_f32"] = LibraryFunction("f32x@N", narrow, lane=f"(float){one[count]}", fast=whole)
    return found


def _by_halves(names: str) -> str:
    """Eight lanes looked up among each half of tables by three bits; what the bits above say of these."""
    half = "_mm256_permutevar8x32_ps(_mm256_loadu_ps((const float *)&{} + {}), (__m256i)x)"
    found = [half.format(name, first) for name in names for first in (0, HALF)]
    chosen = _chosen(found, lambda n: f"(__m256)_mm256_slli_epi32((__m256i)x, {28 - n})", "_mm256_blendv_ps")
    return f"return (f32x8){chosen};"


def _by_bytes(names: str) -> str:
    """Eight bytes looked up among each table by four bits; what the bits above say of these, widened."""
    chosen = _chosen(
        [f"_mm_shuffle_epi8((__m128i){name}, i)" for name in names], lambda n: f"_mm_slli_epi16(i, {3 - n})", "_mm_blendv_epi8"
    )
    return f"__m128i i = _mm_cvtsi64_si128((int64_t)x);\nreturn (f32x8)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32({chosen}));"


def _chosen(found: list[str], sign: Callable[[int], str], blend: str) -> str:
    """One of these by the bits of the places: each halves them."""
    for n in range(len(found).bit_length() - 1):
        found = [f"{blend}({low}, {high}, {sign(n)})" for low, high in zip(found[::2], found[1::2], strict=True)]
    return found[0]


@dataclass(frozen=True)
class LookupTable:
    """A value as one of 16, 32 or 64 numbers, which a code of few bits says; so do the low bits of `index`."""

    code: Value
    index: Value
    numbers: tuple[float, ...]
    operations: int

    @property
    def is_whole(self) -> bool:
        """Whether the numbers are signed bytes, none of them the zero below zero."""
        return all(-128 <= number < 128 and number == int(number) and (number or math.copysign(1, number) > 0) for number in self.numbers)


def read_table(value: TileApply) -> LookupTable | None:
    """The table of a value that is computed from one code alone, and by more operations than a lookup takes."""
    found = tabulate(value, max(LOOKUPS)) if value.dtype == f32 else None
    if found is None:
        return None
    # The permutation looks at four bits: a code of fewer stands in the table as often as it has neighbours above it.
    numbers = np.tile(found.numbers, max(1, SIZE // len(found.numbers)))
    if found.operations < LOOKUPS[len(numbers).bit_length() - 1][0]:
        return None
    return LookupTable(found.code, widened(found.code), tuple(float(number) for number in numbers), found.operations)


def widened(code: Value) -> TileApply:
    """A code in lanes as wide as the numbers': the bits above those that it is masked to do not matter."""
    if not isinstance(code, TileApply) or not mask_of(code):
        return _cast(code)
    inner = next(arg for arg in code.args if not isinstance(arg, Full))
    if isinstance(inner, TileApply) and inner.primitive == "shift_right":
        byte, amount = inner.args
        if isinstance(byte, Load):
            return TileApply("shift_right", (_cast(byte), _cast(amount)), i32, type=TileType(i32, inner.type.axes))
    return _cast(inner)


def _cast(value: Value) -> TileApply:
    return TileApply("cast", (value,), i32, type=TileType(i32, value.type.axes))
