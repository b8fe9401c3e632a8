"""Draws graphs of what rules rewrite: chains of moves, casts, arithmetic with telling constants, products, spelled-out patterns.

Nothing is computed; the generator beside it draws graphs whose results can be judged, in which few rules find anything.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from ourcc.ir import dims
from ourcc.ir.dims import Dim
from ourcc.ir.errors import CompilerError
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.ops.table import OPS
from ourcc.ir.types import DType, TensorType, boolean, f16, f32, f64, i64

TELLING = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 4.0, 3.0)
SHAPES: tuple[tuple[Dim, ...], ...] = (
    (),
    (1,),
    (6,),
    (4, 6),
    (6, 4),
    (1, 6),
    (2, 3, 4),
    (2, 4, 3),
    (dims.symbol("B"), 4, 6),
    (dims.symbol("B"), 24),
)
UNARY = ("neg", "abs", "relu", "exp", "sqrt", "reciprocal", "floor", "logical_not", "sigmoid", "tanh", "erf")
BINARY = ("add", "sub", "mul", "div", "pow", "minimum", "maximum", "eq", "lt", "ge", "logical_and", "logical_or", "ne", "gt")


class Weaver:
    """A graph under construction: the values that are there, and what may be done with them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.module = Module("woven")
        self.graph = Graph("main")
        self.module.functions["main"] = self.graph
        self.module.declare("B", 1, 32)
        self.b = Builder(self.module, self.graph)
        whole = self.graph.add_input("whole", TensorType(f32, (dims.symbol("B"), 4, 6)))  # gives the symbol its value
        self.values = [whole, *(self._input(n) for n in range(self.random.randint(2, 4)))]

    def _input(self, number: int) -> Value:
        dtype = self.random.choice((f32, f32, f32, f16, i64, boolean))
        return self.graph.add_input(f"x{number}", TensorType(dtype, self.random.choice(SHAPES)))

    def some(self) -> Value:
        """A value, the last ones more often than the first."""
        return self.random.choice(self.values[-3:] if self.random.random() < 0.7 else self.values)

    def constant(self, dtype: DType, shape: tuple[Dim, ...] = ()) -> Value:
        """A constant of one number that rules may know, or of several."""
        sizes = tuple(size if isinstance(size, int) else 1 for size in shape)
        number = self.random.choice(TELLING)
        made = np.full(sizes, number) if self.random.random() < 0.7 else np.arange(int(np.prod(sizes))).reshape(sizes)
        return self.module.add_constant("c", made.astype(dtype.numpy))

    def grow(self) -> None:
        """One more piece, unless what was drawn is none."""
        piece: Callable[[Weaver], Value] = self.random.choice(PIECES)
        last = self.graph.last
        try:
            self.values.append(piece(self))
        except (CompilerError, ValueError, IndexError):
            while self.graph.last is not last and self.graph.last is not None:
                self.graph.remove(self.graph.last)


def woven(seed: int, pieces: int = 16) -> Module:
    """A module of about so many pieces, the same for the same seed; what nobody reads is an output."""
    weaver = Weaver(seed)
    for _ in range(pieces):
        weaver.grow()
    unread = [value for value in weaver.values if not value.uses]
    weaver.graph.set_outputs(unread, [f"y{n}" for n in range(len(unread))])
    return weaver.module


def _known(size: Dim) -> int:
    if not isinstance(size, int):
        raise ValueError(f"{size} is not known")
    return size


def _unary(w: Weaver) -> Value:
    return w.b.build(OPS[w.random.choice(UNARY)], [w.some()], {})[0]


def _binary(w: Weaver) -> Value:
    left = w.some()
    right = w.constant(left.dtype) if w.random.random() < 0.6 else next(v for v in w.values[::-1] if v.dtype == left.dtype)
    if w.random.random() < 0.3:
        left, right = right, left
    return w.b.build(OPS[w.random.choice(BINARY)], [left, right], {})[0]


def _where(w: Weaver) -> Value:
    x = w.some()
    condition = w.b.lt(x, w.constant(x.dtype))
    if w.random.random() < 0.5:
        condition = w.b.logical_not(condition)
    return w.b.where(condition, x, w.constant(x.dtype))


def _cast(w: Weaver) -> Value:
    return w.b.cast(w.some(), dtype=w.random.choice((f32, f16, f64, i64, boolean)))


