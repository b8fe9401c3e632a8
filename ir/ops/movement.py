"""Movement ops: they place, repeat, cut and make elements, and compute none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import dims, scalar
from ..dims import Dim
from ..errors import VerifyError
from ..scalar import Traced
from ..types import LARGEST, DType, TensorType, boolean, f16, f32, i8, i32, i64
from .sampling import bf16, draw, refused
from .structure import RegionBuilder
from .table import Sample, axis_of, bound, broadcast, same_dtype, structured

Tensor = np.ndarray[Any, Any]
PAD_MODES = ("constant", "edge", "reflect", "wrap")


def shown(sizes: Sequence[Dim]) -> str:
    """Sizes as a type prints them."""
    return f"[{', '.join(str(size) for size in sizes)}]"


def not_negative(op: str, sizes: Sequence[Dim]) -> None:
    """VerifyError for a size that is negative whatever its symbols are."""
    for size in sizes:
        if isinstance(size, int) and size < 0:
            raise VerifyError(f"{op}: got size {size} in {shown(sizes)}, expected 0 or more")


def expect_rank(op: str, what: str, values: Sequence[Any], rank: int) -> None:
    """VerifyError unless there is one value for each dimension."""
    if len(values) != rank:
        raise VerifyError(f"{op}: got {len(values)} {what}, expected {rank}")


# --- reshape ----------------------------------------------------------------------------------------------------------


@structured()
def reshape(x: Tensor, /, *, shape: tuple[Dim, ...]) -> Tensor:
    """The same elements in row-major order under another shape."""
    return x.reshape(bound(shape))


@reshape.infers
def _(x: TensorType, *, shape: tuple[Dim, ...]) -> TensorType:
    not_negative("reshape", shape)
    before, after = dims.product(x.shape), dims.product(shape)
    is_same = dims.equal(before, after)
    if is_same is not True:
        fault, size = "are not known to" if is_same is None else "do not", dims.solved(before, after)
        raise VerifyError(
            f"reshape: {shown(x.shape)} and {shown(shape)} {fault} have the same number of elements",
            hint=None if size is None else f"they agree where {size[0]} = {size[1]}",
        )
    return x.with_shape(shape)


def reshape_groups(before: Sequence[Dim], after: Sequence[Dim]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The finest pairing of consecutive dimensions of both shapes whose products are equal."""
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        ends = _group_end(before[i:], after[j:])
        groups.append((tuple(range(i, i + ends[0])), tuple(range(j, j + ends[1]))))
        i, j = i + ends[0], j + ends[1]
    return groups


def _group_end(before: Sequence[Dim], after: Sequence[Dim]) -> tuple[int, int]:
    """How many leading sizes of each shape form the shortest group whose products are equal."""
    for total in range(1, len(before) + len(after) + 1):
        # A group of one size against one size comes first, then those with ones on a side.
        for taken in sorted(range(max(0, total - len(after)), min(total, len(before)) + 1), key=lambda n: abs(2 * n - total)):
            left, right = dims.product(before[:taken]), dims.product(after[: total - taken])
            if dims.equal(left, right) is True and not (left == 0 and total < len(before) + len(after)):
                return taken, total - taken
    return len(before), len(after)


@reshape.region
def _(r: RegionBuilder, x: TensorType, *, shape: tuple[Dim, ...]) -> None:
    axes = r.grid(shape)
    subscripts: list[Dim] = [0] * x.rank
    for sources, targets in reshape_groups(x.shape, shape):
        flat: Dim = 0
        for n in targets:
            flat = flat * shape[n] + (0 if shape[n] == 1 else axes[n])
        # An empty tensor has no elements to find, and no size to divide by.
        places = [n for n in sources if x.shape[n] != 1 and 0 not in x.shape]
        for n in reversed(places):
            subscripts[n] = flat if n == places[0] else flat % x.shape[n]
            flat = flat // x.shape[n] if n != places[0] else flat
    r.store(0, axes, r.load(0, subscripts))


