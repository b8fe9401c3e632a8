"""Indexing ops: elements found or placed by indices that are data.

A negative index counts from the end. An index out of range is undefined but never reaches outside the tensor: a gather
clamps it, a scatter drops it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import dims, scalar
from ..dims import Dim
from ..errors import VerifyError
from ..scalar import Traced
from ..types import TensorType, boolean, f16, i32, i64, u8
from .movement import expect_rank, not_negative, shown
from .sampling import array, bf16, draw, refused
from .structure import RegionBuilder
from .table import Sample, axis_of, bound, same_dtype, structured

Tensor = np.ndarray[Any, Any]
COMBINES = ("none", "add", "mul", "max", "min")
NARROW = 1 << 30
"""Sizes up to here and their places are computed in 32 bits."""


def _held(indices: Tensor, size: int) -> Tensor:
    """Indices counted from the front and clamped to 0..size-1."""
    indices = indices.astype(np.int64)
    return np.where(indices < 0, indices + size, indices).clip(0, max(size - 1, 0))


def _expect_integers(op: str, indices: TensorType) -> None:
    if not indices.dtype.is_integer:
        raise VerifyError(f"{op}: got indices {indices}, expected integers")


def _expect_combine(op: str, combine: str) -> None:
    if combine not in COMBINES:
        raise VerifyError(f"{op}: got combine {combine!r}, expected one of {', '.join(COMBINES)}")


def _from_front(r: RegionBuilder, index: Traced, size: Dim, wide: bool = True) -> Traced:
    signed: Traced = scalar.cast(index, i64 if wide else i32)
    if index.dtype.kind == "uint":
        return signed
    wrapped: Traced = scalar.where(scalar.lt(signed, 0), scalar.add(signed, r.index(size) if wide else size), signed)
    return wrapped


def _clamped(r: RegionBuilder, index: Traced, size: Dim) -> Traced:
    """A place within the size, computed in 32 bits where they hold it; only these are read of an index that is out of range."""
    wide = not isinstance(size, int) or size > NARROW
    found = _from_front(r, index, size, wide)
    if index.dtype.kind == "uint" and isinstance(size, int) and size >= 1 << index.dtype.bits:
        return found
    held: Traced = scalar.max(scalar.min(found, r.index(size - 1) if wide else size - 1), 0)
    return held


def _outside(x: TensorType, axes: Sequence[int]) -> int | None:
    """What a clamped load needs outside: nothing where the indexed sizes are known not to be 0."""
    return None if all(isinstance(x.shape[n], int) and x.shape[n] != 0 for n in axes) else 0


# --- take -------------------------------------------------------------------------------------------------------------


@structured()
def take(x: Tensor, indices: Tensor, /, *, axis: int) -> Tensor:
    """The slices of x at `indices` along `axis`; the indices' dimensions stand in the place of `axis`."""
    axis %= x.ndim
    if not x.shape[axis]:
        return np.zeros((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)
    return x.take(_held(indices, x.shape[axis]), axis=axis)


@take.infers
def _(x: TensorType, indices: TensorType, *, axis: int) -> TensorType:
    _expect_integers("take", indices)
    axis = axis_of("take", axis, x.rank)
    return x.with_shape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


@take.region
def _(r: RegionBuilder, x: TensorType, indices: TensorType, *, axis: int) -> None:
    axis %= x.rank
    axes = r.grid(r.outputs[0].type.shape)
    end = axis + indices.rank
    index = _clamped(r, r.load(1, axes[axis:end]), x.shape[axis])
    r.store(0, axes, r.load(0, [*axes[:axis], index, *axes[end:]], _outside(x, (axis,))))


@take.samples
def _() -> Iterator[Sample]:
    yield Sample((draw(5, 4), array(0, -1, 3, dtype=i64)), {"axis": 0})
    yield Sample((draw(5, 4), draw(2, 3, dtype=i32, low=-4, high=3)), {"axis": -1})
    yield Sample((draw(5, 4), draw(dtype=i64, high=4)), {"axis": 0})
    yield Sample((draw(5, dtype=f16), array(7, -9, 2, dtype=i64)), {"axis": 0})
    yield Sample((draw(5, dtype=boolean), array(4, 0, dtype=u8)), {"axis": 0})
    yield Sample((draw(5, 4), draw(0, dtype=i64)), {"axis": 0})
    yield Sample((draw(0, 4), array(0, dtype=i64)), {"axis": 0})
    yield refused((draw(5), draw(2)), "got indices f32[2], expected integers", axis=0)
    yield refused((draw(5), draw(2, dtype=i64)), "axis 1 is out of range for rank 1", axis=1)


# --- take_along_axis --------------------------------------------------------------------------------------------------


@structured()
def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int) -> Tensor:
    """Element i of the result is x at i with its place along `axis` replaced by indices[i]; `indices` gives the shape."""
    axis %= x.ndim
    if not x.shape[axis]:
        return np.zeros(indices.shape, x.dtype)
    places: list[Tensor] = list(np.indices(indices.shape, sparse=True))
    places[axis] = _held(indices, x.shape[axis])
    return np.asarray(x[tuple(places)])


