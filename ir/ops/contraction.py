"""Contractions: matmul, grouped_matmul and attention; products are summed in f32 for narrow floats, in i32 for 8-bit integers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import dims, scalar
from ..dims import Dim
from ..errors import VerifyError
from ..scalar import Traced
from ..summation import product
from ..types import DType, TensorType, bf16, boolean, f16, f32, i8, i32, i64, u8
from .sampling import draw, refused
from .structure import RegionBuilder
from .table import Sample, broadcast, same_dtype, structured

Tensor = np.ndarray[Any, Any]
MULTIPLYING = ("matmul", "grouped_matmul", "conv", "conv_transpose", "attention")
"""Ops that are sums of products; attention's first factors are queries and keys."""


def accumulator(dtype: DType) -> DType:
    """The dtype that products of `dtype` are summed in."""
    return i32 if dtype.is_integer and dtype.bits <= 8 else dtype.compute


def product_dtype(op: str, dtype: DType, wide: bool) -> DType:
    """The dtype of sums of products: the factors' own, i32 for 8-bit integers, f32 for wide ones of 16 bits."""
    if wide and dtype not in (f16, bf16):
        raise VerifyError(f"{op}: got wide products of {dtype}, expected f16 or bf16")
    return i32 if accumulator(dtype) == i32 else f32 if wide else dtype


def widened(x: Tensor) -> Tensor:
    """x in its accumulator dtype; floats have it already."""
    return x.astype(np.int32) if x.dtype.kind not in "fc" and x.dtype.itemsize == 1 else x


# --- matmul -----------------------------------------------------------------------------------------------------------


@structured(torch=("aten.mm", "aten.bmm"))
def matmul(a: Tensor, b: Tensor, /, *, transpose_a: bool = False, transpose_b: bool = False, wide: bool = False) -> Tensor:
    """The matrix product over the last two dimensions, either transposed first; leading dimensions broadcast.

    8-bit integers give i32, and their dtypes may differ in signedness. Floats of 16 bits give f32 where it is `wide`.
    """
    a, b = widened(a), widened(b)
    return product(a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b)


def _matrix(x: TensorType, transposed: bool) -> tuple[Dim, Dim]:
    rows, columns = x.shape[-2:]
    return (columns, rows) if transposed else (rows, columns)


@matmul.infers
def _(a: TensorType, b: TensorType, *, transpose_a: bool, transpose_b: bool, wide: bool) -> TensorType:
    for x in (a, b):
        if x.rank < 2:
            raise VerifyError(f"matmul: got {x}, expected rank 2 or more")
        if x.dtype.kind in ("bool", "string"):
            raise VerifyError(f"matmul: got {x}, expected numbers")
    if accumulator(a.dtype) != i32 or accumulator(b.dtype) != i32:
        same_dtype("matmul", a, b)
    (m, k), (inner, n) = _matrix(a, transpose_a), _matrix(b, transpose_b)
    if dims.equal(k, inner) is not True:
        raise VerifyError(f"matmul: inner sizes {k} and {inner} differ in {a} and {b}")
    return TensorType(product_dtype("matmul", a.dtype, wide), (*broadcast("matmul", a.shape[:-2], b.shape[:-2]), m, n))


@matmul.region
def _(r: RegionBuilder, a: TensorType, b: TensorType, *, transpose_a: bool, transpose_b: bool, wide: bool) -> None:
    *batch, m, n = r.outputs[0].type.shape
    groups = r.grid(batch, "b")
    i, j, k = r.axis(m, "i"), r.axis(n, "j"), r.axis(_matrix(a, transpose_a)[1], "k")
    left = r.broadcast_matrix(0, groups, (k, i) if transpose_a else (i, k))
    right = r.broadcast_matrix(1, groups, (j, k) if transpose_b else (k, j))
    product = scalar.mul(scalar.cast(left, accumulator(a.dtype)), scalar.cast(right, accumulator(b.dtype)))
    total = r.reduce("sum", [k], product, [*groups, i, j])
    r.store(0, (*groups, i, j), total)