@reshape.samples
def _() -> Iterator[Sample]:
    for before, after in (
        ((2, 6), (3, 4)),
        ((2, 3, 4), (2, 12)),
        ((2, 12), (2, 3, 4)),
        ((2, 1, 4), (2, 4, 1)),
        ((), (1, 1)),
        ((1,), ()),
        ((0, 3), (3, 0)),
        ((0, 3), (0, 7)),
        ((4, 6, 5), (8, 3, 5)),
        ((2, 3, 4, 5), (6, 20)),
    ):
        yield Sample((draw(*before),), {"shape": after})
    yield Sample((draw(4, 2, dtype=i8),), {"shape": (8,)})
    yield Sample((draw(4, 2, dtype=f16),), {"shape": (2, 4)})
    yield refused((draw(2, 3),), "[2, 3] and [4] do not have the same number of elements", shape=(4,))
    yield refused((draw(2, 3),), "got size -1 in [-1, 3], expected 0 or more", shape=(-1, 3))


# --- transpose, broadcast ---------------------------------------------------------------------------------------------


@structured()
def transpose(x: Tensor, /, *, permutation: tuple[int, ...]) -> Tensor:
    """Dimension n of the result is dimension permutation[n] of x."""
    return x.transpose(permutation)


@transpose.infers
def _(x: TensorType, *, permutation: tuple[int, ...]) -> TensorType:
    if sorted(permutation) != list(range(x.rank)):
        raise VerifyError(f"transpose: got permutation {shown(permutation)}, expected one of the {x.rank} dimensions of {x}")
    return x.with_shape(tuple(x.shape[n] for n in permutation))


@transpose.region
def _(r: RegionBuilder, x: TensorType, *, permutation: tuple[int, ...]) -> None:
    axes = r.grid([x.shape[n] for n in permutation])
    r.store(0, axes, r.load(0, [axes[permutation.index(n)] for n in range(x.rank)]))


@transpose.samples
def _() -> Iterator[Sample]:
    yield Sample((draw(2, 3, 4),), {"permutation": (2, 0, 1)})
    yield Sample((draw(2, 3),), {"permutation": (1, 0)})
    yield Sample((draw(),), {"permutation": ()})
    yield Sample((draw(0, 3, dtype=boolean),), {"permutation": (1, 0)})
    yield Sample((draw(4, 3, dtype=bf16),), {"permutation": (1, 0)})
    yield refused((draw(2, 3),), "got permutation [1, 1], expected one of the 2 dimensions of f32[2, 3]", permutation=(1, 1))


@structured()
def broadcast_to(x: Tensor, /, *, shape: tuple[Dim, ...]) -> Tensor:
    """x repeated along its dimensions of size 1 and new leading ones until it has `shape`."""
    return np.broadcast_to(x, bound(shape))


@broadcast_to.infers
def _(x: TensorType, *, shape: tuple[Dim, ...]) -> TensorType:
    not_negative("broadcast_to", shape)
    if len(shape) < x.rank or broadcast("broadcast_to", x.shape, shape) != tuple(shape):
        raise VerifyError(f"broadcast_to: {shown(x.shape)} does not broadcast to {shown(shape)}")
    return x.with_shape(shape)


@broadcast_to.region
def _(r: RegionBuilder, x: TensorType, *, shape: tuple[Dim, ...]) -> None:
    axes = r.grid(shape)
    r.store(0, axes, r.broadcast_load(0, axes))


@broadcast_to.samples
def _() -> Iterator[Sample]:
    for before, after in (((3, 1), (2, 3, 4)), ((), (2, 2)), ((3,), (3,)), ((1, 3), (0, 3)), ((), ())):
        yield Sample((draw(*before),), {"shape": after})
    yield Sample((draw(1, 3, dtype=i64),), {"shape": (2, 3)})
    yield refused((draw(2, 3),), "[2, 3] does not broadcast to [2, 1]", shape=(2, 1))
    yield refused((draw(2, 3),), "sizes 3 and 4 do not broadcast", shape=(2, 4))
    yield refused((draw(2, 3),), "[2, 3] does not broadcast to [3]", shape=(3,))