def _check_along(op: str, x: TensorType, indices: TensorType, axis: int) -> int:
    _expect_integers(op, indices)
    expect_rank(op, f"dimensions in indices {indices}", indices.shape, x.rank)
    axis = axis_of(op, axis, x.rank)
    for n, (size, limit) in enumerate(zip(indices.shape, x.shape, strict=True)):
        if n != axis and dims.at_most(size, limit) is False:
            raise VerifyError(f"{op}: size {size} of dimension {n} of indices {indices} is larger than {limit} in {x}")
    return axis


@take_along_axis.infers
def _(x: TensorType, indices: TensorType, *, axis: int) -> TensorType:
    _check_along("take_along_axis", x, indices, axis)
    return x.with_shape(indices.shape)


@take_along_axis.region
def _(r: RegionBuilder, x: TensorType, indices: TensorType, *, axis: int) -> None:
    axis %= x.rank
    axes = r.grid(indices.shape)
    index = _clamped(r, r.load(1, axes), x.shape[axis])
    r.store(0, axes, r.load(0, [*axes[:axis], index, *axes[axis + 1 :]], _outside(x, (axis,))))


@take_along_axis.samples
def _() -> Iterator[Sample]:
    yield Sample((draw(5, 4), draw(2, 4, dtype=i64, low=-5, high=4)), {"axis": 0})
    yield Sample((draw(5, 4), draw(3, 6, dtype=i32, low=0, high=3)), {"axis": -1})
    yield Sample((draw(5, dtype=bf16), draw(0, dtype=i64)), {"axis": 0})
    yield Sample((draw(0, dtype=f16), array(0, 0, dtype=i64)), {"axis": 0})
    yield refused((draw(5, 4), draw(4, dtype=i64)), "got 1 dimensions in indices i64[4], expected 2", axis=0)
    yield refused((draw(5, 4), draw(2, 5, dtype=i64)), "size 5 of dimension 1 of indices i64[2, 5] is larger than 4 in f32[5, 4]", axis=0)


# --- gather_nd --------------------------------------------------------------------------------------------------------


@structured()
def gather_nd(x: Tensor, indices: Tensor, /, *, batch_dims: int = 0) -> Tensor:
    """The slices of x at index vectors: the last dimension of `indices` indexes x's dimensions after `batch_dims`."""
    depth = indices.shape[-1]
    result = (*indices.shape[:-1], *x.shape[batch_dims + depth :])
    if 0 in x.shape[batch_dims : batch_dims + depth]:
        return np.zeros(result, x.dtype)
    places = list(np.indices(indices.shape[:-1], sparse=True))[:batch_dims]
    places += [_held(indices[..., n], x.shape[batch_dims + n]) for n in range(depth)]
    return np.broadcast_to(x[tuple(places)], result)


