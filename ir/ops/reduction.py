"""Reductions and running folds along axes, softmax and its relatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .. import dims, scalar
from ..dims import Dim
from ..errors import VerifyError
from ..scalar import Traced
from ..summation import running
from ..summation import total as total_of
from ..types import TensorType, boolean, f16, i8, i32, i64, u8
from .sampling import array, bf16, draw, refused, specials
from .structure import RegionBuilder
from .table import OpDef, Sample, axis_of, structured

Tensor = np.ndarray[Any, Any]


def lowest(dtype: np.dtype[Any]) -> Any:
    """The identity of the maximum."""
    return False if dtype.kind == "b" else -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def highest(dtype: np.dtype[Any]) -> Any:
    """The identity of the minimum."""
    return True if dtype.kind == "b" else np.inf if dtype.kind == "f" else np.iinfo(dtype).max


# --- what reductions share --------------------------------------------------------------------------------------------


def normalized(op: str, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes as 0..rank-1; VerifyError for one out of range or named twice."""
    result = tuple(axis_of(op, axis, rank) for axis in axes)
    if len(set(result)) != len(result):
        raise VerifyError(f"{op}: got axes {list(axes)}, expected each once")
    return result


def reduced(op: str, x: TensorType, axes: Sequence[int], keepdims: bool) -> TensorType:
    """The type of x with `axes` folded."""
    folded = normalized(op, axes, x.rank)
    if keepdims:
        return x.with_shape(tuple(1 if n in folded else size for n, size in enumerate(x.shape)))
    return x.with_shape(tuple(size for n, size in enumerate(x.shape) if n not in folded))


def expect_numbers(op: str, x: TensorType, kinds: tuple[str, ...], expected: str) -> None:
    """VerifyError unless the dtype of x is of one of these kinds."""
    if x.dtype.kind not in kinds:
        raise VerifyError(f"{op}: got {x}, expected {expected}")


class Folding:
    """The axes of a reduction in a region: all of x's, those that fold, those that stay, and where the result goes."""

    def __init__(self, r: RegionBuilder, x: TensorType, axes: Sequence[int], keepdims: bool = False) -> None:
        folded = {axis % x.rank for axis in axes}
        self.all = tuple(r.axis(size, "k" if n in folded else "i") for n, size in enumerate(x.shape))
        self.over = tuple(axis for n, axis in enumerate(self.all) if n in folded)
        self.kept = tuple(axis for n, axis in enumerate(self.all) if n not in folded)
        places: list[Dim] = [0 if n in folded else axis for n, axis in enumerate(self.all)]
        self.result: tuple[Dim, ...] = tuple(places) if keepdims else self.kept
        self.count = dims.product(size for n, size in enumerate(x.shape) if n in folded)


def number_of(r: RegionBuilder, count: Dim, like: Traced) -> Traced:
    """A count as data in the dtype of `like`: a literal where it is known."""
    if isinstance(count, int):
        return r.constant(scalar.literal_of(count, like.dtype), like.dtype)
    value: Traced = scalar.cast(r.index(count), like.dtype)
    return value


def _fold_region(kind: str) -> Callable[..., None]:
    def build(r: RegionBuilder, x: TensorType, *, axes: tuple[int, ...], keepdims: bool) -> None:
        fold = Folding(r, x, axes, keepdims)
        value = r.load(0, fold.all)
        result = r.reduce(kind, fold.over, value, fold.kept) if axes else value
        r.store(0, fold.result, result, axes=fold.kept)

    return build


_NUMBERS = (("float", "int", "uint", "complex"), "numbers")
_ORDERED = (("float", "int", "uint", "bool"), "an ordered dtype")
_BOOLS = (("bool",), "bool")


def _declare_fold(definition: OpDef, kind: str, accepted: tuple[tuple[str, ...], str]) -> None:
    def infer(x: TensorType, *, axes: tuple[int, ...], keepdims: bool) -> TensorType:
        expect_numbers(definition.name, x, *accepted)
        return reduced(definition.name, x, axes, keepdims)

    definition.infers(infer)
    definition.region(_fold_region(kind))


@structured()
def sum_(x: Tensor, /, *, axes: tuple[int, ...], keepdims: bool = False) -> Tensor:
    """The sum over `axes`, in x's dtype (f32 for narrower floats); 0 of nothing."""
    return total_of(x, axes, keepdims)


@structured()
def prod(x: Tensor, /, *, axes: tuple[int, ...], keepdims: bool = False) -> Tensor:
    """The product over `axes`, in x's dtype (f32 for narrower floats); 1 of nothing."""
    return np.asarray(x.prod(axis=axes, keepdims=keepdims, dtype=x.dtype))