CONCAT_STRETCH = 16
"""Operands of a concat that one store chooses among."""

# --- concat, slice ----------------------------------------------------------------------------------------------------


@structured()
def concat(*xs: Tensor, axis: int) -> Tensor:
    """The operands one after another along `axis`."""
    return np.concatenate(xs, axis=axis)


@concat.infers
def _(*xs: TensorType, axis: int) -> TensorType:
    if not xs:
        raise VerifyError("concat: got 0 operands, expected 1 or more")
    same_dtype("concat", *xs)
    axis = axis_of("concat", axis, xs[0].rank)
    for x in xs[1:]:
        expect_rank("concat", f"dimensions in {x}", x.shape, xs[0].rank)
        for n, (size, first) in enumerate(zip(x.shape, xs[0].shape, strict=True)):
            if n != axis and dims.equal(size, first) is not True:
                raise VerifyError(f"concat: sizes {first} and {size} of dimension {n} differ, expected the same outside axis {axis}")
    total: Dim = 0
    for x in xs:
        total = total + x.shape[axis]
    return xs[0].with_shape((*xs[0].shape[:axis], total, *xs[0].shape[axis + 1 :]))


@concat.region
def _(r: RegionBuilder, *xs: TensorType, axis: int) -> None:
    axis = axis % xs[0].rank
    starts: list[Dim] = [0]
    for x in xs:
        starts.append(starts[-1] + x.shape[axis])
    # Every element looks at the operands of its stretch: one store for each stretch keeps the work linear in the operands.
    for first in range(0, len(xs), CONCAT_STRETCH):
        last = min(first + CONCAT_STRETCH, len(xs))
        _stretch(r, xs, axis, starts, first, last)


def _stretch(r: RegionBuilder, xs: Sequence[TensorType], axis: int, starts: Sequence[Dim], first: int, last: int) -> None:
    """Store the operands first..last of a concat; the choice among them is no deeper than the logarithm of their number."""
    shape = r.outputs[0].type.shape
    axes = r.grid((*shape[:axis], starts[last] - starts[first], *shape[axis + 1 :]))
    outside = None if last - first == 1 else False if xs[0].dtype == boolean else 0

    def among(low: int, high: int) -> Traced:
        if high - low == 1:
            return r.load(low, [*axes[:axis], axes[axis] - (starts[low] - starts[first]), *axes[axis + 1 :]], outside)
        middle = (low + high) // 2
        is_before = scalar.lt(r.index(axes[axis]), r.index(starts[middle] - starts[first]))
        chosen: Traced = scalar.where(is_before, among(low, middle), among(middle, high))
        return chosen

    r.store(0, [*axes[:axis], axes[axis] + starts[first], *axes[axis + 1 :]], among(first, last), axes)


@concat.samples
def _() -> Iterator[Sample]:
    yield Sample((draw(2, 3), draw(2, 1), draw(2, 4)), {"axis": 1})
    yield Sample((draw(2, 3), draw(0, 3)), {"axis": -2})
    yield Sample((draw(3),), {"axis": 0})
    yield Sample((draw(2, 3, dtype=f16), draw(1, 3, dtype=f16)), {"axis": 0})
    yield Sample((draw(2, dtype=boolean), draw(2, dtype=boolean, seed=1)), {"axis": 0})
    yield Sample((draw(2, dtype=i64), draw(3, dtype=i64)), {"axis": 0})
    yield refused((draw(2, 3), draw(3, 3)), "sizes 2 and 3 of dimension 0 differ, expected the same outside axis 1", axis=1)
    yield refused((draw(2, 3), draw(2)), "got 1 dimensions in f32[2], expected 2", axis=1)
    yield refused((draw(2), draw(2, dtype=i32)), "operand dtypes differ: got f32 and i32", axis=0)
    yield refused((draw(2),), "axis 1 is out of range for rank 1", axis=1)
    yield refused((), "got 0 operands, expected 1 or more", axis=0)


