"""Draws modules from the op table, with inputs at two bindings of their symbols.

A module grows op by op. Every op is run in the reference as soon as it is drawn, and taken back where the program
would no longer say what is right: where wide and stepwise disagree about infinities, where noise of as many units in the last
place as an op rounds moves a result by more than a part of the judge's own floor, or flips an integer or a bool.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from recipes import POINTWISE, RECIPES

from ourcc.ir import dims, scalar
from ourcc.ir.dims import Dim
from ourcc.ir.errors import CompilerError
from ourcc.ir.graph import Builder, Graph, Module, Op, Value
from ourcc.ir.graph.reference import DIGITS, ULP_FLOOR, Array, bind_attribute, bind_sizes, concrete
from ourcc.ir.ops import table
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS
from ourcc.ir.region import Reduce, Scan
from ourcc.ir.types import DType, TensorType, bf16, boolean, f16, f32, f64, from_numpy, i8, i16, i32, i64, type_of, u8, u16, u32, u64
from ourcc.passes.lower.classes import ENDS

DTYPES = (f32, f32, f32, f32, f32, f32, f16, bf16, i64, i32, boolean, f64, i8, u8, i16, u16, u32, u64)
NAMES = ("B", "S", "i", "j", "k", "l", "m", "i0", "i1", "N0", "N1", "x0", "t0")
"""What symbols are called: also what axes, kernels' own symbols, operands and values of regions are."""
BORDERS = tuple(size for end in ENDS for size in (end, end + 1))
"""Sizes on both sides of where a class of sizes ends."""
SIZES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 40, 130)
LARGEST = 6000
"""No value has more elements."""

NOISES = 3
"""So often a result is computed with noise: once alone may move the one element that matters by next to nothing."""

EXACT = frozenset(
    "relu neg abs sign minimum maximum clip eq ne lt le gt ge where cast floor ceil trunc round is_nan is_inf reduce_max reduce_min any "
    "all argmax argmin reshape transpose broadcast_to concat slice pad iota dim full take take_along_axis gather_nd put_slice sort top_k "
    "max_pool max_pool_index dequantize search_sorted unique nonzero".split()
)
"""Ops whose result is not rounded: equal operands give equal results on every machine."""

ANY_ZERO = frozenset("relu minimum maximum clip reduce_max reduce_min max_pool".split())
"""Exact ops that may return a zero of either sign."""


@dataclass
class Run:
    """One binding of the symbols: inputs, and every value stepwise, wide, and wide with noise, more than once."""

    bindings: dict[str, int]
    noise: np.random.Generator
    step: dict[Value, Array] = field(default_factory=dict)
    wide: dict[Value, Array] = field(default_factory=dict)
    noisy: tuple[dict[Value, Array], ...] = field(default_factory=lambda: tuple({} for _ in range(NOISES)))

    def set(self, value: Value, array: Array) -> None:
        """An input's or a constant's values."""
        self.step[value] = array
        for values in (self.wide, *self.noisy):
            values[value] = _widen(array)


@dataclass(frozen=True)
class Case:
    """A module, and for each binding of its symbols the inputs in order."""

    module: Module
    inputs: tuple[tuple[Array, ...], ...]


