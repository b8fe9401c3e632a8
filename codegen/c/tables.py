"""Tables instead of arithmetic: what is computed from a code of at most 6 bits is looked up among its numbers, and bytes among 256."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...ir.codes import LOOKUPS, mask_of, tabulate
from ...ir.tile.program import Full, Load, TileApply, TileType, Value
from ...ir.types import f32, i32
from .library import LibraryFunction

SIZE = 16
"""Numbers that a register holds, and lanes that are looked up together."""
FEATURE = "avx512f"
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
    """`lookup16_f32`, `lookup32_f32`, `lookup64_f32`: the elements that low bits of each lane say; `lookup256_u8`."""
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
    return {f"lookup{BYTES}_u8": among_bytes} | {
        f"lookup{count}_f32": LibraryFunction(
            "f32x@N",
            (*(f"f32x{SIZE} {name}" for name in "abcd"[: count // SIZE]), "i32x@N x"),
            lane=one[count],
            fast={(SIZE, FEATURE): f"return (f32x16){text};"},
        )
        for count, text in texts.items()
    }


@dataclass(frozen=True)
class LookupTable:
    """A value as one of 16, 32 or 64 numbers; the low bits of `index` say which."""

    index: Value
    numbers: tuple[float, ...]


def read_table(value: TileApply) -> LookupTable | None:
    """The table of a value that is computed from one code alone, and by more operations than a lookup takes."""
    found = tabulate(value, max(LOOKUPS)) if value.dtype == f32 else None
    if found is None:
        return None
    # The permutation looks at four bits: a code of fewer stands in the table as often as it has neighbours above it.
    numbers = np.tile(found.numbers, max(1, SIZE // len(found.numbers)))
    if found.operations < LOOKUPS[len(numbers).bit_length() - 1][0]:
        return None
    return LookupTable(_wide(found.code), tuple(float(number) for number in numbers))


def _wide(code: Value) -> Value:
    """A code in lanes as wide as the numbers': the bits above those that it is masked to do not matter."""
    if not isinstance(code, TileApply) or not mask_of(code):
        return _cast(code)
    inner = next(arg for arg in code.args if not isinstance(arg, Full))
    if isinstance(inner, TileApply) and inner.primitive == "shift_right":
        byte, amount = inner.args
        if isinstance(byte, Load):
            return TileApply("shift_right", (_cast(byte), _cast(amount)), i32, type=TileType(i32, inner.type.axes))
    return _cast(inner)


def _cast(value: Value) -> Value:
    return TileApply("cast", (value,), i32, type=TileType(i32, value.type.axes))
