"""Small tile programs, each for one form of the printed C: the same results as the tile interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ourcc.ir import types
from ourcc.ir.dims import NO_FACTS, Facts
from ourcc.ir.target import CpuLevel
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.parse import parse

Array = Any
Runner = Callable[..., dict[str, Array]]


def normal(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(low: int, high: int, *shape: int, dtype: Any = np.int64, seed: int = 2) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


# name: (text, inputs, symbols). Tolerances: floats within a few units of the interpreter's own rounding.
PROGRAMS: dict[str, tuple[str, dict[str, Array], dict[str, int]]] = {
    "softmax over whole rows": (
        """
        program @p symbols { N, S } {
          launch @p(%x: f32[i N, j S], %y: out f32[i N, j S]) {
            grid (i: 0..N step 4) {
              axis j in 0..S extent 80
              %value = load %x[i, j] else -inf : f32[i, j]
              %m = reduce max j (%value) : f32[i]
              %p = exp(sub(%value, %m) : f32[i, j]) : f32[i, j]
              %l = reduce sum j (%p) : f32[i]
              store %y[i, j] = div(%p, %l) : f32[i, j]
            }
          }
        }
        """,
        {"x": normal(7, 77)},
        {"N": 7, "S": 77},
    ),
    "softmax over long rows in memory": (
        """
        program @p symbols { N, S } {
          launch @p(%x: f32[i N, j S], %y: out f32[i N, j S]) {
            grid (i: 0..N step 2) {
              axis j in 0..S extent 500
              %value = load %x[i, j] else -inf : f32[i, j]
              %p = exp(sub(%value, reduce max j (%value) : f32[i]) : f32[i, j]) : f32[i, j]
              store %y[i, j] = div(%p, reduce sum j (%p) : f32[i]) : f32[i, j]
            }
          }
        }
        """,
        {"x": normal(5, 489)},
        {"N": 5, "S": 489},
    ),
    "layer norm with loops over the row": (
        """
        program @p symbols { N, S } {
          launch @p(%x: f32[i N, j S], %w: f32[j S], %y: out f32[i N, j S]) {
            grid (i: 0..N) {
              axis v in 0..32 extent 32
              %sum = full(0) : f32[v]
              for j in 0..S step 32 carry (%sum) {
                %value = load %x[i, j] else 0 : f32[j]
                %sum = add(%sum, rename j -> v (%value) : f32[v]) : f32[v]
              }
              %mean = div(reduce sum v (%sum) : f32, cast(index(S) : i64) : f32) : f32
              %square = full(0) : f32[v]
              for j in 0..S step 32 carry (%square) {
                %inside = lt(index(j) : i64[j], index(S) : i64) : bool[j]
                %d = where(%inside, sub(load %x[i, j] else 0 : f32[j], %mean) : f32[j], full(0) : f32) : f32[j]
                %square = add(%square, rename j -> v (mul(%d, %d) : f32[j]) : f32[v]) : f32[v]
              }
              %scale = rsqrt(add(div(reduce sum v (%square) : f32, cast(index(S) : i64) : f32) : f32, full(1e-05) : f32) : f32) : f32
              for j in 0..S step 32 {
                store %y[i, j] = mul(mul(sub(load %x[i, j] : f32[j], %mean) : f32[j], %scale) : f32[j], load %w[j] : f32[j]) : f32[j]
              }
            }
          }
        }
        """,
        {"x": normal(3, 101), "w": normal(101)},
        {"N": 3, "S": 101},
    ),
    "broadcast and transposed reads": (
        """
        program @p symbols { N, M } {
          launch @p(%x: f32[i N, j M], %t: f32[j M, i N], %r: f32[j M], %c: f32[i N], %y: out f32[i N, j M]) {
            grid (i: 0..N step 5, j: 0..M step 20) {
              %s = add(load %x[i, j] : f32[i, j], load %t[j, i] : f32[i, j]) : f32[i, j]
              store %y[i, j] = mul(add(%s, load %r[j] : f32[j]) : f32[i, j], load %c[i] : f32[i]) : f32[i, j]
            }
          }
        }
        """,
        {"x": normal(13, 51), "t": normal(51, 13), "r": normal(51), "c": normal(13)},
        {"N": 13, "M": 51},
    ),
    "transposed store and reversed rows": (
        """
        program @p symbols { N, M } {
          launch @p(%x: f32[i N, j M], %y: out f32[j M, i N]) {
            grid (i: 0..N step 4, j: 0..M step 16) {
              store %y[j, i] = load %x[N - 1 - i, M - 1 - j] : f32[i, j]
            }
          }
        }
        """,
        {"x": normal(13, 51)},
        {"N": 13, "M": 51},
    ),
    "gather of rows with a bound": (
        """
        program @p symbols { N, V } {
          launch @p(%ids: i64[i N], %e: f32[v V, j 24], %y: out f32[i N, j 24]) {
            grid (i: 0..N) {
              axis j in 0..24 extent 24
              %id = load %ids[i] : i64
              store %y[i, j] = load %e[%id, j] else 0 : f32[j]
            }
          }
        }
        """,
        {"ids": np.array([3, 0, 9, -2, 10, 4]), "e": normal(10, 24)},
        {"N": 6, "V": 10},
    ),
    "products with rows that a table names": (
        """
        program @p symbols { T } {
          launch @p(%w: f32[t T], %pages: i64[p 4], %x: f32[n 7, t 16, e 24], %y: out f32[e 24], %z: out f32[e 24]) {
            grid (i: 0..1) {
              axis e in 0..24 extent 24
              axis t in 0..T extent 64
              %at = max(full(0) : i64, min(load %pages[t // 16] : i64[t], full(6) : i64) : i64[t]) : i64[t]
              store %y[e] = dot(load %w[t] else 0 : f32[t], load %x[%at, t % 16, e] else 0 : f32[e, t], full(0) : f32[e]) : f32[e]
              axis u in 0..7 extent 8
              %by = load %pages[u // 3] : i64[u]
              store %z[e] = dot(load %w[u] else 0 : f32[u], load %x[%by, u % 3, e] else 0 : f32[e, u], full(0) : f32[e]) : f32[e]
            }
          }
        }
        """,
        {"w": normal(51), "pages": np.array([5, 0, 6, 2]), "x": normal(7, 16, 24)},
        {"T": 51},
    ),
    "gather lane by lane": (
        """
        program @p symbols { N, V } {
          launch @p(%ids: i64[i N], %e: f32[v V], %y: out f32[i N]) {
            grid (i: 0..N step 32) {
              %id = load %ids[i] else 0 : i64[i]
              store %y[i] = load %e[%id] else 7 : f32[i]
            }
          }
        }
        """,
        {"ids": integers(-3, 14, 45), "e": normal(10)},
        {"N": 45, "V": 10},
    ),
    "scatter": (
        """
        program @p symbols { N } {
          launch @p(%ids: i64[i N], %x: f32[i N], %y: inout f32[v 60]) {
            grid (i: 0..N step 32) {
              %id = load %ids[i] else 0 : i64[i]
              store %y[%id] = load %x[i] : f32[i]
            }
          }
        }
        """,
        {"ids": np.random.default_rng(0).permutation(60)[:32], "x": normal(32), "y": normal(60)},
        {"N": 32},
    ),
    "sum over rows, maximum over columns": (
        """
        program @p symbols { N, M } {
          launch @p(%x: f32[i N, j M], %s: out f32[j M], %m: out f32[i N]) {
            grid (z: 0..1) {
              axis i in 0..N extent 12
              axis j in 0..M extent 40
              %value = load %x[i, j] else 0 : f32[i, j]
              store %s[j] = reduce sum i (%value) : f32[j]
              %y = load %x[i, j] else -inf : f32[i, j]
              store %m[i] = reduce max j (%y) : f32[i]
            }
          }
        }
        """,
        {"x": normal(11, 37)},
        {"N": 11, "M": 37},
    ),
    "argmax with ties and NaN, along lanes and across": (
        """
        program @p symbols { N } {
          launch @p(%x: f32[i N, j 20], %a: out i64[i N], %b: out i32[j 20]) {
            grid (z: 0..1) {
              axis i in 0..N extent 9
              axis j in 0..20 extent 20
              %value = load %x[i, j] else -inf : f32[i, j]
              store %a[i] = reduce argmax j (%value) : i64[i]
              store %b[j] = reduce argmin i (load %x[i, j] else inf : f32[i, j]) : i32[j]
            }
          }
        }
        """,
        {"x": np.where(integers(0, 12, 9, 20) == 0, np.nan, integers(-3, 3, 9, 20)).astype(np.float32)},
        {"N": 9},
    ),
    "integer extremes and products": (
        """
        program @p symbols { N } {
          launch @p(%x: i32[i N, j 20], %a: out i32[i N], %b: out i32[i N], %c: out i32[j 20]) {
            grid (z: 0..1) {
              axis i in 0..N extent 6
              axis j in 0..20 extent 20
              %value = load %x[i, j] else 1 : i32[i, j]
              store %a[i] = reduce max j (%value) : i32[i]
              store %b[i] = reduce min j (%value) : i32[i]
              store %c[j] = reduce prod i (%value) : i32[j]
            }
          }
        }
        """,
        {"x": integers(-(2**31), -5, 6, 20, dtype=np.int32)},
        {"N": 6},
    ),
    "any and all of bools": (
        """
        program @p symbols { N } {
          launch @p(%x: bool[i N, j 37], %a: out bool[i N], %b: out bool[i N], %c: out bool[i N, j 37]) {
            grid (i: 0..N step 4) {
              axis j in 0..37 extent 37
              %value = load %x[i, j] else false : bool[i, j]
              store %a[i] = reduce any j (%value) : bool[i]
              store %b[i] = reduce all j (load %x[i, j] else true : bool[i, j]) : bool[i]
              store %c[i, j] = bit_xor(%value, full(true) : bool) : bool[i, j]
            }
          }
        }
        """,
        {"x": np.stack([np.zeros(37, bool), np.ones(37, bool), np.arange(37) == 36, np.arange(37) != 20, np.arange(37) == 0])},
        {"N": 5},
    ),
    "running sums along lanes, across, and reversed": (
        """
        program @p symbols { N } {
          launch @p(%x: f32[i N, j 20], %a: out f32[i N, j 20], %b: out f32[i N, j 20], %c: out f32[i N, j 20]) {
            grid (z: 0..1) {
              axis i in 0..N extent 7
              axis j in 0..20 extent 20
              %value = load %x[i, j] else 0 : f32[i, j]
              %running = scan sum j (%value) : f32[i, j]
              store %a[i, j] = %running
              store %b[i, j] = scan max i (%value) : f32[i, j]
              store %c[i, j] = scan sum j reverse (%value) : f32[i, j]
            }
          }
        }
        """,
        {"x": normal(7, 20)},
        {"N": 7},
    ),
    "half precision storage": (
        """
        program @p symbols { N } {
          launch @p(%x: f16[i N], %y: bf16[i N], %a: out f16[i N], %b: out bf16[i N]) {
            grid (i: 0..N step 32) {
              %value = load %x[i] : f16[i]
              store %a[i] = add(mul(%value, %value) : f16[i], %value) : f16[i]
              store %b[i] = mul(load %y[i] : bf16[i], cast(%value) : bf16[i]) : bf16[i]
            }
          }
        }
        """,
        {"x": normal(45).astype(np.float16), "y": normal(45).astype(types.bf16.numpy)},
        {"N": 45},
    ),
    "double precision product": (
        """
        program @p symbols { N } {
          launch @p(%x: f64[i N, k 21], %w: f64[k 21, j 19], %y: out f64[i N, j 19]) {
            grid (i: 0..N step 3) {
              axis j in 0..19 extent 19
              axis k in 0..21 extent 21
              store %y[i, j] = dot(load %x[i, k] : f64[i, k], load %w[k, j] : f64[k, j], full(0) : f64[i, j]) : f64[i, j]
            }
          }
        }
        """,
        {"x": normal(7, 21).astype(np.float64), "w": normal(21, 19).astype(np.float64)},
        {"N": 7},
    ),
    "integer product": (
        """
        program @p symbols { N } {
          launch @p(%x: u8[i N, k 21], %w: i8[j 19, k 21], %y: out i32[i N, j 19]) {
            grid (i: 0..N step 3) {
              axis j in 0..19 extent 19
              axis k in 0..21 extent 21
              store %y[i, j] = dot(load %x[i, k] : u8[i, k], load %w[j, k] : i8[j, k], full(0) : i32[i, j]) : i32[i, j]
            }
          }
        }
        """,
        {"x": integers(0, 256, 7, 21, dtype=np.uint8), "w": integers(-128, 128, 19, 21, dtype=np.int8)},
        {"N": 7},
    ),
    "a tile too large for registers": (
        """
        program @p symbols { N } {
          launch @p(%x: f32[i N, k 21], %w: f32[k 21, j 150], %y: out f32[i N, j 150]) {
            grid (i: 0..N step 40) {
              axis j in 0..150 extent 160
              %acc = full(0) : f32[i, j]
              for k in 0..21 step 8 carry (%acc) {
                %acc = dot(load %x[i, k] else 0 : f32[i, k], load %w[k, j] else 0 : f32[k, j], %acc) : f32[i, j]
              }
              store %y[i, j] = %acc
            }
          }
        }
        """,
        {"x": normal(45, 21), "w": normal(21, 150)},
        {"N": 45},
    ),
    "split, merge, slice and join of axes": (
        """
        program @p symbols { N } {
          launch @p(%x: f32[i N, j 24], %a: out f32[i N, b 6, c 4], %d: out f32[i N, e 48], %f: out f32[i N, j 24], %g: out f32[i N, q 8]) {
            grid (i: 0..N step 2) {
              axis j in 0..24 extent 24
              axis q in 0..8 extent 8
              axis b in 0..6 extent 6
              axis c in 0..4 extent 4
              axis two in 0..2 extent 2
              axis e in 0..48 extent 48
              %value = load %x[i, j] : f32[i, j]
              %s = split j -> (b, c) (%value) : f32[i, b, c]
              store %a[i, b, c] = %s
              store %g[i, q] = neg(slice 2 of j -> q (%value) : f32[i, q]) : f32[i, q]
              %pair = join two (%value, neg(%value) : f32[i, j]) : f32[i, j, two]
              store %d[i, e] = merge (j, two) -> e (%pair) : f32[i, e]
              store %f[i, j] = merge (b, c) -> j (neg(%s) : f32[i, b, c]) : f32[i, j]
            }
          }
        }
        """,
        {"x": normal(4, 24)},
        {"N": 4},
    ),
    "conditions, scalars and loaded bounds": (
        """
        program @p symbols { N } {
          launch @p(%starts: i32[g 4], %x: f32[t N], %y: out f32[g 3]) {
            grid (g: 0..3) {
              %begin = load %starts[g] : i32
              %end = load %starts[g + 1] : i32
              %total = full(0) : f32
              for t in %begin..%end carry (%total) {
                %v = load %x[t] else 0 : f32
                %positive = lt(full(0) : f32, %v) : bool
                if (%positive) carry (%total) {
                  %total = add(%total, %v) : f32
                } else {
                  %total = sub(%total, full(1) : f32) : f32
                }
              }
              store %y[g] = %total
            }
          }
        }
        """,
        {"starts": np.array([0, 5, 5, 17], np.int32), "x": normal(17)},
        {"N": 17},
    ),
    "locals in the cache": (
        """
        program @p symbols { N } {
          launch @p(%x: bf16[i N, j 24], %y: out f32[j 24, i N]) {
            grid (i: 0..N step 8) {
              axis j in 0..24 extent 24
              local %t: bf16[r 8, c 24] in cache
              store %t[i.lane, j.lane] = load %x[i, j] else 0 : bf16[i, j]
              store %y[j, i] = cast(load %t[i.lane, j.lane] : bf16[j, i]) : f32[j, i]
            }
          }
        }
        """,
        {"x": normal(21, 24).astype(types.bf16.numpy)},
        {"N": 21},
    ),
    "integer atomics": (
        """
        program @p symbols { N } {
          launch @p(%ids: i32[i N], %count: inout i32[v 5], %largest: inout i32[v 5]) {
            grid (i: 0..N step 16) {
              %id = load %ids[i] else 0 : i32[i]
              atomic add %count[%id] = where(lt(index(i) : i32[i], index(N) : i32) : bool[i], full(1) : i32, full(0) : i32) : i32[i]
              atomic max %largest[%id] = %id
            }
          }
        }
        """,
        {"ids": integers(0, 5, 64, dtype=np.int32), "count": np.zeros(5, np.int32), "largest": np.full(5, -1, np.int32)},
        {"N": 64},
    ),
    "a padded window with stride": (
        """
        program @p symbols { W } {
          launch @p(%x: f32[w W, c 3], %y: out f32[ow (W + 1) // 2, c 3]) {
            grid (ow: 0..(W + 1) // 2 step 16) {
              axis c in 0..3 extent 3
              %best = full(-inf) : f32[c, ow]
              for kw in 0..3 carry (%best) {
                %best = max(%best, load %x[2*ow + kw - 1, c] else -inf : f32[c, ow]) : f32[c, ow]
              }
              store %y[ow, c] = %best
            }
          }
        }
        """,
        {"x": normal(37, 3)},
        {"W": 37},
    ),
    "every second element under a span": (
        """
        program @p symbols { W } {
          launch @p(%x: f32[w W], %u: bf16[w W], %y: out f32[ow (W + 1) // 2], %z: out bf16[ow (W + 1) // 2]) {
            grid (ow: 0..(W + 1) // 2 step 16) {
              %best = full(-inf) : f32[ow]
              for kw in 0..5 carry (%best) {
                %best = max(%best, load %x[2*ow + kw - 2] else -inf : f32[ow]) : f32[ow]
              }
              store %y[ow] = %best
              store %z[ow] = load %u[2*ow] : bf16[ow]
            }
          }
        }
        """,
        {"x": normal(75), "u": normal(75).astype(types.bf16.numpy)},
        {"W": 75},
    ),
    "long axes reshaped to short ones and back": (
        """
        program @p symbols { N } {
          launch @p(%x: f32[i N, j 240], %w: u8[b 40], %y: out f32[i N, a 6, c 40], %z: out f32[i N, j 240], %u: out f32[k 80]) {
            grid (i: 0..N) {
              axis j in 0..240 extent 240
              axis a in 0..6 extent 6
              axis c in 0..40 extent 40
              axis b in 0..40 extent 40
              axis k in 0..80 extent 80
              %value = load %x[i, j] : f32[j]
              %s = split j -> (a, c) (%value) : f32[a, c]
              store %y[i, a, c] = %s
              %back = merge (a, c) -> j (neg(%s) : f32[a, c]) : f32[j]
              store %z[i, j] = %back
              %bytes = load %w[b] : u8[b]
              store %u[k] = cast(unpack(%bytes, b -> k, 4 low first) : u8[k]) : f32[k]
            }
          }
        }
        """,
        {"x": normal(3, 240), "w": integers(0, 256, 40, dtype=np.uint8)},
        {"N": 3},
    ),
    "indices as data": (
        """
        program @p symbols { N } {
          launch @p(%y: out i64[i N, j 20], %z: out bool[i N, j 20]) {
            grid (i: 0..N step 4, j: 0..20 step 16) {
              store %y[i, j] = index(3*i - j // 4 + j % 3) : i64[i, j]
              store %z[i, j] = le(index(j) : i64[j], index(2*i) : i64[i]) : bool[i, j]
            }
          }
        }
        """,
        {},
        {"N": 7},
    ),
    "a carried index in a subscript": (
        """
        program @p symbols { N } {
          launch @p(%next: i64[n N], %x: f32[n N], %y: out f32[s N]) {
            grid (z: 0..1) {
              %at = full(0) : i64
              for s in 0..N carry (%at) {
                store %y[s] = load %x[%at] else 0 : f32
                %at = load %next[%at] else 0 : i64
              }
            }
          }
        }
        """,
        {"next": np.roll(np.arange(9), 4), "x": normal(9)},
        {"N": 9},
    ),
    "four-bit operands": (
        """
        program @p symbols { N } {
          launch @p(%x: i4[i N], %u: u4[i N], %y: out i32[i N]) {
            grid (i: 0..N step 16) {
              store %y[i] = sub(cast(load %x[i] : i4[i]) : i32[i], cast(load %u[i] : u4[i]) : i32[i]) : i32[i]
            }
          }
        }
        """,
        {"x": integers(-8, 8, 32).astype(types.i4.numpy), "u": integers(0, 16, 32).astype(types.u4.numpy)},
        {"N": 32},
    ),
}


def packed(array: Array) -> Array:
    """Numpy keeps one four-bit element in a byte, memory two."""
    codes = array.astype(np.int64) & 15
    return (codes[0::2] | (codes[1::2] << 4)).astype(np.uint8)


def facts_of(symbols: dict[str, int]) -> Facts:
    facts = NO_FACTS
    for symbol in symbols:
        facts = facts.with_range(symbol, 1, None)
    return facts


PARSED = {name: parse(text) for name, (text, _, _) in PROGRAMS.items()}
TOGETHER = [(program, facts_of(PROGRAMS[name][2])) for name, program in PARSED.items()]


@pytest.mark.parametrize("name", PROGRAMS)
def test_printed_kernel_agrees_with_the_interpreter(name: str, level: CpuLevel, run_c: Runner) -> None:
    _, inputs, symbols = PROGRAMS[name]
    program, facts = PARSED[name], facts_of(symbols)
    wanted = run(program, inputs, symbols, facts)
    narrow = ("int4", "uint4")
    given = {key: packed(array) if array.dtype.name in narrow else array for key, array in inputs.items()}
    results = run_c(program, given, symbols, level, facts, among=TOGETHER)
    again = run_c(program, given, symbols, level, facts, threads=2)
    assert results.keys() == wanted.keys()
    for key, expected in wanted.items():
        found = results[key]
        assert np.array_equal(found.view(np.uint8), again[key].view(np.uint8))
        if expected.dtype.kind in "biu":
            assert np.array_equal(found, expected), key
            continue
        a, b = found.astype(np.float64), expected.astype(np.float64)
        # The order of sums differs: a few units of the largest term.
        unit = float(np.finfo(expected.dtype).eps) if expected.dtype.kind == "f" else 2.0**-8
        assert np.array_equal(np.isnan(a), np.isnan(b)), key
        assert np.nanmax(np.abs(a - b), initial=0) <= 16 * unit * np.nanmax(np.abs(b), initial=1), key