class Sketch:
    """A module under construction; its `choices`, and what else recipes ask for."""

    def __init__(self, choices: random.Random) -> None:
        self.choices = choices
        self.module = Module("case")
        self.graph = Graph("main")
        self.module.functions["main"] = self.graph
        self.builder = Builder(self.module, self.graph)
        self.values: list[Value] = []
        bits = choices.getrandbits(32)
        self.random = np.random.default_rng(bits)
        self.specials = self.chance(4)
        self.extremes = self.chance(6)
        self.runs = [Run({}, np.random.default_rng(n)) for n in range(2)]
        self.sizes: list[Dim] = [self.one_of(SIZES) for _ in range(3)]
        for name in random.Random(bits).sample(NAMES, 2)[: self.one_of((0, 0, 0, 1, 1, 2))]:
            self._declare(name)

    # --- choices ---

    def chance(self, one_in: int) -> bool:
        """True once in so many draws."""
        return self.choices.randrange(one_in) == 0

    def one_of(self, items: Sequence[Any]) -> Any:
        """Any of some items."""
        return self.choices.choice(items)

    def integer(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self.choices.randint(low, high)

    def size(self) -> Dim:
        """One of the few sizes of this module, or any."""
        return self.one_of(SIZES) if self.chance(4) else self.one_of(self.sizes)

    def shape(self, rank: int | None = None) -> tuple[Dim, ...]:
        """A shape of not too many elements."""
        rank = self.one_of((0, 1, 2, 2, 3, 3, 4, 5)) if rank is None else rank
        shape: list[Dim] = [self.size() for _ in range(rank)]
        while self.elements(shape) > LARGEST:
            shape[self.integer(0, rank - 1)] = self.one_of((1, 2, 3))
        return tuple(shape)

    def dtype(self) -> DType:
        """An element type, most often f32."""
        return self.one_of(DTYPES)

    def elements(self, shape: Sequence[Dim]) -> int:
        """The number of elements at the larger binding."""
        return max(dims.evaluate(dims.product(shape), run.bindings) for run in self.runs)

    def pick(self, wanted: Callable[[Value], bool] = lambda value: True) -> Value | None:
        """Any value that is wanted, later ones more often."""
        found = [value for value in self.values if wanted(value)]
        if not found:
            return None
        return self.one_of(found) if self.chance(3) else self.one_of(found[-2:])

    def other(self, dtype: DType, shape: Sequence[Dim]) -> Value:
        """A value of exactly this type: one that is there, else a new one."""
        found = self.pick(lambda value: value.dtype == dtype and value.shape == tuple(shape)) if self.chance(2) else None
        return found or self.fresh(dtype, shape)

    def fresh(self, dtype: DType, shape: Sequence[Dim], low: int | None = None, high: int | None = None) -> Value:
        """A new input or constant; with low..high given whole numbers lie in there, and floats are plain numbers."""
        type = TensorType(dtype, tuple(shape))
        if type.is_static and self.chance(2):
            return self.constant(self.array(type, {}, low, high))
        value = self.graph.add_input(f"x{len(self.graph.inputs)}", type)
        for run in self.runs:
            run.set(value, self.array(type, run.bindings, low, high))
        self.values.append(value)
        return value

    def constant(self, array: Array) -> Value:
        """A new constant."""
        value = self.module.add_constant("c", array)
        for run in self.runs:
            run.set(value, array)
        return value

    def array(self, type: TensorType, bindings: dict[str, int], low: int | None = None, high: int | None = None) -> Array:
        """Values of a type; floats hold zeros of both signs, and in some modules NaN and infinities."""
        shape = concrete(type, bindings).shape
        if type.dtype == boolean:
            return np.asarray(self.random.integers(0, 2, shape), dtype=np.bool_)
        if type.dtype.is_integer:
            if self.extremes and low is None:
                limits = np.iinfo(type.dtype.numpy)
                return self.random.integers(limits.min, limits.max, shape, dtype=type.dtype.numpy, endpoint=True)
            least = 0 if type.dtype.kind == "uint" else -6
            values = self.random.integers(least if low is None else low, (7 if high is None else high) + 1, shape)
            return np.asarray(values).astype(type.dtype.numpy)
        array = np.asarray(self.random.uniform(-2.0, 2.0, shape))
        flat = array.reshape(-1)
        marks = (0.0, -0.0, *((np.nan, np.inf, -np.inf) if self.specials else ()))
        if flat.size > 12 and low is None:
            flat[self.random.choice(flat.size, len(marks), replace=False)] = marks
        return flat.reshape(shape).astype(type.dtype.numpy)

    # --- growing ---

    def add(self, name: str, operands: Sequence[Value | None], **attrs: Any) -> bool:
        """Append an op; False (and nothing is there) where types, size or the reference refuse it."""
        definition = OPS[name]
        try:
            types = definition.infer(tuple(None if v is None else v.type for v in operands), attrs)
            if any(self.elements(type.shape) > LARGEST for type in types):
                return False
            results = self.builder.build(definition, operands, attrs)
        except CompilerError:
            return False
        op = results[0].op
        if op is None or not all(accepts(run, op) for run in self.runs):
            if op is not None:
                self.graph.remove(op)
            return False
        self.values += results
        return True

    def grow(self) -> None:
        """Append one op of any family, if it fits."""
        self.one_of(FAMILIES)(self)

    def finish(self) -> Case | None:
        """The case; None where it has no op. Everything unread is returned, so nothing is dead."""
        made = [value for value in self.values if value.op is not None]
        if not made:
            return None
        outputs = [value for value in made if not value.uses]
        if self.chance(4):
            outputs.append(self.one_of(self.values))
        if self.chance(4):
            outputs.append(self.one_of(made))
        self.graph.set_outputs(outputs, [f"y{n}" for n in range(len(outputs))])
        read = {value for op in self.graph for value in op.operands if value is not None}
        self.module.constants = {name: value for name, value in self.module.constants.items() if value in read}
        inputs = tuple(tuple(run.step[value] for value in self.graph.inputs) for run in self.runs)
        return Case(self.module, inputs)

    def _declare(self, name: str) -> None:
        low = self.integer(0, 2)
        high = self.one_of((low + 1, low + 3, 20, 70))
        size = self.module.declare(name, low, high)
        for run in self.runs:
            borders = [size for size in BORDERS if size <= high]
            run.bindings[name] = self.one_of(borders) if borders and self.chance(2) else self.integer(low, high)
        self.sizes += [size, size, size * 2 if self.chance(2) else size + 1]


def _widen(array: Array) -> Array:
    return scalar.convert(array, table._widened(from_numpy(array.dtype)))


def accepts(run: Run, op: Op) -> bool:
    """Run an op at one binding; whether its result is well determined."""
    attrs = {name: bind_attribute(value, run.bindings) for name, value in op.attrs.items()}
    types = tuple(concrete(result.type, run.bindings) for result in op.results)

    def outputs(values: Mapping[Value, Array], wide: bool) -> tuple[Array, ...]:
        operands = tuple(None if v is None else values[v] for v in op.operands)
        return table.run(op.definition, operands, attrs, types, wide)

    operands = [value for value in op.operands if value is not None]
    units = dict.fromkeys(operands, 0.0 if op.name in EXACT else math.sqrt(_terms(op, run.bindings)) * 2.0**-24)
    weighed = op.operands[2] if op.name == "attention" else None
    if weighed is not None:
        # Weights are rounded to the type of the values that they meet, which moves each term as much.
        units[weighed] = max(units[weighed], 2.0 ** -DIGITS.get(weighed.dtype.name, 3))
    moved = [{value: _moved(run, values[value], units[value]) for value in operands} for values in run.noisy]
    try:
        with warnings.catch_warnings():
            # Means of nothing and the like are meant: NaN is the answer.
            warnings.simplefilter("ignore", RuntimeWarning)
            step, wide, *noisy = outputs(run.step, False), outputs(run.wide, True), *(outputs(values, True) for values in moved)
            if any(not result.dtype.is_float for result in op.results) and not _decides(run, op, operands, outputs):
                return False
    except (CompilerError, ValueError, IndexError):
        # The reference has no answer, as for the index of the largest of nothing.
        return False
    if op.name == "attention" and not all(np.isfinite(run.wide[value]).all() for value in operands if value.dtype.is_float):
        # What a mask excludes is not looked at; the reference multiplies it by 0.
        return False
    if not all(_converts(run.wide[value], result.dtype) for value in operands for result in op.results if op.name in ("cast", "quantize")):
        return False
    if op.name in ("prod", "cumprod") and not all(_stays_finite(run.wide[value], value.dtype) for value in operands):
        return False
    for n, result in enumerate(op.results):
        others = [_rounded(run, op, result, values[n], wide[n]) for values in noisy]
        # A size below zero means that the window does not fit at this binding.
        fits = step[n].shape == concrete(result.type, run.bindings).shape
        if not fits or not all(_determined(step[n], wide[n], other, result.dtype) for other in others):
            return False
        run.step[result], run.wide[result] = step[n], wide[n]
        for values, other in zip(run.noisy, others, strict=True):
            values[result] = other
        bind_sizes(result.type, step[n], run.bindings)
    return True


def _rounded(run: Run, op: Op, result: Value, array: Array, wide: Array) -> Array:
    """A result with the noise of its own rounding."""
    if op.name not in EXACT:
        array = _moved(run, array, 2.0 ** -DIGITS.get(result.dtype.name, 3))
    return _with_other_zeros(array, wide) if op.name not in EXACT or op.name in ANY_ZERO else array


def _converts(array: Array, dtype: DType) -> bool:
    """Whether a conversion is defined: floats beyond an integer type's range become anything."""
    if array.dtype.kind != "f" or not dtype.is_integer or not array.size:
        return True
    limits = np.iinfo(dtype.numpy)
    return bool(np.isfinite(array).all() and array.min() > limits.min - 1.0 and array.max() < limits.max)


def _stays_finite(array: Array, dtype: DType) -> bool:
    """Whether no product of some elements is infinite: its order decides if infinity meets a zero in it, and NaN comes of it."""
    with np.errstate(all="ignore"):
        grown = np.log2(np.abs(array[np.isfinite(array)].astype(np.float64)))
    return array.dtype.kind != "f" or float(grown[grown > 0].sum()) < (1000 if dtype == f64 else 120)


def _moved(run: Run, array: Array, unit: float) -> Array:
    """Floats with noise of so many parts of themselves."""
    if array.dtype.kind != "f" or not unit:
        return array
    with np.errstate(all="ignore"):
        return np.asarray(array * (1 + unit * run.noise.uniform(-1, 1, array.shape)))


def _with_other_zeros(array: Array, wide: Array) -> Array:
    """Floats whose zeros have the sign that `wide` has not: a rounded zero and the larger of two zeros have either."""
    if array.dtype.kind != "f":
        return array
    return np.where(array == 0, np.copysign(0.0, np.where(wide == 0, -np.copysign(1.0, wide), 1.0)), array)


def _terms(op: Op, bindings: Mapping[str, int]) -> int:
    """The most terms that one sum of an op has; 1 where it has none.

    Each partial sum is rounded once, up or down: together as far off as a walk of so many steps, its square root in units.
    """
    region = region_of(op.definition, [None if v is None else v.type for v in op.operands], op.attrs)
    if region is None:
        return 1
    folded = [s.over if isinstance(s, Reduce) else (s.along,) for s in region.body if isinstance(s, Reduce | Scan)]
    return max((dims.evaluate(dims.product(region.axis(name).extent for name in over), bindings) for over in folded), default=1)


def _decides(run: Run, op: Op, operands: Sequence[Value], outputs: Callable[[Mapping[Value, Array], bool], tuple[Array, ...]]) -> bool:
    """Whether integers and bools that an op makes of rounded floats stay when these move by much more than they may."""
    rounded = [v for v in operands if not np.array_equal(run.noisy[0][v], run.wide[v], equal_nan=v.dtype.is_float)]
    if not rounded:
        return True
    expected = outputs(run.wide, True)
    for _ in range(6):
        moved = {v: _moved(run, run.wide[v], 2.0 ** (4 - DIGITS.get(v.dtype.name, 3))) if v in rounded else run.wide[v] for v in operands}
        exact = [n for n, result in enumerate(op.results) if not result.dtype.is_float]
        again = outputs(moved, True)
        if not all(np.array_equal(again[n], expected[n]) for n in exact):
            return False
    return True


LIMITS = {"f16": (1e-2, 2e3), "bf16": (1e-20, 1e20), "f32": (1e-20, 1e20), "f64": (1e-100, 1e100)}


def _determined(step: Array, wide: Array, noisy: Array, dtype: DType) -> bool:
    if not dtype.is_float:
        return bool(np.array_equal(step, wide) and np.array_equal(step, noisy))
    step = step.astype(np.float64)
    finite = np.isfinite(wide)
    for other in (step, noisy):
        if not np.array_equal(np.isfinite(other), finite) or not np.array_equal(other[~finite], wide[~finite], equal_nan=True):
            return False
    if not finite.any():
        return True
    magnitude = float(np.abs(wide[finite]).max())
    low, high = LIMITS.get(dtype.name, (1e-2, 1e2))
    if magnitude == 0:
        return not np.any(step[finite]) and not np.any(noisy[finite])
    allowed = ULP_FLOOR.get(dtype.name, 1) / 2.5 * magnitude * 2.0 ** (1 - DIGITS.get(dtype.name, 3))
    error = max(float(np.abs(other[finite] - wide[finite]).max()) for other in (step, noisy))
    return low <= magnitude <= high and error <= allowed


OFTEN = "matmul matmul conv reshape reshape transpose transpose sum mean softmax layer_norm slice concat".split()
FAMILIES: tuple[Callable[[Any], bool], ...] = (*([POINTWISE] * len(RECIPES)), *RECIPES.values(), *(RECIPES[name] for name in OFTEN))


def draw(choices: random.Random) -> Case | None:
    """A module of up to 14 ops with its inputs; None where nothing fitted."""
    sketch = Sketch(choices)
    if sketch.module.symbols:
        # An input tells the value of every symbol, as in a model.
        sketch.fresh(sketch.dtype(), [dims.symbol(name) for name in sketch.module.symbols])
    for _ in range(sketch.integer(1, 3)):
        sketch.fresh(sketch.dtype(), sketch.shape())
    wanted = sketch.integer(3, 14)
    for _ in range(wanted * 3):
        if len(sketch.graph) >= wanted:
            break
        sketch.grow()
    return sketch.finish()


__all__ = ["Case", "Run", "Sketch", "accepts", "draw", "type_of"]