@structured()
def slice_(x: Tensor, /, *, starts: tuple[Dim, ...], sizes: tuple[Dim, ...], steps: tuple[int, ...]) -> Tensor:
    """Element i of a dimension is element start + i * step of x; the result has `sizes`; steps may be negative."""
    for n, (start, size, step) in enumerate(zip(bound(starts), bound(sizes), steps, strict=True)):
        x = x.take(start + np.arange(size) * step, axis=n)
    return x


@slice_.infers
def _(x: TensorType, *, starts: tuple[Dim, ...], sizes: tuple[Dim, ...], steps: tuple[int, ...]) -> TensorType:
    for what, values in (("starts", starts), ("sizes", sizes), ("steps", steps)):
        expect_rank("slice", what, values, x.rank)
    not_negative("slice", sizes)
    if any(abs(step) > LARGEST for step in steps):
        raise VerifyError(f"slice: steps are {list(steps)}, expected at most {LARGEST}")
    for n, (start, size, step) in enumerate(zip(starts, sizes, steps, strict=True)):
        last = start + (size - 1) * step
        inside = all(dims.at_most(0, end) is not False and dims.at_most(end, x.shape[n] - 1) is not False for end in (start, last))
        if size != 0 and not inside:
            raise VerifyError(f"slice: elements {start}..{last} leave dimension {n} of {x}")
    return x.with_shape(sizes)


@slice_.region
def _(r: RegionBuilder, x: TensorType, *, starts: tuple[Dim, ...], sizes: tuple[Dim, ...], steps: tuple[int, ...]) -> None:
    axes = r.grid(sizes)
    r.store(0, axes, r.load(0, [start + axis * step for start, axis, step in zip(starts, axes, steps, strict=True)]))


@slice_.samples
def _() -> Iterator[Sample]:
    yield Sample((draw(5, 6),), {"starts": (1, 5), "sizes": (3, 3), "steps": (1, -2)})
    yield Sample((draw(5),), {"starts": (4,), "sizes": (5,), "steps": (-1,)})
    yield Sample((draw(5, dtype=i32),), {"starts": (5,), "sizes": (0,), "steps": (1,)})
    yield Sample((draw(),), {"starts": (), "sizes": (), "steps": ()})
    yield Sample((draw(4, 4, dtype=bf16),), {"starts": (0, 1), "sizes": (4, 2), "steps": (1, 2)})
    yield refused((draw(5),), "elements 3..5 leave dimension 0 of f32[5]", starts=(3,), sizes=(3,), steps=(1,))
    yield refused((draw(5),), "elements 1..-1 leave dimension 0 of f32[5]", starts=(1,), sizes=(3,), steps=(-1,))
    yield refused((draw(5),), "got 2 starts, expected 1", starts=(3, 0), sizes=(3,), steps=(1,))
    yield refused((draw(5),), "got size -2 in [-2], expected 0 or more", starts=(3,), sizes=(-2,), steps=(1,))


# --- pad --------------------------------------------------------------------------------------------------------------


@structured()
def pad(x: Tensor, /, *, before: tuple[Dim, ...], after: tuple[Dim, ...], mode: str = "constant", value: float = 0.0) -> Tensor:
    """x with more elements around it: `value`, the nearest edge, its reflection without the edge, or x wrapped around.

    Negative amounts cut; what is filled in then still comes from the whole of x.
    """
    filled = None
    for n, (low, high) in enumerate(zip(bound(before), bound(after), strict=True)):
        size = x.shape[n]
        index = np.arange(-low, size + high)
        if mode == "constant":
            outside = ((index < 0) | (index >= size)).reshape([-1 if d == n else 1 for d in range(x.ndim)])
            filled = outside if filled is None else filled | outside
            index = index.clip(0, max(size - 1, 0)) if size else index
        elif mode == "edge":
            index = index.clip(0, size - 1)
        elif mode == "reflect":
            period = max(2 * (size - 1), 1)
            index = np.minimum(index % period, period - index % period) if size > 1 else index * 0
        else:
            index = index % size
        # An empty dimension has nothing to take: its padding is all filled.
        x = x.take(index, axis=n) if size else np.zeros((*x.shape[:n], len(index), *x.shape[n + 1 :]), x.dtype)
    return x if filled is None else np.where(filled, np.asarray(value).astype(x.dtype), x)