@gather_nd.infers
def _(x: TensorType, indices: TensorType, *, batch_dims: int) -> TensorType:
    _expect_integers("gather_nd", indices)
    depth = _index_depth("gather_nd", x, indices, batch_dims)
    for n in range(batch_dims):
        if dims.equal(x.shape[n], indices.shape[n]) is not True:
            raise VerifyError(f"gather_nd: batch sizes {x.shape[n]} and {indices.shape[n]} of dimension {n} differ")
    return x.with_shape((*indices.shape[:-1], *x.shape[batch_dims + depth :]))


def _index_depth(op: str, x: TensorType, indices: TensorType, batch_dims: int) -> int:
    """How many dimensions an index vector names."""
    if not 0 <= batch_dims < max(indices.rank, 1) or indices.rank == 0:
        raise VerifyError(f"{op}: got {batch_dims} batch dimensions and indices {indices}, expected a last dimension after them")
    depth = indices.shape[-1]
    if not isinstance(depth, int) or batch_dims + depth > x.rank:
        raise VerifyError(f"{op}: index vectors of {depth} in {indices}, expected at most {x.rank - batch_dims} for {x}")
    return depth


@gather_nd.region
def _(r: RegionBuilder, x: TensorType, indices: TensorType, *, batch_dims: int) -> None:
    depth = _index_depth("gather_nd", x, indices, batch_dims)
    axes = r.grid(r.outputs[0].type.shape)
    lead, tail = axes[: indices.rank - 1], axes[indices.rank - 1 :]
    found = [_clamped(r, r.load(1, (*lead, n)), x.shape[batch_dims + n]) for n in range(depth)]
    indexed = range(batch_dims, batch_dims + depth)
    r.store(0, axes, r.load(0, [*lead[:batch_dims], *found, *tail], _outside(x, indexed)))


@gather_nd.samples
def _() -> Iterator[Sample]:
    yield Sample((draw(3, 4, 5), draw(2, 2, dtype=i64, low=-3, high=2)))
    yield Sample((draw(3, 4, 5), draw(6, 3, dtype=i64, high=2, low=0)))
    yield Sample((draw(3, 4, 5), draw(3, 2, 1, dtype=i64, low=0)), {"batch_dims": 1})
    yield Sample((draw(3, dtype=f16), draw(2, 0, dtype=i64)))
    yield Sample((draw(3, 4), draw(0, 1, dtype=i32)))
    yield Sample((draw(0, 4), array(0, dtype=i64)))
    yield refused((draw(3, 4), draw(2, 3, dtype=i64)), "index vectors of 3 in i64[2, 3], expected at most 2 for f32[3, 4]")
    yield refused((draw(3, 4), draw(2, 1, dtype=i64)), "batch sizes 3 and 2 of dimension 0 differ", batch_dims=1)
    yield refused((draw(3, 4), draw(dtype=i64)), "got 0 batch dimensions and indices i64[], expected a last dimension after them")
    yield refused((draw(3, 4), draw(2, 1)), "got indices f32[2, 1], expected integers")


# --- scatter ----------------------------------------------------------------------------------------------------------


def _scattered(x: Tensor, places: Sequence[Tensor], updates: Tensor, combine: str) -> Tensor:
    """x with updates combined in at `places`; those outside are dropped, the last one wins without a combine."""
    result = x.copy()
    shape = updates.shape
    inside = np.ones(shape, dtype=bool)
    for n, place in enumerate(places):
        inside &= np.broadcast_to((place >= 0) & (place < x.shape[n]), shape)
    where = tuple(np.broadcast_to(place, shape)[inside] for place in places)
    if combine == "none":
        result[where] = updates[inside]
    else:
        functions = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
        functions[combine].at(result, where, updates[inside])
    return result


def _signed(indices: Tensor, size: int) -> Tensor:
    indices = indices.astype(np.int64)
    return np.where(indices < 0, indices + size, indices)


