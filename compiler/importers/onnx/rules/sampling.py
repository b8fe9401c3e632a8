"""Rules that read an image at computed places: GridSample, RoiAlign."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from .....ir import dims
from .....ir.dims import Dim
from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.ops.indexing import NARROW
from .....ir.types import i32, i64
from ..context import Node, cast, rule
from .indexing import checked
from .resize_symbolic import cubic_kernel

MODES = {"bilinear": "linear", "linear": "linear", "nearest": "nearest", "bicubic": "cubic", "cubic": "cubic"}
PADDINGS = ("zeros", "border", "reflection")


@rule("GridSample")
def _grid_sample(n: Node) -> Value:
    x, grid = n.x(0), n.x(1)
    rank = x.type.rank - 2
    mode = MODES.get(n.attr_string("mode", "linear"))
    padding = n.attr_string("padding_mode", "zeros")
    if mode is None or padding not in PADDINGS:
        raise n.fail(f"mode {n.attr_string('mode')!r} or padding {padding!r} is not known")
    if rank < 1 or grid.type.rank != rank + 2 or grid.shape[-1] != rank:
        raise n.fail(f"grid is {grid.type}, expected the coordinates of {rank} axes for {x.type}")
    sizes = n.static_shape(x, "the input")[2:]
    corners = n.attr_flag("align_corners")
    places = []
    for axis, size in enumerate(sizes):
        # The grid's last axis counts from the innermost coordinate outward; -1 and 1 are the ends.
        place = n.b.take(grid, n.b.scalar(rank - 1 - axis, i64), axis=rank + 1)
        scaled = n.b.mul(n.b.add(place, 1.0), (size - 1) / 2 if corners else size / 2)
        places.append(scaled if corners else n.b.sub(scaled, 0.5))
    sampled = _interpolated(n, x, sizes, places, mode, padding, corners)
    return cast(n, sampled, x.dtype)


def _interpolated(n: Node, x: Value, sizes: Sequence[int], places: Sequence[Value], mode: str, padding: str, corners: bool) -> Value:
    """The weighted sum over the neighbours of every place: [batch, channels, *grid]."""
    if mode == "nearest":
        places = [_padded(n, place, size, padding, corners) for place, size in zip(places, sizes, strict=True)]
        return _picked(n, x, sizes, [n.b.round(place) for place in places], padding)
    if mode == "linear":
        places = [_padded(n, place, size, padding, corners) for place, size in zip(places, sizes, strict=True)]
    floors = [n.b.floor(place) for place in places]
    rests = [n.b.sub(place, low) for place, low in zip(places, floors, strict=True)]
    taps = (0, 1) if mode == "linear" else (-1, 0, 1, 2)
    weights = [[_weight(n, rest, tap, mode) for tap in taps] for rest in rests]
    total: Value | None = None
    for choice in itertools.product(range(len(taps)), repeat=len(places)):
        indices = [n.b.add(low, float(taps[k])) for low, k in zip(floors, choice, strict=True)]
        if mode == "cubic":
            indices = [_padded(n, index, size, padding, corners) for index, size in zip(indices, sizes, strict=True)]
        weight = weights[0][choice[0]]
        for axis in range(1, len(places)):
            weight = n.b.mul(weight, weights[axis][choice[axis]])
        shape = (weight.shape[0], 1, *weight.shape[1:])
        term = n.b.mul(_picked(n, x, sizes, indices, padding), cast(n, n.b.reshape(weight, shape=shape), x.dtype))
        total = term if total is None else n.b.add(total, term)
    if total is None:
        raise n.fail("there is nothing to sample")
    return total


def _weight(n: Node, rest: Value, tap: int, mode: str) -> Value:
    """The weight of the neighbour `tap` at a distance of `rest` from the one below."""
    if mode == "linear":
        weight: Value = rest if tap else n.b.sub(n.b.scalar(1.0, rest.dtype), rest)
        return weight
    distance = n.b.abs(n.b.sub(rest, float(tap)))
    near, far = cubic_kernel(-0.75)
    powers = near if tap in (0, 1) else far
    result = n.b.scalar(powers[0], rest.dtype)
    for coefficient in powers[1:]:
        result = n.b.add(n.b.mul(result, distance), coefficient)
    return result


def _padded(n: Node, place: Value, size: int, padding: str, corners: bool) -> Value:
    """A place moved inside: to the border, or reflected at it."""
    if padding == "zeros":
        return place
    if padding == "reflection":
        low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
        if high == low:
            place = n.b.mul(place, 0.0)
        else:
            # Fold onto one period of twice the length, then mirror its second half.
            distance = n.b.mod(n.b.sub(place, low), 2 * (high - low))
            mirrored = n.b.sub(n.b.scalar(2 * (high - low), place.dtype), distance)
            place = n.b.add(n.b.minimum(distance, mirrored), low)
    result: Value = n.b.clip(place, n.b.scalar(0.0, place.dtype), n.b.scalar(size - 1.0, place.dtype))
    return result


def _picked(n: Node, x: Value, sizes: Sequence[int], indices: Sequence[Value], padding: str) -> Value:
    """x at whole indices, [batch, channels, *grid]; 0 outside where the padding is zeros."""
    flat: Value | None = None
    inside: Value | None = None
    narrow = i32 if math.prod(sizes) <= NARROW else i64
    for size, index in zip(sizes, indices, strict=True):
        whole = cast(n, n.b.clip(index, n.b.scalar(0.0, index.dtype), n.b.scalar(size - 1.0, index.dtype)), narrow)
        flat = whole if flat is None else n.b.add(n.b.mul(flat, size), whole)
        valid = n.b.logical_and(n.b.ge(index, 0.0), n.b.le(index, size - 1.0))
        inside = valid if inside is None else n.b.logical_and(inside, valid)
    if flat is None or inside is None:
        raise n.fail("there is nothing to sample")
    batch, channels = x.shape[:2]
    points = flat.shape[1:]
    count = dims.product(points)
    index = n.b.broadcast_to(n.b.reshape(flat, shape=(batch, 1, count)), shape=(batch, channels, count))
    picked = n.b.take_along_axis(n.b.reshape(x, shape=(batch, channels, math.prod(sizes))), index, axis=2)
    result: Value = n.b.reshape(picked, shape=(batch, channels, *points))
    if padding != "zeros":
        return result
    result = n.b.where(n.b.reshape(inside, shape=(batch, 1, *points)), result, n.b.scalar(0.0, x.dtype))
    return result


# --- regions of interest ------------------------------------------------------------------------------------------------


@rule("RoiAlign")
def _roi_align(n: Node) -> Value:
    x, regions, members = n.x(0), n.x(1), n.x(2)
    height, width = n.attr_int("output_height", 1), n.attr_int("output_width", 1)
    ratio = n.attr_int("sampling_ratio")
    if x.type.rank != 4 or regions.type.rank != 2 or height < 1 or width < 1 or ratio < 0:
        raise n.fail(f"got {x.type}, regions {regions.type} and a result of {height} x {width}")
    if ratio == 0:
        raise UnsupportedError("chooses the number of samples by the size of each region", hint="set sampling_ratio")
    mode = n.attr_string("mode", "avg")
    if mode not in ("avg", "max"):
        raise n.fail(f"mode {mode!r} is not known, expected avg or max")
    sizes = n.static_shape(x, "the input")[2:]
    half = 0.5 if n.opset >= 16 and n.attr_string("coordinate_transformation_mode", "half_pixel") == "half_pixel" else 0.0
    scaled = n.b.sub(n.b.mul(regions, n.attr_float("spatial_scale", 1.0)), half)
    places = []
    for axis, (bins, lows, highs) in enumerate(((height, 1, 3), (width, 0, 2))):
        low, high = (n.b.take(scaled, n.b.scalar(column, i64), axis=1) for column in (lows, highs))
        extent = n.b.sub(high, low)
        extent = extent if half else n.b.maximum(extent, 1.0)
        places.append(_sample_places(n, low, extent, bins, ratio, axis))
    return _pooled(n, x, sizes, places, cast(n, members, i64), (height, width, ratio), mode)


def _sample_places(n: Node, low: Value, extent: Value, bins: int, ratio: int, axis: int) -> Value:
    """[regions, bins, samples]: the places of all samples along one axis."""
    step = n.b.iota(shape=(1, bins * ratio), axis=1, dtype=i64)
    fraction = n.b.div(n.b.add(cast(n, step, low.dtype), 0.5), float(bins * ratio))
    count = low.shape[0]
    result: Value = n.b.add(n.b.reshape(low, shape=(count, 1)), n.b.mul(n.b.reshape(extent, shape=(count, 1)), fraction))
    return result


def _pooled(
    n: Node, x: Value, sizes: Sequence[int], places: Sequence[Value], members: Value, form: tuple[int, int, int], mode: str
) -> Value:
    height, width, ratio = form
    count: Dim = members.shape[0]
    grid = (count, height * ratio, width * ratio)
    rows = n.b.broadcast_to(n.b.reshape(places[0], shape=(count, height * ratio, 1)), shape=grid)
    columns = n.b.broadcast_to(n.b.reshape(places[1], shape=(count, 1, width * ratio)), shape=grid)
    own = n.b.take(x, checked(n, members, x.shape[0], negative=False), axis=0)
    # Samples more than one element outside count as 0, nearer ones as the border.
    inside: Value | None = None
    clamped = []
    for place, size in zip((rows, columns), sizes, strict=True):
        valid = n.b.logical_and(n.b.ge(place, -1.0), n.b.le(place, float(size)))
        inside = valid if inside is None else n.b.logical_and(inside, valid)
        clamped.append(n.b.clip(place, n.b.scalar(0.0, place.dtype), n.b.scalar(size - 1.0, place.dtype)))
    corners = _corner_terms(n, own, sizes, clamped)
    split = (count, x.shape[1], height, ratio, width, ratio)
    keep = n.b.reshape(inside, shape=(count, 1, *grid[1:]))
    terms = [n.b.reshape(n.b.where(keep, term, n.b.scalar(0.0, x.dtype)), shape=split) for term in corners]
    if mode == "avg":
        total = terms[0]
        for term in terms[1:]:
            total = n.b.add(total, term)
        result: Value = n.b.mean(total, axes=(3, 5), keepdims=False)
        return result
    # The maximum is over the weighted corners, as ONNX defines it, not over their sums.
    best = terms[0]
    for term in terms[1:]:
        best = n.b.maximum(best, term)
    result = n.b.reduce_max(best, axes=(3, 5), keepdims=False)
    return result


def _corner_terms(n: Node, x: Value, sizes: Sequence[int], places: Sequence[Value]) -> list[Value]:
    """The four neighbours of each place, each times its bilinear weight."""
    floors = [n.b.floor(place) for place in places]
    rests = [n.b.sub(place, low) for place, low in zip(places, floors, strict=True)]
    terms = []
    for down, right in itertools.product((0, 1), repeat=2):
        weight = n.b.mul(_weight(n, rests[0], down, "linear"), _weight(n, rests[1], right, "linear"))
        indices = [n.b.minimum(n.b.add(low, float(tap)), size - 1.0) for low, tap, size in zip(floors, (down, right), sizes, strict=True)]
        shape = (weight.shape[0], 1, *weight.shape[1:])
        terms.append(n.b.mul(_picked(n, x, sizes, indices, "border"), n.b.reshape(weight, shape=shape)))
    return terms