@pad.infers
def _(x: TensorType, *, before: tuple[Dim, ...], after: tuple[Dim, ...], mode: str, value: float) -> TensorType:
    expect_rank("pad", "amounts before", before, x.rank)
    expect_rank("pad", "amounts after", after, x.rank)
    if mode not in PAD_MODES:
        raise VerifyError(f"pad: got mode {mode!r}, expected one of {', '.join(PAD_MODES)}")
    if mode != "constant" and any(size == 0 and (b != 0 or a != 0) for size, b, a in zip(x.shape, before, after, strict=True)):
        raise VerifyError(f"pad: an empty dimension of {x} has no elements to pad with in mode {mode!r}")
    shape = tuple(size + b + a for size, b, a in zip(x.shape, before, after, strict=True))
    not_negative("pad", shape)
    return x.with_shape(shape)


def _padded_index(index: Dim, size: Dim, mode: str) -> Dim:
    if mode == "edge":
        return dims.minimum(dims.maximum(index, 0), size - 1)
    if mode == "reflect":
        period = dims.maximum(2 * (size - 1), 1)
        return dims.minimum(index % period, period - index % period) if size != 1 else 0
    return index % size


@pad.region
def _(r: RegionBuilder, x: TensorType, *, before: tuple[Dim, ...], after: tuple[Dim, ...], mode: str, value: float) -> None:
    axes = r.grid(r.outputs[0].type.shape)
    subscripts: list[Dim] = [axis - low for axis, low in zip(axes, before, strict=True)]
    if mode == "constant":
        r.store(0, axes, r.load(0, subscripts, other=value))
        return
    for n, size in enumerate(x.shape):
        if before[n] != 0 or after[n] != 0:
            subscripts[n] = _padded_index(subscripts[n], size, mode)
    # A dimension that varies may be empty, and then all is filled.
    varies = any(not isinstance(size, int) and (b != 0 or a != 0) for size, b, a in zip(x.shape, before, after, strict=True))
    r.store(0, axes, r.load(0, subscripts, other=0) if varies else r.load(0, subscripts))


@pad.samples
def _() -> Iterator[Sample]:
    for mode in PAD_MODES:
        yield Sample((draw(4, 5),), {"before": (1, 0), "after": (2, 3), "mode": mode, "value": 1.5})
        yield Sample((draw(4, 5),), {"before": (-1, 0), "after": (2, -3), "mode": mode})
        yield Sample((draw(1, 3),), {"before": (2, 7), "after": (1, 8), "mode": mode})
        yield Sample((draw(),), {"before": (), "after": (), "mode": mode})
        yield Sample((draw(3, dtype=f16),), {"before": (1,), "after": (1,), "mode": mode, "value": -float("inf")})
    yield Sample((draw(0, 2),), {"before": (1, 0), "after": (1, 1), "value": 2.0})
    yield Sample((draw(3, dtype=i32),), {"before": (1,), "after": (0,), "value": -7})
    yield Sample((draw(3, dtype=boolean),), {"before": (1,), "after": (0,), "value": 1})
    yield refused((draw(3),), "got mode 'mirror', expected one of constant, edge, reflect, wrap", before=(1,), after=(1,), mode="mirror")
    yield refused((draw(3),), "got 2 amounts before, expected 1", before=(1, 0), after=(1,))
    yield refused((draw(3),), "got 0 amounts after, expected 1", before=(1,), after=())
    yield refused((draw(3),), "got size -1 in [-1], expected 0 or more", before=(-4,), after=(0,))
    yield refused(
        (draw(0),), "an empty dimension of f32[0] has no elements to pad with in mode 'edge'", before=(1,), after=(0,), mode="edge"
    )