def _reshape(w: Weaver) -> Value:
    x = w.some()
    parts = [*x.shape]
    if w.random.random() < 0.4:
        parts.insert(w.random.randint(0, len(parts)), 1)
    elif len(parts) > 1:
        place = w.random.randrange(len(parts) - 1)
        parts[place : place + 2] = [parts[place] * parts[place + 1]]
    elif parts == [6]:
        parts = [2, 3]
    return w.b.reshape(x, shape=tuple(parts))


def _transpose(w: Weaver) -> Value:
    x = w.some()
    order = list(range(x.type.rank))
    w.random.shuffle(order)
    return w.b.transpose(x, permutation=tuple(order))


def _broadcast(w: Weaver) -> Value:
    x = w.some()
    wide = tuple(4 if size == 1 else size for size in x.shape)
    return w.b.broadcast_to(x, shape=(2, *wide) if w.random.random() < 0.3 and x.type.rank < 4 else wide)


def _axis(w: Weaver, x: Value) -> int:
    return w.random.randrange(x.type.rank)


def _slice(w: Weaver) -> Value:
    x = w.some()
    axis, start = _axis(w, x), w.random.randint(0, 1)
    size = x.shape[axis]
    taken = _known(size) - start - w.random.randint(0, 1) if isinstance(size, int) and size > 2 else size
    starts = tuple(start if n == axis and taken is not size else 0 for n in range(x.type.rank))
    return w.b.slice(x, starts=starts, sizes=tuple(taken if n == axis else s for n, s in enumerate(x.shape)), steps=(1,) * x.type.rank)


def _parts(w: Weaver) -> Value:
    """An axis in two parts that are put together again, or changed before that."""
    x = w.some()
    axis = _axis(w, x)
    size = _known(x.shape[axis])
    cut = w.random.randint(1, size - 1)
    found = []
    for start, length in ((0, cut), (cut, size - cut)):
        starts = tuple(start if n == axis else 0 for n in range(x.type.rank))
        sizes = tuple(length if n == axis else s for n, s in enumerate(x.shape))
        found.append(w.b.slice(x, starts=starts, sizes=sizes, steps=(1,) * x.type.rank))
    if w.random.random() < 0.4:
        found.reverse()
    return w.b.concat(*found, axis=axis)


def _concat(w: Weaver) -> Value:
    x = w.some()
    others = [v for v in w.values if v.type == x.type]
    return w.b.concat(x, w.random.choice(others), axis=_axis(w, x))


def _take(w: Weaver) -> Value:
    x = w.some()
    axis = _axis(w, x)
    size = _known(x.shape[axis])
    places: Any = w.random.choice((np.arange(size), np.arange(1, size), np.zeros((), np.int64), np.array([0])))
    if w.random.random() < 0.5:
        return w.b.take(x, w.b.iota(shape=(size,), axis=0, dtype=i64), axis=axis)
    return w.b.take(x, w.module.add_constant("places", np.asarray(places, np.int64)), axis=axis)


def _sizes(w: Weaver) -> Value:
    size = w.b.dim(value=dims.symbol("B") * w.random.randint(1, 3))
    return w.b.add(w.b.mul(size, w.constant(i64)), w.b.dim(value=dims.symbol("B")))


def _product(w: Weaver) -> Value:
    x = w.some()
    depth = _known(x.shape[-1])
    weight = w.module.add_constant("w", np.ones((depth, 6), np.float32).astype(x.dtype.numpy))
    return w.b.matmul(
        x, w.b.transpose(w.b.transpose(weight, permutation=(1, 0)), permutation=(1, 0)) if w.random.random() < 0.5 else weight
    )


def _scaled_product(w: Weaver) -> Value:
    """A product of an operand that is scaled, or turned, before."""
    x = w.some()
    turned = w.b.transpose(x, permutation=(*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2))
    product = w.b.matmul(w.b.mul(x, w.constant(x.dtype)), turned)
    return w.b.mul(product, w.constant(x.dtype))