@structured()
def scatter_along_axis(x: Tensor, indices: Tensor, updates: Tensor, /, *, axis: int, combine: str = "none") -> Tensor:
    """x where updates[i] is combined in at i with its place along `axis` replaced by indices[i].

    combine: none (the last one in index order wins), add, mul, max, min.
    """
    axis %= x.ndim
    places: list[Tensor] = list(np.indices(indices.shape, sparse=True))
    places[axis] = _signed(indices, x.shape[axis])
    return _scattered(x, places, updates, combine)


@scatter_along_axis.infers
def _(x: TensorType, indices: TensorType, updates: TensorType, *, axis: int, combine: str) -> TensorType:
    _expect_combine("scatter_along_axis", combine)
    same_dtype("scatter_along_axis", x, updates)
    _check_along("scatter_along_axis", x, indices, axis)
    if updates.rank != indices.rank or any(dims.equal(a, b) is not True for a, b in zip(updates.shape, indices.shape, strict=True)):
        raise VerifyError(f"scatter_along_axis: updates {updates} and indices {indices} differ in shape")
    return x


def _copied(r: RegionBuilder, x: TensorType) -> None:
    """The first statement of a scatter: the output is x."""
    axes = r.grid(x.shape)
    r.store(0, axes, r.load(0, axes, compute=False))


@scatter_along_axis.region
def _(r: RegionBuilder, x: TensorType, indices: TensorType, updates: TensorType, *, axis: int, combine: str) -> None:
    axis %= x.rank
    _copied(r, x)
    axes = r.grid(indices.shape, "u")
    index = _from_front(r, r.load(1, axes), x.shape[axis])
    places = [*axes[:axis], index, *axes[axis + 1 :]]
    r.store(0, places, r.load(2, axes, compute=False), axes=axes, combine=None if combine == "none" else combine)


@scatter_along_axis.samples
def _() -> Iterator[Sample]:
    for combine in COMBINES:
        yield Sample((draw(5, 4), draw(3, 4, dtype=i64, low=-5, high=4), draw(3, 4, seed=1)), {"axis": 0, "combine": combine})
        yield Sample((draw(5, dtype=i32), draw(9, dtype=i64, low=-5, high=4), draw(9, dtype=i32)), {"axis": -1, "combine": combine})
        yield Sample((draw(5, dtype=f16), draw(9, dtype=i32, low=0, high=4), draw(9, dtype=f16)), {"axis": 0, "combine": combine})
    yield Sample((draw(3, dtype=bf16), array(1, 7, -9, dtype=i64), draw(3, dtype=bf16)), {"axis": 0})
    yield Sample((draw(3, 2), draw(0, 2, dtype=i64), draw(0, 2)), {"axis": 0})
    yield refused(
        (draw(3), draw(2, dtype=i64), draw(2)), "got combine 'mean', expected one of none, add, mul, max, min", axis=0, combine="mean"
    )
    yield refused((draw(3), draw(2, dtype=i64), draw(3)), "updates f32[3] and indices i64[2] differ in shape", axis=0)
    yield refused((draw(3), draw(2, dtype=i64), draw(2, dtype=i32)), "operand dtypes differ: got f32 and i32", axis=0)


@structured()
def put(x: Tensor, indices: Tensor, updates: Tensor, /, *, axis: int, combine: str = "none") -> Tensor:
    """x where slices of `updates` are combined in at `indices` along `axis`; `updates` has the shape of `take(x, indices)`.

    combine: none (the last one in index order wins), add, mul, max, min.
    """
    axis %= x.ndim
    places: list[Tensor] = list(np.indices(updates.shape, sparse=True))
    found = _signed(indices, x.shape[axis]).reshape((1,) * axis + indices.shape + (1,) * (x.ndim - axis - 1))
    return _scattered(x, [*places[:axis], found, *places[axis + indices.ndim :]], updates, combine)