@matmul.samples
def _() -> Iterator[Sample]:
    yield Sample((draw(3, 5), draw(5, 4, seed=1)))
    yield Sample((draw(5, 3), draw(4, 5, seed=1)), {"transpose_a": True, "transpose_b": True})
    yield Sample((draw(2, 3, 5), draw(5, 4)))
    yield Sample((draw(2, 1, 3, 5), draw(3, 4, 5)), {"transpose_b": True})
    yield Sample((draw(1, 1), draw(1, 1)))
    yield Sample((draw(3, 0), draw(0, 4)))
    yield Sample((draw(0, 5), draw(5, 4)))
    yield Sample((draw(7, 33, dtype=f16), draw(33, 4, dtype=f16)))
    yield Sample((draw(7, 33, dtype=bf16), draw(33, 4, dtype=bf16)))
    yield Sample((draw(7, 33, dtype=bf16), draw(33, 4, dtype=bf16)), {"wide": True})
    yield Sample((draw(2, 7, 34, dtype=f16), draw(4, 34, dtype=f16)), {"transpose_b": True, "wide": True})
    yield Sample((draw(7, 33, dtype=i8, low=-128, high=127), draw(33, 4, dtype=u8, high=255)))
    yield Sample((draw(7, 36, dtype=u8, high=255), draw(36, 40, dtype=i8, low=-128, high=127)))
    yield Sample((draw(2, 5, 20, dtype=i8, low=-128, high=127), draw(48, 20, dtype=i8, low=-128, high=127)), {"transpose_b": True})
    yield Sample((draw(4, 5, dtype=i64), draw(5, 4, dtype=i64)))
    yield refused((draw(3, 5), draw(4, 5)), "inner sizes 5 and 4 differ in f32[3, 5] and f32[4, 5]")
    yield refused((draw(3, 5), draw(5, 4)), "matmul: got wide products of f32, expected f16 or bf16", wide=True)
    yield refused((draw(5), draw(5, 4)), "got f32[5], expected rank 2 or more")
    yield refused((draw(3, 5), draw(5, 4, dtype=f16)), "operand dtypes differ: got f32 and f16")
    yield refused((draw(3, 5, dtype=boolean), draw(5, 4, dtype=boolean)), "got bool[3, 5], expected numbers")
    yield refused((draw(2, 3, 5), draw(3, 5, 4)), "sizes 2 and 3 do not broadcast")


# --- grouped_matmul ---------------------------------------------------------------------------------------------------


@structured(torch="aten._grouped_mm")
def grouped_matmul(a: Tensor, b: Tensor, ends: Tensor, /) -> Tensor:
    """Rows of a [T, K] in groups that lie one after the other, those of group e multiplied by b[e] of b [E, K, N], as experts are.

    Row t belongs to the first group e with t < ends[e]; `ends` do not fall. Groups may be empty; rows at or behind the last end belong
    to none and are 0.
    """
    a, b = widened(a), widened(b)
    rows = np.arange(len(a))
    groups = (rows[:, None] >= ends[:-1]).sum(axis=1)
    result = np.zeros((len(a), b.shape[2]), a.dtype)
    for group, factor in enumerate(b):
        own = (groups == group) & (rows < ends[-1])
        result[own] = product(a[own], factor)
    return result


@grouped_matmul.infers
def _(a: TensorType, b: TensorType, ends: TensorType) -> TensorType:
    if a.rank != 2 or b.rank != 3 or ends.rank != 1:
        raise VerifyError(f"grouped_matmul: got {a}, {b} and ends {ends}, expected ranks 2, 3 and 1")
    if ends.dtype != i32:
        raise VerifyError(f"grouped_matmul: got ends {ends}, expected i32")
    if same_dtype("grouped_matmul", a, b).kind in ("bool", "string", "complex"):
        raise VerifyError(f"grouped_matmul: got {a}, expected real numbers")
    if dims.equal(a.shape[1], b.shape[1]) is not True:
        raise VerifyError(f"grouped_matmul: inner sizes {a.shape[1]} and {b.shape[1]} differ in {a} and {b}")
    groups = ends.shape[0]
    if not isinstance(groups, int) or groups < 1:
        raise VerifyError(f"grouped_matmul: got {groups} groups, expected a known number of at least 1")
    if b.shape[0] != groups:
        raise VerifyError(f"grouped_matmul: {b} has {b.shape[0]} groups, ends {ends} have {groups}")
    return TensorType(product_dtype("grouped_matmul", a.dtype, wide=False), (a.shape[0], b.shape[2]))


