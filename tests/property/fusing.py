"""Draws programs that fusion finds hard: long chains, wide sums, shared values, self-concats, folds of folds, unbounded sizes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from generator import Case, Run, accepts

from ourcc.ir.graph import Builder, ConstantData, Graph, Module, Value
from ourcc.ir.graph.reference import bind_symbols
from ourcc.ir.types import DType, TensorType, bf16, f16, f32, f64, i32, i64

DTYPES = (f32, f32, f32, f64, f16, bf16, i32, i64)
SHAPES = ((5,), (17,), (3, 5), (2, 3, 4))


@dataclass
class Sketch:
    """A program under construction: one input of a drawn shape and dtype, its sizes symbols without a bound or numbers."""

    choices: random.Random
    square: bool = False
    module: Module = field(default_factory=lambda: Module("case"))

    def __post_init__(self) -> None:
        self.graph = Graph("main")
        self.module.functions["main"] = self.graph
        self.builder = Builder(self.module, self.graph)
        self.dtype: DType = self.choices.choice(DTYPES[:6] if self.square else DTYPES)
        self.static = (3, 4, 4) if self.square else self.choices.choice(SHAPES)
        names = ("B", "S", "S") if self.square else ("B", "S", "T")
        self.dynamic = self.square or self.choices.random() < 0.4
        shape = tuple(self.module.declare(name) for name in names[: len(self.static)]) if self.dynamic else self.static
        self.x = self.graph.add_input("x", TensorType(self.dtype, shape))
        generator = np.random.default_rng(self.choices.getrandbits(32))
        self.runs = []
        for number, more in enumerate((0, 3 if self.dynamic else 0)):
            sizes = tuple(size + more for size in self.static)
            drawn = generator.standard_normal(sizes) * 2 if self.dtype.is_float else generator.integers(-3, 4, sizes)
            array = np.asarray(drawn).astype(self.dtype.numpy)
            self.runs.append(Run(bind_symbols([self.x], [array]), np.random.default_rng(number)))
            self.runs[-1].set(self.x, array)

    def number(self, value: float) -> Value:
        return self.constant(np.asarray(value, dtype=self.dtype.numpy))

    def constant(self, array: np.ndarray) -> Value:
        constant = self.module.add_constant(f"c{len(self.module.constants)}", ConstantData(array))
        for run in self.runs:
            run.set(constant, array)
        return constant

    def kept(self, make: Callable[[], Value]) -> Value | None:
        """What `make` appends; None, and nothing is there, where rounding shows in it more than the judge forgives.

        A product of products is in the thousands, and so are its errors: held between -1 and 1 afterwards they are large.
        """
        before = set(self.graph)
        value = make()
        fresh = [op for op in self.graph if op not in before]
        if all(accepts(run, op) for run in self.runs for op in fresh):
            return value
        for op in reversed(fresh):
            self.graph.remove(op)
        return None

    def step(self, value: Value) -> Value:
        """A pointwise op that keeps values small."""
        b, kinds = self.builder, ["neg", "abs", "add", "maximum", "minimum", "sub"]
        kind = self.choices.choice([*kinds, "relu", "half", "square"] if self.dtype.is_float else kinds)
        if kind in ("neg", "abs", "relu"):
            return getattr(b, kind)(value)
        if kind == "half":
            return b.mul(value, self.number(0.5))
        if kind == "square":
            small = b.minimum(b.maximum(value, self.number(-1)), self.number(1))
            return b.mul(small, small)
        return getattr(b, kind)(value, self.number(self.choices.choice((1, 2, 3))))

    def case(self, *values: Value) -> Case:
        self.graph.set_outputs(list(values), [f"y{n}" for n in range(len(values))])
        return Case(self.module, tuple((run.step[self.x],) for run in self.runs))


def chain(s: Sketch) -> Value:
    value = s.x
    for _ in range(s.choices.choice((20, 60, 150, 300))):
        value = s.step(value)
    return value


def wide(s: Sketch) -> Value:
    branches = [s.step(s.step(s.x)) for _ in range(s.choices.choice((10, 60, 200)))]
    while len(branches) > 1:
        place = 0 if s.choices.random() < 0.9 else s.choices.randrange(len(branches) - 1)
        branches[place : place + 2] = [s.builder.maximum(branches[place], branches[place + 1])]
    return branches[0]


def shared(s: Sketch) -> Value:
    value = s.step(s.x)
    for _ in range(s.choices.choice((4, 8, 12))):
        again = value if s.choices.random() < 0.6 else s.step(value)
        both = s.builder.add(value, again)
        value = s.builder.mul(both, s.number(0.5)) if s.dtype.is_float else s.builder.minimum(both, value)
    return value


def concat(s: Sketch) -> Value:
    value = s.step(s.x)
    for _ in range(s.choices.choice((2, 4, 6))):
        axis = s.choices.randrange(len(s.static))
        value = s.builder.concat(value, value if s.choices.random() < 0.7 else s.step(value), axis=axis)
        value = s.step(value) if s.choices.random() < 0.5 else value
    return value


def shifted(s: Sketch) -> Value:
    """Neighbours of neighbours, padded: every value is read at more and more places."""
    value, rank = s.step(s.x), len(s.static)
    for _ in range(s.choices.choice((2, 5, 9))):
        value = s.step(value) if s.choices.random() < 0.5 else value
        none, one = (0,) * rank, (*(0,) * (rank - 1), 1)
        longer = s.builder.pad(value, before=none, after=one, mode="constant", value=0)
        later = s.builder.slice(longer, starts=one, sizes=value.shape, steps=(1,) * rank)
        value = s.builder.maximum(value, later)
    return value


def folds(s: Sketch) -> Value:
    """Softmaxes, means and sums of each other, over any axes."""
    value: Value = s.x
    for _ in range(s.choices.choice((2, 3, 4))):
        value = s.kept(partial(fold, s, value)) or value
    # A sum of what is centered is nothing but rounding; the largest of it is not.
    for _ in range(8):
        last: Callable[..., Value] = s.choices.choice((s.builder.sum, s.builder.reduce_max, s.builder.mean))
        found = s.kept(partial(last, value, axes=(s.choices.randrange(3),), keepdims=s.choices.random() < 0.5))
        if found is not None:
            return found
    return value


def fold(s: Sketch, value: Value) -> Value:
    axis, kind = s.choices.randrange(value.type.rank), s.choices.choice(("softmax", "center", "turn"))
    if kind == "softmax":
        return s.builder.softmax(value, axis=axis)
    if kind == "center":
        return s.builder.sub(value, s.builder.mean(value, axes=(axis,), keepdims=True))
    return s.builder.transpose(s.step(value), permutation=(0, 2, 1))


def results(s: Sketch) -> list[Value]:
    """Rows, columns and elements of each other, most of which leave the graph and are read again."""
    values = [s.x]
    for _ in range(s.choices.choice((6, 10, 16))):
        value = s.kept(partial(result, s, values))
        values += [] if value is None else [value]
    return [value for value in values[1:-1] if s.choices.random() < 0.6] + values[-1:]


def result(s: Sketch, values: Sequence[Value]) -> Value:
    b = s.builder
    value, kind = s.choices.choice(values[-4:]), s.choices.choice(("step", "exp", "fold", "fold", "both", "product"))
    if kind == "fold":
        axes = (s.choices.randrange(3),)
        fold: Callable[..., Value] = s.choices.choice((b.mean, b.reduce_max, b.reduce_min))
        return fold(value, axes=axes, keepdims=True)
    if kind == "both":
        return b.mul(b.add(value, s.choices.choice(values)), s.number(0.5))
    if kind == "product":
        whole = b.broadcast_to(value, shape=s.x.shape)
        return b.matmul(whole, b.transpose(whole, permutation=(0, 2, 1)))
    return s.step(value) if kind == "step" else b.exp(b.minimum(value, s.number(1)))


def epilogues(s: Sketch) -> Value:
    """Products behind which activations, spelled as exporters do, residuals and what is broadcast read each element several times."""
    value: Value = s.x
    for _ in range(s.choices.choice((1, 2, 3))):
        value = s.kept(partial(product, s, value)) or value
        for _ in range(s.choices.choice((1, 2, 4))):
            value = s.kept(partial(activation, s, value)) or value
    return value


def product(s: Sketch, value: Value) -> Value:
    if (s.dynamic and s.choices.random() < 0.5) or s.choices.random() < 0.3:
        return s.builder.matmul(value, s.builder.transpose(s.x, permutation=(0, 2, 1)))
    if s.dynamic:
        return s.builder.matmul(value, s.x)
    array = np.random.default_rng(s.choices.getrandbits(32)).standard_normal((4, 4, 3)).astype(s.dtype.numpy)
    filters = s.constant(array)
    return s.builder.conv(value, filters, strides=(1,), dilations=(1,), before=(1,), after=(1,), groups=1)


def activation(s: Sketch, value: Value) -> Value:
    b, kind = s.builder, s.choices.choice(("silu", "gelu", "hardswish", "mish", "residual", "row", "moved", "turned"))
    if kind == "silu":
        return b.mul(value, b.sigmoid(value))
    if kind == "gelu":
        return b.mul(b.mul(value, s.number(0.5)), b.add(b.erf(b.mul(value, s.number(0.75))), s.number(1)))
    if kind == "hardswish":
        return b.mul(value, b.mul(b.minimum(b.maximum(b.add(value, s.number(3)), s.number(0)), s.number(6)), s.number(0.125)))
    if kind == "mish":
        return b.mul(value, b.tanh(b.log1p(b.exp(b.minimum(value, s.number(4))))))
    if kind == "residual":
        return b.add(value, b.mul(s.x, b.tanh(value)))
    if kind == "row":
        row = b.reduce_max(s.x, axes=(s.choices.randrange(3),), keepdims=True)
        return b.where(b.lt(row, value), value, b.mul(value, row))
    turned = b.transpose(value, permutation=(0, 2, 1))
    return b.mul(turned, b.sigmoid(turned)) if kind == "moved" else b.add(value, b.tanh(turned))


KINDS: dict[str, Callable[[Sketch], Value | list[Value]]] = {
    "chain": chain,
    "wide": wide,
    "shared": shared,
    "concat": concat,
    "shifted": shifted,
    "folds": folds,
    "results": results,
    "epilogues": epilogues,
}


def draw(number: int, seed: int) -> tuple[str, Case]:
    """Case `number` of a seed; kinds take turns."""
    kind = list(KINDS)[number % len(KINDS)]
    sketch = Sketch(random.Random(f"{seed} {number}"), square=kind in ("folds", "results", "epilogues"))
    made = KINDS[kind](sketch)
    return kind, sketch.case(*(made if isinstance(made, list) else [made]))


__all__ = ["KINDS", "Sketch", "draw"]