@put.infers
def _(x: TensorType, indices: TensorType, updates: TensorType, *, axis: int, combine: str) -> TensorType:
    _expect_combine("put", combine)
    _expect_integers("put", indices)
    same_dtype("put", x, updates)
    axis = axis_of("put", axis, x.rank)
    expected = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    if len(expected) != updates.rank or any(dims.equal(a, b) is not True for a, b in zip(updates.shape, expected, strict=True)):
        raise VerifyError(f"put: got updates {updates}, expected sizes {shown(expected)}")
    return x


@put.region
def _(r: RegionBuilder, x: TensorType, indices: TensorType, updates: TensorType, *, axis: int, combine: str) -> None:
    axis %= x.rank
    _copied(r, x)
    axes = r.grid(updates.shape, "u")
    end = axis + indices.rank
    index = _from_front(r, r.load(1, axes[axis:end]), x.shape[axis])
    places = [*axes[:axis], index, *axes[end:]]
    r.store(0, places, r.load(2, axes, compute=False), axes=axes, combine=None if combine == "none" else combine)


@put.samples
def _() -> Iterator[Sample]:
    for combine in COMBINES:
        yield Sample((draw(5, 4), draw(3, dtype=i64, low=-5, high=4), draw(3, 4, seed=1)), {"axis": 0, "combine": combine})
        yield Sample((draw(2, 5, 4), draw(3, 2, dtype=i32, low=-5, high=4), draw(2, 3, 2, 4, seed=1)), {"axis": 1, "combine": combine})
    yield Sample((draw(5, 4, dtype=i32), draw(dtype=i64, low=0, high=3), draw(5, dtype=i32)), {"axis": -1})
    yield Sample((draw(3, dtype=bf16), array(1, 7, -9, dtype=i64), draw(3, dtype=bf16)), {"axis": 0})
    yield Sample((draw(3, 2), draw(0, dtype=i64), draw(0, 2)), {"axis": 0})
    yield refused((draw(3, 4), draw(2, dtype=i64), draw(2, 3)), "got updates f32[2, 3], expected sizes [2, 4]", axis=0)
    yield refused((draw(3), draw(2), draw(2)), "got indices f32[2], expected integers", axis=0)
    yield refused((draw(3), draw(2, dtype=i64), draw(2)), "axis 1 is out of range for rank 1", axis=1)
    yield refused((draw(3), draw(2, dtype=i64), draw(2)), "got combine 'or', expected one of none", axis=0, combine="or")


@structured()
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, /, *, combine: str = "none") -> Tensor:
    """x where slices of `updates` are combined in at index vectors (the last dimension of `indices`).

    combine: none (the last one in index order wins), add, mul, max, min.
    """
    depth, lead = indices.shape[-1], indices.ndim - 1
    places = [_signed(indices[..., n], x.shape[n]).reshape(indices.shape[:-1] + (1,) * (x.ndim - depth)) for n in range(depth)]
    places += list(np.indices(updates.shape, sparse=True))[lead:]
    return _scattered(x, places, updates, combine)


@scatter_nd.infers
def _(x: TensorType, indices: TensorType, updates: TensorType, *, combine: str) -> TensorType:
    _expect_combine("scatter_nd", combine)
    _expect_integers("scatter_nd", indices)
    same_dtype("scatter_nd", x, updates)
    depth = _index_depth("scatter_nd", x, indices, 0)
    expected = (*indices.shape[:-1], *x.shape[depth:])
    if len(expected) != updates.rank or any(dims.equal(a, b) is not True for a, b in zip(updates.shape, expected, strict=True)):
        raise VerifyError(f"scatter_nd: got updates {updates}, expected sizes {shown(expected)}")
    return x


