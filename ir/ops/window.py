"""Convolutions over [batch, channels, spatial ...] of any spatial rank, and what all window ops share.

`before` and `after` pad each spatial dimension; a ceiling in an output size is a larger `after`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import dims, scalar
from ..dims import Dim
from ..errors import InputError, VerifyError
from ..scalar import Traced
from ..types import TensorType, f16, from_numpy, i8, i32, u8
from .contraction import accumulator, product_dtype, widened
from .movement import expect_rank, not_negative
from .reduction import expect_numbers
from .sampling import bf16, draw, refused
from .structure import RegionBuilder
from .table import Sample, bound, same_dtype, structured

Tensor = np.ndarray[Any, Any]
Ints = tuple[int, ...]


def padded(x: Tensor, before: Sequence[Dim], after: Sequence[Dim], value: Any) -> Tensor:
    """x with its spatial dimensions padded, or cut where an amount is negative: what one side pads the other may cut."""
    pairs = list(zip(bound(before), bound(after), strict=True))
    amounts = [(0, 0), (0, 0), *((max(low, 0), max(high, 0)) for low, high in pairs)]
    x = np.pad(x, amounts, constant_values=scalar.literal_of(value, from_numpy(x.dtype)))
    for n, (low, high) in enumerate(pairs, start=2):
        x = x.take(np.arange(max(-low, 0), x.shape[n] - max(-high, 0)), axis=n)
    return x


def windows(x: Tensor, window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Tensor:
    """A view [batch, channels, places ..., window ...] of all windows; InputError where the number of places is below 0.

    It is 0 where a window does not fit by no more than a stride, as `output_sizes` counts.
    """
    rank = len(window)
    reach = tuple((size - 1) * dilation + 1 for size, dilation in zip(window, dilations, strict=True))
    counts = [(size - over) // stride + 1 for size, over, stride in zip(x.shape[2:], reach, strides, strict=True)]
    if min(counts, default=0) < 0:
        raise InputError(f"windows that reach over {list(reach)} are larger than the padded sizes {list(x.shape[2:])}")
    # Where no window fits one is made to, and not taken.
    x = np.pad(x, [(0, 0), (0, 0), *((0, max(over - size, 0)) for size, over in zip(x.shape[2:], reach, strict=True))])
    view = np.lib.stride_tricks.sliding_window_view(x, reach, axis=tuple(range(2, 2 + rank)))
    places = (slice(0, count * stride, stride) for count, stride in zip(counts, strides, strict=True))
    return view[(slice(None), slice(None), *places, *(slice(None, None, d) for d in dilations))]


def output_sizes(
    op: str, x: TensorType, window: Sequence[Dim], strides: Ints, dilations: Ints, before: Sequence[Dim], after: Sequence[Dim]
) -> tuple[Dim, ...]:
    """The spatial sizes of a window op's result; VerifyError for attributes that do not fit x."""
    rank = x.rank - 2
    if rank < 0:
        raise VerifyError(f"{op}: got {x}, expected [batch, channels, spatial ...]")
    for what, values in (
        ("window sizes", window),
        ("strides", strides),
        ("dilations", dilations),
        ("amounts before", before),
        ("amounts after", after),
    ):
        expect_rank(op, what, values, rank)
    for what, steps in (("strides", strides), ("dilations", dilations)):
        if any(step < 1 for step in steps):
            raise VerifyError(f"{op}: got {what} {list(steps)}, expected 1 or more")
    sizes: list[Dim] = []
    for n in range(rank):
        reach = (window[n] - 1) * dilations[n] + 1
        room = x.shape[n + 2] + before[n] + after[n] - reach
        if dims.at_most(0, room) is False:
            raise VerifyError(f"{op}: a window that reaches over {reach} is larger than the padded dimension {n + 2} of {x}")
        sizes.append(room // strides[n] + 1)
    return tuple(sizes)


class Places:
    """The subscripts of a window op: output places, window axes (0 where a window has size 1), input subscripts."""

    def __init__(
        self, r: RegionBuilder, sizes: Sequence[Dim], window: Sequence[Dim], strides: Ints, dilations: Ints, before: Sequence[Dim]
    ) -> None:
        self.places = r.grid(sizes, "p")
        self.window: tuple[Dim, ...] = tuple(0 if size == 1 else r.axis(size, "k") for size in window)
        self.over = tuple(axis for axis in self.window if axis != 0)
        self.inputs = tuple(p * s + k * d - b for p, k, s, d, b in zip(self.places, self.window, strides, dilations, before, strict=True))


# --- convolution ------------------------------------------------------------------------------------------------------


@structured()
def conv(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    /,
    *,
    strides: Ints,
    dilations: Ints,
    before: tuple[Dim, ...],
    after: tuple[Dim, ...],
    groups: int = 1,
    wide: bool = False,
) -> Tensor:
    """Cross-correlation of x [N, C, ..] with w [O, C / groups, ..] over zero-padded windows, plus bias [O].

    8-bit integers give i32, and their dtypes may differ in signedness. Floats of 16 bits give f32 where it is `wide`.
    """
    x, w = widened(x), widened(w)
    view = windows(padded(x, before, after, 0), w.shape[2:], strides, dilations)
    rank = w.ndim - 2
    places = view.shape[2 : 2 + rank]
    depth = int(np.prod(w.shape[1:], dtype=np.int64))
    grouped = np.moveaxis(view.reshape(x.shape[0], groups, w.shape[1], *view.shape[2:]), 2, 2 + rank)
    columns = grouped.reshape(x.shape[0], groups, int(np.prod(places, dtype=np.int64)), depth)
    filters = w.reshape(groups, w.shape[0] // groups, depth)
    result = np.matmul(filters[None], columns.swapaxes(-1, -2)).reshape(x.shape[0], w.shape[0], *places)
    return np.asarray(result if bias is None else result + bias.reshape(-1, *([1] * rank)))


def _check_filters(
    op: str, x: TensorType, w: TensorType, bias: TensorType | None, groups: int, inputs: Dim, outputs: Dim, wide: bool = False
) -> TensorType:
    """Checks that convolutions share; returns the result's type with x's shape."""
    for operand in (x, w):
        expect_numbers(op, operand, ("float", "int", "uint"), "numbers")
    expect_rank(op, f"dimensions in filters {w}", w.shape, x.rank)
    if accumulator(x.dtype) != i32 or accumulator(w.dtype) != i32:
        same_dtype(op, x, w)
    if groups < 1 or dims.divides(groups, w.shape[0]) is not True:
        raise VerifyError(f"{op}: dimension 0 of filters {w} is not known to be a multiple of {groups} groups")
    if dims.equal(x.shape[1], inputs) is not True:
        raise VerifyError(f"{op}: got {x.shape[1]} channels in {x}, expected {inputs} for filters {w} in {groups} groups")
    result = x.with_dtype(product_dtype(op, x.dtype, wide))
    if bias is not None and (bias.rank != 1 or bias.dtype != result.dtype or dims.equal(bias.shape[0], outputs) is not True):
        raise VerifyError(f"{op}: got bias {bias}, expected {result.dtype}[{outputs}]")
    return result


@conv.infers
def _(
    x: TensorType,
    w: TensorType,
    bias: TensorType | None = None,
    *,
    strides: Ints,
    dilations: Ints,
    before: tuple[Dim, ...],
    after: tuple[Dim, ...],
    groups: int,
    wide: bool,
) -> TensorType:
    if w.rank < 2:
        raise VerifyError(f"conv: got filters {w}, expected [outputs, inputs, spatial ...]")
    result = _check_filters("conv", x, w, bias, groups, w.shape[1] * groups, w.shape[0], wide)
    sizes = output_sizes("conv", x, w.shape[2:], strides, dilations, before, after)
    return result.with_shape((x.shape[0], w.shape[0], *sizes))


@conv.region
def _(
    r: RegionBuilder,
    x: TensorType,
    w: TensorType,
    bias: TensorType | None = None,
    *,
    strides: Ints,
    dilations: Ints,
    before: tuple[Dim, ...],
    after: tuple[Dim, ...],
    groups: int,
    wide: bool,
) -> None:
    image, output = r.axis(x.shape[0], "i"), r.axis(w.shape[0], "j")
    depth = w.shape[1]
    inner: Dim = 0 if depth == 1 else r.axis(depth, "c")
    at = Places(r, r.outputs[0].type.shape[2:], w.shape[2:], strides, dilations, before)
    channel = inner if groups == 1 else (output // (w.shape[0] // groups)) * depth + inner
    outside = 0 if any(amount != 0 for amount in (*before, *after)) else None
    product = scalar.mul(
        scalar.cast(r.load(0, (image, channel, *at.inputs), outside), accumulator(x.dtype)),
        scalar.cast(r.load(1, (output, inner, *at.window)), accumulator(w.dtype)),
    )
    _store_sum(r, product, (*(() if inner == 0 else (inner,)), *at.over), (image, output, *at.places), bias, output)


def _store_sum(r: RegionBuilder, product: Traced, over: Sequence[Dim], axes: Sequence[Dim], bias: TensorType | None, output: Dim) -> None:
    # One channel and a window of one element: there is nothing to fold.
    total = r.reduce("sum", over, product, axes) if over else product
    r.store(0, axes, total if bias is None else scalar.add(total, r.load(2, (output,))))


def window_attrs(rank: int, **changes: Any) -> dict[str, Any]:
    """A sample's attributes without strides, dilations or padding, and `changes`."""
    ones, zeros = (1,) * rank, (0,) * rank
    return {"strides": ones, "dilations": ones, "before": zeros, "after": zeros, **changes}


@conv.samples
def _() -> Iterator[Sample]:
    x, w = draw(2, 4, 7, 6), draw(6, 4, 3, 2)
    yield Sample((x, w, draw(6)), window_attrs(2))
    yield Sample((x, w), window_attrs(2, strides=(2, 1), before=(1, 0), after=(2, 1)))
    yield Sample((x, w), window_attrs(2, dilations=(2, 3), before=(0, 2)))
    yield Sample((x, draw(6, 2, 3, 3), draw(6)), window_attrs(2, groups=2, before=(1, 1), after=(1, 1)))
    yield Sample((x, draw(4, 1, 3, 3)), window_attrs(2, groups=4))
    yield Sample((x, draw(8, 1, 1, 1)), window_attrs(2, groups=4))
    yield Sample((x, draw(5, 4, 1, 1), draw(5)), window_attrs(2, strides=(2, 2)))
    yield Sample((draw(2, 3, 9), draw(4, 3, 3)), window_attrs(1, before=(-1,)))
    yield Sample((draw(1, 2, 4, 4, 4), draw(3, 2, 2, 2, 2)), window_attrs(3))
    yield Sample((draw(2, 3), draw(4, 3)), window_attrs(0))
    yield Sample((draw(0, 3, 5), draw(4, 3, 3)), window_attrs(1))
    for dtype in (f16, bf16):
        yield Sample((draw(1, 8, 5, 5, dtype=dtype), draw(4, 8, 3, 3, dtype=dtype), draw(4, dtype=dtype)), window_attrs(2, before=(1, 1)))
    yield Sample((draw(1, 8, 5, 5, dtype=bf16), draw(4, 8, 3, 3, dtype=bf16), draw(4)), window_attrs(2, before=(1, 1), wide=True))
    yield Sample(
        (draw(1, 3, 5, dtype=u8, high=255), draw(4, 3, 3, dtype=i8, low=-128, high=127), draw(4, dtype=i32)), window_attrs(1, after=(1,))
    )
    yield refused(
        (x, draw(6, 3, 3, 2)), "got 4 channels in f32[2, 4, 7, 6], expected 3 for filters f32[6, 3, 3, 2] in 1 groups", **window_attrs(2)
    )
    yield refused((x, w, draw(5)), "got bias f32[5], expected f32[6]", **window_attrs(2))
    yield refused((x, w), "dimension 0 of filters f32[6, 4, 3, 2] is not known to be a multiple of 4 groups", **window_attrs(2, groups=4))
    yield refused(
        (x, draw(6, 4, 9, 2)), "a window that reaches over 9 is larger than the padded dimension 2 of f32[2, 4, 7, 6]", **window_attrs(2)
    )
    yield refused((x, w), "got strides [0, 1], expected 1 or more", **window_attrs(2, strides=(0, 1)))
    yield refused((x, w), "got 1 strides, expected 2", **window_attrs(2, strides=(1,)))
    yield refused((x, draw(6, 4, 3)), "got 3 dimensions in filters f32[6, 4, 3], expected 4", **window_attrs(2))
    yield refused((x, draw(6)), "got filters f32[6], expected [outputs, inputs, spatial ...]", **window_attrs(2))
    yield refused((x, w.astype(np.float16)), "operand dtypes differ: got f32 and f16", **window_attrs(2))


@structured()
def conv_transpose(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    /,
    *,
    strides: Ints,
    dilations: Ints,
    before: tuple[Dim, ...],
    after: tuple[Dim, ...],
    output_padding: tuple[Dim, ...],
    groups: int = 1,
) -> Tensor:
    """The transpose of `conv`: each element of x [N, C, ..] adds w [C, O / groups, ..] into the output, then the
    result is cut by before and after and grown by output_padding at its end.
    """
    x, w = widened(x), widened(w)
    rank, members = w.ndim - 2, w.shape[0] // groups
    spatial = x.shape[2:]
    sizes = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(spatial, strides, w.shape[2:], dilations, strict=True)]
    result = np.zeros((x.shape[0], groups, w.shape[1], *(max(size, 0) for size in sizes)), dtype=x.dtype)
    images = x.reshape(x.shape[0], groups, members, int(np.prod(spatial, dtype=np.int64)))
    for offset in np.ndindex(*w.shape[2:]):
        filters = w[(slice(None), slice(None), *offset)].reshape(groups, members, w.shape[1])
        part = np.matmul(filters.swapaxes(-1, -2)[None], images).reshape(*result.shape[:3], *spatial)
        where = tuple(slice(o * d, o * d + n * s, s) for o, d, n, s in zip(offset, dilations, spatial, strides, strict=True))
        result[(slice(None), slice(None), slice(None), *where)] += part
    full = result.reshape(x.shape[0], groups * w.shape[1], *result.shape[3:])
    # Of nothing with a stride the size is below 0, which the amounts after it make up for.
    ends = [more - high + min(size, 0) for high, more, size in zip(bound(after), bound(output_padding), sizes, strict=True)]
    cut = padded(full, [-low for low in before], ends, 0)
    return cut if bias is None else cut + bias.reshape(-1, *([1] * rank))


@conv_transpose.infers
def _(
    x: TensorType,
    w: TensorType,
    bias: TensorType | None = None,
    *,
    strides: Ints,
    dilations: Ints,
    before: tuple[Dim, ...],
    after: tuple[Dim, ...],
    output_padding: tuple[Dim, ...],
    groups: int,
) -> TensorType:
    if w.rank < 2:
        raise VerifyError(f"conv_transpose: got filters {w}, expected [inputs, outputs, spatial ...]")
    outputs = w.shape[1] * groups
    result = _check_filters("conv_transpose", x, w, bias, groups, w.shape[0], outputs)
    rank = x.rank - 2
    given = (("strides", strides), ("dilations", dilations), ("amounts before", before), ("amounts after", after))
    for what, values in (*given, ("output paddings", output_padding)):
        expect_rank("conv_transpose", what, values, rank)
    sizes = []
    for n in range(rank):
        full = (x.shape[n + 2] - 1) * strides[n] + (w.shape[n + 2] - 1) * dilations[n] + 1
        sizes.append(full - before[n] - after[n] + output_padding[n])
    not_negative("conv_transpose", sizes)
    return result.with_shape((x.shape[0], outputs, *sizes))


@conv_transpose.region
def _(
    r: RegionBuilder,
    x: TensorType,
    w: TensorType,
    bias: TensorType | None = None,
    *,
    strides: Ints,
    dilations: Ints,
    before: tuple[Dim, ...],
    after: tuple[Dim, ...],
    output_padding: tuple[Dim, ...],
    groups: int,
) -> None:
    image, output = r.axis(x.shape[0], "i"), r.axis(r.outputs[0].type.shape[1], "j")
    members, width = w.shape[0] // groups, w.shape[1]
    inner: Dim = 0 if members == 1 else r.axis(members, "c")
    channel = inner if groups == 1 else (output // width) * members + inner
    places = r.grid(r.outputs[0].type.shape[2:], "p")
    window = tuple(0 if size == 1 else r.axis(size, "k") for size in w.shape[2:])
    # Output place p gets input q through window element k where p + before = q * stride + k * dilation.
    spread = [p + b - k * d for p, b, k, d in zip(places, before, window, dilations, strict=True)]
    source = r.load(0, (image, channel, *(q // s for q, s in zip(spread, strides, strict=True))), 0)
    filters = r.load(1, (channel, output if groups == 1 else output % width, *window))
    product = scalar.mul(scalar.cast(source, accumulator(x.dtype)), scalar.cast(filters, accumulator(w.dtype)))
    for q, stride in zip(spread, strides, strict=True):
        if stride != 1:
            product = scalar.where(scalar.eq(r.index(q % stride), 0), product, 0)
    over = tuple(axis for axis in (inner, *window) if not isinstance(axis, int))
    _store_sum(r, product, over, (image, output, *places), bias, output)


@conv_transpose.samples
def _() -> Iterator[Sample]:
    x, w = draw(2, 4, 5, 3), draw(4, 6, 3, 2)

    def attrs(rank: int, **changes: Any) -> dict[str, Any]:
        return window_attrs(rank, **{"output_padding": (0,) * rank, **changes})

    yield Sample((x, w, draw(6)), attrs(2))
    yield Sample((x, w), attrs(2, strides=(2, 3), before=(1, 0), after=(0, 1), output_padding=(1, 2)))
    yield Sample((x, w), attrs(2, dilations=(2, 3)))
    yield Sample((x, draw(4, 3, 2, 2), draw(6)), attrs(2, groups=2, strides=(2, 2)))
    yield Sample((x, draw(4, 1, 2, 2)), attrs(2, groups=4))
    yield Sample((draw(1, 3, 5), draw(3, 4, 1)), attrs(1, before=(1,)))
    yield Sample((draw(1, 3, 5, dtype=f16), draw(3, 4, 3, dtype=f16)), attrs(1, strides=(2,)))
    yield Sample((draw(0, 3, 5), draw(3, 4, 3)), attrs(1))
    yield refused((x, draw(3, 6, 3, 2)), "got 4 channels in f32[2, 4, 5, 3], expected 3", **attrs(2))
    yield refused((x, w), "got size -4 in [-4, 4], expected 0 or more", **attrs(2, before=(11, 0)))
    yield refused((x, w), "got 1 output paddings, expected 2", **attrs(2, output_padding=(0,)))
    yield refused((x, draw(4)), "got filters f32[4], expected [inputs, outputs, spatial ...]", **attrs(2))
    yield refused((x, w, draw(4)), "got bias f32[4], expected f32[6]", **attrs(2))
