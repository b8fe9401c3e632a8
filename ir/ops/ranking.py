"""Ranks: how many elements of a line come before each, by which kernels put short lines in order without moving elements.

Rank sort, the oldest of parallel sorts (Knuth, The Art of Computer Programming 3, 5.2, "comparison counting"): each element is compared
with all of its line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import dims, scalar
from ..dims import Dim
from ..errors import VerifyError
from ..scalar import Traced
from ..types import TensorType, boolean, f16, i32, i64, u8
from .host import ordered
from .reduction import expect_numbers
from .sampling import array, bf16, draw, refused, specials
from .structure import RegionBuilder
from .table import Sample, axis_of, bound, structured

Tensor = np.ndarray[Any, Any]


@structured()
def rank_along_axis(x: Tensor, /, *, axis: int, descending: bool = False) -> Tensor:
    """How many elements along `axis` come before each one when `sort` sorts them: equal ones in their order, NaN as the largest."""
    return ordered(x, axis, descending).argsort(axis=axis).astype(np.int32)


@rank_along_axis.infers
def _(x: TensorType, *, axis: int, descending: bool) -> TensorType:
    expect_numbers("rank_along_axis", x, ("float", "int", "uint", "bool"), "an ordered dtype")
    axis_of("rank_along_axis", axis, x.rank)
    return x.with_dtype(i32)


@rank_along_axis.region
def _(r: RegionBuilder, x: TensorType, *, axis: int, descending: bool) -> None:
    axis %= x.rank
    places = r.grid(x.shape)
    along = r.axis(x.shape[axis], "k")
    own, other = (_number(r.load(0, subscripts)) for subscripts in (places, (*places[:axis], along, *places[axis + 1 :])))
    larger, smaller = (other, own) if descending else (own, other)
    # Of equal ones those come before it that stand there.
    weakly, strictly = _at_most(smaller, larger), scalar.bit_not(_at_most(larger, smaller))
    before = scalar.where(scalar.lt(r.index(along, i32), r.index(places[axis], i32)), weakly, strictly)
    r.store(0, places, r.reduce("sum", (along,), scalar.cast(before, i32), places))


def _number(x: Traced) -> Traced:
    number: Traced = scalar.cast(x, u8) if x.dtype == boolean else x
    return number


def _at_most(x: Traced, y: Traced) -> Traced:
    """Whether x is no larger than y, NaN being the largest."""
    found: Traced = scalar.le(x, y)
    return scalar.bit_or(found, scalar.is_nan(y)) if y.dtype.is_float else found


@rank_along_axis.samples
def _() -> Iterator[Sample]:
    for x in (
        draw(3, 5),
        draw(6, dtype=i32, low=0, high=2),
        specials(),
        draw(2, 9, dtype=f16),
        draw(4, dtype=boolean),
        draw(5, dtype=bf16),
    ):
        yield Sample((x,), {"axis": -1})
        yield Sample((x,), {"axis": 0, "descending": True})
    for empty in (draw(0, 3), draw(3, 0)):
        yield Sample((empty,), {"axis": 1})
    yield Sample((draw(2, 7, 3, dtype=u8, low=0, high=3),), {"axis": 1, "descending": True})
    yield refused((draw(3),), "axis 1 is out of range for rank 1", axis=1)
    yield refused((np.asarray(["a"], dtype=object),), "got string[1], expected an ordered dtype", axis=0)


@structured()
def place_of_rank(ranks: Tensor, /, *, axis: int, count: Dim) -> Tensor:
    """The i64 place along `axis` of the element of rank 0, 1 .. `count` - 1; each of these is there once."""
    order: Tensor = ranks.argsort(axis=axis, kind="stable").astype(np.int64)
    return order.take(np.arange(bound((count,))[0]), axis)


@place_of_rank.infers
def _(ranks: TensorType, *, axis: int, count: Dim) -> TensorType:
    if ranks.dtype != i32:
        raise VerifyError(f"place_of_rank: got ranks {ranks}, expected i32")
    place = axis_of("place_of_rank", axis, ranks.rank)
    if dims.at_most(0, count) is False or dims.at_most(count, ranks.shape[place]) is False:
        raise VerifyError(f"place_of_rank: got count {count}, expected 0 to {ranks.shape[place]} for axis {axis} of {ranks}")
    return ranks.with_shape((*ranks.shape[:place], count, *ranks.shape[place + 1 :])).with_dtype(i64)


@place_of_rank.region
def _(r: RegionBuilder, ranks: TensorType, *, axis: int, count: Dim) -> None:
    axis %= ranks.rank
    places = r.grid((*ranks.shape[:axis], count, *ranks.shape[axis + 1 :]))
    along = r.axis(ranks.shape[axis], "k")
    found = scalar.eq(r.load(0, (*places[:axis], along, *places[axis + 1 :])), r.index(places[axis], i32))
    place = r.reduce("sum", (along,), scalar.where(found, r.index(along, i32), 0), places)
    r.store(0, places, scalar.cast(place, i64))


@place_of_rank.samples
def _() -> Iterator[Sample]:
    for ranks in (array(2, 0, 3, 1, dtype=i32), array(0, dtype=i32)):
        for count in (1, len(ranks)):
            yield Sample((ranks,), {"axis": 0, "count": count})
    both = np.asarray([[1, 0, 2], [2, 1, 0]], np.int32)
    yield Sample((both,), {"axis": -1, "count": 2})
    yield Sample((both.T,), {"axis": 0, "count": 2})
    yield Sample((both,), {"axis": 1, "count": 0})
    yield refused((draw(3),), "got ranks f32[3], expected i32", axis=0, count=1)
    yield refused((both,), "got count 4, expected 0 to 3 for axis 1 of i32[2, 3]", axis=1, count=4)