@scatter_nd.region
def _(r: RegionBuilder, x: TensorType, indices: TensorType, updates: TensorType, *, combine: str) -> None:
    depth = _index_depth("scatter_nd", x, indices, 0)
    _copied(r, x)
    axes = r.grid(updates.shape, "u")
    lead, tail = axes[: indices.rank - 1], axes[indices.rank - 1 :]
    found = [_from_front(r, r.load(1, (*lead, n)), x.shape[n]) for n in range(depth)]
    r.store(0, [*found, *tail], r.load(2, axes, compute=False), axes=axes, combine=None if combine == "none" else combine)


@scatter_nd.samples
def _() -> Iterator[Sample]:
    for combine in COMBINES:
        yield Sample((draw(5, 4), draw(3, 1, dtype=i64, low=-5, high=4), draw(3, 4, seed=1)), {"combine": combine})
        yield Sample((draw(3, 4), draw(2, 6, 2, dtype=i64, low=0, high=2), draw(2, 6)), {"combine": combine})
    yield Sample((draw(3, 4), array(1, 2, dtype=i64), draw()))
    yield Sample((draw(3, dtype=f16), draw(0, 1, dtype=i64), draw(0, dtype=f16)))
    yield Sample((draw(3), array(1, 9, dtype=i64).reshape(2, 1), draw(2)))
    yield refused((draw(3, 4), draw(2, 1, dtype=i64), draw(2, 3)), "got updates f32[2, 3], expected sizes [2, 4]")
    yield refused((draw(3, 4), draw(2, 1), draw(2, 4)), "got indices f32[2, 1], expected integers")
    yield refused((draw(3), draw(2, 1, dtype=i64), draw(2)), "got combine 'or', expected one of none, add, mul, max, min", combine="or")


@structured()
def put_slice(x: Tensor, update: Tensor, /, *, starts: tuple[Dim, ...], steps: tuple[int, ...]) -> Tensor:
    """x with `update` in the place of the slice that begins at `starts` and goes by `steps`."""
    result = x.copy()
    places = np.ix_(*(start + np.arange(size) * step for start, size, step in zip(bound(starts), update.shape, steps, strict=True)))
    result[places if x.ndim else ()] = update
    return result


@put_slice.infers
def _(x: TensorType, update: TensorType, *, starts: tuple[Dim, ...], steps: tuple[int, ...]) -> TensorType:
    same_dtype("put_slice", x, update)
    for what, values in ((f"dimensions in update {update}", update.shape), ("starts", starts), ("steps", steps)):
        expect_rank("put_slice", what, values, x.rank)
    not_negative("put_slice", update.shape)
    for n, (start, size, step) in enumerate(zip(starts, update.shape, steps, strict=True)):
        last = start + (size - 1) * step
        inside = all(dims.at_most(0, end) is not False and dims.at_most(end, x.shape[n] - 1) is not False for end in (start, last))
        if size != 0 and not inside:
            raise VerifyError(f"put_slice: elements {start}..{last} leave dimension {n} of {x}")
    return x


@put_slice.region
def _(r: RegionBuilder, x: TensorType, update: TensorType, *, starts: tuple[Dim, ...], steps: tuple[int, ...]) -> None:
    _copied(r, x)
    axes = r.grid(update.shape, "u")
    places = [start + axis * step for start, axis, step in zip(starts, axes, steps, strict=True)]
    r.store(0, places, r.load(1, axes, compute=False), axes=axes)


@put_slice.samples
def _() -> Iterator[Sample]:
    yield Sample((draw(5, 6), draw(2, 3)), {"starts": (1, 5), "steps": (2, -2)})
    yield Sample((draw(5, dtype=f16), draw(0, dtype=f16)), {"starts": (5,), "steps": (1,)})
    yield Sample((draw(), draw(seed=1)), {"starts": (), "steps": ()})
    yield refused((draw(5), draw(3)), "elements 3..5 leave dimension 0 of f32[5]", starts=(3,), steps=(1,))
    yield refused((draw(5), draw(3)), "got 0 starts, expected 1", starts=(), steps=(1,))
    yield refused((draw(5), draw(1, 3)), "got 2 dimensions in update f32[1, 3], expected 1", starts=(0,), steps=(1,))
