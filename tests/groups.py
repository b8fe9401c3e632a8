"""Products of rows in groups: ends as routers of experts give them, and what must come of it, one group after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from ourcc.ir.graph.reference import Verdict, judge

Array = np.ndarray[Any, Any]


def drawn_ends(random: np.random.Generator, rows: int, groups: int) -> Array:
    """Ends of groups: drawn ones, of which many are empty, or all rows in one, or rows behind the last end."""
    kind = random.integers(4)
    if kind == 0:
        ends = np.where(np.arange(groups) < random.integers(groups), 0, rows)
    elif kind == 1:
        ends = np.sort(random.choice(np.unique(random.integers(0, rows + 1, max(1, groups // 2))), groups))
    else:
        ends = np.sort(random.integers(0, rows + 1, groups))
    if kind != 2:
        ends[ends == ends[-1]] = rows
    return ends.astype(np.int32)


def drawn_factors(random: np.random.Generator, dtype: Any, rows: int, depth: int, columns: int, groups: int) -> tuple[Array, Array]:
    """Rows and a matrix for each group."""
    a, b = random.standard_normal((rows, depth)), random.standard_normal((groups, depth, columns))
    return a.astype(np.float32).astype(dtype), b.astype(np.float32).astype(dtype)


def poison(random: np.random.Generator, a: Array, b: Array, ends: Array) -> None:
    """No numbers in some row, and in the matrices of some groups: they are in the results of those alone that read them."""
    if len(a):
        a[random.integers(len(a)), random.integers(a.shape[1])] = random.choice([np.nan, np.inf, -np.inf])
    for group in range(0, len(b), 2):
        b[group, random.integers(b.shape[1]), random.integers(b.shape[2])] = random.choice([np.nan, np.inf])


def looped(a: Array, b: Array, ends: Array, dtype: Any) -> Array:
    """A product for each group, computed in `dtype`; rows of none are 0."""
    result, first = np.zeros((len(a), b.shape[2]), dtype), 0
    with np.errstate(all="ignore"):
        for group, end in enumerate(ends):
            result[first:end] = a[first:end].astype(dtype) @ b[group].astype(dtype)
            first = max(first, int(end))
    return result


def verdict_of(got: Array, a: Array, b: Array, ends: Array) -> Verdict:
    """Of products of floats."""
    with np.errstate(all="ignore"):
        stepwise = looped(a, b, ends, np.float32 if got.dtype.itemsize < 8 else np.float64).astype(got.dtype)
    return judge(got, stepwise, looped(a, b, ends, np.float64))