def _flat_product(w: Weaver) -> Value:
    """Rows folded into one axis, multiplied, and unfolded behind a bias."""
    x = w.some()
    *lead, depth = x.shape
    weight = w.module.add_constant("w", np.ones((_known(depth), 6), np.float32).astype(x.dtype.numpy))
    rows = w.b.matmul(w.b.reshape(x, shape=(dims.product(lead), depth)), weight)
    return w.b.reshape(w.b.add(rows, w.constant(x.dtype, (6,))), shape=(*lead, 6))


def _softmax(w: Weaver) -> Value:
    x = w.some()
    return _spelled(w, w.b.mul(x, w.constant(x.dtype)))


def _spelled(w: Weaver, scores: Value) -> Value:
    """Softmax as an op, as its logarithm's exponential, or written out, once in a while without the largest."""
    spelling, axis = w.random.random(), scores.type.rank - 1
    if spelling < 0.5:
        return w.b.softmax(scores, axis=axis)
    if spelling < 0.65:
        return w.b.exp(w.b.log_softmax(scores, axis=axis))
    shifted = scores if spelling < 0.75 else w.b.sub(scores, w.b.reduce_max(scores, axes=(axis,), keepdims=True))
    power = w.b.exp(shifted)
    return w.b.div(power, w.b.sum(power, axes=(axis,), keepdims=True))


def _attention(w: Weaver) -> Value:
    """Attention as it is spelled without a word of its own."""
    x = w.some()
    turned = w.b.transpose(x, permutation=(*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2))
    scores = w.b.mul(w.b.matmul(x, turned), w.constant(x.dtype))
    return w.b.matmul(_spelled(w, scores), x)


def _gelu(w: Weaver) -> Value:
    x = w.some()
    half, one, root = (w.module.add_constant("k", np.asarray(number, x.dtype.numpy)) for number in (0.5, 1.0, 2.0**-0.5))
    return w.b.mul(w.b.mul(x, half), w.b.add(w.b.erf(w.b.mul(x, root)), one))


def _norm(w: Weaver) -> Value:
    x = w.some()
    axes = (x.type.rank - 1,)
    centred = w.b.sub(x, w.b.mean(x, axes=axes, keepdims=True))
    spread = w.b.mean(w.b.mul(centred, centred), axes=axes, keepdims=True)
    epsilon = w.module.add_constant("e", np.asarray(1e-5, x.dtype.numpy))
    result = w.b.div(centred, w.b.sqrt(w.b.add(spread, epsilon)))
    size = (_known(x.shape[-1]),)
    return w.b.add(w.b.mul(result, w.constant(x.dtype, size)), w.constant(x.dtype, size))


def _scaled_attention(w: Weaver) -> Value:
    """Attention whose query is scaled before."""
    x = w.b.reshape(w.values[0], shape=(dims.symbol("B"), 4, 1, 6))
    return w.b.reshape(w.b.attention(w.b.mul(x, w.constant(f32)), x, x, scale=0.5), shape=w.values[0].shape)


def _group_norm(w: Weaver) -> Value:
    """Normalization of two groups of channels, with a scale."""
    return w.b.group_norm(w.values[0], w.constant(f32, (4,)), None, groups=2, epsilon=1e-5)


def _convolution(w: Weaver) -> Value:
    """A convolution of an image, with a bias and a batch norm behind it."""
    image = w.graph.add_input(w.graph.unique("image"), TensorType(f32, (dims.symbol("B"), 3, 5, 5)))
    weight = w.module.add_constant("w", np.ones((4, 3, 1, 1), np.float32))
    sizes = {"strides": (1, 1), "dilations": (1, 1), "before": (0, 0), "after": (0, 0), "groups": 1}
    y = w.b.conv(image, weight, None, **sizes)
    y = w.b.add(y, w.module.add_constant("bias", np.ones((4, 1, 1), np.float32)))
    ones = [w.module.add_constant("n", np.full(4, number, np.float32)) for number in (1.0, 0.0, 0.5, 2.0)]
    return w.b.batch_norm(y, *ones, epsilon=1e-5)


PIECES: tuple[Callable[[Weaver], Value], ...] = (
    *(_unary, _unary, _binary, _binary, _binary, _where, _cast, _cast, _reshape, _reshape, _transpose, _transpose, _broadcast),
    *(_slice, _slice, _parts, _concat, _take, _sizes, _product, _scaled_product, _flat_product, _softmax, _attention, _gelu, _norm),
    *(_scaled_attention, _group_norm, _convolution),
)