@structured()
def reduce_max(x: Tensor, /, *, axes: tuple[int, ...], keepdims: bool = False) -> Tensor:
    """The largest over `axes`; NaN if any is NaN; the dtype's lowest value of nothing."""
    return np.asarray(x.max(axis=axes, keepdims=keepdims, initial=lowest(x.dtype)))


@structured()
def reduce_min(x: Tensor, /, *, axes: tuple[int, ...], keepdims: bool = False) -> Tensor:
    """The smallest over `axes`; NaN if any is NaN; the dtype's highest value of nothing."""
    return np.asarray(x.min(axis=axes, keepdims=keepdims, initial=highest(x.dtype)))


@structured()
def any_(x: Tensor, /, *, axes: tuple[int, ...], keepdims: bool = False) -> Tensor:
    """Whether any bool over `axes` is true; false of nothing."""
    return np.asarray(x.any(axis=axes, keepdims=keepdims))


@structured()
def all_(x: Tensor, /, *, axes: tuple[int, ...], keepdims: bool = False) -> Tensor:
    """Whether all bools over `axes` are true; true of nothing."""
    return np.asarray(x.all(axis=axes, keepdims=keepdims))


_declare_fold(sum_, "sum", _NUMBERS)
_declare_fold(prod, "prod", _NUMBERS)
_declare_fold(reduce_max, "max", _ORDERED)
_declare_fold(reduce_min, "min", _ORDERED)
_declare_fold(any_, "any", _BOOLS)
_declare_fold(all_, "all", _BOOLS)


@structured()
def mean(x: Tensor, /, *, axes: tuple[int, ...], keepdims: bool = False) -> Tensor:
    """The sum over `axes` divided by their number of elements (integers truncate); NaN of nothing."""
    count = int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))
    return np.asarray(scalar.div(total_of(x, axes, keepdims), count))


@mean.infers
def _(x: TensorType, *, axes: tuple[int, ...], keepdims: bool) -> TensorType:
    expect_numbers("mean", x, *_NUMBERS)
    return reduced("mean", x, axes, keepdims)


@mean.region
def _(r: RegionBuilder, x: TensorType, *, axes: tuple[int, ...], keepdims: bool) -> None:
    fold = Folding(r, x, axes, keepdims)
    value = r.load(0, fold.all)
    total = r.reduce("sum", fold.over, value, fold.kept) if axes else value
    r.store(0, fold.result, scalar.div(total, number_of(r, fold.count, total)), axes=fold.kept)


# --- the index of the extreme -----------------------------------------------------------------------------------------


def _extreme_index(x: Tensor, find: Callable[..., Any], axis: int, keepdims: bool, last: bool) -> Tensor:
    found = np.asarray(find(np.flip(x, axis) if last else x, axis=axis, keepdims=keepdims))
    return x.shape[axis] - 1 - found if last else found


@structured()
def argmax(x: Tensor, /, *, axis: int, keepdims: bool = False, last: bool = False) -> Tensor:
    """The i64 index of the first (or last) largest element along `axis`; NaN counts as the largest."""
    return _extreme_index(x, np.argmax, axis, keepdims, last)


@structured()
def argmin(x: Tensor, /, *, axis: int, keepdims: bool = False, last: bool = False) -> Tensor:
    """The i64 index of the first (or last) smallest element along `axis`; NaN counts as the smallest."""
    return _extreme_index(x, np.argmin, axis, keepdims, last)


def _declare_index(definition: OpDef) -> None:
    name = definition.name

    def infer(x: TensorType, *, axis: int, keepdims: bool, last: bool) -> TensorType:
        expect_numbers(name, x, *_ORDERED)
        if x.shape[axis_of(name, axis, x.rank)] == 0:
            raise VerifyError(f"{name}: axis {axis} of {x} is empty, expected 1 or more elements")
        return reduced(name, x, (axis,), keepdims).with_dtype(i64)

    def build(r: RegionBuilder, x: TensorType, *, axis: int, keepdims: bool, last: bool) -> None:
        fold = Folding(r, x, (axis,), keepdims)
        found = r.reduce(f"{name}_last" if last else name, fold.over, r.load(0, fold.all), fold.kept)
        r.store(0, fold.result, found, axes=fold.kept)

    definition.infers(infer)
    definition.region(build)


_declare_index(argmax)
_declare_index(argmin)


# --- running folds ----------------------------------------------------------------------------------------------------


def _running(x: Tensor, fold: Callable[..., Any], identity: int, axis: int, exclusive: bool, reverse: bool) -> Tensor:
    x = np.flip(x, axis) if reverse else x
    if exclusive and x.shape[axis]:
        first = np.full_like(x.take([0], axis), identity)
        x = np.concatenate([first, x.take(np.arange(x.shape[axis] - 1), axis)], axis)
    result = np.asarray(fold(x, axis))
    return np.flip(result, axis) if reverse else result


