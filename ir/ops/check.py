"""Checks: what an importer says where the source's definition makes an index out of range, or a divisor of 0, an error.

`check_index`, `check_place` and `check_divisor` stand in the data flow and mean the error. Before kernels are made, the
pass `place_index_checks` drops them where they are known to hold; elsewhere indices and divisors become a small reduction,
`worst_index` or `worst_divisor`, and `refuse_index`, which a plan reads as a step of the host program. Places are numbers that
the host knows: they become `refuse_place`, which nothing runs for and which comes before what uses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import dims, scalar
from ..dims import Dim
from ..errors import IndexRangeError, InputError, VerifyError, ZeroDivisorError
from ..types import TensorType, i32, i64, u8, u64
from .sampling import array, draw, refused
from .structure import RegionBuilder
from .table import Sample, axis_of, bound, opaque, structured

Tensor = np.ndarray[Any, Any]
IN_RANGE = -(2**63)
"""What `worst_index` gives where no index is out of range; the smallest index is reported as the next larger one."""


def range_text(size: int, negative: bool) -> str:
    """The indices that are in range, as an error shows them."""
    if size < 1:
        return "none, as what it indexes is empty"
    return f"{-size if negative else 0}..{size - 1}"


def failure(index: int, size: int | None, negative: bool, subject: str) -> InputError:
    """The error of an index out of range, or without a size of a divisor that is 0."""
    if size is None:
        return ZeroDivisorError(f"{subject} divides integers by 0")
    return IndexRangeError(index_message(index, size, negative, subject))


def index_message(index: int, size: int, negative: bool, subject: str) -> str:
    """The one message about an index out of range."""
    return f"index {index} of {subject} is out of range, expected {range_text(size, negative)}"


def told(raised: int) -> int:
    """What `worst_index` or `worst_divisor` gives, of a number that kernels have raised from -2^63 to the largest of what they met.

    An index that is too large is itself, one that is too small is -2^63 less the index: so the smallest of these is the largest number.
    """
    return raised if raised >= 0 or raised == IN_RANGE else IN_RANGE - raised


def _worst(indices: Tensor, size: int, negative: bool) -> int:
    if not indices.size:
        return IN_RANGE
    low = -size if negative and indices.dtype.kind == "i" else 0
    signed = indices.astype(np.int64)
    top, bottom = int(signed.max()), int(signed.min())
    if top >= size:
        return top
    return max(bottom, IN_RANGE + 1) if bottom < low else IN_RANGE


def _expect_integers(op: str, indices: TensorType) -> None:
    if not indices.dtype.is_integer:
        raise VerifyError(f"{op}: got {indices}, expected integers")


def _passed_on(r: RegionBuilder, x: TensorType) -> None:
    """The region of a check. A kernel cannot refuse: it computes what is checked, and `place_index_checks` puts the check beside it."""
    axes = r.grid(x.shape)
    r.store(0, axes, r.load(0, axes))


# --- check_index ------------------------------------------------------------------------------------------------------


@structured()
def check_index(indices: Tensor, /, *, size: Dim, negative: bool = True) -> Tensor:
    """The indices, every one of which must lie in 0..size-1, or with `negative` in -size..size-1; else an error."""
    (limit,) = bound((size,))
    worst = _worst(indices, limit, negative)
    if worst != IN_RANGE:
        raise failure(worst, limit, negative, "the operand")
    return indices


@check_index.infers
def _(indices: TensorType, *, size: Dim, negative: bool) -> TensorType:
    _expect_integers("check_index", indices)
    return indices


@check_index.region
def _(r: RegionBuilder, indices: TensorType, *, size: Dim, negative: bool) -> None:
    _passed_on(r, indices)


@check_index.samples
def _() -> Iterator[Sample]:
    yield Sample((array(0, -5, 4, dtype=i64),), {"size": 5})
    yield Sample((draw(2, 3, dtype=i32, low=0, high=3),), {"size": 4, "negative": False})
    yield Sample((draw(0, dtype=i64),), {"size": 0})
    yield refused((draw(3),), "check_index: got f32[3], expected integers", size=3)


# --- check_place ------------------------------------------------------------------------------------------------------


@structured()
def check_place(x: Tensor, /, *, axis: int, place: Dim = 0, counted: bool = False, negative: bool = False) -> Tensor:
    """x, whose `axis` must have a `place` (0: it must not be empty), or so many with `counted`; else an error.

    With `negative` places below 0 count from the end.
    """
    place, size = bound((place, x.shape[axis] + int(counted)))
    _expect_place(place, size, negative, f"axis {axis} of the operand")
    return x


def _expect_place(place: int, size: int, negative: bool, subject: str) -> None:
    if not (-size if negative else 0) <= place < size:
        raise failure(place, size, negative, subject)


@check_place.infers
def _(x: TensorType, *, axis: int, place: Dim, counted: bool, negative: bool) -> TensorType:
    size = x.shape[axis_of("check_place", axis, x.rank)] + int(counted)
    if dims.at_most(-size if negative else 0, place) is False or dims.at_most(place + 1, size) is False:
        raise VerifyError(f"check_place: dimension {axis} of {x} has no place {place}")
    return x


@check_place.region
def _(r: RegionBuilder, x: TensorType, *, axis: int, place: Dim, counted: bool, negative: bool) -> None:
    _passed_on(r, x)


@check_place.samples
def _() -> Iterator[Sample]:
    yield Sample((draw(2, 3),), {"axis": 1})
    yield Sample((draw(0, 3, dtype=i32),), {"axis": 1, "place": 2})
    yield Sample((draw(0, 3),), {"axis": 0, "counted": True})
    yield Sample((draw(2, 3),), {"axis": 1, "place": 3, "counted": True})
    yield Sample((draw(2, 3),), {"axis": 1, "place": -3, "negative": True})
    yield refused((draw(3),), "axis 1 is out of range for rank 1", axis=1)
    yield refused((draw(3),), "dimension 0 of f32[3] has no place 3", axis=0, place=3)
    yield refused((draw(3),), "dimension 0 of f32[3] has no place 4", axis=0, place=4, counted=True)
    yield refused((draw(3),), "dimension 0 of f32[3] has no place -1", axis=0, place=-1)
    yield refused((draw(3),), "dimension 0 of f32[3] has no place -4", axis=0, place=-4, negative=True)


# --- worst_index ------------------------------------------------------------------------------------------------------


@structured()
def worst_index(indices: Tensor, /, *, size: Dim, negative: bool = True) -> Tensor:
    """The largest index if that is not below `size`, else the smallest if that is below 0 (with `negative`: -size), else -2^63."""
    (limit,) = bound((size,))
    return np.asarray(_worst(indices, limit, negative), np.int64)


@worst_index.infers
def _(indices: TensorType, *, size: Dim, negative: bool) -> TensorType:
    _expect_integers("worst_index", indices)
    return TensorType(i64, ())


@worst_index.region
def _(r: RegionBuilder, indices: TensorType, *, size: Dim, negative: bool) -> None:
    axes = r.grid(indices.shape)
    low = r.index(-size if negative and indices.dtype.kind == "int" else 0)
    # Of none the largest is the smallest number there is, which is an index where there is no sign.
    is_signed = indices.dtype.kind == "int" and indices.dtype.bits < 64
    index = r.load(0, axes) if is_signed else scalar.cast(r.load(0, axes), i64)
    # Two folds take a fraction of the time of one fold of what is tested and chosen element by element.
    top = scalar.cast(r.reduce("max", axes, index, ()) if axes else index, i64)
    found = IN_RANGE
    if indices.dtype.kind == "int" or indices.dtype.bits == 64:
        bottom = scalar.cast(r.reduce("min", axes, index, ()) if axes else index, i64)
        found = scalar.where(scalar.lt(bottom, low), scalar.max(bottom, IN_RANGE + 1), found)
    r.store(0, (), scalar.where(scalar.le(r.index(size), top), top, found), axes=())


@worst_index.samples
def _() -> Iterator[Sample]:
    for size, negative in ((5, True), (5, False), (0, True)):
        yield Sample((array(0, -5, 4, dtype=i64),), {"size": size, "negative": negative})
    yield Sample((array(0, -6, IN_RANGE, dtype=i64),), {"size": 5})
    yield Sample((array(IN_RANGE, 0, dtype=i64),), {"size": 5})
    yield Sample((draw(4, 7, dtype=i32, low=-9, high=9),), {"size": 4})
    yield Sample((array(3, 255, dtype=u8),), {"size": 4})
    yield Sample((draw(dtype=i64, low=7, high=9),), {"size": 4})
    yield Sample((array(3, 2**63 + 5, dtype=u64),), {"size": 4})
    for dtype in (i64, i32, u8, u64):
        yield Sample((draw(0, dtype=dtype),), {"size": 0})
    yield refused((draw(3),), "worst_index: got f32[3], expected integers", size=3)


# --- divisors ---------------------------------------------------------------------------------------------------------


@structured()
def check_divisor(divisor: Tensor, /) -> Tensor:
    """The divisors, none of which may be 0; else an error."""
    if (divisor == 0).any():
        raise failure(0, None, False, "the operand")
    return divisor


@check_divisor.infers
def _(divisor: TensorType) -> TensorType:
    _expect_integers("check_divisor", divisor)
    return divisor


@check_divisor.region
def _(r: RegionBuilder, divisor: TensorType) -> None:
    _passed_on(r, divisor)


@check_divisor.samples
def _() -> Iterator[Sample]:
    yield Sample((array(1, -5, 4, dtype=i64),))
    yield refused((draw(3),), "check_divisor: got f32[3], expected integers")


@structured()
def worst_divisor(divisor: Tensor, /) -> Tensor:
    """0 if any divisor is 0, else -2^63."""
    return np.asarray(0 if (divisor == 0).any() else IN_RANGE, np.int64)


@worst_divisor.infers
def _(divisor: TensorType) -> TensorType:
    _expect_integers("worst_divisor", divisor)
    return TensorType(i64, ())


@worst_divisor.region
def _(r: RegionBuilder, divisor: TensorType) -> None:
    axes = r.grid(divisor.shape)
    found = scalar.where(scalar.eq(r.load(0, axes), 0), r.index(0), IN_RANGE)
    r.store(0, (), r.reduce("max", axes, found, ()) if axes else found, axes=())


@worst_divisor.samples
def _() -> Iterator[Sample]:
    yield Sample((array(1, 0, 4, dtype=i64),))
    yield Sample((array(1, 255, 4, dtype=u8),))
    yield Sample((draw(4, 7, dtype=i32, low=1, high=9),))
    yield Sample((array(0, dtype=i32).reshape(()),))
    yield Sample((draw(0, dtype=i64),))
    yield refused((draw(3),), "worst_divisor: got f32[3], expected integers")


# --- refuse_index -----------------------------------------------------------------------------------------------------


@opaque(traits=("impure",))
def refuse_index(worst: Tensor, /, *, size: Dim | None = None, negative: bool = True, subject: str = "the operand") -> tuple[Tensor, ...]:
    """An error if `worst_index` found an index of `subject` out of range, or without `size` if `worst_divisor` found a 0."""
    limit = None if size is None else bound((size,))[0]
    if int(worst) != IN_RANGE:
        raise failure(int(worst), limit, negative, subject)
    return ()


@refuse_index.infers
def _(worst: TensorType, *, size: Dim | None, negative: bool, subject: str) -> tuple[TensorType, ...]:
    if worst != TensorType(i64, ()):
        raise VerifyError(f"refuse_index: got {worst}, expected i64[]")
    return ()


@refuse_index.samples
def _() -> Iterator[Sample]:
    yield Sample((np.asarray(IN_RANGE, np.int64),), {"size": 5})
    yield refused((draw(3, dtype=i64),), "refuse_index: got i64[3], expected i64[]", size=3)


# --- refuse_place -----------------------------------------------------------------------------------------------------


@opaque(traits=("impure",))
def refuse_place(*, place: Dim, size: Dim, negative: bool = False, subject: str = "the operand") -> tuple[Tensor, ...]:
    """An error unless `subject` has the `place`: 0..size-1, with `negative` from -size on."""
    place, size = bound((place, size))
    _expect_place(place, size, negative, subject)
    return ()


@refuse_place.infers
def _(*, place: Dim, size: Dim, negative: bool, subject: str) -> tuple[TensorType, ...]:
    return ()


@refuse_place.samples
def _() -> Iterator[Sample]:
    yield Sample((), {"place": 4, "size": 5})
    yield Sample((), {"place": -5, "size": 5, "negative": True})