# --- makers -----------------------------------------------------------------------------------------------------------


@structured()
def iota(*, shape: tuple[Dim, ...], axis: int, dtype: DType) -> Tensor:
    """The index along `axis`: 0, 1, 2 ..."""
    places = [-1 if n == axis % len(shape) else 1 for n in range(len(shape))]
    sizes = bound(shape)
    return np.broadcast_to(scalar.convert(np.arange(sizes[axis], dtype=np.int64), dtype).reshape(places), sizes)


@iota.infers
def _(*, shape: tuple[Dim, ...], axis: int, dtype: DType) -> TensorType:
    not_negative("iota", shape)
    axis_of("iota", axis, len(shape))
    return TensorType(dtype, shape)


@iota.region
def _(r: RegionBuilder, *, shape: tuple[Dim, ...], axis: int, dtype: DType) -> None:
    axes = r.grid(shape)
    r.store(0, axes, scalar.cast(r.index(axes[axis]), dtype))


@iota.samples
def _() -> Iterator[Sample]:
    yield Sample((), {"shape": (5,), "axis": 0, "dtype": i64})
    yield Sample((), {"shape": (2, 3, 4), "axis": -2, "dtype": f32})
    yield Sample((), {"shape": (0, 3), "axis": 1, "dtype": i32})
    yield Sample((), {"shape": (300,), "axis": 0, "dtype": bf16})
    yield refused((), "axis 1 is out of range for rank 1", shape=(5,), axis=1, dtype=i64)
    yield refused((), "got size -5 in [-5], expected 0 or more", shape=(-5,), axis=0, dtype=i64)


@structured()
def dim(*, value: Dim) -> Tensor:
    """A symbolic size as an i64 scalar."""
    return np.asarray(bound((value,))[0], dtype=np.int64)


@dim.infers
def _(*, value: Dim) -> TensorType:
    return TensorType(i64, ())


@dim.region
def _(r: RegionBuilder, *, value: Dim) -> None:
    r.store(0, (), r.index(value), axes=())


@dim.samples
def _() -> Iterator[Sample]:
    yield Sample((), {"value": 7})
    yield refused((draw(3),), "got 1 operands, expected 0", value=1)


@structured()
def full(*, shape: tuple[Dim, ...], value: float, dtype: DType) -> Tensor:
    """Every element is `value`; an integer beyond the dtype wraps around."""
    return np.full(bound(shape), scalar.literal_of(value, dtype), dtype=dtype.numpy)


@full.infers
def _(*, shape: tuple[Dim, ...], value: float, dtype: DType) -> TensorType:
    not_negative("full", shape)
    return TensorType(dtype, shape)


@full.region
def _(r: RegionBuilder, *, shape: tuple[Dim, ...], value: float, dtype: DType) -> None:
    axes = r.grid(shape)
    constant: Traced = r.constant(scalar.literal_of(value, dtype), dtype)
    r.store(0, axes, constant)


@full.samples
def _() -> Iterator[Sample]:
    yield Sample((), {"shape": (2, 3), "value": 1.5, "dtype": f32})
    yield Sample((), {"shape": (), "value": True, "dtype": boolean})
    yield Sample((), {"shape": (0,), "value": 7, "dtype": i8})
    yield Sample((), {"shape": (2,), "value": float("nan"), "dtype": f16})
    yield Sample((), {"shape": (2,), "value": -200, "dtype": i8})
    yield refused((), "got size -2 in [-2], expected 0 or more", shape=(-2,), value=0.0, dtype=f32)