@grouped_matmul.region
def _(r: RegionBuilder, a: TensorType, b: TensorType, ends: TensorType) -> None:
    t, j, k = r.axis(a.shape[0], "t"), r.axis(b.shape[2], "j"), r.axis(a.shape[1], "k")
    last = dims.number(ends.shape[0]) - 1
    group: Dim | Traced = 0
    if last:
        # The ends that a row lies behind, the last one aside: every row has a group that exists, and that does not fall along them.
        e = r.axis(last, "e")
        group = r.reduce("sum", [e], scalar.cast(scalar.le(r.load(2, (e,)), r.index(t, i32)), i32), [t])
    left, right = (scalar.cast(x, accumulator(a.dtype)) for x in (r.load(0, (t, k)), r.load(1, (group, k, j))))
    total = r.reduce("sum", [k], scalar.mul(left, right), [t, j])
    r.store(0, (t, j), scalar.where(scalar.lt(r.index(t, i32), r.load(2, (last,))), total, r.constant(0, total.dtype)))


def _in_groups(rows: int, ends: tuple[int, ...], dtype: DType = f32, columns: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    depth = 34 if dtype.bits < 32 else 5
    sides = draw(rows, depth, dtype=dtype), draw(len(ends), depth, columns, dtype=dtype, seed=1)
    return *sides, np.array(ends, np.int32)


@grouped_matmul.samples
def _() -> Iterator[Sample]:
    yield Sample(_in_groups(9, (2, 2, 7, 9)))
    yield Sample(_in_groups(9, (0, 3, 3, 6), columns=21))
    yield Sample(_in_groups(40, (0, 17, 40, 40), bf16, 24))
    yield Sample(_in_groups(40, (40, 40, 40), f16, 16))
    yield Sample(_in_groups(6, (5,)))
    yield Sample(_in_groups(0, (0, 0)))
    yield Sample(_in_groups(1, (0, 1, 1)))
    yield Sample(_in_groups(7, (0, 0, 0), columns=3))
    yield Sample((draw(7, 36, dtype=i8, low=-128, high=127), draw(2, 36, 20, dtype=i8, low=-128, high=127), np.array([3, 6], np.int32)))
    yield Sample((draw(4, 5, dtype=i64), draw(2, 5, 4, dtype=i64), np.array([3, 4], np.int32)))
    a, b, ends = _in_groups(9, (2, 9))
    yield refused((a, b[0], ends), "got f32[9, 5], f32[5, 4] and ends i32[2], expected ranks 2, 3 and 1")
    yield refused((a, b, ends.astype(np.int64)), "got ends i64[2], expected i32")
    yield refused((a, b, ends[:1]), "f32[2, 5, 4] has 2 groups, ends i32[1] have 1")
    yield refused((a, b[:0], ends[:0]), "got 0 groups, expected a known number of at least 1")
    yield refused((a[:, :4], b, ends), "inner sizes 4 and 5 differ")
    yield refused((a, b.astype(np.float16), ends), "operand dtypes differ: got f32 and f16")


# --- attention --------------------------------------------------------------------------------------------------------


@structured()
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, /, *, scale: float, causal: bool = False, safe: bool = False
) -> Tensor:
    """softmax(scale * q k^T + mask) v, with q [.., H, S, D], k [.., G, T, D], v [.., G, T, E]; head h reads group h * G // H.

    A bool mask keeps where True, a float mask, which may be as wide as scores are, is added; it broadcasts to [.., H, S, T].
    `causal` also keeps t <= s only. A row with nothing kept is NaN, and 0 with `safe`; without any keys it is 0, as a sum of nothing
    is. Values of 16 bits are multiplied with weights, exp(score - highest), of 16 bits, which the result has as well; queries and
    keys may be f32 beside them.
    """
    repeats = q.shape[-3] // k.shape[-3] if k.shape[-3] else 1
    k, v = np.repeat(k, repeats, axis=-3), np.repeat(v, repeats, axis=-3)
    scores = np.matmul(q, k.swapaxes(-1, -2)) * q.dtype.type(scale)
    minus = q.dtype.type(-np.inf)
    if mask is not None:
        scores = np.where(mask, scores, minus) if mask.dtype == bool else scores + mask
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, minus)
    highest = scores.max(axis=-1, keepdims=True, initial=minus)
    if safe:
        highest = np.where(highest == minus, 0, highest).astype(q.dtype)
    weights = np.exp(scores - highest)
    total = weights.sum(axis=-1, keepdims=True)
    factors = weights if v.dtype == q.dtype else weights.astype(v.dtype).astype(q.dtype)
    result = np.matmul(factors, v.astype(q.dtype)) / total
    return (np.where(total == 0, 0, result) if safe or not k.shape[-2] else result).astype(v.dtype)