@structured()
def cumsum(x: Tensor, /, *, axis: int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """The running sum along `axis`, without the element itself if `exclusive`, from the end if `reverse`."""
    return _running(x, running, 0, axis, exclusive, reverse)


@structured()
def cumprod(x: Tensor, /, *, axis: int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """The running product along `axis`, without the element itself if `exclusive`, from the end if `reverse`."""
    return _running(x, lambda x, axis: np.cumprod(x, axis=axis, dtype=x.dtype), 1, axis, exclusive, reverse)


def _declare_scan(definition: OpDef) -> None:
    def infer(x: TensorType, *, axis: int, exclusive: bool, reverse: bool) -> TensorType:
        expect_numbers(definition.name, x, *_NUMBERS)
        axis_of(definition.name, axis, x.rank)
        return x

    def build(r: RegionBuilder, x: TensorType, *, axis: int, exclusive: bool, reverse: bool) -> None:
        axes = r.grid(x.shape)
        r.store(0, axes, r.scan(definition.name, axes[axis % x.rank], r.load(0, axes), axes, exclusive, reverse))

    definition.infers(infer)
    definition.region(build)


_declare_scan(cumsum)
_declare_scan(cumprod)


# --- softmax ----------------------------------------------------------------------------------------------------------


@structured()
def softmax(x: Tensor, /, *, axis: int) -> Tensor:
    """exp(x - m) / sum of exp(x - m) along `axis`, with m the largest; NaN where all are -inf."""
    weights = np.exp(x - x.max(axis=axis, keepdims=True, initial=-np.inf))
    return np.asarray(weights / total_of(weights, (axis,), keepdims=True))


@structured()
def log_softmax(x: Tensor, /, *, axis: int) -> Tensor:
    """(x - m) - log of the sum of exp(x - m) along `axis`, with m the largest."""
    shifted = x - x.max(axis=axis, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(total_of(np.exp(shifted), (axis,), keepdims=True)))


def _infer_softmax(name: str) -> Callable[..., TensorType]:
    def infer(x: TensorType, *, axis: int) -> TensorType:
        expect_numbers(name, x, ("float",), "floats")
        axis_of(name, axis, x.rank)
        return x

    return infer


softmax.infers(_infer_softmax("softmax"))
log_softmax.infers(_infer_softmax("log_softmax"))


@softmax.region
def _(r: RegionBuilder, x: TensorType, *, axis: int) -> None:
    fold = Folding(r, x, (axis,))
    score = r.let(r.load(0, fold.all), fold.all)
    largest = r.reduce("max", fold.over, score, fold.kept)
    weight = r.let(scalar.exp(scalar.sub(score, largest)), fold.all)
    total = r.reduce("sum", fold.over, weight, fold.kept)
    r.store(0, fold.all, scalar.div(weight, total))


@log_softmax.region
def _(r: RegionBuilder, x: TensorType, *, axis: int) -> None:
    fold = Folding(r, x, (axis,))
    score = r.let(r.load(0, fold.all), fold.all)
    largest = r.reduce("max", fold.over, score, fold.kept)
    shifted = r.let(scalar.sub(score, largest), fold.all)
    total = r.reduce("sum", fold.over, scalar.exp(shifted), fold.kept)
    r.store(0, fold.all, scalar.sub(shifted, scalar.log(total)))


@structured()
def logsumexp(x: Tensor, /, *, axes: tuple[int, ...], keepdims: bool = False) -> Tensor:
    """The logarithm of the sum of exp(x) over `axes`, without overflow; -inf of nothing."""
    largest = x.max(axis=axes, keepdims=True, initial=-np.inf)
    shift = np.where(np.isinf(largest), 0, largest).astype(x.dtype)
    result = np.log(total_of(np.exp(x - shift), axes, keepdims=True)) + shift
    return np.asarray(result if keepdims else result.squeeze(axes))


@logsumexp.infers
def _(x: TensorType, *, axes: tuple[int, ...], keepdims: bool) -> TensorType:
    expect_numbers("logsumexp", x, ("float",), "floats")
    return reduced("logsumexp", x, axes, keepdims)


@logsumexp.region
def _(r: RegionBuilder, x: TensorType, *, axes: tuple[int, ...], keepdims: bool) -> None:
    fold = Folding(r, x, axes, keepdims)
    score = r.let(r.load(0, fold.all), fold.all)
    largest = r.reduce("max", fold.over, score, fold.kept) if axes else score
    shift = r.let(scalar.where(scalar.is_inf(largest), 0.0, largest), fold.kept)
    weight = scalar.exp(scalar.sub(score, shift))
    total = r.reduce("sum", fold.over, weight, fold.kept) if axes else weight
    r.store(0, fold.result, scalar.add(scalar.log(total), shift), axes=fold.kept)


# --- samples ----------------------------------------------------------------------------------------------------------


def _axes_samples(*inputs: Tensor) -> Iterator[Sample]:
    for x in inputs:
        yield Sample((x,), {"axes": (-1,)})
        yield Sample((x,), {"axes": tuple(range(x.ndim)), "keepdims": True})
        yield Sample((x,), {"axes": (0,)})
        yield Sample((x,), {"axes": ()})
    yield refused((inputs[0],), "axis 7 is out of range for rank", axes=(7,))
    yield refused((inputs[0],), "got axes [0, 0], expected each once", axes=(0, 0))


_FLOATS = (draw(3, 4, 5), draw(7), draw(1, 3), draw(0, 3), draw(6, 40, dtype=f16), draw(6, 40, dtype=bf16), specials())
_INTEGERS = (
    draw(3, 4, dtype=i32),
    draw(5, dtype=i64),
    draw(4, 9, dtype=i8, low=-128, high=127),
    draw(4, 9, dtype=u8, high=255),
    draw(0, 2, dtype=i32),
)
_FLAGS = (draw(3, 4, dtype=boolean), draw(0, 3, dtype=boolean), draw(5, dtype=boolean))


def _numbers() -> Iterator[Sample]:
    yield Sample((draw(),), {"axes": ()})
    yield from _axes_samples(*_FLOATS, *_INTEGERS)
    yield refused((draw(3, dtype=boolean),), "got bool[3], expected numbers", axes=(0,))


def _ordered() -> Iterator[Sample]:
    yield from _axes_samples(*_FLOATS, *_INTEGERS, *_FLAGS)
    yield refused((np.asarray(["a"], dtype=object),), "got string[1], expected an ordered dtype", axes=(0,))


def _flags() -> Iterator[Sample]:
    yield from _axes_samples(*_FLAGS)
    yield refused((draw(3),), "got f32[3], expected bool", axes=(0,))


def _index_samples() -> Iterator[Sample]:
    for x in (
        draw(3, 4),
        draw(3, 5, dtype=i32, low=0, high=2),
        specials(),
        draw(4, dtype=f16),
        draw(3, 4, dtype=boolean),
        draw(0, 2),
        draw(2, 1),
    ):
        yield Sample((x,), {"axis": -1})
        yield Sample((x,), {"axis": x.ndim - 1, "keepdims": True, "last": True})
    yield Sample((array(1, 3, 3, 1, dtype=i32),), {"axis": 0, "last": True})
    yield refused((draw(2, 0),), "axis 1 of f32[2, 0] is empty, expected 1 or more elements", axis=1)
    yield refused((draw(2),), "axis 1 is out of range for rank 1", axis=1)


def _scan_samples() -> Iterator[Sample]:
    for x in (draw(3, 5), draw(4, dtype=i32), draw(0, 2), draw(2, 0), draw(5, 9, dtype=f16), specials()):
        for exclusive in (False, True):
            for reverse in (False, True):
                yield Sample((x,), {"axis": -1, "exclusive": exclusive, "reverse": reverse})
    yield Sample((draw(3, 5),), {"axis": 0})
    yield refused((draw(3),), "axis -2 is out of range for rank 1", axis=-2)
    yield refused((draw(3, dtype=boolean),), "got bool[3], expected numbers", axis=0)


def _softmax_samples() -> Iterator[Sample]:
    for x in (draw(3, 4, 5), draw(7), draw(1, 1), draw(0, 3), draw(3, 0), draw(6, 40, dtype=f16), draw(6, 40, dtype=bf16), specials()):
        yield Sample((x,), {"axis": -1})
        yield Sample((x,), {"axis": 0})
    yield Sample((array(-np.inf, -np.inf),), {"axis": 0})
    yield Sample((draw(4, 5, low=80.0, high=200.0),), {"axis": 1})
    yield refused((draw(3, dtype=i32),), "got i32[3], expected floats", axis=0)
    yield refused((draw(3),), "axis 1 is out of range for rank 1", axis=1)


def _logsumexp_samples() -> Iterator[Sample]:
    yield from _axes_samples(*_FLOATS, array(-np.inf, -np.inf), draw(4, 5, low=80.0, high=200.0))
    yield refused((draw(3, dtype=i32),), "got i32[3], expected floats", axes=(0,))


for _op, _samples in ((sum_, _numbers), (prod, _numbers), (mean, _numbers), (reduce_max, _ordered), (reduce_min, _ordered)):
    _op.samples(_samples)
for _op, _samples in ((any_, _flags), (all_, _flags), (argmax, _index_samples), (argmin, _index_samples), (logsumexp, _logsumexp_samples)):
    _op.samples(_samples)
for _op, _samples in ((cumsum, _scan_samples), (cumprod, _scan_samples), (softmax, _softmax_samples), (log_softmax, _softmax_samples)):
    _op.samples(_samples)
