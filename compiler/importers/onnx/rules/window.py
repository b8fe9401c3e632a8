"""Rules of convolutions and pools: padding modes, output shapes, roundings."""

from __future__ import annotations

import math

from .....ir import dims
from .....ir.dims import Dim
from .....ir.graph import Value
from .....ir.types import i64
from ..context import Node, rule

LARGEST_SEARCH = 1 << 16
"""Windows of one axis that are looked at one by one."""

Pads = tuple[tuple[Dim, ...], tuple[Dim, ...]]


def _window(n: Node, rank: int, name: str = "kernel_shape", default: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """A positive integer for each spatial axis."""
    values = n.attr_ints(name) or default
    if values is None or len(values) != rank or any(value < 1 or value > 1 << 31 for value in values):
        raise n.fail(f"{name} is {list(values) if values else 'missing'}, expected {rank} positive integers")
    return values


def _spatial(n: Node, x: Value) -> tuple[Dim, ...]:
    if x.type.rank < 3:
        raise n.fail(f"input has rank {x.type.rank}, expected at least 3")
    return x.shape[2:]


def _pads(n: Node, sizes: tuple[Dim, ...], window: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]) -> Pads:
    """Explicit pads, or those that auto_pad asks for."""
    rank, mode = len(sizes), n.attr_string("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        pads = n.attr_ints("pads") or (0,) * (2 * rank)
        if len(pads) != 2 * rank or any(abs(pad) > 1 << 31 for pad in pads):
            raise n.fail(f"pads are {list(pads)}, expected two for each of {rank} axes")
        return pads[:rank], pads[rank:]
    if mode == "VALID":
        return (0,) * rank, (0,) * rank
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise n.fail(f"auto_pad {mode!r} is not known")
    before: list[Dim] = []
    after: list[Dim] = []
    for size, extent, stride, dilation in zip(sizes, window, strides, dilations, strict=True):
        reach = (extent - 1) * dilation + 1
        total = dims.simplify(dims.maximum((dims.ceil_div(size, stride) - 1) * stride + reach - size, 0), n.facts)
        half = dims.simplify(total // 2, n.facts)
        before.append(half if mode == "SAME_UPPER" else total - half)
        after.append(total - half if mode == "SAME_UPPER" else half)
    return tuple(before), tuple(after)


# --- convolution ------------------------------------------------------------------------------------------------------


def convolve(n: Node, x: Value, w: Value, bias: Value | None) -> Value:
    """Conv with this node's attributes."""
    sizes = _spatial(n, x)
    if w.type.rank != x.type.rank:
        raise n.fail(f"weights have rank {w.type.rank}, expected {x.type.rank}")
    given = n.attr_ints("kernel_shape")
    window = n.static_shape(w, "the weights")[2:]
    if given is not None and given != window:
        raise n.fail(f"kernel_shape is {list(given)}, and the weights are {w.type}")
    strides = _window(n, len(sizes), "strides", (1,) * len(sizes))
    dilations = _window(n, len(sizes), "dilations", (1,) * len(sizes))
    before, after = _pads(n, sizes, window, strides, dilations)
    result: Value = n.b.conv(x, w, bias, strides=strides, dilations=dilations, before=before, after=after, groups=n.attr_int("group", 1))
    return result


@rule("Conv")
def _conv(n: Node) -> Value:
    return convolve(n, n.x(0), n.x(1), n.optional(2))


@rule("ConvTranspose")
def _conv_transpose(n: Node) -> Value:
    x, w = n.x(0), n.x(1)
    sizes = _spatial(n, x)
    rank = len(sizes)
    window = n.static_shape(w, "the weights")[2:]
    strides = _window(n, rank, "strides", (1,) * rank)
    dilations = _window(n, rank, "dilations", (1,) * rank)
    extra = n.attr_ints("output_padding") or (0,) * rank
    wanted, mode = n.attr_ints("output_shape"), n.attr_string("auto_pad", "NOTSET")
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", ""):
        raise n.fail(f"auto_pad {mode!r} is not known")
    before: tuple[Dim, ...]
    after: tuple[Dim, ...]
    if wanted is None and mode in ("NOTSET", "", "VALID"):
        pads = (n.attr_ints("pads") if mode != "VALID" else None) or (0,) * (2 * rank)
        if len(pads) != 2 * rank or len(extra) != rank:
            raise n.fail(f"pads are {list(pads)} and output_padding {list(extra)} for {rank} axes")
        before, after = pads[:rank], pads[rank:]
    else:
        targets: tuple[Dim, ...] = wanted[-rank:] if wanted else tuple(size * stride for size, stride in zip(sizes, strides, strict=True))
        totals = [
            stride * (size - 1) + more + (extent - 1) * dilation + 1 - target
            for stride, size, more, extent, dilation, target in zip(strides, sizes, extra, window, dilations, targets, strict=True)
        ]
        # A missing element is added at the end, as output padding.
        extra = tuple(more + max(0, -total) if isinstance(total, int) else more for more, total in zip(extra, totals, strict=True))
        totals = [max(0, total) if isinstance(total, int) else total for total in totals]
        halves = [total // 2 for total in totals]
        rests = [total - half for total, half in zip(totals, halves, strict=True)]
        before, after = (tuple(halves), tuple(rests)) if mode == "SAME_UPPER" else (tuple(rests), tuple(halves))
    result: Value = n.b.conv_transpose(
        x,
        w,
        n.optional(2),
        strides=strides,
        dilations=dilations,
        before=before,
        after=after,
        output_padding=extra,
        groups=n.attr_int("group", 1),
    )
    return result


# --- pools ------------------------------------------------------------------------------------------------------------


class _Pool:
    """The geometry of one pool, its output size rounded as the node says."""

    def __init__(self, n: Node, x: Value) -> None:
        self.sizes = _spatial(n, x)
        rank = len(self.sizes)
        self.window = _window(n, rank)
        self.strides = _window(n, rank, "strides", (1,) * rank)
        self.dilations = _window(n, rank, "dilations", (1,) * rank)
        self.before, self.after = _pads(n, self.sizes, self.window, self.strides, self.dilations)
        self.extra: tuple[Dim, ...] = (0,) * rank
        if n.attr_flag("ceil_mode"):
            self.extra = tuple(self._extra(n, axis) for axis in range(rank))

    def _extra(self, n: Node, axis: int) -> Dim:
        """Elements beyond the padding that the last, rounded up window reaches."""
        reach = (self.window[axis] - 1) * self.dilations[axis] + 1
        stride, inside = self.strides[axis], self.sizes[axis] + self.before[axis]
        padded = inside + self.after[axis]
        down, up = (padded - reach) // stride, dims.ceil_div(padded - reach, stride)
        # A window that would start in the padding behind the last element is left out.
        last = dims.maximum(down, dims.minimum(up, (inside - 1) // stride))
        return dims.simplify(dims.maximum(last * stride + reach - padded, 0), n.facts)

    def refuse_windows_of_padding(self, n: Node) -> None:
        """The specification gives no value to a window that holds padding alone, so such a pool is refused, as far as sizes are known."""
        axes = zip(self.sizes, self.window, self.strides, self.dilations, self.before, self.end, strict=True)
        for size, window, stride, step, before, after in axes:
            reach = (window - 1) * step + 1
            if not isinstance(before, int) or not isinstance(after, int):
                continue
            if isinstance(size, int):
                last = (size + before + after - reach) // stride * stride - before
                alone = before >= reach or last >= size
                if size < step and not alone:
                    # Steps over the whole axis: a window may begin before it and go on behind it.
                    alone = any(start % step >= size for start in range(-before, min(0, last + 1), stride)[:LARGEST_SEARCH])
            else:
                alone = before >= reach or after >= reach + stride - 1
            if alone:
                raise n.fail(f"padding of {before} and {after} makes windows of {window} (dilation {step}) that hold nothing but padding")

    @property
    def end(self) -> tuple[Dim, ...]:
        return tuple(a + b for a, b in zip(self.after, self.extra, strict=True))

    @property
    def attrs(self) -> dict[str, object]:
        return {"window": self.window, "strides": self.strides, "dilations": self.dilations, "before": self.before, "after": self.end}


@rule("MaxPool")
def _max_pool(n: Node) -> list[Value]:
    y = max_pool(n, n.x())
    return [y] if len(n.outputs) < 2 else [y, _max_indices(n, n.x(), _Pool(n, n.x()))]


def max_pool(n: Node, x: Value) -> Value:
    """The maximum over each window of this node."""
    pool = _Pool(n, x)
    pool.refuse_windows_of_padding(n)
    result: Value = n.b.max_pool(x, **pool.attrs)
    return result


def _max_indices(n: Node, x: Value, pool: _Pool) -> Value:
    """The flat index of each window's first maximum, counted over the whole of x."""
    index: Value = n.b.max_pool_index(x, **pool.attrs)
    if n.attr_flag("storage_order"):
        # Column-major: the first spatial axis counts fastest.
        parts, rest = [], index
        for size in reversed(pool.sizes):
            parts.append(n.b.mod(rest, number(n, size)))
            rest = n.b.floor_div(rest, number(n, size))
        index = parts[0]
        for part, size in zip(parts[1:], reversed(pool.sizes[:-1]), strict=True):
            index = n.b.add(n.b.mul(index, number(n, size)), part)
    plane: Value = n.b.iota(shape=(dims.product(x.shape[:2]),), axis=0, dtype=i64)
    plane = n.b.reshape(n.b.mul(plane, number(n, dims.product(pool.sizes))), shape=(*x.shape[:2], *(1,) * len(pool.sizes)))
    return n.b.add(index, plane)  # type: ignore[no-any-return]


def number(n: Node, size: Dim) -> Value:
    """A size as data."""
    return n.b.scalar(size, i64) if isinstance(size, int) else n.b.dim(value=size)


@rule("AveragePool")
def _average_pool(n: Node) -> Value:
    return average_pool(n, n.x(), n.attr_flag("count_include_pad"))


def average_pool(n: Node, x: Value, count_padding: bool) -> Value:
    """The mean over each window; padding counts where asked, what rounding up adds never does."""
    pool = _Pool(n, x)
    if not count_padding:
        pool.refuse_windows_of_padding(n)
    if not count_padding or not any(pool.extra):
        result: Value = n.b.avg_pool(x, **pool.attrs, count_padding=count_padding)
        return result
    # The explicit padding is made real; what rounding up adds is left to the pool, which does not count it.
    padded = n.b.pad(x, before=(0, 0, *pool.before), after=(0, 0, *pool.after), mode="constant", value=0.0)
    attrs = {**pool.attrs, "before": (0,) * len(pool.sizes), "after": pool.extra}
    result = n.b.avg_pool(padded, **attrs, count_padding=False)
    return result


@rule("LpPool")
def _lp_pool(n: Node) -> Value:
    x, p = n.x(), n.attr_int("p", 2)
    if p < 1:
        raise n.fail(f"p is {p}, expected a positive integer")
    powers = n.b.abs(x) if p == 1 else n.b.mul(x, x) if p == 2 else n.b.pow(n.b.abs(x), float(p))
    pool = _Pool(n, x)
    # The sum over a window is its mean, padding counted, times the window's size.
    total = n.b.mul(n.b.avg_pool(powers, **pool.attrs, count_padding=True), float(math.prod(pool.window)))
    return _root(n, total, p)


def _root(n: Node, total: Value, p: int) -> Value:
    result: Value = total if p == 1 else n.b.sqrt(total) if p == 2 else n.b.pow(total, 1.0 / p)
    return result


@rule("GlobalAveragePool")
def _global_average(n: Node) -> Value:
    _spatial(n, n.x())
    result: Value = n.b.mean(n.x(), axes=tuple(range(2, n.rank())), keepdims=True)
    return result


@rule("GlobalMaxPool")
def _global_max(n: Node) -> Value:
    _spatial(n, n.x())
    result: Value = n.b.reduce_max(n.x(), axes=tuple(range(2, n.rank())), keepdims=True)
    return result


@rule("GlobalLpPool")
def _global_lp(n: Node) -> Value:
    x, p = n.x(), n.attr_int("p", 2)
    powers = n.b.abs(x) if p == 1 else n.b.pow(n.b.abs(x), float(p))
    return _root(n, n.b.sum(powers, axes=tuple(range(2, x.type.rank)), keepdims=True), p)


@rule("MaxUnpool")
def _max_unpool(n: Node) -> Value:
    x, indices = n.x(0), n.x(1)
    sizes = _spatial(n, x)
    rank = len(sizes)
    window, strides = _window(n, rank), _window(n, rank, "strides", (1,) * rank)
    pads = n.attr_ints("pads") or (0,) * (2 * rank)
    natural = tuple(
        (size - 1) * stride + extent - pads[a] - pads[a + rank]
        for a, (size, stride, extent) in enumerate(zip(sizes, strides, window, strict=True))
    )
    wanted = n.sizes(2, "the output shape") if n.given(2) else (*x.shape[:2], *natural)
    # Indices count in the natural output; a larger one keeps the coordinates.
    flat = n.b.full(shape=(dims.product((*x.shape[:2], *natural)),), value=0.0, dtype=x.dtype)
    scattered = n.b.scatter_along_axis(
        flat, n.b.reshape(indices, shape=(indices.type.elements,)), n.b.reshape(x, shape=(x.type.elements,)), axis=0, combine="none"
    )
    result: Value = n.b.reshape(scattered, shape=(*x.shape[:2], *natural))
    if wanted != result.shape:
        after = tuple(want - have for want, have in zip(wanted, result.shape, strict=True))
        result = n.b.pad(result, before=(0,) * len(after), after=after, mode="constant", value=0.0)
    return result