@attention.infers
def _(q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None = None, *, scale: float, causal: bool, safe: bool) -> TensorType:
    if not same_dtype("attention", q, k, *(() if q.dtype == f32 and v.dtype in (f16, bf16) else (v,))).is_float:
        raise VerifyError(f"attention: got {q.dtype}, expected a float")
    if q.rank < 3 or q.rank != k.rank or q.rank != v.rank:
        raise VerifyError(f"attention: got q {q}, k {k}, v {v}, expected one rank of 3 or more")
    same = [(n, q.shape[n], k.shape[n]) for n in range(q.rank - 3)] + [(n, k.shape[n], v.shape[n]) for n in range(q.rank - 1)]
    same.append((q.rank - 1, q.shape[-1], k.shape[-1]))
    for n, left, right in same:
        if dims.equal(left, right) is not True:
            raise VerifyError(f"attention: sizes {left} and {right} of dimension {n} differ in q {q}, k {k}, v {v}")
    heads, groups = q.shape[-3], k.shape[-3]
    if heads != groups and (not isinstance(groups, int) or groups == 0 or dims.divides(groups, heads) is not True):
        raise VerifyError(f"attention: {heads} heads are not known to be a multiple of {groups} key heads")
    scores = (*q.shape[:-1], k.shape[-2])
    if mask is not None:
        allowed = dict.fromkeys((boolean, q.dtype, q.dtype.compute))
        if mask.dtype not in allowed:
            raise VerifyError(f"attention: got a mask of {mask.dtype}, expected {' or '.join(map(str, allowed))}")
        if broadcast("attention", mask.shape, scores) != scores:
            raise VerifyError(f"attention: mask {mask} does not broadcast to the scores [{', '.join(str(d) for d in scores)}]")
    return v.with_shape((*q.shape[:-1], v.shape[-1]))


