"""Functions whose argument is cut into pieces, each with a polynomial of its own: coefficients are looked up in registers.

It pays where a register holds sixteen lanes and one instruction looks sixteen numbers up in a table of two registers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

_PIECES, _DEGREE = 32, 4
# 2 ulp. The lowest bits of the sum with 1.5 * 2**20 are the number of the nearest eighth; a NaN stays one, since the
# smaller of two operands is the second one then.
_ERF_PIECES = """
f32x16 a = (f32x16)((i32x16)x & 0x7fffffff);
a = (f32x16)_mm512_min_ps(_mm512_set1_ps(3.9f), (__m512)a);
f32x16 m = a + 1572864.0f;
f32x16 r = a - (m - 1572864.0f);
i32x16 i = (i32x16)m;
f32x16 p = {4};
p = fma_f32_16(p, r, {3});
p = fma_f32_16(p, r, {2});
p = fma_f32_16(p, r, {1});
p = fma_f32_16(p, r, {0} + r);
return (f32x16)(((i32x16)p & 0x7fffffff) | ((i32x16)x & (int32_t)0x80000000));
"""


# Where 16 bits are read: x times the area under the normal curve up to x, of which the part below 0 is in the pieces of 3/16,
# so that far below 0 errors are relative to what is left. Beyond 5.7 it is 0, as it is for 1 + erf in f32.
_GELU_PIECES = """
f32x16 a = (f32x16)((i32x16)x & 0x7fffffff);
a = (f32x16)_mm512_min_ps(_mm512_set1_ps(5.8125f), (__m512)a);
f32x16 m = fma_f32_16(a, splat_f32_16(5.33333333f), splat_f32_16(12582912.0f));
f32x16 r = fma_f32_16(m - 12582912.0f, splat_f32_16(-0.1875f), a);
i32x16 i = (i32x16)m;
f32x16 p = {3};
p = fma_f32_16(p, r, {2});
p = fma_f32_16(p, r, {1});
p = fma_f32_16(p, r, {0});
__mmask16 above = _mm512_cmp_ps_mask((__m512)x, _mm512_setzero_ps(), _CMP_GT_OQ);
return x * (f32x16)_mm512_mask_sub_ps((__m512)p, above, _mm512_set1_ps(1.0f), (__m512)p);
"""


@functools.cache
def erf_in_pieces() -> Mapping[tuple[int, str], str]:
    """erf by lanes and feature."""
    return _by_lanes("erf", _looked_up(_ERF_PIECES, [_erf_piece(n) for n in range(_PIECES)]))


@functools.cache
def gelu_in_pieces() -> Mapping[tuple[int, str], str]:
    """gelu_narrow by lanes and feature."""
    return _by_lanes("gelu_narrow", _looked_up(_GELU_PIECES, [_gelu_piece(n) for n in range(_PIECES)]))


def _by_lanes(name: str, body: str) -> Mapping[tuple[int, str], str]:
    """Few lanes are taken as part of sixteen, so that an element is the same wherever it lies."""
    return {
        (16, "avx512f"): body,
        (8, "avx512f"): f"(f32x8)_mm512_castps512_ps256((__m512){name}_f32_16((f32x16)_mm512_castps256_ps512((__m256)x)))",
        (4, "avx512f"): f"(f32x4)_mm512_castps512_ps128((__m512){name}_f32_16((f32x16)_mm512_castps128_ps512((__m128)x)))",
        (1, "avx512f"): f"{name}_f32_16((f32x16)_mm512_set1_ps(x))[0]",
    }


def _looked_up(body: str, pieces: Sequence[Sequence[float]]) -> str:
    """A body with its coefficients, lowest first, each looked up by the number of a piece."""
    found = []
    for power in range(len(pieces[0])):
        numbers = [f"{float(np.float32(piece[power])).hex()}f" for piece in pieces]
        halves = (f"(__m512)(f32x16){{{', '.join(half)}}}" for half in (numbers[:16], numbers[16:]))
        found.append("(f32x16)_mm512_permutex2var_ps({}, (__m512i)i, {})".format(*halves))
    return body.format(*found)


def _gelu_piece(number: int) -> list[float]:
    """Coefficients of the area below -(3 number / 16 + r) on +-3/32, lowest first."""
    degree, radius = 3, 3 / 32
    if number == _PIECES - 1:
        return [0.0] * (degree + 1)
    nodes = [radius * math.cos(math.pi * (n + 0.5) / (degree + 1)) for n in range(degree + 1)]
    return _through(nodes, [math.erfc((number * 3 / 16 + r) * math.sqrt(0.5)) / 2 for r in nodes])


def _erf_piece(number: int) -> list[float]:
    """Coefficients of erf(number / 8 + r) - r on +-1/16, lowest first: the others make up for what rounding the lowest one took, which
    counts where the sum is half of it. The first piece has no r below 0.
    """
    nodes = [math.cos(math.pi * (n + 0.5) / _DEGREE) / 16 for n in range(_DEGREE)]
    nodes = [(r + 1 / 16) / 2 for r in nodes] if number == 0 else nodes
    lowest = float(np.float32(math.erf(number / 8)))
    return [lowest, *_through(nodes, [(math.erf(number / 8 + r) - r - lowest) / r for r in nodes])]


def _through(nodes: Sequence[float], values: Sequence[float]) -> list[float]:
    """Coefficients, lowest first, of the polynomial that has these values at these nodes (Newton's divided differences)."""
    differences = list(values)
    for order in range(1, len(nodes)):
        for n in range(len(nodes) - 1, order - 1, -1):
            differences[n] = (differences[n] - differences[n - 1]) / (nodes[n] - nodes[n - order])
    result: list[float] = []
    for node, difference in zip(reversed(nodes), reversed(differences), strict=True):
        result = [below - node * here for below, here in zip([0.0, *result], [*result, 0.0], strict=True)]
        result[0] += difference
    return result