@attention.region
def _(
    r: RegionBuilder, q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None = None, *, scale: float, causal: bool, safe: bool
) -> None:
    batch, row = r.grid(q.shape[:-2], "b"), r.axis(q.shape[-2], "i")
    column, inner, feature = r.axis(k.shape[-2], "j"), r.axis(q.shape[-1], "d"), r.axis(v.shape[-1], "e")
    lead = batch[:-1]
    group: Dim = batch[-1] if q.shape[-3] == k.shape[-3] else batch[-1] // (q.shape[-3] // k.shape[-3])
    rows, scores = [*batch, row], [*batch, row, column]
    product = scalar.mul(r.load(0, (*batch, row, inner)), r.load(1, (*lead, group, column, inner)))
    score = scalar.mul(r.reduce("sum", [inner], product, scores), scale)
    if mask is not None:
        given = r.broadcast_load(3, scores)
        score = scalar.where(given, score, -np.inf) if mask.dtype == boolean else scalar.add(score, given)
    if causal:
        score = scalar.where(scalar.le(r.index(column), r.index(row)), score, -np.inf)
    score = r.let(score, scores)
    highest = r.reduce("max", [column], score, rows)
    if safe:
        highest = r.let(scalar.where(scalar.eq(highest, -np.inf), 0.0, highest), rows)
    weight = r.let(scalar.exp(scalar.sub(score, highest)), scores)
    total = r.reduce("sum", [column], weight, rows)
    factor = scalar.cast(scalar.rounded(weight, v.dtype), v.dtype.compute)
    result = r.reduce("sum", [column], scalar.mul(factor, r.load(2, (*lead, group, column, feature))), [*rows, feature])
    value = scalar.div(result, total)
    if safe:
        value = scalar.where(scalar.eq(total, 0.0), 0.0, value)
    elif not isinstance(k.shape[-2], int) or k.shape[-2] == 0:
        value = scalar.where(scalar.eq(r.index(k.shape[-2]), 0), 0.0, value)
    r.store(0, (*rows, feature), value)


def _heads(dtype: DType = f32, heads: int = 4, groups: int = 4, rows: int = 3, columns: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    return (
        draw(2, heads, rows, 8, dtype=dtype),
        draw(2, groups, columns, 8, dtype=dtype, seed=1),
        draw(2, groups, columns, 6, dtype=dtype, seed=2),
    )


@attention.samples
def _() -> Iterator[Sample]:
    for dtype in (f32, f16, bf16):
        yield Sample(_heads(dtype), {"scale": 0.35})
    yield Sample(_heads(groups=2), {"scale": 0.35, "causal": True})
    yield Sample(_heads(groups=1, rows=7), {"scale": 1.0, "causal": True, "safe": True})
    keep = draw(2, 1, 3, 5, dtype=boolean)
    keep[0, 0, 1] = False
    for safe in (False, True):
        yield Sample((*_heads(), keep), {"scale": 0.35, "safe": safe})
    yield Sample((*_heads(), draw(3, 5)), {"scale": 0.35})
    yield Sample((*_heads(f16), draw(1, 1, 5, dtype=f16)), {"scale": 0.35, "causal": True})
    yield Sample((*_heads(bf16, 2, 2, columns=37, rows=18), draw(37)), {"scale": 0.35})
    # Strategies share work out by the number of heads: one sample has four.
    for dtype, heads in ((f16, 4), (bf16, 2)):
        query, key, _ = _heads(f32, heads, heads, columns=37, rows=18)
        yield Sample((query, key, _heads(dtype, heads, heads, columns=37)[2]), {"scale": 0.35, "causal": True})
    yield Sample((draw(1, 1, 4), draw(1, 2, 4), draw(1, 2, 4)), {"scale": 0.5})
    for safe in (False, True):
        yield Sample(_heads(columns=0), {"scale": 0.5, "safe": safe})
    yield Sample(_heads(rows=0), {"scale": 0.5})
    q, k, v = _heads()
    yield refused((q, k[:, :3], v[:, :3]), "4 heads are not known to be a multiple of 3 key heads", scale=1.0)
    yield refused((q, k[..., :7], v), "sizes 8 and 7 of dimension 3 differ", scale=1.0)
    yield refused((q, k, v[0]), "expected one rank of 3 or more", scale=1.0)
    yield refused((q, k, v, draw(3, 5, dtype=f16)), "got a mask of f16, expected bool or f32", scale=1.0)
    yield refused((q, k, v, draw(2, 2, 4, 3, 5)), "mask f32[2, 2, 4, 3, 5] does not broadcast to the scores [2, 4, 3, 5]", scale=1.0)
    yield refused((q.astype(np.int32), k.astype(np.int32), v.astype(np.int32)), "got i32, expected a float", scale=1.0)
    yield refused((q, k, v), "attribute 'scale' is missing")
